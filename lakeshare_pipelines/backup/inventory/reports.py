"""Reports in the layout of S3 Inventory: finding, checking, reading and generating them.

A report counts from the arrival of its manifest.checksum, which is written last.
"""

import datetime as dt
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from hashlib import md5
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, TypeVar
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, ValidationError

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import (
    LISTED_AS,
    NEEDED_FIELDS,
    InventoryColumn,
    ReportFormat,
    drop_prefixes,
    format_file_schema,
    own_prefixes,
    parse_file_schema,
    resolve_address,
    select_report_columns,
)
from lakeshare_pipelines.backup.inventory.list_objects import (
    IN_FLIGHT,
    decode_keys,
    list_by_spark,
    list_rows,
    log_message,
)
from lakeshare_pipelines.backup.points import Workspace, get_point_time
from lakeshare_pipelines.backup.stores import FOLDER, BackupStore, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing, ReportUnusable

Result = TypeVar("Result")
SCAN_TIME = "%Y-%m-%dT%H-%MZ"  # Name of a report's folder (S3 User Guide, "Locating your inventory list")
NEXT_REPORT = "The next report is taken, or the generator lists when none comes in time."
_ARRIVED = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\dZ)/manifest\.checksum")


class ReportFile(BaseModel, frozen=True):
    key: str
    size_bytes: int = Field(alias="size")
    md5: str = Field(alias="MD5checksum")


@dataclass(frozen=True)
class Arrival:
    """A report whose manifest.checksum has arrived; nothing of it is read yet."""

    folder: str  # Key prefix of its manifest, with a slash at its end
    scan_started_at: dt.datetime
    arrived_at: dt.datetime


@dataclass(frozen=True)
class Report:
    """A report whose manifest matches its checksum."""

    store: StoreAddress
    location: str  # URL of its manifest.json
    source_bucket: str
    scan_started_at: dt.datetime
    arrived_at: dt.datetime
    file_format: ReportFormat
    columns: tuple[str, ...]
    files: tuple[ReportFile, ...]
    manifest_md5: str

    @property
    def has_versions(self) -> bool:
        return {"version_id", "is_latest"} <= set(self.columns)


@dataclass(frozen=True)
class LateReport:
    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        return " ".join(self.reasons)


def open_report_store(backup: Backup) -> BackupStore:
    """The store of a backup's reports: the whole bucket, or the folder of the reports."""
    address = resolve_address(backup, backup.listing.location or "")
    return open_store(address if address.kind == FOLDER else address.at(address.bucket))


def list_arrivals(store: BackupStore, location: str) -> list[Arrival]:
    """The reports at a location (…/source-bucket/config-id), oldest scan first."""
    base = "" if location.startswith("/") else StoreAddress(url=location).prefix
    arrivals = []
    # The many data files are beside the dated folders, whose names begin with the year.
    for listed in store.list(f"{base}2"):
        if match := _ARRIVED.fullmatch(listed.key.removeprefix(base)):
            began = dt.datetime.strptime(match[1], SCAN_TIME).replace(tzinfo=dt.UTC)
            folder = listed.key.removesuffix("manifest.checksum")
            arrivals.append(Arrival(folder, began, listed.last_modified))
    return sorted(arrivals, key=lambda arrival: arrival.scan_started_at)


def read_report(store: BackupStore, location: str, arrival: Arrival) -> Report:
    """A report's manifest, checked against its checksum. Raises ReportUnusable if it is damaged, or is no manifest."""
    key = f"{arrival.folder}manifest.json"
    where = store.address.location(key)
    try:
        content, checksum = store.read(key), store.read(f"{arrival.folder}manifest.checksum")
    except ObjectMissing as error:
        raise ReportUnusable(where, "it is gone since it was listed", NEXT_REPORT) from error
    digest = md5(content, usedforsecurity=False).hexdigest()
    if digest != checksum.decode("ascii", "replace").strip().lower():
        raise ReportUnusable(where, f"its MD5 is {digest}, manifest.checksum has another", NEXT_REPORT)
    try:
        manifest = _Manifest.model_validate(json.loads(content), strict=False)
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise ReportUnusable(where, f"it is no manifest of an inventory: {first}", NEXT_REPORT) from error
    try:
        columns = parse_file_schema(manifest.file_format, manifest.file_schema)
    except BackupError as error:
        raise ReportUnusable(where, f"{error.subject}: {error.reason}", NEXT_REPORT) from error
    return Report(
        store.address,
        where,
        manifest.source_bucket,
        # The folder has the same moment without seconds.
        dt.datetime.fromtimestamp(int(manifest.creation_timestamp) / 1000, dt.UTC),
        arrival.arrived_at,
        manifest.file_format,
        columns,
        tuple(
            file.model_copy(update={"key": _resolve_key(store.address, location, file.key)})
            for file in manifest.files
        ),
        digest,
    )


