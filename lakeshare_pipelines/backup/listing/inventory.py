"""A whole report of S3 Inventory as a normalised listing: its data files are read side by side, here or by Spark."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.data_files import listed_rows, require_needed
from lakeshare_pipelines.backup.listing.own_keys import own_prefixes, without_prefixes
from lakeshare_pipelines.backup.listing.reports import Report
from lakeshare_pipelines.backup.listing.telling import Tell
from lakeshare_pipelines.backup.records import ListingRecord
from lakeshare_pipelines.backup.rows import LISTING
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.workspace import Workspace
from lakeshare_pipelines.errors import BackupError, ReportUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_BYTES = 512 * 1024**2
"""From this size of its data files on (some ten million rows) a report is read by Spark, where there is one."""

TELL_EVERY_S = 1.0


def _to_nobody(_: int) -> None:
    """Who reads on an executor has nobody to tell."""


@dataclass(frozen=True)
class ReadFile:
    """What became of one data file."""

    number: int
    rows: int = 0
    size_bytes: int = 0
    refusal: tuple[str, str, str] | None = None
    """Subject, reason and remedy of why the report cannot be used."""


@dataclass(frozen=True)
class ReportReading:
    """One report on its way into a folder of rows; small, goes to Spark's executors."""

    report: Report
    folder: Path
    prefix: str
    """Keys that do not begin with it are not of the source."""
    own: tuple[str, ...]
    """Keys that begin with one of these are left out."""

    @cached_property
    def store(self) -> BackupStore:
        """Opened once by whoever reads: a client of boto3 takes as long to make as a small file to read."""
        return open_store(self.report.store)

    def read(self, number: int, seen: Callable[[int], None] = _to_nobody) -> ReadFile:
        """Write the rows of one data file as one Parquet file; again, it is written again. `seen` is told of rows."""
        path = self.folder / f"part-{number:05}.parquet"
        part = path.with_suffix(".writing")
        file = self.report.files[number]
        rows = size = 0
        try:
            with pq.ParquetWriter(part, LISTING, compression="zstd") as writer:
                for batch in self._kept(listed_rows(self.store, self.report, file)):
                    writer.write_batch(batch)
                    rows += len(batch)
                    seen(len(batch))
                    size += pc.sum(batch["size_bytes"]).as_py() or 0
        except ReportUnusable as error:
            part.unlink(missing_ok=True)
            return ReadFile(number, refusal=(error.subject, error.reason, error.fix))
        part.replace(path)
        return ReadFile(number, rows, size)

    def _kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            of_source = batch.filter(pc.starts_with(batch["key"], self.prefix)) if self.prefix else batch
            kept = without_prefixes(of_source, self.own)
            if len(kept):
                yield kept


def list_report(
    backup: Backup,
    report: Report,
    workspace: Workspace,
    tell: Tell,
    spark: "Callable[[], SparkSession] | None" = None,
) -> ListingRecord:
    """Read a report into the workspace's folder `listing`, which appears when all of it is read.

    Raises:
        ReportUnusable: a data file is missing, damaged or unreadable, or nothing of the source is listed.
        BackupError: the store cannot be read.
    """
    require_needed(report)
    folder = workspace.clear("listing")
    making = folder.with_name(f".{folder.name}.part")
    making.mkdir(parents=True)
    reading = ReportReading(report, making, backup.source.prefix, own_prefixes(backup))
    size = sum(file.size_bytes for file in report.files)
    if spark is not None and size >= SPARK_BYTES:
        found = _read_by_spark(spark(), reading, tell)
    else:
        found = _read_by_threads(reading, tell)
    rows = sum(one.rows for one in found)
    if not rows:
        raise ReportUnusable(
            report.location,
            f"it lists no object of {backup.source}",
            "Check the filter of the store's inventory; an empty source needs no backup.",
        )
    making.rename(folder)
    return ListingRecord(
        kind="s3_inventory",
        location=report.location,
        scan_started_at=report.scan_started_at,
        manifest_md5=report.manifest_md5,
        has_versions=report.has_versions,
        rows=rows,
        size_bytes=sum(one.size_bytes for one in found),
        warnings=_warnings(backup, report),
    )


def _warnings(backup: Backup, report: Report) -> tuple[str, ...]:
    if backup.listing.versions and not report.has_versions:
        return (
            f"{report.location} lists current objects only, though backup {backup.name} asks for all versions: "
            "nothing can be healed from older ones. Configure the store's inventory with all versions.",
        )
    return ()


def _read_by_threads(reading: ReportReading, tell: Tell) -> list[ReadFile]:
    files, found, seen = len(reading.report.files), list[ReadFile](), list[int]()
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        left = {pool.submit(reading.read, number, seen.append) for number in range(files)}
        try:
            while left:
                done, left = wait(left, TELL_EVERY_S, FIRST_COMPLETED)
                found += [_usable(one.result()) for one in done]
                tell(f"read {len(found)} of {files} files of the report: {sum(seen):,} objects")
        except BackupError:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _read_by_spark(spark: "SparkSession", reading: ReportReading, tell: Tell) -> list[ReadFile]:
    """Each task reads some files and writes their rows itself; the folder is one that all executors see."""
    files = len(reading.report.files)
    tell(f"Spark reads {files} files of the report")
    numbers = spark.range(0, files, 1, min(files, 4 * spark.sparkContext.defaultParallelism))

    def read_some(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                one = reading.read(number)
                told = [number, one.rows, one.size_bytes, *(one.refusal or (None, None, None))]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([value], kind) for value, kind in zip(told, _TOLD_KINDS, strict=True)],
                    list(_TOLD_NAMES),
                )

    answers = numbers.mapInArrow(read_some, _TOLD_SCHEMA).collect()
    return [
        _usable(
            ReadFile(
                row.number,
                row.rows,
                row.size_bytes,
                (row.subject, row.reason, row.fix) if row.reason is not None else None,
            )
        )
        for row in answers
    ]


def _usable(one: ReadFile) -> ReadFile:
    if one.refusal is not None:
        raise ReportUnusable(*one.refusal)
    return one


_TOLD_SCHEMA = "number long, rows long, size_bytes long, subject string, reason string, fix string"
_TOLD_NAMES: Sequence[str] = ("number", "rows", "size_bytes", "subject", "reason", "fix")
_TOLD_KINDS = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())
