"""The rows behind a reply: its files read with pyarrow, their columns by their names in the schema."""

import io
from collections import Counter
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
        FileRows(action, rows_of(reply, action, read_parquet(view, action)))
        for action in reply.actions
        if action.vector is None
    ]
    if not any(one.rows.num_rows for one in found):
        raise NothingToTry("no table has rows to compare with")
    return found


def rows_of(reply: Reply, action: Action, stored: pa.Table) -> pa.Table:
    """The comparable columns of a file under the names of the reply's schema; a column that the file lacks is null."""
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


def count_rows(rows: pa.Table) -> Counter[tuple[object, ...]]:
    """The rows of a table of comparable columns and how often each occurs, columns in the order of their names."""
    if not rows.column_names:
        return Counter({(): rows.num_rows})
    columns = [_hashable(rows.column(name)).to_pylist() for name in sorted(rows.column_names)]
    return Counter(zip(*columns, strict=True))


def _hashable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Values that equal themselves (NaN does not) and that Python can hold (it has no dates before year 1)."""
    if pa.types.is_floating(column.type):
        return column.cast(pa.string())
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


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

# Parquet stores whole numbers in 32 bits or more, with a narrower type as an annotation that writers may leave out.
_WIDTHS = {"byte": 32, "short": 32, "integer": 32, "long": 64, "float": 32, "double": 64}


def _reads_number(kind: str) -> Callable[[pa.DataType], bool]:
    """Whether a stored number reads as a type: a wider one would lose digits, a narrower one may have been widened."""

    def reads(stored: pa.DataType) -> bool:
        if kind in FLOATS and pa.types.is_integer(stored):
            return True
        is_same = pa.types.is_floating if kind in FLOATS else pa.types.is_integer
        return bool(is_same(stored)) and stored.bit_width <= _WIDTHS[kind]

    return reads


_READS: dict[str, Callable[[pa.DataType], bool]] = {
    **{kind: _reads_number(kind) for kind in (*INTEGERS, *FLOATS)},
    "string": lambda stored: pa.types.is_string(stored) or pa.types.is_large_string(stored),
    "date": pa.types.is_date,
    "timestamp": pa.types.is_timestamp,
    "boolean": pa.types.is_boolean,
}