class _Manifest(BaseModel):
    source_bucket: str = Field(alias="sourceBucket")
    # Milliseconds, as a string.
    creation_timestamp: str = Field(alias="creationTimestamp", pattern=r"^\d{1,15}$")
    file_format: ReportFormat = Field(alias="fileFormat")
    file_schema: str = Field(alias="fileSchema")
    files: tuple[ReportFile, ...]


def _resolve_key(address: StoreAddress, location: str, key: str) -> str:
    """The key of a data file: manifests have keys of the whole bucket, a folder begins at the reports."""
    if address.kind != FOLDER:
        return key
    place, parts = PurePosixPath(location).parts, PurePosixPath(key).parts
    for shared in range(min(len(place), len(parts)), 0, -1):
        if place[-shared:] == parts[:shared]:
            return "/".join(parts[shared:])
    return key


def compute_earliest_scan(backup: Backup, day: str) -> dt.datetime:
    """The earliest beginning of the scan for a day: at D+lag 00:00 UTC, and not before the day ends."""
    as_of = get_point_time(day)
    if "T" in day:
        return as_of
    return as_of + dt.timedelta(days=max(0, backup.listing.lag_days - 1))


def compute_deadline(backup: Backup, day: str) -> dt.datetime:
    """The end of the wait for a day's report. A point of a moment does not wait."""
    hours = 0 if "T" in day else backup.listing.wait_hours
    return compute_earliest_scan(backup, day) + dt.timedelta(hours=hours)


def find_report(backup: Backup, day: str, now: dt.datetime) -> Report | LateReport | None:
    """The first report with a valid manifest that covers a day; None during the wait, LateReport after it."""
    return use_first_report(backup, day, now, lambda report, _: report)


def use_first_report(
    backup: Backup,
    day: str,
    now: dt.datetime,
    use: Callable[[Report, list[str]], Result],
    report_message: model.ReportMessage = lambda _: None,
) -> Result | LateReport | None:
    """The result of `use` for the first report that covers a day and for which `use` does not raise ReportUnusable.

    `use` also gets sentences about the unusable reports before it. None during the wait, LateReport after it. Raises
    BackupError if the reports are those of another bucket, or their store cannot be read.
    """
    store, location = open_report_store(backup), backup.listing.location or ""
    earliest, deadline = compute_earliest_scan(backup, day), compute_deadline(backup, day)
    unusable: list[str] = []
    for arrival in list_arrivals(store, location):
        # The name of the folder has the minute of the scan, the manifest the millisecond.
        if arrival.scan_started_at + dt.timedelta(minutes=1) <= earliest:
            continue
        try:
            report = read_report(store, location, arrival)
            if report.scan_started_at < earliest:
                continue
            if report.source_bucket != backup.source.bucket:
                reason = (
                    f"it lists {report.source_bucket}, and backup {backup.name} is of {backup.source.bucket}"
                )
                fix = (
                    "Correct `listing.location`: it ends with the source's bucket and the configuration's id."
                )
                raise BackupError(report.location, reason, fix)
            return use(report, unusable)
        except ReportUnusable as error:
            report_message(str(error))
            unusable.append(str(error))
    if now < deadline:
        return None
    late = (
        f"{location}: no usable report whose scan began at {earliest:%Y-%m-%d %H:%M} UTC or later had come by "
        f"{deadline:%Y-%m-%d %H:%M} UTC; the generator lists instead."
    )
    return LateReport((late, *unusable))


