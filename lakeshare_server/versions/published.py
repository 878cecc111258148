"""The versions of a table that are publications in the ledger, and what the versions of all tables are read with."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import pyarrow.compute as pc

from lakeshare_server.catalog import Ledger, NewPublication, Publication
from lakeshare_server.errors import NotFound, TableFilesMissing, Unavailable, Unserveable
from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.changes import (
    CDC,
    ChangeLog,
    RewrittenSegment,
    Segment,
    VersionChanges,
    read_changes,
    share_hindrances,
)
from lakeshare_server.tables.delta.files import mapping_mode
from lakeshare_server.tables.iceberg import metadata
from lakeshare_server.tables.iceberg.changes import (
    StateChange,
    have_change_files,
    head_of_rows,
    is_made_of,
    open_changes,
    without_partition_values,
    write_changes,
)
from lakeshare_server.tables.iceberg.deletes import vector_hindrance
from lakeshare_server.tables.iceberg.schema import find_lacking_column
from lakeshare_server.tables.index import FileIndex, RecentValues, index_path, open_index
from lakeshare_server.tables.publications import PublicationFiles, pins_of
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import TableHead

LAYOUT = 2
KEPT_S = 60.0
MAX_KEPT = 10_000
NOT_RECORDED = "it was published without a record of its changes, and files were removed or rewritten"
INDEX_MISSING = "its index of changes is lost, and files were removed or rewritten"
FILES_MISSING = "its change files are lost"

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Version:
    """A version number and its time, in milliseconds since 1970; `traceparent` is the trace of its run."""

    number: int
    timestamp_ms: int
    traceparent: str | None = field(default=None, compare=False)

    @classmethod
    def of(cls, publication: Publication) -> "Version":
        published_ms = int(publication.published_at.timestamp() * 1000)
        return cls(publication.version, published_ms, publication.traceparent)


@dataclass(frozen=True)
class PinnedSnapshot:
    """A version of an Iceberg table: its snapshot, and the metadata file that lists the snapshot."""

    version: Version
    metadata_location: str
    snapshot_id: int


Key = TypeVar("Key")
Value = TypeVar("Value")


class ExpiringValues(Generic[Key, Value]):
    """Values that are kept for `KEPT_S`, at most `MAX_KEPT` of them; for many threads."""

    def __init__(self) -> None:
        self._values = RecentValues[Key, tuple[float, Value]](MAX_KEPT)

    def get(self, key: Key) -> Value | None:
        kept = self._values.get(key)
        return kept[1] if kept is not None and time.monotonic() - kept[0] < KEPT_S else None

    def keep(self, key: Key, value: Value) -> None:
        self._values.keep(key, (time.monotonic(), value))


OPEN_INDEXES, OPEN_CHANGES = 64, 512
# An index does not change, so an open one serves every request of the process.
_open_index = lru_cache(OPEN_INDEXES)(open_index)
_open_changes = lru_cache(OPEN_CHANGES)(open_changes)


@dataclass(frozen=True)
class VersionSources(PublicationFiles):
    """What the versions of tables are read with."""

    ledger: Ledger
    # Indexes of changes that are lost, and those whose change files are there.
    lost: ExpiringValues[str, bool] = field(default_factory=ExpiringValues)
    whole: ExpiringValues[str, bool] = field(default_factory=ExpiringValues)

    def recorded_changes(self, digest: str) -> Segment | None:
        """An index of changes; None if it is lost or damaged here and in the store, which is assumed for a while."""
        is_lost = self.lost.get(digest) is not None
        segment = self.find_changes(digest, fetches=not is_lost)
        if segment is None and not is_lost:
            self.lost.keep(digest, True)
        return segment

    def _open_index(self, digest: str) -> FileIndex:
        try:
            return _open_index(self.settings.index_dir, digest)
        except Unavailable:
            if index_path(self.settings.index_dir, digest).exists():
                _open_index.cache_clear()
            raise

    def _open_changes(self, digest: str) -> Segment:
        return _open_changes(self.settings.index_dir, digest)

    def has_change_files(self, digest: str, segment: Segment, version: int) -> bool:
        """Whether the store has all files in an index of changes, which is assumed for a while."""
        if self.whole.get(digest):
            return True
        if not have_change_files(self.stores, segment, version):
            return False
        self.whole.keep(digest, True)
        return True


def unlike_columns(stores: Stores, publications: Sequence[Publication]) -> str | None:
    """Why one schema does not fit the columns in all these publications' files by name; None when it does."""
    by_schema = {_schema_key(publication): publication for publication in publications}
    if len(by_schema) < 2:
        return None
    try:
        column = metadata.column_conflict([_columns_at(stores, *pins_of(row)) for row in by_schema.values()])
    except Unserveable:
        return "what the columns were at one of the versions is not known any more"
    return column and f"column {column} had another name or type at one of the versions"


