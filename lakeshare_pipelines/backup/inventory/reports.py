"""Reports of S3 Inventory: which have arrived, their manifests, and the first that speaks for a day.

A report counts from the arrival of its manifest.checksum, which is written last. Its rows are read in data_files.py.
"""

import datetime as dt
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from gzip import GzipFile
from hashlib import md5
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, ValidationError

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import (
    LISTED_AS,
    ReportFormat,
    ReportProgress,
    drop_prefixes,
    own_prefixes,
    parse_file_schema,
    resolve_address,
)
from lakeshare_pipelines.backup.model import LISTING, ListingRecord
from lakeshare_pipelines.backup.points import Workspace, get_point_time
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import FOLDER
from lakeshare_pipelines.errors import BackupError, ObjectMissing, ReportUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCAN_TIME = "%Y-%m-%dT%H-%MZ"
"""How the folder of a report is called: the minute its scan began (S3 User Guide, "Locating your inventory list")."""
NEXT_REPORT = "The next report is taken, or the generator lists when none comes in time."
_ARRIVED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\dZ)/manifest\.checksum")


@dataclass(frozen=True)
class ReportFile:
    """A data file of a report, as the manifest tells it."""

    key: str
    size_bytes: int
    md5: str


@dataclass(frozen=True)
class Arrival:
    """A report that is whole by its own account; nothing of it is read yet."""

    folder: str
    """Key prefix of its manifest, with a slash at its end."""
    scan_started_at: dt.datetime
    arrived_at: dt.datetime


@dataclass(frozen=True)
class Report:
    """A report whose manifest is what its checksum says."""

    store: StoreAddress
    location: str
    """URL of its manifest.json."""
    source_bucket: str
    scan_started_at: dt.datetime
    arrived_at: dt.datetime
    file_format: ReportFormat
    columns: tuple[str, ...]
    files: tuple[ReportFile, ...]
    manifest_md5: str

    @property
    def has_versions(self) -> bool:
        """It lists all versions, not the current ones only."""
        return {"version_id", "is_latest"} <= set(self.columns)


@dataclass(frozen=True)
class LateReport:
    """No report came in time; what there is to say about it."""

    reason: str


def open_report_store(backup: Backup) -> BackupStore:
    """The store that reports of a backup arrive in: the whole bucket, or the folder of the reports."""
    location = backup.listing.location or ""
    address = resolve_address(backup, location)
    return open_store(address if address.kind == FOLDER else address.at(address.bucket))


def list_arrivals(store: BackupStore, location: str) -> list[Arrival]:
    """The reports that have arrived at a location (…/source-bucket/config-id), oldest scan first."""
    base = _get_key_prefix(location)
    # Data files, which are many, lie beside the dated folders: no year of a report begins otherwise.
    found = []
    for one in store.list(f"{base}2"):
        match = _ARRIVED.fullmatch(one.key.removeprefix(base))
        if match is not None:
            began = dt.datetime.strptime(match[1], SCAN_TIME).replace(tzinfo=dt.UTC)
            found.append(Arrival(one.key.removesuffix("manifest.checksum"), began, one.last_modified))
    return sorted(found, key=lambda arrival: arrival.scan_started_at)


def read_reports(store: BackupStore, location: str) -> Iterator[Report]:
    """The reports that have arrived at a location, oldest scan first.

    Raises:
        ReportUnusable: at a report whose manifest is damaged.
        BackupError: the store cannot be read.
    """
    for arrival in list_arrivals(store, location):
        yield read_report(store, location, arrival)


def read_report(store: BackupStore, location: str, arrival: Arrival) -> Report:
    """A report's manifest, checked against its checksum.

    Raises:
        ReportUnusable: it is damaged, or is no manifest.
    """
    key = f"{arrival.folder}manifest.json"
    where = store.address.location(key)
    try:
        written, checksum = store.read(key), store.read(f"{arrival.folder}manifest.checksum")
    except ObjectMissing as error:
        raise ReportUnusable(where, "it is gone since it was listed", NEXT_REPORT) from error
    digest = md5(written, usedforsecurity=False).hexdigest()
    if digest != checksum.decode("ascii", "replace").strip().lower():
        raise ReportUnusable(where, f"its MD5 is {digest}, manifest.checksum tells another", NEXT_REPORT)
    manifest = _parse_manifest(written, where)
    return Report(
        store.address,
        where,
        manifest.source_bucket,
        # Seconds are in the manifest only; both are the moment the scan began.
        dt.datetime.fromtimestamp(int(manifest.creation_timestamp) / 1000, dt.UTC),
        arrival.arrived_at,
        manifest.file_format,
        _parse_columns(manifest, where),
        tuple(
            ReportFile(_resolve_key(store.address, location, file.key), file.size, file.md5)
            for file in manifest.files
        ),
        digest,
    )


