"""The index of changes of one publication of an Iceberg table: its differences from the publication before it.

Written at publication, or on first use if only files have to be compared, in the format of Delta change segments.
"""

import json
import posixpath
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import StoreError, StoreMissing
from lakeshare_server.storage import Stores
from lakeshare_server.storage.location_columns import find_outside_files, find_roots
from lakeshare_server.tables.delta import changes
from lakeshare_server.tables.iceberg.deletes import FEATURE as DELETION_VECTORS
from lakeshare_server.tables.index import FileIndex, PhysicalNames, index_path, write_by_digest
from lakeshare_server.tables.lines import LINE_COLUMNS, render_lines, total
from lakeshare_server.tables.snapshot import TableHead, TableProtocol, parquet_format_schema, parse_schema

PROPERTY = "delta.enableChangeDataFeed"
FEATURE = "changeDataFeed"
# The first writer version of Delta with the feed (PROTOCOL.md, "Writer Version Requirements").
WRITER_VERSION = 4
# Features that only data files can need: change files have the names and types of their version.
OF_DATA_FILES = frozenset({"columnMapping", "typeWidening", DELETION_VECTORS})
ROWS_ONLY = TableProtocol(min_writer_version=WRITER_VERSION)
DATA_FILE_PROPERTIES = ("delta.columnMapping.", "delta.enableTypeWidening", "delta.enableDeletionVectors")


def change_head(head: TableHead) -> TableHead:
    """Returns the head of a snapshot for responses with changes.

    Without the hindrance of the snapshot's deletion vectors: those of the changed files count, see `VersionChanges`.
    """
    writer = head.protocol.writer_features
    protocol = replace(
        head.protocol,
        min_writer_version=max(head.protocol.min_writer_version, WRITER_VERSION),
        writer_features=None if writer is None else tuple(dict.fromkeys((*writer, FEATURE))),
    )
    return replace(
        head,
        protocol=protocol,
        configuration={**head.configuration, PROPERTY: "true"},
        hindrances=tuple(hindrance for hindrance in head.hindrances if hindrance.feature != DELETION_VECTORS),
    )


def head_of_rows(head: TableHead) -> TableHead:
    """Returns the head of a response with change files only: more clients read them than the table itself.

    The kernel of the Python client (delta-kernel-rust-sharing-wrapper 0.3.3) fails on change files of a mapped table.
    """
    reader = tuple(one for one in head.protocol.reader_features or () if one not in OF_DATA_FILES)
    writer = tuple(one for one in head.protocol.writer_features or () if one not in OF_DATA_FILES)
    protocol = replace(head.protocol, reader_features=reader, writer_features=writer)
    properties = head.configuration.items()
    return replace(
        head,
        schema_string=parquet_format_schema(head.schema_string),
        protocol=protocol if reader else ROWS_ONLY,
        configuration={k: v for k, v in properties if not k.startswith(DATA_FILE_PROPERTIES)},
        hindrances=tuple(one for one in head.hindrances if one.feature not in OF_DATA_FILES),
    )


DIFFERENCE_COLUMNS = ("path", "size", *LINE_COLUMNS)
# If an index has them; bounds may have other types in the other state.
MORE = ("rows", "dv_cardinality", "min", "max")
# Vectors are Z85 texts, with braces but without quotes and backslashes.
INLINE_VECTOR = r'(?P<vector>"deletionVector":\{[^"{}]*(?:"[^"]*"[^"{}]*)*\})'


@dataclass(frozen=True)
class FileDifference:
    """The files of two states that differ, with the columns `DIFFERENCE_COLUMNS` and `MORE` of a file index.

    `left` and `entered` are files of one state only. `before` and `after` are the files of both with different deletion
    vectors, in the same order.
    """

    left: pa.Table
    entered: pa.Table
    before: pa.Table
    after: pa.Table

    @property
    def removed(self) -> pa.Table:
        return pa.concat_tables([self.left, self.before])

    @property
    def added(self) -> pa.Table:
        return pa.concat_tables([self.entered, self.after])

    @property
    def is_empty(self) -> bool:
        return not (self.left.num_rows or self.entered.num_rows or self.after.num_rows)

    @property
    def more_rows(self) -> int | None:
        """The additional rows of the later state; None if a row count is unknown."""
        added, removed = _live_rows(self.added), _live_rows(self.removed)
        return None if added is None or removed is None else added - removed