# Metadata files do not change.
_columns_at = lru_cache(OPEN_CHANGES)(metadata.columns_by_id)


def _keeps_rows(stores: Stores, before: Publication, row: Publication) -> bool:
    if row.metadata_location is None or row.snapshot_id is None or before.snapshot_id is None:
        return False
    try:
        return metadata.keeps_rows(stores, row.metadata_location, row.snapshot_id, before.snapshot_id)
    except Unserveable:
        return False


def _restores_columns(stores: Stores, before: Publication, row: Publication) -> bool:
    if _schema_key(before) == _schema_key(row):
        return False
    try:
        return metadata.restores_columns(stores, pins_of(before), pins_of(row))
    except Unserveable:
        # Unknown: files do not show the other effects of a changed column.
        return True


def _schema_key(row: Publication) -> str | int:
    """The schema: Iceberg's id for followed tables, whose rows have no schema string."""
    return row.schema_string if row.schema_id is None else row.schema_id


def _make_changes(segment: Segment, publication: Publication, fault: str | None) -> VersionChanges:
    version = segment.note.versions[publication.version]
    if version.head is None:
        raise TableFilesMissing(publication.location, "its index of changes is not whole")
    return VersionChanges.of(
        version,
        timestamp_ms=Version.of(publication).timestamp_ms,
        has_own_time=True,
        head=TableHead.from_json(json.loads(version.head)),
        segment=segment,
        window_hindrances=(vector_hindrance(version.vectors),) if version.vectors else (),
        feed_hindrances=(vector_hindrance(version.feed_vectors),) if version.feed_vectors else (),
        feed_fault=fault or version.feed_fault,
    )


def _unify_heads(changes: Sequence[VersionChanges], others: Sequence[TableHead]) -> list[VersionChanges]:
    """The changes for one response, with compatible heads; it begins with one of `others`, or with their own heads."""
    if len({head.partition_columns for head in (*(change.head for change in changes), *others)}) > 1:
        changes = [
            replace(
                change,
                head=change.head.without_partitions(),
                segment=RewrittenSegment(change.segment, without_partition_values),
            )
            if change.head.partition_columns
            else change
            for change in changes
        ]
    heads = share_hindrances([change.head for change in changes])
    return [replace(change, head=head) for change, head in zip(changes, heads, strict=True)]


def _to_plain_head(change: VersionChanges) -> VersionChanges:
    """The changes under a head without reader features, if they have only change files, or none."""
    is_mapped = mapping_mode(change.head.configuration) != "none"
    if change.feed_rows != change.cdc_rows or (is_mapped and change.head.partition_columns):
        return change
    head = head_of_rows(change.head)
    text = f"{head.schema_string} {head.partition_columns}"
    return replace(change, head=head, metadata_text=text, protocol_text=str(head.protocol))


def _list_data_paths(change: VersionChanges, *, feed: bool) -> tuple[str, ...]:
    """The data files in the response for a version; change files have all columns."""
    paths: list[str] = []
    last = change.first_row + change.window_rows + change.cdc_rows
    for batch in change.segment.rows(change.first_row, last):
        is_data = pc.not_equal(batch.column("kind"), CDC)
        if feed:
            is_data = pc.and_(is_data, batch.column("in_feed"))
        paths += batch.filter(is_data).column("path").to_pylist()
    return tuple(paths)


_find_lacking = lru_cache(OPEN_CHANGES)(find_lacking_column)
MAX_CACHED_ROWS = 256  # rows of the ledger, each with its schema


