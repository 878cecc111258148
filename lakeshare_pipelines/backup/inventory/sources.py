"""The listing of a day: from the declared kind of source, or from the generator if that has none in time.

Rows of schema LISTING go into the workspace's folder `listing`, their provenance into its record `listing`.
"""

import csv
import datetime as dt
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory import reports
from lakeshare_pipelines.backup.inventory.configuration import (
    LISTED_AS,
    drop_prefixes,
    own_prefixes,
    resolve_address,
)
from lakeshare_pipelines.backup.inventory.list_objects import IN_FLIGHT, list_rows, log_message
from lakeshare_pipelines.backup.model import (
    LISTING,
    ListingRecord,
    ReportMessage,
    make_listing_batch,
    write_rows,
)
from lakeshare_pipelines.backup.points import Workspace, get_point_time
from lakeshare_pipelines.backup.stores import (
    FOLDER,
    ObjectHead,
    StoreAddress,
    make_file_properties,
    open_store,
)
from lakeshare_pipelines.errors import BackupError, ReportUnusable
from lakeshare_server.lazy import LazyModule
from lakeshare_server.outbound import Service

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
else:
    duckdb = LazyModule("duckdb")


def _write_listing(workspace: Workspace, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Write rows of LISTING; returns their number and bytes."""
    write_rows(workspace.clear("listing"), LISTING, (batch for batch in batches if batch.num_rows))
    return reports.count_listing(workspace)


def list_source(
    backup: Backup, workspace: Workspace, report_progress: ReportMessage = log_message
) -> ListingRecord:
    """List a source without lakeshare's own objects. Raises BackupError if it is empty."""
    source, own, versions = backup.source, own_prefixes(backup), backup.listing.versions
    started_at = dt.datetime.now(dt.UTC)
    in_flight = min(backup.in_flight, IN_FLIGHT)
    batches = list_rows(source, versions=versions, in_flight=in_flight, report_progress=report_progress)
    rows, size = _write_listing(workspace, (drop_prefixes(batch, own) for batch in batches))
    if not rows:
        fix = "Correct the backup's `source`: nothing needs no backup."
        raise BackupError(str(source), "there is no object in it", fix)
    return ListingRecord(
        kind="generator",
        location=str(source),
        scan_started_at=started_at,
        scan_ended_at=dt.datetime.now(dt.UTC),
        has_versions=versions and source.kind != FOLDER,
        rows=rows,
        size_bytes=size,
    )


HEADS_AT_ONCE = 10
HEADS_A_BATCH = 1_000
MAX_MISSING_NAMED = 20


@dataclass(frozen=True)
class ManifestEntry:
    key: str
    version_id: str | None  # `null` is the null version, None the current one


def list_manifest(
    backup: Backup, workspace: Workspace, now: dt.datetime, report_progress: ReportMessage
) -> ListingRecord:
    """List the objects of a manifest by HEAD requests. Raises BackupError if it is invalid, or no object exists."""
    location, source = backup.listing.location or "", backup.source
    address = resolve_address(backup, location)
    folder, _, name = address.url.rpartition("/")
    if address.kind != FOLDER:
        folder, name = address.bucket, address.prefix.rstrip("/")
    content = open_store(address.at(folder)).read(name)
    own = own_prefixes(backup)
    entries = [
        entry
        for entry in _parse_manifest(content, location, source.bucket)
        if entry.key.startswith(source.prefix) and not entry.key.startswith(own)
    ]
    store, missing = open_store(source), list[str]()

    def batches() -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
            for start in range(0, len(entries), HEADS_A_BATCH):
                some = entries[start : start + HEADS_A_BATCH]
                heads = list(pool.map(lambda entry: store.head(entry.key, entry.version_id), some))
                missing.extend(entry.key for entry, head in zip(some, heads, strict=True) if head is None)
                checked = min(start + HEADS_A_BATCH, len(entries))
                report_progress(f"checked {checked:,} of {len(entries):,} objects")
                found = [(entry, head) for entry, head in zip(some, heads, strict=True) if head is not None]
                yield _make_manifest_rows(source.bucket, found)

    rows, size = _write_listing(workspace, batches())
    if not rows:
        fix = "Correct the manifest, or the source."
        raise BackupError(location, f"{source} has no object that it names", fix)
    warnings = []
    if missing:
        more = f" and {len(missing) - MAX_MISSING_NAMED:,} more" if len(missing) > MAX_MISSING_NAMED else ""
        warnings.append(
            f"{location} names {len(missing):,} objects that the source does not have: "
            f"{', '.join(missing[:MAX_MISSING_NAMED])}{more}. They are left out."
        )
    return ListingRecord(
        kind="manifest_csv",
        location=location,
        scan_started_at=now,
        scan_ended_at=dt.datetime.now(dt.UTC),
        manifest_md5=md5(content, usedforsecurity=False).hexdigest(),
        has_versions=any(entry.version_id for entry in entries),
        rows=rows,
        size_bytes=size,
        warnings=tuple(warnings),
    )


def _parse_manifest(content: bytes, location: str, bucket: str) -> list[ManifestEntry]:
    def refuse(line: int, problem: str) -> BackupError:
        fix = "Each line is bucket,key or bucket,key,version, keys URL-encoded."
        return BackupError(location, f"line {line} {problem}", fix)

    entries: dict[ManifestEntry, None] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise refuse(line, f"cannot be read: {error}") from error
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        for fields in lines:
            if not fields:
                continue
            if len(fields) not in (2, 3) or not fields[1]:
                raise refuse(lines.line_num, f"has {len(fields)} columns, or no key")
            if fields[0] != bucket:
                raise refuse(lines.line_num, f"names bucket {fields[0]!r}, the source is {bucket!r}")
            version = fields[2] if len(fields) == 3 else ""
            entries[ManifestEntry(unquote_plus(fields[1], errors="strict"), version or None)] = None
    except (UnicodeDecodeError, csv.Error) as error:
        raise refuse(lines.line_num, f"cannot be read: {error}") from error
    return list(entries)


def _make_manifest_rows(bucket: str, found: list[tuple[ManifestEntry, ObjectHead]]) -> pa.RecordBatch:
    newest: dict[str, ObjectHead] = {}
    for _, head in found:
        if head.key not in newest or head.last_modified > newest[head.key].last_modified:
            newest[head.key] = head
    return pa.RecordBatch.from_pylist(
        [
            {
                **vars(head),
                "bucket": bucket,
                "version_id": None if entry.version_id == "null" else entry.version_id,
                "is_latest": newest[head.key] is head,
                "is_delete_marker": False,
                "is_multipart": "-" in head.etag,
                "checksum_algorithm": next(iter(head.checksums), "").upper() or None,
            }
            for entry, head in found
        ],
        LISTING,
    )


METADATA = ".metadata.json"
CATALOG_S = 120.0  # pyiceberg gives requests to a REST catalog no deadline


def open_table(address: StoreAddress, name: str) -> "Table":
    """A table, given by its folder, its metadata.json, or catalog.namespace.table of pyiceberg's configuration."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    is_location = name.startswith(("/", "s3://"))
    metadata = _find_metadata(address, name) if is_location else ""
    try:
        if is_location:
            # Without a region pyiceberg reads the bucket's.
            return StaticTable.from_metadata(metadata, make_file_properties(address, default_region=None))
        catalog, _, table = name.partition(".")
        return Service(f"the catalog {catalog}", CATALOG_S).call(
            lambda: load_catalog(catalog).load_table(table)
        )
    except Exception as error:
        # pyiceberg raises errors of a catalog's client, of Arrow and of its parsers.
        raise BackupError(
            name,
            f"the table cannot be opened: {error}",
            "Name its folder, its metadata.json, or catalog.namespace.table of a catalog that pyiceberg's "
            "configuration has.",
        ) from error


def _find_metadata(address: StoreAddress, location: str) -> str:
    if location.endswith(METADATA):
        return location
    place = address.model_copy(update={"url": location})
    store = open_store(place if place.kind == FOLDER else place.at(place.bucket))
    files = [file for file in store.list(f"{place.prefix}metadata/") if file.key.endswith(METADATA)]
    if not files:
        raise BackupError(location, "no metadata of an Iceberg table is there", "Name the folder of a table.")

    def get_number(key: str) -> int:
        # Of 00012-….metadata.json and v12.metadata.json.
        match = re.match(r"v?(\d+)", key.rpartition("/")[2])
        return int(match[1]) if match else -1

    return store.address.location(max(files, key=lambda file: (get_number(file.key), file.last_modified)).key)


METADATA_COLUMNS = LISTED_AS | {"is_multipart": "is_multipart"}  # Columns of both tables that a listing keeps
for absent in ("is_latest", "is_multipart_uploaded"):
    del METADATA_COLUMNS[absent]
NEEDED = ("bucket", "key", "sequence_number", "version_id", "size", "last_modified_date", "e_tag")


def find_snapshot(backup: Backup, day: str, now: dt.datetime) -> "Snapshot | reports.LateReport | None":
    """The live inventory's snapshot of a day; None during the wait for it, LateReport after it.

    Without a journal it is the first one made at D+lag or later. With a journal it is the newest one before the day's
    end (or the oldest one, if those are expired), once the journal has a snapshot of D+lag or later.
    """
    earliest = reports.compute_earliest_scan(backup, day)
    location, journal = backup.listing.location, backup.listing.journal
    snapshots: list[Snapshot] = []
    if journal is None:
        snapshots = [made for made in _list_snapshots(backup, location) if _time(made) >= earliest]
    elif any(_time(made) >= earliest for made in _list_snapshots(backup, journal)):
        every = _list_snapshots(backup, location)
        snapshots = [made for made in every if _time(made) <= get_point_time(day)][-1:] or every[:1]
    if snapshots:
        return snapshots[0]
    if now < reports.compute_deadline(backup, day):
        return None
    reason = (
        f"{backup.listing.location}: the tables of S3 Metadata had nothing of {earliest:%Y-%m-%d %H:%M} UTC or later "
        f"by {reports.compute_deadline(backup, day):%Y-%m-%d %H:%M} UTC; the generator lists instead."
    )
    return reports.LateReport((reason,))


def list_newest_snapshots(backup: Backup) -> dict[str, dt.datetime | None]:
    """The time of each table's newest snapshot, by the table's location; None for a table without snapshots."""
    listing = backup.listing
    return {
        location: max(map(_time, _list_snapshots(backup, location)), default=None)
        for location in (listing.location or "", *([listing.journal] if listing.journal else []))
    }


def list_metadata(
    backup: Backup, workspace: Workspace, day: str, snapshot: "Snapshot", report_progress: ReportMessage
) -> ListingRecord:
    """Read a snapshot of the live inventory. Raises ReportUnusable if a table lacks a column, or has no object. A
    table without versions and without a journal is streamed; else it is held in memory, about 300 bytes an object."""
    inventory, source = _open(backup, backup.listing.location), backup.source
    _require_columns(inventory, NEEDED)
    own = own_prefixes(backup)
    of_versions = "version_id IS NOT NULL"
    scan = inventory.scan(of_versions, selected_fields=("key",), snapshot_id=snapshot.snapshot_id)
    has_versions = bool(scan.count())

    def select(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            is_in_bucket = pc.equal(batch["bucket"], source.bucket)
            of_source = batch.filter(pc.and_(is_in_bucket, pc.starts_with(batch["key"], source.prefix)))
            kept = drop_prefixes(of_source, own)
            rows += len(kept)
            report_progress(f"read {rows:,} objects of {backup.listing.location}")
            yield kept

    if has_versions or backup.listing.journal is not None:
        report_progress(f"reading all records of {backup.listing.location}")
        batches = _read_records(backup, inventory, snapshot, day)
    else:
        present = tuple(name for name in METADATA_COLUMNS if name in inventory.schema().column_names)
        reader = inventory.scan(snapshot_id=snapshot.snapshot_id, selected_fields=present)
        batches = (_normalize_records(batch) for batch in reader.to_arrow_batch_reader())
    rows, size = _write_listing(workspace, select(batches))
    if not rows:
        fix = "Wait for its backfill to end, or correct the source."
        raise ReportUnusable(backup.listing.location or "", f"it lists no object of {source}", fix)
    return ListingRecord(
        kind="s3_metadata",
        location=inventory.metadata_location,
        scan_started_at=_time(snapshot) if backup.listing.journal is None else get_point_time(day),
        has_versions=has_versions,
        rows=rows,
        size_bytes=size,
    )


def _read_records(
    backup: Backup, inventory: "Table", snapshot: "Snapshot", day: str
) -> Iterator[pa.RecordBatch]:
    """The objects of a snapshot, with the journal's changes until the end of the day if there is a journal."""
    wanted = (*METADATA_COLUMNS, "sequence_number")
    records = _scan(inventory, wanted, snapshot_id=snapshot.snapshot_id)
    if backup.listing.journal is None:
        changes = records.slice(0, 0)
    else:
        journal = _open(backup, backup.listing.journal)
        _require_columns(journal, (*NEEDED, "record_type", "record_timestamp"))
        is_zoned = "tz" in str(journal.schema().find_type("record_timestamp"))
        until = get_point_time(day).replace(tzinfo=dt.UTC if is_zoned else None).isoformat()
        changes = _scan(journal, (*wanted, "record_type"), row_filter=f"record_timestamp <= '{until}'")
    with duckdb.connect() as database:
        database.from_arrow(records).create_view("records")
        database.from_arrow(changes).create_view("changes")
        for batch in database.sql(_REPLAY).to_arrow_reader(131_072):
            yield _normalize_records(batch)


_REPLAY = """
WITH every AS (SELECT *, 'CREATE' AS record_type FROM records UNION ALL BY NAME SELECT * FROM changes),
newest AS (SELECT * FROM every QUALIFY row_number() OVER (
    PARTITION BY key, coalesce(version_id, '') ORDER BY sequence_number DESC) = 1)
SELECT *, row_number() OVER (PARTITION BY key ORDER BY sequence_number DESC) = 1 AS is_latest
FROM newest WHERE record_type <> 'DELETE' ORDER BY key, version_id
"""


def _scan(table: "Table", names: Sequence[str], **selection: Any) -> pa.Table:
    present = tuple(name for name in names if name in table.schema().column_names)
    return table.scan(selected_fields=present, **selection).to_arrow()


def _normalize_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = reports.select_listed_columns(batch, {**METADATA_COLUMNS, "is_latest": "is_latest"})
    return make_listing_batch(columns, len(batch))


def _require_columns(table: "Table", names: Sequence[str]) -> None:
    lacking = [name for name in names if name not in table.schema().column_names]
    if lacking:
        fix = "Name a table of S3 Metadata: the live inventory as `location`, the journal as `journal`."
        raise ReportUnusable(table.metadata_location, f"it has no {', '.join(lacking)}", fix)


def _open(backup: Backup, location: str | None) -> "Table":
    return open_table(backup.listing.store or backup.source, location or "")


def _list_snapshots(backup: Backup, location: str | None) -> "list[Snapshot]":
    return sorted(_open(backup, location).snapshots(), key=lambda snapshot: snapshot.timestamp_ms)


def _time(snapshot: "Snapshot") -> dt.datetime:
    return dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC)


