"""Sweeping: points that retention keeps no longer, and the copies that no point needs any more.

A point's own record goes first and what it tells of its copies last, so a sweep that broke off is finished by the
next one, and no point is ever listed whose copies are gone.
"""

import datetime as dt
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import GIB, Backup
from lakeshare_pipelines.backup.model import FoundTable, Point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.retention import (
    SWEPT,
    RetentionCandidate,
    block_claims,
    find_points_in_use,
    get_lock_end,
    list_claimed_days,
    list_readers,
    select_kept_days,
)
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.stores.store import remove_unfinished
from lakeshare_pipelines.backup.verify.delta_replay import BrokenLogFile, read_chain, sort_log_files
from lakeshare_pipelines.backup.verify.iceberg import (
    FOLDER,
    NAME,
    Snapshot,
    normalize_location,
    read_metadata,
)
from lakeshare_pipelines.errors import BackupError, DamagedRecord, ObjectMissing
from lakeshare_server.tables.delta.log import LOG
from lakeshare_server.tables.iceberg.avro import Entries, read_container
from lakeshare_server.tables.iceberg.manifests import parse_manifest_list

_log = logging.getLogger(__name__)

COPY = ["stored_key", "stored_version_id", "size_bytes"]
AT_ONCE = 16
PORTION = 2_000
UNFINISHED_AGE = dt.timedelta(days=1)
"""A file that nobody wrote to for so long has no writer any more."""

ReportMessage = Callable[[str], None]


@dataclass(frozen=True)
class SweepResult:
    """What a sweep removed, or would remove."""

    days: tuple[str, ...]
    objects: int
    size_bytes: int
    spared: tuple[str, ...]
    """Sentences: points that retention does not keep, and why they stay all the same."""


def sweep_points(
    backup: Backup,
    points: Points,
    now: dt.datetime,
    *,
    dry_run: bool,
    report_message: ReportMessage = _log.info,
) -> SweepResult:
    """Remove points that are kept no longer, then the copies that only they held.

    The newest good point always stays; so do points that are locked, that somebody reads, or that a day that is being
    made builds on. Called again after a crash it goes on.

    Raises:
        BackupError: a day is being made into a place without versions, where a copy that it makes now could not be
            told from an old one; or the store refuses.
    """
    if dry_run:
        return _plan_sweep(backup, points, now).swept
    with block_claims(points) as still:
        found = _plan_sweep(backup, points, now)
        _require_versions(backup, points, found)
        spared = _mark_swept(points, [point for point, _ in found.copies], now)
        if spared:
            found = _plan_sweep(backup, points, now)
        _remove_unfinished(backup, points, now, report_message)
        for point, copies in found.copies:
            _remove(points, point, open_store(backup.target_of(point.day)), copies, still, report_message)
    return replace(found.swept, spared=tuple(dict.fromkeys((*found.swept.spared, *spared))))


@dataclass(frozen=True)
class _SweepPlan:
    """Points to remove, each with the copies (columns COPY) that go with it: a copy is with one point only."""

    copies: tuple[tuple[Point, pa.Table], ...]
    spared: tuple[str, ...]

    @property
    def swept(self) -> SweepResult:
        tables = [copies for _, copies in self.copies]
        return SweepResult(
            days=tuple(sorted(point.day for point, _ in self.copies)),
            objects=sum(copies.num_rows for copies in tables),
            size_bytes=sum(pc.sum(copies["size_bytes"]).as_py() or 0 for copies in tables),
            spared=self.spared,
        )


def _plan_sweep(backup: Backup, points: Points, now: dt.datetime) -> _SweepPlan:
    finished, damaged = points.readable()
    unknown = [str(error) for error in damaged]
    chosen, spared = _select_points(backup, points, finished, now)
    begun = _find_unfinished_sweeps(points, unknown)
    gone = {point.day for point in (*begun, *chosen)}
    if backup.layout == "incremental":
        unknown += _describe_unreadable(points, [point for point in finished if point.day not in gone])
        if unknown:
            # What such a point holds nobody can tell, so no copy is known to be needed by none.
            return _SweepPlan((), (*spared, *(f"Nothing is removed: {sentence}" for sentence in unknown)))
    spared += unknown
    # A point that does not tell which copies are its own keeps them, and its record.
    held_back = _describe_unreadable(points, [*begun, *chosen])
    spared += held_back
    going = [
        point
        for point in (*begun, *chosen)
        if not any(f"point {point.day}:" in sentence for sentence in held_back)
    ]
    gone = {point.day for point in going}
    staying = [point for point in finished if point.day not in gone]
    copies = [_select_copies(points, point, staying, backup.layout) for point in going]
    if backup.layout == "incremental":
        copies = _drop_duplicates(copies)
    return _SweepPlan(tuple(zip(going, copies, strict=True)), tuple(spared))


