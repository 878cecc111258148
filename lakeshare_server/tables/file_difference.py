"""Which files differ between two states of a table, from their file indexes: no metadata and no data is read."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.lines import LINE_COLUMNS

COLUMNS = ("path", "size", *LINE_COLUMNS)
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


def file_difference(before: FileIndex | None, after: FileIndex) -> FileDifference:
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


def all_files(before: FileIndex, after: FileIndex) -> FileDifference:
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
    names = [name for name in (*COLUMNS, *MORE) if name in index.schema.names]
    schema = pa.schema([index.schema.field(name) for name in names])
    return pa.Table.from_batches([batch.select(names) for batch in index.batches()], schema)


def _live_rows(files: pa.Table) -> int | None:
    rows = files.column("rows")
    if rows.null_count:
        return None
    deleted = files.column("dv_cardinality") if "dv_cardinality" in files.column_names else pa.array([0])
    return int(pc.sum(rows, min_count=0).as_py()) - int(pc.sum(deleted, min_count=0).as_py())
