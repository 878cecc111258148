"""The versions of a table with a pipeline: its publications, and nothing else that lies in storage."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.errors import NotFound, StoreError, TableFilesMissing, Unavailable, Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables import read_delta, read_iceberg
from lakeshare_server.tables.delta.changes import ChangeLog, SegmentCache, VersionChanges, read_changes
from lakeshare_server.tables.delta.mapping import mapping_mode
from lakeshare_server.tables.index import FileIndex, index_path, open_index
from lakeshare_server.tables.index_cache import IndexCache
from lakeshare_server.tables.snapshot import TableSnapshot
from lakeshare_server.versions.published_changes import (
    ChangeFiles,
    PublishedChanges,
    unlike_columns,
)
from lakeshare_server.versions.version import PinnedSnapshot, Version

OPEN_INDEXES = 64
SEEN = 256  # rows of the ledger, each with its schema

_log = logging.getLogger(__name__)


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
        vectors_dir: Path | None = None,
        change_files: ChangeFiles | None = None,
    ) -> None:
        self._ledger, self._table, self._vectors_dir = ledger, table, vectors_dir
        self._index_dir, self._cache, self._segments, self._stores = index_dir, cache, segments, stores
        self._change_files = change_files or ChangeFiles(stores)
        self._seen: dict[int, Publication] = {}
        self._first: Publication | None = None
        self._last: Publication | None = None

    def location(self) -> str:
        """Where the newest publication is.

        Raises:
            NotFound: nothing was published yet.
        """
        return self._newest().location

    def services(self) -> Sequence[str]:
        """The store of the newest publication."""
        try:
            return self._stores.services_of(self.location())
        except NotFound:
            return ()

    def latest(self) -> Version:
        """The newest publication.

        Raises:
            NotFound: nothing was published yet.
        """
        return _version(self._newest())

    def latest_now(self) -> Version | None:
        """The newest publication, once it was asked for: these versions live for one generation of the catalog."""
        return _optional(self._last)

    def oldest(self) -> Version:
        """The first publication."""
        self._first = self._first or self._ledger.oldest(self._table)
        return _version(self._first or self._newest())

    def at(self, number: int) -> Version | None:
        """The publication with this number."""
        return _optional(self._seen.get(number) or self._kept(self._ledger.at(self._table, number)))

    def at_or_below(self, number: int) -> Version | None:
        """The last publication with this number or a lower one."""
        return _optional(self._seen.get(number) or self._kept(self._ledger.at_or_below(self._table, number)))

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last publication of that time or earlier."""
        return _optional(self._kept(self._ledger.at_or_before(self._table, timestamp_ms)))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first publication of that time or later."""
        return _optional(self._kept(self._ledger.at_or_after(self._table, timestamp_ms)))

    def index(self, version: Version) -> FileIndex:
        """The files of a publication; rebuilt from the pinned state when the index is gone or of an older layout.

        Raises:
            TableFilesMissing: the index is gone, and so is the pinned state.
            Unavailable: the store of the pinned state does not answer.
        """
        return self._index(self._publication(version.number))

    def _index(self, publication: Publication) -> FileIndex:
        try:
            return _opened(self._index_dir, publication.index_digest)
        except Unavailable:
            if index_path(self._index_dir, publication.index_digest).exists():
                _opened.cache_clear()
            return self._cache.get(_identity(publication), lambda: self._pinned(publication))

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What the publications from `first` to `last` changed.

        Raises:
            Unserveable: somebody else's commits lie between the publications of a Delta table.
            TableFilesMissing: the changes of one of them are not known any more.
        """
        if self._publication(last).format == "iceberg":
            return self._recorded().window(*self._between(first, last))
        return self._of_log(first, last)

    def feed(self, first: int, last: int, told_at: int | None) -> Sequence[VersionChanges]:
        """The same, as the change data feed tells it; Delta's log has one answer for both."""
        if self._publication(last).format == "iceberg":
            told = None if told_at is None else self._publication(told_at)
            return self._recorded().feed(*self._between(first, last), told)
        return self._of_log(first, last)

    def unlike_columns(self, first: int, last: int, told_at: int) -> str | None:
        """Why the schema of version `told_at` does not tell the columns of all files from `first` to `last`."""
        told = self._publication(told_at)
        if told.format == "delta" or mapping_mode(self._index(told).header.head.configuration) != "none":
            return None
        return unlike_columns(self._stores, [*self._ledger.between(self._table, first, last), told])

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """What the publications from `first` to `last` pin, in order; nothing of a Delta table."""
        if self._newest().format != "iceberg":
            return ()
        return [
            PinnedSnapshot(_version(one), one.metadata_location, one.snapshot_id)
            for one in self._ledger.between(self._table, first, last)
            if one.metadata_location is not None and one.snapshot_id is not None
        ]

    def _recorded(self) -> PublishedChanges:
        return PublishedChanges(
            self._index_dir, self._segments, self._change_files, self._stores, self._index
        )

    def _between(self, first: int, last: int) -> tuple[list[Publication], Publication | None]:
        """The publications from `first` to `last`, and the one before them."""
        return self._ledger.between(self._table, first, last), self._ledger.at_or_below(
            self._table, first - 1
        )

    def _of_log(self, first: int, last: int) -> list[VersionChanges]:
        publication = self._publication(last)
        times = {
            one.version: int(one.published_at.timestamp() * 1000)
            for one in self._ledger.between(self._table, first, last)
        }
        log = ChangeLog(self._stores, publication.location, publication.table_id)
        of_log = read_changes(log, self._segments, first, last)
        return [one.at(times[one.version]) for one in of_log if self._is_told(one, times)]

    def _is_told(self, change: VersionChanges, times: dict[int, int]) -> bool:
        if change.version in times:
            return True
        if change.has_data_changes:
            raise Unserveable(
                f"Version {change.version} of this table was never published, so its changes are not readable.",
                "Read a snapshot of a published version instead.",
            )
        return False

    # Recipients know tables by the names they are shared under: the lake's own name is in none of the errors.
    def _newest(self) -> Publication:
        self._last = self._last or self._kept(self._ledger.latest(self._table))
        if self._last is None:
            raise NotFound("Publication", "latest")
        return self._last

    def _publication(self, number: int) -> Publication:
        publication = self._seen.get(number) or self._kept(self._ledger.at(self._table, number))
        if publication is None:
            raise NotFound("Publication", str(number))
        return publication

    def _kept(self, publication: Publication | None) -> Publication | None:
        """A row that was read, kept as long as these versions live."""
        if publication is not None:
            if len(self._seen) >= SEEN:
                self._seen.clear()
            self._seen[publication.version] = publication
        return publication

    def _pinned(self, publication: Publication) -> TableSnapshot:
        try:
            snapshot = self._read_again(publication)
        except Unavailable as error:
            _log.warning("publication %s of %s: %s", publication.version, publication.table, error)
            raise Unavailable(
                "the table's store does not answer", "Try again in a moment.", error.retry_s
            ) from error
        except (Unserveable, StoreError) as error:
            raise _lost(publication, "what it was made of cannot be read any more", error) from error
        if snapshot.table_id != publication.table_id:
            raise _lost(publication, "another table is in its place now", snapshot.table_id)
        return snapshot

    def _read_again(self, publication: Publication) -> TableSnapshot:
        if publication.format == "delta":
            return read_delta(publication.location, publication.delta_version, self._stores)
        if publication.metadata_location is None or publication.snapshot_id is None:
            raise Unserveable("It pins no snapshot.", "Publish the table again.")
        return read_iceberg(
            publication.metadata_location, publication.snapshot_id, self._vectors_dir, self._stores
        )


def _lost(publication: Publication, why: str, found: object) -> TableFilesMissing:
    """The refusal of a publication that is lost; what recipients are not told is in the log."""
    _log.error(
        "publication %s of %s at %s has lost its file index, and %s (%s). Restore the index folder from its backup, "
        "or publish the table again.",
        *(publication.version, publication.table, publication.location, why, found),
    )
    what = f"version {publication.version} has lost its file index, and {why}; ask the provider to publish it again"
    return TableFilesMissing(publication.location, what)


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
