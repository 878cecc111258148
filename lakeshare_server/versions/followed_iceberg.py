"""The versions of a followed Iceberg table: the snapshots that were its current ones, numbered in the ledger.

A number is in the ledger, marked unaudited, before any recipient learns it. It is given once and for ever; what it pins
stays readable by it as long as its files are there, whatever becomes of the table afterwards.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from lakeshare_server.catalog import FollowedTable, IcebergIdentity, Ledger, Publication
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
from lakeshare_server.tables.delta.changes import SegmentCache, VersionChanges
from lakeshare_server.tables.delta.files import mapping_mode
from lakeshare_server.tables.index import FileIndex, IndexCache
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
from lakeshare_server.versions.metadata_sources import (
    MetadataSource,
    Pointer,
    catalog_service,
    is_delta,
    make_source,
)
from lakeshare_server.versions.published import ChangeFiles, PublishedChanges, unlike_columns
from lakeshare_server.versions.version import PinnedSnapshot, Version

LOCATION_PATTERN = re.compile(r"\S*[/\\]\S*")
# Where a sentence begins with one, a subject is left in its place.
SUBJECT_PATTERN = re.compile(r"(^|[.:;,] )\S*[/\\]\S*(?= \w)")
PROVIDER = "Provider: the server's log says more."


def hide_locations(error: LakeshareError, places: Iterable[str]) -> LakeshareError:
    """The same refusal in words that name no place of the table, its catalog or the server."""
    if isinstance(error, Unavailable):
        return Unavailable(
            "the table's store or catalog does not answer", "Try again in a moment.", error.retry_s
        )
    if isinstance(error, Unserveable) and error.code == ReasonCode.EQUALITY_DELETES:
        # Its own words name settings, which are the provider's to know.
        return Unserveable(ReasonCode.EQUALITY_DELETES.sentence, ReasonCode.EQUALITY_DELETES.fix, error.code)
    if isinstance(error, Unserveable):
        return Unserveable(_replace_locations(error.reason, places), _fix(error, places), error.code)
    if isinstance(error, TableFilesMissing):
        return TableFilesMissing("", _replace_locations(error.what, places))
    if isinstance(error, StoreError):
        return TableFilesMissing("", "a file of its metadata is gone, or not readable")
    if isinstance(error, BadRequest):
        return Unserveable("The table's place cannot be looked at.", PROVIDER)
    return Unserveable("The table's newest state cannot be numbered.", PROVIDER)


def _fix(error: Unserveable, places: Iterable[str]) -> str:
    return _replace_locations(error.fix, places) if error.code else PROVIDER


def _replace_locations(text: str, places: Iterable[str]) -> str:
    for place in sorted(places, key=len, reverse=True):
        text = re.sub(rf"(?<!\S){re.escape(place)}(?=[\s.,:;]|$)", "the table", text)
    text = SUBJECT_PATTERN.sub(r"\1a file of it", text)
    text = LOCATION_PATTERN.sub("…", text)
    return text[:1].upper() + text[1:]


MAX_CACHED_ROWS = 256  # rows of the ledger, each with its schema
# A version that only Iceberg clients can read has no index: its manifests are not read again for each request.
REFUSED_FOR_S = 60.0
FEED_NOT_RECORDED = (
    "files were removed or rewritten, and of a table that is followed nobody records the changed rows"
)

Answer = TypeVar("Answer")
_log = logging.getLogger(__name__)


class FollowedSnapshots:
    """Reads one followed Iceberg table; made anew for each generation of the catalog."""

    def __init__(
        self,
        ledger: Ledger,
        followed: FollowedTable,
        identity: IcebergIdentity,
        look: LatestObservation,
        cache: IndexCache,
        segments: SegmentCache,
        change_files: ChangeFiles,
        stores: Stores,
        vectors_dir: Path | None = None,
    ) -> None:
        self._ledger, self._followed, self._identity, self._look = ledger, followed, identity, look
        self._cache, self._stores, self._vectors_dir = cache, stores, vectors_dir
        self._numbers = SnapshotNumbers(ledger, followed, identity, look.source, stores, self._index_of_state)
        self._compared = PublishedChanges(
            cache.folder, segments, change_files, stores, self._index_of, FEED_NOT_RECORDED
        )
        self._rows: dict[int, Publication] = {}
        self._refused: dict[tuple[object, ...], tuple[float, Unserveable]] = {}
        self._last: Publication | None = None
        self._since: int | None = None

    def location(self) -> str:
        """The table's folder."""
        return self._identity.location

    def services(self) -> Sequence[str]:
        """The catalog that names the table's metadata, and its store."""
        catalog = catalog_service(self._followed.location)
        found = [] if catalog is None else [catalog]
        return (*found, *self._stores.services_of(self._identity.location))

    def latest(self) -> Version:
        """The newest state, as of a look that is not older than the table's interval.

        A state that only Iceberg clients can read is one: its `index` is refused.

        Raises:
            Unserveable: no API can serve the newest state, or another table is in its place; an older one is not
                passed off as it.
            StoreError: its metadata is gone, or the store refuses it.
            Unavailable: the store or the catalog does not answer.
        """
        return _version(self._newest())

    def latest_now(self) -> Version | None:
        """The newest state, if somebody looked within the table's interval; reads nothing."""
        observed, told = self._look.seen, self._last
        if observed is None or told is None or not self._look.is_fresh():
            return None
        return _version(max(observed.newest, told, key=_number))

    def oldest(self) -> Version:
        """The first number that the operator shows."""
        newest = self._newest()
        found = self._ledger.at(self._followed.table, self._first())
        return _version(found or newest)

    def at(self, number: int) -> Version | None:
        """The version with this number; for one that is known the table is not looked at."""
        found = self._row(number)
        if found is None:
            # It may have come about since the last look.
            self._newest()
            found = self._row(number)
        return None if found is None else self._shown(found)

    def at_or_below(self, number: int) -> Version | None:
        """The last version with this number or a lower one."""
        self._newest()
        return self._shown(self._ledger.at_or_below(self._followed.table, number))

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last version of that time or earlier."""
        self._newest()
        return self._shown(self._ledger.at_or_before(self._followed.table, timestamp_ms))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first version of that time or later."""
        self._newest()
        found = self._ledger.at_or_after(self._followed.table, timestamp_ms)
        return None if found is None else self._shown(found) or self.oldest()

    def index(self, version: Version) -> FileIndex:
        """The files of a version; built when it is asked for first.

        Raises:
            NotFound: there is no such version.
            TableFilesMissing: its metadata is gone, and no newer file tells it as it was.
            Unserveable: no client could read it.
            Unavailable: the store does not answer.
        """
        row = self._required(version.number)
        return self._told(lambda: self._index_of(row))

    def changes(self, first: int, last: int) -> Sequence[VersionChanges]:
        """What the versions from `first` to `last` changed, as their files tell it: nobody records changed rows.

        Raises:
            TableFilesMissing: the files of one of them are not known any more.
            Unavailable: the store does not answer.
        """
        return self._told(lambda: self._compared.window(*self._between(first, last)))

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same, as the change data feed tells it; versions that rewrote files have a fault there."""
        told = None if schema_at is None else self._required(schema_at)
        return self._told(lambda: self._compared.feed(*self._between(first, last), told))

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        """Why the schema of version `told_at` does not tell the columns of all files from `first` to `last`."""
        told = self._required(schema_at)
        if mapping_mode(self._told(lambda: self._index_of(told)).header.head.configuration) != "none":
            return None
        return self._told(lambda: unlike_columns(self._stores, [*self._between(first, last)[0], told]))

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """What the versions from `first` to `last` pin, in order.

        The newest one is told by the metadata of now: its owner may have removed the file it was numbered by.
        """
        self._newest()
        rows = self._ledger.between(self._followed.table, max(first, self._first()), last)
        return [
            PinnedSnapshot(_version(row), self._metadata_now(row), snapshot_id)
            for row, (_, snapshot_id) in zip(rows, map(_pins, rows), strict=True)
        ]

    def _metadata_now(self, row: Publication) -> str:
        observed = self._look.seen
        is_newest = observed is not None and observed.newest.version == row.version
        return observed.pointer.metadata_location if observed is not None and is_newest else _pins(row)[0]

    def _newest(self) -> Publication:
        found = self._look.refresh(self._looked).newest
        # Another worker may have numbered more, and told it: nobody is to see numbers go back.
        if self._last is None or self._last.version < found.version:
            self._last = self._ledger.latest(self._followed.table) or found
        return self._last

    def _looked(self, before: ObservedState | None) -> ObservedState:
        return self._told(lambda: self._numbers.look(before))

    def _first(self) -> int:
        """The first number of this very table that the operator shows; the newest one is always there."""
        if self._since is None:
            self._since = self._ledger.first_of(self._followed.table, self._identity.table_id)
        newest = self._last or self._ledger.latest(self._followed.table)
        first = max(self._followed.start_version, self._since)
        return first if newest is None else min(first, newest.version)

    def _shown(self, row: Publication | None) -> Version | None:
        return None if row is None or row.version < self._first() else _version(row)

    def _row(self, number: int) -> Publication | None:
        """What the ledger has under this number, if it is this table's."""
        found = self._rows.get(number) or self._ledger.at(self._followed.table, number)
        if found is None or found.table_id != self._identity.table_id:
            return None
        if len(self._rows) >= MAX_CACHED_ROWS:
            self._rows.clear()
        self._rows[number] = found
        return found

    def _required(self, number: int) -> Publication:
        row = self._row(number)
        if row is None:
            raise NotFound("Publication", str(number))
        return row

    def _between(self, first: int, last: int) -> tuple[list[Publication], Publication | None]:
        """What the ledger has from `first` to `last`, and before that; nothing of another table of this name."""
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
            observed = self._look.seen or self._look.refresh(self._looked)
            return self._index_from(observed.pointer, row, error)

    def _index_from(self, pointer: Pointer, row: Publication, error: LakeshareError) -> FileIndex:
        """The files of a version whose own metadata file was removed, as the newest one tells them."""
        history = read_history(self._stores, pointer)
        _, snapshot_id = _pins(row)
        # Columns that were renamed since are told with the names of now where the snapshot is still the current one.
        if history.table_id != row.table_id or history.schema_of(snapshot_id) != row.schema_id:
            what = f"the metadata of version {row.version} was removed, and newer metadata does not tell it as it was"
            raise TableFilesMissing(self._identity.location, what) from error
        return self._index(pointer.metadata_location, snapshot_id, row.schema_id)

    def _index(self, metadata_location: str, snapshot_id: int, schema_id: int | None) -> FileIndex:
        identity = "followed", self._identity.table_id, metadata_location, snapshot_id, schema_id
        refused_at, refusal = self._refused.get(identity, (0.0, None))
        if refusal is not None and time.monotonic() - refused_at < REFUSED_FOR_S:
            raise refusal.with_traceback(None)
        try:
            return self._cache.get(identity, lambda: self._read(metadata_location, snapshot_id))
        except Unserveable as error:
            if is_read_by_iceberg_clients(error):
                if len(self._refused) >= MAX_CACHED_ROWS:
                    self._refused.clear()
                self._refused[identity] = (time.monotonic(), error)
            raise

    def _read(self, metadata_location: str, snapshot_id: int) -> TableSnapshot:
        snapshot = read_iceberg(metadata_location, snapshot_id, self._vectors_dir, self._stores)
        if snapshot.table_id != self._identity.table_id:
            raise Unserveable(f"{metadata_location} is of another table now.", "Restore the table.")
        return snapshot

    def _told(self, ask: Callable[[], Answer]) -> Answer:
        """The answer, or the refusal in words without places: recipients know the table by its shared name alone."""
        try:
            return ask()
        except LakeshareError as error:
            _log.warning("followed table %s at %s: %s", self._followed.table, self._followed.location, error)
            raise hide_locations(error, (self._followed.location, self._identity.location)) from error