def _select_points(
    backup: Backup, points: Points, finished: Sequence[Point], now: dt.datetime
) -> tuple[list[Point], list[str]]:
    """The points to remove, and why others that retention does not keep stay."""
    kept_names = select_kept_days([RetentionCandidate.of(point) for point in finished], backup.retention)
    building = find_points_in_use(points, finished)
    going, spared = [], []
    for point in finished:
        if point.day in kept_names:
            continue
        if reason := _explain_kept(points, point, building, now):
            spared.append(f"{point.day} stays: {reason}")
        else:
            going.append(point)
    return going, spared


def _explain_kept(points: Points, point: Point, building: dict[str, str], now: dt.datetime) -> str | None:
    try:
        locked = get_lock_end(points, point)
    except DamagedRecord as error:
        return f"{error.reason}, so that it may be locked."
    if locked is not None and locked > now:
        return f"it is locked until {locked:%Y-%m-%d}."
    if point.day in building:
        return f"{building[point.day]} is being made and builds on it."
    if who := list_readers(points, point.day, now):
        return f"{', '.join(who)} reads it."
    return None


def _mark_swept(points: Points, going: Sequence[Point], now: dt.datetime) -> list[str]:
    """Take each point out of the list, so that nobody begins to read it; but for those that somebody just began."""
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


def _describe_unreadable(points: Points, of: Sequence[Point]) -> list[str]:
    """Sentences about points whose rows of what they hold cannot be read."""
    sentences = []
    for point in of:
        try:
            for _ in points.read_copies(point, COPY):
                pass
        except DamagedRecord as error:
            sentences.append(str(error))
    return sentences


def _find_unfinished_sweeps(points: Points, unknown: list[str]) -> list[Point]:
    """Points whose sweep began and was not finished; `unknown` gets sentences about those that cannot be read."""
    start = points.folder("x").removesuffix("x/")
    found = [one.key for one in points.store.list(start) if one.key.endswith(f"/{SWEPT}")]
    marks = [key for key in found if points.store.head(f"{key.removesuffix(SWEPT)}point.json") is None]
    begun = []
    for key in marks:
        try:
            point = Point.model_validate_json(points.store.read(key))
            folder = f"{points.folder(point.day)}held/"
            # What it held is removed after its copies: files of it that are gone are missed by nobody.
            left = {one.key.removeprefix(folder) for one in points.store.list(folder)}
            digests = {name: digest for name, digest in point.held_digests.items() if name in left}
            begun.append(point.model_copy(update={"held_digests": digests}))
        except ValueError:
            day = key.removesuffix(f"/{SWEPT}").rpartition("/")[2]
            unknown.append(
                str(DamagedRecord(f"backup {points.backup.name}, point {day}", f"{SWEPT} cannot be read"))
            )
    return begun


def _select_copies(points: Points, point: Point, staying: Sequence[Point], layout: str) -> pa.Table:
    """The copies of a point that no kept point has: columns COPY."""
    batches = list(points.read_copies(point, COPY))
    if not batches:
        return pa.table({name: pa.array([], pa.string()) for name in COPY}).cast(_copy_schema())
    copies = pa.Table.from_batches(batches).select(COPY).cast(_copy_schema())
    for other in staying if layout == "incremental" else ():
        for others in points.read_copies(other, COPY[:2]):
            copies = copies.filter(pc.invert(pc.is_in(_names(copies), _names(others))))
    return copies


def _drop_duplicates(found: Sequence[pa.Table]) -> list[pa.Table]:
    """The same with each copy once, though several points of those that go may have it."""
    apart: list[pa.Table] = []
    for rows in found:
        for earlier in apart:
            rows = rows.filter(pc.invert(pc.is_in(_names(rows), _names(earlier))))
        apart.append(rows)
    return apart


def _require_versions(backup: Backup, points: Points, found: _SweepPlan) -> None:
    making = list_claimed_days(points)
    if making and backup.layout == "incremental" and any(_has_no_version(rows) for _, rows in found.copies):
        raise BackupError(
            f"backup {backup.name}",
            f"{', '.join(making)} is being made, and the target has no versions that tell its copies from old ones",
            "Sweep when it is done, or give it up with `lakeshare backup release`; nothing was removed.",
        )


def _has_no_version(rows: pa.Table) -> bool:
    return bool(rows["stored_version_id"].null_count)


