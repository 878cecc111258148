"""Retention: the class of a new point, locks of copies, leases of readers, and the sweep of points and copies.

A sweep removes a point's own record first and the rows of its copies last: an interrupted sweep is finished by the next
one, and no listed point lacks copies.
"""

import datetime as dt
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import GIB, Backup, Retention
from lakeshare_pipelines.backup.model import (
    GOOD_STATUSES,
    POINT_COPIES,
    Point,
    ReportMessage,
    Status,
    open_database,
)
from lakeshare_pipelines.backup.points import CLAIM, POINT, SWEEP, SWEPT, Points, get_point_time
from lakeshare_pipelines.backup.stores import (
    CHECK_ENDPOINT,
    MISSING_CODES,
    BackupStore,
    S3Store,
    open_store,
    remove_unfinished,
)
from lakeshare_pipelines.backup.verify import delta, iceberg
from lakeshare_pipelines.backup.verify.objects import (
    JudgedObjects,
    TableCopy,
    load_copies,
    normalize_location,
)
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_server.catalog.database import heartbeat
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable
from lakeshare_server.tables.iceberg.manifests import parse_manifest_list

RetentionClass = Literal["daily", "weekly", "monthly", "yearly"]
# Shortest first; a longer one counts for shorter ones.
CLASSES: tuple[RetentionClass, ...] = get_args(RetentionClass)
# The longest periods: locks do not end before.
CLASS_DAYS = {"daily": 1, "weekly": 7, "monthly": 31, "yearly": 366}


def choose_class(
    as_of: dt.datetime, status: Status, others: Iterable[Point], retention: Retention
) -> RetentionClass:
    if status not in GOOD_STATUSES:
        return "daily"
    good = [other for other in others if other.was_good]
    for name in reversed(CLASSES[1:]):
        period = get_period(name, as_of)
        periods = (get_period(name, other.as_of) for other in good if _counts_for(other, name))
        if getattr(retention, name) and period not in periods:
            return name
    return "daily"


def compute_lock_end(
    made_at: dt.datetime, retention_class: RetentionClass, retention: Retention
) -> dt.datetime:
    days = CLASS_DAYS[retention_class] * max(1, getattr(retention, retention_class))
    return made_at + dt.timedelta(days=days)


def select_kept_days(points: Sequence[Point], retention: Retention) -> set[str]:
    """The days of the points to keep: of each class the newest periods, and always the newest good point. Points that
    are not good take no place. They are kept as long as days are, and while no good point is newer."""
    good = sorted((point for point in points if point.was_good), key=lambda point: point.as_of, reverse=True)
    kept_days = {point.day for point in (*good[:1], *[point for point in good if point.damage is None][:1])}
    for name in CLASSES:
        counting = [point for point in good if _counts_for(point, name)]
        periods = _select_first(
            getattr(retention, name), (get_period(name, point.as_of) for point in counting)
        )
        kept_days |= {point.day for point in counting if get_period(name, point.as_of) in periods}
    days = _select_first(retention.daily, (get_period("daily", point.as_of) for point in good))
    oldest = min(days, default=None)
    for point in points:
        if not point.was_good and (oldest is None or get_period("daily", point.as_of) >= oldest):
            kept_days.add(point.day)
    return kept_days


def get_period(name: RetentionClass, as_of: dt.datetime) -> tuple[int, ...]:
    """The day, ISO week, month or year of a time; midnight belongs to the day that it ends."""
    date = (as_of.astimezone(dt.UTC) - dt.timedelta(microseconds=1)).date()
    month = (date.year, date.month)
    periods = {"daily": (*month, date.day), "weekly": date.isocalendar()[:2], "monthly": month}
    return periods.get(name, (date.year,))


def _counts_for(point: Point, name: RetentionClass) -> bool:
    return CLASSES.index(point.retention_class) >= CLASSES.index(name)