def compare_files(before: FileIndex | None, after: FileIndex) -> FileDifference:
    """Returns the differences of two states of one table; `before` is None for the first."""
    new = _files(after)
    old = new.slice(0, 0) if before is None else _files(before)
    position = pc.index_in(new.column("path"), value_set=old.column("path").combine_chunks())
    stays = pc.is_valid(position)
    still, was = new.filter(stays), old.take(pc.drop_null(position))
    differs = pc.not_equal(vectors_of(still), vectors_of(was))
    return FileDifference(
        left=old.filter(pc.invert(pc.is_in(old.column("path"), new.column("path").combine_chunks()))),
        entered=new.filter(pc.invert(stays)),
        before=was.filter(differs),
        after=still.filter(differs),
    )


def differ_in_all_files(before: FileIndex, after: FileIndex) -> FileDifference:
    """Returns all files of two states, if files of both have different rows in each."""
    old, new = _files(before), _files(after)
    return FileDifference(left=old, entered=new, before=old.slice(0, 0), after=new.slice(0, 0))


def vectors_of(files: pa.Table) -> pa.Array:
    """Returns a key of each file's deletion vector; empty for a file without one."""
    rest = files.column("delta_rest").combine_chunks()
    inline = pc.struct_field(pc.extract_regex(rest, pattern=INLINE_VECTOR), "vector")
    paths, more = (files.column(name).combine_chunks() for name in ("dv_path", "dv_rest"))
    stored = pc.binary_join_element_wise(paths, more, " ")
    return pc.coalesce(inline, stored, pa.scalar("", pa.string()))


def _files(index: FileIndex) -> pa.Table:
    names = [name for name in (*DIFFERENCE_COLUMNS, *MORE) if name in index.schema.names]
    schema = pa.schema([index.schema.field(name) for name in names])
    return pa.Table.from_batches([batch.select(names) for batch in index.batches()], schema)


def _live_rows(files: pa.Table) -> int | None:
    rows = files.column("rows")
    if rows.null_count:
        return None
    deleted = files.column("dv_cardinality") if "dv_cardinality" in files.column_names else pa.array([0])
    return total(rows) - total(deleted)


WITHOUT_STATS = (r'(?s)^("partitionValues":\{.*\},"size":\d+).*$', r"\1")
WITHOUT_PARTITION = (r'(?s)^"partitionValues":\{.*\},"size":(\d+)', r'"partitionValues":{},"size":\1')
MODIFIED = r'^,"modificationTime":-?\d+,"dataChange":true'
OF_CHANGE_FILES = ',"dataChange":false'


def file_rows(difference: FileDifference, version: int, changed_at_ms: int, *, in_feed: bool) -> pa.Table:
    """The rows of files that differ: removed ones first, because a stream removes a file before it adds it changed."""
    removes = difference.removed
    rest = f',"deletionTimestamp":{changed_at_ms},"dataChange":true,"extendedFileMetadata":true'
    for name, pattern, replacement in (("common", *WITHOUT_STATS), ("delta_rest", MODIFIED, rest)):
        texts = pc.replace_substring_regex(removes.column(name), pattern, replacement)
        removes = removes.set_column(removes.schema.get_field_index(name), name, texts)
    adds = _table(version, changes.ADD, in_feed, difference.added)
    return pa.concat_tables([_table(version, changes.REMOVE, in_feed, removes), adds])


def change_file_rows(files: pa.Table, head: TableHead, version: int) -> pa.Table:
    """The rows of change files; `files` has path, size, modification_time and partition, as in `TableSnapshot`."""
    names = PhysicalNames(head)
    count = files.num_rows
    nothing = pa.array([{}] * count, pa.struct([]))
    columns = {name: files.column(name) for name in ("path", "size", "modification_time", "partition")}
    columns |= {"name": files.column("path"), "rows": pa.nulls(count, pa.int64())}
    columns |= dict.fromkeys(("min", "max", "null_count"), nothing)
    rendered = render_lines(names.of(pa.table(columns)), names.partition_columns)
    lines = dict(zip(LINE_COLUMNS, rendered, strict=True))
    lines["delta_rest"] = pa.array([OF_CHANGE_FILES] * count, pa.string())
    return _table(
        version, changes.CDC, True, pa.table({"path": columns["path"], "size": columns["size"], **lines})
    )