def _remove(
    points: Points,
    point: Point,
    store: BackupStore,
    copies: pa.Table,
    still: Callable[[], None],
    report_message: ReportMessage,
) -> None:
    """Remove a point's copies, then all that is left of the point."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, copies.num_rows, PORTION):
            rows = copies.slice(start, PORTION).to_pylist()
            list(pool.map(lambda row: store.delete(row["stored_key"], row["stored_version_id"]), rows))
            still()
            report_message(f"{point.day}: removed {start + len(rows):,} of {copies.num_rows:,} copies")
    folder = points.folder(point.day)
    last = f"{folder}{SWEPT}"
    own = [one.key for one in points.store.list(folder) if one.key != last]
    for key in [*own, last]:
        points.store.delete(key)


def _remove_unfinished(
    backup: Backup, points: Points, now: dt.datetime, report_message: ReportMessage
) -> None:
    """Remove what killed copies into folders left behind."""
    places = {points.store.address.url, *(backup.target_of(day).url for day in points.days())}
    for place in sorted(place for place in places if place.startswith("/")):
        removed = remove_unfinished(Path(place), now - UNFINISHED_AGE)
        if removed:
            report_message(f"{place}: removed {removed:,} unfinished files of copies that were killed")


def _names(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """One text for a copy: its key, and its version where there is one."""
    versions = pc.fill_null(rows["stored_version_id"], "")
    return pc.binary_join_element_wise(rows["stored_key"], versions, "\0")


def _copy_schema() -> pa.Schema:
    return pa.schema(
        [("stored_key", pa.string()), ("stored_version_id", pa.string()), ("size_bytes", pa.int64())]
    )


OLDER_THAN = dt.timedelta(days=7)
"""Younger files may be of a write that is not committed yet."""
NEVER_ORPHANED = r"(^|/)(_delta_log|_change_data|\.hoodie|\.lakeshare[^/]*)/"
"""Folders whose files versions need in other ways than by name, or for readers of changes."""
EXAMPLES = 5
DELETED = 2
"""Iceberg spec, "Manifests": the status of an entry whose file is no more."""
COLUMNS = ["bucket", "key", "size_bytes", "last_modified", "stored_key", "stored_version_id", "table_root"]


@dataclass(frozen=True)
class Orphans:
    """The orphans of one table."""

    root: str
    objects: int
    size_bytes: int
    usd_a_month: float
    """What keeping them costs, at the backup's price of storage."""
    examples: tuple[str, ...]
    """Keys, the largest first."""


@dataclass(frozen=True)
class OrphanReport:
    """The orphans of a point's tables, the most bytes first."""

    day: str
    tables: tuple[Orphans, ...]
    unknown: tuple[str, ...]
    """Sentences: tables whose copies do not tell what they name, so that nothing is said of them."""


def find_orphans(
    backup: Backup, points: Points, day: str, report_message: ReportMessage = _log.info
) -> OrphanReport:
    """The orphans that a point shows of the source.

    A file counts where no version that the table's log or metadata can still make has it, it was seven days old at
    the point's moment, and it is no log, no change data, and no file that another table names.

    Raises:
        BackupError: there is no such point, or the store refuses.
    """
    point = points.get(day)
    copies = pa.Table.from_batches(list(points.read_copies(point, COLUMNS))).combine_chunks()
    store, named, unknown = open_store(backup.target_of(day)), [pa.array([], pa.string())], dict[str, str]()
    for table in point.plan.tables:
        report_message(f"reading what {table.root or 'the table'} names")
        try:
            named.append(_Reader(backup, store, copies, table).named())
        except (BrokenLogFile, ObjectMissing, ValueError) as error:
            unknown[table.root] = f"{table.root}: {str(error).rstrip('.')}; nothing is said of its files."
    found = _orphans(backup, point, copies, pa.chunked_array(named))
    known = [one for one in found if one.root not in unknown]
    return OrphanReport(day, tuple(known), tuple(unknown.values()))


def _orphans(backup: Backup, point: Point, copies: pa.Table, named: pa.ChunkedArray) -> Iterator[Orphans]:
    roots = pa.array([table.root for table in point.plan.tables], pa.string())
    is_old = pc.less(
        copies["last_modified"], pa.scalar(point.as_of - OLDER_THAN, copies["last_modified"].type)
    )
    rows = copies.filter(pc.and_(pc.is_in(copies["table_root"], roots), is_old))
    rows = rows.filter(pc.invert(pc.match_substring_regex(rows["key"], NEVER_ORPHANED)))
    start = backup.source.location("")
    rows = rows.filter(
        pc.invert(pc.is_in(pc.binary_join_element_wise(start, rows["key"], ""), pc.unique(named)))
    )
    sums = rows.group_by("table_root").aggregate([("size_bytes", "sum"), ("key", "count")])
    for one in sums.sort_by([("size_bytes_sum", "descending"), ("table_root", "ascending")]).to_pylist():
        own = rows.filter(pc.equal(rows["table_root"], one["table_root"]))
        largest = own.sort_by([("size_bytes", "descending"), ("key", "ascending")])["key"]
        yield Orphans(
            one["table_root"],
            one["key_count"],
            one["size_bytes_sum"],
            round(one["size_bytes_sum"] / GIB * backup.prices.per_gib_month, 4),
            tuple(largest.slice(0, EXAMPLES).to_pylist()),
        )


