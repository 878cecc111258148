"""The rows behind a reply: its files read with pyarrow, their columns by their names in the schema."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_server.conformance.case import Broken, NothingToTry
from lakeshare_server.conformance.ground import View
from lakeshare_server.conformance.reply import Action, Reply
from lakeshare_server.conformance.values import FLOATS, INTEGERS, to_value

LARGEST_BYTES = 64 * 1024 * 1024
MOST_FILES = 500
# Types whose values mean the same to everybody.
COMPARABLE = frozenset(
    ("byte", "short", "integer", "long", "float", "double", "string", "date", "timestamp", "boolean")
)


@dataclass(frozen=True)
class FileRows:
    """A file and its rows, partition values included, under the table's own column names."""

    action: Action
    rows: pa.Table


def read_parquet(view: View, action: Action) -> pa.Table:
    """The table in a file as it is stored.

    Raises:
        Broken: the URL gives no Parquet file.
    """
    answer = view.table.client.fetch(action.url).expect_status(200)
    try:
        return pq.ParquetFile(io.BytesIO(answer.body)).read()
    except (pa.ArrowException, OSError) as error:
        raise Broken(answer.asked, "a Parquet file", f"{len(answer.body)} bytes ({error})") from error


def physical_name(reply: Reply, column: str) -> str:
    """The name of a column in files, partition values and statistics."""
    for field in reply.fields if reply.is_mapped else ():
        if field["name"] == column:
            return str((field.get("metadata") or {}).get("delta.columnMapping.physicalName", column))
    return column


def columns_of(reply: Reply) -> dict[str, tuple[str, str]]:
    """By its name in the files: each column's own name and type; the type is empty if values cannot be compared."""
    found = {}
    for field in reply.fields:
        name, kind = str(field["name"]), field.get("type")
        is_comparable = isinstance(kind, str) and kind in COMPARABLE
        found[physical_name(reply, name)] = (name, str(kind) if is_comparable else "")
    return found


def reads_as(stored: pa.DataType, kind: str) -> bool:
    """Whether a column of a file can be read as the type of the schema; types that cannot be compared can."""
    read = _READS.get(kind)
    return read is None or read(stored)


def read_all(view: View, reply: Reply) -> list[FileRows]:
    """Every file of a reply that has no deletion vector, with the columns that can be compared.

    Raises:
        NothingToTry: it is too much to read, or there is none.
    """
    size = sum(action.size_bytes for action in reply.actions)
    if len(reply.actions) > MOST_FILES or size > LARGEST_BYTES:
        raise NothingToTry(
            f"{view.table.name} is too large to read whole: {len(reply.actions)} files, {size} bytes"
        )
    found = [
        FileRows(action, _rows(view, reply, action)) for action in reply.actions if action.vector is None
    ]
    if not any(one.rows.num_rows for one in found):
        raise NothingToTry("no table has rows to compare with")
    return found


def _rows(view: View, reply: Reply, action: Action) -> pa.Table:
    stored = read_parquet(view, action)
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    for name, (told, kind) in columns_of(reply).items():
        if not kind:
            continue
        if name in action.partition_values:
            columns[told] = _constant(action.partition_values[name], kind, stored.num_rows)
        elif name in stored.column_names:
            columns[told] = typed(stored.column(name), kind)
        else:
            columns[told] = pa.nulls(stored.num_rows, _TYPES[kind])
    return pa.table(columns)


def typed(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A stored column in the type of the schema: times are stored with other units and without a zone, too."""
    return column.cast(_TYPES[kind], safe=False)


def _constant(text: str | None, kind: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(to_value(text, kind), _TYPES[kind]), count)


def distinct(files: Sequence[FileRows], column: str) -> Iterator[object]:
    """The values of a column in all files, in order, without nulls."""
    whole = pa.chunked_array([chunk for one in files for chunk in one.rows.column(column).chunks])
    try:
        values = whole.unique().to_pylist()
    except (OverflowError, ValueError):
        # Python has no dates before year 1 and after 9999.
        return
    yield from sorted(value for value in values if value is not None)


_TYPES = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "boolean": pa.bool_(),
}

_READS: dict[str, Callable[[pa.DataType], bool]] = {
    **dict.fromkeys(INTEGERS, pa.types.is_integer),
    # A column of whole numbers may have been widened.
    **dict.fromkeys(FLOATS, lambda stored: pa.types.is_floating(stored) or pa.types.is_integer(stored)),
    "string": lambda stored: pa.types.is_string(stored) or pa.types.is_large_string(stored),
    "date": pa.types.is_date,
    "timestamp": pa.types.is_timestamp,
    "boolean": pa.types.is_boolean,
}
