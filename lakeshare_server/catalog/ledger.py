"""The ledger: all publications of every table, in order. It is appended to, never changed.

Whoever appends for a set holds the set's lock; its fencing token is checked in the same transaction.
"""

import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    MAX_LONG,
    FollowedTableRow,
    PublicationRow,
    SetLockRow,
    SharedTableRow,
)
from lakeshare_server.catalog.names import NAME_HINT, is_name
from lakeshare_server.catalog.recipients import LOCAL_OPERATOR
from lakeshare_server.catalog.sharing.editing import Edit, editing
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound, Unavailable

TableFormat = Literal["iceberg", "delta"]


@dataclass(frozen=True, kw_only=True)
class NewPublication:
    """A publication that has no number yet; `table` is the lake's own name, like `flights.departures`.

    `changes_digest` is that of its index of changes: None for Delta tables, whose log has them, and where none was
    made.
    `schema_id` is Iceberg's id of the columns that readers get, of followed tables only.
    """

    table: str
    set_name: str
    format: TableFormat
    location: str
    table_id: str
    metadata_location: str | None = None
    snapshot_id: int | None = None
    schema_id: int | None = None
    delta_version: int | None = None
    nessie_hash: str | None = None
    schema_string: str
    rows: int
    files: int
    size_bytes: int
    index_digest: str
    contract_digest: str
    verdicts: Mapping[str, Any]
    run_id: str
    partition: str
    audited: bool = True
    rollback_of: int | None = None
    changes_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Publication(NewPublication):
    """A publication in the ledger: its number is what recipients see."""

    version: int
    published_at: datetime


@dataclass(frozen=True)
class NumberedSnapshot:
    """What one number of an Iceberg table pins, and the run that gave it."""

    version: int
    table_id: str
    snapshot_id: int | None
    run_id: str


CHECK_EVERY_S = 10.0
IN_CATALOGS = ("iceberg:", "nessie:")


@dataclass(frozen=True)
class IcebergIdentity:
    """What tells an Iceberg table from another one in its place: its UUID, and the folder it says it is in."""

    table_id: str
    location: str


@dataclass(frozen=True)
class FollowedTable:
    """A followed table; `table` is the lake name that shared tables point to.

    `iceberg` says which Iceberg table it is, None of a Delta table. `applied` ones came from a file.
    """

    table: str
    location: str
    check_every_s: float
    start_version: int
    created_at: datetime
    iceberg: IcebergIdentity | None = None
    applied: bool = False

    def as_json(self) -> dict[str, Any]:
        """The table for the audit log."""
        return {
            "table": self.table,
            "location": self.location,
            "format": "delta" if self.iceberg is None else "iceberg",
            "check_every_s": self.check_every_s,
            "start_version": self.start_version,
            "applied": self.applied,
        }


