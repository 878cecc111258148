"""The versions of a followed Iceberg table: the snapshots that were its current ones, numbered in the ledger.

A number is in the ledger, marked unaudited, before recipients learn it, and is never given again. Its snapshot stays
readable as long as its files exist.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from lakeshare_server.catalog import FollowedTable, IcebergIdentity, Publication
from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    NotFound,
    StoreError,
    TableFilesMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.settings import StateSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import read_delta, read_iceberg
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.delta.files import mapping_mode
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.serveability import ReasonCode, is_read_by_iceberg_clients
from lakeshare_server.tables.snapshot import TableSnapshot
from lakeshare_server.versions.iceberg_history import (
    LatestObservation,
    ObservedState,
    SnapshotNumbers,
    TableState,
    make_identity,
    read_history,
)
from lakeshare_server.versions.metadata_sources import Pointer, catalog_service, is_delta, make_source
from lakeshare_server.versions.published import PublishedChanges, VersionSources, unlike_columns
from lakeshare_server.versions.version import PinnedSnapshot, Version

LOCATION_PATTERN = re.compile(r"\S*[/\\]\S*")
# A location at the begin of a sentence is replaced by a subject.
SUBJECT_PATTERN = re.compile(r"(^|[.:;,] )\S*[/\\]\S*(?= \w)")
PROVIDER = "Provider: the server's log says more."


def hide_locations(error: LakeshareError, places: Iterable[str]) -> LakeshareError:
    """The same refusal without locations of the table, its catalog or the server."""
    if isinstance(error, Unavailable):
        what = "the table's store or catalog does not answer"
        return Unavailable(what, "Try again in a moment.", error.retry_s)
    if isinstance(error, Unserveable):
        if error.code == ReasonCode.EQUALITY_DELETES:
            # Its own text names settings of the provider.
            return ReasonCode.EQUALITY_DELETES.error(ReasonCode.EQUALITY_DELETES.sentence)
        fix = _replace_locations(error.fix, places) if error.code else PROVIDER
        return Unserveable(_replace_locations(error.reason, places), fix, error.code)
    if isinstance(error, TableFilesMissing):
        return TableFilesMissing("", _replace_locations(error.what, places))
    if isinstance(error, StoreError):
        return TableFilesMissing("", "a file of its metadata is gone, or not readable")
    if isinstance(error, BadRequest):
        return Unserveable("The table's place cannot be looked at.", PROVIDER)
    return Unserveable("The table's newest state cannot be numbered.", PROVIDER)


def _replace_locations(text: str, places: Iterable[str]) -> str:
    for place in sorted(places, key=len, reverse=True):
        text = re.sub(rf"(?<!\S){re.escape(place)}(?=[\s.,:;]|$)", "the table", text)
    text = SUBJECT_PATTERN.sub(r"\1a file of it", text)
    text = LOCATION_PATTERN.sub("…", text)
    return text[:1].upper() + text[1:]


MAX_CACHED_ROWS = 256  # rows of the ledger, each with its schema
# A version that only Iceberg clients can read has no index: the refusal is cached, not to read manifests again.
REFUSED_FOR_S = 60.0
FEED_NOT_RECORDED = (
    "files were removed or rewritten, and the changed rows of a table that is followed are not recorded"
)

T = TypeVar("T")
_log = logging.getLogger(__name__)


class FollowedSnapshots:
    """The versions of one followed Iceberg table, for one generation of the catalog."""

    def __init__(
        self,
        sources: VersionSources,
        followed: FollowedTable,
        identity: IcebergIdentity,
        observation: LatestObservation,
    ) -> None:
        self._sources, self._ledger, self._stores = sources, sources.ledger, sources.stores
        self._followed, self._identity, self._observation = followed, identity, observation
        self._numbers = SnapshotNumbers(
            sources.ledger, followed, identity, observation.source, sources.stores, self._index_of_state
        )
        in_cache = replace(sources, index_dir=sources.cache.folder)
        self._changes = PublishedChanges(in_cache, self._index_of, FEED_NOT_RECORDED)
        self._rows: dict[int, Publication] = {}
        self._refused: dict[tuple[object, ...], tuple[float, Unserveable]] = {}
        self._last: Publication | None = None
        self._since: int | None = None

    def location(self) -> str:
        return self._identity.location

    def services(self) -> Sequence[str]:
        catalog = catalog_service(self._followed.location)
        services = self._stores.services_of(self._identity.location)
        return services if catalog is None else (catalog, *services)

    def latest(self) -> Version:
        # Also a state that only Iceberg clients can read: its `index` is refused.
        return Version.of(self._newest())

    def latest_now(self) -> Version | None:
        observed, latest = self._observation.seen, self._last
        if observed is None or latest is None or not self._observation.refreshing.is_fresh():
            return None
        return Version.of(max(observed.newest, latest, key=lambda row: row.version))

    def oldest(self) -> Version:
        newest = self._newest()
        return Version.of(self._ledger.at(self._followed.table, self._first()) or newest)

    def at(self, number: int) -> Version | None:
        row = self._row(number)
        if row is None:
            # It may be newer than the last observation.
            self._newest()
            row = self._row(number)
        return self._readable(row)

    def at_or_below(self, number: int) -> Version | None:
        self._newest()
        return self._readable(self._ledger.at_or_below(self._followed.table, number))

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        self._newest()
        return self._readable(self._ledger.at_or_before(self._followed.table, timestamp_ms))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        self._newest()
        row = self._ledger.at_or_after(self._followed.table, timestamp_ms)
        return None if row is None else self._readable(row) or self.oldest()

    def index(self, version: Version) -> FileIndex:
        row = self._required_row(version.number)
        return self._without_locations(lambda: self._index_of(row))

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        return self._without_locations(lambda: self._changes.window(*self._between(first, last)))

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        schema_row = None if schema_at is None else self._required_row(schema_at)
        return self._without_locations(lambda: self._changes.feed(*self._between(first, last), schema_row))

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        row = self._required_row(schema_at)
        header = self._without_locations(lambda: self._index_of(row)).header
        if mapping_mode(header.head.configuration) != "none":
            return None
        rows = [*self._between(first, last)[0], row]
        return self._without_locations(lambda: unlike_columns(self._stores, rows))

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        self._newest()
        observed = self._observation.seen
        pinned = []
        for row in self._ledger.between(self._followed.table, max(first, self._first()), last):
            location, snapshot_id = _pins(row)
            # The owner may have removed the metadata file that the newest version was numbered with.
            if observed is not None and observed.newest.version == row.version:
                location = observed.pointer.metadata_location
            pinned.append(PinnedSnapshot(Version.of(row), location, snapshot_id))
        return pinned

    def _newest(self) -> Publication:
        newest = self._observation.refresh(self._observe).newest
        # Another worker may have numbered and shown more: numbers must not go back.
        if self._last is None or self._last.version < newest.version:
            self._last = self._ledger.latest(self._followed.table) or newest
        return self._last

    def _observe(self, before: ObservedState | None) -> ObservedState:
        return self._without_locations(lambda: self._numbers.observe(before))

    def _first(self) -> int:
        """The first readable number of this very table; the newest one is always readable."""
        if self._since is None:
            self._since = self._ledger.first_of(self._followed.table, self._identity.table_id)
        newest = self._last or self._ledger.latest(self._followed.table)
        first = max(self._followed.start_version, self._since)
        return first if newest is None else min(first, newest.version)

    def _readable(self, row: Publication | None) -> Version | None:
        return None if row is None or row.version < self._first() else Version.of(row)

    def _row(self, number: int) -> Publication | None:
        """The ledger's row with this number, if it is of this table."""
        row = self._rows.get(number) or self._ledger.at(self._followed.table, number)
        if row is None or row.table_id != self._identity.table_id:
            return None
        if len(self._rows) >= MAX_CACHED_ROWS:
            self._rows.clear()
        self._rows[number] = row
        return row

    def _required_row(self, number: int) -> Publication:
        row = self._row(number)
        if row is None:
            raise NotFound("Publication", str(number))
        return row

    def _between(self, first: int, last: int) -> tuple[list[Publication], Publication | None]:
        return self._ledger.between(self._followed.table, first, last), self._row(first - 1)

    def _index_of_state(self, state: TableState) -> FileIndex:
        return self._index(state.metadata_location, state.snapshot_id, state.schema_id)

    def _index_of(self, row: Publication) -> FileIndex:
        location, snapshot_id = _pins(row)
        try:
            return self._index(location, snapshot_id, row.schema_id)
        except (Unserveable, StoreError) as error:
            if self._stores.head(location) is not None:
                raise
            observed = self._observation.seen or self._observation.refresh(self._observe)
            return self._index_from(observed.pointer, row, error)

    def _index_from(self, pointer: Pointer, row: Publication, error: LakeshareError) -> FileIndex:
        """The files of a version whose own metadata file was removed, from the newest metadata."""
        history = read_history(self._stores, pointer)
        _, snapshot_id = _pins(row)
        # For the current snapshot, the newest metadata has the present column names.
        if history.table_id != row.table_id or history.schema_of(snapshot_id) != row.schema_id:
            what = f"the metadata of version {row.version} was removed, and newer metadata does not have it as it was"
            raise TableFilesMissing(self._identity.location, what) from error
        return self._index(pointer.metadata_location, snapshot_id, row.schema_id)

    def _index(self, metadata_location: str, snapshot_id: int, schema_id: int | None) -> FileIndex:
        identity = "followed", self._identity.table_id, metadata_location, snapshot_id, schema_id
        refused_at, refusal = self._refused.get(identity, (0.0, None))
        if refusal is not None and time.monotonic() - refused_at < REFUSED_FOR_S:
            raise refusal.with_traceback(None)
        try:
            return self._sources.cache.get(identity, lambda: self._read(metadata_location, snapshot_id))
        except Unserveable as error:
            if is_read_by_iceberg_clients(error):
                if len(self._refused) >= MAX_CACHED_ROWS:
                    self._refused.clear()
                self._refused[identity] = (time.monotonic(), error)
            raise

    def _read(self, metadata_location: str, snapshot_id: int) -> TableSnapshot:
        snapshot = read_iceberg(metadata_location, snapshot_id, self._sources.vectors_dir, self._stores)
        if snapshot.head.table_id != self._identity.table_id:
            raise Unserveable(f"{metadata_location} is of another table now.", "Restore the table.")
        return snapshot

    def _without_locations(self, read: Callable[[], T]) -> T:
        """The result; a refusal is logged, and raised without locations, because recipients know only shared names."""
        try:
            return read()
        except LakeshareError as error:
            _log.warning("followed table %s at %s: %s", self._followed.table, self._followed.location, error)
            raise hide_locations(error, (self._followed.location, self._identity.location)) from error


def _pins(row: Publication) -> tuple[str, int]:
    if row.metadata_location is None or row.snapshot_id is None:
        raise Unserveable(f"Version {row.version} pins no snapshot.", "Read a newer version.")
    return row.metadata_location, row.snapshot_id


def read_unfollowed(location: str, stores: Stores, settings: StateSettings) -> IcebergIdentity | None:
    """Read a table once, before it is followed; None for a Delta table.

    Raises:
        Unserveable: there is no table, it has moved, or no API can serve its newest state.
        BadRequest: its catalog is not configured.
    """
    if is_delta(location, stores):
        read_delta(location, stores=stores)
        return None
    source = make_source(location, stores, settings)
    try:
        pointer = source.current(None)
    except TableFilesMissing as error:
        raise Unserveable(
            f"There is no Delta table at {location}, and no Iceberg table.",
            "Give the folder above _delta_log or metadata, or a table of a catalog: iceberg:CATALOG/NAMESPACE.TABLE.",
        ) from error
    history = read_history(stores, pointer)
    identity = make_identity(history, stores, source.root)
    state = history.current
    try:
        read_iceberg(state.metadata_location, state.snapshot_id, settings.vectors_dir, stores)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
    return identity