MAX_SHOWN = 5


@dataclass(frozen=True)
class ReportStatus:
    scan_started_at: dt.datetime
    arrived_at: dt.datetime
    age: dt.timedelta  # Since its scan began
    day: str  # The newest day it may cover
    is_in_time: bool
    report: Report | None
    problem: str | None  # Why it cannot be used; None if its manifest is valid


@dataclass(frozen=True)
class InventoryStatus:
    reports: tuple[ReportStatus, ...]
    arrived: int
    due_day: str
    late: LateReport | None  # Set if no report came for that day; the generator lists it instead
    next_day: str  # The next day whose report is expected, or may have come already
    next_from: dt.datetime
    next_until: dt.datetime


def get_inventory_status(backup: Backup, now: dt.datetime) -> InventoryStatus:
    """The status of a backup of kind s3_inventory; the manifest of each shown report is read and checked."""
    store, location = open_report_store(backup), backup.listing.location or ""
    arrivals = list_arrivals(store, location)
    shown = []
    for arrival in reversed(arrivals[-MAX_SHOWN:]):
        day = _get_newest_day(backup, arrival.scan_started_at)
        report, problem = None, None
        try:
            report = read_report(store, location, arrival)
        except ReportUnusable as error:
            problem = str(error)
        is_in_time = arrival.arrived_at <= compute_deadline(backup, day)
        began = arrival.scan_started_at
        shown.append(ReportStatus(began, arrival.arrived_at, now - began, day, is_in_time, report, problem))
    due = _get_newest_day(backup, now - dt.timedelta(hours=backup.listing.wait_hours))
    awaited = find_report(backup, due, now) if due >= str(backup.first_day) else None
    following = str(dt.date.fromisoformat(due) + dt.timedelta(days=1))
    return InventoryStatus(
        tuple(shown),
        len(arrivals),
        due,
        awaited if isinstance(awaited, LateReport) else None,
        following,
        compute_earliest_scan(backup, following),
        compute_deadline(backup, following),
    )


def _get_newest_day(backup: Backup, scan: dt.datetime) -> str:
    return str(scan.astimezone(dt.UTC).date() - dt.timedelta(days=max(1, backup.listing.lag_days)))


BATCH_ROWS = 131_072
NEEDED = ("size", "last_modified_date", "e_tag")  # Without these, objects cannot be compared


def read_listed_rows(store: BackupStore, report: Report, file: ReportFile) -> Iterator[pa.RecordBatch]:
    """The rows of one data file. Raises ReportUnusable if it is missing, damaged, or differs from the manifest."""
    where = store.address.location(file.key)
    try:
        content = store.open(file.key)
    except ObjectMissing as error:
        raise ReportUnusable(where, "a data file of the report is not there", NEXT_REPORT) from error
    with content:
        digest, size = md5(usedforsecurity=False), 0
        while block := content.read(1024**2):
            digest.update(block)
            size += len(block)
        if digest.hexdigest() != file.md5.lower():
            actual, expected = f"{digest.hexdigest()} ({size} bytes)", f"{file.md5} ({file.size_bytes})"
            raise ReportUnusable(where, f"its MD5 is {actual}, the manifest has {expected}", NEXT_REPORT)
        content.seek(0)
        try:
            for rows in _READERS[report.file_format](content, report.columns):
                yield _normalize_report_rows(rows, report, where)
        except (pa.ArrowException, ValueError, OSError, EOFError, zlib.error) as error:
            # The file differs from its schema, or is cut off.
            reason = f"it cannot be read as {report.file_format}: {error}"
            raise ReportUnusable(where, reason, NEXT_REPORT) from error


