"""Usage: what recipients asked for, by day, table and version; counted from events, and kept when those are pruned."""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import ColumnElement, Select, String, case, delete, func, insert, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.log import (
    ANCHOR,
    GENESIS,
    HEAD,
    PRUNED,
    AuditEvent,
    ChainedEvent,
    append_events,
    canonical_json,
    chain_hash,
    format_instant,
    lock_head,
    values_of,
)
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditChainRow, AuditRow, UsageRow
from lakeshare_server.errors import BadRequest

QUERIES = (
    "query_table",
    "get_query",
    "table_changes",
    "table_credentials",
    "load_table",
    "load_credentials",
    "plan_scan",
    "fetch_scan_tasks",
    "sign_request",
)
# Reads of a file follow from a query that was counted; their object is a path.
NOT_COUNTED = ("read_file",)
REFUSED = 400
DIMENSIONS = ("day", "recipient", "table", "version")
COUNTS = ("requests", "queries", "files", "size_bytes", "refused")
COLUMNS = ("day", "recipient", "object_name", "version", *COUNTS)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a recipient asked of a version of a table on a day (UTC); what no single table was asked for has none.

    `files` and `size_bytes` are those whose URLs were signed.
    """

    day: date
    recipient: str
    table: str | None
    version: int | None
    requests: int
    queries: int
    files: int
    size_bytes: int
    refused: int


def read_usage(
    catalog: Catalog, since: date, until: date, recipient: str | None = None, table: str | None = None
) -> list[Usage]:
    """Usage from one day to another, both included: of one recipient, and of one table (share.schema.table), if named.

    Raises:
        Unavailable: the database does not answer.
    """
    with catalog.reading() as session:
        begin = datetime.combine(since, time.min, UTC)
        end = datetime.combine(until, time.max, UTC)
        live = _counted(session, AuditRow.at.between(begin, end))
        kept = select(UsageRow).where(UsageRow.day.between(since.isoformat(), until.isoformat()))
        found = [_usage(row._mapping) for row in session.execute(live)]
        found += [_usage({name: getattr(row, name) for name in COLUMNS}) for row in session.scalars(kept)]
    wanted = (
        one for one in found if recipient in (None, one.recipient) and (table is None or one.table == table)
    )
    # A day can be in both: a part of its events was pruned.
    return _merge(wanted)


def group_usage(found: Iterable[Usage], by: Sequence[str]) -> list[dict[str, Any]]:
    """Counts by some of `DIMENSIONS`, the most queries first; `versions` counts the distinct ones of all tables."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    versions: dict[tuple[Any, ...], set[tuple[str | None, int]]] = {}
    for one in found:
        key = tuple(getattr(one, name) for name in by)
        group = groups.setdefault(key, {**dict(zip(by, key, strict=True)), **dict.fromkeys(COUNTS, 0)})
        for name in COUNTS:
            group[name] += getattr(one, name)
        seen = versions.setdefault(key, set())
        if one.version is not None and one.queries:
            seen.add((one.table, one.version))
    for key, group in groups.items():
        group["versions"] = len(versions[key])
    return sorted(groups.values(), key=lambda group: (-group["queries"], -group["requests"]))


def read_last_seen(catalog: Catalog) -> dict[str, datetime]:
    """When each recipient was last answered, by name; of events that were pruned the day is known."""
    statement = select(AuditRow.recipient, func.max(AuditRow.at)).where(
        *_by_recipients(), AuditRow.status < REFUSED
    )
    with catalog.reading() as session:
        kept = select(UsageRow.recipient, func.max(UsageRow.day)).where(UsageRow.requests > 0)
        days = session.execute(kept.group_by(UsageRow.recipient))
        seen = {name: datetime.fromisoformat(day).replace(tzinfo=UTC) for name, day in days}
        seen |= {name: at for name, at in session.execute(statement.group_by(AuditRow.recipient)) if name}
        return seen


def store_usage(session: Session, gone: ColumnElement[bool]) -> None:
    """Keep the usage that events tell which are about to be pruned."""
    rows = [dict(row._mapping) for row in session.execute(_counted(session, gone))]
    if rows:
        session.execute(insert(UsageRow), rows)


