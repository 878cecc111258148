"""The plan of a day: cut the listing, find its tables, compare with the previous point, assign stored keys, estimate.

Memory is bounded by the changes, not by the size of the source; rows are in the workspace between the passes.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup import model, plan_tables
from lakeshare_pipelines.backup.config import GIB, Backup
from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time
from lakeshare_pipelines.backup.stores import FOLDER, open_store
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PART_BYTES = 64 * 1024**2  # Assumed size of a part; never more than 10,000 parts
MAX_PARTS = 10_000
AROUND_PARTS = 3  # Requests besides the parts: HEAD, CreateMultipartUpload, CompleteMultipartUpload

MILLION = 1_000_000
S3_COPY_S = 0.05  # Assumed duration of one copy request of a small object
S3_COPIES_A_S = 3_500  # Copies per second that S3 accepts below one prefix
S3_BYTES_A_S = 40 * 1024**2  # Bytes per second of one request that copies inside a store
LOCAL_FILES_A_S = 500
LOCAL_BYTES_A_S = 150 * 1024**2  # For copies through this host, from or to a folder or between two endpoints
MEASURED_OBJECTS = 1_000  # The speed of an earlier copy of so many objects replaces the assumptions above


@dataclass
class Tally:
    copy_limit_bytes: int
    objects: Counter[str] = field(default_factory=Counter)
    size_bytes: Counter[str] = field(default_factory=Counter)
    part_requests: int = 0

    def add(self, rows: pa.RecordBatch) -> None:
        sums = pa.table({"lane": rows["lane"], "size": rows["size_bytes"]}).group_by("lane")
        for row in sums.aggregate([("size", "sum"), ("lane", "count")]).to_pylist():
            self.objects[row["lane"]] += row["lane_count"]
            self.size_bytes[row["lane"]] += row["size_sum"] or 0
        sizes = rows.filter(pc.not_equal(rows["lane"], "held"))["size_bytes"]
        sizes = sizes.filter(pc.greater(sizes, self.copy_limit_bytes))
        parts = pc.ceil(pc.divide(pc.cast(sizes, pa.float64()), PART_BYTES))
        parts = pc.min_element_wise(parts, MAX_PARTS)
        self.part_requests += int(pc.sum(parts).as_py() or 0) + AROUND_PARTS * len(parts) - len(parts)

    @property
    def copied(self) -> int:
        return self.objects.total() - self.objects["held"]

    @property
    def copied_bytes(self) -> int:
        return self.size_bytes.total() - self.size_bytes["held"]

    @property
    def requests(self) -> int:
        """One per copy, parts of large objects, and one to thaw each archived object."""
        return self.copied + self.part_requests + self.objects["archived"]


def require_within_bounds(backup: Backup, day: str, estimate: model.Estimate) -> None:
    """Raises BackupError with each bound that the plan exceeds."""
    amounts = (estimate.objects, estimate.size_bytes, estimate.usd, estimate.minutes)
    takes = dict(zip(("objects", "bytes", "usd", "minutes"), amounts, strict=True))
    beyond = [
        f"{takes[name]:,} {name} where {most:,} are allowed"
        for name, most in backup.bounds
        if most is not None and takes[name] > most
    ]
    if beyond:
        reason = f"its plan takes {', '.join(beyond)}; nothing was copied"
        fix = f"Check it with `lakeshare backup plan {backup.name} --day {day}`, then raise `bounds`, or back up less."
        raise BackupError(f"backup {backup.name}, point {day}", reason, fix)


def estimate_usd_per_month(backup: Backup, estimate: model.Estimate) -> float:
    is_paid = backup.target.kind != FOLDER
    return estimate.size_bytes / GIB * backup.prices.per_gib_month if is_paid else 0.0


def _estimate_usd(backup: Backup, tally: Tally, listing: model.ListingRecord, jobs: int) -> float:
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


def _estimate_minutes(backup: Backup, tally: Tally, previous: model.Point | None) -> float:
    """The longer of the times for requests and for bytes. Does not include thawing, which takes hours."""
    source, target = backup.source, backup.target
    before = None if previous is None else previous.copied
    if before is not None and before.succeeded >= MEASURED_OBJECTS and before.seconds > 0:
        requests_a_s = before.succeeded / before.seconds
        bytes_a_s = max(before.size_bytes / before.seconds, 1.0)
    elif source.kind == target.kind != FOLDER and source.endpoint == target.endpoint:
        requests_a_s = min(backup.in_flight / S3_COPY_S, S3_COPIES_A_S)
        bytes_a_s = float(backup.in_flight * S3_BYTES_A_S)
    else:
        requests_a_s, bytes_a_s = float(LOCAL_FILES_A_S), float(LOCAL_BYTES_A_S)
    return max(tally.requests / requests_a_s, tally.copied_bytes / bytes_a_s) / 60


SPARK_FROM_ROWS = 60_000_000
"""Rows of both sides. DuckDB's join of more rows spills most of them; with fewer, starting Spark takes too long."""
MEMORY_BYTES = 4 * 1024**3
"""Enough for ten million rows on each side without spilling; at most half of the free memory is used."""
ROWS_AT_ONCE = 100_000
BROADCAST_ROWS = 3_000_000
GONE = pa.schema([model.POINT_COPIES.field("key")])
LISTED, STORED = 1, 2
BOTH = LISTED | STORED