def _select_first(count: int, periods: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return set(list(dict.fromkeys(periods))[:count])


_log = logging.getLogger(__name__)

COPY = ["stored_key", "stored_version_id"]
AT_ONCE = 16
PROGRESS_EVERY = 5_000
LATER = "lock.json"  # In a point's folder: the end of a lock that was set after the point was made
SECOND = dt.timedelta(seconds=1)  # Stores keep the end of a lock in whole seconds

Row = dict[str, Any]  # a row of an Arrow table, by column


@dataclass(frozen=True)
class LockResult:
    until: dt.datetime
    extended: int  # Copies whose lock was set or extended
    sufficient: int  # Copies that were locked as long already


def lock_copies(
    backup: Backup,
    batches: Iterable[pa.RecordBatch],
    points: Points,
    day: str,
    until: dt.datetime,
    report_message: ReportMessage = _log.info,
) -> LockResult:
    """Lock the copies of a point (rows of schema POINT_COPIES); called again it does the rest.

    A lock is never shortened. Copies that a point with a lock as long also holds are skipped. Raises BackupError if a
    lock was refused or is not kept by the store; names the first such copy.
    """
    if backup.lock is None:
        fix = "Declare `lock`, with a bucket that was made with Object Lock."
        raise BackupError(f"backup {backup.name}", "it has no lock", fix)
    columns = pa.schema([POINT_COPIES.field(name) for name in COPY])
    copies = pa.Table.from_batches([batch.select(COPY) for batch in batches], columns)
    rows = _select_unlocked(copies, points, day, until).to_pylist()
    locker = _CopyLocker(backup, day, backup.lock.mode.upper(), until)
    extended = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, len(rows), PROGRESS_EVERY):
            some = rows[start : start + PROGRESS_EVERY]
            extended += sum(pool.map(locker.lock, some))
            report_message(f"{day}: locked {start + len(some):,} of {len(rows):,} copies")
    return LockResult(until, extended, copies.num_rows - extended)


def get_lock_end(points: Points, point: Point) -> dt.datetime | None:
    try:
        content = points.store.read(f"{points.folder(point.day)}{LATER}")
        later = dt.datetime.fromisoformat(json.loads(content)["until"])
    except ObjectMissing:
        return point.locked_until
    except (ValueError, TypeError, KeyError) as error:
        title = f"backup {points.backup.name}, point {point.day}"
        raise DamagedRecord(title, f"{LATER} cannot be read") from error
    return later if point.locked_until is None else max(later, point.locked_until)


def lock_point(
    points: Points, point: Point, until: dt.datetime, report_message: ReportMessage = _log.info
) -> LockResult:
    result = lock_copies(
        points.backup, points.read_copies(point, COPY), points, point.day, until, report_message
    )
    ends = until
    try:
        ends = max(until, get_lock_end(points, point) or until)
    except DamagedRecord as error:
        report_message(f"{error} The record of the lock is written again; longer locks of the store stay.")
    points.store.put(f"{points.folder(point.day)}{LATER}", json.dumps({"until": ends.isoformat()}).encode())
    return result


def _select_unlocked(copies: pa.Table, points: Points, day: str, until: dt.datetime) -> pa.Table:
    locked = []
    for point in points.readable()[0] if points.backup.layout == "incremental" else ():
        # Copies of a point whose lock cannot be read are locked once more, as those of one without rows.
        with suppress(DamagedRecord):
            ends = get_lock_end(points, point)
            if point.day != day and ends is not None and ends >= until:
                locked.append(point)
    with open_database() as on:
        load_copies(on, points, locked, COPY)
        on.register("own", copies)
        return on.sql(
            "FROM own ANTI JOIN copies ON own.stored_key = copies.stored_key "
            "AND own.stored_version_id IS NOT DISTINCT FROM copies.stored_version_id"
        ).to_arrow_table()


