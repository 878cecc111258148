"""The audit log as a server's process fills it: into its journal at once, from there into the database.

A thread of its own brings what is in the journal into the chain, many events in one transaction.
"""

import logging
import threading
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError, StatementError

from lakeshare_server.catalog.audit.chain import append_written
from lakeshare_server.catalog.audit.events import AuditEvent, Written, written
from lakeshare_server.catalog.audit.journal import LONG_BYTES, Journal, events_in, forget, mark_taken, orphans
from lakeshare_server.catalog.audit.reading import newest_requests
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.errors import BadRequest, Unavailable

# From this many unwritten events on, requests are to wait for the writer: the log loses nothing.
BACKLOG = 20_000
GATHER_S = 0.2
RETRY_S = 1.0
MOST = 2000
LOOK_S = 10.0
CLOSE_ATTEMPTS = 3
REFUSED = "refused.jsonl"

Taken = tuple[Written, int]
_log = logging.getLogger(__name__)


class AuditLog:
    """Takes events and writes them; safe from any thread."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self.catalog, self.folder = catalog, folder
        self._journal = Journal(folder)
        self._unwritten: list[Taken] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._looked_at = float("-inf")
        self._writer = threading.Thread(target=self._keep_writing, name="audit-log", daemon=True)
        self._writer.start()

    @property
    def is_full(self) -> bool:
        """Whether whoever has an event should wait with the next."""
        return len(self._unwritten) >= BACKLOG

    def record(self, event: AuditEvent) -> None:
        """Take an event: once this returns, the end of the process does not lose it.

        Raises:
            OSError: the journal does not take it, as of a full disk.
        """
        item = written(event)
        with self._changed:
            self._unwritten.append((item, self._journal.write(item.text)))
            self._changed.notify()

    def newest(self, limit: int) -> list[AuditEvent]:
        """The newest events of requests that are in the database, newest first."""
        return newest_requests(self.catalog, limit)

    def close(self) -> None:
        """Bring every event that was taken into the log; what the database does not take now waits in the journal."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._writer.join()
        failures = 0
        while self._unwritten and failures < CLOSE_ATTEMPTS:
            failures += not self._write_some()
        if not self._unwritten:
            self._journal.remove()
            forget(self.catalog, self._journal.name)
            return
        _log.error(
            "audit log: %d events wait in %s; the next server on this state folder brings them into the log",
            len(self._unwritten),
            self._journal.path,
        )
        self._journal.leave()

    def _keep_writing(self) -> None:
        self._look_around()
        while not self._closing.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._unwritten or self._closing.is_set(), LOOK_S)
            # Requests come in flocks: a moment's wait makes one transaction of them.
            self._closing.wait(GATHER_S)
            if not (self._write_some() and self._look_around()):
                self._closing.wait(RETRY_S)

    def _write_some(self) -> bool:
        with self._changed:
            batch = self._unwritten[:MOST]
        if not batch:
            return True
        try:
            bring(self.catalog, self.folder, self._journal.name, batch)
        # There is no other writer: whatever ends one attempt, the next is made.
        except Exception as error:
            is_foreseen = isinstance(error, SQLAlchemyError | Unavailable)
            refused = "audit log: %d events wait, the database refused them: %s"
            _log.warning(refused, len(self._unwritten), error, exc_info=not is_foreseen)
            return False
        with self._changed:
            del self._unwritten[: len(batch)]
            if self._unwritten or self._journal.size < LONG_BYTES:
                return True
            full, self._journal = self._journal, Journal(self.folder)
        full.remove()
        forget(self.catalog, full.name)
        return True

    def _look_around(self) -> bool:
        if time.monotonic() - self._looked_at < LOOK_S:
            return True
        try:
            adopt(self.catalog, self.folder)
        except Exception as error:
            is_foreseen = isinstance(error, SQLAlchemyError | Unavailable | OSError)
            _log.warning("audit log: journals of ended processes wait: %s", error, exc_info=not is_foreseen)
            return False
        self._looked_at = time.monotonic()
        return True


def adopt(catalog: Catalog, folder: Path) -> int:
    """Bring into the log what processes that are no more have left in their journals; returns how many events.

    Raises:
        Unavailable: the database does not answer.
    """
    found = 0
    with orphans(folder) as paths:
        for path in paths:
            events = events_in(catalog, path)
            while batch := list(islice(events, MOST)):
                bring(catalog, folder, path.stem, batch)
                found += len(batch)
            path.unlink()
            forget(catalog, path.stem)
    return found


def bring(catalog: Catalog, folder: Path, journal: str, batch: Sequence[Taken]) -> None:
    """Bring events of a journal into the log. One that the database can never hold keeps no other from it.

    Raises:
        Unavailable: the database does not answer.
        SQLAlchemyError: it refuses them for a reason that is none of theirs.
    """
    try:
        with catalog.writing(seen=False) as session:
            append_written(session, [event for event, _ in batch])
            mark_taken(session, journal, batch[-1][1])
    except (BadRequest, StatementError, OverflowError) as error:
        if not _is_their_own(error):
            raise
        if len(batch) == 1:
            _put_aside(catalog, folder, journal, batch[0], error)
            return
        middle = len(batch) // 2
        bring(catalog, folder, journal, batch[:middle])
        bring(catalog, folder, journal, batch[middle:])


def _is_their_own(error: Exception) -> bool:
    """Whether it is the events that a database refuses, and not the moment."""
    return isinstance(error, BadRequest | OverflowError | DataError | IntegrityError) or isinstance(
        getattr(error, "orig", None), OverflowError
    )


def _put_aside(catalog: Catalog, folder: Path, journal: str, taken: Taken, error: Exception) -> None:
    event, ends_at = taken
    path = folder / REFUSED
    with path.open("ab") as kept:
        kept.write(event.text + b"\n")
    _log.error("audit log: an event that the database cannot hold (%s) is in %s: %r", error, path, event.text)
    with catalog.writing(seen=False) as session:
        mark_taken(session, journal, ends_at)
