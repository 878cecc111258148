"""The listing of a day: from the source that the backup names, or from the generator when that says nothing in time.

Rows of schema LISTING go to the workspace's folder `listing`, where they come from into its record `listing`.
"""

import csv
import datetime as dt
import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import md5
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import (
    ReportProgress,
    drop_prefixes,
    log_message,
    own_prefixes,
    resolve_address,
)
from lakeshare_pipelines.backup.inventory.reports import (
    LateReport,
    compute_deadline,
    compute_earliest_scan,
    covers_day,
    describe_late_reports,
    find_report,
    list_candidates,
    list_report,
    open_report_store,
    read_report,
    require_source,
)
from lakeshare_pipelines.backup.model import LISTING, ListingRecord, write_rows
from lakeshare_pipelines.backup.points import Workspace, get_point_time
from lakeshare_pipelines.backup.stores import ObjectHead, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import FOLDER
from lakeshare_pipelines.errors import BackupError, ReportUnusable

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import SparkSession

    OpenSpark = Callable[[], SparkSession]

HEADS_AT_ONCE = 10
HEADS_A_BATCH = 1_000
MAX_MISSING_NAMED = 20
"""So many keys that are not there are named; the others are counted."""


@dataclass(frozen=True)
class ManifestEntry:
    """One line of a manifest."""

    key: str
    version_id: str | None
    """`null` is the null version, None the current one."""


def list_manifest(
    backup: Backup, workspace: Workspace, now: dt.datetime, report_progress: ReportProgress
) -> ListingRecord:
    """Ask the source for each object of a manifest, into the workspace's folder `listing`.

    Raises:
        BackupError: a line is not one of a manifest or names another bucket, or the source has none of the objects.
    """
    location = backup.listing.location or ""
    content = _manifest(resolve_address(backup, location))
    own = own_prefixes(backup)
    named = [
        one
        for one in parse_manifest(content, location, backup.source.bucket)
        if one.key.startswith(backup.source.prefix) and not one.key.startswith(own)
    ]
    store, missing, size = open_store(backup.source), list[str](), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal size
        with ThreadPoolExecutor(HEADS_AT_ONCE) as pool:
            for start in range(0, len(named), HEADS_A_BATCH):
                some = named[start : start + HEADS_A_BATCH]
                heads = list(pool.map(lambda one: store.head(one.key, one.version_id), some))
                there = [(one, head) for one, head in zip(some, heads, strict=True) if head is not None]
                missing.extend(one.key for one, head in zip(some, heads, strict=True) if head is None)
                size += sum(head.size_bytes for _, head in there)
                report_progress(
                    f"asked for {min(start + HEADS_A_BATCH, len(named)):,} of {len(named):,} objects"
                )
                yield _rows(backup.source.bucket, there)

    rows = write_rows(workspace.clear("listing"), LISTING, batches())
    if not rows:
        workspace.clear("listing")
        raise BackupError(
            location, f"{backup.source} has no object that it names", "Correct the manifest, or the source."
        )
    return ListingRecord(
        kind="manifest_csv",
        location=location,
        scan_started_at=now,
        scan_ended_at=dt.datetime.now(dt.UTC),
        manifest_md5=md5(content, usedforsecurity=False).hexdigest(),
        has_versions=any(one.version_id for one in named),
        rows=rows,
        size_bytes=size,
        warnings=_missing(location, missing),
    )


def parse_manifest(content: bytes, location: str, bucket: str) -> list[ManifestEntry]:
    """The objects that a manifest names, each once, in its order.

    Raises:
        BackupError: a line has not two or three columns, a key that is no UTF-8, or another bucket.
    """
    found: dict[ManifestEntry, None] = {}
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refusal(location, line, f"cannot be read: {error}") from error
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        for fields in lines:
            if not fields:
                continue
            if len(fields) not in (2, 3) or not fields[1]:
                raise _refusal(location, lines.line_num, f"has {len(fields)} columns, or no key")
            if fields[0] != bucket:
                raise _refusal(
                    location, lines.line_num, f"names bucket {fields[0]!r}, the source is {bucket!r}"
                )
            version = fields[2] if len(fields) == 3 else ""
            named = ManifestEntry(unquote_plus(fields[1], errors="strict"), version or None)
            found[named] = None
    except (UnicodeDecodeError, csv.Error) as error:
        raise _refusal(location, lines.line_num, f"cannot be read: {error}") from error
    return list(found)