class _CopyLocker:
    def __init__(self, backup: Backup, day: str, mode: str, until: dt.datetime) -> None:
        self._backup, self._mode, self._address = backup, mode, backup.target_of(day)
        self._until = until.astimezone(dt.UTC).replace(microsecond=0) + SECOND
        self._store = S3Store(self._address)

    def lock(self, row: Row) -> bool:
        """Lock a copy; False if it was locked as long already."""
        key, sufficient = row["stored_key"], self._until - SECOND
        head = self._request("head_object", key, row["stored_version_id"])
        mode, until = head.get("ObjectLockMode"), head.get("ObjectLockRetainUntilDate")
        if until is not None and until >= sufficient and mode in {self._mode, "COMPLIANCE"}:
            return False
        # A lock in compliance mode cannot be weakened.
        new_mode = "COMPLIANCE" if mode == "COMPLIANCE" else self._mode
        retention = {"Mode": new_mode, "RetainUntilDate": max(self._until, until or self._until)}
        self._request("put_object_retention", key, head.get("VersionId"), Retention=retention)
        head = self._request("head_object", key, row["stored_version_id"])
        mode, until = head.get("ObjectLockMode"), head.get("ObjectLockRetainUntilDate")
        if mode != new_mode or until is None or until < sufficient:
            reason = f"its lock was not kept: the store has {mode or 'no mode'} until {until or 'no time'}"
            raise self._make_error(key, reason, OBJECT_LOCK)
        return True

    def _request(self, call: str, key: str, version_id: str | None, **arguments: Any) -> dict[str, Any]:
        version = {"VersionId": version_id} if version_id else {}
        try:
            response = self._store.call(call, Key=key, **version, **arguments)
        except S3Refused as error:
            fix = OBJECT_LOCK
            if error.code in MISSING_CODES:
                fix = "The copy does not exist: run the day again, verification reports what is missing."
            elif error.code in {"AccessDenied", "403"}:
                fix = (
                    "Allow s3:PutObjectRetention and s3:GetObjectRetention: `lakeshare backup policies` writes "
                    "the policies."
                )
            reason = f"the store refused its lock: {error.code} {error.message}".rstrip(". ")
            raise self._make_error(key, reason, fix) from error
        except S3Unreachable as error:
            raise self._make_error(key, f"the request failed: {error}", CHECK_ENDPOINT) from error
        return response

    def _make_error(self, key: str, reason: str, fix: str) -> BackupError:
        return BackupError(f"backup {self._backup.name}, {self._address.location(key)}", reason, fix)


OBJECT_LOCK = "Give the backup a bucket that was made with Object Lock, in a store that keeps it."


def apply_retention(
    points: Points,
    day: str,
    status: Status,
    made_at: dt.datetime,
    point_copies: Iterable[pa.RecordBatch],
    report_message: ReportMessage = _log.info,
) -> tuple[RetentionClass, dt.datetime | None]:
    """Choose the class of a new point and lock its copies; returns the class and the end of the locks."""
    others = [other for other in points.readable()[0] if other.day != day]
    retention_class = choose_class(get_point_time(day), status, others, points.backup.retention)
    if points.backup.lock is None:
        return retention_class, None
    until = compute_lock_end(made_at, retention_class, points.backup.retention)
    lock_copies(points.backup, point_copies, points, day, until, report_message)
    return retention_class, until


LEASE = dt.timedelta(days=2)