def compute_earliest_scan(backup: Backup, day: str) -> dt.datetime:
    """When the scan of a report may begin that speaks for a day: at D+lag 00:00 UTC, and not before the day ends."""
    as_of = get_point_time(day)
    if "T" in day:
        return as_of
    return as_of + dt.timedelta(days=max(0, backup.listing.lag_days - 1))


def compute_deadline(backup: Backup, day: str) -> dt.datetime:
    """Until when a report of a day is waited for. A point of a moment waits for none."""
    hours = 0 if "T" in day else backup.listing.wait_hours
    return compute_earliest_scan(backup, day) + dt.timedelta(hours=hours)


def list_candidates(backup: Backup, store: BackupStore, day: str) -> list[Arrival]:
    """The reports that may speak for a day, by the minute that their folders tell; the first to be taken first."""
    earliest = compute_earliest_scan(backup, day)
    found = list_arrivals(store, backup.listing.location or "")
    return [arrival for arrival in found if arrival.scan_started_at + dt.timedelta(minutes=1) > earliest]


def covers_day(backup: Backup, day: str, report: Report) -> bool:
    """Whether a report's scan began late enough, by the millisecond that its manifest tells."""
    return report.scan_started_at >= compute_earliest_scan(backup, day)


def find_report(backup: Backup, day: str, now: dt.datetime) -> Report | LateReport | None:
    """The first whole report that may speak for a day; None while it is waited for, Late when that is over.

    Raises:
        BackupError: the reports are those of another bucket, or their store cannot be read.
    """
    store, unusable = open_report_store(backup), []
    for arrival in list_candidates(backup, store, day):
        try:
            report = read_report(store, backup.listing.location or "", arrival)
            if covers_day(backup, day, report):
                return require_source(backup, report)
        except ReportUnusable as error:
            unusable.append(str(error))
    if now < compute_deadline(backup, day):
        return None
    return LateReport(" ".join([describe_late_reports(backup, day), *unusable]))


def describe_late_reports(backup: Backup, day: str) -> str:
    """A sentence about reports that have not come."""
    return (
        f"{backup.listing.location}: no usable report whose scan began at "
        f"{compute_earliest_scan(backup, day):%Y-%m-%d %H:%M} "
        f"UTC or later had come by {compute_deadline(backup, day):%Y-%m-%d %H:%M} UTC; the generator lists instead."
    )


def require_source(backup: Backup, report: Report) -> Report:
    """The report, if it is one of the backup's source.

    Raises:
        BackupError: it is of another bucket.
    """
    if report.source_bucket != backup.source.bucket:
        raise BackupError(
            report.location,
            f"it lists {report.source_bucket}, and backup {backup.name} is of {backup.source.bucket}",
            "Correct `listing.location`: it ends with the source's bucket and the configuration's id.",
        )
    return report


class _ManifestFile(BaseModel):
    key: str
    size: int
    md5: str = Field(alias="MD5checksum")


class _Manifest(BaseModel):
    source_bucket: str = Field(alias="sourceBucket")
    # Milliseconds, as a string.
    creation_timestamp: str = Field(alias="creationTimestamp", pattern=r"^\d{1,15}$")
    file_format: ReportFormat = Field(alias="fileFormat")
    file_schema: str = Field(alias="fileSchema")
    files: tuple[_ManifestFile, ...]


def _parse_manifest(written: bytes, where: str) -> _Manifest:
    try:
        return _Manifest.model_validate(json.loads(written), strict=False)
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise ReportUnusable(where, f"it is no manifest of an inventory: {first}", NEXT_REPORT) from error


def _parse_columns(manifest: _Manifest, where: str) -> tuple[str, ...]:
    try:
        return parse_file_schema(manifest.file_format, manifest.file_schema)
    except BackupError as error:
        raise ReportUnusable(where, f"{error.subject}: {error.reason}", NEXT_REPORT) from error


