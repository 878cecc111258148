"""Listing a source now: as a report like S3's own, or right away as the listing of a backup."""

import datetime as dt
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.generator.on_spark import files_by_spark, rows_by_spark
from lakeshare_pipelines.backup.listing.generator.report import (
    Generated,
    ReportPlace,
    write_files,
    write_manifest,
)
from lakeshare_pipelines.backup.listing.generator.source import IN_FLIGHT, listed
from lakeshare_pipelines.backup.listing.own_keys import own_prefixes, without_prefixes
from lakeshare_pipelines.backup.listing.telling import Tell, to_log
from lakeshare_pipelines.backup.records import ListingRecord
from lakeshare_pipelines.backup.rows import LISTING, write_rows
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.workspace import Workspace
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    OpenSpark = Callable[[], SparkSession]


def generate_report(
    place: ReportPlace,
    *,
    in_flight: int = IN_FLIGHT,
    spark: "OpenSpark | None" = None,
    tell: Tell = to_log,
) -> Generated:
    """List all of a source and write the report of it; until its checksum is written, there is no report.

    The moment before the listing began is the report's time: what was changed later may be in it or not.

    Raises:
        BackupError: the source or the destination refuses, or there is a report of this minute already.
    """
    started_at = _now()
    if spark is not None and place.source.kind != FOLDER:
        files = files_by_spark(spark(), place, tell)
    else:
        batches = listed(place.source, versions=place.versions, in_flight=in_flight, tell=tell)
        files = list(write_files(place, batches))
    ended_at = _now()
    generated = write_manifest(place, files, started_at, ended_at)
    tell(f"{generated.location}: {generated.rows:,} objects in {generated.files} files")
    return generated


def list_source(
    backup: Backup, workspace: Workspace, spark: "OpenSpark | None" = None, tell: Tell = to_log
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
        rows, size = rows_by_spark(spark(), source, folder, own, versions=versions, tell=tell)
    else:
        batches = listed(source, versions=versions, in_flight=min(backup.in_flight, IN_FLIGHT), tell=tell)
        counted = _Counted()
        write_rows(folder, LISTING, counted.counting(without_prefixes(batch, own) for batch in batches))
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


class _Counted:
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
