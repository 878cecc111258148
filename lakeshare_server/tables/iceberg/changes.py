"""The index of changes of one publication of an Iceberg table: what differs from the publication before it.

Written when a publication is made, or on first use where nothing but files has to be compared; the same kind of file as
the segments of a Delta table's changes.
"""

import hashlib
import json
import os
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.settings import make_private
from lakeshare_server.storage.locations import find_outside_files, find_roots
from lakeshare_server.tables.delta.change_index import (
    ADD,
    CDC,
    COLUMNS,
    REMOVE,
    Segment,
    SegmentFile,
    SegmentFooter,
    SegmentVersion,
    open_segment,
)
from lakeshare_server.tables.iceberg.deletes import FEATURE as DELETION_VECTORS
from lakeshare_server.tables.index import (
    FileIndex,
    PhysicalNames,
    index_path,
    remove_abandoned,
    scratch_file,
    sync_folder,
)
from lakeshare_server.tables.lines import LINE_COLUMNS, render_lines
from lakeshare_server.tables.snapshot import TableHead, TableProtocol, parquet_format_schema, parse_schema

PROPERTY = "delta.enableChangeDataFeed"
FEATURE = "changeDataFeed"
# The first writer version of Delta that knows the feed (PROTOCOL.md, "Writer Version Requirements").
WRITER_VERSION = 4
# What data files may need of their readers; change files are written with the names and types of their version.
OF_DATA_FILES = frozenset({"columnMapping", "typeWidening", DELETION_VECTORS})
ROWS_ONLY = TableProtocol(min_writer_version=WRITER_VERSION)
PROPERTIES_OF_DATA_FILES = (
    "delta.columnMapping.",
    "delta.enableTypeWidening",
    "delta.enableDeletionVectors",
)


def change_head(head: TableHead) -> TableHead:
    """The head of a snapshot, as answers with changes tell it.

    Deletion vectors of the snapshot are no hindrance: those of the files that are told are, see `VersionChanges`.
    """
    return replace(
        head,
        protocol=_with_feed(head.protocol),
        configuration={**head.configuration, PROPERTY: "true"},
        hindrances=tuple(hindrance for hindrance in head.hindrances if hindrance.feature != DELETION_VECTORS),
    )


def head_of_rows(head: TableHead) -> TableHead:
    """The head of an answer in which all files are change files: more clients read them than the table itself.

    The kernel of the Python client (delta-kernel-rust-sharing-wrapper 0.3.3) fails on change files of a mapped table.
    """
    configuration = {
        key: value
        for key, value in head.configuration.items()
        if not key.startswith(PROPERTIES_OF_DATA_FILES)
    }
    return replace(
        head,
        schema_string=parquet_format_schema(head.schema_string),
        protocol=_without(head.protocol),
        configuration=configuration,
        hindrances=tuple(
            hindrance for hindrance in head.hindrances if hindrance.feature not in OF_DATA_FILES
        ),
    )


def _without(protocol: TableProtocol) -> TableProtocol:
    reader = tuple(one for one in protocol.reader_features or () if one not in OF_DATA_FILES)
    writer = tuple(one for one in protocol.writer_features or () if one not in OF_DATA_FILES)
    return replace(protocol, reader_features=reader, writer_features=writer) if reader else ROWS_ONLY


def _with_feed(protocol: TableProtocol) -> TableProtocol:
    writer = protocol.writer_features
    return replace(
        protocol,
        min_writer_version=max(protocol.min_writer_version, WRITER_VERSION),
        writer_features=None if writer is None else tuple(dict.fromkeys((*writer, FEATURE))),
    )


DIFFERENCE_COLUMNS = ("path", "size", *LINE_COLUMNS)
# Where an index has them; bounds may be of other types in the other state.
MORE = ("rows", "dv_cardinality", "min", "max")
# Texts of vectors are Z85, which has braces but neither quotes nor backslashes.
INLINE_VECTOR = r'(?P<vector>"deletionVector":\{[^"{}]*(?:"[^"]*"[^"{}]*)*\})'