def _refusal(location: str, line: int, problem: str) -> BackupError:
    return BackupError(
        location, f"line {line} {problem}", "Each line is bucket,key or bucket,key,version, keys URL-encoded."
    )


def _manifest(address: StoreAddress) -> bytes:
    if address.kind == FOLDER:
        folder, _, name = address.url.rpartition("/")
        return open_store(address.at(folder)).read(name)
    return open_store(address.at(address.bucket)).read(address.prefix.rstrip("/"))


def _rows(bucket: str, found: list[tuple[ManifestEntry, ObjectHead]]) -> pa.RecordBatch:
    newest: dict[str, ObjectHead] = {}
    for _, head in found:
        if head.key not in newest or head.last_modified > newest[head.key].last_modified:
            newest[head.key] = head
    return pa.RecordBatch.from_pylist(
        [
            {
                "bucket": bucket,
                "key": head.key,
                "version_id": None if named.version_id == "null" else named.version_id,
                "is_latest": newest[head.key] is head,
                "is_delete_marker": False,
                "size_bytes": head.size_bytes,
                "last_modified": head.last_modified,
                "etag": head.etag,
                "storage_class": head.storage_class,
                "is_multipart": "-" in head.etag,
                "encryption": head.encryption,
                "checksum_algorithm": next(iter(head.checksums), "").upper() or None,
            }
            for named, head in found
        ],
        LISTING,
    )


def _missing(location: str, missing: list[str]) -> tuple[str, ...]:
    if not missing:
        return ()
    more = f" and {len(missing) - MAX_MISSING_NAMED:,} more" if len(missing) > MAX_MISSING_NAMED else ""
    return (
        f"{location} names {len(missing):,} objects that the source does not have: "
        f"{', '.join(missing[:MAX_MISSING_NAMED])}{more}. They are left out.",
    )


METADATA = ".metadata.json"


