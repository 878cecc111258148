"""Usage of the last months in the memory of a server: counted once, and then only from newer events.

The rules of what is counted are those of `catalog.audit`. Nothing is counted before a page needs it.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.audit.log import ANCHOR
from lakeshare_server.catalog.audit.maintenance import (
    COLUMNS,
    COUNTS,
    HISTORY_DAYS,
    MIN_DAYS,
    SPIKE_MEASURES,
    count_requests,
)
from lakeshare_server.catalog.models import AuditChainRow, AuditRow, UsageRow
from lakeshare_server.errors import Unavailable

KEPT_DAYS = 92
# Counted at once; other threads run in between.
EVENTS_AT_ONCE = 20_000
REFRESH_EVERY_S = 5.0
# A page waits for newer events to be counted, but not for the first count.
WAIT_S = 0.1
MAX_PARTS = 32
SCHEMA = pa.schema([
    ("day", pa.int32()), ("recipient", pa.int32()), ("object", pa.int32()), ("version", pa.int64()),
    *((name, pa.int64()) for name in COUNTS),
])  # fmt: skip

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DayUsage:
    """The counts of a day (UTC); `files` and `size_bytes` are those of signed URLs."""

    day: date
    requests: int
    queries: int
    files: int
    size_bytes: int
    refused: int


@dataclass(frozen=True)
class VersionReads:
    """The queries of a recipient for a version of a table, None if the query failed before it had one."""

    recipient: str
    version: int | None
    queries: int
    last_day: date


@dataclass(frozen=True)
class Spike:
    """A recipient's use today that is many times the usual; `measure` is one of `SPIKE_MEASURES`."""

    recipient: str
    measure: str
    value: int
    usual: float