def _get_key_prefix(location: str) -> str:
    """What the keys of a location's reports begin with, in the store that `report_store` opens."""
    prefix = StoreAddress(url=location).prefix
    return "" if location.startswith("/") else prefix


def _resolve_key(address: StoreAddress, location: str, key: str) -> str:
    """Manifests tell keys of the whole bucket; a store that is a folder begins at the reports themselves."""
    if address.kind != FOLDER:
        return key
    place, parts = PurePosixPath(location).parts, PurePosixPath(key).parts
    for shared in range(min(len(place), len(parts)), 0, -1):
        if place[-shared:] == parts[:shared]:
            return "/".join(parts[shared:])
    return key


SHOWN = 5


@dataclass(frozen=True)
class ReportStatus:
    """One report that has arrived."""

    scan_started_at: dt.datetime
    arrived_at: dt.datetime
    age: dt.timedelta
    """Since its scan began: so old is what it tells."""
    day: str
    """The newest day it may speak for."""
    is_in_time: bool
    report: Report | None
    problem: str | None
    """Why it cannot be used; None when its manifest is whole."""


@dataclass(frozen=True)
class InventoryStatus:
    """The reports of one backup, newest first, and the newest day whose wait is over."""

    reports: tuple[ReportStatus, ...]
    arrived: int
    due_day: str
    late: LateReport | None
    """Set when no report came for that day; the generator lists it instead."""
    next_day: str
    """The day that is waited for next, or whose report may come already."""
    next_from: dt.datetime
    next_until: dt.datetime


def get_inventory_status(backup: Backup, now: dt.datetime) -> InventoryStatus:
    """Look at the reports of a backup of kind s3_inventory; of each shown one the manifest is read and checked.

    Raises:
        BackupError: their place cannot be read, or they are of another bucket.
    """
    store, location = open_report_store(backup), backup.listing.location or ""
    arrived = list_arrivals(store, location)
    shown = []
    for arrival in reversed(arrived[-SHOWN:]):
        day = _newest_day(backup, arrival.scan_started_at)
        report, problem = None, None
        try:
            report = read_report(store, location, arrival)
        except ReportUnusable as error:
            problem = str(error)
        shown.append(
            ReportStatus(
                arrival.scan_started_at,
                arrival.arrived_at,
                now - arrival.scan_started_at,
                day,
                arrival.arrived_at <= compute_deadline(backup, day),
                report,
                problem,
            )
        )
    due = _newest_day(backup, now - dt.timedelta(hours=backup.listing.wait_hours))
    awaited = find_report(backup, due, now) if due >= str(backup.first_day) else None
    following = str(dt.date.fromisoformat(due) + dt.timedelta(days=1))
    return InventoryStatus(
        tuple(shown),
        len(arrived),
        due,
        awaited if isinstance(awaited, LateReport) else None,
        following,
        compute_earliest_scan(backup, following),
        compute_deadline(backup, following),
    )


def _newest_day(backup: Backup, scan: dt.datetime) -> str:
    """The newest day that a report may speak for whose scan began then."""
    day = scan.astimezone(dt.UTC).date() - dt.timedelta(days=max(1, backup.listing.lag_days))
    return str(day)


BATCH_ROWS = 131_072
CSV_BLOCK_BYTES = 16 * 1024**2
DIGEST_BLOCK_BYTES = 1024**2
NEEDED = ("size", "last_modified_date", "e_tag")
"""Without these a copy has nothing to be compared with."""


def require_needed(report: Report) -> None:
    """Refuse a report that was configured without what a backup needs.

    Raises:
        ReportUnusable: it lacks a column.
    """
    lacking = [name for name in NEEDED if name not in report.columns]
    if lacking:
        raise ReportUnusable(
            report.location,
            f"it has no {', '.join(lacking)}",
            "Let `lakeshare inventory configure` ask the store for them; reports from then on have them.",
        )


