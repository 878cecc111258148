"""Usage by day, table and version, export, pruning and verification of the audit log."""

import json
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import orjson
from sqlalchemy import ColumnElement, Select, String, case, delete, func, insert, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.log import (
    ANCHOR,
    BATCH,
    GENESIS,
    HEAD,
    PRUNED,
    AuditEvent,
    ChainedEvent,
    append_events,
    canonical_json,
    chain_hash,
    events_after,
    format_instant,
    lock_head,
    present_fields,
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
# Reads of files follow a counted query; their object is a path.
NOT_COUNTED = ("read_file",)
REFUSED = 400
DIMENSIONS = ("day", "recipient", "table", "version")
COUNTS = ("requests", "queries", "files", "size_bytes", "refused")
COLUMNS = ("day", "recipient", "object_name", "version", *COUNTS)
# A recipient's usual day is the median of the days with use among the last HISTORY_DAYS; at least MIN_DAYS are needed.
HISTORY_DAYS, MIN_DAYS = 28, 5
SPIKE_MEASURES = ("queries", "size_bytes")
# Requests of recipients, without those of administrators that impersonate them.
BY_RECIPIENTS = AuditRow.recipient.is_not(None), AuditRow.principal.is_(None)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The requests of a recipient for a version of a table on a day (UTC); `table` is None for other requests.

    `files` and `size_bytes` are those of signed URLs.
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
    """Usage from one day to another, both included, of one recipient and of one table (share.schema.table) if given."""
    with catalog.reading() as session:
        begin = datetime.combine(since, time.min, UTC)
        end = datetime.combine(until, time.max, UTC)
        live = count_requests(session, AuditRow.at.between(begin, end))
        pruned = select(UsageRow).where(UsageRow.day.between(since.isoformat(), until.isoformat()))
        usages = [_usage(row._mapping) for row in session.execute(live)]
        usages += [_usage({name: getattr(row, name) for name in COLUMNS}) for row in session.scalars(pruned)]
    # A day can be in both: a part of its events was pruned.
    return _merge(
        usage
        for usage in usages
        if recipient in (None, usage.recipient) and (table is None or usage.table == table)
    )


def group_usage(usages: Iterable[Usage], by: Sequence[str]) -> list[dict[str, Any]]:
    """Counts by some of `DIMENSIONS`, most queries first; `versions` is the number of distinct table versions."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    versions: dict[tuple[Any, ...], set[tuple[str | None, int]]] = {}
    for usage in usages:
        key = tuple(getattr(usage, name) for name in by)
        group = groups.setdefault(key, {**dict(zip(by, key, strict=True)), **dict.fromkeys(COUNTS, 0)})
        for name in COUNTS:
            group[name] += getattr(usage, name)
        seen = versions.setdefault(key, set())
        if usage.version is not None and usage.queries:
            seen.add((usage.table, usage.version))
    for key, group in groups.items():
        group["versions"] = len(versions[key])
    return sorted(groups.values(), key=lambda group: (-group["queries"], -group["requests"]))


def read_last_seen(catalog: Catalog) -> dict[str, datetime]:
    """The time of each recipient's last successful request, by name; only the day for pruned events."""
    statement = select(AuditRow.recipient, func.max(AuditRow.at)).where(
        *BY_RECIPIENTS, AuditRow.status < REFUSED
    )
    with catalog.reading() as session:
        kept = select(UsageRow.recipient, func.max(UsageRow.day)).where(UsageRow.requests > 0)
        days = session.execute(kept.group_by(UsageRow.recipient))
        seen = {name: datetime.fromisoformat(day).replace(tzinfo=UTC) for name, day in days}
        seen |= {name: at for name, at in session.execute(statement.group_by(AuditRow.recipient)) if name}
        return seen


def count_requests(session: Session, where: ColumnElement[bool]) -> Select[Any]:
    """The counts of events by day, recipient, object and version, as rows of `COLUMNS`; only what usage counts."""
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
        where, *BY_RECIPIENTS, AuditRow.action.not_in(NOT_COUNTED)
    )
    return statement.group_by(*columns_by)


def _day(session: Session) -> ColumnElement[str]:
    if session.get_bind().dialect.name == "postgresql":
        return func.to_char(func.timezone("UTC", AuditRow.at), "YYYY-MM-DD", type_=String)
    return func.substr(AuditRow.at, 1, 10, type_=String)


def _usage(values: Any) -> Usage:
    counts = {name: int(values[name]) for name in COUNTS}
    day, recipient, table, version = (values[name] for name in COLUMNS[:4])
    return Usage(day=date.fromisoformat(day), recipient=recipient, table=table, version=version, **counts)


def _merge(usages: Iterable[Usage]) -> list[Usage]:
    merged: dict[tuple[Any, ...], Usage] = {}
    for usage in usages:
        key = (usage.day, usage.recipient, usage.table, usage.version)
        if key in merged:
            first = merged[key]
            counts = {name: getattr(first, name) + getattr(usage, name) for name in COUNTS}
            usage = replace(usage, **counts)
        merged[key] = usage
    return sorted(
        merged.values(), key=lambda usage: (usage.day, usage.recipient, usage.table or "", usage.version or 0)
    )


