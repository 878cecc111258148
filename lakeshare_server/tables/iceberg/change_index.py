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
from lakeshare_server.tables.delta.change_rows import CDC
from lakeshare_server.tables.delta.change_segment import (
    Segment,
    SegmentFile,
    SegmentNote,
    SegmentVersion,
    open_segment,
)
from lakeshare_server.tables.delta_schema import parse_schema
from lakeshare_server.tables.file_difference import FileDifference, file_difference, vectors_of
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.iceberg.change_head import change_head
from lakeshare_server.tables.iceberg.change_rows import change_file_rows, file_rows, without_partition_values
from lakeshare_server.tables.index import FileIndex, index_path
from lakeshare_server.tables.locations import elsewhere, roots_of
from lakeshare_server.tables.scratch import remove_abandoned, scratch_file, sync_folder

# Grows whenever rows or notes get another meaning; they are kept for as long as their publication is.
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
    roots = roots_of(location, elsewhere(location, rows)) if rows.num_rows else set()
    note = SegmentNote(
        {change.version: _described(change, rows, fault)}, tuple(sorted(roots)), (LAYOUT, *made_of)
    )
    with SegmentFile(path) as file:
        if rows.num_rows:
            file.add(rows)
        file.close(note)


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
    difference = file_difference(change.before, change.after)
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