class FollowedTables:
    """The followed tables of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def add(
        self,
        table: str,
        location: str,
        check_every_s: float,
        start_version: int = 0,
        iceberg: IcebergIdentity | None = None,
        by: str = LOCAL_OPERATOR,
    ) -> FollowedTable:
        """Follow the table at a location, in a transaction of its own; see `follow_table`."""
        with editing(self.catalog, by) as edit:
            return follow_table(edit, table, location, check_every_s, start_version, iceberg)

    def get(self, table: str) -> FollowedTable | None:
        """The followed table of this lake name."""
        with self.catalog.reading() as session:
            row = _followed_row(session, table)
            return None if row is None else _followed_table_from_row(row)

    def list(self) -> list[FollowedTable]:
        """All followed tables by name."""
        with self.catalog.reading() as session:
            return followed_tables(session)

    def remove(self, table: str, by: str = LOCAL_OPERATOR) -> FollowedTable:
        """Stop following a table, in a transaction of its own; see `unfollow_table`."""
        with editing(self.catalog, by) as edit:
            return unfollow_table(edit, table)


def follow_table(
    edit: Edit,
    table: str,
    location: str,
    check_every_s: float,
    start_version: int = 0,
    iceberg: IcebergIdentity | None = None,
) -> FollowedTable:
    """Follow the table at a location; again it changes how often it is checked and where it starts.

    Raises:
        BadRequest: a name or number that cannot be used.
        CatalogConflict: the name is published by pipelines, or followed at another location or as another table.
    """
    _require_usable(location, check_every_s, start_version)
    row = _free_row(edit, table, location, iceberg)
    return _set(edit, row, check_every_s, start_version)


def alter_followed(edit: Edit, table: str, check_every_s: float, start_version: int) -> FollowedTable:
    """Change how often a followed table is checked and where it starts.

    Raises:
        NotFound: no table is followed under this name.
        BadRequest: a number cannot be used.
    """
    row = _known_row(edit.session, table)
    _require_usable(row.location, check_every_s, start_version)
    return _set(edit, row, check_every_s, start_version)


def unfollow_table(edit: Edit, table: str) -> FollowedTable:
    """Follow a table no more; what shares it stays and answers like a table that was never published.

    Directory access to it ends: the next table of this name may lie in another folder.

    Raises:
        NotFound: no table is followed under this name.
    """
    row = _known_row(edit.session, table)
    edit.session.delete(row)
    shared = update(SharedTableRow).where(SharedTableRow.lake_table == table)
    edit.session.execute(shared.values(directory_access=False))
    found = _followed_table_from_row(row)
    edit.changed("unfollow_table", table, found.as_json(), None)
    return found


def is_location_pattern(location: str) -> bool:
    """Whether a location has a star for the table: it stands for all tables of a folder or a namespace."""
    if location.startswith(IN_CATALOGS):
        return location.partition("@")[0].endswith(".*")
    return location.endswith("/*")


def followed_tables(session: Session) -> list[FollowedTable]:
    """All followed tables by name."""
    rows = session.scalars(select(FollowedTableRow).order_by(FollowedTableRow.table_name))
    return [_followed_table_from_row(row) for row in rows]


def require_not_followed(session: Session, table: str) -> None:
    """Refuse to publish in this transaction what is followed.

    Raises:
        CatalogConflict: the table is followed.
    """
    row = _followed_row(session, table)
    if row is not None:
        raise CatalogConflict(
            f"{table} is followed at {row.location}, so its versions are found there",
            f"Publish under another name, or end it first: lakeshare table unfollow {table}",
        )


def require_followed(session: Session, table: str, table_id: str) -> None:
    """Refuse to number in this transaction what is followed no more, or is another table by now.

    Raises:
        CatalogConflict: it is not followed as the Iceberg table with this id.
    """
    row = _followed_row(session, table)
    if row is None or row.table_id != table_id:
        raise CatalogConflict(
            f"{table} is not followed any more as the table that was found", "Follow it again."
        )


def require_table_name(field: str, table: str) -> None:
    """Refuse a new name of a followed table that is not `schema.table`, each of them a name that clients can read.

    Raises:
        BadRequest: says what names may be.
    """
    parts = table.split(".")
    if len(parts) != 2 or not all(is_name(part) for part in parts):
        raise BadRequest(field, table, f"Give schema.table, like sales.orders. {NAME_HINT}")


def _require_usable(location: str, check_every_s: float, start_version: int) -> None:
    if not location or "\x00" in location:
        raise BadRequest("location", location, "Give the place of a Delta or Iceberg table.")
    if not (math.isfinite(check_every_s) and check_every_s >= 0):
        raise BadRequest("check_every_s", check_every_s, "Give seconds, 0 or more.")
    if not 0 <= start_version <= MAX_LONG:
        raise BadRequest("start_version", start_version, "Give a version of the table, 0 or more.")


def _set(edit: Edit, row: FollowedTableRow, check_every_s: float, start_version: int) -> FollowedTable:
    before = _followed_table_from_row(row) if row in edit.session else None
    row.check_every_s, row.start_version = float(check_every_s), start_version
    edit.keep(row)
    edit.session.add(row)
    edit.session.flush()
    after = _followed_table_from_row(row)
    if before is None:
        edit.changed("follow_table", row.table_name, None, after.as_json())
    elif before != after:
        edit.changed("alter_followed_table", row.table_name, before.as_json(), after.as_json())
    return after


def _free_row(edit: Edit, table: str, location: str, iceberg: IcebergIdentity | None) -> FollowedTableRow:
    published = select(PublicationRow.key).where(PublicationRow.table_name == table, PublicationRow.audited)
    if edit.session.scalars(published.limit(1)).one_or_none() is not None:
        raise CatalogConflict(
            f"{table} is published by pipelines; the ledger numbers its versions",
            "Follow the table under another name.",
        )
    row = _followed_row(edit.session, table)
    if row is None:
        require_table_name("table", table)
        _require_format(edit.session, table, "delta" if iceberg is None else "iceberg")
        return FollowedTableRow(
            table_name=table,
            location=location,
            table_id=None if iceberg is None else iceberg.table_id,
            table_location=None if iceberg is None else iceberg.location,
            created_at=edit.at,
            applied=False,
        )
    if row.location != location:
        raise CatalogConflict(
            f"{table} is followed at {row.location} already",
            f"Take another name for {location}, or end it first: lakeshare table unfollow {table}",
        )
    if _identity(row) != iceberg:
        raise CatalogConflict(
            f"{location} has another table than the one that is followed as {table}",
            f"To follow this one, end it first: lakeshare table unfollow {table}",
        )
    return row


def _require_format(session: Session, table: str, table_format: str) -> None:
    """Refuse a table of another format than the one whose versions are numbered under its name."""
    numbered = select(PublicationRow.table_format).where(PublicationRow.table_name == table)
    known = session.scalars(numbered.order_by(PublicationRow.version.desc()).limit(1)).one_or_none()
    if known not in (None, table_format):
        raise CatalogConflict(
            f"{table} has versions in the format {known}, and the table to follow is in the format {table_format}",
            "Follow it under another name: numbers are given once.",
        )


def _known_row(session: Session, table: str) -> FollowedTableRow:
    row = _followed_row(session, table)
    if row is None:
        raise NotFound("Followed table", table)
    return row


def _followed_row(session: Session, table: str) -> FollowedTableRow | None:
    return session.scalars(select(FollowedTableRow).where(FollowedTableRow.table_name == table)).one_or_none()


def _followed_table_from_row(row: FollowedTableRow) -> FollowedTable:
    return FollowedTable(
        row.table_name,
        row.location,
        row.check_every_s,
        row.start_version,
        row.created_at,
        _identity(row),
        row.applied,
    )


def _identity(row: FollowedTableRow) -> IcebergIdentity | None:
    if row.table_id is None or row.table_location is None:
        return None
    return IcebergIdentity(row.table_id, row.table_location)


PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number."""

    host: str
    pid: int
    start: str | None

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """This process."""
        return cls(_host(), os.getpid(), _start(os.getpid()))

    def is_dead(self) -> bool:
        """Whether the process ran on this very host and is gone. Elsewhere nobody can tell: False."""
        if self.host != _host():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.start is not None and _start(self.pid) != self.start