def open_table(address: StoreAddress, name: str) -> "Table":
    """A table told as its folder, its metadata.json, or catalog.namespace.table.

    `address` says how the store is reached. A catalog is one of pyiceberg's own configuration.

    Raises:
        BackupError: it cannot be opened.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    try:
        if name.startswith(("/", "s3://")):
            return StaticTable.from_metadata(
                _metadata_location(address, name), _make_file_properties(address)
            )
        catalog, _, table = name.partition(".")
        return load_catalog(catalog).load_table(table)
    except BackupError:
        raise
    except Exception as error:
        # pyiceberg lets errors of a catalog's client, of Arrow and of its parsers through: any of them means this.
        raise BackupError(
            name,
            f"the table cannot be opened: {error}",
            "Name its folder, its metadata.json, or catalog.namespace.table of a catalog that pyiceberg's "
            "configuration has.",
        ) from error


def has_zone(table: "Table", name: str) -> bool:
    """Whether a column is a moment of UTC (timestamptz) rather than a time without a zone."""
    return "tz" in str(table.schema().find_type(name))


def _metadata_location(address: StoreAddress, location: str) -> str:
    if location.endswith(METADATA):
        return location
    place = address.model_copy(update={"url": location})
    store = open_store(place if place.kind == FOLDER else place.at(place.bucket))
    found = [one for one in store.list(f"{place.prefix}metadata/") if one.key.endswith(METADATA)]
    if not found:
        raise BackupError(location, "no metadata of an Iceberg table is there", "Name the folder of a table.")
    return store.address.location(max(found, key=lambda one: (_number(one.key), one.last_modified)).key)


def _number(key: str) -> int:
    """Of 00012-….metadata.json and v12.metadata.json."""
    number = re.match(r"v?(\d+)", key.rpartition("/")[2])
    return int(number[1]) if number else -1


def _make_file_properties(address: StoreAddress) -> dict[str, str]:
    """What pyiceberg is told to read a store as boto3 does."""
    if address.kind == FOLDER:
        return {}
    import boto3

    session = boto3.Session(profile_name=address.profile, region_name=address.region)
    properties = {"s3.endpoint": address.endpoint, "s3.region": session.region_name}
    if (credentials := session.get_credentials()) is not None:
        keys = credentials.get_frozen_credentials()
        properties |= {
            "s3.access-key-id": keys.access_key,
            "s3.secret-access-key": keys.secret_key,
            "s3.session-token": keys.token,
        }
    return {name: value for name, value in properties.items() if value is not None}


LISTED_AS = {
    "bucket": "bucket",
    "key": "key",
    "version_id": "version_id",
    "is_delete_marker": "is_delete_marker",
    "size": "size_bytes",
    "last_modified_date": "last_modified",
    "e_tag": "etag",
    "storage_class": "storage_class",
    "is_multipart": "is_multipart",
    "encryption_status": "encryption",
    "checksum_algorithm": "checksum_algorithm",
}
"""Columns of both tables that a listing keeps."""
NEEDED = ("bucket", "key", "sequence_number", "version_id", "size", "last_modified_date", "e_tag")
JOURNAL_COLUMNS = ("record_type", "record_timestamp")


def find_snapshot(backup: Backup, day: str, now: dt.datetime) -> "Snapshot | LateReport | None":
    """The live inventory's snapshot that speaks for a day; None while it is waited for, Late when that is over.

    Without a journal it is the first that was made at D+lag or later. With one it is the newest of before the day's
    end (the oldest there is, when those are expired), once the journal has a snapshot of D+lag or later.

    Raises:
        BackupError: a table cannot be opened.
    """
    earliest = compute_earliest_scan(backup, day)
    if backup.listing.journal is None:
        found = [one for one in _snapshots(_inventory(backup)) if _get_snapshot_time(one) >= earliest]
    elif any(_get_snapshot_time(one) >= earliest for one in _snapshots(_journal(backup))):
        every = _snapshots(_inventory(backup))
        found = [one for one in every if _get_snapshot_time(one) <= get_point_time(day)][-1:] or every[:1]
    else:
        found = []
    if found:
        return found[0]
    if now < compute_deadline(backup, day):
        return None
    return LateReport(
        f"{backup.listing.location}: the tables of S3 Metadata told nothing of {earliest:%Y-%m-%d %H:%M} UTC or later "
        f"by {compute_deadline(backup, day):%Y-%m-%d %H:%M} UTC; the generator lists instead."
    )


def list_newest_snapshots(backup: Backup) -> dict[str, dt.datetime | None]:
    """When the newest snapshot of each table was made, by where the table is; None for one without any.

    Raises:
        BackupError: a table cannot be opened.
    """
    tables = [_inventory(backup), *([_journal(backup)] if backup.listing.journal else [])]
    places = [backup.listing.location or "", backup.listing.journal or ""]
    newest = [max((_get_snapshot_time(one) for one in table.snapshots()), default=None) for table in tables]
    return dict(zip(places, newest, strict=False))


def list_metadata(
    backup: Backup, workspace: Workspace, day: str, snapshot: "Snapshot", report_progress: ReportProgress
) -> ListingRecord:
    """Read a snapshot of the live inventory into the workspace's folder `listing`.

    A table without versions and without a journal goes through as it is; else it is held in memory, about 300 bytes
    an object.

    Raises:
        ReportUnusable: a table lacks a column, or lists nothing of the source.
        BackupError: a table cannot be opened.
    """
    inventory = _inventory(backup)
    _require(inventory, NEEDED)
    prefixes, size = own_prefixes(backup), 0

    def select(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal size
        rows = 0
        for batch in batches:
            own = drop_prefixes(_filter_source(backup, batch), prefixes)
            size += pc.sum(own["size_bytes"]).as_py() or 0
            rows += len(own)
            report_progress(f"read {rows:,} objects of {backup.listing.location}")
            yield own

    has_versions = _has_versions(inventory, snapshot)
    if has_versions or backup.listing.journal is not None:
        report_progress(f"reading all records of {backup.listing.location}")
        state = _replay_records(_read_records(backup, inventory, snapshot, day))
        batches: Iterator[pa.RecordBatch] = iter(state.to_batches())
    else:
        batches = (_normalize_records(batch, True) for batch in _scan_table(inventory, snapshot))
    rows = write_rows(workspace.clear("listing"), LISTING, select(batches))
    if not rows:
        workspace.clear("listing")
        raise ReportUnusable(
            backup.listing.location or "",
            f"it lists no object of {backup.source}",
            "Wait for its backfill to end, or correct the source.",
        )
    return ListingRecord(
        kind="s3_metadata",
        location=inventory.metadata_location,
        scan_started_at=get_point_time(day)
        if backup.listing.journal is not None
        else _get_snapshot_time(snapshot),
        has_versions=has_versions,
        rows=rows,
        size_bytes=size,
    )


def _filter_source(backup: Backup, batch: pa.RecordBatch) -> pa.RecordBatch:
    is_in_bucket = pc.equal(batch["bucket"], backup.source.bucket)
    return batch.filter(pc.and_(is_in_bucket, pc.starts_with(batch["key"], backup.source.prefix)))


def _read_records(backup: Backup, inventory: "Table", snapshot: "Snapshot", day: str) -> pa.Table:
    """All records that may count, with the columns of both tables."""
    wanted = [*LISTED_AS, "sequence_number"]
    present = [name for name in wanted if name in inventory.schema().column_names]
    found = inventory.scan(snapshot_id=snapshot.snapshot_id, selected_fields=tuple(present)).to_arrow()
    records = _with_all(found, wanted).append_column(
        "record_type", pa.nulls(len(found), pa.string()).fill_null("CREATE")
    )
    if backup.listing.journal is None:
        return records
    journal = _journal(backup)
    _require(journal, (*NEEDED, *JOURNAL_COLUMNS))
    until = (
        get_point_time(day)
        .replace(tzinfo=dt.UTC if has_zone(journal, "record_timestamp") else None)
        .isoformat()
    )
    present = [name for name in (*wanted, "record_type") if name in journal.schema().column_names]
    changes = journal.scan(
        row_filter=f"record_timestamp <= '{until}'", selected_fields=tuple(present)
    ).to_arrow()
    return pa.concat_tables([records, _with_all(changes, records.schema.names).cast(records.schema)])


def _replay_records(records: pa.Table) -> pa.Table:
    """What is there after all records, as rows of schema LISTING."""
    records = records.set_column(
        records.schema.get_field_index("version_id"), "version_id", pc.fill_null(records["version_id"], "")
    )
    last = _select_newest(records, ["key", "version_id"])
    there = last.filter(pc.not_equal(last["record_type"], "DELETE"))
    newest = _select_newest(there.append_column("row", pa.array(range(len(there)), pa.int64())), ["key"])
    is_latest = pc.is_in(pa.array(range(len(there)), pa.int64()), newest["row"].combine_chunks())
    batches = there.append_column("is_latest", is_latest).combine_chunks().to_batches(max_chunksize=131_072)
    return pa.Table.from_batches([_normalize_records(batch) for batch in batches], LISTING)


def _select_newest(records: pa.Table, names: list[str]) -> pa.Table:
    """Of the records that agree in some columns the one with the greatest sequence number."""
    ordered = records.sort_by(
        [*((name, "ascending") for name in names), ("sequence_number", "descending")]
    ).combine_chunks()
    if len(ordered) < 2:
        return ordered
    is_same = pa.array([True] * (len(ordered) - 1))
    for name in names:
        column = ordered[name].combine_chunks()
        is_same = pc.and_(is_same, pc.equal(column[1:], column[:-1]))
    return ordered.filter(pa.concat_arrays([pa.array([True]), pc.invert(is_same)]))


def _normalize_records(batch: pa.RecordBatch, is_latest: bool | None = None) -> pa.RecordBatch:
    """Records under a listing's names and types."""
    names = batch.schema.names
    columns = {
        listed: batch[name].cast(LISTING.field(listed).type)
        for name, listed in LISTED_AS.items()
        if name in names
    }
    columns["is_latest"] = (
        pa.repeat(pa.scalar(True), len(batch)) if is_latest is not None else batch["is_latest"]
    )
    marker = columns.get("is_delete_marker", pa.nulls(len(batch), pa.bool_()))
    columns["is_delete_marker"] = pc.fill_null(marker, False)
    version = columns["version_id"]
    is_null = pc.fill_null(pc.is_in(version, pa.array(["", "null"])), True)
    columns["version_id"] = pc.if_else(is_null, pa.scalar(None, pa.string()), version)
    columns["etag"] = pc.utf8_trim(columns["etag"], characters='"')
    return pa.RecordBatch.from_arrays(
        [columns.get(field.name, pa.nulls(len(batch), field.type)) for field in LISTING], schema=LISTING
    )