def read_listed_rows(store: BackupStore, report: Report, file: ReportFile) -> Iterator[pa.RecordBatch]:
    """The rows of one data file, as batches of schema LISTING.

    Raises:
        ReportUnusable: the file is not there, is not what the manifest says, or cannot be read as such.
    """
    where = store.address.location(file.key)
    try:
        content = store.open(file.key)
    except ObjectMissing as error:
        raise ReportUnusable(where, "a data file of the report is not there", NEXT_REPORT) from error
    with content:
        _require_whole(content, file, where)
        try:
            for rows in _READERS[report.file_format](content, report.columns):
                yield _normalize_rows(rows, report, where)
        except (pa.ArrowException, ValueError, OSError, EOFError, zlib.error) as error:
            # Not what its schema says, or cut off: Arrow tells the row or the column.
            raise ReportUnusable(
                where, f"it cannot be read as {report.file_format}: {error}", NEXT_REPORT
            ) from error


def decode_keys(keys: pa.Array) -> pa.Array:
    """Keys as CSV reports spell them (URL-encoded, a space as `+`), decoded.

    Raises:
        UnicodeDecodeError: a key is no UTF-8.
    """
    is_encoded = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(is_encoded).as_py():
        return keys
    # Folders repeat from key to key, and are where partitions have their `%3D`.
    folders: dict[str, str] = {}

    def decoded(key: str) -> str:
        folder, slash, name = key.rpartition("/")
        if folder not in folders:
            folders[folder] = unquote_plus(folder, errors="strict")
        return f"{folders[folder]}{slash}{unquote_plus(name, errors='strict')}"

    return pa.array([decoded(key) for key in keys.to_pylist()], pa.string())


def _require_whole(content: IO[bytes], file: ReportFile, where: str) -> None:
    digest, size = md5(usedforsecurity=False), 0
    while block := content.read(DIGEST_BLOCK_BYTES):
        digest.update(block)
        size += len(block)
    if digest.hexdigest() != file.md5.lower():
        reason = f"its MD5 is {digest.hexdigest()} ({size} bytes), the manifest tells {file.md5} ({file.size_bytes})"
        raise ReportUnusable(where, reason, NEXT_REPORT)
    content.seek(0)


def _normalize_rows(rows: pa.RecordBatch, report: Report, where: str) -> pa.RecordBatch:
    """Rows under a listing's names and types."""
    names = rows.schema.names
    lacking = [name for name in ("bucket", "key", *NEEDED) if name not in names]
    if lacking:
        raise ReportUnusable(
            where, f"it lacks {', '.join(lacking)}, which its manifest tells of", NEXT_REPORT
        )
    columns = {
        listed: rows.column(names.index(column_name)).cast(LISTING.field(listed).type)
        for column_name, listed in LISTED_AS.items()
        if column_name in names
    }
    if pc.any(pc.not_equal(columns["bucket"], report.source_bucket)).as_py():
        raise ReportUnusable(where, f"it has rows of other buckets than {report.source_bucket}", NEXT_REPORT)
    if report.file_format == "CSV":
        columns["key"] = decode_keys(columns["key"])
    # A report of current objects tells no versions; markers have neither size nor ETag.
    for name, otherwise in (("is_latest", True), ("is_delete_marker", False)):
        columns[name] = (
            pc.fill_null(columns[name], otherwise) if name in columns else _repeat_value(otherwise, len(rows))
        )
    if "version_id" in columns:
        version = columns["version_id"]
        is_null = pc.fill_null(pc.is_in(version, pa.array(["", "null"])), True)
        columns["version_id"] = pc.if_else(is_null, pa.scalar(None, pa.string()), version)
    if "etag" in columns:
        columns["etag"] = pc.utf8_trim(columns["etag"], characters='"')
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(rows), field.type)) for field in LISTING], schema=LISTING
    )


def _repeat_value(value: bool, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)


def _csv_rows(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

    # A report of no rows may have a file of none, which Arrow calls invalid.
    if not GzipFile(fileobj=content, mode="rb").read(1):
        return
    content.seek(0)
    stream = pa.CompressedInputStream(pa.PythonFile(content, mode="r"), "gzip")
    wanted = [name for name in LISTED_AS if name in columns]
    yield from csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=list(columns), block_size=CSV_BLOCK_BYTES),
        convert_options=csv.ConvertOptions(
            include_columns=wanted,
            column_types={name: LISTING.field(LISTED_AS[name]).type for name in wanted},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )


def _orc_rows(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import orc

    file = orc.ORCFile(content)
    wanted = [name for name in file.schema.names if name in LISTED_AS and name in columns]
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe, columns=wanted)


def _parquet_rows(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(content) as file:
        names = file.schema_arrow.names
        wanted = [name for name in names if name in LISTED_AS and name in columns]
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=wanted)