def _host() -> str:
    # Containers on one host share neither process numbers nor, always, names: the namespace tells them apart.
    parts = [platform.node()]
    boot = PROC / "sys/kernel/random/boot_id"
    namespace = PROC / "self/ns/pid"
    if boot.exists() and namespace.exists():
        parts += [boot.read_text().strip(), str(namespace.readlink())]
    return "/".join(parts)


def _start(pid: int) -> str | None:
    """The process's start time in ticks; None without a /proc, or for a zombie, which holds nothing."""
    try:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start = fields[0], fields[19]
    return None if state == "Z" else start


LIFE_S = 60.0
HEARTBEAT_S = 5.0
POLL_S = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lease:
    """The right to publish a set, as long as nobody holds a higher token."""

    set_name: str
    owner: str
    token: int


@contextmanager
def lock_set(catalog: Catalog, set_name: str, owner: str, wait_s: float) -> Iterator[Lease]:
    """Hold the lock of a set; `owner` is how others will see the holder named.

    Raises:
        CatalogConflict: somebody else held it for all of `wait_s`.
    """
    lease = _acquire(catalog, set_name, owner, wait_s)
    stop = threading.Event()
    heart = threading.Thread(
        target=_keep_alive, args=(catalog, lease, stop), name=f"lock-{set_name}", daemon=True
    )
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