class _Reader:
    """Reads what one table names, from the copies of its own log or metadata."""

    def __init__(self, backup: Backup, store: BackupStore, copies: pa.Table, table: FoundTable) -> None:
        self._source, self._store, self._table = backup.source, store, table
        below = f"{table.root}/" if table.root else ""
        self._copies = copies.filter(pc.starts_with(copies["key"], below))
        self._places = {key: at for at, key in enumerate(self._copies["key"].to_pylist())}

    def named(self) -> pa.Array:
        """Locations of all files that a version which can still be made has.

        Raises:
            BrokenLogFile, ObjectMissing, ValueError: what tells it is not whole.
        """
        return self._by_delta() if self._table.format == "delta" else self._by_iceberg()

    def _by_delta(self) -> pa.Array:
        folder, root = self._below(LOG), self._source.location(self._table.root)
        log = sort_log_files(key.removeprefix(folder) for key in self._places if key.startswith(folder))
        chains = log.chains()
        newest = max((*log.commits, *log.checkpoints), default=None)
        if newest is None or not chains or chains[-1].versions[-1] < newest:
            raise BrokenLogFile("", "the copy of its log has a hole")
        found = [pa.array([], pa.string())]
        for chain in chains:
            events = read_chain(root, chain, lambda name: self._read(f"{folder}{name}")).events
            added = events.filter(events["is_add"])
            found += [*added["location"].chunks, *added["dv_location"].drop_null().chunks]
        return pc.unique(pa.chunked_array(found))

    def _by_iceberg(self) -> pa.Array:
        """What any metadata file names that is still there: branches of a catalog have some of their own."""
        folder = self._below(FOLDER)
        names = {key: key.removeprefix(folder) for key in self._places if key.startswith(folder)}
        keys = [key for key, name in names.items() if NAME.fullmatch(name)]
        found = {self._source.location(key) for key in keys}
        snapshots: dict[str, Snapshot] = {}
        for key in keys:
            metadata = read_metadata(key, self._read(key))
            found |= {normalize_location(location) for location in metadata.statistics}
            snapshots |= {
                one.manifest_list or f"snapshot {one.id}": one for one in metadata.snapshots.values()
            }
        manifests: set[tuple[str, int]] = set()
        for snapshot in snapshots.values():
            manifests |= self._manifests(snapshot, found)
        for location, spec_id in manifests:
            self._files(location, spec_id, found)
        return pa.array(sorted(found), pa.string())

    def _manifests(self, snapshot: Snapshot, found: set[str]) -> set[tuple[str, int]]:
        """Manifests of a snapshot; none of one that was expired, of which only old metadata still tells."""
        if snapshot.manifest_list is None:
            listed = {(normalize_location(location), 0) for location in snapshot.manifests}
        else:
            content = self._read_at(normalize_location(snapshot.manifest_list), found)
            manifests = [] if content is None else parse_manifest_list(content)
            listed = {(normalize_location(one.path), one.spec_id or 0) for one in manifests}
        return listed

    def _files(self, location: str, spec_id: int, found: set[str]) -> None:
        content = self._read_at(location, found)
        if content is None:
            return
        entries = Entries()
        entries.read(read_container(content), spec_id)
        columns = entries.columns["status"], entries.columns["path"]
        found |= {
            normalize_location(path.decode())
            for status, path in zip(*columns, strict=True)
            if status != DELETED
        }

    def _read_at(self, location: str, found: set[str]) -> bytes | None:
        found.add(location)
        key = location.removeprefix(self._source.location(""))
        return self._read(key) if key in self._places else None

    def _below(self, folder: str) -> str:
        return f"{self._table.root}/{folder}/".lstrip("/")

    def _read(self, key: str) -> bytes:
        if key not in self._places:
            raise ObjectMissing(key)
        copy = self._copies.slice(self._places[key], 1).to_pylist()[0]
        return self._store.read(copy["stored_key"], copy["stored_version_id"])