def _counted(session: Session, where: ColumnElement[bool]) -> Select[Any]:
    is_request = AuditRow.kind == "request"
    is_answered = is_request & (AuditRow.status < REFUSED)
    day = _day(session)
    counts = {
        "requests": func.sum(case((is_answered, 1), else_=0)),
        "queries": func.sum(case((is_answered & AuditRow.action.in_(QUERIES), 1), else_=0)),
        "files": func.sum(func.coalesce(AuditRow.files, 0)),
        "size_bytes": func.sum(func.coalesce(AuditRow.size_bytes, 0)),
        "refused": func.sum(case((is_request & (AuditRow.status >= REFUSED), 1), else_=0)),
    }
    columns_by = (day, AuditRow.recipient, AuditRow.object_name, AuditRow.version)
    columns = [column.label(name) for name, column in counts.items()]
    statement = select(day.label("day"), *columns_by[1:], *columns).where(
        where, *_by_recipients(), AuditRow.action.not_in(NOT_COUNTED)
    )
    return statement.group_by(*columns_by)


def _by_recipients() -> tuple[ColumnElement[bool], ...]:
    """Requests of recipients themselves, and not of administrators who look as one."""
    return AuditRow.recipient.is_not(None), AuditRow.principal.is_(None)


def _day(session: Session) -> ColumnElement[str]:
    if session.get_bind().dialect.name == "postgresql":
        return func.to_char(func.timezone("UTC", AuditRow.at), "YYYY-MM-DD", type_=String)
    return func.substr(AuditRow.at, 1, 10, type_=String)


def _usage(values: Any) -> Usage:
    counts = {name: int(values[name]) for name in COUNTS}
    return Usage(
        day=date.fromisoformat(values["day"]),
        recipient=values["recipient"],
        table=values["object_name"],
        version=values["version"],
        **counts,
    )


def _merge(found: Iterable[Usage]) -> list[Usage]:
    merged: dict[tuple[Any, ...], Usage] = {}
    for one in found:
        key = (one.day, one.recipient, one.table, one.version)
        if key in merged:
            before = merged[key]
            counts = {name: getattr(before, name) + getattr(one, name) for name in COUNTS}
            one = Usage(day=one.day, recipient=one.recipient, table=one.table, version=one.version, **counts)
        merged[key] = one
    return sorted(
        merged.values(), key=lambda one: (one.day, one.recipient, one.table or "", one.version or 0)
    )


Format = Literal["jsonl", "parquet"]
ROWS = 10_000
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("kind", pa.string()),
        ("recipient", pa.string()),
        ("principal", pa.string()),
        ("action", pa.string()),
        ("object_name", pa.string()),
        ("status", pa.int32()),
        ("error_code", pa.string()),
        ("version", pa.int64()),
        ("files", pa.int64()),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
        ("request_id", pa.string()),
        ("ip", pa.string()),
        ("user_agent", pa.string()),
        ("elapsed_ms", pa.int64()),
        # JSON text: what was before and after a change differs from object to object.
        ("details", pa.string()),
        ("previous_hash", pa.string()),
        ("hash", pa.string()),
    ]
)


def export_format(path: Path) -> Format:
    """The format that a file's name asks for.

    Raises:
        BadRequest: none that there is.
    """
    match path.suffix:
        case ".jsonl" | ".ndjson":
            return "jsonl"
        case ".parquet":
            return "parquet"
    raise BadRequest("file", path.name, "Let its name end in .jsonl or .parquet.")


def export(events: Iterable[ChainedEvent], path: Path) -> int:
    """Write events to a file that is not there yet; it appears when it is whole. Returns how many they were.

    Raises:
        BadRequest: there is such a file already, or its name asks for no format that there is.
        OSError: it cannot be written.
    """
    format_name = export_format(path)
    if path.exists():
        raise BadRequest("file", str(path), "It is there already. Name another, or remove it.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        count = (
            _write_lines(events, unfinished) if format_name == "jsonl" else _write_parquet(events, unfinished)
        )
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def event_line(event: ChainedEvent) -> bytes:
    """An event as a line of JSON."""
    return orjson.dumps(event.as_json(), option=orjson.OPT_APPEND_NEWLINE)


