"""Backups whose source is a bucket that only its reports tell of, and what a listing of it says."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.inventory.reports import Report, list_arrivals, read_report
from lakeshare_pipelines.backup.inventory.sources import make_listing
from lakeshare_pipelines.backup.model import LISTING, ListingRecord, read_table
from lakeshare_pipelines.backup.points import Workspace
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from tests.builders.backup_inventory import InventoryReports, Stored

DAY = "2026-11-20"
IN_TIME = dt.datetime(2026, 11, 22, 6, tzinfo=dt.UTC)
TOO_LATE = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)


def reports_in(folder: Path, source_bucket: str = "lake") -> InventoryReports:
    """Reports that go to a folder, as if it were their destination bucket."""
    store = open_store(StoreAddress(url=str(folder)))
    return InventoryReports(store.put, source_bucket)


def read_reports(store: BackupStore, location: str) -> Iterator[Report]:
    """The reports that have arrived at a location, oldest scan first."""
    for arrival in list_arrivals(store, location):
        yield read_report(store, location, arrival)


def a_backup(folder: Path, source: str = "s3://lake", **listing: object) -> Backup:
    """A backup by the reports that `reports_in` puts below a folder."""
    told = {"kind": "s3_inventory", "location": str(folder / "inventory/lake/daily"), **listing}
    return Backup(
        name="lake",
        source=StoreAddress(url=source),
        target=StoreAddress(url="s3://copies"),
        listing=ListingSource.model_validate(told),
    )


def listed(
    backup: Backup, folder: Path, day: str = DAY, now: dt.datetime = IN_TIME
) -> tuple[ListingRecord, list[dict[str, object]]]:
    """What a listing says: its record, and its rows in order of key and version."""
    workspace = Workspace(folder / "work")
    record = make_listing(backup, workspace, day, now)
    assert record is not None
    assert workspace.load("listing", ListingRecord) == record
    rows = read_table(workspace.rows("listing"), LISTING).to_pylist()
    assert (record.rows, record.size_bytes) == (len(rows), sum(row["size_bytes"] or 0 for row in rows))
    return record, sorted(rows, key=lambda row: (row["key"], row["version_id"] or ""))


def as_listed(one: Stored, bucket: str = "lake", *, versions: bool = False) -> dict[str, object]:
    """What a listing has to say of a stored object."""
    there = not one.is_delete_marker
    return {
        "bucket": bucket,
        "key": one.key,
        "version_id": one.version_id if versions else None,
        "is_latest": one.is_latest if versions else True,
        "is_delete_marker": one.is_delete_marker if versions else False,
        "size_bytes": one.size,
        "last_modified": one.modified,
        "etag": one.etag,
        "storage_class": one.storage_class,
        "is_multipart": "-" in (one.etag or "") if there else None,
        "encryption": "SSE-S3" if there else None,
        "checksum_algorithm": "CRC64NVME" if there else None,
    }
