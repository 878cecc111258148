"""Reports of S3 Inventory: which have arrived, their manifests, and the first that speaks for a day.

A report counts from the arrival of its manifest.checksum, which is written last. Its rows are read in data_files.py.
"""

import datetime as dt
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import md5
from pathlib import PurePosixPath

from pydantic import BaseModel, Field, ValidationError

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.columns import ReportFormat, names_in
from lakeshare_pipelines.backup.listing.own_keys import reached
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.workspace import end_of
from lakeshare_pipelines.errors import BackupError, ObjectMissing, ReportUnusable

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
class Late:
    """No report came in time; what there is to say about it."""

    reason: str


def report_store(backup: Backup) -> BackupStore:
    """The store that reports of a backup arrive in: the whole bucket, or the folder of the reports."""
    location = backup.listing.location or ""
    address = reached(backup, location)
    return open_store(address if address.kind == FOLDER else address.at(address.bucket))


def arrivals(store: BackupStore, location: str) -> list[Arrival]:
    """The reports that have arrived at a location (…/source-bucket/config-id), oldest scan first."""
    base = _base(location)
    # Data files, which are many, lie beside the dated folders: no year of a report begins otherwise.
    found = []
    for one in store.list(f"{base}2"):
        told = _ARRIVED.fullmatch(one.key.removeprefix(base))
        if told is not None:
            began = dt.datetime.strptime(told[1], SCAN_TIME).replace(tzinfo=dt.UTC)
            found.append(Arrival(one.key.removesuffix("manifest.checksum"), began, one.last_modified))
    return sorted(found, key=lambda arrival: arrival.scan_started_at)


def reports_at(store: BackupStore, location: str) -> Iterator[Report]:
    """The reports that have arrived at a location, oldest scan first.

    Raises:
        ReportUnusable: at a report whose manifest is damaged.
        BackupError: the store cannot be read.
    """
    for arrival in arrivals(store, location):
        yield read_report(store, location, arrival)


def read_report(store: BackupStore, location: str, arrival: Arrival) -> Report:
    """A report's manifest, checked against its checksum.

    Raises:
        ReportUnusable: it is damaged, or is no manifest.
    """
    key = f"{arrival.folder}manifest.json"
    where = store.address.location(key)
    try:
        written, told = store.read(key), store.read(f"{arrival.folder}manifest.checksum")
    except ObjectMissing as error:
        raise ReportUnusable(where, "it is gone since it was listed", NEXT_REPORT) from error
    digest = md5(written, usedforsecurity=False).hexdigest()
    if digest != told.decode("ascii", "replace").strip().lower():
        raise ReportUnusable(where, f"its MD5 is {digest}, manifest.checksum tells another", NEXT_REPORT)
    manifest = _parsed(written, where)
    return Report(
        store.address,
        where,
        manifest.source_bucket,
        # Seconds are in the manifest only; both are the moment the scan began.
        dt.datetime.fromtimestamp(int(manifest.creation_timestamp) / 1000, dt.UTC),
        arrival.arrived_at,
        manifest.file_format,
        _columns(manifest, where),
        tuple(
            ReportFile(_placed(store.address, location, file.key), file.size, file.md5)
            for file in manifest.files
        ),
        digest,
    )


def earliest_scan(backup: Backup, day: str) -> dt.datetime:
    """When the scan of a report may begin that speaks for a day: at D+lag 00:00 UTC, and not before the day ends."""
    as_of = end_of(day)
    if "T" in day:
        return as_of
    return as_of + dt.timedelta(days=max(0, backup.listing.lag_days - 1))


def deadline(backup: Backup, day: str) -> dt.datetime:
    """Until when a report of a day is waited for. A point of a moment waits for none."""
    hours = 0 if "T" in day else backup.listing.wait_hours
    return earliest_scan(backup, day) + dt.timedelta(hours=hours)


def candidates(backup: Backup, store: BackupStore, day: str) -> list[Arrival]:
    """The reports that may speak for a day, by the minute that their folders tell; the first to be taken first."""
    earliest = earliest_scan(backup, day)
    found = arrivals(store, backup.listing.location or "")
    return [arrival for arrival in found if arrival.scan_started_at + dt.timedelta(minutes=1) > earliest]


def speaks_for(backup: Backup, day: str, report: Report) -> bool:
    """Whether a report's scan began late enough, by the millisecond that its manifest tells."""
    return report.scan_started_at >= earliest_scan(backup, day)


def awaited_report(backup: Backup, day: str, now: dt.datetime) -> Report | Late | None:
    """The first whole report that may speak for a day; None while it is waited for, Late when that is over.

    Raises:
        BackupError: the reports are those of another bucket, or their store cannot be read.
    """
    store, unusable = report_store(backup), []
    for arrival in candidates(backup, store, day):
        try:
            report = read_report(store, backup.listing.location or "", arrival)
            if speaks_for(backup, day, report):
                return require_source(backup, report)
        except ReportUnusable as error:
            unusable.append(str(error))
    if now < deadline(backup, day):
        return None
    return Late(" ".join([too_late(backup, day), *unusable]))


def too_late(backup: Backup, day: str) -> str:
    """A sentence about reports that have not come."""
    return (
        f"{backup.listing.location}: no usable report whose scan began at {earliest_scan(backup, day):%Y-%m-%d %H:%M} "
        f"UTC or later had come by {deadline(backup, day):%Y-%m-%d %H:%M} UTC; the generator lists instead."
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


def _parsed(written: bytes, where: str) -> _Manifest:
    try:
        return _Manifest.model_validate(json.loads(written), strict=False)
    except (ValueError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise ReportUnusable(where, f"it is no manifest of an inventory: {first}", NEXT_REPORT) from error


def _columns(manifest: _Manifest, where: str) -> tuple[str, ...]:
    try:
        return names_in(manifest.file_format, manifest.file_schema)
    except BackupError as error:
        raise ReportUnusable(where, f"{error.subject}: {error.reason}", NEXT_REPORT) from error


def _base(location: str) -> str:
    """What the keys of a location's reports begin with, in the store that `report_store` opens."""
    prefix = StoreAddress(url=location).prefix
    return "" if location.startswith("/") else prefix


def _placed(address: StoreAddress, location: str, key: str) -> str:
    """Manifests tell keys of the whole bucket; a store that is a folder begins at the reports themselves."""
    if address.kind != FOLDER:
        return key
    place, parts = PurePosixPath(location).parts, PurePosixPath(key).parts
    for shared in range(min(len(place), len(parts)), 0, -1):
        if place[-shared:] == parts[:shared]:
            return "/".join(parts[shared:])
    return key