def write_difference(
    listed: Path, stored: Path, fresh: Path, gone: Path, spark: model.OpenSpark | None = None
) -> None:
    """Write rows of LISTING that are not stored into `fresh`, keys of POINT_COPIES that are not listed into `gone`.

    A changed key is in both; a row without ETag counts as changed. All four are folders of rows, with each key at
    most once in `listed` and in `stored`. Spark's executors must have access to the folders.
    """
    files = (path for side in (listed, stored) for path in side.glob("*.parquet"))
    if spark is not None and sum(pq.read_metadata(path).num_rows for path in files) >= SPARK_FROM_ROWS:
        write_difference_by_spark(listed, stored, fresh, gone, spark())
    else:
        write_difference_by_duckdb(listed, stored, fresh, gone)


def write_difference_by_duckdb(listed: Path, stored: Path, fresh: Path, gone: Path) -> None:
    """The difference by one full join of both sides; rows are ordered by key."""
    memory = min(MEMORY_BYTES, psutil.virtual_memory().available // 2)
    with TemporaryDirectory(dir=fresh.parent, prefix=".spilled-") as spilled, duckdb.connect() as database:
        database.execute("SET memory_limit = ?", [f"{memory}B"])
        database.execute("SET temp_directory = ?", [spilled])
        for side, folder in (("listed", listed), ("held", stored)):
            files = [str(path) for path in sorted(folder.glob("*.parquet"))]
            database.read_parquet(files).create_view(side)
        # A missing ETag equals no other: such rows are never in both sides.
        database.execute(
            "CREATE TEMP TABLE odd AS SELECT l.*, h.key AS gone FROM listed l FULL JOIN held h "
            "ON l.key = h.key AND l.etag = h.etag AND l.size_bytes IS NOT DISTINCT FROM h.size_bytes "
            "WHERE l.key IS NULL OR h.key IS NULL"
        )
        for into, schema, rows in (
            (fresh, model.LISTING, "SELECT * EXCLUDE (gone) FROM odd WHERE key IS NOT NULL ORDER BY key"),
            (gone, GONE, "SELECT gone AS key FROM odd WHERE gone IS NOT NULL ORDER BY gone"),
        ):
            model.write_rows(into, schema, database.sql(rows).to_arrow_reader(ROWS_AT_ONCE))


def write_difference_by_spark(
    listed: Path, stored: Path, fresh: Path, gone: Path, spark: "SparkSession"
) -> None:
    """The difference by one hash aggregate over both sides; the few odd rows are then selected by their hashes.

    128 bits of hash stand for a row: with 100 million rows a collision happens once in 10^22 runs. Nothing is sorted,
    and no key is shuffled.
    """
    from pyspark.sql import functions as sql

    listed_rows = _add_hashes(spark.read.parquet(str(listed)), "listed")
    stored_rows = _add_hashes(spark.read.parquet(str(stored)), "held")
    sides = listed_rows.select("h1", "h2", sql.lit(LISTED).alias("side")).unionAll(
        stored_rows.select("h1", "h2", sql.lit(STORED).alias("side"))
    )
    odd = sides.groupBy("h1", "h2").agg(sql.bit_or("side").alias("side")).where(sql.col("side") != BOTH)
    odd = odd.persist()
    try:
        hint = "broadcast" if odd.count() <= BROADCAST_ROWS else "shuffle_hash"
        for rows, side, schema, into in (
            (listed_rows, LISTED, model.LISTING, fresh),
            (stored_rows, STORED, GONE, gone),
        ):
            hashes = odd.where(sql.col("side") == side).select("h1", "h2").hint(hint)
            _write_spark_rows(rows.join(hashes, ["h1", "h2"], "left_semi"), schema, into)
    finally:
        odd.unpersist()


def _add_hashes(rows: "DataFrame", side: str) -> "DataFrame":
    from pyspark.sql import functions as sql

    identity: list[Column] = [
        sql.col("key"),
        # A missing ETag differs on both sides.
        sql.coalesce(sql.col("etag"), sql.lit(f"\0{side}")),
        sql.col("size_bytes"),
    ]
    return rows.select(
        "*", sql.xxhash64(*identity).alias("h1"), sql.xxhash64(sql.lit(1), *identity).alias("h2")
    )


def _write_spark_rows(rows: "DataFrame", schema: pa.Schema, into: Path) -> None:
    """Writes rows like `write_rows`; times as milliseconds, because Spark's type has another unit."""
    from pyspark.sql import functions as sql

    columns = [
        sql.unix_millis(name).alias(name) if pa.types.is_timestamp(schema.field(name).type) else sql.col(name)
        for name in schema.names
    ]
    raw = into.with_name(f".{into.name}.spark")
    rows.select(*columns).write.mode("overwrite").parquet(str(raw))
    fragments = pq.ParquetDataset(raw).fragments
    model.write_rows(into, schema, (batch for fragment in fragments for batch in fragment.to_batches()))
    rmtree(raw)


ReportMessage = Callable[[str], None]


def make_plan(
    backup: Backup,
    workspace: Workspace,
    listing: model.ListingRecord,
    points: Points,
    day: str,
    spark: model.OpenSpark | None = None,
    report_message: ReportMessage = lambda sentence: None,
    *,
    is_bounded: bool = True,
) -> model.PlanRecord:
    """Write rows of schema PLAN, the objects of the day's point, into the workspace's folder `plan`.

    Spark is opened only for many millions of rows. Raises BackupError if there is no listing, it has nothing of the
    day, or, with `is_bounded`, the plan exceeds the backup's bounds.
    """
    try:
        plan = _PlanDraft(backup, workspace, listing, points, day, spark, report_message).plan()
    finally:
        for name in ("cut", "before", "followed", "fresh", "gone"):
            workspace.clear(name)
    if is_bounded:
        require_within_bounds(backup, day, plan.estimate)
    return plan


@dataclass
class _PlanDraft:
    backup: Backup
    workspace: Workspace
    listing: model.ListingRecord
    points: Points
    day: str
    spark: model.OpenSpark | None
    report_message: ReportMessage
    roots: plan_tables.TableRoots = field(default_factory=plan_tables.TableRoots)
    logs: plan_tables.LogFiles = field(default_factory=lambda: plan_tables.LogFiles(list))

    def plan(self) -> model.PlanRecord:
        left_out, as_of = Counter[str](), get_point_time(self.day)
        self.report_message("selecting the objects of the day from the listing")
        rows = model.write_rows(self.workspace.clear("cut"), model.LISTING, self._cut(as_of, left_out))
        if not rows:
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            raise BackupError(
                f"backup {self.backup.name}, point {self.day}",
                f"nothing in the listing belongs to it ({reasons or 'it is empty'})",
                "Check that the listing is of the right store and day: an empty point would be of no use.",
            )
        tables = self.roots.tables()
        previous = self.points.latest(before=self.day) if self.backup.layout == "incremental" else None
        self.stored = plan_tables.make_stored_keys(
            self.backup, self.day, plan_tables.RootIndex(tables), previous
        )
        self.report_message(f"{rows:,} objects, {len(tables):,} tables; comparing with the previous point")
        self._write_previous(previous, pa.array(sorted(tables), pa.string()))
        self.fresh = self.workspace.rows("cut")
        if previous is None:
            model.write_rows(self.workspace.clear("gone"), GONE, ())
        else:
            self.fresh, gone = self.workspace.clear("fresh"), self.workspace.clear("gone")
            write_difference(
                self.workspace.rows("cut"), self.workspace.rows("before"), self.fresh, gone, self.spark
            )
        if self.backup.layout == "incremental":
            self._move_conflicts(previous)
        tally, prefixes = Tally(self.backup.copy_limit_bytes), set[str]()
        model.write_rows(self.workspace.clear("plan"), model.PLAN, self._count_rows(tally, prefixes))
        minutes = round(_estimate_minutes(self.backup, tally, previous), 2)
        races = []
        # With versions, a removed file is still there as an older version.
        if not self.listing.has_versions:
            self.report_message("reading how long tables keep removed files")
            source = open_store(self.backup.source)
            races = plan_tables.find_retention_races(self.backup, source, tables, self.logs, minutes)
        return model.PlanRecord(
            day=self.day,
            as_of=as_of,
            previous=None if previous is None else previous.day,
            tables=self.stored.locate_tables(self.backup.source.bucket, tables),
            estimate=model.Estimate(
                objects=tally.copied,
                size_bytes=tally.copied_bytes,
                held_objects=tally.objects["held"],
                held_bytes=tally.size_bytes["held"],
                requests=tally.requests,
                # Each stored prefix is a Batch Operations job.
                usd=round(_estimate_usd(self.backup, tally, self.listing, len(prefixes)), 4),
                minutes=minutes,
                by_lane={lane: tally.objects[lane] for lane in model.LANES if tally.objects[lane]},
            ),
            left_out=dict(left_out),
            warnings=(*self.roots.warnings(), *_describe_moves(self.stored), *races),
        )

    def _cut(self, as_of: dt.datetime, left_out: Counter[str]) -> Iterator[pa.RecordBatch]:
        listing, has_versions = self.workspace.rows("listing"), self.listing.has_versions
        for batch in plan_tables.select_rows_of_moment(
            self.backup, listing, as_of, left_out, has_versions=has_versions
        ):
            self.roots.add(batch["key"])
            plan_tables.add_log_files(self.logs, batch)
            yield batch

    def _write_previous(self, previous: model.Point | None, tables: pa.Array) -> None:
        """Writes the previous point's rows into `before`; rows of listed tables outside the source into `followed`."""
        outside: list[pa.RecordBatch] = []

        def select_source() -> Iterator[pa.RecordBatch]:
            for batch in () if previous is None else self.points.read_copies(previous):
                is_source = pc.equal(batch["bucket"], self.backup.source.bucket)
                yield batch.filter(is_source)
                if not pc.all(is_source).as_py():
                    outside.append(batch.filter(pc.invert(is_source)))

        model.write_rows(self.workspace.clear("before"), model.POINT_COPIES, select_source())
        # No listing has files outside the source.
        followed = outside if self.backup.external == "follow" else []
        rows = (batch.filter(pc.is_in(batch["table_root"], tables)) for batch in followed)
        model.write_rows(self.workspace.clear("followed"), model.POINT_COPIES, rows)

    def _move_conflicts(self, previous: model.Point | None) -> None:
        """Moves what would overwrite copies of a point, or would be separated from the rest of its table."""
        stored, gone = self.stored, self._read_gone_keys()
        for batch in model.read_rows(self.fresh, ["key"]):
            stored.move(batch["key"].filter(pc.is_in(batch["key"], gone)))
        for batch in self._read_unchanged():
            stored.move(stored.find_misplaced(batch["key"], batch["stored_key"]))
        days = [day for day in self.points.days() if previous is None or day != previous.day]
        if not days:
            return
        self.report_message(
            f"comparing with {len(days)} more points, so that none of their copies is overwritten"
        )
        wanted = []
        for batch in model.read_rows(self.fresh, ["key", "etag", "size_bytes"]):
            rows = batch.filter(pc.invert(stored.is_moved(batch["key"])))
            columns = {name: rows[name] for name in ("key", "etag", "size_bytes")}
            wanted.append(pa.table({**columns, "stored_key": stored.stored_keys(rows["key"])}))
        if wanted:
            stored.move(plan_tables.find_taken_keys(self.points, days, pa.concat_tables(wanted)))

    def _count_rows(self, tally: Tally, prefixes: set[str]) -> Iterator[pa.RecordBatch]:
        for batch in self._make_rows():
            tally.add(batch)
            copied = batch.filter(pc.not_equal(batch["lane"], "held"))["key"]
            prefixes.update(pc.unique(self.stored.prefixes(copied)).to_pylist())
            yield batch

    def _make_rows(self) -> Iterator[pa.RecordBatch]:
        stored = self.stored
        for batch in self._read_unchanged():
            held = batch.filter(pc.invert(stored.is_moved(batch["key"])))
            yield _make_held_rows(held, stored.roots.nearest(held["key"]))
        for batch in model.read_rows(self.workspace.rows("followed")):
            yield _make_held_rows(batch, batch["table_root"])
        for batch in model.read_rows(self.fresh):
            yield self._make_rows_to_copy(batch.filter(pc.invert(stored.is_moved(batch["key"]))))
        for batch in model.read_rows(self.workspace.rows("cut")) if stored.moved else ():
            yield self._make_rows_to_copy(batch.filter(stored.is_moved(batch["key"])))

    def _read_unchanged(self) -> Iterator[pa.RecordBatch]:
        gone = self._read_gone_keys()
        for batch in model.read_rows(self.workspace.rows("before")):
            yield batch.filter(pc.invert(pc.is_in(batch["key"], gone)))

    def _read_gone_keys(self) -> pa.Array:
        keys = [batch["key"] for batch in model.read_rows(self.workspace.rows("gone"), ["key"])]
        return pa.chunked_array(keys, pa.string()).combine_chunks()

    def _make_rows_to_copy(self, objects: pa.RecordBatch) -> pa.RecordBatch:
        # An archived object may be above the limit of one copy request as well.
        is_archived = pc.is_in(objects["storage_class"], pa.array(model.ARCHIVES))
        is_large = pc.fill_null(pc.greater(objects["size_bytes"], self.backup.copy_limit_bytes), False)
        return _make_plan_rows(
            objects,
            lane=pc.if_else(is_archived, "archived", pc.if_else(is_large, "large", "small")),
            stored_key=self.stored.stored_keys(objects["key"]),
            table_root=self.stored.roots.nearest(objects["key"]),
            first_point=pa.repeat(pa.scalar(self.day), objects.num_rows),
        )


def _make_held_rows(rows: pa.RecordBatch, table_root: pa.Array) -> pa.RecordBatch:
    count = rows.num_rows
    return _make_plan_rows(
        rows,
        lane=pa.repeat(pa.scalar("held"), count),
        table_root=table_root,
        is_latest=pa.repeat(pa.scalar(True), count),
        is_delete_marker=pa.repeat(pa.scalar(False), count),
    )


def _make_plan_rows(rows: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    known = {name: rows[name] for name in rows.schema.names} | columns
    nulls = pa.nulls(rows.num_rows)
    return pa.record_batch(
        [known.get(column.name, nulls).cast(column.type) for column in model.PLAN], model.PLAN
    )


def _describe_moves(stored: plan_tables.StoredKeys) -> list[str]:
    if not stored.moved:
        return []
    named = ", ".join(sorted(stored.moved)[:3])
    more = f" and {len(stored.moved) - 3} more" if len(stored.moved) > 3 else ""
    return [
        f"{named}{more}: files of the same name differ from those of an earlier point, as after a table was dropped "
        f"and created again; all files are copied to {stored.remade}, and the earlier point stays unchanged."
    ]
