"""The plan of a day: cut the listing, find its tables, compare with the point before, place, estimate, bound.

Memory is bounded by what changed, not by what there is; rows wait in the workspace between the passes.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import GIB, Backup
from lakeshare_pipelines.backup.model import (
    LANES,
    LISTING,
    PLAN,
    POINT_COPIES,
    CopyRecord,
    Estimate,
    ListingRecord,
    PlanRecord,
    Point,
    read_rows,
    write_rows,
)
from lakeshare_pipelines.backup.plan_tables import (
    Format,
    ListingCut,
    LogFiles,
    RootIndex,
    StoredKeys,
    TableRoots,
    find_retention_races,
    find_taken_keys,
    make_stored_keys,
)
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import open_store
from lakeshare_pipelines.backup.stores.store import FOLDER
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ARCHIVE_CLASSES = ("GLACIER", "DEEP_ARCHIVE")
"""Storage classes that cannot be read before they are thawed; GLACIER_IR can."""


def assign_lanes(objects: pa.RecordBatch, copy_limit_bytes: int) -> pa.Array:
    """The lane of each row of schema LISTING that is to be copied.

    An archived object may be above the limit of one copy request as well.
    """
    is_archived = pc.is_in(objects["storage_class"], pa.array(ARCHIVE_CLASSES))
    is_large = pc.fill_null(pc.greater(objects["size_bytes"], copy_limit_bytes), False)
    return pc.if_else(is_archived, "archived", pc.if_else(is_large, "large", "small"))


PART_BYTES = 64 * 1024**2
"""Size of a part, where the source's own parts are not known yet; never more than 10,000 parts."""
MAX_PARTS = 10_000
AROUND_PARTS = 3
"""Requests around the parts: HEAD, CreateMultipartUpload, CompleteMultipartUpload."""

MILLION = 1_000_000
S3_COPY_S = 0.05
"""How long one copy request of a small object takes, where nothing was measured yet."""
S3_COPIES_A_S = 3_500
"""Copies that S3 takes a second below one prefix."""
S3_BYTES_A_S = 40 * 1024**2
"""Bytes a second of one request that copies inside a store."""
LOCAL_FILES_A_S = 500
LOCAL_BYTES_A_S = 150 * 1024**2
"""Of copies through this host, from or to a folder or between two endpoints."""
MEASURED_OBJECTS = 1_000
"""An earlier copy of so many objects tells more than the figures above."""