class Names:
    """Numbers for texts; only the counting thread adds some."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []

    def number(self, text: str | None) -> int | None:
        if text is None:
            return None
        number = self._numbers.get(text)
        if number is None:
            number = len(self.texts)
            self.texts.append(text)
            self._numbers[text] = number
        return number

    def find(self, text: str) -> int | None:
        return self._numbers.get(text)


@dataclass(frozen=True)
class CountedUsage:
    """What was counted up to the event `through`, at a time; `rows` may have several rows of the same keys.

    `last_days` are the last days on which recipients had a request that was answered, by name.
    """

    rows: pa.Table
    recipients: Names
    objects: Names
    through: int
    at: datetime
    since: date
    last_days: Mapping[str, date]
    spike_factor: float

    def by_day(self, *, recipient: str | None = None, paths: Collection[str] | None = None) -> list[DayUsage]:
        """The counts of each day from `since` to today, of a recipient, or of tables by their paths in shares."""
        rows = self.rows
        if recipient is not None:
            rows = rows.filter(pc.equal(rows.column("recipient"), _number(self.recipients, recipient)))
        if paths is not None:
            rows = rows.filter(pc.is_in(rows.column("object"), self._find_objects(paths)))
        counted = rows.group_by("day").aggregate([(name, "sum") for name in COUNTS]).to_pylist()
        known = {row["day"]: [row[f"{name}_sum"] for name in COUNTS] for row in counted}
        days = range(self.since.toordinal(), self.at.date().toordinal() + 1)
        return [DayUsage(date.fromordinal(day), *known.get(day, [0] * len(COUNTS))) for day in days]

    def by_version(self, paths: Collection[str], limit: int) -> list[VersionReads]:
        """Who read which versions of tables by their paths in shares: the last readers first, at most `limit`."""
        rows = self.rows.filter(pc.is_in(self.rows.column("object"), self._find_objects(paths)))
        rows = rows.filter(pc.greater(rows.column("queries"), 0))
        grouped = rows.group_by(["recipient", "version"]).aggregate([("queries", "sum"), ("day", "max")])
        order = [("day_max", "descending"), ("version", "descending"), ("recipient", "ascending")]
        return [
            VersionReads(
                self.recipients.texts[row["recipient"]],
                row["version"],
                row["queries_sum"],
                date.fromordinal(row["day_max"]),
            )
            for row in grouped.sort_by(order).slice(0, limit).to_pylist()
        ]

    @cached_property
    def spikes(self) -> list[Spike]:
        """The recipients whose use today is more than `spike_factor` times the usual, by their names."""
        today = self.at.date().toordinal()
        rows = self.rows.filter(pc.greater_equal(self.rows.column("day"), today - HISTORY_DAYS))
        daily = rows.group_by(["recipient", "day"]).aggregate([(name, "sum") for name in SPIKE_MEASURES])
        found = [spike for name in SPIKE_MEASURES for spike in self._find_spikes(daily, name, today)]
        return sorted(found, key=lambda spike: (spike.recipient, spike.measure))

    def _find_spikes(self, daily: pa.Table, measure: str, today: int) -> Iterator[Spike]:
        values = daily.select(["recipient", "day", f"{measure}_sum"])
        values = values.rename_columns(["recipient", "day", "value"])
        values = values.filter(pc.greater(values.column("value"), 0))
        is_today = pc.equal(values.column("day"), today)
        usual = _find_medians(values.filter(pc.invert(is_today)))
        usual = usual.filter(pc.greater_equal(usual.column("days"), MIN_DAYS))
        both = values.filter(is_today).join(usual, "recipient", join_type="inner")
        least = pc.multiply(both.column("usual"), self.spike_factor)
        for row in both.filter(pc.greater(both.column("value"), least)).to_pylist():
            yield Spike(self.recipients.texts[row["recipient"]], measure, row["value"], row["usual"])

    def _find_objects(self, paths: Collection[str]) -> pa.Array:
        # Paths are as clients spelt them, in any case.
        wanted = {path.lower() for path in paths}
        numbers = [number for number, text in enumerate(self.objects.texts) if text.lower() in wanted]
        return pa.array(numbers, pa.int32())


def _number(names: Names, text: str) -> pa.Scalar:
    number = names.find(text)
    return pa.scalar(-1 if number is None else number, pa.int32())


class UsageSummary:
    """Counts in a thread of its own, when a page asks; for many threads."""

    def __init__(self, catalog: Catalog, spike_factor: float) -> None:
        self._catalog, self._spike_factor = catalog, spike_factor
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._counted: CountedUsage | None = None
        self._ended_at = float("-inf")

    def read(self, wait_s: float = WAIT_S) -> CountedUsage | None:
        """The newest count; None until the first one has ended. Counts newer events if it is not of now."""
        with self._turn:
            is_old = time.monotonic() - self._ended_at > REFRESH_EVERY_S
            is_running = self._thread is not None and self._thread.is_alive()
            if is_old and not is_running and not self._closing.is_set():
                self._thread = threading.Thread(target=self._count, name="usage", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(wait_s)
        return self._counted

    def stop(self) -> None:
        """Ends the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _count(self) -> None:
        try:
            # One transaction: events that are pruned meanwhile are counted once.
            with self._catalog.reading() as session:
                counted = self._count_newer(session)
        except (Unavailable, SQLAlchemyError) as error:
            _log.warning("usage is not counted: %s", error)
        else:
            self._counted = counted if counted is not None else self._counted
        finally:
            self._ended_at = time.monotonic()

    def _count_newer(self, session: Session) -> CountedUsage | None:
        """The count up to the newest event; None if the server stops."""
        at = datetime.now(UTC)
        since = at.date() - timedelta(days=KEPT_DAYS - 1)
        newest = session.scalar(select(func.max(AuditRow.key))) or 0
        pruned = session.scalar(select(AuditChainRow.number).where(AuditChainRow.name == ANCHOR)) or 0
        before = self._counted
        if before is None or pruned > before.through:
            empty = SCHEMA.empty_table()
            first = self._find_first(session, since) or newest + 1
            before = CountedUsage(empty, Names(), Names(), first - 1, at, since, {}, self._spike_factor)
            kept = select(*(getattr(UsageRow, name) for name in COLUMNS))
            parts = [_rows(before, session.execute(kept.where(UsageRow.day >= since.isoformat())))]
        else:
            parts = [before.rows]
        known = len(parts) if before.rows.num_rows else 0
        for start in range(before.through + 1, newest + 1, EVENTS_AT_ONCE):
            if self._closing.is_set():
                return None
            keys = AuditRow.key.between(start, min(start + EVENTS_AT_ONCE - 1, newest))
            events = count_requests(session, keys)
            # Over the connection: without objects of the mapper, which take as long as the rest.
            parts.append(_rows(before, session.connection().execute(events)))
        last_days = dict(before.last_days)
        for part in parts[known:]:
            last_days |= _find_last_days(part, before.recipients, last_days)
        rows, through = _combine(parts, since), max(newest, before.through)
        counted = replace(before, rows=rows, through=through, at=at, since=since, last_days=last_days)
        _ = counted.spikes  # before a page waits for them
        return counted

    def _find_first(self, session: Session, since: date) -> int | None:
        """The first event of these days; later ones may be of earlier days."""
        begins_at = datetime.combine(since, datetime.min.time(), UTC)
        return session.scalar(select(func.min(AuditRow.key)).where(AuditRow.at >= begins_at))


