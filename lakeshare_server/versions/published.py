"""The versions of a table with a pipeline: its publications, and nothing else that lies in storage."""

import json
import logging
import posixpath
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock

import pyarrow.compute as pc

from lakeshare_server.catalog import Ledger, Publication
from lakeshare_server.errors import NotFound, StoreError, TableFilesMissing, Unavailable, Unserveable
from lakeshare_server.storage import Stores
from lakeshare_server.tables import read_delta, read_iceberg
from lakeshare_server.tables.delta.change_index import CDC, RewrittenSegment, Segment
from lakeshare_server.tables.delta.changes import (
    ChangeLog,
    SegmentCache,
    VersionChanges,
    read_changes,
    share_hindrances,
)
from lakeshare_server.tables.delta.files import mapping_mode
from lakeshare_server.tables.iceberg.changes import (
    StateChange,
    change_files_of,
    head_of_rows,
    open_changes,
    without_partition_values,
    write_changes,
)
from lakeshare_server.tables.iceberg.deletes import vector_hindrance
from lakeshare_server.tables.iceberg.metadata import (
    ColumnsById,
    column_conflict,
    columns_by_id,
    keeps_rows,
    restores_columns,
)
from lakeshare_server.tables.iceberg.schema import find_lacking_column
from lakeshare_server.tables.index import FileIndex, IndexCache, index_path, open_index
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import TableHead, TableSnapshot
from lakeshare_server.versions.version import PinnedSnapshot, Version

LAYOUT = 2
OPEN_CHANGES = 512
CHECK_EVERY_S = 60.0
MAX_CACHED_CHECKS = 10_000
NOT_RECORDED = "it was published without a record of its changes, and files were removed or rewritten"
INDEX_MISSING = "its index of changes is lost, and files were removed or rewritten"
FILES_MISSING = "its change files are lost"

_log = logging.getLogger(__name__)


