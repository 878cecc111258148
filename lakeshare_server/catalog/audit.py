"""The audit log: one row for every request, refusals too.

Rows are written in batches by a thread of their own, off the request's path; closing writes what is left.
"""

import logging
import threading
from dataclasses import asdict, dataclass, fields
from datetime import datetime

from sqlalchemy import insert, select
from sqlalchemy.exc import SQLAlchemyError

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.errors import Unavailable

# From this many unwritten rows on, requests are to wait for the writer: the log loses nothing.
BACKLOG = 20_000
GATHER_S = 0.05
RETRY_S = 1.0
CLOSE_ATTEMPTS = 3

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """A request and what became of it."""

    at: datetime
    recipient: str | None
    action: str
    object_name: str | None
    status: int
    error_code: str | None
    version: int | None
    files: int | None
    request_id: str
    ip: str | None
    user_agent: str | None
    elapsed_ms: int


COLUMNS = tuple(field.name for field in fields(AuditEntry))


class AuditLog:
    """Takes, writes and reads audit rows; safe from any thread."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._unwritten: list[AuditEntry] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._keep_writing, name="audit-log", daemon=True)
        self._writer.start()

    @property
    def is_full(self) -> bool:
        """Whether whoever has a row should wait with it."""
        return len(self._unwritten) >= BACKLOG

    def record(self, entry: AuditEntry) -> None:
        """Take a row for writing, in any case and at once."""
        with self._changed:
            self._unwritten.append(entry)
            self._changed.notify()

    def close(self) -> None:
        """Write every row that was taken; what the database refuses goes to the process log instead."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._writer.join()
        for _ in range(CLOSE_ATTEMPTS):
            if self._write_some():
                return
        for entry in self._unwritten:
            _log.error("audit row that could not be written: %s", asdict(entry))

    def newest(self, limit: int) -> list[AuditEntry]:
        """The newest written rows of requests, newest first; what administrators changed is not among them."""
        requests = select(AuditRow).where(AuditRow.principal.is_(None))
        with self.catalog.reading() as session:
            rows = session.scalars(requests.order_by(AuditRow.key.desc()).limit(limit))
            return [_entry(row) for row in rows]

    def _keep_writing(self) -> None:
        while not self._closing.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._unwritten or self._closing.is_set())
            # Requests come in flocks: a moment's wait makes one transaction of them.
            self._closing.wait(GATHER_S)
            if not self._write_some():
                self._closing.wait(RETRY_S)

    def _write_some(self) -> bool:
        with self._changed:
            batch = list(self._unwritten)
        if not batch:
            return True
        try:
            with self.catalog.writing(seen=False) as session:
                session.execute(insert(AuditRow), [_values(entry) for entry in batch])
        # There is no other writer: whatever ends one attempt, the next is made.
        except Exception as error:
            is_foreseen = isinstance(error, SQLAlchemyError | Unavailable)
            refused = "audit log: %d rows wait, the database refused them: %s"
            _log.warning(refused, len(batch), error, exc_info=not is_foreseen)
            return False
        with self._changed:
            del self._unwritten[: len(batch)]
        return True


def _values(entry: AuditEntry) -> dict[str, object]:
    # `asdict` copies deeply, at ten times the price.
    return {name: getattr(entry, name) for name in COLUMNS}


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(**{name: getattr(row, name) for name in COLUMNS})