def _rows(counted: CountedUsage, found: Iterable[Any]) -> pa.Table:
    """Rows of `COLUMNS` with numbers for names."""
    columns: Sequence[Sequence[Any]] = list(zip(*found, strict=True)) or [()] * len(COLUMNS)
    days, recipients, objects, *others = columns
    arrays = [
        [date.fromisoformat(day).toordinal() for day in days],
        [counted.recipients.number(name) for name in recipients],
        [counted.objects.number(name) for name in objects],
        *others,
    ]
    fields = zip(arrays, SCHEMA.types, strict=True)
    return pa.Table.from_arrays([pa.array(values, kind) for values, kind in fields], schema=SCHEMA)


def _find_medians(values: pa.Table) -> pa.Table:
    """The exact median of the values of each recipient, and the number of its days with a value."""
    ordered = values.sort_by([("recipient", "ascending"), ("value", "ascending")])
    # Without threads the groups are in the order of the rows.
    counted = ordered.group_by("recipient", use_threads=False).aggregate([("value", "count")])
    counts = counted.column("value_count").combine_chunks()
    starts = pc.subtract(pc.cumulative_sum(counts), counts)
    column = ordered.column("value").combine_chunks()
    lower, upper = (
        column.take(pc.add(starts, pc.divide(place, 2))) for place in (pc.subtract(counts, 1), counts)
    )
    middle = pc.divide(pc.cast(pc.add(lower, upper), pa.float64()), 2.0)
    return pa.table({"recipient": counted.column("recipient"), "days": counts, "usual": middle})


def _find_last_days(rows: pa.Table, recipients: Names, known: Mapping[str, date]) -> dict[str, date]:
    """The last day of each recipient with an answered request in these rows, or the known one if it is later."""
    rows = rows.filter(pc.greater(rows.column("requests"), 0))
    days = {}
    for row in rows.group_by("recipient").aggregate([("day", "max")]).to_pylist():
        name = recipients.texts[row["recipient"]]
        days[name] = max(date.fromordinal(row["day_max"]), known.get(name, date.min))
    return days


def _combine(parts: Sequence[pa.Table], since: date) -> pa.Table:
    """All rows from a day on; many parts become one."""
    rows = pa.concat_tables(parts)
    rows = rows.filter(pc.greater_equal(rows.column("day"), since.toordinal()))
    return rows.combine_chunks() if rows.column("day").num_chunks > MAX_PARTS else rows
