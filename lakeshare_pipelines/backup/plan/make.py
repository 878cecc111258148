"""The plan of a day: cut the listing, find its tables, compare with the point before, place, estimate, bound.

Memory is bounded by what changed, not by what there is; rows wait in the workspace between the passes.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.plan.cut import Cut
from lakeshare_pipelines.backup.plan.difference import GONE, write_difference
from lakeshare_pipelines.backup.plan.estimate import Tally, estimated, require_within_bounds
from lakeshare_pipelines.backup.plan.lanes import lanes_of
from lakeshare_pipelines.backup.plan.places import Places, places_of, taken
from lakeshare_pipelines.backup.plan.races import LogFiles, races
from lakeshare_pipelines.backup.plan.tables import Format, Roots, TableRoots
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import ListingRecord, PlanRecord, Point
from lakeshare_pipelines.backup.rows import HELD, LISTING, PLAN, read_rows, write_rows
from lakeshare_pipelines.backup.stores import open_store
from lakeshare_pipelines.backup.workspace import Workspace, end_of
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSpark = Callable[[], "SparkSession"]
Say = Callable[[str], None]

BETWEEN = ("cut", "before", "followed", "fresh", "gone")
"""Folders of rows that only the passes of a plan need."""


def make_plan(
    backup: Backup,
    workspace: Workspace,
    listing: ListingRecord,
    points: Points,
    day: str,
    spark: OpenSpark | None = None,
) -> PlanRecord:
    """Write rows of schema PLAN into the workspace's folder `plan`: what a point of the day will hold.

    Spark is opened only where there are millions of rows.

    Raises:
        BackupError: the plan is beyond the backup's bounds; or there is no listing, or nothing in it.
    """
    plan = draw_plan(backup, workspace, listing, points, day, spark)
    require_within_bounds(backup, day, plan.estimate)
    return plan


def draw_plan(
    backup: Backup,
    workspace: Workspace,
    listing: ListingRecord,
    points: Points,
    day: str,
    spark: OpenSpark | None = None,
    say: Say = lambda sentence: None,
) -> PlanRecord:
    """The same, whatever its bounds.

    Raises:
        BackupError: there is no listing, or nothing in it that belongs to the day.
    """
    drawing = _Drawing(backup, workspace, listing, points, day, spark, say)
    try:
        return drawing.plan()
    finally:
        for name in BETWEEN:
            workspace.clear(name)


@dataclass
class _Drawing:
    backup: Backup
    workspace: Workspace
    listing: ListingRecord
    points: Points
    day: str
    spark: OpenSpark | None
    say: Say

    def plan(self) -> PlanRecord:
        cut, found, logs = Cut(self.backup, end_of(self.day)), TableRoots(), LogFiles()
        self.say("cutting the listing at the day's end")
        rows = write_rows(self.workspace.clear("cut"), LISTING, self._cut(cut, found, logs))
        self._require_some(rows, cut)
        tables = found.tables()
        places, previous = self._places(Roots(tables))
        self.say(f"{rows:,} objects, {len(tables):,} tables; comparing with the point before")
        fresh = self._compare(previous, tables)
        self._move(places, fresh, previous)
        tally, prefixes = Tally(self.backup.copy_limit_bytes), set[str]()
        write_rows(self.workspace.clear("plan"), PLAN, self._counted(places, fresh, tally, prefixes))
        estimate = estimated(self.backup, tally, self.listing, len(prefixes), previous)
        return PlanRecord(
            day=self.day,
            as_of=cut.as_of,
            previous=None if previous is None else previous.day,
            tables=places.found(self.backup.source.bucket, tables),
            estimate=estimate,
            left_out=dict(cut.left_out),
            warnings=(*found.warnings(), *_moves(places), *self._races(tables, logs, estimate.minutes)),
        )

    def _cut(self, cut: Cut, found: TableRoots, logs: LogFiles) -> Iterator[pa.RecordBatch]:
        folder = self.workspace.rows("listing")
        for batch in cut.kept(lambda: read_rows(folder), has_versions=self.listing.has_versions):
            found.look_at(batch["key"])
            logs.look_at(batch)
            yield batch

    def _races(self, tables: dict[str, Format], logs: LogFiles, minutes: float) -> list[str]:
        if self.listing.has_versions:
            return []  # What is removed meanwhile is there as an older version.
        self.say("asking how long tables keep removed files")
        return races(self.backup, open_store(self.backup.source), tables, logs, minutes)

    def _require_some(self, rows: int, cut: Cut) -> None:
        if rows:
            return
        why = ", ".join(f"{count:,} {reason}" for reason, count in cut.left_out.items()) or "it is empty"
        raise BackupError(
            f"backup {self.backup.name}, point {self.day}",
            f"nothing in the listing belongs to it ({why})",
            "Look whether the listing is of the right store and day: an empty point would be of no use.",
        )

    def _places(self, roots: Roots) -> tuple[Places, Point | None]:
        previous = None
        if self.backup.layout == "incremental":
            previous = self.points.latest(before=self.day)
        return places_of(self.backup, self.day, roots, previous), previous

    def _compare(self, previous: Point | None, tables: Collection[str]) -> Path:
        """Leave keys that are held and no more in `gone`; returns the folder of rows of LISTING that are new."""
        work = self.workspace
        held = () if previous is None else self.points.held(previous)
        followed: list[pa.RecordBatch] = []
        write_rows(work.clear("before"), HELD, self._of_source(held, followed))
        write_rows(work.clear("followed"), HELD, self._still_followed(followed, tables))
        gone = work.clear("gone")
        if previous is None:
            write_rows(gone, GONE, ())
            return work.rows("cut")
        fresh = work.clear("fresh")
        write_difference(work.rows("cut"), work.rows("before"), fresh, gone, self.spark)
        return fresh

    def _of_source(
        self, held: Iterable[pa.RecordBatch], followed: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for batch in held:
            is_ours = pc.equal(batch["bucket"], self.backup.source.bucket)
            yield batch.filter(is_ours)
            if not pc.all(is_ours).as_py():
                followed.append(batch.filter(pc.invert(is_ours)))

    def _still_followed(
        self, followed: Iterable[pa.RecordBatch], tables: Collection[str]
    ) -> Iterator[pa.RecordBatch]:
        """What tables had outside the source, of tables that are still there: no listing tells of it."""
        for batch in followed if self.backup.external == "follow" else ():
            yield batch.filter(pc.is_in(batch["table_root"], pa.array(sorted(tables), pa.string())))

    def _move(self, places: Places, fresh: Path, previous: Point | None) -> None:
        """Let move what would be copied over what a point holds, or would come to lie apart from its table."""
        if self.backup.layout == "dated":
            return
        was = self._gone_keys()
        for batch in read_rows(fresh, ["key"]):
            places.move(batch["key"].filter(pc.is_in(batch["key"], was)))
        for batch in self._same():
            places.move(places.misplaced(batch["key"], batch["stored_key"]))
        days = [day for day in self.points.days() if previous is None or day != previous.day]
        if days:
            self.say(f"comparing with {len(days)} more points, so that nothing they hold is copied over")
            wanted = [_wanted(batch, places) for batch in read_rows(fresh, ["key", "etag", "size_bytes"])]
            if wanted:
                places.move(taken(self.points, days, pa.concat_tables(wanted)))

    def _counted(
        self, places: Places, fresh: Path, tally: Tally, prefixes: set[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._planned(places, fresh):
            tally.add(batch)
            copied = batch.filter(pc.not_equal(batch["lane"], "held"))["key"]
            prefixes.update(pc.unique(places.prefixes(copied)).to_pylist())
            yield batch

    def _planned(self, places: Places, fresh: Path) -> Iterator[pa.RecordBatch]:
        for batch in self._same():
            stays = batch.filter(pc.invert(places.is_moved(batch["key"])))
            yield _held(stays, places.roots.nearest(stays["key"]))
        for batch in read_rows(self.workspace.rows("followed")):
            yield _held(batch, batch["table_root"])
        for batch in read_rows(fresh):
            yield self._to_copy(batch.filter(pc.invert(places.is_moved(batch["key"]))), places)
        for batch in read_rows(self.workspace.rows("cut")) if places.moved else ():
            yield self._to_copy(batch.filter(places.is_moved(batch["key"])), places)

    def _same(self) -> Iterator[pa.RecordBatch]:
        """Rows of HELD that the listing has too."""
        gone = self._gone_keys()
        for batch in read_rows(self.workspace.rows("before")):
            yield batch.filter(pc.invert(pc.is_in(batch["key"], gone)))

    def _gone_keys(self) -> pa.Array:
        keys = [batch["key"] for batch in read_rows(self.workspace.rows("gone"), ["key"])]
        return pa.chunked_array(keys, pa.string()).combine_chunks()

    def _to_copy(self, objects: pa.RecordBatch, places: Places) -> pa.RecordBatch:
        return _plan_rows(
            objects,
            lane=lanes_of(objects, self.backup.copy_limit_bytes),
            stored_key=places.stored_keys(objects["key"]),
            table_root=places.roots.nearest(objects["key"]),
            first_point=pa.repeat(pa.scalar(self.day), objects.num_rows),
        )


def _held(rows: pa.RecordBatch, table_root: pa.Array) -> pa.RecordBatch:
    count = rows.num_rows
    return _plan_rows(
        rows,
        lane=pa.repeat(pa.scalar("held"), count),
        table_root=table_root,
        is_latest=pa.repeat(pa.scalar(True), count),
        is_delete_marker=pa.repeat(pa.scalar(False), count),
    )


def _plan_rows(rows: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    """Rows of schema PLAN of these columns, those that `rows` has, and nulls."""
    had = {name: rows[name] for name in rows.schema.names} | columns
    nulls = pa.nulls(rows.num_rows)
    return pa.record_batch([had.get(one.name, nulls).cast(one.type) for one in PLAN], PLAN)


def _wanted(fresh: pa.RecordBatch, places: Places) -> pa.Table:
    rows = fresh.filter(pc.invert(places.is_moved(fresh["key"])))
    return pa.table(
        {
            "key": rows["key"],
            "stored_key": places.stored_keys(rows["key"]),
            "etag": rows["etag"],
            "size_bytes": rows["size_bytes"],
        }
    )


def _moves(places: Places) -> list[str]:
    """What people should know of what is copied again."""
    if not places.moved:
        return []
    named = ", ".join(sorted(places.moved)[:3])
    more = f" and {len(places.moved) - 3} more" if len(places.moved) > 3 else ""
    return [
        f"{named}{more}: files of the same name are others than at an earlier point, as of a table that was dropped "
        f"and made anew; all of it is copied to {places.remade}, and the earlier point stays as it is."
    ]
