"""The lock of a set: from the last look at main to the ledger, one publisher at a time.

A row in the database with a heartbeat. A holder that stops beating is taken over, a dead one on this host at
once; the fencing token grows with every holder, so one that was taken over cannot write any more.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import SetLockRow
from lakeshare_server.catalog.process_identity import ProcessIdentity
from lakeshare_server.errors import CatalogConflict, Unavailable

LIFE_S = 60.0
BEAT_S = 5.0
POLL_S = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """The right to publish a set, as long as nobody holds a higher token."""

    set_name: str
    owner: str
    token: int


@contextmanager
def set_lock(catalog: Catalog, set_name: str, owner: str, wait_s: float) -> Iterator[Lease]:
    """Hold the lock of a set; `owner` is how others will see the holder named.

    Raises:
        CatalogConflict: somebody else held it for all of `wait_s`.
    """
    lease = _acquire(catalog, set_name, owner, wait_s)
    stop = threading.Event()
    heart = threading.Thread(target=_beat, args=(catalog, lease, stop), name=f"lock-{set_name}", daemon=True)
    heart.start()
    try:
        yield lease
    finally:
        stop.set()
        heart.join()
        _release(catalog, lease)


def require_held(session: Session, lease: Lease) -> None:
    """Refuse to go on in this transaction when the lease was lost.

    Raises:
        CatalogConflict: another holder has taken over.
    """
    row = session.get(SetLockRow, lease.set_name, with_for_update=True)
    if row is None or row.token != lease.token or row.owner is None:
        holder = "nobody" if row is None or row.owner is None else row.owner
        raise CatalogConflict(
            f"{lease.owner} lost the lock of set {lease.set_name}; it is held by {holder} now",
            "Nothing was written. Run again: it starts from what is published by then.",
        )


def _acquire(catalog: Catalog, set_name: str, owner: str, wait_s: float) -> Lease:
    deadline = time.monotonic() + wait_s
    while True:
        taken = _try_acquire(catalog, set_name, owner)
        if isinstance(taken, Lease):
            return taken
        if time.monotonic() > deadline:
            raise CatalogConflict(
                f"set {set_name} is being published by {taken}, for longer than {wait_s:.0f} s",
                "Wait for that run to end, or stop it; a dead holder is taken over by itself. "
                "LAKESHARE_LOCK_WAIT_S sets the wait.",
            )
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic()) + 0.001))


def _try_acquire(catalog: Catalog, set_name: str, owner: str) -> Lease | str:
    """The lease, or who holds it."""
    try:
        with catalog.writing(seen=False) as session:
            row = session.get(SetLockRow, set_name, with_for_update=True)
            if row is None:
                row = SetLockRow(set_name=set_name, token=0)
                session.add(row)
            elif not _is_free(row):
                return f"{row.owner} (process {row.pid} on {str(row.host).partition('/')[0]})"
            _take(row, owner)
            return Lease(set_name, owner, row.token)
    except IntegrityError:
        # Somebody inserted the row of a set that was never locked before at the same moment.
        return "somebody who has just taken it"


def _is_free(row: SetLockRow) -> bool:
    if row.owner is None or row.host is None or row.pid is None or row.expires_at is None:
        return True
    holder = ProcessIdentity(row.host, row.pid, row.process_start)
    return row.expires_at < datetime.now(UTC) or holder.is_dead()


def _take(row: SetLockRow, owner: str) -> None:
    me = ProcessIdentity.current()
    row.token += 1
    row.owner, row.host, row.pid, row.process_start = owner, me.host, me.pid, me.start
    row.expires_at = datetime.now(UTC) + timedelta(seconds=LIFE_S)


def _beat(catalog: Catalog, lease: Lease, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        until = datetime.now(UTC) + timedelta(seconds=LIFE_S)
        try:
            with catalog.writing(seen=False) as session:
                session.execute(update(SetLockRow).where(_held_by(lease)).values(expires_at=until))
        except (SQLAlchemyError, Unavailable) as error:
            # A missed beat is survivable: there are several within the lock's life, and the token decides.
            _log.warning("lock of set %s: heartbeat of %s failed: %s", lease.set_name, lease.owner, error)


def _release(catalog: Catalog, lease: Lease) -> None:
    nobody = dict.fromkeys(("owner", "host", "pid", "process_start", "expires_at"))
    try:
        with catalog.writing(seen=False) as session:
            session.execute(update(SetLockRow).where(_held_by(lease)).values(nobody))
    except (SQLAlchemyError, Unavailable) as error:
        # What was done under the lock, or what it failed of, is the news: the lock ends by itself.
        _log.warning(
            "lock of set %s: %s could not free it, it ends within %.0f s: %s",
            lease.set_name,
            lease.owner,
            LIFE_S,
            error,
        )


def _held_by(lease: Lease) -> ColumnElement[bool]:
    return (SetLockRow.set_name == lease.set_name) & (SetLockRow.token == lease.token)