class ChangeFiles:
    """Looks whether the change files of publications are still there; what was found whole is believed for a while."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._looking = Lock()

    def are_there(self, digest: str, segment: Segment, version: int) -> bool:
        """Whether the store has all files that an index of changes names.

        Raises:
            Unavailable: the store does not answer.
        """
        now = time.monotonic()
        with self._looking:
            checked = self._seen.get(digest)
        if checked is not None and now - checked < CHECK_EVERY_S:
            return True
        files = change_files_of(segment, version)
        found = self._below(posixpath.commonprefix(list(files)).rpartition("/")[0]) if files else {}
        if any(found.get(path) != size for path, size in files.items()):
            return False
        with self._looking:
            self._seen[digest] = now
            while len(self._seen) > MAX_CACHED_CHECKS:
                self._seen.popitem(last=False)
        return True

    def _below(self, folder: str) -> dict[str, int]:
        try:
            return {one.location: one.size_bytes for one in self._stores.list(folder)}
        except StoreError:
            return {}


class PublishedChanges:
    """Reads the changes of one table's publications; `index` opens the files of one.

    `unrecorded` says of those without an index of changes why their files are all that is known.
    """

    def __init__(
        self,
        index_dir: Path,
        segments: SegmentCache,
        change_files: ChangeFiles,
        stores: Stores,
        index: Callable[[Publication], FileIndex],
        unrecorded: str = NOT_RECORDED,
    ) -> None:
        self._index_dir, self._segments, self._change_files = index_dir, segments, change_files
        self._stores, self._index, self._unrecorded = stores, index, unrecorded

    def window(self, publications: Sequence[Publication], before: Publication | None) -> list[VersionChanges]:
        """What each of some publications in a row changed; `before` is the one before the first of them.

        They go out under one set of partition columns: where these differ, with none.

        Raises:
            TableFilesMissing: the files of one of them are not known any more; tells from which number on they are.
            Unavailable: a store does not answer.
        """
        return self._whole(_unify_heads(self._all(publications, before, feed=False), []), feed=False)

    def feed(
        self, publications: Sequence[Publication], before: Publication | None, schema_at: Publication | None
    ) -> list[VersionChanges]:
        """The same as the feed tells it: under the head of `told_at`, or each under its own.

        Raises:
            TableFilesMissing, Unavailable: as `window`.
        """
        changes = self._all(publications, before, feed=True)
        if schema_at is None:
            changes = _unify_heads([_as_rows(one) for one in changes], [])
        elif [publication.version for publication in publications] == [schema_at.version]:
            changes = [_as_rows(one) for one in changes]
        else:
            changes = _unify_heads(changes, [self._index(schema_at).header.head])
        return self._whole(changes, feed=True)

    def _whole(self, changes: list[VersionChanges], *, feed: bool) -> list[VersionChanges]:
        """The changes, if recipients read all columns of their files.

        Raises:
            Unserveable: a file lacks a column whose values were partition values at one of the versions only.
            Unavailable: a store does not answer.
        """
        for one in changes:
            if one.head.left_to_files:
                column = _lacking(self._stores, _data_paths(one, feed=feed), one.head.left_to_files)
                if column is not None:
                    code = ReasonCode.PARTITION_VALUES_NOT_IN_FILES
                    what = f"Files of version {one.version} lack column {column}, which is a partition column only of "
                    raise Unserveable(
                        f"{what}some of the versions whose changes were asked for.", code.fix, code
                    )
        return changes

    def _all(
        self, publications: Sequence[Publication], before: Publication | None, *, feed: bool
    ) -> list[VersionChanges]:
        pairs = list(zip([before, *publications[:-1]], publications, strict=True))
        # The newest one that is lost says where the readable ones begin.
        return [self._told(*pair, feed=feed) for pair in reversed(pairs)][::-1]

    def _told(self, before: Publication | None, one: Publication, *, feed: bool) -> VersionChanges:
        made_of = "" if before is None else before.index_digest, one.index_digest
        segment = self._recorded(one, made_of)
        if segment is None or one.changes_digest is None:
            return _changes(self._compared(before, one, made_of), one, None)
        # Windows tell of no change files.
        is_whole = not feed or self._change_files.are_there(one.changes_digest, segment, one.version)
        return _changes(segment, one, None if is_whole else FILES_MISSING)

    def _recorded(self, one: Publication, made_of: tuple[str, str]) -> Segment | None:
        if one.changes_digest is None:
            return None
        segment = _opened_changes(index_path(self._index_dir, one.changes_digest), one.version, made_of)
        if segment is None:
            _opened_changes.cache_clear()
            _log.error(
                "publication %s of %s has lost its index of changes %s: recipients are told as much as its files tell. "
                "Restore the index folder from its backup.",
                *(one.version, one.table, one.changes_digest),
            )
        return segment

    def _compared(self, before: Publication | None, one: Publication, made_of: tuple[str, str]) -> Segment:
        is_lost = one.changes_digest is not None
        pins = [
            None if row is None else (row.table_id, row.snapshot_id, _schema(row)) for row in (before, one)
        ]
        identity = "iceberg changes", LAYOUT, one.table, one.version, made_of, is_lost, *pins
        return self._segments.get(
            identity, lambda path: write_changes(self._change(before, one, is_lost), made_of, path)
        )

    def _change(self, before: Publication | None, one: Publication, is_lost: bool) -> StateChange:
        try:
            was, now = None if before is None else self._index(before), self._index(one)
        except TableFilesMissing as error:
            first = one.version + 1
            what = f"the changes of version {one.version} are not readable any more: {error.what}. The first version "
            raise TableFilesMissing(one.location, f"{what}whose changes are readable is {first}") from error
        return StateChange(
            version=one.version,
            before=was,
            after=now,
            changed_at_ms=_time_ms(one),
            keeps_rows=before is not None and _keeps_rows(self._stores, before, one),
            brings_back_columns=before is not None and _brings_back_columns(self._stores, before, one),
            fault=INDEX_MISSING if is_lost else self._unrecorded,
        )


def unlike_columns(stores: Stores, publications: Sequence[Publication]) -> str | None:
    """Why one schema does not tell the columns of all these publications' files by name; None when it does.

    Raises:
        Unavailable: the store of their metadata does not answer.
    """
    of_schema = {_schema(publication): publication for publication in publications}
    if len(of_schema) < 2:
        return None
    try:
        column = column_conflict([_columns(stores, one) for one in of_schema.values()])
    except Unserveable:
        return "what the columns were at one of the versions is not known any more"
    return column and f"column {column} had another name or type at one of the versions"


def _columns(stores: Stores, one: Publication) -> ColumnsById:
    return _columns_at(stores, *_pinned_by(one))


# What a metadata file says never changes.
@lru_cache(OPEN_CHANGES)
def _columns_at(stores: Stores, metadata_location: str, snapshot_id: int) -> ColumnsById:
    return columns_by_id(stores, metadata_location, snapshot_id)


def _keeps_rows(stores: Stores, before: Publication, one: Publication) -> bool:
    if one.metadata_location is None or one.snapshot_id is None or before.snapshot_id is None:
        return False
    try:
        return keeps_rows(stores, one.metadata_location, one.snapshot_id, before.snapshot_id)
    except Unserveable:
        return False


def _brings_back_columns(stores: Stores, before: Publication, one: Publication) -> bool:
    if _schema(before) == _schema(one):
        return False
    try:
        return restores_columns(stores, _pinned_by(before), _pinned_by(one))
    except Unserveable:
        # Then files do not tell what else a change of columns did.
        return True


def _schema(one: Publication) -> str | int:
    """What tells its columns from those of others: of what was only followed, Iceberg's own id."""
    return one.schema_string if one.schema_id is None else one.schema_id


def _pinned_by(one: Publication) -> tuple[str, int]:
    if one.metadata_location is None or one.snapshot_id is None:
        raise Unserveable("It pins no snapshot.", "Publish the table again.")
    return one.metadata_location, one.snapshot_id