@dataclass(frozen=True)
class FileDifference:
    """The files of two states that differ, with the columns `COLUMNS` and `MORE` of a file index.

    `left` and `entered` are files of one state only. `before` and `after` are the files of both whose deletion vectors
    differ, in the same order.
    """

    left: pa.Table
    entered: pa.Table
    before: pa.Table
    after: pa.Table

    @property
    def removed(self) -> pa.Table:
        """What is not there any more: the files that left, and the older state of those that stayed."""
        return pa.concat_tables([self.left, self.before])

    @property
    def added(self) -> pa.Table:
        """What was not there before."""
        return pa.concat_tables([self.entered, self.after])

    @property
    def is_empty(self) -> bool:
        """Whether both states have the same files with the same deleted rows."""
        return not (self.left.num_rows or self.entered.num_rows or self.after.num_rows)

    @property
    def more_rows(self) -> int | None:
        """How many rows the later state has more than the earlier one; None when a file does not say."""
        counts = [_live_rows(files) for files in (self.added, self.removed)]
        return None if counts[0] is None or counts[1] is None else counts[0] - counts[1]


def compare_files(before: FileIndex | None, after: FileIndex) -> FileDifference:
    """What differs between two states of one table; before the first one there was nothing."""
    new = _files(after)
    old = new.slice(0, 0) if before is None else _files(before)
    place = pc.index_in(new.column("path"), value_set=old.column("path").combine_chunks())
    stays = pc.is_valid(place)
    still, was = new.filter(stays), old.take(pc.drop_null(place))
    differs = pc.not_equal(vectors_of(still), vectors_of(was))
    return FileDifference(
        left=old.filter(pc.invert(pc.is_in(old.column("path"), new.column("path").combine_chunks()))),
        entered=new.filter(pc.invert(stays)),
        before=was.filter(differs),
        after=still.filter(differs),
    )


def differ_in_all_files(before: FileIndex, after: FileIndex) -> FileDifference:
    """All files of two states, where files that both have do not tell the same rows in both."""
    old, new = _files(before), _files(after)
    return FileDifference(left=old, entered=new, before=old.slice(0, 0), after=new.slice(0, 0))


def vectors_of(files: pa.Table) -> pa.Array:
    """What tells the deletion vector of each file from others; empty for a file without one."""
    rest = files.column("delta_rest").combine_chunks()
    inline = pc.struct_field(pc.extract_regex(rest, pattern=INLINE_VECTOR), "vector")
    stored = pc.binary_join_element_wise(
        files.column("dv_path").combine_chunks(), files.column("dv_rest").combine_chunks(), " "
    )
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
    return int(pc.sum(rows, min_count=0).as_py()) - int(pc.sum(deleted, min_count=0).as_py())


WITHOUT_STATS = (r'(?s)^("partitionValues":\{.*\},"size":\d+).*$', r"\1")
WITHOUT_PARTITION = (r'(?s)^"partitionValues":\{.*\},"size":(\d+)', r'"partitionValues":{},"size":\1')
MODIFIED = r'^,"modificationTime":-?\d+,"dataChange":true'
OF_CHANGE_FILES = ',"dataChange":false'


def file_rows(difference: FileDifference, version: int, changed_at_ms: int, *, in_feed: bool) -> pa.Table:
    """The files that differ: removed ones first, since a stream takes a file away before it comes back changed."""
    removed, added = difference.removed, difference.added
    return pa.concat_tables(
        [
            _table(version, REMOVE, in_feed, _as_removes(removed, changed_at_ms)),
            _table(version, ADD, in_feed, added),
        ]
    )


def change_file_rows(files: pa.Table, head: TableHead, version: int) -> pa.Table:
    """The change files of a version.

    `files` has path, size (bytes), modification_time (ms) and the struct partition, as those of a snapshot.
    """
    names = PhysicalNames(head)
    count = files.num_rows
    nothing = pa.array([{}] * count, pa.struct([]))
    told = {name: files.column(name) for name in ("path", "size", "modification_time", "partition")}
    told |= {"name": files.column("path"), "rows": pa.nulls(count, pa.int64())}
    told |= dict.fromkeys(("min", "max", "null_count"), nothing)
    lines = dict(
        zip(LINE_COLUMNS, render_lines(names.of(pa.table(told)), names.partition_columns), strict=True)
    )
    lines["delta_rest"] = pa.array([OF_CHANGE_FILES] * count, pa.string())
    return _table(version, CDC, True, pa.table({"path": told["path"], "size": told["size"], **lines}))