def _keep_alive(catalog: Catalog, lease: Lease, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        until = datetime.now(UTC) + timedelta(seconds=LIFE_S)
        try:
            with catalog.writing(seen=False) as session:
                session.execute(update(SetLockRow).where(_is_held_by(lease)).values(expires_at=until))
        except (SQLAlchemyError, Unavailable) as error:
            # A missed beat is survivable: there are several within the lock's life, and the token decides.
            _log.warning("lock of set %s: heartbeat of %s failed: %s", lease.set_name, lease.owner, error)


def _release(catalog: Catalog, lease: Lease) -> None:
    nobody = dict.fromkeys(("owner", "host", "pid", "process_start", "expires_at"))
    try:
        with catalog.writing(seen=False) as session:
            session.execute(update(SetLockRow).where(_is_held_by(lease)).values(nobody))
    except (SQLAlchemyError, Unavailable) as error:
        # What was done under the lock, or what it failed of, is the news: the lock ends by itself.
        _log.warning(
            "lock of set %s: %s could not free it, it ends within %.0f s: %s",
            lease.set_name,
            lease.owner,
            LIFE_S,
            error,
        )


def _is_held_by(lease: Lease) -> ColumnElement[bool]:
    return (SetLockRow.set_name == lease.set_name) & (SetLockRow.token == lease.token)


TICK = timedelta(milliseconds=1)
ATTEMPTS = 5
# Times that every database and driver can hold, in every zone.
FIRST, LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


Written = TypeVar("Written")


class Ledger:
    """Publications of the catalog's tables; `audited_only` leaves out what was found while a table was followed."""

    def __init__(self, catalog: Catalog, *, audited_only: bool = False) -> None:
        self.catalog, self._audited_only = catalog, audited_only

    def append(self, pubs: Sequence[NewPublication], lease: Lease | None = None) -> list[Publication]:
        """Number and record the publications of one run: all tables or none.

        Appending a run again changes nothing and returns what is there.

        Raises:
            CatalogConflict: the lease was lost, a Delta version is not above the latest one, or a table is followed.
        """

        def append(session: Session) -> list[Publication]:
            if lease is not None:
                require_held(session, lease)
            return [_append(session, new) for new in pubs]

        return self._written(append, pubs)

    def append_found(
        self, table: str, states: Sequence[NewPublication], at_ms: Sequence[int | None], after: int | None
    ) -> list[Publication] | None:
        """Number the states that a followed table was found in, in order, if `after` is still its latest number.

        None when somebody has numbered another state since: what was found may be older than that one. `at_ms` says
        when each state came about, None is now; times grow with the numbers and are never in the future.

        Raises:
            CatalogConflict: the table was published in another format, or is followed no more.
        """
        return self._written(
            partial(_append_found, table=table, states=states, at_ms=at_ms, after=after), states
        )

    def _written(self, write: Callable[[Session], Written], pubs: Sequence[NewPublication]) -> Written:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                with self.catalog.writing() as session:
                    return write(session)
            except IntegrityError as error:
                # Without a single writer two appends can take one number: one of them comes again.
                if attempt == ATTEMPTS:
                    raise CatalogConflict(
                        f"the ledger refused {', '.join(new.table for new in pubs)}: {error.orig}",
                        "Other writers keep appending; run again.",
                    ) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    def latest(self, table: str) -> Publication | None:
        """The publication that recipients read now."""
        return self._one(self._newest_first(table).limit(1))

    def at(self, table: str, version: int) -> Publication | None:
        """The publication with this number."""
        return self._one(self._newest_first(table).where(PublicationRow.version == _number(version)))

    def history(self, table: str, limit: int | None = None) -> list[Publication]:
        """Publications of the table, newest first."""
        return self._all(self._newest_first(table).limit(limit))

    def oldest(self, table: str) -> Publication | None:
        """The first publication."""
        return self._one(self._oldest_first(table).limit(1))

    def at_or_below(self, table: str, version: int) -> Publication | None:
        """The last publication with this number or a lower one."""
        return self._one(self._newest_first(table).where(PublicationRow.version <= _number(version)).limit(1))

    def at_or_before(self, table: str, timestamp_ms: int) -> Publication | None:
        """The last publication of that time or earlier."""
        since = PublicationRow.published_at <= _moment(timestamp_ms)
        return self._one(self._newest_first(table).where(since).limit(1))

    def at_or_after(self, table: str, timestamp_ms: int) -> Publication | None:
        """The first publication of that time or later."""
        until = PublicationRow.published_at >= _moment(timestamp_ms)
        return self._one(self._oldest_first(table).where(until).limit(1))

    def between(self, table: str, first: int, last: int) -> list[Publication]:
        """The publications with numbers from `first` to `last`, in order."""
        return self._all(
            self._oldest_first(table).where(PublicationRow.version.between(_number(first), _number(last)))
        )

    def by_run(self, run_id: str) -> list[Publication]:
        """What one run published."""
        return self._all(
            select(PublicationRow).where(PublicationRow.run_id == run_id).order_by(PublicationRow.key)
        )

    def numbered_snapshots(self, table: str) -> list[NumberedSnapshot]:
        """What every number of an Iceberg table pins, in order."""
        columns = (
            PublicationRow.version,
            PublicationRow.table_id,
            PublicationRow.snapshot_id,
            PublicationRow.run_id,
        )
        rows = select(*columns).where(PublicationRow.table_name == table).order_by(PublicationRow.version)
        with self.catalog.reading() as session:
            return [NumberedSnapshot(*row) for row in session.execute(rows)]

    def first_of(self, table: str, table_id: str) -> int:
        """The number from which on all publications of a name are of the table with this id."""
        others = select(func.max(PublicationRow.version)).where(
            PublicationRow.table_name == table, PublicationRow.table_id != table_id
        )
        with self.catalog.reading() as session:
            last = session.scalars(others).one()
            return 0 if last is None else last + 1

    def tables(self) -> list[str]:
        """Names of all tables that were ever published."""
        with self.catalog.reading() as session:
            names = select(PublicationRow.table_name).distinct().order_by(PublicationRow.table_name)
            return list(session.scalars(names))

    def _newest_first(self, table: str) -> Select[PublicationRow]:
        return _rows(table, self._audited_only).order_by(PublicationRow.version.desc())

    def _oldest_first(self, table: str) -> Select[PublicationRow]:
        return _rows(table, self._audited_only).order_by(PublicationRow.version)

    def _one(self, rows: Select[PublicationRow]) -> Publication | None:
        found = self._all(rows)
        return found[0] if found else None

    def _all(self, rows: Select[PublicationRow]) -> list[Publication]:
        with self.catalog.reading() as session:
            return [_publication_from_row(row) for row in session.scalars(rows)]


def _rows(table: str, audited_only: bool) -> Select[PublicationRow]:
    rows = select(PublicationRow).where(PublicationRow.table_name == table)
    return rows.where(PublicationRow.audited) if audited_only else rows


def _number(version: int) -> int:
    """The version, or the last number that a database can compare with."""
    return min(max(version, -MAX_LONG), MAX_LONG)


def _moment(timestamp_ms: int) -> datetime:
    """The time, or the end of time that a database can compare with."""
    least, most = int(FIRST.timestamp() * 1000), int(LAST.timestamp() * 1000)
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=min(max(timestamp_ms, least), most))