class LedgerVersions:
    """Versions that are publications in the ledger, for one generation of the catalog.

    Subclasses know which of them are readable, and where their files are; `unrecorded` is the reason for a feed where
    only files are known. Timestamps grow with the numbers.

    Methods raise NotFound for unknown versions, Unavailable when a store or catalog does not respond, and
    Unserveable or StoreError when a version cannot be read.
    """

    unrecorded = NOT_RECORDED

    def __init__(self, sources: VersionSources, table: str) -> None:
        self._sources, self._ledger, self._stores = sources, sources.ledger, sources.stores
        self._table = table
        self._rows = RecentValues[int, Publication](MAX_CACHED_ROWS)
        self._last: Publication | None = None

    def _newest(self) -> Publication:
        raise NotImplementedError

    def _index(self, row: Publication) -> FileIndex:
        raise NotImplementedError

    def oldest(self) -> Version:
        """The first version that can be read."""
        raise NotImplementedError

    def latest(self) -> Version:
        """The newest version."""
        return Version.of(self._newest())

    def at(self, number: int) -> Version | None:
        """The version with this number."""
        return self._readable(self._row(number))

    def at_or_below(self, number: int) -> Version | None:
        """The last version with this number or a lower one."""
        self._refresh()
        return self._readable(
            self._rows.get(number) or self._keep(self._ledger.at_or_below(self._table, number))
        )

    def at_or_before(self, timestamp_ms: int) -> Version | None:
        """The last version of that time or earlier."""
        self._refresh()
        return self._readable(self._keep(self._ledger.at_or_before(self._table, timestamp_ms)))

    def at_or_after(self, timestamp_ms: int) -> Version | None:
        """The first version of that time or later."""
        self._refresh()
        row = self._keep(self._ledger.at_or_after(self._table, timestamp_ms))
        return None if row is None else self._readable(row) or self.oldest()

    def index(self, version: Version) -> FileIndex:
        """The files of a version."""
        row = self._required_row(version.number)
        return self._translated(lambda: self._index(row))

    def changes(
        self, first: int, last: int, *, feed: bool = False, schema_at: int | None = None
    ) -> Sequence[VersionChanges]:
        """The changes of the versions `first` to `last`, in order: of a window of versions, or of a change data feed.

        A feed is under the head of version `schema_at`, by default each version under its own. All have the same
        partition columns: none, if those of the publications differ.

        Raises:
            TableFilesMissing: the files of a publication are lost; contains the first readable number.
        """
        schema_row = None if schema_at is None else self._required_row(schema_at)

        def read() -> list[VersionChanges]:
            changes, others = self._read_all(first, last, feed=feed), list[TableHead]()
            if schema_row is not None and [change.version for change in changes] != [schema_row.version]:
                others = [self._index(schema_row).header.head]
            elif feed:
                changes = [_to_plain_head(change) for change in changes]
            return self._require_columns(_unify_heads(changes, others), feed=feed)

        return self._translated(read)

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        """Why the schema of version `schema_at` does not fit the changes from `first` to `last`, None if it does.

        A column had another name or type in between, and files are not mapped by column ids.
        """
        row = self._required_row(schema_at)
        if row.format == "delta":
            return None
        header = self._translated(lambda: self._index(row)).header
        if mapping_mode(header.head.configuration) != "none":
            return None
        rows = [*self._ledger.between(self._table, first, last), row]
        return self._translated(lambda: unlike_columns(self._stores, rows))

    def snapshots(self, first: int, last: int) -> Sequence[PinnedSnapshot]:
        """The Iceberg snapshots of the versions `first` to `last`, in order; none for other formats."""
        if self._newest().format != "iceberg":
            return ()
        return [
            PinnedSnapshot(Version.of(row), location, row.snapshot_id)
            for row in self._ledger.between(self._table, max(first, self._first()), last)
            if (location := self._metadata_location(row)) is not None and row.snapshot_id is not None
        ]

    def _refresh(self) -> None:
        """Brings the ledger up to date before it is searched."""

    def _first(self) -> int:
        """The first readable number."""
        return 0

    def _readable(self, row: Publication | None) -> Version | None:
        return None if row is None else Version.of(row)

    def _metadata_location(self, row: Publication) -> str | None:
        return row.metadata_location

    def _translated(self, read: Callable[[], T]) -> T:
        """The result; a subclass may raise its refusals in other words."""
        return read()

    def _row(self, number: int) -> Publication | None:
        return self._rows.get(number) or self._keep(self._ledger.at(self._table, number))

    def _required_row(self, number: int) -> Publication:
        row = self._row(number)
        if row is None:
            raise NotFound("Publication", str(number))
        return row

    def _before(self, first: int) -> Publication | None:
        return self._ledger.before(self._table, first)

    def _require_columns(self, changes: list[VersionChanges], *, feed: bool) -> list[VersionChanges]:
        """Raises `Unserveable` when a file lacks a column that was a partition column at some of the versions."""
        for change in changes:
            if change.head.left_to_files:
                paths = _list_data_paths(change, feed=feed)
                column = _find_lacking(self._stores, paths, change.head.left_to_files)
                if column is not None:
                    raise ReasonCode.PARTITION_VALUES_NOT_IN_FILES.error(
                        f"Files of version {change.version} lack column {column}, which is a partition column only of "
                        "some of the versions whose changes were asked for."
                    )
        return changes

    def _read_all(self, first: int, last: int, *, feed: bool) -> list[VersionChanges]:
        rows = self._ledger.between(self._table, first, last)
        pairs = list(zip([self._before(first), *rows[:-1]], rows, strict=True))
        # Newest first, so that the error for a lost publication names the first readable one.
        return [self._read_change(*pair, feed=feed) for pair in reversed(pairs)][::-1]

    def _read_change(self, before: Publication | None, row: Publication, *, feed: bool) -> VersionChanges:
        digests = "" if before is None else before.index_digest, row.index_digest
        segment = self._open_recorded(row, digests)
        if segment is None or row.changes_digest is None:
            return _make_changes(self._compare(before, row, digests), row, None)
        # Windows have no change files.
        is_whole = not feed or self._sources.has_change_files(row.changes_digest, segment, row.version)
        return _make_changes(segment, row, None if is_whole else FILES_MISSING)

    def _open_recorded(self, row: Publication, digests: tuple[str, str]) -> Segment | None:
        if row.changes_digest is None:
            return None
        segment = self._sources.recorded_changes(row.changes_digest)
        if segment is None or not is_made_of(segment, row.version, digests):
            _log.error(
                "publication %s of %s has lost its index of changes %s: recipients get only the changes in its files. "
                "Run `lakeshare repair`, which records it again.",
                *(row.version, row.table, row.changes_digest),
            )
            return None
        return segment

    def _compare(self, before: Publication | None, row: Publication, digests: tuple[str, str]) -> Segment:
        is_lost = row.changes_digest is not None
        pins = [None if p is None else (p.table_id, p.snapshot_id, _schema_key(p)) for p in (before, row)]
        identity = "iceberg changes", LAYOUT, row.table, row.version, digests, is_lost, *pins
        return self._sources.segments.get(
            identity, lambda path: write_changes(self._make_change(before, row, is_lost), digests, path)
        )

    def _make_change(self, before: Publication | None, row: Publication, is_lost: bool) -> StateChange:
        try:
            was, now = None if before is None else self._index(before), self._index(row)
        except TableFilesMissing as error:
            raise TableFilesMissing(
                row.location,
                f"the changes of version {row.version} are not readable any more: {error.what}. The first version "
                f"whose changes are readable is {row.version + 1}",
            ) from error
        return StateChange(
            version=row.version,
            before=was,
            after=now,
            changed_at_ms=Version.of(row).timestamp_ms,
            keeps_rows=before is not None and _keeps_rows(self._stores, before, row),
            brings_back_columns=before is not None and _restores_columns(self._stores, before, row),
            fault=INDEX_MISSING if is_lost else self.unrecorded,
        )

    def _keep(self, row: Publication | None) -> Publication | None:
        return None if row is None else self._rows.keep(row.version, row)


