"""The rows behind a reply: its files read with pyarrow, their columns by their names in the schema."""

import io
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_conformance.case import ExpectationFailed, NotApplicable
from lakeshare_conformance.reply import (
    FLOATS,
    INTEGERS,
    Action,
    Reply,
    is_ordinary,
    to_compared,
    to_literal,
    to_value,
)
from lakeshare_conformance.targets import View

LARGEST_BYTES = 64 * 1024 * 1024
MAX_FILES = 500
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
    response = view.table.client.fetch(action.url).expect_status(200)
    try:
        return pq.ParquetFile(io.BytesIO(response.body)).read()
    except (pa.ArrowException, OSError) as error:
        raise ExpectationFailed(
            response.request, "a Parquet file", f"{len(response.body)} bytes ({error})"
        ) from error


def get_physical_name(reply: Reply, column: str) -> str:
    """The name of a column in files, partition values and statistics."""
    for field in reply.fields if reply.is_mapped else ():
        if field["name"] == column:
            return str((field.get("metadata") or {}).get("delta.columnMapping.physicalName", column))
    return column


def get_columns(reply: Reply) -> dict[str, tuple[str, str]]:
    """By its name in the files: each column's own name and type; the type is empty if values cannot be compared."""
    found = {}
    for field in reply.fields:
        name, kind = str(field["name"]), field.get("type")
        is_comparable = isinstance(kind, str) and kind in COMPARABLE
        found[get_physical_name(reply, name)] = (name, str(kind) if is_comparable else "")
    return found


def can_read_as(stored: pa.DataType, kind: str) -> bool:
    """Whether a column of a file can be read as the type of the schema; types that cannot be compared can."""
    read = _READS.get(kind)
    return read is None or read(stored)


def read_all(view: View, reply: Reply) -> list[FileRows]:
    """Every file of a reply that has no deletion vector, with the columns that can be compared.

    Raises:
        NothingToTry: it is too much to read, or there is none.
    """
    size = sum(action.size_bytes for action in reply.actions)
    if len(reply.actions) > MAX_FILES or size > LARGEST_BYTES:
        raise NotApplicable(
            f"{view.table.name} is too large to read whole: {len(reply.actions)} files, {size} bytes"
        )
    found = [
        FileRows(action, select_rows(reply, action, read_parquet(view, action)))
        for action in reply.actions
        if action.vector is None
    ]
    if not any(one.rows.num_rows for one in found):
        raise NotApplicable("no table has rows to compare with")
    return found


def select_rows(reply: Reply, action: Action, stored: pa.Table) -> pa.Table:
    """The comparable columns of a file under the names of the reply's schema; a column that the file lacks is null."""
    columns: dict[str, pa.ChunkedArray | pa.Array] = {}
    for name, (name_in_table, kind) in get_columns(reply).items():
        if not kind:
            continue
        if name in action.partition_values:
            columns[name_in_table] = _constant(action.partition_values[name], kind, stored.num_rows)
        elif name in stored.column_names:
            columns[name_in_table] = cast_column(stored.column(name), kind)
        else:
            columns[name_in_table] = pa.nulls(stored.num_rows, _TYPES[kind])
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


