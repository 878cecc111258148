"""The listing of a day: from the source that the backup names, or from the generator when that says nothing in time.

Rows of schema LISTING go to the workspace's folder `listing`, where they come from into its record `listing`.
"""

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.inventory import list_report
from lakeshare_pipelines.backup.listing.manifest_csv import list_manifest
from lakeshare_pipelines.backup.listing.metadata_tables import awaited_snapshot, list_metadata
from lakeshare_pipelines.backup.listing.reports import (
    Late,
    awaited_report,
    candidates,
    deadline,
    read_report,
    report_store,
    require_source,
    speaks_for,
    too_late,
)
from lakeshare_pipelines.backup.listing.telling import Tell, to_log
from lakeshare_pipelines.backup.records import ListingRecord
from lakeshare_pipelines.backup.workspace import Workspace, end_of
from lakeshare_pipelines.errors import ReportUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    OpenSpark = Callable[[], SparkSession]


def is_listing_ready(backup: Backup, day: str, now: dt.datetime) -> bool:
    """Whether `make_listing` would list now rather than wait; for sensors: it looks, and reads no data file.

    Raises:
        BackupError: the place of the reports cannot be read.
    """
    if now < end_of(day):
        return False
    if backup.listing.kind == "s3_inventory":
        return awaited_report(backup, day, now) is not None
    if backup.listing.kind == "s3_metadata":
        return awaited_snapshot(backup, day, now) is not None
    return True


def make_listing(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    spark: "OpenSpark | None" = None,
    tell: Tell = to_log,
) -> ListingRecord | None:
    """List the source for a day; None while a report is waited for, or the day is not over.

    A report that cannot be used is passed over for the next one; after the wait the generator lists, and the record
    says that it is late and why.

    Raises:
        BackupError: the source or the reports cannot be read, or the reports are of another bucket.
    """
    if now < end_of(day):
        return None
    if backup.listing.kind == "s3_inventory":
        record = _from_reports(backup, workspace, day, now, spark, tell)
    elif backup.listing.kind == "s3_metadata":
        record = _from_metadata(backup, workspace, day, now, spark, tell)
    elif backup.listing.kind == "manifest_csv":
        record = list_manifest(backup, workspace, now, tell)
    else:
        record = _generated(backup, workspace, spark, tell)
    if record is not None:
        workspace.save("listing", record)
    return record


def _from_reports(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    spark: "OpenSpark | None",
    tell: Tell,
) -> ListingRecord | None:
    store, passed_over = report_store(backup), list[str]()
    for arrival in candidates(backup, store, day):
        try:
            report = read_report(store, backup.listing.location or "", arrival)
            if not speaks_for(backup, day, report):
                continue
            record = list_report(backup, require_source(backup, report), workspace, tell, spark)
        except ReportUnusable as error:
            tell(str(error))
            passed_over.append(str(error))
            continue
        is_late = bool(passed_over) or ("T" not in day and arrival.scan_started_at > deadline(backup, day))
        return record.model_copy(update={"is_late": is_late, "warnings": (*passed_over, *record.warnings)})
    if now < deadline(backup, day):
        return None
    return _instead(backup, workspace, day, (too_late(backup, day), *passed_over), spark, tell)


def _from_metadata(
    backup: Backup,
    workspace: Workspace,
    day: str,
    now: dt.datetime,
    spark: "OpenSpark | None",
    tell: Tell,
) -> ListingRecord | None:
    snapshot = awaited_snapshot(backup, day, now)
    if snapshot is None:
        return None
    if isinstance(snapshot, Late):
        return _instead(backup, workspace, day, (snapshot.reason,), spark, tell)
    return list_metadata(backup, workspace, day, snapshot, tell)


def _instead(
    backup: Backup,
    workspace: Workspace,
    day: str,
    reasons: tuple[str, ...],
    spark: "OpenSpark | None",
    tell: Tell,
) -> ListingRecord:
    """The generator's listing, where reports were to be had. Of a point of a moment nobody could have waited."""
    for reason in reasons:
        tell(reason)
    record = _generated(backup, workspace, spark, tell)
    return record.model_copy(update={"is_late": "T" not in day, "warnings": (*reasons, *record.warnings)})


def _generated(backup: Backup, workspace: Workspace, spark: "OpenSpark | None", tell: Tell) -> ListingRecord:
    from lakeshare_pipelines.backup.listing.generator import list_source

    return list_source(backup, workspace, spark=spark, tell=tell)