def without_partition_values(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """The rows for a head without partition columns: Iceberg's files contain these columns."""
    texts = pc.replace_substring_regex(rows.column("common"), *WITHOUT_PARTITION)
    return rows.set_column(rows.schema.get_field_index("common"), "common", texts)


def _table(version: int, kind: int, in_feed: bool, files: pa.Table) -> pa.Table:
    count = files.num_rows
    columns = {
        "version": pa.array([version] * count, pa.int64()),
        "kind": pa.array([kind] * count, pa.int8()),
        "in_feed": pa.array([in_feed] * count, pa.bool_()),
        **{name: files.column(name) for name in ("path", "size", *LINE_COLUMNS)},
    }
    return pa.table(columns, schema=pa.schema(list(changes.COLUMNS)))


LAYOUT = "1"
# Columns that clients add to the feed.
RESERVED = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
ONLY_FILES = "rows were rewritten or deleted, and only their files are known"


class FeedSource(StrEnum):
    """The source of the change data feed: no changed rows, the files that differ, or change files only."""

    NOTHING = "nothing"
    FILES = "files"
    ROWS = "rows"


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """The change of one version: the file indexes before it, None before the first version, and after it.

    `keeps_rows`: only compaction lies in between. `brings_back_columns`: files of both states have a column that only
    the later schema has. `change_files` have the changed rows in the form of `change_file_rows`; `fault` says why they
    were not written.
    """

    version: int
    before: FileIndex | None
    after: FileIndex
    changed_at_ms: int
    keeps_rows: bool = False
    brings_back_columns: bool = False
    change_files: pa.Table | None = None
    fault: str | None = None

    @property
    def head(self) -> TableHead:
        """The head for recipients at the version; without partition columns if those of the two states differ."""
        head = change_head(self.after.header.head)
        if self.before is None or self.is_partitioned_alike:
            return head
        return head.without_partitions(self.before.header.head.partition_columns)

    @property
    def is_partitioned_alike(self) -> bool:
        after = self.after.header.head.partition_columns
        return self.before is None or self.before.header.head.partition_columns == after

    def source(self, difference: FileDifference) -> FeedSource:
        """The source of the changed rows: files, if all their rows were added or all were removed."""
        if self.before is None:
            return FeedSource.NOTHING if difference.is_empty else FeedSource.FILES
        if self.brings_back_columns:
            return FeedSource.ROWS
        if self.keeps_rows or difference.is_empty:
            return FeedSource.NOTHING
        if difference.after.num_rows or _vectors(difference.left) or _vectors(difference.entered):
            return FeedSource.ROWS
        if not difference.left.num_rows:
            return FeedSource.FILES
        # Removed rows get the names of this version, which must be their own.
        then, now = self.before.header.head, self.after.header.head
        is_alike = then.schema_string == now.schema_string and then.partition_columns == now.partition_columns
        return FeedSource.FILES if is_alike and not difference.entered.num_rows else FeedSource.ROWS


def write_change_index(change: StateChange, made_of: tuple[str, str], index_dir: Path) -> str:
    """Writes the changes of a publication beside the file indexes; returns the SHA-256 of the file, its name."""
    return write_by_digest(index_dir, lambda path: write_changes(change, made_of, path))[0]


def write_changes(change: StateChange, made_of: tuple[str, str], path: Path) -> None:
    rows, fault = _rows(change)
    if not change.is_partitioned_alike:
        rows = without_partition_values(rows)
    location = change.after.header.location
    roots = find_roots(location, find_outside_files(location, rows)) if rows.num_rows else set()
    versions = {change.version: _describe(change, rows, fault)}
    footer = changes.SegmentFooter(versions, tuple(sorted(roots)), (LAYOUT, *made_of))
    with changes.SegmentFile(path) as file:
        if rows.num_rows:
            file.add(rows)
        file.close(footer)


def open_changes(index_dir: Path, digest: str) -> changes.Segment:
    """Opens an index of changes that this host wrote; raises StoreMissing if it is missing or damaged."""
    return _open(index_path(index_dir, digest))


def fetch_changes(
    segments: changes.SegmentCache, digest: str, fetch: Callable[[str, Path], bool]
) -> changes.Segment:
    """Returns an index of changes from the cache, fetched if necessary; raises StoreMissing if it is not to be had."""

    def write(path: Path) -> None:
        if not fetch(digest, path):
            raise StoreMissing(digest)
        _open(path)

    return segments.get(("recorded changes", digest), write)


def _open(path: Path) -> changes.Segment:
    try:
        return changes.Segment(path)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StoreMissing(str(path)) from error


def is_made_of(segment: changes.Segment, version: int, digests: tuple[str, str]) -> bool:
    """Whether an index has the changes of a version between these two states, and is of the current layout."""
    return segment.note.made_of == (LAYOUT, *digests) and list(segment.note.versions) == [version]


def change_files_of(segment: changes.Segment, version: int) -> dict[str, int]:
    """Returns the change files in an index of changes, with their sizes in bytes."""
    one = segment.note.versions[version]
    sizes: dict[str, int] = {}
    for batch in segment.rows(one.first_row, one.end_row) if one.cdc_rows else ():
        chosen = batch.filter(pc.equal(batch.column("kind"), changes.CDC))
        sizes.update(zip(chosen.column("path").to_pylist(), chosen.column("size").to_pylist(), strict=True))
    return sizes


def have_change_files(stores: Stores, segment: changes.Segment, version: int) -> bool:
    """Whether the store has all change files in an index of changes, with their sizes."""
    files = change_files_of(segment, version)
    listed: dict[str, int] = {}
    if files:
        folder = posixpath.commonprefix(list(files)).rpartition("/")[0]
        with suppress(StoreError):
            listed = {file.location: file.size_bytes for file in stores.list(folder)}
    return all(listed.get(path) == size for path, size in files.items())


def _rows(change: StateChange) -> tuple[pa.Table, str | None]:
    """The rows of a version, and why the changed rows are unknown."""
    difference = compare_files(change.before, change.after)
    source = change.source(difference)
    taken = sorted(RESERVED & {field.name.lower() for field in parse_schema(change.head.schema_string)})
    is_changed = source != FeedSource.NOTHING
    if source == FeedSource.ROWS and change.change_files is not None and not change.change_files.num_rows:
        # Other files with the same rows.
        source = FeedSource.NOTHING
    in_feed = source == FeedSource.FILES and not taken
    files = file_rows(difference, change.version, change.changed_at_ms, in_feed=in_feed)
    if taken and is_changed:
        return files, f"the table has a column {taken[0]}, which the change data feed has itself"
    if source == FeedSource.NOTHING:
        return files.slice(0, 0), None
    if source == FeedSource.FILES:
        return files, None
    if change.change_files is None:
        return files, change.fault or ONLY_FILES
    return pa.concat_tables([files, change_file_rows(change.change_files, change.head, change.version)]), None


def _describe(change: StateChange, rows: pa.Table, fault: str | None) -> changes.SegmentVersion:
    head = change.head
    metadata = replace(head, hindrances=()).as_json() | {"protocol": None}
    del metadata["left_to_files"]
    window, feed = (
        rows.filter(pc.not_equal(rows.column("kind"), changes.CDC)),
        rows.filter(rows.column("in_feed")),
    )
    return changes.SegmentVersion(
        version=change.version,
        protocol=_text(head.as_json()["protocol"]),
        metadata=_text(metadata),
        modified_ms=change.changed_at_ms,
        own_time_ms=None,
        first_row=0,
        **changes.count_rows(rows),
        vectors=_vectors(window),
        lacks_row_ids=False,
        head=_text(head.as_json()),
        feed_vectors=_vectors(feed),
        feed_fault=fault,
    )


def _vectors(rows: pa.Table) -> int:
    return total(pc.not_equal(vectors_of(rows), ""))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
