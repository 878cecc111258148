"""Audit events: their canonical JSON, search, the journal of a process, and the chain in the database."""

import fcntl
import hashlib
import logging
import mmap
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AnyText, AuditChainRow, AuditJournalRow, AuditRow
from lakeshare_server.errors import BadRequest, Unavailable
from lakeshare_server.file_lock import try_lock
from lakeshare_server.metrics import PROCESS
from lakeshare_server.settings import make_private

Kind = Literal["request", "end", "change"]
MAX_TEXT_CHARS = 4000
MAX_NUMBER = 1 << 53
GENESIS = "0" * 64


# Not frozen: that would take twice the time to create one, for each request.
@dataclass(kw_only=True)
class AuditEvent:
    """A request of a recipient, or a change by a principal; `size_bytes` and `rows` are those of served files."""

    at: datetime
    action: str
    request_id: str
    kind: Kind = "request"
    recipient: str | None = None
    principal: str | None = None
    object_name: str | None = None
    status: int = 200
    error_code: str | None = None
    version: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    ip: str | None = None
    user_agent: str | None = None
    elapsed_ms: int = 0
    details: Mapping[str, Any] | None = None


NAMES = tuple(field.name for field in fields(AuditEvent))
EVENT_COLUMNS = {name: AuditRow.__table__.c[name].type for name in NAMES}
LENGTHS = {
    name: getattr(column, "length", None) or MAX_TEXT_CHARS
    for name, column in EVENT_COLUMNS.items()
    if isinstance(column, AnyText)
}


def serialize_event(event: AuditEvent) -> bytes:
    """The canonical JSON of an event, as every database returns it.

    Texts are cut to their columns, and characters that not every database stores are replaced.
    """
    fields = present_fields(event)
    for name, length in LENGTHS.items():
        if name in fields:
            text = fields[name]
            if len(text) > length or not text.isascii() or "\x00" in text:
                fields[name] = _text(text, length)
    if event.details is not None:
        fields["details"] = storable_value(event.details)
    return canonical_json(fields)


def check_event(text: bytes) -> None:
    """Raises ValueError if a text is not the canonical JSON of an event."""
    fields = orjson.loads(text)
    if not isinstance(fields, dict) or not set(fields) <= set(NAMES) or not fields.keys() >= {"at", "action"}:
        raise ValueError("not an event of the audit log")
    if format_instant(datetime.fromisoformat(fields["at"])) != fields["at"]:
        raise ValueError("its time is not in UTC with microseconds")


def present_fields(event: AuditEvent) -> dict[str, Any]:
    """The fields that have a value."""
    # `asdict` copies deeply, which takes thirty times as long.
    values = vars(event)
    return {name: value for name in NAMES if (value := values[name]) is not None}


def canonical_json(fields: dict[str, Any]) -> bytes:
    """The JSON that an event's hash covers, of its present fields: sorted keys, no spaces, no null.

    Without nulls, a column that is added later does not change the hashes of earlier events.
    """
    return orjson.dumps({**fields, "at": format_instant(fields["at"])}, option=orjson.OPT_SORT_KEYS)


def chain_hash(previous_hash: str, text: bytes) -> str:
    """The hash of an event: SHA-256 of the hash before it, a line feed, and its canonical JSON."""
    return hashlib.sha256(b"%b\n%b" % (previous_hash.encode(), text)).hexdigest()