@contextmanager
def hold_point(
    points: Points,
    day: str,
    reader: str,
    *,
    as_made: bool = False,
    unwritable: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """Hold a lease of a point during a `with` block, renewed while it lasts; `reader` is the name of the holder.

    With `as_made`, later damage does not matter. `unwritable` receives a warning if the target cannot be written.
    Raises BackupError if the point is being swept, or does not exist.
    """
    key = f"{points.folder(day)}leases/{uuid4().hex}.json"

    def write_lease() -> bool:
        until = dt.datetime.now(dt.UTC) + LEASE
        return points.store.put(key, json.dumps({"reader": reader, "until": until.isoformat()}).encode())

    try:
        is_held = write_lease()
    except BackupError as error:
        if unwritable is None:
            raise
        is_held = False
        unwritable(
            f"Point {day} is read without protection from sweeps, its location cannot be written: {error}"
        )
    try:
        if points.store.head(f"{points.folder(day)}{SWEPT}") is not None:
            fix = "Use a newer point: `lakeshare backup list` shows them."
            raise BackupError(f"backup {points.backup.name}, point {day}", "retention is removing it", fix)
        points.get(day, as_made=as_made)
        with heartbeat(f"lease-{day}", LEASE.total_seconds() / 4, write_lease) if is_held else nullcontext():
            yield
    finally:
        if is_held:
            points.store.delete(key)


def list_readers(points: Points, day: str, now: dt.datetime) -> list[str]:
    """The holders of the leases of a point that have not ended."""
    readers = []
    for listed in points.store.list(f"{points.folder(day)}leases/"):
        try:
            lease = json.loads(points.store.read(listed.key))
            reader, is_held = str(lease["reader"]), dt.datetime.fromisoformat(lease["until"]) > now
        except ObjectMissing:
            continue  # It was released after the listing.
        except (ValueError, TypeError, KeyError):
            # A lease that cannot be read ends as one written when the file was.
            reader, is_held = "a reader whose lease cannot be read", listed.last_modified + LEASE > now
        if is_held:
            readers.append(reader)
    return sorted(readers)


def find_points_in_use(points: Points, finished: Sequence[Point]) -> dict[str, str]:
    """Points that unfinished days may build on, with these: the newest when a day was claimed, and any made since."""
    needed: dict[str, str] = {}
    for day in points.unfinished():
        claim = points.store.head(f"{points.folder(day)}{CLAIM}")
        if claim is None:
            continue  # It was released, or finished, after the listing.
        earlier = sorted((point for point in finished if point.day < day), key=lambda point: point.day)
        before = [point for point in earlier if point.made_at <= claim.last_modified]
        since = [point for point in earlier if point.made_at > claim.last_modified]
        needed |= {point.day: day for point in (*before[-1:], *since)}
    return needed


@contextmanager
def block_claims(points: Points) -> Iterator[Callable[[], None]]:
    """Block new claims during a `with` block; what it yields raises BackupError if they are not blocked any more."""
    title, until = f"backup {points.backup.name}", points.swept_until()

    def is_blocked() -> bool:
        return until is not None and until > dt.datetime.now(dt.UTC)

    def require_blocked() -> None:
        if not is_blocked():
            reason = "its sweep was held up for so long that a new point may be in the making"
            raise BackupError(title, reason, "Sweep again, which continues it.")

    def renew(*, if_absent: bool = False) -> bool:
        nonlocal until
        renewed = dt.datetime.now(dt.UTC) + SWEEP
        mark = json.dumps({"until": renewed.isoformat()}).encode()
        is_written = points.store.put(points.sweep_key, mark, if_absent=if_absent)
        until = renewed
        return is_written

    if until is not None and not is_blocked():
        points.store.delete(points.sweep_key)  # Of a sweep that was interrupted
    if is_blocked() or not renew(if_absent=True):
        fix = f"Wait for it, or sweep again after {until:%H:%M} UTC if it was interrupted."
        raise BackupError(title, "another sweep is running", fix)
    try:
        with heartbeat("sweep", SWEEP.total_seconds() / 4, renew):
            yield require_blocked
    finally:
        if is_blocked():
            points.store.delete(points.sweep_key)


PORTION = 2_000
UNFINISHED_AGE = dt.timedelta(days=1)  # After so long without a write, a temporary file has no writer


@dataclass(frozen=True)
class SweepResult:
    days: tuple[str, ...]
    objects: int
    size_bytes: int
    spared: tuple[str, ...]  # Sentences: points that retention does not keep, and why they were not removed


def sweep_points(
    backup: Backup,
    points: Points,
    now: dt.datetime,
    *,
    dry_run: bool,
    report_message: ReportMessage = _log.info,
) -> SweepResult:
    """Remove points that are not kept any more, then the copies that only they held; called again it continues.

    Points stay that are the newest good one, locked, being read, or built on by an unfinished day. Raises BackupError
    if a day is being made in a store without versions, which distinguish new copies from old ones.
    """
    if dry_run:
        return _summarise(*_plan_sweep(backup, points, now))
    with block_claims(points) as require_blocked:
        going, spared = _plan_sweep(backup, points, now)
        making = points.unfinished()
        has_no_versions = any(copies["stored_version_id"].null_count for _, copies in going)
        if making and backup.layout == "incremental" and has_no_versions:
            raise BackupError(
                f"backup {backup.name}",
                f"{', '.join(making)} is being made, and the target has no versions that distinguish its copies from "
                "old ones",
                "Sweep when it is done, or release it with `lakeshare backup release`; nothing was removed.",
            )
        if in_use := _mark_swept(points, [point for point, _ in going], now):
            going, spared = _plan_sweep(backup, points, now)
        folders = {points.store.address.url, *(backup.target_of(day).url for day in points.days())}
        for folder in sorted(folder for folder in folders if folder.startswith("/")):
            if count := remove_unfinished(Path(folder), now - UNFINISHED_AGE):
                report_message(
                    f"{folder}: removed {count:,} unfinished files of copies that were interrupted"
                )
        for point, copies in going:
            require_blocked()
            for message in _remove_point(points, point, open_store(backup.target_of(point.day)), copies):
                report_message(message)
                require_blocked()
    return _summarise(going, (*spared, *in_use))


# Points to remove, each with the copies (columns COPY and `size_bytes`) to remove: a copy is with one point only.
_Going = list[tuple[Point, pa.Table]]


def _summarise(going: _Going, spared: Iterable[str]) -> SweepResult:
    return SweepResult(
        days=tuple(sorted(point.day for point, _ in going)),
        objects=sum(copies.num_rows for _, copies in going),
        size_bytes=sum(pc.sum(copies["size_bytes"]).as_py() or 0 for _, copies in going),
        spared=tuple(dict.fromkeys(spared)),
    )


def _plan_sweep(backup: Backup, points: Points, now: dt.datetime) -> tuple[_Going, list[str]]:
    """What to remove, and sentences about points that stay."""
    finished, damaged = points.readable()
    unknown = [str(error) for error in damaged]
    kept_days = select_kept_days(finished, backup.retention)
    in_use = find_points_in_use(points, finished)
    chosen, spared = list[Point](), list[str]()
    for point in finished:
        if point.day not in kept_days:
            if reason := _explain_spared(points, point, in_use, now):
                spared.append(f"{point.day} stays: {reason}")
            else:
                chosen.append(point)
    going = [*_find_unfinished_sweeps(points, unknown), *chosen]
    others = [point for point in finished if point not in chosen]
    with open_database() as on:
        unreadable = load_copies(on, points, [*going, *others], [*COPY, "size_bytes"])
        if backup.layout == "incremental" and (unknown or any(point.day in unreadable for point in finished)):
            # Such a point may hold any copy, so no copy is known to be unneeded.
            sentences = (*unknown, *map(str, unreadable.values()))
            return [], [*spared, *(f"Nothing is removed: {sentence}" for sentence in sentences)]
        # A point whose own copies are not known stays.
        spared += [*unknown, *(str(unreadable[point.day]) for point in going if point.day in unreadable)]
        going = [point for point in going if point.day not in unreadable]
        days = [point.day for point in going]
        unneeded = on.sql(_UNNEEDED, params={"days": days}).to_arrow_table()
    return [(point, unneeded.filter(pc.equal(unneeded["day"], point.day))) for point in going], spared


# A copy that several of these points hold is among those of the first.
_UNNEEDED = """
SELECT * FROM copies c WHERE list_contains($days, day) AND NOT EXISTS (
    FROM copies s WHERE NOT list_contains($days, s.day) AND s.place = c.place AND s.stored_key = c.stored_key
    AND s.stored_version_id IS NOT DISTINCT FROM c.stored_version_id
) QUALIFY row_number() OVER (
    PARTITION BY place, stored_key, stored_version_id ORDER BY list_position($days, day)) = 1
"""


def _explain_spared(points: Points, point: Point, in_use: dict[str, str], now: dt.datetime) -> str | None:
    try:
        locked = get_lock_end(points, point)
    except DamagedRecord as error:
        return f"{error.reason}, so it may be locked."
    if locked is not None and locked > now:
        return f"it is locked until {locked:%Y-%m-%d}."
    if point.day in in_use:
        return f"{in_use[point.day]} is being made and builds on it."
    if who := list_readers(points, point.day, now):
        return f"{', '.join(who)} reads it."
    return None


def _mark_swept(points: Points, going: Sequence[Point], now: dt.datetime) -> list[str]:
    """Unlist each point, so that no reader begins, except for those that a reader just took a lease of."""
    spared = []
    for point in going:
        folder = points.folder(point.day)
        points.store.put(f"{folder}{SWEPT}", point.model_dump_json(indent=1).encode())
        if who := list_readers(points, point.day, now):
            points.store.delete(f"{folder}{SWEPT}")
            spared.append(f"{point.day} stays: {', '.join(who)} reads it.")
        else:
            points.store.delete(f"{folder}point.json")
    return spared


def _find_unfinished_sweeps(points: Points, unknown: list[str]) -> list[Point]:
    """Points whose sweep began and was not finished; reasons why marks cannot be read are added to `unknown`."""
    begun = []
    for day, marks in sorted(points.list_marks().items()):
        if SWEPT not in marks or POINT in marks:
            continue
        try:
            point = Point.model_validate_json(points.store.read(f"{points.folder(day)}{SWEPT}"))
            folder = f"{points.folder(point.day)}held/"
            # Rows are removed after their copies: missing files of rows are no damage.
            left = {listed.key.removeprefix(folder) for listed in points.store.list(folder)}
            digests = {name: digest for name, digest in point.held_digests.items() if name in left}
            begun.append(point.model_copy(update={"held_digests": digests}))
        except ValueError:
            error = DamagedRecord(f"backup {points.backup.name}, point {day}", f"{SWEPT} cannot be read")
            unknown.append(str(error))
    return begun


def _remove_point(points: Points, point: Point, store: BackupStore, copies: pa.Table) -> Iterator[str]:
    """Yields a message after each portion of copies."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, copies.num_rows, PORTION):
            rows = copies.slice(start, PORTION).to_pylist()
            list(pool.map(lambda row: store.delete(row["stored_key"], row["stored_version_id"]), rows))
            yield f"{point.day}: removed {start + len(rows):,} of {copies.num_rows:,} copies"
    folder = points.folder(point.day)
    last = f"{folder}{SWEPT}"
    own = [listed.key for listed in points.store.list(folder) if listed.key != last]
    for key in [*own, last]:
        points.store.delete(key)


OLDER_THAN = dt.timedelta(days=7)  # Younger files may belong to a write that is not committed yet
NEVER_ORPHANED = r"(^|/)(_delta_log|_change_data|\.hoodie|\.lakeshare[^/]*)/"
"""Folders whose files are needed without being named, or by readers of changes."""
EXAMPLES = 5
ORPHAN_COLUMNS = [
    "bucket", "key", "size_bytes", "last_modified", "stored_key", "stored_version_id", "table_root"
]  # fmt: skip


@dataclass(frozen=True)
class Orphans:
    root: str
    objects: int
    size_bytes: int
    usd_a_month: float  # At the backup's price of storage
    examples: tuple[str, ...]  # Keys, the largest first


@dataclass(frozen=True)
class OrphanReport:
    """The orphans of a point's tables, the most bytes first."""

    day: str
    tables: tuple[Orphans, ...]
    unknown: tuple[str, ...]  # Sentences: tables whose copies do not show which files they name


def find_orphans(
    backup: Backup, points: Points, day: str, report_message: ReportMessage = _log.info
) -> OrphanReport:
    """The orphans of the source, as a point shows them.

    A file is an orphan if no version that the table's log or metadata can still make has it, it was seven days old at
    the point's time, and it is no log, no change data, and not named by another table.
    """
    point = points.get(day)
    copies = pa.Table.from_batches(list(points.read_copies(point, ORPHAN_COLUMNS))).combine_chunks()
    locations = pc.binary_join_element_wise(backup.source.location(""), copies["key"], "")
    copies = copies.append_column("location", locations)
    copies = copies.append_column("is_whole", pa.array([True] * copies.num_rows, pa.bool_()))
    store, named, unknown = open_store(backup.target_of(day)), [pa.array([], pa.string())], dict[str, str]()
    for table in point.plan.tables:
        report_message(f"reading what {table.root or 'the table'} names")
        try:
            copy = TableCopy(table, backup.source, store, JudgedObjects(copies))
            named.append(_read_delta_names(copy) if table.format == "delta" else _read_iceberg_names(copy))
        except (delta.BrokenLogFile, ObjectMissing, ValueError) as error:
            unknown[table.root] = f"{table.root}: {str(error).rstrip('.')}; its files are not judged."
    orphans = _select_orphans(backup, point, copies, pa.chunked_array(named))
    known = [table for table in orphans if table.root not in unknown]
    return OrphanReport(day, tuple(known), tuple(unknown.values()))


def _select_orphans(
    backup: Backup, point: Point, copies: pa.Table, named: pa.ChunkedArray
) -> Iterator[Orphans]:
    roots = pa.array([table.root for table in point.plan.tables], pa.string())
    latest = pa.scalar(point.as_of - OLDER_THAN, copies["last_modified"].type)
    is_old = pc.less(copies["last_modified"], latest)
    rows = copies.filter(pc.and_(pc.is_in(copies["table_root"], roots), is_old))
    rows = rows.filter(pc.invert(pc.match_substring_regex(rows["key"], NEVER_ORPHANED)))
    rows = rows.filter(pc.invert(pc.is_in(rows["location"], pc.unique(named))))
    sums = rows.group_by("table_root").aggregate([("size_bytes", "sum"), ("key", "count")])
    order = [("size_bytes_sum", "descending"), ("table_root", "ascending")]
    for table in sums.sort_by(order).to_pylist():
        own = rows.filter(pc.equal(rows["table_root"], table["table_root"]))
        largest = own.sort_by([("size_bytes", "descending"), ("key", "ascending")])["key"]
        yield Orphans(
            table["table_root"],
            table["key_count"],
            table["size_bytes_sum"],
            round(table["size_bytes_sum"] / GIB * backup.prices.per_gib_month, 4),
            tuple(largest.slice(0, EXAMPLES).to_pylist()),
        )


def _read_delta_names(copy: TableCopy) -> pa.Array:
    reader = delta.LogReader(copy)
    log = delta.sort_names(reader.names)
    chains = delta.list_chains(log)
    newest = max((*log.commits, *log.checkpoints), default=None)
    if newest is None or not chains or chains[-1].versions[-1] < newest:
        raise delta.BrokenLogFile("", "the copy of its log has a hole")
    found = [pa.array([], pa.string())]
    for chain in chains:
        for events in delta.read_chain(copy.location, chain, reader.read, {}):
            added = events.filter(events["is_add"])
            found += [*added["location"].chunks, *added["dv_location"].drop_null().chunks]
    return pc.unique(pa.chunked_array(found))


def _read_iceberg_names(copy: TableCopy) -> pa.Array:
    """The files that any existing metadata file names: branches of a catalog have their own."""
    files, found, snapshots = iceberg.CopiedFiles(copy), set[str](), dict[str, iceberg.Snapshot]()

    def read_named(location: str) -> bytes | None:
        found.add(location)
        return None if files.find(location) is None else files.read(location)

    for row in copy.below(f"{iceberg.FOLDER}/", "key", "location").to_pylist():
        if iceberg.NAME.fullmatch(
            row["key"].removeprefix(f"{copy.table.root}/{iceberg.FOLDER}/".lstrip("/"))
        ):
            found.add(row["location"])
            metadata = iceberg.read_metadata(row["key"], files.read(row["location"]))
            found |= {normalize_location(location) for location in metadata.statistics}
            for snapshot in metadata.snapshots.values():
                snapshots[snapshot.manifest_list or f"snapshot {snapshot.id}"] = snapshot
    manifests: set[tuple[str, int]] = set()
    for snapshot in snapshots.values():
        if snapshot.manifest_list is None:
            manifests |= {(normalize_location(location), 0) for location in snapshot.manifests}
        # Only old metadata names an expired snapshot, whose list of manifests is gone.
        elif (content := read_named(normalize_location(snapshot.manifest_list))) is not None:
            listed = parse_manifest_list(content)
            manifests |= {(normalize_location(file.path), file.spec_id or 0) for file in listed}
    for location, spec_id in manifests:
        if (content := read_named(location)) is not None:
            found |= {location for location, _, _ in iceberg.list_live_files(content, spec_id)}
    return pa.array(sorted(found), pa.string())
