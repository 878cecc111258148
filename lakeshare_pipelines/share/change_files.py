"""Change files: the rows that a publication of an Iceberg table changed, in Parquet beside the table.

Each publication has a folder of its own below `_changes`: Iceberg's readers read what metadata names, and others pass
over names with an underscore. Nothing is ever overwritten there.
"""

import logging
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import StructType

from lakeshare_pipelines.errors import ChangesDoNotAddUp
from lakeshare_pipelines.share.change_frames import (
    CAME,
    CHANGE_TYPE,
    as_columns_of,
    changed_rows,
    named,
    with_field_ids,
)
from lakeshare_pipelines.share.table_state import CHANGES_FOLDER, TableState
from lakeshare_server.tables.file_difference import FileDifference

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PART = "_lakeshare_part"
# Times that other engines read; Spark's own default is the INT96 of old.
PARQUET_CONF = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
# More names than that make a condition that costs more than it saves.
MOST_NAMES = 5000
MODIFIED_MS = "unix_millis(_metadata.file_modification_time)"

log = logging.getLogger(__name__)


def write_change_files(
    spark: "SparkSession",
    location: str,
    states: tuple[TableState, TableState],
    difference: FileDifference,
    key: Sequence[str],
    partition_columns: Sequence[str],
) -> pa.Table:
    """Find the rows that differ between two states, and write them; only files that differ are compared.

    Returns a row for each change file: path, size (bytes), modification_time (ms), the struct partition, and more_rows:
    how many rows came less those that went.

    Raises:
        ChangesDoNotAddUp: the rows found are not as many as the files' own counts say.
    """
    before, after = states
    then, now = before.columns(), after.columns()
    old = _of_files(before.frame(spark), difference.removed)
    new = _of_files(after.frame(spark), difference.added)
    rows = changed_rows(as_columns_of(old, then, new, now), new, _known(key, now))
    run = f"{after.snapshot_id}-{uuid.uuid4().hex}"
    folder = f"{location.rstrip('/')}/{CHANGES_FOLDER}/{run}"
    rows = with_field_ids(rows, now)
    with _conf(spark, PARQUET_CONF):
        _write(rows, partition_columns, _for_spark(folder))
    found = _described(spark.read.schema(rows.schema).parquet(_for_spark(folder)), folder, partition_columns)
    more = pc.sum(found.column("more_rows"), min_count=0).as_py()
    if difference.more_rows not in (None, more):
        raise ChangesDoNotAddUp(location, more, difference.more_rows)
    log.info("%s has %s change files", folder, found.num_rows)
    if not found.num_rows and folder.startswith("/"):
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _of_files(frame: "DataFrame", files: pa.Table) -> "DataFrame":
    """The rows of some files. Bounds let Iceberg pass over other files unread."""
    from pyspark.sql import functions as F

    columns = [named(name) for name in frame.columns]
    for condition in _within_bounds(frame, files):
        frame = frame.where(condition)
    paths = files.column("path").to_pylist()
    if len(paths) <= MOST_NAMES and "_file" not in frame.columns:
        frame = frame.where(F.regexp_replace("_file", "^file:/+", "/").isin(paths))
    return frame.select(*columns)


def _within_bounds(frame: "DataFrame", files: pa.Table) -> "Iterator[Column]":
    from pyspark.sql import functions as F

    if not {"min", "max"} <= set(files.column_names) or not files.num_rows:
        return
    lower, upper = (files.column(name).combine_chunks() for name in ("min", "max"))
    for name in frame.columns:
        least, most = (_values(struct, name) for struct in (lower, upper))
        if least is not None and most is not None:
            bounds = F.lit(pc.min(least).as_py()), F.lit(pc.max(most).as_py())
            yield named(name).isNull() | named(name).between(*bounds)


def _values(struct: pa.StructArray, name: str) -> pa.Array | None:
    """The bounds of a column, where they are known of each file, and are what they seem to be."""
    place = struct.type.get_field_index(name)
    if place < 0:
        return None
    kind = struct.type.field(place).type
    values = pc.struct_field(struct, [place])
    is_exact = pa.types.is_integer(kind) or pa.types.is_date(kind)
    return values if is_exact and not values.null_count else None


def _known(key: Sequence[str], columns: StructType) -> list[str]:
    """The key by the table's own names; none when it lacks one of them."""
    names = {field.name.lower(): field.name for field in columns.fields}
    found = [names.get(column.lower()) for column in key]
    return [name for name in found if name is not None] if None not in found else []


def _write(rows: "DataFrame", partition_columns: Sequence[str], folder: str) -> None:
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    if not partition_columns:
        rows.write.mode("errorifexists").parquet(folder)
        return
    kinds = {field.name: field.dataType for field in rows.schema}
    values = [
        (F.hex(named(name)) if isinstance(kinds[name], BinaryType) else named(name).cast("string")).alias(
            name
        )
        for name in partition_columns
    ]
    # All rows of a file have the same values, and no folder has a name to be escaped.
    parted = rows.withColumn(PART, F.sha1(F.to_json(F.struct(*values)))).repartition(F.col(PART))
    parted.write.mode("errorifexists").partitionBy(PART).parquet(folder)


def _described(written: "DataFrame", folder: str, partition_columns: Sequence[str]) -> pa.Table:
    from pyspark.sql import functions as F

    described = written.groupBy(F.col("_metadata.file_path").alias("written_to")).agg(
        F.first("_metadata.file_size").alias("size"),
        F.first(F.expr(MODIFIED_MS)).alias("modification_time"),
        F.sum(F.when(F.col(CHANGE_TYPE).isin(*CAME), 1).otherwise(-1)).alias("more_rows"),
        *(F.first(named(name)).alias(f"p{place}") for place, name in enumerate(partition_columns)),
    )
    found = described.orderBy("written_to").toArrow()
    # Spark spells locations in its own way, but not what is below our folder.
    run = folder.rpartition("/")[2]
    names = [path.partition(f"/{run}/")[2] for path in found.column("written_to").to_pylist()]
    values = [found.column(f"p{place}").combine_chunks() for place in range(len(partition_columns))]
    partition: Any = (
        pa.StructArray.from_arrays(values, list(partition_columns))
        if values
        else pa.array([{}] * found.num_rows, pa.struct([]))
    )
    return pa.table(
        {
            "path": pa.array([f"{folder}/{name}" for name in names], pa.string()),
            "size": found.column("size").cast(pa.int64()),
            "modification_time": found.column("modification_time").cast(pa.int64()),
            "partition": partition,
            "more_rows": found.column("more_rows"),
        }
    )


@contextmanager
def _conf(spark: "SparkSession", wanted: Mapping[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is not None:
                spark.conf.set(key, old)


def _for_spark(location: str) -> str:
    """A location as Hadoop's file systems name it."""
    if location.startswith("/"):
        return f"file://{location}"
    return f"s3a://{location.removeprefix('s3://')}" if location.startswith("s3://") else location
