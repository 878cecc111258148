"""What became of the files of an Iceberg table between two publications, as rows of an index of changes.

Their columns are those of Delta's changes. Lines of files come from the file indexes; those of change files, which have
the changed rows themselves, are rendered here.
"""

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta.change_rows import ADD, CDC, COLUMNS, REMOVE
from lakeshare_server.tables.file_difference import FileDifference
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.lines import LINE_COLUMNS, rendered
from lakeshare_server.tables.physical_names import PhysicalNames

# Quotes inside of values are escaped, so that these members are where they seem to be.
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
    lines = dict(zip(LINE_COLUMNS, rendered(names.of(pa.table(told)), names.partition_columns), strict=True))
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