_READERS: dict[ReportFormat, Callable[[IO[bytes], Sequence[str]], Iterator[pa.RecordBatch]]] = {
    "CSV": _csv_rows,
    "ORC": _orc_rows,
    "Parquet": _parquet_rows,
}


SPARK_BYTES = 512 * 1024**2
"""From this size of its data files on (some ten million rows) a report is read by Spark, where there is one."""

PROGRESS_EVERY_S = 1.0


def _ignore_progress(_: int) -> None:
    """Who reads on an executor has nobody to tell."""


@dataclass(frozen=True)
class FileResult:
    """What became of one data file."""

    number: int
    rows: int = 0
    size_bytes: int = 0
    refusal: tuple[str, str, str] | None = None
    """Subject, reason and remedy of why the report cannot be used."""


@dataclass(frozen=True)
class ReportReader:
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

    def read(self, number: int, seen: Callable[[int], None] = _ignore_progress) -> FileResult:
        """Write the rows of one data file as one Parquet file; again, it is written again. `seen` is told of rows."""
        path = self.folder / f"part-{number:05}.parquet"
        part = path.with_suffix(".writing")
        file = self.report.files[number]
        rows = size = 0
        try:
            with pq.ParquetWriter(part, LISTING, compression="zstd") as writer:
                for batch in self._kept(read_listed_rows(self.store, self.report, file)):
                    writer.write_batch(batch)
                    rows += len(batch)
                    seen(len(batch))
                    size += pc.sum(batch["size_bytes"]).as_py() or 0
        except ReportUnusable as error:
            part.unlink(missing_ok=True)
            return FileResult(number, refusal=(error.subject, error.reason, error.fix))
        part.replace(path)
        return FileResult(number, rows, size)

    def _kept(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            of_source = batch.filter(pc.starts_with(batch["key"], self.prefix)) if self.prefix else batch
            filtered = drop_prefixes(of_source, self.own)
            if len(filtered):
                yield filtered


def list_report(
    backup: Backup,
    report: Report,
    workspace: Workspace,
    report_progress: ReportProgress,
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
    reading = ReportReader(report, making, backup.source.prefix, own_prefixes(backup))
    size = sum(file.size_bytes for file in report.files)
    if spark is not None and size >= SPARK_BYTES:
        found = _read_by_spark(spark(), reading, report_progress)
    else:
        found = _read_by_threads(reading, report_progress)
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


def _read_by_threads(reading: ReportReader, report_progress: ReportProgress) -> list[FileResult]:
    files, found, seen = len(reading.report.files), list[FileResult](), list[int]()
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        left = {pool.submit(reading.read, number, seen.append) for number in range(files)}
        try:
            while left:
                done, left = wait(left, PROGRESS_EVERY_S, FIRST_COMPLETED)
                found += [_require_readable(one.result()) for one in done]
                report_progress(f"read {len(found)} of {files} files of the report: {sum(seen):,} objects")
        except BackupError:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def _read_by_spark(
    spark: "SparkSession", reading: ReportReader, report_progress: ReportProgress
) -> list[FileResult]:
    """Each task reads some files and writes their rows itself; the folder is one that all executors see."""
    files = len(reading.report.files)
    report_progress(f"Spark reads {files} files of the report")
    numbers = spark.range(0, files, 1, min(files, 4 * spark.sparkContext.defaultParallelism))

    def read_some(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                one = reading.read(number)
                values = [number, one.rows, one.size_bytes, *(one.refusal or (None, None, None))]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([value], kind) for value, kind in zip(values, _RESULT_TYPES, strict=True)],
                    list(_RESULT_NAMES),
                )

    answers = numbers.mapInArrow(read_some, _RESULT_DDL).collect()
    return [
        _require_readable(
            FileResult(
                row.number,
                row.rows,
                row.size_bytes,
                (row.subject, row.reason, row.fix) if row.reason is not None else None,
            )
        )
        for row in answers
    ]


def _require_readable(one: FileResult) -> FileResult:
    if one.refusal is not None:
        raise ReportUnusable(*one.refusal)
    return one


_RESULT_DDL = "number long, rows long, size_bytes long, subject string, reason string, fix string"
_RESULT_NAMES: Sequence[str] = ("number", "rows", "size_bytes", "subject", "reason", "fix")
_RESULT_TYPES = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string())
