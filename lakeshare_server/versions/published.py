"""The versions of a table with a pipeline: its publications, and nothing else that lies in storage."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.errors import NotFound, StoreError, Unavailable, Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables import read_delta, read_iceberg
from lakeshare_server.tables.delta.changes import ChangeLog, SegmentCache, VersionChanges, read_changes
from lakeshare_server.tables.index import FileIndex, index_path, open_index
from lakeshare_server.tables.index_cache import IndexCache
from lakeshare_server.tables.snapshot import TableSnapshot
from lakeshare_server.versions.version import Version

OPEN_INDEXES = 64


class PublishedVersions:
    """Reads the ledger for one lake table; made anew for each generation of the catalog."""

    def __init__(
        self,
        ledger: Ledger,
        table: str,
        index_dir: Path,
        cache: IndexCache,
        segments: SegmentCache,
        stores: Stores,
    ) -> None:
        self._ledger, self._table = ledger, table
        self._index_dir, self._cache, self._segments, self._stores = index_dir, cache, segments, stores
        self._seen: dict[int, Publication] = {}
        self._latest: Version | None = None

    def location(self) -> str:
        """Where the newest publication is.

        Raises:
            NotFound: nothing was published yet.
        """
        return self._newest().location

    def latest(self) -> Version:
        """The newest publication.

        Raises:
            NotFound: nothing was published yet.
        """
        if self._latest is None:
            newest = self._newest()
            self._seen[newest.version] = newest
            self._latest = _version(newest)
        return self._latest

    def latest_now(self) -> Version | None:
        """The newest publication, once it was asked for: these versions live for one generation of the catalog."""
        return self._latest

    def oldest(self) -> Version:
        """The first publication."""
        first = self._ledger.oldest(self._table)
        return _version(first or self._newest())

    def at(self, number: int) -> Version | None:
        """The publication with this number."""
        return _optional(self._ledger.at(self._table, number))

    def at_or_below(self, number: int) -> Version | None:
        """The last publication with this number or a lower one."""
        return _optional(self._ledger.at_or_below(self._table, number))

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last publication of that time or earlier."""
        return _optional(self._ledger.at_or_before(self._table, timestamp_ms))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first publication of that time or later."""
        return _optional(self._ledger.at_or_after(self._table, timestamp_ms))

    def index(self, version: Version) -> FileIndex:
        """The files of a publication; rebuilt from the pinned state when the index is gone or of an older layout."""
        publication = self._publication(version.number)
        try:
            return _opened(self._index_dir, publication.index_digest)
        except Unavailable:
            if index_path(self._index_dir, publication.index_digest).exists():
                _opened.cache_clear()
            return self._cache.get(_identity(publication), lambda: self._pinned(publication))

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What the publications from `first` to `last` changed.

        Raises:
            Unserveable: the table is no Delta table, or somebody else's commits lie between its publications.
        """
        publication = self._publication(last)
        if publication.format != "delta":
            raise Unserveable(
                f"Changes of {self._table} are not served by this server yet.", "Query its versions instead."
            )
        published = self._ledger.between(self._table, first, last)
        times = {one.version: int(one.published_at.timestamp() * 1000) for one in published}
        log = ChangeLog(self._stores, publication.location, publication.table_id)
        changes = read_changes(log, self._segments, first, last)
        return [one.at(times[one.version]) for one in changes if self._is_told(one, times)]

    def _is_told(self, change: VersionChanges, times: dict[int, int]) -> bool:
        if change.version in times:
            return True
        if change.has_data_changes:
            raise Unserveable(
                f"Version {change.version} of {self._table} was never published, so its changes are not readable.",
                "Read a snapshot of a published version instead.",
            )
        return False

    def _newest(self) -> Publication:
        latest = self._ledger.latest(self._table)
        if latest is None:
            raise NotFound("[Share/Schema/Table]", self._table.replace(".", "/"))
        return latest

    def _publication(self, number: int) -> Publication:
        publication = self._seen.get(number) or self._ledger.at(self._table, number)
        if publication is None:
            raise NotFound("[Share/Schema/Table]", self._table.replace(".", "/"))
        return publication

    def _pinned(self, publication: Publication) -> TableSnapshot:
        try:
            snapshot = self._read_again(publication)
        except (Unserveable, StoreError) as error:
            raise _lost(publication, f"its state cannot be read any more: {error}") from error
        if snapshot.table_id != publication.table_id:
            raise _lost(publication, f"another table is at {publication.location} now")
        return snapshot

    def _read_again(self, publication: Publication) -> TableSnapshot:
        if publication.format == "delta":
            return read_delta(publication.location, publication.delta_version, self._stores)
        if publication.metadata_location is None or publication.snapshot_id is None:
            raise _lost(publication, "it pins no snapshot")
        return read_iceberg(publication.metadata_location, publication.snapshot_id)


def _lost(publication: Publication, why: str) -> Unavailable:
    return Unavailable(
        f"publication {publication.version} of {publication.table} has lost its file index, and {why}",
        "Restore the index folder from its backup, or publish the table again.",
    )


def _identity(publication: Publication) -> tuple[object, ...]:
    return "publication", publication.table, publication.version, publication.index_digest


def _version(publication: Publication) -> Version:
    return Version(publication.version, int(publication.published_at.timestamp() * 1000))


def _optional(publication: Publication | None) -> Version | None:
    return None if publication is None else _version(publication)


# What is in an index never changes, so an open one serves every request of the process.
@lru_cache(OPEN_INDEXES)
def _opened(index_dir: Path, digest: str) -> FileIndex:
    return open_index(index_dir, digest)