def _write_lines(events: Iterable[ChainedEvent], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for event in events:
            file.write(event_line(event))
            count += 1
    return count


def _write_parquet(events: Iterable[ChainedEvent], path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for rows in _batches(events):
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
            count += len(rows)
    return count


def _batches(events: Iterable[ChainedEvent]) -> Iterator[list[dict[str, Any]]]:
    left = iter(events)
    while batch := list(islice(left, ROWS)):
        yield [_row(event) for event in batch]


def _row(event: ChainedEvent) -> dict[str, Any]:
    fields = {**event.as_json(), "at": event.event.at}
    if fields["details"] is not None:
        fields["details"] = json.dumps(fields["details"], ensure_ascii=False)
    return fields


AT_ONCE = 20_000


@dataclass(frozen=True)
class Pruned:
    """How many events went, and up to which number."""

    events: int
    through: int


def prune(catalog: Catalog, before: datetime, principal: str) -> Pruned:
    """Remove events from before a moment, in the name of `by`. Their usage stays, by day.

    Raises:
        BadRequest: the moment has no zone, or has not come yet.
        Unavailable: the database does not answer.
    """
    if before.tzinfo is None:
        raise BadRequest("before", before.isoformat(), "Give a time with its zone.")
    if before > datetime.now(UTC):
        raise BadRequest("before", before.isoformat(), "Give a moment that has passed.")
    events, through = 0, 0
    while True:
        # A piece at a time: nobody appends while one is removed.
        with catalog.writing(seen=False) as session:
            pruned = _prune_some(session, before, principal)
        if not pruned.events:
            return Pruned(events, through)
        events, through = events + pruned.events, pruned.through


def _prune_some(session: Session, before: datetime, principal: str) -> Pruned:
    lock_head(session)
    oldest = session.scalar(select(func.min(AuditRow.key)))
    if oldest is None:
        return Pruned(0, 0)
    # Clocks differ: what has a younger event before it stays with that.
    first_kept = session.scalar(select(func.min(AuditRow.key)).where(AuditRow.at >= before))
    newest = session.scalar(select(func.max(AuditRow.key))) or 0
    through = min(newest if first_kept is None else first_kept - 1, oldest + AT_ONCE - 1)
    if through < oldest:
        return Pruned(0, 0)
    gone = AuditRow.key <= through
    last = session.scalars(select(AuditRow).where(gone).order_by(AuditRow.key.desc()).limit(1)).one()
    through, digest = last.key, last.hash
    store_usage(session, gone)
    events = session.scalar(select(func.count()).where(gone)) or 0
    session.expunge_all()
    session.execute(delete(AuditRow).where(gone))
    if digest is not None:
        anchor = update(AuditChainRow).where(AuditChainRow.name == ANCHOR)
        session.execute(anchor.values(number=through, hash=digest))
    details = {"through": through, "hash": digest, "events": events, "before": format_instant(before)}
    append_events(
        session,
        [
            AuditEvent(
                kind="change",
                at=datetime.now(UTC),
                principal=principal,
                action=PRUNED,
                request_id=uuid.uuid4().hex,
                details=details,
            )
        ],
    )
    return Pruned(events, through)


BATCH = 2000
MAX_FINDINGS = 100


@dataclass(frozen=True)
class Finding:
    """What is wrong at an event of the chain."""

    number: int
    kind: Literal["removed", "changed", "moved"]
    said: str


@dataclass(frozen=True)
class ChainPosition:
    """An event's number and hash: kept elsewhere, a receipt for all events up to it."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


@dataclass
class Verification:
    """What was looked at, and what was found; `unchained` events are from before there was a chain."""

    anchor: ChainPosition
    head: ChainPosition
    events: int = 0
    unchained: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def parse_receipt(text: str) -> ChainPosition:
    """A receipt as `lakeshare audit verify` prints it.

    Raises:
        BadRequest: it is none.
    """
    number, colon, digest = text.strip().partition(":")
    if not (
        colon and number.isascii() and number.isdigit() and len(number) < 19 and len(digest) == len(GENESIS)
    ):
        raise BadRequest("receipt", text, "Give NUMBER:HASH, as `lakeshare audit verify` prints it.")
    return ChainPosition(int(number), digest)


def verify(
    catalog: Catalog,
    receipt: ChainPosition | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verification:
    """Go through the whole chain; `progress` is told how many events of how many are done.

    Raises:
        BadRequest: the receipt is older than what was pruned.
        Unavailable: the database does not answer.
    """
    found = _ends(catalog)
    if receipt is not None and receipt.number < found.anchor.number:
        hint = f"Events up to {found.anchor.number} were pruned. Give a later receipt."
        raise BadRequest("receipt", str(receipt), hint)
    walk = _Walk(catalog, found, receipt)
    for row in _rows(catalog, found.anchor.number, found.head.number):
        walk.take(row)
        if found.events % BATCH == 0:
            progress(found.events, found.head.number - found.anchor.number)
    walk.finish()
    progress(found.events, found.events)
    # What was pruned meanwhile was not removed.
    pruned = _ends(catalog).anchor.number
    if pruned > found.anchor.number:
        found.findings = [finding for finding in found.findings if finding.number > pruned + 1]
    return found


class _Walk:
    """The way along the chain: where it is, and what it expects next."""

    def __init__(self, catalog: Catalog, found: Verification, receipt: ChainPosition | None) -> None:
        self._catalog, self._found, self._receipt = catalog, found, receipt
        self._number, self._hash = found.anchor.number, found.anchor.hash
        self._is_vouched = found.anchor.hash == GENESIS
        self._is_met = receipt in (None, found.anchor)

    def take(self, row: AuditRow) -> None:
        """Look at the next event."""
        found, values = self._found, values_of(row)
        if row.key > self._number + 1:
            self._removed(self._number + 1, row.key - 1)
        elif row.previous_hash != self._hash:
            self._out_of_place(row)
        if row.hash is None or row.previous_hash is None or not _is_as_it_was(row, values):
            self._note(row.key, "changed", f"event {row.key} is not what it was when it was appended")
        if row.action == PRUNED and _recorded_position(values) == found.anchor:
            self._is_vouched = True
        self._number, self._hash = row.key, row.hash or ""
        self._is_met = self._is_met or ChainPosition(row.key, self._hash) == self._receipt
        found.events += 1

    def finish(self) -> None:
        """Compare the end with the head, and with the receipt."""
        head, anchor = self._found.head, self._found.anchor
        if self._number < head.number:
            self._removed(self._number + 1, head.number)
        elif self._hash != head.hash:
            problem = f"the head of the chain names another hash than event {head.number} has"
            self._note(head.number, "changed", problem)
        if not self._is_vouched:
            problem = (
                f"the log begins after event {anchor.number}, but no event tells of a pruning up to there"
            )
            self._note(anchor.number + 1, "removed", problem)
        if self._receipt is not None and not self._is_met:
            number = self._receipt.number
            problem = f"event {number} is not the one that the receipt was given for: the chain was made anew"
            self._note(number, "changed", problem)

    def _removed(self, first: int, last: int) -> None:
        events = f"event {first} was" if first == last else f"events {first} to {last} were"
        self._note(first, "removed", f"{events} removed")

    def _out_of_place(self, row: AuditRow) -> None:
        with self._catalog.reading() as session:
            before = session.scalar(select(AuditRow.key).where(AuditRow.hash == row.previous_hash).limit(1))
        problem = f"event {row.key} does not follow event {row.key - 1}"
        if before is None:
            self._note(row.key, "removed", f"{problem}: the one that it followed was removed or changed")
        else:
            self._note(row.key, "moved", f"{problem}, but event {before}: events were moved")

    def _note(self, number: int, kind: Literal["removed", "changed", "moved"], problem: str) -> None:
        if len(self._found.findings) < MAX_FINDINGS:
            self._found.findings.append(Finding(number, kind, problem))


def _is_as_it_was(row: AuditRow, values: dict[str, Any]) -> bool:
    return chain_hash(row.previous_hash or "", canonical_json(values)) == row.hash


def _recorded_position(values: dict[str, Any]) -> ChainPosition | None:
    details = values["details"] or {}
    number, digest = details.get("through"), details.get("hash")
    return ChainPosition(number, digest) if isinstance(number, int) and isinstance(digest, str) else None


def _ends(catalog: Catalog) -> Verification:
    with catalog.reading() as session:
        ends = {
            row.name: ChainPosition(row.number, row.hash) for row in session.scalars(select(AuditChainRow))
        }
        newest = session.scalar(select(func.max(AuditRow.key))) or 0
        missing = [name for name in (ANCHOR, HEAD) if name not in ends]
        anchor = ends.get(ANCHOR, ChainPosition(0, GENESIS))
        head = ends.get(HEAD, ChainPosition(newest, ""))
        before = select(func.count()).where(AuditRow.key <= anchor.number)
        found = Verification(
            anchor, ChainPosition(max(head.number, newest), head.hash), unchained=session.scalar(before) or 0
        )
    for name in missing:
        found.findings.append(Finding(found.head.number, "removed", f"the {name} of the chain was removed"))
    if newest > head.number:
        problem = f"the head of the chain was set back to event {head.number}, the newest is {newest}"
        found.findings.append(Finding(newest, "changed", problem))
    return found


def _rows(catalog: Catalog, after: int, last: int) -> Iterator[AuditRow]:
    """The events of the chain in their order, a batch at a time: nobody else waits for a long look."""
    while True:
        with catalog.reading() as session:
            statement = select(AuditRow).where(AuditRow.key > after, AuditRow.key <= last)
            rows = session.scalars(statement.order_by(AuditRow.key).limit(BATCH)).all()
            session.expunge_all()
        yield from rows
        if len(rows) < BATCH:
            return
        after = rows[-1].key