@dataclass
class Tally:
    """Sums over the rows of a plan, batch by batch."""

    copy_limit_bytes: int
    objects: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    part_requests: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Count rows of schema PLAN."""
        sums = pa.table({"lane": rows["lane"], "size": rows["size_bytes"]}).group_by("lane")
        for one in sums.aggregate([("size", "sum"), ("lane", "count")]).to_pylist():
            self.objects[one["lane"]] += one["lane_count"]
            self.size_bytes[one["lane"]] += one["size_sum"] or 0
        copied = rows.filter(pc.not_equal(rows["lane"], "held"))
        sizes = copied["size_bytes"]
        sizes = sizes.filter(pc.greater(sizes, self.copy_limit_bytes))
        parts = pc.ceil(pc.divide(pc.cast(sizes, pa.float64()), PART_BYTES))
        parts = pc.min_element_wise(parts, MAX_PARTS)
        self.part_requests += int(pc.sum(parts).as_py() or 0) + AROUND_PARTS * len(parts) - len(parts)

    @property
    def copied(self) -> int:
        """Objects to copy."""
        return self.objects.total() - self.objects["held"]

    @property
    def copied_bytes(self) -> int:
        """Their bytes."""
        return self.size_bytes.total() - self.size_bytes["held"]

    @property
    def requests(self) -> int:
        """A copy each, parts of large ones, and a request to thaw each archived one."""
        return self.copied + self.part_requests + self.objects["archived"]


def estimate_plan(
    backup: Backup, tally: Tally, listing: ListingRecord, jobs: int, previous: Point | None
) -> Estimate:
    """The estimate of a plan; `jobs` is how many stored prefixes there are, each a Batch Operations job."""
    return Estimate(
        objects=tally.copied,
        size_bytes=tally.copied_bytes,
        held_objects=tally.objects["held"],
        held_bytes=tally.size_bytes["held"],
        requests=tally.requests,
        usd=round(_estimate_usd(backup, tally, listing, jobs), 4),
        minutes=round(_estimate_minutes(backup, tally, None if previous is None else previous.copied), 2),
        by_lane={lane: tally.objects[lane] for lane in LANES if tally.objects[lane]},
    )


def require_within_bounds(backup: Backup, day: str, estimate: Estimate) -> None:
    """Refuse a plan that is beyond what the backup allows.

    Raises:
        BackupError: it names each bound with what the plan takes.
    """
    takes = {
        "objects": estimate.objects,
        "bytes": estimate.size_bytes,
        "usd": estimate.usd,
        "minutes": estimate.minutes,
    }
    beyond = [
        f"{takes[name]:,} {name} where {most:,} are allowed"
        for name, most in backup.bounds
        if most is not None and takes[name] > most
    ]
    if beyond:
        raise BackupError(
            f"backup {backup.name}, point {day}",
            f"its plan takes {', '.join(beyond)}; nothing was copied",
            f"Look at it with `lakeshare backup plan {backup.name} --day {day}`, then raise `bounds`, or back up less.",
        )


def estimate_usd_per_month(backup: Backup, estimate: Estimate) -> float:
    """What keeping the new copies costs a month."""
    is_paid = backup.target.kind != FOLDER
    return estimate.size_bytes / GIB * backup.prices.per_gib_month if is_paid else 0.0


def _estimate_usd(backup: Backup, tally: Tally, listing: ListingRecord, jobs: int) -> float:
    if backup.source.kind == backup.target.kind == FOLDER:
        return 0.0
    prices, usd = backup.prices, 0.0
    if backup.target.kind != FOLDER:
        usd += tally.requests / MILLION * prices.per_million_copies
    usd += tally.copied_bytes / GIB * prices.per_gib_transferred
    usd += tally.size_bytes["archived"] / GIB * prices.per_gib_thawed
    if listing.kind == "s3_inventory":
        usd += listing.rows / MILLION * prices.per_million_listed
    if backup.engine == "aws_batch" and tally.copied:
        usd += tally.copied / MILLION * prices.per_million_tasks + jobs * prices.per_job
    return usd


def _estimate_minutes(backup: Backup, tally: Tally, before: CopyRecord | None) -> float:
    """The slower of the two: requests, and bytes. Thawing takes hours by itself and is not in it."""
    if before is not None and before.succeeded >= MEASURED_OBJECTS and before.seconds > 0:
        requests_a_s = before.succeeded / before.seconds
        bytes_a_s = max(before.size_bytes / before.seconds, 1.0)
    elif _is_inside_one_store(backup):
        requests_a_s = min(backup.in_flight / S3_COPY_S, S3_COPIES_A_S)
        bytes_a_s = float(backup.in_flight * S3_BYTES_A_S)
    else:
        requests_a_s, bytes_a_s = float(LOCAL_FILES_A_S), float(LOCAL_BYTES_A_S)
    return max(tally.requests / requests_a_s, tally.copied_bytes / bytes_a_s) / 60


def _is_inside_one_store(backup: Backup) -> bool:
    return (
        backup.source.kind == backup.target.kind != FOLDER
        and backup.source.endpoint == backup.target.endpoint
    )


SPARK_FROM_ROWS = 60_000_000
"""Both sides together: from there on the join spills most of them; below, starting Spark takes longer than it saves."""
MEMORY_BYTES = 4 * 1024**3
"""Enough for ten million rows on each side without spilling; at most half of what is free is taken."""
ROWS_AT_ONCE = 100_000
BROADCAST_ROWS = 3_000_000
GONE = pa.schema([POINT_COPIES.field("key")])
LISTED, STORED = 1, 2
BOTH = LISTED | STORED

OpenSpark = Callable[[], "SparkSession"]


def write_difference(
    listed: Path, stored: Path, fresh: Path, gone: Path, spark: OpenSpark | None = None
) -> None:
    """Write rows of LISTING that are not held into `fresh`, keys of HELD that are not listed into `gone`.

    A key that changed is in both. What has no ETag is never the same as anything. All four are folders of rows;
    a key is once in `listed` and once in `held`. With Spark, the folders must be where its executors can reach them.
    """
    if spark is not None and _rows(listed) + _rows(stored) >= SPARK_FROM_ROWS:
        write_difference_by_spark(listed, stored, fresh, gone, spark())
    else:
        write_difference_by_duckdb(listed, stored, fresh, gone)


def write_difference_by_duckdb(listed: Path, stored: Path, fresh: Path, gone: Path) -> None:
    """The difference by one full join of both sides; rows come in order of their keys."""
    memory = min(MEMORY_BYTES, psutil.virtual_memory().available // 2)
    with TemporaryDirectory(dir=fresh.parent, prefix=".spilled-") as spilled, duckdb.connect() as on:
        on.execute("SET memory_limit = ?", [f"{memory}B"])
        on.execute("SET temp_directory = ?", [spilled])
        for side, folder in (("listed", listed), ("held", stored)):
            on.read_parquet([str(path) for path in sorted(folder.glob("*.parquet"))]).create_view(side)
        # A missing ETag equals none, so that its row is in neither of two.
        on.execute(
            "CREATE TEMP TABLE odd AS SELECT l.*, h.key AS gone FROM listed l FULL JOIN held h "
            "ON l.key = h.key AND l.etag = h.etag AND l.size_bytes IS NOT DISTINCT FROM h.size_bytes "
            "WHERE l.key IS NULL OR h.key IS NULL"
        )
        for into, schema, rows in (
            (fresh, LISTING, "SELECT * EXCLUDE (gone) FROM odd WHERE key IS NOT NULL ORDER BY key"),
            (gone, GONE, "SELECT gone AS key FROM odd WHERE gone IS NOT NULL ORDER BY gone"),
        ):
            write_rows(into, schema, on.sql(rows).to_arrow_reader(ROWS_AT_ONCE))


def write_difference_by_spark(
    listed: Path, stored: Path, fresh: Path, gone: Path, spark: "SparkSession"
) -> None:
    """The difference by one hash aggregate over both sides, then the few odd rows fetched by their hashes.

    128 bits of hash stand for a row: among 100 million rows no two are taken for each other, but once in 10^22 runs.
    Nothing is sorted, and no key is shuffled.
    """
    from pyspark.sql import functions as sql

    ours = _add_hashes(spark.read.parquet(str(listed)), "listed")
    theirs = _add_hashes(spark.read.parquet(str(stored)), "held")
    sides = ours.select("h1", "h2", sql.lit(LISTED).alias("side")).unionAll(
        theirs.select("h1", "h2", sql.lit(STORED).alias("side"))
    )
    odd = sides.groupBy("h1", "h2").agg(sql.bit_or("side").alias("side")).where(sql.col("side") != BOTH)
    odd = odd.persist()
    try:
        hint = "broadcast" if odd.count() <= BROADCAST_ROWS else "shuffle_hash"
        for rows, side, schema, into in ((ours, LISTED, LISTING, fresh), (theirs, STORED, GONE, gone)):
            those = odd.where(sql.col("side") == side).select("h1", "h2").hint(hint)
            _write(rows.join(those, ["h1", "h2"], "left_semi"), schema, into)
    finally:
        odd.unpersist()


def _add_hashes(rows: "DataFrame", side: str) -> "DataFrame":
    """With two independent hashes of what makes rows the same."""
    from pyspark.sql import functions as sql

    same: list[Column] = [
        sql.col("key"),
        # A missing ETag is another on each side.
        sql.coalesce(sql.col("etag"), sql.lit(f"\0{side}")),
        sql.col("size_bytes"),
    ]
    return rows.select("*", sql.xxhash64(*same).alias("h1"), sql.xxhash64(sql.lit(1), *same).alias("h2"))


def _write(rows: "DataFrame", schema: pa.Schema, into: Path) -> None:
    """Write rows as the other form does; times go as milliseconds, for Spark's own have another unit."""
    from pyspark.sql import functions as sql

    columns = [
        sql.unix_millis(name).alias(name) if pa.types.is_timestamp(schema.field(name).type) else sql.col(name)
        for name in schema.names
    ]
    raw = into.with_name(f".{into.name}.spark")
    rows.select(*columns).write.mode("overwrite").parquet(str(raw))
    found = pq.ParquetDataset(raw).fragments
    write_rows(into, schema, (batch for one in found for batch in one.to_batches()))
    for path in (*raw.iterdir(), raw):
        path.rmdir() if path.is_dir() else path.unlink()