def _pins(row: Publication) -> tuple[str, int]:
    """The metadata file and the snapshot of a number."""
    if row.metadata_location is None or row.snapshot_id is None:
        raise Unserveable(f"Version {row.version} pins no snapshot.", "Read a newer version.")
    return row.metadata_location, row.snapshot_id


def _number(row: Publication) -> int:
    return row.version


def _version(row: Publication) -> Version:
    return Version(row.version, int(row.published_at.timestamp() * 1000))


def read_unfollowed(location: str, stores: Stores, settings: StateSettings) -> IcebergIdentity | None:
    """Read a table once, before anybody follows it; None of a Delta table.

    Raises:
        Unserveable: there is no table, it lies elsewhere, or no API can serve its newest state.
        BadRequest: its catalog is not configured.
        StoreError: a file of it is gone, or the store refuses it.
        Unavailable: the store or the catalog does not answer.
    """
    if is_delta(location, stores):
        read_delta(location, stores=stores)
        return None
    source = make_source(location, stores, settings)
    history = read_history(stores, _current(source, location))
    identity = make_identity(history, stores, source.root)
    state = history.current
    try:
        read_iceberg(state.metadata_location, state.snapshot_id, settings.vectors_dir, stores)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
    return identity


def _current(source: MetadataSource, location: str) -> Pointer:
    try:
        return source.current(None)
    except TableFilesMissing as error:
        raise Unserveable(
            f"There is no Delta table at {location}, and no Iceberg table.",
            "Give the folder above _delta_log or metadata, or a table of a catalog: iceberg:CATALOG/NAMESPACE.TABLE.",
        ) from error
