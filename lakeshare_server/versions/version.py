"""What recipients can ask of a table's versions, whoever numbers them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lakeshare_server.errors import NotFound
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.index import FileIndex


@dataclass(frozen=True)
class Version:
    """A number that recipients know and when it came about, in milliseconds since 1970."""

    number: int
    timestamp_ms: int


@dataclass(frozen=True)
class PinnedSnapshot:
    """A version of an Iceberg table: the snapshot it is, and the metadata file that lists it."""

    version: Version
    metadata_location: str
    snapshot_id: int


class TableVersions(Protocol):
    """The readable versions of one table, in order; timestamps grow with the numbers."""

    def location(self) -> str:
        """Where the table is."""
        ...

    def services(self) -> Sequence[str]:
        """The stores and catalogs outside of this process that the table is read from, by their names as services."""
        ...

    def latest(self) -> Version:
        """The version that is read when none is asked for."""
        ...

    def latest_now(self) -> Version | None:
        """The same where it is known without waiting for a database or a store, else None."""
        ...

    def oldest(self) -> Version:
        """The first version that can be read."""
        ...

    def at(self, number: int) -> Version | None:
        """The version with this number, None when there is none."""
        ...

    def at_or_below(self, number: int) -> Version | None:
        """The last version with this number or a lower one."""
        ...

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last version of that time or earlier."""
        ...

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first version of that time or later."""
        ...

    def index(self, version: Version) -> FileIndex:
        """The files of a version."""
        ...

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What the versions `first` to `last` changed, in order, as windows tell it."""
        ...

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same as the change data feed tells it: under the head of version `told_at`, or each under its own."""
        ...

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        """Why the schema of version `told_at` does not tell all changes from `first` to `last`, None when it does: a
        column had another name or type in between, and files are not told by column ids."""
        ...

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """What the versions `first` to `last` are in Iceberg's own words, in order; none of other formats."""
        ...


class VersionsUntil:
    """A table as it was at a publication that a provider chose, with what came before it."""

    def __init__(self, versions: TableVersions, last: int) -> None:
        self._all, self._number = versions, last
        self._last: Version | None = None

    def location(self) -> str:
        """Where the table is."""
        return self._all.location()

    def services(self) -> Sequence[str]:
        """The stores and catalogs outside of this process that the table is read from."""
        return self._all.services()

    def latest(self) -> Version:
        """The chosen publication.

        Raises:
            NotFound: there is no such publication.
        """
        if self._last is None:
            self._last = self._all.at(self._number)
        if self._last is None:
            raise NotFound("Publication", str(self._number))
        return self._last

    def latest_now(self) -> Version | None:
        """The same, once it was asked for."""
        return self._last

    def oldest(self) -> Version:
        """The first version that can be read."""
        oldest, latest = self._all.oldest(), self.latest()
        return oldest if oldest.number <= latest.number else latest

    def at(self, number: int) -> Version | None:
        """The version with this number, None when there is none, or it is later."""
        return self._all.at(number) if number <= self._number else None

    def at_or_below(self, number: int) -> Version | None:
        """The last version with this number or a lower one."""
        return self._all.at_or_below(min(number, self._number))

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last version of that time or earlier."""
        # Times grow with the numbers.
        return self._all.at_or_before(min(timestamp_ms, self.latest().timestamp_ms))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first version of that time or later."""
        found = self._all.at_or_after(timestamp_ms)
        return found if found is not None and found.number <= self._number else None

    def index(self, version: Version) -> FileIndex:
        """The files of a version."""
        return self._all.index(version)

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What the versions `first` to `last` changed; callers have seen to it that none is later."""
        return self._all.changes(first, last)

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same as the change data feed tells it."""
        return self._all.feed(first, last, schema_at)

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        """Why the schema of version `told_at` does not tell all changes from `first` to `last`."""
        return self._all.unlike_columns(first, last, schema_at)

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """What the versions `first` to `last` are in Iceberg's own words."""
        return self._all.snapshots(first, min(last, self._number))