def _append(session: Session, new: NewPublication) -> Publication:
    same_run = select(PublicationRow).where(
        PublicationRow.table_name == new.table, PublicationRow.run_id == new.run_id
    )
    existing = session.scalars(same_run).one_or_none()
    if existing is not None:
        return _publication_from_row(existing)
    rows = _rows(new.table, audited_only=False).order_by(PublicationRow.version.desc())
    latest = session.scalars(rows.limit(1)).one_or_none()
    if latest is None and new.audited:
        # What is found in storage comes unaudited; what pipelines publish must not mix with it.
        require_not_followed(session, new.table)
    row = _row(new, _next_version(new, latest), _publication_time(latest))
    session.add(row)
    session.flush()
    return _publication_from_row(row)


def _append_found(
    session: Session,
    *,
    table: str,
    states: Sequence[NewPublication],
    at_ms: Sequence[int | None],
    after: int | None,
) -> list[Publication] | None:
    rows = _rows(table, audited_only=False).order_by(PublicationRow.version.desc())
    latest = session.scalars(rows.limit(1)).one_or_none()
    if (None if latest is None else latest.version) != after:
        return None
    added = []
    for table_id in {new.table_id for new in states}:
        require_followed(session, table, table_id)
    for new, told_ms in zip(states, at_ms, strict=True):
        latest = _row(new, _next_version(new, latest), _publication_time(latest, told_ms))
        session.add(latest)
        added.append(latest)
    session.flush()
    return [_publication_from_row(row) for row in added]


