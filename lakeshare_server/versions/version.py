"""The interface of a table's readable versions, and its restriction to an earlier publication."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lakeshare_server.catalog import Publication
from lakeshare_server.errors import NotFound
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.index import FileIndex


@dataclass(frozen=True)
class Version:
    """A version number and its time, in milliseconds since 1970."""

    number: int
    timestamp_ms: int

    @classmethod
    def of(cls, publication: Publication) -> "Version":
        return cls(publication.version, int(publication.published_at.timestamp() * 1000))


@dataclass(frozen=True)
class PinnedSnapshot:
    """A version of an Iceberg table: its snapshot, and the metadata file that lists the snapshot."""

    version: Version
    metadata_location: str
    snapshot_id: int


class TableVersions(Protocol):
    """The readable versions of one table, in order; timestamps grow with the numbers.

    Methods raise NotFound for unknown versions, Unavailable when a store or catalog does not respond, and
    Unserveable or StoreError when a version cannot be read.
    """

    def location(self) -> str:
        """The table's root folder."""

    def services(self) -> Sequence[str]:
        """Names of the external stores and catalogs that the table is read from."""

    def latest(self) -> Version:
        """The newest version."""

    def latest_now(self) -> Version | None:
        """The newest version if it is known without a request to a database or store, else None."""

    def oldest(self) -> Version:
        """The first version that can be read."""

    def at(self, number: int) -> Version | None:
        """The version with this number."""

    def at_or_below(self, number: int) -> Version | None:
        """The last version with this number or a lower one."""

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last version of that time or earlier."""

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first version of that time or later."""

    def index(self, version: Version) -> FileIndex:
        """The files of a version."""

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """The changes of the versions `first` to `last`, in order, for queries with a window of versions."""

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same for the change data feed: under the head of version `schema_at`, or each under its own."""

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        """Why the schema of version `schema_at` does not fit the changes from `first` to `last`, None if it does.

        A column had another name or type in between, and files are not mapped by column ids.
        """

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """The Iceberg snapshots of the versions `first` to `last`, in order; none for other formats."""


class VersionsUntil:
    """A table at a publication that the provider chose, with the versions before it."""

    def __init__(self, versions: TableVersions, last: int) -> None:
        self._all, self._number = versions, last
        self._last: Version | None = None

    def location(self) -> str:
        return self._all.location()

    def services(self) -> Sequence[str]:
        return self._all.services()

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
        # Times grow with the numbers.
        return self._all.at_or_before(min(timestamp_ms, self.latest().timestamp_ms))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        version = self._all.at_or_after(timestamp_ms)
        return version if version is not None and version.number <= self._number else None

    def index(self, version: Version) -> FileIndex:
        return self._all.index(version)

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        return self._all.changes(first, last)

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        return self._all.feed(first, last, schema_at)

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        return self._all.unlike_columns(first, last, schema_at)

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        return self._all.snapshots(first, min(last, self._number))