ROWS = 10_000


def export(events: Iterable[ChainedEvent], path: Path) -> int:
    """Writes events to a new file, which appears when it is complete; returns the number of events.

    Raises BadRequest if the file exists or cannot be made, or its suffix is of no known format.
    """
    write = {".jsonl": _write_lines, ".ndjson": _write_lines, ".parquet": _write_parquet}.get(path.suffix)
    if write is None:
        raise BadRequest("file", path.name, "Let its name end in .jsonl or .parquet.")
    if path.exists():
        raise BadRequest("file", str(path), "It is there already. Name another, or remove it.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        count = write(events, unfinished)
        unfinished.rename(path)
    except OSError as error:
        raise BadRequest("file", str(path), f"No file can be made there: {error.strerror}.") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def event_line(event: ChainedEvent) -> bytes:
    return orjson.dumps(event.as_json(), option=orjson.OPT_APPEND_NEWLINE)


def _write_lines(events: Iterable[ChainedEvent], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for event in events:
            file.write(event_line(event))
            count += 1
    return count


def _write_parquet(events: Iterable[ChainedEvent], path: Path) -> int:
    # The catalog is imported by every command; only this export needs pyarrow.
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, int64, time = pa.string(), pa.int64(), pa.timestamp("us", "UTC")
    schema = pa.schema([
        ("number", int64), ("at", time), ("kind", text), ("recipient", text), ("principal", text),
        ("action", text), ("object_name", text), ("status", pa.int32()), ("error_code", text),
        ("version", int64), ("files", int64), ("size_bytes", int64), ("rows", int64), ("request_id", text),
        ("ip", text), ("user_agent", text), ("elapsed_ms", int64),
        # JSON text: the fields differ between kinds of objects.
        ("details", text), ("previous_hash", text), ("hash", text),
    ])  # fmt: skip
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        remaining = iter(events)
        while rows := [_row(event) for event in islice(remaining, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


def _row(event: ChainedEvent) -> dict[str, Any]:
    fields = {**event.as_json(), "at": event.event.at}
    if fields["details"] is not None:
        fields["details"] = json.dumps(fields["details"], ensure_ascii=False)
    return fields


AT_ONCE = 20_000


@dataclass(frozen=True)
class Pruned:
    """The number of removed events, and the number of the last."""

    events: int
    through: int


def prune(catalog: Catalog, before: datetime, principal: str) -> Pruned:
    """Removes the events before a time, in the name of `principal`; their usage by day stays. Raises BadRequest."""
    if before.tzinfo is None:
        raise BadRequest("before", before.isoformat(), "Give a time with its zone.")
    if before > datetime.now(UTC):
        raise BadRequest("before", before.isoformat(), "Give a moment that has passed.")
    events, through = 0, 0
    while True:
        # In parts: no event can be appended during a removal.
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
    # Clocks differ: an older event after a kept one stays, too.
    first_kept = session.scalar(select(func.min(AuditRow.key)).where(AuditRow.at >= before))
    newest = session.scalar(select(func.max(AuditRow.key))) or 0
    through = min(newest if first_kept is None else first_kept - 1, oldest + AT_ONCE - 1)
    if through < oldest:
        return Pruned(0, 0)
    is_pruned = AuditRow.key <= through
    last = session.scalars(select(AuditRow).where(is_pruned).order_by(AuditRow.key.desc()).limit(1)).one()
    through, digest = last.key, last.hash
    usages = [dict(row._mapping) for row in session.execute(count_requests(session, is_pruned))]
    if usages:
        session.execute(insert(UsageRow), usages)
    events = session.scalar(select(func.count()).where(is_pruned)) or 0
    session.expunge_all()
    session.execute(delete(AuditRow).where(is_pruned))
    if digest is not None:
        anchor = update(AuditChainRow).where(AuditChainRow.name == ANCHOR)
        session.execute(anchor.values(number=through, hash=digest))
    details = {"through": through, "hash": digest, "events": events, "before": format_instant(before)}
    event = AuditEvent(
        kind="change",
        at=datetime.now(UTC),
        principal=principal,
        action=PRUNED,
        request_id=uuid.uuid4().hex,
        details=details,
    )
    append_events(session, [event])
    return Pruned(events, through)


MAX_FINDINGS = 100


@dataclass(frozen=True)
class Finding:
    """A fault at an event of the chain."""

    number: int
    kind: Literal["removed", "changed", "moved"]
    problem: str


@dataclass(frozen=True)
class ChainPosition:
    """An event's number and hash; stored outside of the catalog, a receipt for all events up to it."""

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"


@dataclass
class Verification:
    """The result of a verification; `unchained` events are from before the chain."""

    anchor: ChainPosition
    head: ChainPosition
    events: int = 0
    unchained: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether no fault was found."""
        return not self.findings


def parse_receipt(text: str) -> ChainPosition:
    """Parses a receipt as `lakeshare audit verify` prints it; raises BadRequest."""
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
    """Verifies the whole chain; calls `progress` with the number of verified events and of all.

    Raises BadRequest if the receipt is for a pruned event.
    """
    verification = _start_verification(catalog)
    anchor = verification.anchor
    if receipt is not None and receipt.number < anchor.number:
        hint = f"Events up to {anchor.number} were pruned. Give a later receipt."
        raise BadRequest("receipt", str(receipt), hint)
    verifier = _Verifier(catalog, verification, receipt)
    for event in events_after(catalog, anchor.number):
        if event.number > verification.head.number:
            break
        verifier.verify(event)
        if verification.events % BATCH == 0:
            progress(verification.events, verification.head.number - anchor.number)
    verifier.finish()
    progress(verification.events, verification.events)
    # Events that were pruned during the verification are no faults.
    pruned = _start_verification(catalog).anchor.number
    if pruned > anchor.number:
        verification.findings = [finding for finding in verification.findings if finding.number > pruned + 1]
    return verification


class _Verifier:
    """The position in the chain, and the faults up to it."""

    def __init__(self, catalog: Catalog, verification: Verification, receipt: ChainPosition | None) -> None:
        self._catalog, self._verification, self._receipt = catalog, verification, receipt
        self._number, self._hash = verification.anchor.number, verification.anchor.hash
        self._has_pruning_event = verification.anchor.hash == GENESIS
        self._has_receipt_event = receipt in (None, verification.anchor)

    def verify(self, chained: ChainedEvent) -> None:
        number, event = chained.number, chained.event
        if number > self._number + 1:
            self._add_removed(self._number + 1, number - 1)
        elif chained.previous_hash != self._hash:
            self._add_misplaced(chained)
        digest = chain_hash(chained.previous_hash or "", canonical_json(present_fields(event)))
        if chained.previous_hash is None or chained.hash != digest:
            self._add(number, "changed", f"event {number} is not what it was when it was appended")
        if event.action == PRUNED and _recorded_position(event) == self._verification.anchor:
            self._has_pruning_event = True
        self._number, self._hash = number, chained.hash or ""
        self._has_receipt_event |= ChainPosition(number, self._hash) == self._receipt
        self._verification.events += 1

    def finish(self) -> None:
        """Compares the last event with the head, and with the receipt."""
        head, anchor = self._verification.head, self._verification.anchor
        if self._number < head.number:
            self._add_removed(self._number + 1, head.number)
        elif self._hash != head.hash:
            problem = f"the head of the chain names another hash than event {head.number} has"
            self._add(head.number, "changed", problem)
        if not self._has_pruning_event:
            problem = f"the log begins after event {anchor.number}, but no event records a pruning up to it"
            self._add(anchor.number + 1, "removed", problem)
        if self._receipt is not None and not self._has_receipt_event:
            number = self._receipt.number
            problem = f"event {number} is not the one that the receipt was given for: the chain was made anew"
            self._add(number, "changed", problem)

    def _add_removed(self, first: int, last: int) -> None:
        events = f"event {first} was" if first == last else f"events {first} to {last} were"
        self._add(first, "removed", f"{events} removed")

    def _add_misplaced(self, event: ChainedEvent) -> None:
        number, followed = event.number, AuditRow.hash == event.previous_hash
        with self._catalog.reading() as session:
            before = session.scalar(select(AuditRow.key).where(followed).limit(1))
        problem = f"event {number} does not follow event {number - 1}"
        if before is None:
            self._add(number, "removed", f"{problem}: the one that it followed was removed or changed")
        else:
            self._add(number, "moved", f"{problem}, but event {before}: events were moved")

    def _add(self, number: int, kind: Literal["removed", "changed", "moved"], problem: str) -> None:
        if len(self._verification.findings) < MAX_FINDINGS:
            self._verification.findings.append(Finding(number, kind, problem))


def _recorded_position(event: AuditEvent) -> ChainPosition | None:
    details = event.details or {}
    number, digest = details.get("through"), details.get("hash")
    return ChainPosition(number, digest) if isinstance(number, int) and isinstance(digest, str) else None


def _start_verification(catalog: Catalog) -> Verification:
    with catalog.reading() as session:
        ends = {
            row.name: ChainPosition(row.number, row.hash) for row in session.scalars(select(AuditChainRow))
        }
        newest = session.scalar(select(func.max(AuditRow.key))) or 0
        missing = [name for name in (ANCHOR, HEAD) if name not in ends]
        anchor = ends.get(ANCHOR, ChainPosition(0, GENESIS))
        head = ends.get(HEAD, ChainPosition(newest, ""))
        before = select(func.count()).where(AuditRow.key <= anchor.number)
        last = ChainPosition(max(head.number, newest), head.hash)
        verification = Verification(anchor, last, unchained=session.scalar(before) or 0)
    for name in missing:
        finding = Finding(last.number, "removed", f"the {name} of the chain was removed")
        verification.findings.append(finding)
    if newest > head.number:
        problem = f"the head of the chain was set back to event {head.number}, the newest is {newest}"
        verification.findings.append(Finding(newest, "changed", problem))
    return verification