def cast_column(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A stored column in the type of the schema: times are stored with other units and without a zone, too."""
    return column.cast(_TYPES[kind], safe=False)


def _constant(text: str | None, kind: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(to_value(text, kind), _TYPES[kind]), count)


def list_values(files: Sequence[FileRows], column: str) -> Iterator[object]:
    """The values of a column in all files, in order, without nulls."""
    whole = pa.chunked_array([chunk for file in files for chunk in file.rows.column(column).chunks])
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


CUT = timedelta(milliseconds=1)


def find_broken_bound(stats: Mapping[str, Any], rows: pa.Table, reply: Reply) -> str | None:
    """A sentence about the first column whose statistics do not hold its values; None if all do."""
    for name, (name_in_table, kind) in get_columns(reply).items():
        if name not in rows.column_names:
            continue
        column = cast_column(rows.column(name), kind) if kind else rows.column(name)
        nulls = (stats.get("nullCount") or {}).get(name)
        if isinstance(nulls, int) and nulls != column.null_count:
            return f"column {name_in_table} has {column.null_count} nulls, nullCount is {nulls}"
        low = _bound((stats.get("minValues") or {}).get(name), kind)
        high = _bound((stats.get("maxValues") or {}).get(name), kind)
        sentence = _outside(column, low, high)
        if sentence:
            return f"column {name_in_table} {sentence}"
    return None


def _outside(column: pa.ChunkedArray, low: Any, high: Any) -> str | None:
    if column.null_count == len(column) or (low is None and high is None):
        return None
    try:
        found = pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        # Python has no dates before year 1 and after 9999.
        return None
    if low is not None and found["min"] < low:
        return f"holds {found['min']}, minValues says {low}"
    greatest = found["max"]
    if isinstance(greatest, datetime) and greatest.year > 1:
        greatest -= CUT
    # A long text's upper bound is cut and made larger in its last character.
    if high is not None and greatest > high and not str(greatest).startswith(str(high)):
        return f"holds {found['max']}, maxValues says {high}"
    return None


def _bound(value: object, kind: str) -> object:
    """A bound as Python has it; None where it says nothing."""
    if kind in INTEGERS and isinstance(value, int):
        return value
    if kind in FLOATS and isinstance(value, int | float):
        # A float is written as the shortest text that reads as the same float, not as the same double.
        return float(value) if kind == "double" else float(pa.scalar(value, pa.float32()).as_py())
    if not isinstance(value, str):
        return None
    try:
        return to_value(value, kind) if kind in ("date", "timestamp", "string") else None
    except ValueError:
        return None


VALUE_TYPES = {
    **dict.fromkeys(("byte", "short", "integer"), "int"),
    **{kind: kind for kind in ("long", "float", "double", "string", "date", "timestamp")},
    "boolean": "bool",
}
OPERATORS = {
    "equal": ("=", pc.equal),
    "lessThan": ("<", pc.less),
    "lessThanOrEqual": ("<=", pc.less_equal),
    "greaterThan": (">", pc.greater),
    "greaterThanOrEqual": (">=", pc.greater_equal),
}
MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
MAX_COLUMNS = 10


class Hint(Protocol):
    """A predicate."""

    def tree(self) -> dict[str, Any]:
        """The node of the protocol's JSON."""

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """True, false or null for each row."""


@dataclass(frozen=True)
class Compare:
    """A column beside a value. `declared` is the type told for both, which may be another than the column's."""

    column: str
    kind: str
    operator: str
    value: Any
    declared: str = ""

    def tree(self) -> dict[str, Any]:
        value_type = self.declared or VALUE_TYPES[self.kind]
        literal = {"op": "literal", "value": to_literal(self.value), "valueType": value_type}
        return {"op": self.operator, "children": [_column(self.column, value_type), literal]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(self.column)
        if self.kind in FLOATS:
            # What NaN is compared to differs between engines: such rows are not judged.
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        return OPERATORS[self.operator][1](column, pa.scalar(to_compared(self.value), column.type))

    def sql(self, *, mirrored: bool = False) -> str:
        """The comparison in SQL, with the column first or last."""
        sign = OPERATORS[self.operator][0]
        is_bare = isinstance(self.value, int)
        literal = to_literal(self.value) if is_bare else f"'{to_literal(self.value)}'"
        return f"{literal} {MIRRORED[sign]} {self.column}" if mirrored else f"{self.column} {sign} {literal}"


@dataclass(frozen=True)
class IsNull:
    """A column that is null."""

    column: str
    kind: str

    def tree(self) -> dict[str, Any]:
        return {"op": "isNull", "children": [_column(self.column, VALUE_TYPES[self.kind])]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.is_null(rows.column(self.column))


@dataclass(frozen=True)
class Not:
    """The opposite."""

    part: Hint

    def tree(self) -> dict[str, Any]:
        return {"op": "not", "children": [self.part.tree()]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        return pc.invert(self.part.mask(rows))


@dataclass(frozen=True)
class Combined:
    """All of the parts, or any of them."""

    operator: str
    parts: tuple[Hint, ...]

    def tree(self) -> dict[str, Any]:
        return {"op": self.operator, "children": [part.tree() for part in self.parts]}

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        join = pc.and_kleene if self.operator == "and" else pc.or_kleene
        mask = self.parts[0].mask(rows)
        for part in self.parts[1:]:
            mask = join(mask, part.mask(rows))
        return mask


def as_json(hint: Hint) -> str:
    """The text of `jsonPredicateHints`."""
    return json.dumps(hint.tree())


def count_matches(hint: Hint, one: FileRows) -> int:
    """How many rows of a file match."""
    return int(pc.sum(hint.mask(one.rows)).as_py() or 0)


def list_comparable_columns(reply: Reply) -> list[tuple[str, str]]:
    """The names and types of columns to compare, partition columns first."""
    columns = [(name, kind) for name, kind in get_columns(reply).values() if kind and name.isidentifier()]
    return sorted(columns, key=lambda column: column[0] not in reply.partition_columns)[:MAX_COLUMNS]


def list_comparisons(reply: Reply, files: Sequence[FileRows]) -> Iterator[Compare]:
    """Every comparison of each column with its least, its middle and its greatest value."""
    for name, kind in list_comparable_columns(reply):
        for value in sample_values(files, name):
            for operator in OPERATORS:
                yield Compare(name, kind, operator, value)


def sample_values(files: Sequence[FileRows], column: str) -> list[Any]:
    """The least, the middle and the greatest value of a column."""
    values = [value for value in list_values(files, column) if is_ordinary(value)]
    return sorted({values[0], values[len(values) // 2], values[-1]}) if values else []


def list_casts(reply: Reply, files: Sequence[FileRows]) -> Iterator[Compare]:
    """Comparisons under another type than the column has, as casts in a query make them."""
    for name, kind in list_comparable_columns(reply):
        others = {"date": ("string",), **dict.fromkeys(INTEGERS, ("long", "double", "string"))}.get(kind, ())
        for value in sample_values(files, name):
            for declared in others:
                operators = ("equal",) if declared == "string" else tuple(OPERATORS)
                for operator in operators:
                    yield Compare(name, kind, operator, value, declared)


def list_combinations(reply: Reply, files: Sequence[FileRows]) -> Iterator[Hint]:
    """AND, OR and NOT over pairs of columns, as Spark writes IN, <=>, and its own null tests."""
    parts = [one for one in list_comparisons(reply, files) if one.operator in ("equal", "greaterThanOrEqual")]
    for one, other in zip(parts, reversed(parts), strict=True):
        is_null = IsNull(one.column, one.kind)
        yield Combined("and", (Not(is_null), one))
        yield Combined("or", (one, other))
        yield Combined("and", (Not(one), other))
        yield Not(Combined("and", (one, other)))
        yield Not(Combined("or", (is_null, other)))
        yield Combined(
            "or",
            (Combined("and", (is_null, IsNull(other.column, other.kind))), Combined("and", (one, other))),
        )


def _column(name: str, value_type: str) -> dict[str, str]:
    return {"op": "column", "name": name, "valueType": value_type}


MAGIC = struct.pack("<I", 1681511377)
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_NO_RUNS, _RUNS = 12346, 12347
_ARRAY_LIMIT, _FEW_CONTAINERS = 4096, 4
_BITMAP_BYTES = 8192


def unpack_inline_vector(text: str) -> bytes:
    """The bytes of a vector that stands in the line itself.

    Raises:
        ValueError: the text is not Z85.
    """
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters are no Z85")
    content = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for sign in text[start : start + 5]:
            number = number * 85 + Z85.index(sign)
        content += struct.pack(">I", number & 0xFFFFFFFF)
    return bytes(content)


def count_marked_rows(content: bytes) -> int:
    """How many rows a vector marks; -1 if its bytes are not what they should be."""
    try:
        return sum(_cardinalities(content))
    except (struct.error, IndexError):
        return -1


def _cardinalities(content: bytes) -> Iterator[int]:
    at = 4
    (bitmaps,) = struct.unpack_from("<Q", content, at)
    at += 8
    for _ in range(bitmaps):
        at += 4  # the upper half of the numbers of this bitmap
        found, at = _bitmap(content, at)
        yield found


def _bitmap(content: bytes, at: int) -> tuple[int, int]:
    """How many numbers a 32-bit bitmap holds, and where it ends."""
    (cookie,) = struct.unpack_from("<I", content, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == _RUNS:
        containers = (cookie >> 16) + 1
        runs = content[at : at + (containers + 7) // 8]
        at += len(runs)
    elif cookie == _NO_RUNS:
        (containers,) = struct.unpack_from("<I", content, at)
        at += 4
    else:
        raise IndexError(f"{cookie} begins no bitmap")
    counts = [struct.unpack_from("<HH", content, at + 4 * number)[1] + 1 for number in range(containers)]
    at += 4 * containers
    if not runs or containers >= _FEW_CONTAINERS:
        at += 4 * containers  # where each container begins
    for number, count in enumerate(counts):
        at += _container_bytes(content, at, count, bool(runs) and bool(runs[number // 8] >> number % 8 & 1))
    if at > len(content):
        raise IndexError("the bitmap is cut off")
    return sum(counts), at


def _container_bytes(content: bytes, at: int, count: int, is_run: bool) -> int:
    if is_run:
        (pairs,) = struct.unpack_from("<H", content, at)
        return int(2 + 4 * pairs)
    return 2 * count if count <= _ARRAY_LIMIT else _BITMAP_BYTES
