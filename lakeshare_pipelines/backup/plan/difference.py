"""What of a listing a point does not hold yet, and what it held that is no more: by key, ETag and size.

Two forms with one behaviour: DuckDB's join in this process, which spills beyond its memory, and Spark for most rows.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.rows import HELD, LISTING, write_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SPARK_FROM_ROWS = 60_000_000
"""Both sides together: from there on the join spills most of them; below, starting Spark takes longer than it saves."""
MEMORY_BYTES = 4 * 1024**3
"""Enough for ten million rows on each side without spilling; at most half of what is free is taken."""
ROWS_AT_ONCE = 100_000
BROADCAST_ROWS = 3_000_000
GONE = pa.schema([HELD.field("key")])
LISTED, STORED = 1, 2
BOTH = LISTED | STORED

OpenSpark = Callable[[], "SparkSession"]


def write_difference(
    listed: Path, held: Path, fresh: Path, gone: Path, spark: OpenSpark | None = None
) -> None:
    """Write rows of LISTING that are not held into `fresh`, keys of HELD that are not listed into `gone`.

    A key that changed is in both. What has no ETag is never the same as anything. All four are folders of rows;
    a key is once in `listed` and once in `held`. With Spark, the folders must be where its executors can reach them.
    """
    if spark is not None and _rows(listed) + _rows(held) >= SPARK_FROM_ROWS:
        by_spark(listed, held, fresh, gone, spark())
    else:
        by_duckdb(listed, held, fresh, gone)


def by_duckdb(listed: Path, held: Path, fresh: Path, gone: Path) -> None:
    """The difference by one full join of both sides; rows come in order of their keys."""
    memory = min(MEMORY_BYTES, psutil.virtual_memory().available // 2)
    with TemporaryDirectory(dir=fresh.parent, prefix=".spilled-") as spilled, duckdb.connect() as on:
        on.execute("SET memory_limit = ?", [f"{memory}B"])
        on.execute("SET temp_directory = ?", [spilled])
        for side, folder in (("listed", listed), ("held", held)):
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


def by_spark(listed: Path, held: Path, fresh: Path, gone: Path, spark: "SparkSession") -> None:
    """The difference by one hash aggregate over both sides, then the few odd rows fetched by their hashes.

    128 bits of hash stand for a row: among 100 million rows no two are taken for each other, but once in 10^22 runs.
    Nothing is sorted, and no key is shuffled.
    """
    from pyspark.sql import functions as sql

    ours = _hashed(spark.read.parquet(str(listed)), "listed")
    theirs = _hashed(spark.read.parquet(str(held)), "held")
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


def _hashed(rows: "DataFrame", side: str) -> "DataFrame":
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