def format_instant(moment: datetime) -> str:
    """A time in UTC, always with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def storable_value(value: Any) -> Any:
    """Any value as JSON that every database stores: texts without NUL, integers within 53 bits."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, MAX_TEXT_CHARS)
    if isinstance(value, int):
        return value if abs(value) < MAX_NUMBER else str(value)
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, Mapping):
        return {_text(str(name), MAX_TEXT_CHARS): storable_value(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return [storable_value(item) for item in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [storable_value(item) for item in value]
    # Libraries write floats differently, which would change hashes.
    return _text(str(value), MAX_TEXT_CHARS)


def _text(value: str, length: int) -> str:
    if not value.isascii() or "\x00" in value:
        value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")
    return value[:length]


BATCH = 2000
REFUSED_STATUS = 400


@dataclass(frozen=True)
class ChainedEvent:
    """An event with its number and hashes in the chain; events from before the chain have no hashes."""

    number: int
    event: AuditEvent
    previous_hash: str | None
    hash: str | None

    def as_json(self) -> dict[str, Any]:
        """The event as the export has it."""
        fields = {**vars(self.event), "at": format_instant(self.event.at)}
        return {"number": self.number, **fields, "previous_hash": self.previous_hash, "hash": self.hash}


@dataclass(frozen=True, kw_only=True)
class Search:
    """Conditions on events; None matches any value. `object_name` also matches the objects inside, like tables.

    `before` is the number of an event: those before it match.
    """

    recipient: str | None = None
    principal: str | None = None
    action: str | None = None
    object_name: str | None = None
    request_id: str | None = None
    ip: str | None = None
    kind: Kind | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    refused: bool = False

    def conditions(self) -> list[ColumnElement[bool]]:
        names = ("recipient", "principal", "action", "request_id", "ip", "kind")
        pairs = [(getattr(AuditRow, name), getattr(self, name)) for name in names]
        conditions = [column == value for column, value in pairs if value is not None]
        if self.object_name is not None:
            inside = AuditRow.object_name.startswith(f"{self.object_name}.", autoescape=True)
            conditions.append((AuditRow.object_name == self.object_name) | inside)
        if self.since is not None:
            conditions.append(AuditRow.at >= self.since)
        if self.until is not None:
            conditions.append(AuditRow.at < self.until)
        if self.before is not None:
            conditions.append(AuditRow.key < self.before)
        if self.refused:
            conditions.append(AuditRow.status >= REFUSED_STATUS)
        return conditions


NO_CONDITION = Search()


def search(catalog: Catalog, query: Search, limit: int) -> list[ChainedEvent]:
    """The newest events that match, oldest first; raises Unavailable."""
    statement = select(AuditRow).where(*query.conditions()).order_by(AuditRow.key.desc()).limit(limit)
    with catalog.reading() as session:
        return [_chained(row) for row in session.scalars(statement)][::-1]


# Events that are looked through at once, and at most.
FIRST_WINDOW, LAST_WINDOW, QUICK_S = 5_000, 160_000, 0.02


@dataclass(frozen=True)
class EventPage:
    """Matching events, newest first. `next` is the `before` of the next page, None at the end of the log.

    `is_complete`: as many as were wanted, or the end of the log; else the time was over before that.
    """

    events: Sequence[ChainedEvent]
    next: int | None
    is_complete: bool


def find_events(catalog: Catalog, query: Search, limit: int, within_s: float) -> EventPage:
    """The newest events that match, looked for in about this time: not every condition has an index.

    Raises Unavailable.
    """
    ends_at = time.monotonic() + within_s
    found: list[ChainedEvent] = []
    with catalog.reading() as session:
        lowest, high = _find_bounds(session, query)
        window = FIRST_WINDOW
        while high >= lowest:
            low, began = max(lowest, high - window + 1), time.monotonic()
            rows = select(AuditRow).where(*query.conditions(), AuditRow.key.between(low, high))
            newest_first = rows.order_by(AuditRow.key.desc()).limit(limit + 1 - len(found))
            found += map(_chained, session.scalars(newest_first))
            if len(found) > limit:
                return EventPage(found[:limit], found[limit - 1].number, is_complete=True)
            high = low - 1
            if high >= lowest and time.monotonic() > ends_at:
                return EventPage(found, low, is_complete=False)
            if time.monotonic() - began < QUICK_S:
                window = min(2 * window, LAST_WINDOW)
    return EventPage(found, None, is_complete=True)


def _find_bounds(session: Session, query: Search) -> tuple[int, int]:
    """The first and the last number that a matching event can have."""
    if query.since is None and query.until is None:
        # One by one: SQLite looks up one end of an index at once, and reads all of it for both.
        ends: Sequence[int | None] = [
            session.scalar(select(end(AuditRow.key))) for end in (func.min, func.max)
        ]
    else:
        # The sum keeps SQLite from walking over the keys instead of the index of times.
        key = AuditRow.key + 0
        conditions = replace(NO_CONDITION, since=query.since, until=query.until).conditions()
        ends = session.execute(select(func.min(key), func.max(key)).where(*conditions)).one()
    lowest, highest = ends
    if lowest is None or highest is None:
        return 1, 0
    return lowest, highest if query.before is None else min(highest, query.before - 1)


def get_event(catalog: Catalog, number: int) -> ChainedEvent | None:
    """The event with a number, None if there is none; raises Unavailable."""
    with catalog.reading() as session:
        row = session.get(AuditRow, number)
        return None if row is None else _chained(row)


def events_after(catalog: Catalog, number: int, query: Search | None = None) -> Iterator[ChainedEvent]:
    """All events after a number that match, in the order of the chain, in short transactions; raises Unavailable."""
    conditions = [] if query is None else query.conditions()
    while True:
        statement = select(AuditRow).where(AuditRow.key > number, *conditions).order_by(AuditRow.key)
        with catalog.reading() as session:
            events = [_chained(row) for row in session.scalars(statement.limit(BATCH))]
        yield from events
        if len(events) < BATCH:
            return
        number = events[-1].number


def newest_event_number(catalog: Catalog) -> int:
    """The number of the newest event, 0 without events."""
    with catalog.reading() as session:
        return session.scalar(select(func.max(AuditRow.key))) or 0


def _chained(row: AuditRow) -> ChainedEvent:
    event = AuditEvent(**{name: getattr(row, name) for name in NAMES})
    return ChainedEvent(row.key, event, row.previous_hash, row.hash)


SUFFIX = ".journal"
# Above this size, a new journal follows when the database has all events.
LONG_BYTES = 4 << 20
ROOM_BYTES = 2 * LONG_BYTES

_log = logging.getLogger(__name__)


class Journal:
    """The journal of this process: a file of events until the database has them. One thread may write at a time."""

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self.name = uuid.uuid4().hex
        self.path = folder / f"{self.name}{SUFFIX}"
        self.size = 0
        # Renamed after it is locked: an unlocked journal counts as that of an ended process.
        unlocked = self.path.with_suffix(".new")
        self._file = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._map = _mapped(self._file, ROOM_BYTES)
        unlocked.rename(self.path)

    def write(self, text: bytes) -> int:
        """Passes a line to the operating system; returns its end. After an OSError the journal is unchanged."""
        ends_at = self.size + len(text) + 1
        if ends_at > len(self._map):
            larger = _mapped(self._file, max(ends_at, 2 * len(self._map)))
            self._map.close()
            self._map = larger
        # The line feed is written last: a line without one is incomplete.
        self._map[self.size : ends_at] = text + b"\n"
        self.size = ends_at
        return ends_at

    def remove(self) -> None:
        """Deletes the journal: the database has all of it."""
        self.path.unlink(missing_ok=True)
        self.leave()

    def leave(self) -> None:
        """Closes the journal; the next server that looks for journals of ended processes imports it."""
        self._map.close()
        os.close(self._file)


def mark_imported(session: Session, name: str, taken: int) -> None:
    """Records how much of a journal is in the log, in the same transaction."""
    mark = update(AuditJournalRow).where(AuditJournalRow.name == name).values(taken=taken)
    if not session.execute(mark).rowcount:  # type: ignore[attr-defined]  # of an update it is a CursorResult
        session.execute(insert(AuditJournalRow).values(name=name, taken=taken))


def forget_journal(catalog: Catalog, name: str) -> None:
    """Deletes the record of a journal after its file."""
    with catalog.writing(seen=False) as session:
        session.execute(delete(AuditJournalRow).where(AuditJournalRow.name == name))


def events_in(catalog: Catalog, path: Path) -> "Iterator[JournalEntry]":
    """The events of a journal that are not in the log yet."""
    with catalog.reading() as session:
        taken = session.scalar(select(AuditJournalRow.taken).where(AuditJournalRow.name == path.stem)) or 0
    with path.open("rb") as lines:
        lines.seek(taken)
        for line in lines:
            text, unused, _ = line.partition(b"\0")
            if unused:
                if text:
                    # Its process ended while it wrote, before its response began.
                    _log.error("audit journal %s ends within an event: %r", path, text)
                return
            taken += len(line)
            try:
                check_event(line)
            except ValueError as error:
                # The machine lost its power: the unfinished line is logged and skipped.
                _log.error("audit journal %s, up to byte %d: %s: %r", path, taken, error, line)
            else:
                yield line.rstrip(b"\n"), taken


def _mapped(file: int, length: int) -> mmap.mmap:
    """Maps a file after allocating its blocks: a write to a map without blocks would end the process."""
    os.posix_fallocate(file, 0, length)
    return mmap.mmap(file, length)


def _lock_journal(path: Path, locks: ExitStack) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    locks.callback(os.close, file)
    # Another process may have removed it between the two calls.
    return try_lock(file) and os.fstat(file).st_nlink > 0


HEAD = "head"
ANCHOR = "anchor"
# The action of the event that records a pruning.
PRUNED = "prune_audit_log"
OTHER_NAMES = tuple(name for name in NAMES if name not in ("at", "details"))
COLUMNS = ("key", "at", "details", *OTHER_NAMES, "previous_hash", "hash")
DAY, MICROSECONDS = len("2026-03-01"), len("2026-03-01T12:00:00.000000")
AT_ONCE = 100


def append_events(session: Session, events: Sequence[AuditEvent]) -> None:
    """Appends events to the log, in this order, within the session's transaction.

    Blocks other writers of events until its end: call it last in a short transaction.
    """
    append_serialized(session, [serialize_event(event) for event in events])


def append_serialized(session: Session, events: Sequence[bytes]) -> None:
    if not events:
        return
    head = lock_head(session)
    previous, number = head.hash, head.number
    rows = []
    for text in events:
        number += 1
        digest = chain_hash(previous, text)
        rows.append((number, text, previous, digest))
        previous = digest
    _insert(session.connection(), rows)
    session.execute(
        update(AuditChainRow).where(AuditChainRow.name == HEAD).values(number=number, hash=previous)
    )


def _insert(connection: Connection, rows: Sequence[tuple[int, bytes, str, str]]) -> None:
    """Inserts a hundred events per statement, without SQLAlchemy's types, which would double the time.

    `serialize_event` makes texts that every database stores; only times and JSON differ between databases.
    """
    dialect = connection.dialect
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    zone = "" if dialect.name == "sqlite" else "+00:00"
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        parameters: list[Any] = []
        for number, text, previous, digest in some:
            fields = orjson.loads(text)
            at, details = fields["at"], fields.get("details")
            parameters += (number, f"{at[:DAY]} {at[DAY + 1 : MICROSECONDS]}{zone}")
            parameters.append(None if details is None else orjson.dumps(details).decode())
            parameters += (*map(fields.get, OTHER_NAMES), previous, digest)
        marks = ", ".join([f"({', '.join([mark] * len(COLUMNS))})"] * len(some))
        connection.exec_driver_sql(
            f"INSERT INTO {AuditRow.__tablename__} ({', '.join(COLUMNS)}) VALUES {marks}",  # noqa: S608  # our own names
            tuple(parameters),
        )


def lock_head(session: Session) -> AuditChainRow:
    """Locks and reads the head of the chain."""
    # SQLite has one writer at a time; on other databases writers wait for this row.
    statement = select(AuditChainRow).where(AuditChainRow.name == HEAD).with_for_update()
    head = session.scalars(statement.execution_options(populate_existing=True)).one()
    session.expunge(head)
    newest = session.scalar(select(func.max(AuditRow.key))) or 0
    # A head that was set back must not block new events: `verify` reports it.
    head.number = max(head.number, newest)
    return head


BACKLOG = 20_000
FLUSH_EVERY_S = 0.2
RETRY_S = 1.0
MAX_BATCH = 2000
ORPHAN_CHECK_S = 10.0
CLOSE_ATTEMPTS = 3
LOG_REFUSED = "refused.jsonl"

# The JSON of an event and its end in the journal; bytes are nothing that the garbage collector has to look at.
JournalEntry = tuple[bytes, int]


class AuditLog:
    """Records events in the journal and imports them into the database; safe from any thread."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self.catalog, self.folder = catalog, folder
        self._journal = Journal(folder)
        self._unwritten: list[JournalEntry] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._orphans_checked_at = float("-inf")
        self._writer = threading.Thread(target=self._keep_writing, name="audit-log", daemon=True)
        self._writer.start()

    @property
    def backlog(self) -> int:
        """The number of events of this process that are not in the database yet."""
        return len(self._unwritten)

    @property
    def is_full(self) -> bool:
        """Whether callers should wait before they record the next event."""
        return len(self._unwritten) >= BACKLOG

    def record(self, event: AuditEvent) -> None:
        """Records an event: once this returns, the end of the process does not lose it. Raises OSError."""
        text = serialize_event(event)
        with self._changed:
            self._unwritten.append((text, self._journal.write(text)))
            if len(self._unwritten) == 1:
                self._changed.notify()

    def close(self) -> None:
        """Imports the recorded events; those that the database does not accept now stay in the journal."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        self._writer.join()
        failures = 0
        while self._unwritten and failures < CLOSE_ATTEMPTS:
            failures += not self._write_some()
        if not self._unwritten:
            self._journal.remove()
            forget_journal(self.catalog, self._journal.name)
            return
        message = "audit log: %d events wait in %s; the next server on this state folder imports them"
        _log.error(message, len(self._unwritten), self._journal.path)
        self._journal.leave()

    def _keep_writing(self) -> None:
        self._import_orphans()
        while not self._closing.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._unwritten or self._closing.is_set(), ORPHAN_CHECK_S)
            # Requests come in bursts: a short wait combines them in one transaction.
            self._closing.wait(FLUSH_EVERY_S)
            if not (self._write_some() and self._import_orphans()):
                self._closing.wait(RETRY_S)

    def _write_some(self) -> bool:
        with self._changed:
            batch = self._unwritten[:MAX_BATCH]
        PROCESS.note_audit_backlog(len(self._unwritten))
        if not batch:
            return True
        try:
            import_journal(self.catalog, self.folder, self._journal.name, batch)
        # This thread is the only writer: it must survive any error and try again.
        except Exception as error:
            is_foreseen = isinstance(error, SQLAlchemyError | Unavailable)
            refused = "audit log: %d events wait, the database refused them: %s"
            _log.warning(refused, len(self._unwritten), error, exc_info=not is_foreseen)
            return False
        with self._changed:
            del self._unwritten[: len(batch)]
            PROCESS.note_audit_backlog(len(self._unwritten))
            if self._unwritten or self._journal.size < LONG_BYTES:
                return True
            full, self._journal = self._journal, Journal(self.folder)
        full.remove()
        forget_journal(self.catalog, full.name)
        return True

    def _import_orphans(self) -> bool:
        if time.monotonic() - self._orphans_checked_at < ORPHAN_CHECK_S:
            return True
        try:
            import_orphans(self.catalog, self.folder)
        except Exception as error:
            is_foreseen = isinstance(error, SQLAlchemyError | Unavailable | OSError)
            _log.warning("audit log: journals of ended processes wait: %s", error, exc_info=not is_foreseen)
            return False
        self._orphans_checked_at = time.monotonic()
        return True


def import_orphans(catalog: Catalog, folder: Path) -> int:
    """Imports the journals of ended processes; returns the number of events. Raises Unavailable."""
    imported = 0
    with ExitStack() as locks:
        journals = sorted(folder.glob(f"*{SUFFIX}"))
        for path in [path for path in journals if _lock_journal(path, locks)]:
            events = events_in(catalog, path)
            while batch := list(islice(events, MAX_BATCH)):
                import_journal(catalog, folder, path.stem, batch)
                imported += len(batch)
            path.unlink()
            forget_journal(catalog, path.stem)
    return imported


def import_journal(catalog: Catalog, folder: Path, journal: str, batch: Sequence[JournalEntry]) -> None:
    """Imports entries of a journal. An event that the database can never store is written to a file instead.

    Raises Unavailable, and SQLAlchemyError for other reasons than the content of the entries.
    """
    try:
        with catalog.writing(seen=False) as session:
            append_serialized(session, [text for text, _ in batch])
            mark_imported(session, journal, batch[-1][1])
    except (BadRequest, StatementError, OverflowError) as error:
        is_overflow = isinstance(getattr(error, "orig", None), OverflowError)
        if not (is_overflow or isinstance(error, BadRequest | OverflowError | DataError | IntegrityError)):
            raise
        if len(batch) == 1:
            _set_aside(catalog, folder, journal, batch[0], error)
            return
        middle = len(batch) // 2
        import_journal(catalog, folder, journal, batch[:middle])
        import_journal(catalog, folder, journal, batch[middle:])


def _set_aside(catalog: Catalog, folder: Path, journal: str, entry: JournalEntry, error: Exception) -> None:
    text, ends_at = entry
    path = folder / LOG_REFUSED
    with path.open("ab") as file:
        file.write(text + b"\n")
    _log.error("audit log: an event that the database cannot hold (%s) is in %s: %r", error, path, text)
    with catalog.writing(seen=False) as session:
        mark_imported(session, journal, ends_at)
