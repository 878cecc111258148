"""The readable versions of each table: publications of pipelines, or versions found in storage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeAlias

from lakeshare_server.catalog import (
    Catalog,
    FollowedTable,
    FollowedTables,
    GenerationCache,
    IcebergIdentity,
    Ledger,
)
from lakeshare_server.errors import NotFound
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.publications import PublicationFiles
from lakeshare_server.versions.followed_delta import FollowedLog, FollowedVersions
from lakeshare_server.versions.followed_iceberg import FollowedSnapshots, LatestObservation
from lakeshare_server.versions.followed_iceberg import read_unfollowed as read_unfollowed
from lakeshare_server.versions.metadata_sources import list_tables_at as list_tables_at
from lakeshare_server.versions.metadata_sources import make_source
from lakeshare_server.versions.metadata_sources import (
    normalise_followed_location as normalise_followed_location,
)
from lakeshare_server.versions.metadata_sources import read_table_name as read_table_name
from lakeshare_server.versions.published import PinnedSnapshot as PinnedSnapshot
from lakeshare_server.versions.published import PublishedVersions, VersionSources
from lakeshare_server.versions.published import Version as Version

# The readable versions of one table, in order: the methods are those of `LedgerVersions`.
AllVersions: TypeAlias = PublishedVersions | FollowedSnapshots | FollowedVersions


class VersionsUntil:
    """A table at a publication that the provider chose, with the versions before it."""

    def __init__(self, versions: AllVersions, last: int) -> None:
        self._all, self._number = versions, last
        self._last: Version | None = None
        self.location, self.services, self.index = versions.location, versions.services, versions.index
        self.changes, self.unlike_columns = versions.changes, versions.unlike_columns

    def latest(self) -> Version:
        if self._last is None:
            self._last = self._all.at(self._number)
        if self._last is None:
            raise NotFound("Publication", str(self._number))
        return self._last

    def latest_now(self) -> Version | None:
        return self._last

    def oldest(self) -> Version:
        oldest, latest = self._all.oldest(), self.latest()
        return oldest if oldest.number <= latest.number else latest

    def at(self, number: int) -> Version | None:
        return self._all.at(number) if number <= self._number else None

    def at_or_below(self, number: int) -> Version | None:
        return self._all.at_or_below(min(number, self._number))

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        version = self._all.at_or_before(timestamp_ms)
        return version if version is None or version.number <= self._number else self.latest()

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        version = self._all.at_or_after(timestamp_ms)
        return version if version is not None and version.number <= self._number else None

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        return self._all.snapshots(first, min(last, self._number))


TableVersions: TypeAlias = AllVersions | VersionsUntil


@dataclass(frozen=True)
class Freshness:
    """What this process knows of a followed table: when it checked last, the newest version, and why a check failed."""

    checked_s: float | None = None
    version: int | None = None
    problem: str | None = None


class Versions:
    """The versions of all tables, with this process's caches."""

    def __init__(self, catalog: Catalog, settings: ServerSettings, stores: Stores) -> None:
        self._followed, self._settings, self._stores = FollowedTables(catalog), settings, stores
        self._sources = VersionSources.open(stores, settings, ledger=Ledger(catalog))
        self._audited = replace(self._sources, ledger=Ledger(catalog, readable_only=True))
        self._logs: dict[tuple[str, str, float], FollowedLog] = {}
        self._observations: dict[tuple[str, str, float, IcebergIdentity], LatestObservation] = {}
        self._opening = Lock()
        self._known = GenerationCache[AllVersions](catalog)

    @property
    def files(self) -> PublicationFiles:
        """What publications are read with."""
        return self._sources

    def of(self, table: str, publication: int | None = None) -> TableVersions:
        """The versions of a lake table, up to a publication if one is given, in this generation of the catalog."""
        versions = self._known.get(table, lambda: self._open(table))
        return versions if publication is None else VersionsUntil(versions, publication)

    def find_freshness(self, followed: FollowedTable) -> Freshness:
        """What the last check of a followed table found, without a request."""
        key = followed.table, followed.location, followed.check_every_s
        if followed.iceberg is not None:
            observation = self._observations.get((*key, followed.iceberg))
            if observation is None:
                return Freshness()
            (checked_s, error), version = observation.refreshing.last(), None
        else:
            log = self._logs.get(key)
            if log is None:
                return Freshness()
            (checked_s, error), version = log.refreshing.last(), log.newest.number if log.newest else None
        return Freshness(checked_s, version, None if error is None else error.for_provider())

    def _open(self, table: str) -> AllVersions:
        followed = self._followed.get(table)
        if followed is not None and followed.iceberg is not None:
            observation = self._open_observation(followed, followed.iceberg)
            return FollowedSnapshots(self._sources, followed, followed.iceberg, observation)
        if followed is not None:
            return FollowedVersions(self._sources, followed, self._open_log(followed))
        # Without the unaudited versions of a table that is no longer followed.
        return PublishedVersions(self._audited, table)

    def _open_log(self, followed: FollowedTable) -> FollowedLog:
        key = followed.table, followed.location, followed.check_every_s
        with self._opening:
            if key not in self._logs:
                self._logs[key] = FollowedLog(self._stores, followed.location, followed.check_every_s)
            return self._logs[key]

    def _open_observation(self, followed: FollowedTable, identity: IcebergIdentity) -> LatestObservation:
        key = followed.table, followed.location, followed.check_every_s, identity
        with self._opening:
            if key not in self._observations:
                source = make_source(followed.location, self._stores, self._settings)
                self._observations[key] = LatestObservation(source, followed.check_every_s)
            return self._observations[key]