def without_partition_values(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """The rows under a head without partition columns. Iceberg's files have these columns as any others."""
    words = pc.replace_substring_regex(rows.column("common"), *WITHOUT_PARTITION)
    return rows.set_column(rows.schema.get_field_index("common"), "common", words)


def _as_removes(files: pa.Table, changed_at_ms: int) -> pa.Table:
    """The lines of files, in the words of removes."""
    said = f',"deletionTimestamp":{changed_at_ms},"dataChange":true,"extendedFileMetadata":true'
    for name, pattern, other in (("common", *WITHOUT_STATS), ("delta_rest", MODIFIED, said)):
        words = pc.replace_substring_regex(files.column(name), pattern, other)
        files = files.set_column(files.schema.get_field_index(name), name, words)
    return files


def _table(version: int, kind: int, in_feed: bool, files: pa.Table) -> pa.Table:
    count = files.num_rows
    columns = {
        "version": pa.array([version] * count, pa.int64()),
        "kind": pa.array([kind] * count, pa.int8()),
        "in_feed": pa.array([in_feed] * count, pa.bool_()),
        **{name: files.column(name) for name in ("path", "size", *LINE_COLUMNS)},
    }
    return pa.table(columns, schema=pa.schema(list(COLUMNS)))


LAYOUT = "1"
# The feed's own columns, which clients add.
RESERVED = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
ONLY_FILES = "rows were rewritten or deleted, and only their files are known"


class FeedSource(StrEnum):
    """Where the rows of the change data feed are: nowhere, in the files that differ, or only in change files."""

    NOTHING = "nothing"
    FILES = "files"
    ROWS = "rows"


@dataclass(frozen=True, kw_only=True)
class StateChange:
    """What one version changed: the files of the version before it, None before the first one, and its own.

    `keeps_rows` says that nothing but compaction lies in between, `brings_back_columns` that files of both have a
    column which only the later one shows. `change_files` are those of the changed rows, as
    `change_rows.change_file_rows` takes them, where they were made; `fault` says why they were not.
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
        """What recipients are told at the version.

        Files of the version before that say their partition in another way are told of with the others: then none has
        partition columns.
        """
        head = change_head(self.after.header.head)
        if self.before is None or self.is_partitioned_alike:
            return head
        return head.without_partitions(self.before.header.head.partition_columns)

    @property
    def is_partitioned_alike(self) -> bool:
        """Whether files of both states have the same partition columns."""
        if self.before is None:
            return True
        columns = (one.header.head.partition_columns for one in (self.before, self.after))
        return len(set(columns)) == 1

    def source(self, difference: FileDifference) -> FeedSource:
        """Where the changed rows are. Files speak for themselves when all that is in them came, or all of it went."""
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
        # What went is told under the names of this version: they must be those of its own time.
        alike = _columns(self.before.header.head) == _columns(self.after.header.head)
        return FeedSource.FILES if alike and not difference.entered.num_rows else FeedSource.ROWS


def write_change_index(change: StateChange, made_of: tuple[str, str], index_dir: Path) -> str:
    """Keep the changes of a publication beside the file indexes, named by the SHA-256 of the file; returns it.

    `made_of` are the digests of both file indexes, the first one empty before the first publication.
    """
    make_private(index_dir)
    remove_abandoned(index_dir)
    scratch = scratch_file(index_dir)
    try:
        write_changes(change, made_of, scratch)
        with scratch.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        scratch.chmod(0o600)
        scratch.replace(index_path(index_dir, digest))
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(index_dir)
    return digest


def write_changes(change: StateChange, made_of: tuple[str, str], path: Path) -> None:
    """Write the changes of a version: to a place of the caller's, neither named nor synced."""
    rows, fault = _rows(change)
    if not change.is_partitioned_alike:
        rows = without_partition_values(rows)
    location = change.after.header.location
    roots = find_roots(location, find_outside_files(location, rows)) if rows.num_rows else set()
    footer = SegmentFooter(
        {change.version: _described(change, rows, fault)}, tuple(sorted(roots)), (LAYOUT, *made_of)
    )
    with SegmentFile(path) as file:
        if rows.num_rows:
            file.add(rows)
        file.close(footer)


def open_changes(path: Path, version: int, made_of: tuple[str, str]) -> Segment | None:
    """The changes of a version between two states; None when they are not there, of other states or another layout."""
    try:
        segment = open_segment(path)
    except (OSError, KeyError, TypeError, ValueError):
        return None
    is_right = segment.note.made_of == (LAYOUT, *made_of) and list(segment.note.versions) == [version]
    return segment if is_right else None


def change_files_of(segment: Segment, version: int) -> dict[str, int]:
    """The change files that an index of changes names, with their sizes in bytes."""
    one = segment.note.versions[version]
    found: dict[str, int] = {}
    for batch in segment.rows(one.first_row, one.first_row + one.rows) if one.cdc_rows else ():
        chosen = batch.filter(pc.equal(batch.column("kind"), CDC))
        found.update(zip(chosen.column("path").to_pylist(), chosen.column("size").to_pylist(), strict=True))
    return found


def _rows(change: StateChange) -> tuple[pa.Table, str | None]:
    """The rows of a version, and why they do not tell which rows changed."""
    difference = compare_files(change.before, change.after)
    source = change.source(difference)
    taken = sorted(RESERVED & {field.name.lower() for field in parse_schema(change.head.schema_string)})
    if taken and source != FeedSource.NOTHING:
        files = file_rows(difference, change.version, change.changed_at_ms, in_feed=False)
        return files, f"the table has a column {taken[0]}, which the change data feed has itself"
    of_rows = change.change_files
    if source == FeedSource.ROWS and of_rows is not None and not of_rows.num_rows:
        # Other files with the same rows.
        source = FeedSource.NOTHING
    at = change.changed_at_ms
    files = file_rows(difference, change.version, at, in_feed=source == FeedSource.FILES)
    if source == FeedSource.NOTHING:
        return files.slice(0, 0), None
    if source == FeedSource.FILES:
        return files, None
    if of_rows is None:
        return files, change.fault or ONLY_FILES
    return pa.concat_tables([files, change_file_rows(of_rows, change.head, change.version)]), None


def _described(change: StateChange, rows: pa.Table, fault: str | None) -> SegmentVersion:
    head = change.head
    is_cdc = pc.equal(rows.column("kind"), CDC)
    window, feed = rows.filter(pc.invert(is_cdc)), rows.filter(rows.column("in_feed"))
    return SegmentVersion(
        version=change.version,
        protocol=_text(head.as_json()["protocol"]),
        metadata=_text(_metadata(head)),
        modified_ms=change.changed_at_ms,
        own_time_ms=None,
        first_row=0,
        window_rows=window.num_rows,
        cdc_rows=rows.num_rows - window.num_rows,
        feed_rows=feed.num_rows,
        window_bytes=_size(window),
        feed_bytes=_size(feed),
        vectors=_vectors(window),
        lacks_row_ids=False,
        head=_text(head.as_json()),
        feed_vectors=_vectors(feed),
        feed_fault=fault,
    )


def _metadata(head: TableHead) -> dict[str, object]:
    told = replace(head, hindrances=()).as_json() | {"protocol": None}
    return {name: value for name, value in told.items() if name != "left_to_files"}


def _columns(head: TableHead) -> tuple[object, ...]:
    return head.schema_string, head.partition_columns


def _vectors(rows: pa.Table) -> int:
    return int(pc.sum(pc.not_equal(vectors_of(rows), ""), min_count=0).as_py())


def _size(rows: pa.Table) -> int:
    return int(pc.sum(rows.column("size"), min_count=0).as_py())


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