def _next_version(new: NewPublication, latest: PublicationRow | None) -> int:
    if latest is not None and latest.table_format != new.format:
        raise CatalogConflict(
            f"{new.table} was published as {latest.table_format}, now it comes as {new.format}",
            "Publish the new format under another table name and change the share.",
        )
    if new.format == "iceberg":
        return 0 if latest is None else latest.version + 1
    if new.delta_version is None:
        raise BadRequest("delta_version", None, f"A publication of the Delta table {new.table} needs it.")
    if latest is not None and new.delta_version <= latest.version:
        raise CatalogConflict(
            f"{new.table} is published at Delta version {latest.version}; {new.delta_version} is not above it",
            "Publish a newer commit; numbers only grow.",
        )
    return new.delta_version


def _publication_time(latest: PublicationRow | None, told_ms: int | None = None) -> datetime:
    now = datetime.now(UTC)
    now -= timedelta(microseconds=now.microsecond % 1000)
    if told_ms is not None:
        now = min(now, _moment(told_ms))
    # Time travel by timestamp needs times that grow with the numbers, whatever the clock does.
    return now if latest is None else max(now, latest.published_at + TICK)


def _row(new: NewPublication, version: int, published_at: datetime) -> PublicationRow:
    return PublicationRow(
        table_name=new.table,
        version=version,
        set_name=new.set_name,
        table_format=new.format,
        location=new.location,
        table_id=new.table_id,
        metadata_location=new.metadata_location,
        snapshot_id=new.snapshot_id,
        schema_id=new.schema_id,
        delta_version=new.delta_version,
        nessie_hash=new.nessie_hash,
        schema_string=new.schema_string,
        row_count=new.rows,
        file_count=new.files,
        size_bytes=new.size_bytes,
        index_digest=new.index_digest,
        contract_digest=new.contract_digest,
        verdicts=dict(new.verdicts),
        run_id=new.run_id,
        partition_key=new.partition,
        audited=new.audited,
        rollback_of=new.rollback_of,
        published_at=published_at,
        changes_digest=new.changes_digest,
    )


def _publication_from_row(row: PublicationRow) -> Publication:
    return Publication(
        table=row.table_name,
        version=row.version,
        set_name=row.set_name,
        format="iceberg" if row.table_format == "iceberg" else "delta",
        location=row.location,
        table_id=row.table_id,
        metadata_location=row.metadata_location,
        snapshot_id=row.snapshot_id,
        schema_id=row.schema_id,
        delta_version=row.delta_version,
        nessie_hash=row.nessie_hash,
        schema_string=row.schema_string,
        rows=row.row_count,
        files=row.file_count,
        size_bytes=row.size_bytes,
        index_digest=row.index_digest,
        contract_digest=row.contract_digest,
        verdicts=row.verdicts,
        run_id=row.run_id,
        partition=row.partition_key,
        audited=row.audited,
        rollback_of=row.rollback_of,
        published_at=row.published_at,
        changes_digest=row.changes_digest,
    )