def _scan_table(table: "Table", snapshot: "Snapshot") -> Iterator[pa.RecordBatch]:
    present = tuple(name for name in LISTED_AS if name in table.schema().column_names)
    yield from table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=present).to_arrow_batch_reader()


def _has_versions(table: "Table", snapshot: "Snapshot") -> bool:
    scan = table.scan("version_id IS NOT NULL", selected_fields=("key",), snapshot_id=snapshot.snapshot_id)
    return bool(scan.count())


def _with_all(table: pa.Table, names: list[str]) -> pa.Table:
    kinds = {"is_delete_marker": pa.bool_(), "is_multipart": pa.bool_(), "size": pa.int64()}
    for name in names:
        if name not in table.schema.names:
            table = table.append_column(name, pa.nulls(len(table), kinds.get(name, pa.string())))
    return table.select(names)


def _require(table: "Table", names: tuple[str, ...]) -> None:
    lacking = [name for name in names if name not in table.schema().column_names]
    if lacking:
        raise ReportUnusable(
            table.metadata_location,
            f"it has no {', '.join(lacking)}",
            "Name a table of S3 Metadata: the live inventory as `location`, the journal as `journal`.",
        )


def _inventory(backup: Backup) -> "Table":
    return open_table(backup.listing.store or backup.source, backup.listing.location or "")


