"""Our own inventory of a bucket or a folder: listed in parallel by ranges of keys, reported as S3 Inventory reports."""

import datetime as dt
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import (
    LISTED_AS,
    MANIFEST_VERSION,
    InventoryColumn,
    ReportFormat,
    ReportProgress,
    drop_prefixes,
    format_file_schema,
    log_message,
    own_prefixes,
    select_report_columns,
)
from lakeshare_pipelines.backup.inventory.list_objects import (
    IN_FLIGHT,
    KeyRange,
    find_first_ranges,
    list_range_rows,
    list_rows,
)
from lakeshare_pipelines.backup.inventory.reports import SCAN_TIME
from lakeshare_pipelines.backup.model import LISTING, ListingRecord, write_rows
from lakeshare_pipelines.backup.points import Workspace
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import FOLDER
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    OpenSpark = Callable[[], SparkSession]

LISTED_FIELDS = (
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
    "IsMultipartUploaded",
    "ChecksumAlgorithm",
)
"""Optional fields that a LIST answers; the others need a HEAD of each object."""
SUFFIXES = {"CSV": "csv.gz", "ORC": "orc", "Parquet": "parquet"}
ROWS_A_FILE = 500_000
CSV_TIME = "%Y-%m-%dT%H:%M:%SZ"
SAFE_IN_KEYS = "/-_.~*"
_TO_ENCODE = r"[^A-Za-z0-9/\-_.~*]"
HIVE_TIME = "%Y-%m-%d-%H-%M"


@dataclass(frozen=True)
class ReportDestination:
    """Where reports of a source go and how they are written; small, goes to Spark's executors."""

    source: StoreAddress
    destination: StoreAddress
    file_format: ReportFormat = "Parquet"
    versions: bool = False
    configuration: str = "lakeshare"

    @property
    def prefix(self) -> str:
        """Key prefix of all reports of the source, in the destination: `<prefix>/<source-bucket>/<config-id>/`."""
        name = PurePosixPath(self.source.url).name if self.source.kind == FOLDER else self.source.bucket
        return f"{self.destination.prefix}{name}/{self.configuration}/"

    @property
    def columns(self) -> tuple[InventoryColumn, ...]:
        """The columns of the data files."""
        return select_report_columns(LISTED_FIELDS, versions=self.versions)


@dataclass(frozen=True)
class WrittenFile:
    """One data file of a report."""

    key: str
    size_bytes: int
    md5: str
    rows: int
    listed_bytes: int
    """What the listed objects have together."""


@dataclass(frozen=True)
class GeneratedReport:
    """A report that is written, and what it tells."""

    location: str
    """URL of its manifest.json."""
    scan_started_at: dt.datetime
    scan_ended_at: dt.datetime
    files: int
    rows: int
    size_bytes: int


def write_files(
    place: ReportDestination, batches: Iterable[pa.RecordBatch], rows_a_file: int = ROWS_A_FILE
) -> Iterator[WrittenFile]:
    """Write rows of schema LISTING as data files; they are no report yet.

    Raises:
        BackupError: the destination refuses them.
    """
    store = open_store(place.destination)
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= rows_a_file:
            yield _write_file(store, place, pa.Table.from_batches(pending))
            pending, rows = [], 0
    if rows:
        yield _write_file(store, place, pa.Table.from_batches(pending))


def write_manifest(
    place: ReportDestination, files: Sequence[WrittenFile], started_at: dt.datetime, ended_at: dt.datetime
) -> GeneratedReport:
    """Make a report of data files: the links for Hive, the manifest, and its checksum last.

    Raises:
        BackupError: there is a report of that minute already, or the destination refuses.
    """
    store, destination = open_store(place.destination), place.destination
    folder = f"{place.prefix}{started_at.strftime(SCAN_TIME)}/"
    manifest = _manifest(place, files, started_at)
    where = destination.location(f"{folder}manifest.json")
    if not store.put(f"{folder}manifest.json", manifest, if_absent=True):
        raise BackupError(
            where, "there is a report of this minute already", "Read that one, or generate again in a minute."
        )
    links = "\n".join(_url(destination, file.key) for file in files)
    store.put(f"{place.prefix}hive/dt={started_at.strftime(HIVE_TIME)}/symlink.txt", links.encode())
    store.put(f"{folder}manifest.checksum", md5(manifest, usedforsecurity=False).hexdigest().encode())
    rows, size = sum(file.rows for file in files), sum(file.listed_bytes for file in files)
    return GeneratedReport(where, started_at, ended_at, len(files), rows, size)


def _manifest(place: ReportDestination, files: Sequence[WrittenFile], started_at: dt.datetime) -> bytes:
    manifest = {
        "sourceBucket": place.source.bucket,
        "destinationBucket": f"arn:aws:s3:::{place.destination.bucket}",
        "version": MANIFEST_VERSION,
        "creationTimestamp": str(int(started_at.timestamp() * 1000)),
        "fileFormat": place.file_format,
        "fileSchema": format_file_schema(place.file_format, place.columns),
        "files": [{"key": file.key, "size": file.size_bytes, "MD5checksum": file.md5} for file in files],
    }
    return json.dumps(manifest, indent=2).encode()


