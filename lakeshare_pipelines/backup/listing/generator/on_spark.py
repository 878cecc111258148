"""The generator on Spark: each task lists ranges of keys that no other task has, and writes what it found itself."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.listing.generator.ranges import KeyRange
from lakeshare_pipelines.backup.listing.generator.report import ReportPlace, WrittenFile, write_files
from lakeshare_pipelines.backup.listing.generator.source import first_ranges, listed_ranges
from lakeshare_pipelines.backup.listing.own_keys import without_prefixes
from lakeshare_pipelines.backup.listing.telling import Tell
from lakeshare_pipelines.backup.rows import LISTING
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

RANGES_A_CORE = 16
TASKS_A_CORE = 4
"""Some tasks have much to list, others little; the last ones should be short."""
CORES_OF_CONNECT = 16
TELL_EVERY_S = 2.0
_TOLD = pa.schema(
    [
        ("key", pa.string()),
        ("size_bytes", pa.int64()),
        ("md5", pa.string()),
        ("rows", pa.int64()),
        ("listed_bytes", pa.int64()),
        # Why a task could not go on: subject, reason and remedy.
        ("subject", pa.string()),
        ("reason", pa.string()),
        ("fix", pa.string()),
    ]
)
_TOLD_TO_SPARK = (
    "key string, size_bytes long, md5 string, rows long, listed_bytes long, "
    "subject string, reason string, fix string"
)
Write = Callable[[Iterable[pa.RecordBatch]], Iterator[WrittenFile]]


def files_by_spark(spark: "SparkSession", place: ReportPlace, tell: Tell) -> list[WrittenFile]:
    """List a bucket into data files of a report, which the tasks write to its destination.

    Raises:
        BackupError: the source or the destination refuses.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        return write_files(place, batches)

    return _written(spark, place.source, place.versions, write, tell)


def rows_by_spark(
    spark: "SparkSession",
    source: StoreAddress,
    folder: Path,
    own: tuple[str, ...],
    *,
    versions: bool,
    tell: Tell,
) -> tuple[int, int]:
    """List a bucket into a folder of rows that all executors see, but for keys that begin with one of `own`.

    Returns how many rows there are, and their bytes. What tasks that were tried again left stays no part of it.

    Raises:
        BackupError: the source refuses.
    """
    making = folder.with_name(f".{folder.name}.part")
    making.mkdir(parents=True)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        path, rows, size = making / f"{uuid4().hex}.writing", 0, 0
        with pq.ParquetWriter(path, LISTING, compression="zstd") as writer:
            for batch in batches:
                kept = without_prefixes(batch, own)
                writer.write_batch(kept)
                rows += kept.num_rows
                size += pc.sum(kept["size_bytes"]).as_py() or 0
        yield WrittenFile(path.name, path.stat().st_size, "", rows, size)

    files = _written(spark, source, versions, write, tell)
    for number, file in enumerate(files):
        (making / file.key).rename(making / f"part-{number:05}.parquet")
    for left in making.glob("*.writing"):
        left.unlink()
    making.rename(folder)
    return sum(file.rows for file in files), sum(file.listed_bytes for file in files)


def _written(
    spark: "SparkSession", source: StoreAddress, versions: bool, write: Write, tell: Tell
) -> list[WrittenFile]:
    cores = _cores(spark)
    ranges, beside = first_ranges(source, RANGES_A_CORE * cores, versions=versions)
    tasks = max(1, min(len(ranges), TASKS_A_CORE * cores))
    tell(f"{source}: {len(ranges)} ranges of keys are listed by {tasks} tasks")

    def list_some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from _told_by_task(source, ranges[number::tasks], versions, write)

    answers = spark.range(0, tasks, 1, tasks).mapInArrow(list_some, _TOLD_TO_SPARK)
    found = []
    for row in _collected(spark, answers, tasks, tell):
        if row.reason is not None:
            raise BackupError(row.subject, row.reason, row.fix)
        found.append(WrittenFile(row.key, row.size_bytes, row.md5, row.rows, row.listed_bytes))
    return [*found, *(write(beside) if beside else ())]


def _cores(spark: "SparkSession") -> int:
    """The cores that tasks have; behind Spark Connect nobody tells."""
    return CORES_OF_CONNECT if _is_remote(spark) else spark.sparkContext.defaultParallelism


def _collected(spark: "SparkSession", answers: "DataFrame", tasks: int, tell: Tell) -> "list[Row]":
    """All rows, while it is told how many tasks are done."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answers.collect)
        while not wait([asked], timeout=TELL_EVERY_S).done:
            if not _is_remote(spark):
                tell(f"{_done(spark, tasks)} of {tasks} tasks have listed their ranges")
        return asked.result()


def _done(spark: "SparkSession", tasks: int) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = (tracker.getStageInfo(number) for number in tracker.getActiveStageIds())
    return max(
        (one.numCompletedTasks for one in stages if one is not None and one.numTasks == tasks), default=0
    )


def _is_remote(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _told_by_task(
    source: StoreAddress, ranges: list[KeyRange], versions: bool, write: Write
) -> Iterator[pa.RecordBatch]:
    try:
        for file in write(listed_ranges(source, ranges, versions=versions)):
            told = (file.key, file.size_bytes, file.md5, file.rows, file.listed_bytes, None, None, None)
            yield _one_row(told)
    except BackupError as error:
        yield _one_row((None, None, None, None, None, error.subject, error.reason, error.fix))


def _one_row(values: tuple[object, ...]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _TOLD, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_TOLD)
