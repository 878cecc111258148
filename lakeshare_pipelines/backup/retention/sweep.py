"""Sweeping: points that retention keeps no longer, and the copies that no point needs any more.

A point's own record goes first and what it tells of its copies last, so a sweep that broke off is finished by the
next one, and no point is ever listed whose copies are gone.
"""

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Point
from lakeshare_pipelines.backup.retention.classes import Kept, kept_days
from lakeshare_pipelines.backup.retention.leases import SWEPT, readers
from lakeshare_pipelines.backup.retention.locks import locked_until
from lakeshare_pipelines.backup.retention.made import alone, days_being_made, needed_by_making
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.stores.folder import remove_unfinished
from lakeshare_pipelines.errors import BackupError, DamagedRecord

_log = logging.getLogger(__name__)

COPY = ["stored_key", "stored_version_id", "size_bytes"]
AT_ONCE = 16
PORTION = 2_000
WRITTEN_FOR = dt.timedelta(days=1)
"""A file that nobody wrote to for so long has no writer any more."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Swept:
    """What a sweep removed, or would remove."""

    days: tuple[str, ...]
    objects: int
    size_bytes: int
    spared: tuple[str, ...]
    """Sentences: points that retention does not keep, and why they stay all the same."""


def sweep_points(
    backup: Backup, points: Points, now: dt.datetime, *, dry_run: bool, say: Say = _log.info
) -> Swept:
    """Remove points that are kept no longer, then the copies that only they held.

    The newest good point always stays; so do points that are locked, that somebody reads, or that a day that is being
    made builds on. Called again after a crash it goes on.

    Raises:
        BackupError: a day is being made into a place without versions, where a copy that it makes now could not be
            told from an old one; or the store refuses.
    """
    if dry_run:
        return _found(backup, points, now).swept
    with alone(points) as still:
        found = _found(backup, points, now)
        _require_told_apart(backup, points, found)
        spared = _mark(points, [point for point, _ in found.copies], now)
        if spared:
            found = _found(backup, points, now)
        _remove_unfinished(backup, points, now, say)
        for point, copies in found.copies:
            _remove(points, point, open_store(backup.target_of(point.day)), copies, still, say)
    return replace(found.swept, spared=tuple(dict.fromkeys((*found.swept.spared, *spared))))


@dataclass(frozen=True)
class _Found:
    """Points to remove, each with the copies (columns COPY) that go with it: a copy is with one point only."""

    copies: tuple[tuple[Point, pa.Table], ...]
    spared: tuple[str, ...]

    @property
    def swept(self) -> Swept:
        tables = [copies for _, copies in self.copies]
        return Swept(
            days=tuple(sorted(point.day for point, _ in self.copies)),
            objects=sum(copies.num_rows for copies in tables),
            size_bytes=sum(pc.sum(copies["size_bytes"]).as_py() or 0 for copies in tables),
            spared=self.spared,
        )


def _found(backup: Backup, points: Points, now: dt.datetime) -> _Found:
    finished, damaged = points.readable()
    unknown = [str(error) for error in damaged]
    chosen, spared = _chosen(backup, points, finished, now)
    begun = _begun(points, unknown)
    gone = {point.day for point in (*begun, *chosen)}
    if backup.layout == "incremental":
        unknown += _unreadable(points, [point for point in finished if point.day not in gone])
        if unknown:
            # What such a point holds nobody can tell, so no copy is known to be needed by none.
            return _Found((), (*spared, *(f"Nothing is removed: {said}" for said in unknown)))
    spared += unknown
    # A point that does not tell which copies are its own keeps them, and its record.
    held_back = _unreadable(points, [*begun, *chosen])
    spared += held_back
    going = [
        point for point in (*begun, *chosen) if not any(f"point {point.day}:" in said for said in held_back)
    ]
    gone = {point.day for point in going}
    kept = [point for point in finished if point.day not in gone]
    copies = [_copies(points, point, kept, backup.layout) for point in going]
    if backup.layout == "incremental":
        copies = _once(copies)
    return _Found(tuple(zip(going, copies, strict=True)), tuple(spared))


def _chosen(
    backup: Backup, points: Points, finished: Sequence[Point], now: dt.datetime
) -> tuple[list[Point], list[str]]:
    """The points to remove, and why others that retention does not keep stay."""
    kept = kept_days([Kept.of(point) for point in finished], backup.retention)
    building = needed_by_making(points, finished)
    going, spared = [], []
    for point in finished:
        if point.day in kept:
            continue
        if reason := _held_back(points, point, building, now):
            spared.append(f"{point.day} stays: {reason}")
        else:
            going.append(point)
    return going, spared


def _held_back(points: Points, point: Point, building: dict[str, str], now: dt.datetime) -> str | None:
    try:
        locked = locked_until(points, point)
    except DamagedRecord as error:
        return f"{error.reason}, so that it may be locked."
    if locked is not None and locked > now:
        return f"it is locked until {locked:%Y-%m-%d}."
    if point.day in building:
        return f"{building[point.day]} is being made and builds on it."
    if who := readers(points, point.day, now):
        return f"{', '.join(who)} reads it."
    return None


def _mark(points: Points, going: Sequence[Point], now: dt.datetime) -> list[str]:
    """Take each point out of the list, so that nobody begins to read it; but for those that somebody just began."""
    spared = []
    for point in going:
        folder = points.folder(point.day)
        points.store.put(f"{folder}{SWEPT}", point.model_dump_json(indent=1).encode())
        if who := readers(points, point.day, now):
            points.store.delete(f"{folder}{SWEPT}")
            spared.append(f"{point.day} stays: {', '.join(who)} reads it.")
        else:
            points.store.delete(f"{folder}point.json")
    return spared


def _unreadable(points: Points, of: Sequence[Point]) -> list[str]:
    """Sentences about points whose rows of what they hold cannot be read."""
    said = []
    for point in of:
        try:
            for _ in points.held(point, COPY):
                pass
        except DamagedRecord as error:
            said.append(str(error))
    return said


def _begun(points: Points, unknown: list[str]) -> list[Point]:
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


def _copies(points: Points, point: Point, kept: Sequence[Point], layout: str) -> pa.Table:
    """The copies of a point that no kept point has: columns COPY."""
    batches = list(points.held(point, COPY))
    if not batches:
        return pa.table({name: pa.array([], pa.string()) for name in COPY}).cast(_copy_schema())
    copies = pa.Table.from_batches(batches).select(COPY).cast(_copy_schema())
    for other in kept if layout == "incremental" else ():
        for held in points.held(other, COPY[:2]):
            copies = copies.filter(pc.invert(pc.is_in(_names(copies), _names(held))))
    return copies


def _once(found: Sequence[pa.Table]) -> list[pa.Table]:
    """The same with each copy once, though several points of those that go may have it."""
    apart: list[pa.Table] = []
    for rows in found:
        for earlier in apart:
            rows = rows.filter(pc.invert(pc.is_in(_names(rows), _names(earlier))))
        apart.append(rows)
    return apart


def _require_told_apart(backup: Backup, points: Points, found: _Found) -> None:
    making = days_being_made(points)
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
    say: Say,
) -> None:
    """Remove a point's copies, then all that is left of the point."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for start in range(0, copies.num_rows, PORTION):
            rows = copies.slice(start, PORTION).to_pylist()
            list(pool.map(lambda row: store.delete(row["stored_key"], row["stored_version_id"]), rows))
            still()
            say(f"{point.day}: removed {start + len(rows):,} of {copies.num_rows:,} copies")
    folder = points.folder(point.day)
    last = f"{folder}{SWEPT}"
    own = [one.key for one in points.store.list(folder) if one.key != last]
    for key in [*own, last]:
        points.store.delete(key)


def _remove_unfinished(backup: Backup, points: Points, now: dt.datetime, say: Say) -> None:
    """Remove what killed copies into folders left behind."""
    places = {points.store.address.url, *(backup.target_of(day).url for day in points.days())}
    for place in sorted(place for place in places if place.startswith("/")):
        removed = remove_unfinished(Path(place), now - WRITTEN_FOR)
        if removed:
            say(f"{place}: removed {removed:,} unfinished files of copies that were killed")


def _names(rows: pa.Table | pa.RecordBatch) -> pa.Array:
    """One text for a copy: its key, and its version where there is one."""
    versions = pc.fill_null(rows["stored_version_id"], "")
    return pc.binary_join_element_wise(rows["stored_key"], versions, "\0")


def _copy_schema() -> pa.Schema:
    return pa.schema(
        [("stored_key", pa.string()), ("stored_version_id", pa.string()), ("size_bytes", pa.int64())]
    )