def _journal(backup: Backup) -> "Table":
    return open_table(backup.listing.store or backup.source, backup.listing.journal or "")


def _snapshots(table: "Table") -> "list[Snapshot]":
    return sorted(table.snapshots(), key=lambda one: one.timestamp_ms)


def _get_snapshot_time(snapshot: "Snapshot") -> dt.datetime:
    return dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC)


def is_listing_ready(backup: Backup, day: str, now: dt.datetime) -> bool:
    """Whether `make_listing` would list now rather than wait; for sensors: it looks, and reads no data file.

    Raises:
        BackupError: the place of the reports cannot be read.
    """
    if now < get_point_time(day):
        return False
    if backup.listing.kind == "s3_inventory":
        return find_report(backup, day, now) is not None
    if backup.listing.kind == "s3_metadata":
        return find_snapshot(backup, day, now) is not None
    return True


def make_listing(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    spark: "OpenSpark | None" = None,
    report_progress: ReportProgress = log_message,
) -> ListingRecord | None:
    """List the source for a day; None while a report is waited for, or the day is not over.

    A report that cannot be used is passed over for the next one; after the wait the generator lists, and the record
    says that it is late and why.

    Raises:
        BackupError: the source or the reports cannot be read, or the reports are of another bucket.
    """
    if now < get_point_time(day):
        return None
    if backup.listing.kind == "s3_inventory":
        record = _from_reports(backup, workspace, day, now, spark, report_progress)
    elif backup.listing.kind == "s3_metadata":
        record = _from_metadata(backup, workspace, day, now, spark, report_progress)
    elif backup.listing.kind == "manifest_csv":
        record = list_manifest(backup, workspace, now, report_progress)
    else:
        record = _generate_listing(backup, workspace, spark, report_progress)
    if record is not None:
        workspace.save("listing", record)
    return record


def _from_reports(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    spark: "OpenSpark | None",
    report_progress: ReportProgress,
) -> ListingRecord | None:
    store, passed_over = open_report_store(backup), list[str]()
    for arrival in list_candidates(backup, store, day):
        try:
            report = read_report(store, backup.listing.location or "", arrival)
            if not covers_day(backup, day, report):
                continue
            record = list_report(backup, require_source(backup, report), workspace, report_progress, spark)
        except ReportUnusable as error:
            report_progress(str(error))
            passed_over.append(str(error))
            continue
        is_late = bool(passed_over) or (
            "T" not in day and arrival.scan_started_at > compute_deadline(backup, day)
        )
        return record.model_copy(update={"is_late": is_late, "warnings": (*passed_over, *record.warnings)})
    if now < compute_deadline(backup, day):
        return None
    return _generate_instead(
        backup, workspace, day, (describe_late_reports(backup, day), *passed_over), spark, report_progress
    )


def _from_metadata(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    spark: "OpenSpark | None",
    report_progress: ReportProgress,
) -> ListingRecord | None:
    snapshot = find_snapshot(backup, day, now)
    if snapshot is None:
        return None
    if isinstance(snapshot, LateReport):
        return _generate_instead(backup, workspace, day, (snapshot.reason,), spark, report_progress)
    return list_metadata(backup, workspace, day, snapshot, report_progress)


def _generate_instead(
    backup: Backup,
    workspace: Workspace,
    day: str,
    reasons: tuple[str, ...],
    spark: "OpenSpark | None",
    report_progress: ReportProgress,
) -> ListingRecord:
    """The generator's listing, where reports were to be had. Of a point of a moment nobody could have waited."""
    for reason in reasons:
        report_progress(reason)
    record = _generate_listing(backup, workspace, spark, report_progress)
    return record.model_copy(update={"is_late": "T" not in day, "warnings": (*reasons, *record.warnings)})


def _generate_listing(
    backup: Backup, workspace: Workspace, spark: "OpenSpark | None", report_progress: ReportProgress
) -> ListingRecord:
    from lakeshare_pipelines.backup.inventory.generate import list_source

    return list_source(backup, workspace, spark=spark, report_progress=report_progress)
