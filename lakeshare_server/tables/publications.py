"""What a publication in the ledger names: its file index, its index of changes, and the state that it pins.

Servers and pipelines read them with the same caches below the state folder.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lakeshare_server.catalog import Publication
from lakeshare_server.errors import StoreError, StoreMissing, TableFilesMissing, Unavailable, Unserveable
from lakeshare_server.settings import StateSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.changes import Segment, SegmentCache, segment_cache
from lakeshare_server.tables.delta.snapshot import read_delta
from lakeshare_server.tables.iceberg.changes import fetch_changes, open_changes
from lakeshare_server.tables.iceberg.metadata import read_iceberg
from lakeshare_server.tables.index import FileIndex, IndexCache, fetch_index, open_index
from lakeshare_server.tables.snapshot import TableSnapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublicationFiles:
    """The stores, settings of folders, and caches that publications are read with."""

    stores: Stores
    settings: StateSettings
    cache: IndexCache
    segments: SegmentCache

    @classmethod
    def open(cls, stores: Stores, settings: StateSettings, **others: Any) -> Self:
        """Opens the caches; `others` are the fields of a subclass."""
        folder, max_bytes = settings.index_dir / "cache", settings.index_cache_bytes
        return cls(
            stores, settings, IndexCache(folder, max_bytes), segment_cache(folder, max_bytes), **others
        )

    def index(self, publication: Publication) -> FileIndex:
        """The files of a publication; read again from the pinned state if no host's index can be read.

        Raises:
            TableFilesMissing: that state cannot be read any more; the text is for recipients, too.
            Unavailable: the store does not respond, or the folder cannot be written.
        """
        return self._index(publication.index_digest, lambda: _read_pinned(publication, self))

    def find_index(self, digest: str) -> FileIndex | None:
        """A file index, or what was read again for it; None if it is lost, damaged or of an older layout."""

        def refuse() -> TableSnapshot:
            raise StoreMissing(digest)

        with suppress(StoreMissing):
            return self._index(digest, refuse)
        return None

    def find_changes(self, digest: str, *, fetches: bool = True) -> Segment | None:
        """An index of changes, with `fetches` also one that only another host has; None if it is lost or damaged."""
        with suppress(StoreMissing):
            return self._open_changes(digest)
        with suppress(StoreMissing):
            return fetch_changes(self.segments, digest, self.fetch) if fetches else None
        return None

    def fetch(self, digest: str, path: Path) -> bool:
        """Downloads an index of a publication that another host wrote; False without one. Raises Unavailable."""
        return fetch_index(self.stores, self.settings.shared_root, digest, path)

    def _index(self, digest: str, build: Callable[[], TableSnapshot]) -> FileIndex:
        try:
            return self._open_index(digest)
        except Unavailable:
            return self.cache.get(("publication", digest), build, lambda path: self.fetch(digest, path))

    def _open_index(self, digest: str) -> FileIndex:
        return open_index(self.settings.index_dir, digest)

    def _open_changes(self, digest: str) -> Segment:
        return open_changes(self.settings.index_dir, digest)


def pins_of(publication: Publication) -> tuple[str, int]:
    """The metadata file and the snapshot of an Iceberg table; raises Unserveable without them."""
    if publication.metadata_location is None or publication.snapshot_id is None:
        raise Unserveable("It pins no snapshot.", "Publish the table again.")
    return publication.metadata_location, publication.snapshot_id


def _read_pinned(publication: Publication, files: PublicationFiles) -> TableSnapshot:
    try:
        if publication.format == "delta":
            snapshot = read_delta(publication.location, publication.delta_version, files.stores)
        else:
            snapshot = read_iceberg(*pins_of(publication), files.settings.vectors_location, files.stores)
    except Unavailable as error:
        _log.warning("publication %s of %s: %s", publication.version, publication.table, error)
        what = "the table's store does not answer"
        raise Unavailable(what, "Try again in a moment.", error.retry_s) from error
    except (Unserveable, StoreError) as error:
        raise _missing_error(publication, "what it was made of cannot be read any more", error) from error
    if snapshot.head.table_id != publication.table_id:
        raise _missing_error(publication, "another table is in its place now", snapshot.head.table_id)
    return snapshot


def _missing_error(publication: Publication, why: str, found: object) -> TableFilesMissing:
    """The error for a lost publication; the log has the details that recipients do not get."""
    _log.error(
        "publication %s of %s at %s has lost its file index, and %s (%s). Restore the index folder from its backup, "
        "or publish the table again.",
        *(publication.version, publication.table, publication.location, why, found),
    )
    what = f"version {publication.version} has lost its file index, and {why}; ask the provider to publish it again"
    return TableFilesMissing(publication.location, what)