def _changes(segment: Segment, publication: Publication, fault: str | None) -> VersionChanges:
    one = segment.note.versions[publication.version]
    if one.head is None:
        raise TableFilesMissing(publication.location, "its index of changes is not whole")
    return VersionChanges(
        version=one.version,
        timestamp_ms=_time_ms(publication),
        tells_time=True,
        head=TableHead.from_json(json.loads(one.head)),
        metadata_text=one.metadata,
        protocol_text=one.protocol,
        window_rows=one.window_rows,
        cdc_rows=one.cdc_rows,
        feed_rows=one.feed_rows,
        window_bytes=one.window_bytes,
        feed_bytes=one.feed_bytes,
        first_row=one.first_row,
        segment=segment,
        window_hindrances=(vector_hindrance(one.vectors),) if one.vectors else (),
        feed_hindrances=(vector_hindrance(one.feed_vectors),) if one.feed_vectors else (),
        feed_fault=fault or one.feed_fault,
    )


def _unify_heads(changes: Sequence[VersionChanges], others: Sequence[TableHead]) -> list[VersionChanges]:
    """The changes as one answer tells them, which begins with one of the `others` or with their own heads."""
    if len({head.partition_columns for head in (*(one.head for one in changes), *others)}) > 1:
        changes = [_without_partitions(one) for one in changes]
    heads = share_hindrances([one.head for one in changes])
    return [replace(one, head=head) for one, head in zip(changes, heads, strict=True)]


def _as_rows(one: VersionChanges) -> VersionChanges:
    """The changes under a plain head, when it has change files only, or none: they need nothing of their readers.

    Partition values of mapped tables go by names that a plain head does not have.
    """
    is_mapped = mapping_mode(one.head.configuration) != "none"
    if one.feed_rows != one.cdc_rows or (is_mapped and one.head.partition_columns):
        return one
    head = head_of_rows(one.head)
    return replace(
        one,
        head=head,
        metadata_text=f"{head.schema_string} {head.partition_columns}",
        protocol_text=str(head.protocol),
    )


def _without_partitions(one: VersionChanges) -> VersionChanges:
    if not one.head.partition_columns:
        return one
    segment = RewrittenSegment(one.segment, without_partition_values)
    return replace(one, head=one.head.without_partitions(), segment=segment)


def _data_paths(one: VersionChanges, *, feed: bool) -> tuple[str, ...]:
    """The data files of a version's answer; change files have all columns."""
    paths: list[str] = []
    for batch in one.segment.rows(one.first_row, one.first_row + one.window_rows + one.cdc_rows):
        is_told = pc.not_equal(batch.column("kind"), CDC)
        if feed:
            is_told = pc.and_(is_told, batch.column("in_feed"))
        paths += batch.filter(is_told).column("path").to_pylist()
    return tuple(paths)


@lru_cache(OPEN_CHANGES)
def _lacking(stores: Stores, paths: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    return find_lacking_column(stores, paths, names)


def _time_ms(publication: Publication) -> int:
    return int(publication.published_at.timestamp() * 1000)


@lru_cache(OPEN_CHANGES)
def _opened_changes(path: Path, version: int, made_of: tuple[str, str]) -> Segment | None:
    return open_changes(path, version, made_of)


OPEN_INDEXES = 64
MAX_CACHED_ROWS = 256  # rows of the ledger, each with its schema


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
            return _open(self._index_dir, publication.index_digest)
        except Unavailable:
            if index_path(self._index_dir, publication.index_digest).exists():
                _open.cache_clear()
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

    def feed(self, first: int, last: int, schema_at: int | None) -> Sequence[VersionChanges]:
        """The same, as the change data feed tells it; Delta's log has one answer for both."""
        if self._publication(last).format == "iceberg":
            told = None if schema_at is None else self._publication(schema_at)
            return self._recorded().feed(*self._between(first, last), told)
        return self._of_log(first, last)

    def unlike_columns(self, first: int, last: int, schema_at: int) -> str | None:
        """Why the schema of version `told_at` does not tell the columns of all files from `first` to `last`."""
        told = self._publication(schema_at)
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
            if len(self._seen) >= MAX_CACHED_ROWS:
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
            raise _missing_error(publication, "what it was made of cannot be read any more", error) from error
        if snapshot.table_id != publication.table_id:
            raise _missing_error(publication, "another table is in its place now", snapshot.table_id)
        return snapshot

    def _read_again(self, publication: Publication) -> TableSnapshot:
        if publication.format == "delta":
            return read_delta(publication.location, publication.delta_version, self._stores)
        if publication.metadata_location is None or publication.snapshot_id is None:
            raise Unserveable("It pins no snapshot.", "Publish the table again.")
        return read_iceberg(
            publication.metadata_location, publication.snapshot_id, self._vectors_dir, self._stores
        )


def _missing_error(publication: Publication, why: str, found: object) -> TableFilesMissing:
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
def _open(index_dir: Path, digest: str) -> FileIndex:
    return open_index(index_dir, digest)