def _rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


ReportMessage = Callable[[str], None]

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
    plan = draft_plan(backup, workspace, listing, points, day, spark)
    require_within_bounds(backup, day, plan.estimate)
    return plan


def draft_plan(
    backup: Backup,
    workspace: Workspace,
    listing: ListingRecord,
    points: Points,
    day: str,
    spark: OpenSpark | None = None,
    report_message: ReportMessage = lambda sentence: None,
) -> PlanRecord:
    """The same, whatever its bounds.

    Raises:
        BackupError: there is no listing, or nothing in it that belongs to the day.
    """
    drawing = _PlanDraft(backup, workspace, listing, points, day, spark, report_message)
    try:
        return drawing.plan()
    finally:
        for name in BETWEEN:
            workspace.clear(name)


@dataclass
class _PlanDraft:
    backup: Backup
    workspace: Workspace
    listing: ListingRecord
    points: Points
    day: str
    spark: OpenSpark | None
    report_message: ReportMessage

    def plan(self) -> PlanRecord:
        cut, found, logs = ListingCut(self.backup, get_point_time(self.day)), TableRoots(), LogFiles()
        self.report_message("cutting the listing at the day's end")
        rows = write_rows(self.workspace.clear("cut"), LISTING, self._cut(cut, found, logs))
        self._require_some(rows, cut)
        tables = found.tables()
        places, previous = self._places(RootIndex(tables))
        self.report_message(f"{rows:,} objects, {len(tables):,} tables; comparing with the point before")
        fresh = self._compare(previous, tables)
        self._move(places, fresh, previous)
        tally, prefixes = Tally(self.backup.copy_limit_bytes), set[str]()
        write_rows(self.workspace.clear("plan"), PLAN, self._counted(places, fresh, tally, prefixes))
        estimate = estimate_plan(self.backup, tally, self.listing, len(prefixes), previous)
        return PlanRecord(
            day=self.day,
            as_of=cut.as_of,
            previous=None if previous is None else previous.day,
            tables=places.found(self.backup.source.bucket, tables),
            estimate=estimate,
            left_out=dict(cut.left_out),
            warnings=(
                *found.warnings(),
                *_describe_moves(places),
                *self._races(tables, logs, estimate.minutes),
            ),
        )

    def _cut(self, cut: ListingCut, found: TableRoots, logs: LogFiles) -> Iterator[pa.RecordBatch]:
        folder = self.workspace.rows("listing")
        for batch in cut.select_rows(lambda: read_rows(folder), has_versions=self.listing.has_versions):
            found.look_at(batch["key"])
            logs.look_at(batch)
            yield batch

    def _races(self, tables: dict[str, Format], logs: LogFiles, minutes: float) -> list[str]:
        if self.listing.has_versions:
            return []  # What is removed meanwhile is there as an older version.
        self.report_message("asking how long tables keep removed files")
        return find_retention_races(self.backup, open_store(self.backup.source), tables, logs, minutes)

    def _require_some(self, rows: int, cut: ListingCut) -> None:
        if rows:
            return
        why = ", ".join(f"{count:,} {reason}" for reason, count in cut.left_out.items()) or "it is empty"
        raise BackupError(
            f"backup {self.backup.name}, point {self.day}",
            f"nothing in the listing belongs to it ({why})",
            "Look whether the listing is of the right store and day: an empty point would be of no use.",
        )

    def _places(self, roots: RootIndex) -> tuple[StoredKeys, Point | None]:
        previous = None
        if self.backup.layout == "incremental":
            previous = self.points.latest(before=self.day)
        return make_stored_keys(self.backup, self.day, roots, previous), previous

    def _compare(self, previous: Point | None, tables: Collection[str]) -> Path:
        """Leave keys that are held and no more in `gone`; returns the folder of rows of LISTING that are new."""
        work = self.workspace
        point_copies = () if previous is None else self.points.read_copies(previous)
        followed: list[pa.RecordBatch] = []
        write_rows(work.clear("before"), POINT_COPIES, self._of_source(point_copies, followed))
        write_rows(work.clear("followed"), POINT_COPIES, self._still_followed(followed, tables))
        gone = work.clear("gone")
        if previous is None:
            write_rows(gone, GONE, ())
            return work.rows("cut")
        fresh = work.clear("fresh")
        write_difference(work.rows("cut"), work.rows("before"), fresh, gone, self.spark)
        return fresh

    def _of_source(
        self, point_copies: Iterable[pa.RecordBatch], followed: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        for batch in point_copies:
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

    def _move(self, places: StoredKeys, fresh: Path, previous: Point | None) -> None:
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
            self.report_message(
                f"comparing with {len(days)} more points, so that nothing they hold is copied over"
            )
            wanted = [
                _read_rows_to_copy(batch, places) for batch in read_rows(fresh, ["key", "etag", "size_bytes"])
            ]
            if wanted:
                places.move(find_taken_keys(self.points, days, pa.concat_tables(wanted)))

    def _counted(
        self, places: StoredKeys, fresh: Path, tally: Tally, prefixes: set[str]
    ) -> Iterator[pa.RecordBatch]:
        for batch in self._planned(places, fresh):
            tally.add(batch)
            copied = batch.filter(pc.not_equal(batch["lane"], "held"))["key"]
            prefixes.update(pc.unique(places.prefixes(copied)).to_pylist())
            yield batch

    def _planned(self, places: StoredKeys, fresh: Path) -> Iterator[pa.RecordBatch]:
        for batch in self._same():
            stays = batch.filter(pc.invert(places.is_moved(batch["key"])))
            yield _make_held_rows(stays, places.roots.nearest(stays["key"]))
        for batch in read_rows(self.workspace.rows("followed")):
            yield _make_held_rows(batch, batch["table_root"])
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

    def _to_copy(self, objects: pa.RecordBatch, places: StoredKeys) -> pa.RecordBatch:
        return _plan_rows(
            objects,
            lane=assign_lanes(objects, self.backup.copy_limit_bytes),
            stored_key=places.stored_keys(objects["key"]),
            table_root=places.roots.nearest(objects["key"]),
            first_point=pa.repeat(pa.scalar(self.day), objects.num_rows),
        )


def _make_held_rows(rows: pa.RecordBatch, table_root: pa.Array) -> pa.RecordBatch:
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


def _read_rows_to_copy(fresh: pa.RecordBatch, places: StoredKeys) -> pa.Table:
    rows = fresh.filter(pc.invert(places.is_moved(fresh["key"])))
    return pa.table(
        {
            "key": rows["key"],
            "stored_key": places.stored_keys(rows["key"]),
            "etag": rows["etag"],
            "size_bytes": rows["size_bytes"],
        }
    )


def _describe_moves(places: StoredKeys) -> list[str]:
    """What people should know of what is copied again."""
    if not places.moved:
        return []
    named = ", ".join(sorted(places.moved)[:3])
    more = f" and {len(places.moved) - 3} more" if len(places.moved) > 3 else ""
    return [
        f"{named}{more}: files of the same name are others than at an earlier point, as of a table that was dropped "
        f"and made anew; all of it is copied to {places.remade}, and the earlier point stays as it is."
    ]