def _url(destination: StoreAddress, key: str) -> str:
    location = destination.location(key)
    return f"file://{location}" if destination.kind == FOLDER else location


def _write_file(store: BackupStore, place: ReportDestination, listing: pa.Table) -> WrittenFile:
    told_as = {LISTED_AS[column.name]: column for column in place.columns}
    rows = listing.select(list(told_as)).rename_columns([column.name for column in told_as.values()])
    content = _FORMATS[place.file_format](rows, place.columns)
    key = f"{place.prefix}data/{uuid4()}.{SUFFIXES[place.file_format]}"
    store.put(key, content)
    digest = md5(content, usedforsecurity=False).hexdigest()
    size = pc.sum(listing.column("size_bytes")).as_py() or 0
    return WrittenFile(key, len(content), digest, listing.num_rows, size)


def _as_csv(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    """Gzip without a time, no header, every field quoted, keys encoded as in forms; what is not there is empty."""
    from pyarrow import csv

    texts = []
    for column in columns:
        values = rows.column(column.name)
        if column.kind == "timestamp":
            values = pc.strftime(values, format=CSV_TIME)
        texts.append(pc.fill_null(values.cast(pa.string()), ""))
    texts[1] = pa.chunked_array([_encode_keys(chunk) for chunk in texts[1].chunks], pa.string())
    lines = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(pa.table(texts, names=[column.name for column in columns]), lines, options)
    return gzip.compress(lines.getvalue(), mtime=0)


def _encode_keys(keys: pa.Array) -> pa.Array:
    is_plain = pc.invert(pc.match_substring_regex(keys, _TO_ENCODE))
    if pc.all(is_plain).as_py():
        return keys
    spelt = [quote(key, safe=SAFE_IN_KEYS).replace("%20", "+") for key in keys.to_pylist()]
    return pa.array(spelt, pa.string())


def _as_orc(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    from pyarrow import orc

    # With a zone it would be another of ORC's types than Hive's timestamp; the values are UTC either way.
    kinds = {"timestamp": pa.timestamp("ms")}
    schema = pa.schema([(column.name, kinds.get(column.kind, column.arrow_field.type)) for column in columns])
    return _write_to_bytes(lambda sink: orc.write_table(rows.cast(schema), sink, compression="zlib"))


def _as_parquet(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    import pyarrow.parquet as pq

    schema = pa.schema([column.arrow_field for column in columns])
    return _write_to_bytes(lambda sink: pq.write_table(rows.cast(schema), sink, compression="snappy"))


def _write_to_bytes(write: Callable[[pa.BufferOutputStream], None]) -> bytes:
    sink = pa.BufferOutputStream()
    write(sink)
    return bytes(sink.getvalue())


_FORMATS = {"CSV": _as_csv, "ORC": _as_orc, "Parquet": _as_parquet}


RANGES_A_CORE = 16
TASKS_A_CORE = 4
"""Some tasks have much to list, others little; the last ones should be short."""
CORES_OF_CONNECT = 16
PROGRESS_EVERY_S = 2.0
_WRITTEN_SCHEMA = pa.schema(
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
_WRITTEN_DDL = (
    "key string, size_bytes long, md5 string, rows long, listed_bytes long, "
    "subject string, reason string, fix string"
)
Write = Callable[[Iterable[pa.RecordBatch]], Iterator[WrittenFile]]


def write_files_by_spark(
    spark: "SparkSession", place: ReportDestination, report_progress: ReportProgress
) -> list[WrittenFile]:
    """List a bucket into data files of a report, which the tasks write to its destination.

    Raises:
        BackupError: the source or the destination refuses.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[WrittenFile]:
        return write_files(place, batches)

    return _run_spark_tasks(spark, place.source, place.versions, write, report_progress)


def write_rows_by_spark(
    spark: "SparkSession",
    source: StoreAddress,
    folder: Path,
    own: tuple[str, ...],
    *,
    versions: bool,
    report_progress: ReportProgress,
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
                filtered = drop_prefixes(batch, own)
                writer.write_batch(filtered)
                rows += filtered.num_rows
                size += pc.sum(filtered["size_bytes"]).as_py() or 0
        yield WrittenFile(path.name, path.stat().st_size, "", rows, size)

    files = _run_spark_tasks(spark, source, versions, write, report_progress)
    for number, file in enumerate(files):
        (making / file.key).rename(making / f"part-{number:05}.parquet")
    for left in making.glob("*.writing"):
        left.unlink()
    making.rename(folder)
    return sum(file.rows for file in files), sum(file.listed_bytes for file in files)


def _run_spark_tasks(
    spark: "SparkSession", source: StoreAddress, versions: bool, write: Write, report_progress: ReportProgress
) -> list[WrittenFile]:
    cores = _count_cores(spark)
    ranges, beside = find_first_ranges(source, RANGES_A_CORE * cores, versions=versions)
    tasks = max(1, min(len(ranges), TASKS_A_CORE * cores))
    report_progress(f"{source}: {len(ranges)} ranges of keys are listed by {tasks} tasks")

    def list_some(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from _run_task(source, ranges[number::tasks], versions, write)

    answers = spark.range(0, tasks, 1, tasks).mapInArrow(list_some, _WRITTEN_DDL)
    found = []
    for row in _collect_rows(spark, answers, tasks, report_progress):
        if row.reason is not None:
            raise BackupError(row.subject, row.reason, row.fix)
        found.append(WrittenFile(row.key, row.size_bytes, row.md5, row.rows, row.listed_bytes))
    return [*found, *(write(beside) if beside else ())]


def _count_cores(spark: "SparkSession") -> int:
    """The cores that tasks have; behind Spark Connect nobody tells."""
    return CORES_OF_CONNECT if _is_remote(spark) else spark.sparkContext.defaultParallelism


def _collect_rows(
    spark: "SparkSession", answers: "DataFrame", tasks: int, report_progress: ReportProgress
) -> "list[Row]":
    """All rows, while it is told how many tasks are done."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(answers.collect)
        while not wait([future], timeout=PROGRESS_EVERY_S).done:
            if not _is_remote(spark):
                report_progress(
                    f"{_count_done_tasks(spark, tasks)} of {tasks} tasks have listed their ranges"
                )
        return future.result()


def _count_done_tasks(spark: "SparkSession", tasks: int) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = (tracker.getStageInfo(number) for number in tracker.getActiveStageIds())
    return max(
        (one.numCompletedTasks for one in stages if one is not None and one.numTasks == tasks), default=0
    )


def _is_remote(spark: "SparkSession") -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def _run_task(
    source: StoreAddress, ranges: list[KeyRange], versions: bool, write: Write
) -> Iterator[pa.RecordBatch]:
    try:
        for file in write(list_range_rows(source, ranges, versions=versions)):
            values = (file.key, file.size_bytes, file.md5, file.rows, file.listed_bytes, None, None, None)
            yield _make_row(values)
    except BackupError as error:
        yield _make_row((None, None, None, None, None, error.subject, error.reason, error.fix))


def _make_row(values: tuple[object, ...]) -> pa.RecordBatch:
    arrays = [pa.array([value], field.type) for value, field in zip(values, _WRITTEN_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_WRITTEN_SCHEMA)


def generate_report(
    place: ReportDestination,
    *,
    in_flight: int = IN_FLIGHT,
    spark: "OpenSpark | None" = None,
    report_progress: ReportProgress = log_message,
) -> GeneratedReport:
    """List all of a source and write the report of it; until its checksum is written, there is no report.

    The moment before the listing began is the report's time: what was changed later may be in it or not.

    Raises:
        BackupError: the source or the destination refuses, or there is a report of this minute already.
    """
    started_at = _now()
    if spark is not None and place.source.kind != FOLDER:
        files = write_files_by_spark(spark(), place, report_progress)
    else:
        batches = list_rows(
            place.source, versions=place.versions, in_flight=in_flight, report_progress=report_progress
        )
        files = list(write_files(place, batches))
    ended_at = _now()
    generated = write_manifest(place, files, started_at, ended_at)
    report_progress(f"{generated.location}: {generated.rows:,} objects in {generated.files} files")
    return generated


def list_source(
    backup: Backup,
    workspace: Workspace,
    spark: "OpenSpark | None" = None,
    report_progress: ReportProgress = log_message,
) -> ListingRecord:
    """List a backup's source into the workspace's folder `listing`, without what lakeshare keeps there itself.

    Spark lists a bucket when the backup's engine is Spark: each task lists ranges of keys that no other has.

    Raises:
        BackupError: the source refuses, or it is empty.
    """
    source, own, versions = backup.source, own_prefixes(backup), backup.listing.versions
    started_at = _now()
    folder = workspace.clear("listing")
    if spark is not None and backup.engine == "spark" and source.kind != FOLDER:
        rows, size = write_rows_by_spark(
            spark(), source, folder, own, versions=versions, report_progress=report_progress
        )
    else:
        batches = list_rows(
            source,
            versions=versions,
            in_flight=min(backup.in_flight, IN_FLIGHT),
            report_progress=report_progress,
        )
        counted = _RowCounter()
        write_rows(folder, LISTING, counted.counting(drop_prefixes(batch, own) for batch in batches))
        rows, size = counted.rows, counted.size_bytes
    if not rows:
        workspace.clear("listing")
        raise BackupError(
            str(source), "there is no object in it", "Correct the backup's `source`: nothing needs no backup."
        )
    return ListingRecord(
        kind="generator",
        location=str(source),
        scan_started_at=started_at,
        scan_ended_at=_now(),
        has_versions=versions and source.kind != FOLDER,
        rows=rows,
        size_bytes=size,
    )


class _RowCounter:
    """What passes by."""

    rows = size_bytes = 0

    def counting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            self.size_bytes += pc.sum(batch.column("size_bytes")).as_py() or 0
            if batch.num_rows:
                yield batch


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