def _normalize_report_rows(rows: pa.RecordBatch, report: Report, where: str) -> pa.RecordBatch:
    lacking = [name for name in ("bucket", "key", *NEEDED) if name not in rows.schema.names]
    if lacking:
        raise ReportUnusable(where, f"it lacks {', '.join(lacking)}, which its manifest has", NEXT_REPORT)
    columns = select_listed_columns(rows, LISTED_AS)
    if pc.any(pc.not_equal(columns["bucket"], report.source_bucket)).as_py():
        raise ReportUnusable(where, f"it has rows of other buckets than {report.source_bucket}", NEXT_REPORT)
    if report.file_format == "CSV" and pc.any(pc.match_substring_regex(columns["key"], "[%+]")).as_py():
        spelt = columns["key"].cast(pa.binary()).to_pylist()
        columns["key"] = pa.array(decode_keys(spelt), pa.string())
    return model.make_listing_batch(columns, len(rows))


def select_listed_columns(rows: pa.RecordBatch, names: Mapping[str, str]) -> dict[str, pa.Array]:
    """Columns of reports and metadata tables under the names and with the types of LISTING."""
    columns = {
        listed: rows[name].cast(model.LISTING.field(listed).type)
        for name, listed in names.items()
        if name in rows.schema.names
    }
    if "version_id" in columns:
        version = columns["version_id"]
        is_null = pc.fill_null(pc.is_in(version, pa.array(["", "null"])), True)
        columns["version_id"] = pc.if_else(is_null, pa.scalar(None, pa.string()), version)
    if "etag" in columns:
        columns["etag"] = pc.utf8_trim(columns["etag"], characters='"')
    return columns


