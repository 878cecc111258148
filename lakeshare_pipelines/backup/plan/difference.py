"""What of a listing a point does not hold yet, and what it held that is no more: by key, ETag and size.

Two forms with one behaviour, both by 128 bits of hash for a row: columns in this process, Spark for the most rows.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.plan.row_hashes import Words, row_hashes
from lakeshare_pipelines.backup.rows import HELD, LISTING, read_rows, write_rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SPARK_FROM_ROWS = 60_000_000
"""Both sides together: from there on hashes take gigabytes here; below, starting Spark takes longer than it saves."""
PARTS = 4
"""A power of two: so many parts are matched one after the other by two threads, which bounds what sorting takes."""
KEPT_ROWS = 12_000_000
"""Of so many rows a side, what was read stays in memory, about 150 bytes each: reading it again is most of a pass."""
ROWS_AT_ONCE = 100_000
BROADCAST_ROWS = 3_000_000
GONE = pa.schema([HELD.field("key")])
SAME = ("key", "etag", "size_bytes")
LISTED, STORED = 1, 2
BOTH = LISTED | STORED

Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
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
        here(listed, held, fresh, gone)


def here(listed: Path, held: Path, fresh: Path, gone: Path) -> None:
    """The difference in this process: two passes over each side, some fifty bytes of memory a row, and more of few.

    Of two rows that share only 64 bits, one counts as changed: too much is copied then, never too little.
    """
    with ThreadPoolExecutor(2) as pool:
        (ours, our_rows), (theirs, their_rows) = pool.map(_hashes_of, (listed, held), ("listed", "held"))
        is_fresh, is_gone = np.ones(len(ours[0]), np.bool_), np.ones(len(theirs[0]), np.bool_)
        parts = [(ours, theirs, is_fresh, is_gone, part) for part in range(PARTS)]
        list(pool.map(lambda part: _match(*part), parts))
        del ours, theirs
        chosen = (
            _chosen(listed, LISTING, is_fresh, our_rows),
            _chosen(held, GONE, is_gone, their_rows),
        )
        list(pool.map(write_rows, (fresh, gone), (LISTING, GONE), chosen))


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


def _hashes_of(folder: Path, side: str) -> "tuple[tuple[Words, Words], list[pa.RecordBatch]]":
    """Both hashes of each row of a folder, in the order of the rows; and of few rows what was read for them."""
    firsts, seconds = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    kept, are_few = list[pa.RecordBatch](), _rows(folder) <= KEPT_ROWS
    for batch in read_rows(folder, list(SAME)):
        # A missing ETag is another on each side.
        etags = batch["etag"]
        if etags.null_count:
            etags = pc.fill_null(etags, f"\0{side}")
        first, second = row_hashes([batch["key"], etags], batch["size_bytes"])
        firsts.append(first)
        seconds.append(second)
        if are_few:
            kept.append(batch if side == "listed" else batch.select(GONE.names))
    return (np.concatenate(firsts), np.concatenate(seconds)), kept


def _match(
    ours: tuple[Words, Words], theirs: tuple[Words, Words], is_fresh: Flags, is_gone: Flags, part: int
) -> None:
    """Clear the flags of rows that both sides have, among those whose first hash belongs to one of PARTS."""
    mine, other = _ordered(ours[0], part), _ordered(theirs[0], part)
    sought, among = ours[0][mine], theirs[0][other]
    if not len(among):
        return
    # Sorted against sorted: a search that begins where the last one ended stays in the cache.
    at = np.searchsorted(among, sought)
    at[at == len(among)] = 0
    is_there = among[at] == sought
    mine, other = mine[is_there], other[at[is_there]]
    is_same = ours[1][mine] == theirs[1][other]
    is_fresh[mine[is_same]] = False
    is_gone[other[is_same]] = False


def _ordered(hashes: Words, part: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """The rows of a part, in order of their hashes."""
    rows = np.flatnonzero(hashes >> np.uint64(64 - PARTS.bit_length() + 1) == part)
    order: np.ndarray[tuple[int], np.dtype[np.intp]] = rows[np.argsort(hashes[rows])]
    return order


def _chosen(
    folder: Path, schema: pa.Schema, those: Flags, kept: "list[pa.RecordBatch]"
) -> Iterator[pa.Table]:
    """Rows of a folder, some thousands at a time: each time is a row group of the file that they go to."""
    start, rows, waiting = 0, 0, list[pa.RecordBatch]()
    for batch in _read_beside(folder, schema, kept):
        waiting.append(batch.filter(pa.array(those[start : start + batch.num_rows])))
        start, rows = start + batch.num_rows, rows + waiting[-1].num_rows
        if rows >= ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting, schema)
            rows, waiting = 0, []
    yield pa.Table.from_batches(waiting, schema)


def _read_beside(folder: Path, schema: pa.Schema, kept: "list[pa.RecordBatch]") -> Iterator[pa.RecordBatch]:
    """The rows of a folder, of which some columns are in memory."""
    if not kept:
        yield from read_rows(folder, schema.names)
        return
    others = [name for name in schema.names if name not in kept[0].schema.names]
    if not others:
        yield from kept
        return
    for some, rest in zip(kept, read_rows(folder, others), strict=True):
        columns = [(rest if name in others else some)[name] for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
