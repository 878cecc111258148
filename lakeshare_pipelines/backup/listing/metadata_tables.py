"""S3 Metadata as a listing: the live inventory table, and what the journal table tells beside it.

Both are Iceberg tables. The record of a key's version that counts is the one with the greatest sequence number, which
orders records of one key as text (S3 User Guide, "S3 Metadata live inventory tables schema").
"""

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.iceberg_table import has_zone, open_table
from lakeshare_pipelines.backup.listing.own_keys import own_prefixes, without_prefixes
from lakeshare_pipelines.backup.listing.reports import Late, deadline, earliest_scan
from lakeshare_pipelines.backup.listing.telling import Tell
from lakeshare_pipelines.backup.records import ListingRecord
from lakeshare_pipelines.backup.rows import LISTING, write_rows
from lakeshare_pipelines.backup.workspace import Workspace, end_of
from lakeshare_pipelines.errors import ReportUnusable

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

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
OF_JOURNAL = ("record_type", "record_timestamp")


def awaited_snapshot(backup: Backup, day: str, now: dt.datetime) -> "Snapshot | Late | None":
    """The live inventory's snapshot that speaks for a day; None while it is waited for, Late when that is over.

    Without a journal it is the first that was made at D+lag or later. With one it is the newest of before the day's
    end (the oldest there is, when those are expired), once the journal has a snapshot of D+lag or later.

    Raises:
        BackupError: a table cannot be opened.
    """
    earliest = earliest_scan(backup, day)
    if backup.listing.journal is None:
        found = [one for one in _snapshots(_inventory(backup)) if _made_at(one) >= earliest]
    elif any(_made_at(one) >= earliest for one in _snapshots(_journal(backup))):
        every = _snapshots(_inventory(backup))
        found = [one for one in every if _made_at(one) <= end_of(day)][-1:] or every[:1]
    else:
        found = []
    if found:
        return found[0]
    if now < deadline(backup, day):
        return None
    return Late(
        f"{backup.listing.location}: the tables of S3 Metadata told nothing of {earliest:%Y-%m-%d %H:%M} UTC or later "
        f"by {deadline(backup, day):%Y-%m-%d %H:%M} UTC; the generator lists instead."
    )


def newest_snapshots(backup: Backup) -> dict[str, dt.datetime | None]:
    """When the newest snapshot of each table was made, by where the table is; None for one without any.

    Raises:
        BackupError: a table cannot be opened.
    """
    tables = [_inventory(backup), *([_journal(backup)] if backup.listing.journal else [])]
    places = [backup.listing.location or "", backup.listing.journal or ""]
    newest = [max((_made_at(one) for one in table.snapshots()), default=None) for table in tables]
    return dict(zip(places, newest, strict=False))


def list_metadata(
    backup: Backup, workspace: Workspace, day: str, snapshot: "Snapshot", tell: Tell
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

    def kept(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal size
        rows = 0
        for batch in batches:
            own = without_prefixes(_of_source(backup, batch), prefixes)
            size += pc.sum(own["size_bytes"]).as_py() or 0
            rows += len(own)
            tell(f"read {rows:,} objects of {backup.listing.location}")
            yield own

    has_versions = _has_versions(inventory, snapshot)
    if has_versions or backup.listing.journal is not None:
        tell(f"reading all records of {backup.listing.location}")
        state = _state(_records(backup, inventory, snapshot, day))
        batches: Iterator[pa.RecordBatch] = iter(state.to_batches())
    else:
        batches = (_listed(batch, True) for batch in _scanned(inventory, snapshot))
    rows = write_rows(workspace.clear("listing"), LISTING, kept(batches))
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
        scan_started_at=end_of(day) if backup.listing.journal is not None else _made_at(snapshot),
        has_versions=has_versions,
        rows=rows,
        size_bytes=size,
    )


def _of_source(backup: Backup, batch: pa.RecordBatch) -> pa.RecordBatch:
    is_in_bucket = pc.equal(batch["bucket"], backup.source.bucket)
    return batch.filter(pc.and_(is_in_bucket, pc.starts_with(batch["key"], backup.source.prefix)))


def _records(backup: Backup, inventory: "Table", snapshot: "Snapshot", day: str) -> pa.Table:
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
    _require(journal, (*NEEDED, *OF_JOURNAL))
    until = end_of(day).replace(tzinfo=dt.UTC if has_zone(journal, "record_timestamp") else None).isoformat()
    present = [name for name in (*wanted, "record_type") if name in journal.schema().column_names]
    told = journal.scan(
        row_filter=f"record_timestamp <= '{until}'", selected_fields=tuple(present)
    ).to_arrow()
    return pa.concat_tables([records, _with_all(told, records.schema.names).cast(records.schema)])


def _state(records: pa.Table) -> pa.Table:
    """What is there after all records, as rows of schema LISTING."""
    records = records.set_column(
        records.schema.get_field_index("version_id"), "version_id", pc.fill_null(records["version_id"], "")
    )
    last = _first_of_each(records, ["key", "version_id"])
    there = last.filter(pc.not_equal(last["record_type"], "DELETE"))
    newest = _first_of_each(there.append_column("row", pa.array(range(len(there)), pa.int64())), ["key"])
    is_latest = pc.is_in(pa.array(range(len(there)), pa.int64()), newest["row"].combine_chunks())
    batches = there.append_column("is_latest", is_latest).combine_chunks().to_batches(max_chunksize=131_072)
    return pa.Table.from_batches([_listed(batch) for batch in batches], LISTING)


def _first_of_each(records: pa.Table, names: list[str]) -> pa.Table:
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


def _listed(batch: pa.RecordBatch, is_latest: bool | None = None) -> pa.RecordBatch:
    """Records under a listing's names and types."""
    names = batch.schema.names
    columns = {
        listed: batch[told].cast(LISTING.field(listed).type)
        for told, listed in LISTED_AS.items()
        if told in names
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


def _scanned(table: "Table", snapshot: "Snapshot") -> Iterator[pa.RecordBatch]:
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


def _made_at(snapshot: "Snapshot") -> dt.datetime:
    return dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, dt.UTC)