def _read_csv(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

    # A report without rows may have an empty file, which Arrow calls invalid.
    if not gzip.GzipFile(fileobj=content, mode="rb").read(1):
        return
    content.seek(0)
    stream = pa.CompressedInputStream(pa.PythonFile(content, mode="r"), "gzip")
    names = [name for name in LISTED_AS if name in columns]
    yield from csv.open_csv(
        stream,
        read_options=csv.ReadOptions(column_names=list(columns), block_size=16 * 1024**2),
        convert_options=csv.ConvertOptions(
            include_columns=names,
            column_types={name: model.LISTING.field(LISTED_AS[name]).type for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
        ),
    )


def _read_orc(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    from pyarrow import orc

    file = orc.ORCFile(content)
    names = [name for name in file.schema.names if name in LISTED_AS and name in columns]
    for stripe in range(file.nstripes):
        yield file.read_stripe(stripe, columns=names)


def _read_parquet(content: IO[bytes], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(content) as file:
        names = [name for name in file.schema_arrow.names if name in LISTED_AS and name in columns]
        yield from file.iter_batches(batch_size=BATCH_ROWS, columns=names)


_READERS: dict[ReportFormat, Callable[[IO[bytes], Sequence[str]], Iterator[pa.RecordBatch]]] = {
    "CSV": _read_csv,
    "ORC": _read_orc,
    "Parquet": _read_parquet,
}


PROGRESS_EVERY_S = 1.0


def list_report(
    backup: Backup, report: Report, workspace: Workspace, report_progress: model.ReportMessage
) -> model.ListingRecord:
    """Read a report into the workspace's folder `listing`. Raises ReportUnusable if it is damaged, or has no object."""
    lacking = [name for name in NEEDED if name not in report.columns]
    if lacking:
        fix = "Let `lakeshare inventory configure` ask the store for them; reports from then on have them."
        raise ReportUnusable(report.location, f"it has no {', '.join(lacking)}", fix)
    folder = workspace.clear("listing")
    unfinished = folder.with_name(f".{folder.name}.part")
    unfinished.mkdir(parents=True)
    _write_files_of_report(backup, report, unfinished, report_progress)
    unfinished.rename(folder)
    rows, size_bytes = count_listing(workspace)
    if not rows:
        fix = "Check the filter of the store's inventory; an empty source needs no backup."
        raise ReportUnusable(report.location, f"it lists no object of {backup.source}", fix)
    warning = (
        f"{report.location} lists current objects only, though backup {backup.name} asks for all versions: "
        "nothing can be healed from older ones. Configure the store's inventory with all versions."
    )
    return model.ListingRecord(
        kind="s3_inventory",
        location=report.location,
        scan_started_at=report.scan_started_at,
        manifest_md5=report.manifest_md5,
        has_versions=report.has_versions,
        rows=rows,
        size_bytes=size_bytes,
        warnings=(warning,) if backup.listing.versions and not report.has_versions else (),
    )


def count_listing(workspace: Workspace) -> tuple[int, int]:
    """Number of rows of a listing, and their bytes; removes a listing without rows."""
    rows, size_bytes = model.count_rows(model.read_rows(workspace.rows("listing"), ["size_bytes"]))
    if not rows:
        workspace.clear("listing")
    return rows, size_bytes


def _write_files_of_report(
    backup: Backup, report: Report, folder: Path, report_progress: model.ReportMessage
) -> None:
    """Write the source's rows of each data file as a Parquet file. Raises ReportUnusable."""
    store, own, prefix = open_store(report.store), own_prefixes(backup), backup.source.prefix
    files, seen = len(report.files), list[int]()

    def write(number: int) -> None:
        path = folder / f"part-{number:05}.parquet"
        with pq.ParquetWriter(path, model.LISTING, compression="zstd") as writer:
            for batch in read_listed_rows(store, report, report.files[number]):
                kept = drop_prefixes(batch.filter(pc.starts_with(batch["key"], prefix)), own)
                if len(kept):
                    writer.write_batch(kept)
                    seen.append(len(kept))

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        left = {pool.submit(write, number) for number in range(files)}
        try:
            while left:
                done, left = wait(left, PROGRESS_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                finished = files - len(left)
                report_progress(f"read {finished} of {files} files of the report: {sum(seen):,} objects")
        except BackupError:
            pool.shutdown(cancel_futures=True)
            raise


LISTED_FIELDS = tuple(field for field in NEEDED_FIELDS if field != "EncryptionStatus")
"""Optional fields that a LIST returns; the others need a HEAD of each object."""
SUFFIXES = {"CSV": "csv.gz", "ORC": "orc", "Parquet": "parquet"}
ROWS_A_FILE = 500_000
_ENCODED_IN_KEYS = r"[^A-Za-z0-9/\-_.~*]"


@dataclass(frozen=True)
class ReportDestination:
    source: StoreAddress
    destination: StoreAddress
    file_format: ReportFormat = "Parquet"
    versions: bool = False
    configuration: str = "lakeshare"

    @property
    def prefix(self) -> str:
        """Key prefix of the source's reports in the destination: `<prefix>/<source-bucket>/<config-id>/`."""
        name = PurePosixPath(self.source.url).name if self.source.kind == FOLDER else self.source.bucket
        return f"{self.destination.prefix}{name}/{self.configuration}/"

    @property
    def columns(self) -> tuple[InventoryColumn, ...]:
        return select_report_columns(LISTED_FIELDS, versions=self.versions)


class WrittenFile(NamedTuple):
    key: str
    size_bytes: int
    md5: str
    rows: int
    listed_bytes: int  # Sum of the listed objects


@dataclass(frozen=True)
class GeneratedReport:
    location: str  # URL of its manifest.json
    scan_started_at: dt.datetime
    scan_ended_at: dt.datetime
    files: int
    rows: int
    size_bytes: int


def generate_report(
    place: ReportDestination,
    *,
    in_flight: int = IN_FLIGHT,
    spark: model.OpenSpark | None = None,
    report_progress: model.ReportMessage = log_message,
) -> GeneratedReport:
    """List all of a source and write a report, which exists when its checksum is written. Its time is the moment
    before the listing began: it may or may not include later changes."""
    started_at = dt.datetime.now(dt.UTC)
    source, versions = place.source, place.versions
    if spark is not None and source.kind != FOLDER:
        values = list_by_spark(spark(), source, versions, partial(write_files, place), report_progress)
        files = [WrittenFile(*value) for value in values]
    else:
        batches = list_rows(source, versions=versions, in_flight=in_flight, report_progress=report_progress)
        files = list(write_files(place, batches))
    report = write_manifest(place, files, started_at, dt.datetime.now(dt.UTC))
    report_progress(f"{report.location}: {report.rows:,} objects in {report.files} files")
    return report


def write_files(
    place: ReportDestination, batches: Iterable[pa.RecordBatch], rows_a_file: int = ROWS_A_FILE
) -> Iterator[WrittenFile]:
    store = open_store(place.destination)
    columns = {LISTED_AS[column.name]: column for column in place.columns}
    names = [column.name for column in place.columns]
    for group in model.group_batches(batches, rows_a_file):
        listing = pa.Table.from_batches(group)
        rows = listing.select(list(columns)).rename_columns(names)
        content = _FORMATS[place.file_format](rows, place.columns)
        key = f"{place.prefix}data/{uuid4()}.{SUFFIXES[place.file_format]}"
        store.put(key, content)
        digest = md5(content, usedforsecurity=False).hexdigest()
        size = pc.sum(listing.column("size_bytes")).as_py() or 0
        yield WrittenFile(key, len(content), digest, listing.num_rows, size)


def write_manifest(
    place: ReportDestination, files: Sequence[WrittenFile], started_at: dt.datetime, ended_at: dt.datetime
) -> GeneratedReport:
    """Make a report of data files: the manifest, the links for Hive, and the checksum last."""
    store, destination = open_store(place.destination), place.destination
    folder = f"{place.prefix}{started_at.strftime(SCAN_TIME)}/"
    manifest = {
        "sourceBucket": place.source.bucket,
        "destinationBucket": f"arn:aws:s3:::{destination.bucket}",
        "version": "2016-11-30",
        "creationTimestamp": str(int(started_at.timestamp() * 1000)),
        "fileFormat": place.file_format,
        "fileSchema": format_file_schema(place.file_format, place.columns),
        "files": [{"key": file.key, "size": file.size_bytes, "MD5checksum": file.md5} for file in files],
    }
    content = json.dumps(manifest, indent=2).encode()
    where = destination.location(f"{folder}manifest.json")
    if not store.put(f"{folder}manifest.json", content, if_absent=True):
        fix = "Read that one, or generate again in a minute."
        raise BackupError(where, "there is a report of this minute already", fix)
    scheme = "file://" if destination.kind == FOLDER else ""
    links = "\n".join(f"{scheme}{destination.location(file.key)}" for file in files)
    store.put(f"{place.prefix}hive/dt={started_at:%Y-%m-%d-%H-%M}/symlink.txt", links.encode())
    store.put(f"{folder}manifest.checksum", md5(content, usedforsecurity=False).hexdigest().encode())
    rows, size = sum(file.rows for file in files), sum(file.listed_bytes for file in files)
    return GeneratedReport(where, started_at, ended_at, len(files), rows, size)


def _format_csv(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    """Gzip without a time; no header, all fields quoted, keys encoded like forms, nulls empty."""
    from pyarrow import csv

    texts = []
    for column in columns:
        values = rows.column(column.name)
        if column.kind == "timestamp":
            values = pc.strftime(values, format="%Y-%m-%dT%H:%M:%SZ")
        texts.append(pc.fill_null(values.cast(pa.string()), ""))
    texts[1] = pa.chunked_array([_encode_keys(chunk) for chunk in texts[1].chunks], pa.string())
    lines = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(pa.table(texts, names=[column.name for column in columns]), lines, options)
    return gzip.compress(lines.getvalue(), mtime=0)


def _encode_keys(keys: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(keys, _ENCODED_IN_KEYS)).as_py():
        return keys
    return pa.array([quote(key, safe="/-_.~*").replace("%20", "+") for key in keys.to_pylist()], pa.string())


def _format_orc(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    from pyarrow import orc

    # A zone would be another type of ORC than Hive's timestamp; the values are UTC either way.
    kinds = {"timestamp": pa.timestamp("ms")}
    schema = pa.schema([(column.name, kinds.get(column.kind, column.arrow_field.type)) for column in columns])
    sink = pa.BufferOutputStream()
    orc.write_table(rows.cast(schema), sink, compression="zlib")
    return bytes(sink.getvalue())


def _format_parquet(rows: pa.Table, columns: Sequence[InventoryColumn]) -> bytes:
    sink = pa.BufferOutputStream()
    schema = pa.schema([column.arrow_field for column in columns])
    pq.write_table(rows.cast(schema), sink, compression="snappy")
    return bytes(sink.getvalue())


_FORMATS = {"CSV": _format_csv, "ORC": _format_orc, "Parquet": _format_parquet}