def is_listing_ready(backup: Backup, day: str, now: dt.datetime) -> bool:
    """Whether `make_listing` would list now rather than wait; for sensors: reads no data file."""
    if now < get_point_time(day):
        return False
    if backup.listing.kind == "s3_inventory":
        return reports.find_report(backup, day, now) is not None
    if backup.listing.kind == "s3_metadata":
        return find_snapshot(backup, day, now) is not None
    return True


def make_listing(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    report_progress: ReportMessage = log_message,
) -> ListingRecord | None:
    """List the source for a day; None during the wait for a report, or before the end of the day. After an unusable
    report the next one is read; after the wait the generator lists, and the record has the reasons."""
    if now < get_point_time(day):
        return None

    def read(report: reports.Report, unusable: list[str]) -> ListingRecord:
        record = reports.list_report(backup, report, workspace, report_progress)
        minute = report.scan_started_at.replace(second=0, microsecond=0)
        is_late = bool(unusable) or ("T" not in day and minute > reports.compute_deadline(backup, day))
        return record.model_copy(update={"is_late": is_late, "warnings": (*unusable, *record.warnings)})

    record: ListingRecord | reports.LateReport | None
    if backup.listing.kind == "s3_inventory":
        record = reports.use_first_report(backup, day, now, read, report_progress)
    elif backup.listing.kind == "s3_metadata":
        snapshot = find_snapshot(backup, day, now)
        if snapshot is None or isinstance(snapshot, reports.LateReport):
            record = snapshot
        else:
            record = list_metadata(backup, workspace, day, snapshot, report_progress)
    elif backup.listing.kind == "manifest_csv":
        record = list_manifest(backup, workspace, now, report_progress)
    else:
        record = list_source(backup, workspace, report_progress)
    if isinstance(record, reports.LateReport):
        reasons = record.reasons
        for reason in reasons:
            report_progress(reason)
        record = list_source(backup, workspace, report_progress)
        # A point of a moment does not wait, so its reports cannot be late.
        update = {"is_late": "T" not in day, "warnings": (*reasons, *record.warnings)}
        record = record.model_copy(update=update)
    if record is not None:
        workspace.save("listing", record)
    return record