def make_followed_publication(table: str, **fields: Any) -> NewPublication:
    """A state of a followed table, which no pipeline has audited, and whose index is built on demand."""
    unknown: dict[str, Any] = dict.fromkeys(("set_name", "index_digest", "contract_digest", "partition"), "")
    return NewPublication(table=table, audited=False, verdicts={}, **unknown, **fields)


class PublishedVersions(LedgerVersions):
    """The publications of one table by pipelines."""

    _oldest: Publication | None = None

    def location(self) -> str:
        """The table's root folder."""
        return self._newest().location

    def services(self) -> Sequence[str]:
        """Names of the external stores and catalogs that the table is read from."""
        try:
            return self._stores.services_of(self.location())
        except NotFound:
            return ()

    def latest_now(self) -> Version | None:
        """The newest version if it is known without a request to a database or store, else None."""
        # This object lives for one generation of the catalog.
        return self._readable(self._last)

    def oldest(self) -> Version:
        self._oldest = self._oldest or self._ledger.oldest(self._table)
        return Version.of(self._oldest or self._newest())

    def changes(
        self, first: int, last: int, *, feed: bool = False, schema_at: int | None = None
    ) -> Sequence[VersionChanges]:
        if self._required_row(last).format == "iceberg":
            return super().changes(first, last, feed=feed, schema_at=schema_at)
        return self._read_log(first, last)

    def _index(self, row: Publication) -> FileIndex:
        return self._sources.index(row)

    def _read_log(self, first: int, last: int) -> list[VersionChanges]:
        publication = self._required_row(last)
        rows = self._ledger.between(self._table, first, last)
        times = {row.version: Version.of(row).timestamp_ms for row in rows}
        log = ChangeLog(self._stores, publication.location, publication.table_id)
        changes = []
        for change in read_changes(log, self._sources.segments, first, last):
            if change.version in times:
                changes.append(change.at(times[change.version]))
            elif change.has_data_changes:
                raise Unserveable(
                    f"Version {change.version} of this table was never published, so its changes are not readable.",
                    "Read a snapshot of a published version instead.",
                )
        return changes

    # Recipients know tables by their shared names: errors do not contain the lake's name.
    def _newest(self) -> Publication:
        self._last = self._last or self._keep(self._ledger.latest(self._table))
        if self._last is None:
            raise NotFound("Publication", "latest")
        return self._last
