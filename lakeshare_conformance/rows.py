"""The rows behind a reply, and predicates over them: files read with pyarrow, columns named as in the schema."""

import base64
import io
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyroaring

from lakeshare_conformance.case import ExpectationFailed, expect, require
from lakeshare_conformance.client import Response
from lakeshare_conformance.targets import View
from lakeshare_conformance.wire import Action, Statistics

MAX_BYTES, MAX_FILES, MAX_COLUMNS = 64 * 1024 * 1024, 500, 10
INTEGERS = ("byte", "short", "integer", "long")
FLOATS = ("float", "double")
# Types whose values compare the same in all engines.
TYPES = {
    **dict(zip(INTEGERS, (pa.int8(), pa.int16(), pa.int32(), pa.int64()), strict=True)),
    **dict(zip(FLOATS, (pa.float32(), pa.float64()), strict=True)),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "boolean": pa.bool_(),
}
_NUMBER = r"(?i:[+-]?(\d+\.?\d*|\.\d+)(E[+-]?\d+)?|[+-]?(NaN|Inf(inity)?))"
_TIMESTAMP = r"\d{4,}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?)?"
_PARTITION_FORMS = {
    **dict.fromkeys(INTEGERS, r"[+-]?\d+"),
    **dict.fromkeys((*FLOATS, "decimal"), _NUMBER),
    "boolean": "true|false",
    "date": r"[+-]?\d{4,}-\d\d-\d\d",
    **dict.fromkeys(("timestamp", "timestamp_ntz"), _TIMESTAMP),
}


def is_partition_value(value: str | None, kind: object) -> bool:
    """Whether a text has the form of the type's partition values. Null and empty are null."""
    if not value or not isinstance(kind, str):
        return True
    form = _PARTITION_FORMS.get(kind.partition("(")[0])
    return form is None or re.fullmatch(form, value) is not None


def to_value(text: str | None, kind: str) -> Any:
    """A partition value or a bound as a Python value; raises ValueError if the text is not of the type."""
    if text is None or text == "":
        return None
    if kind == "timestamp":
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return pa.scalar(text).cast(TYPES[kind]).as_py()


def to_literal(value: object) -> str:
    """A value as the text of a predicate's literal; times are cut to milliseconds, as Spark cuts them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC)
        return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
    return repr(value) if isinstance(value, float) else str(value)


def is_ordinary(value: object) -> bool:
    """Whether all engines read the value the same: not NaN, and no text that needs escaping."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or (value.isprintable() and not set(value) & set("'\"\\%_`"))


@dataclass(frozen=True)
class FileRows:
    """A file and its rows, partition values included, under the table's column names."""

    action: Action
    rows: pa.Table


def read_parquet(view: View, action: Action) -> pa.Table:
    """The table in a file as it is stored; fails if the URL serves no Parquet file."""
    response = view.client.fetch_whole(action.url)
    try:
        return pq.ParquetFile(io.BytesIO(response.body)).read()
    except (pa.ArrowException, OSError) as error:
        actual = f"{len(response.body)} bytes ({error})"
        raise ExpectationFailed(response.where, "a Parquet file", actual) from error


def get_physical_name(reply: Response, column: str) -> str:
    """The name of a column in files, partition values and statistics."""
    for known in reply.columns if reply.is_mapped else ():
        if known.name == column:
            return str(known.metadata.get("delta.columnMapping.physicalName", column))
    return column


def get_partition_columns(reply: Response) -> set[str]:
    """The physical names of the partition columns."""
    return {get_physical_name(reply, name) for name in reply.metadata.partition_columns}


def get_columns(reply: Response) -> dict[str, tuple[str, str]]:
    """Name and type of each column by its physical name; the type is empty if values cannot be compared."""
    columns = ((column.name, column.type) for column in reply.columns)
    return {
        get_physical_name(reply, name): (name, kind if isinstance(kind, str) and kind in TYPES else "")
        for name, kind in columns
    }


def can_read_as(stored: pa.DataType, kind: str) -> bool:
    """Whether a stored column reads as the type of the schema; types that cannot be compared do.

    A wider number would lose digits, a narrower one may have been widened. Parquet stores integers in 32 bits or
    more; writers may omit the annotation of a narrower type.
    """
    if kind in FLOATS and pa.types.is_integer(stored):
        return True
    if kind in (*INTEGERS, *FLOATS):
        is_same = pa.types.is_floating if kind in FLOATS else pa.types.is_integer
        return bool(is_same(stored)) and stored.bit_width <= max(32, TYPES[kind].bit_width)
    if kind == "string":
        return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored))
    checks = {"date": pa.types.is_date, "timestamp": pa.types.is_timestamp, "boolean": pa.types.is_boolean}
    return kind not in checks or bool(checks[kind](stored))


def select_rows(reply: Response, action: Action, stored: pa.Table) -> pa.Table:
    """The comparable columns of a file under the names of the reply's schema; a missing column is null."""
    columns: dict[str, Any] = {}
    for physical, (name, kind) in get_columns(reply).items():
        if kind and physical in action.partition_values:
            value = pa.scalar(to_value(action.partition_values[physical], kind), TYPES[kind])
            columns[name] = pa.repeat(value, stored.num_rows)
        elif kind and physical in stored.column_names:
            columns[name] = cast_column(stored.column(physical), kind)
        elif kind:
            columns[name] = pa.nulls(stored.num_rows, TYPES[kind])
    return pa.table(columns)


def cast_column(column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """A stored column in the type of the schema: times may be stored in other units and without a zone."""
    return column.cast(TYPES[kind], safe=False)


def count_differences(found: Iterable[pa.Table], wanted: Iterable[pa.Table]) -> tuple[int, int]:
    """How many rows the tables found lack, and how many they have too many; all have the same columns."""
    signed = [table.append_column("", pa.repeat(1, table.num_rows)) for table in found]
    signed += [table.append_column("", pa.repeat(-1, table.num_rows)) for table in wanted]
    rows = pa.concat_tables(signed)
    sums = rows.group_by(rows.column_names[:-1]).aggregate([("", "sum")]).column("_sum").to_pylist()
    return -sum(count for count in sums if count < 0), sum(count for count in sums if count > 0)


def find_broken_bound(stats: Statistics, rows: pa.Table, reply: Response) -> str | None:
    """A sentence about the first column whose statistics exclude one of its values; None without."""
    for physical, (name, kind) in get_columns(reply).items():
        if physical not in rows.column_names:
            continue
        column = cast_column(rows.column(physical), kind) if kind else rows.column(physical)
        nulls = stats.null_count.get(physical)
        if isinstance(nulls, int) and nulls != column.null_count:
            return f"column {name} has {column.null_count} nulls, nullCount is {nulls}"
        low, high = (_to_bound(bounds.get(physical), kind) for bounds in (stats.min_values, stats.max_values))
        sentence = _find_outside(column, low, high)
        if sentence:
            return f"column {name} {sentence}"
    return None


def _find_outside(column: pa.ChunkedArray, low: Any, high: Any) -> str | None:
    if column.null_count == len(column) or (low is None and high is None):
        return None
    try:
        found = pc.min_max(column).as_py()
    except (OverflowError, ValueError):
        # Python has no dates before year 1 and after 9999.
        return None
    if low is not None and found["min"] < low:
        return f"has the value {found['min']}, minValues has {low}"
    greatest = found["max"]
    if isinstance(greatest, datetime) and greatest.year > 1:
        greatest -= timedelta(milliseconds=1)
    # The upper bound of a long text is cut and made larger in its last character.
    if high is not None and greatest > high and not str(greatest).startswith(str(high)):
        return f"has the value {found['max']}, maxValues has {high}"
    return None


def _to_bound(value: object, kind: str) -> object:
    """A bound as a Python value; None if the column has none or it cannot be compared."""
    if kind in INTEGERS and isinstance(value, int):
        return value
    if kind in FLOATS and isinstance(value, int | float):
        # A float is written as the shortest text that reads as the same float, not as the same double.
        return float(value) if kind == "double" else float(pa.scalar(value, pa.float32()).as_py())
    try:
        is_text = isinstance(value, str) and kind in ("date", "timestamp", "string")
        return to_value(str(value), kind) if is_text else None
    except ValueError:
        return None


VALUE_TYPES = {**{kind: kind for kind in TYPES}, **dict.fromkeys(("byte", "short", "integer"), "int")}
VALUE_TYPES["boolean"] = "bool"
# The operator of the JSON, its sign in SQL, the sign with the column last, and the function.
OPERATORS = {
    "equal": ("=", "=", pc.equal),
    "lessThan": ("<", ">", pc.less),
    "lessThanOrEqual": ("<=", ">=", pc.less_equal),
    "greaterThan": (">", "<", pc.greater),
    "greaterThanOrEqual": (">=", "<=", pc.greater_equal),
}


@dataclass(frozen=True)
class Hint:
    """A predicate: its node in the protocol's JSON, and the same as an expression of pyarrow."""

    tree: dict[str, Any]
    expression: pc.Expression

    @property
    def json(self) -> str:
        """The text of `jsonPredicateHints`."""
        return json.dumps(self.tree)

    def __invert__(self) -> "Hint":
        return Hint({"op": "not", "children": [self.tree]}, ~self.expression)

    def __and__(self, other: "Hint") -> "Hint":
        return Hint({"op": "and", "children": [self.tree, other.tree]}, self.expression & other.expression)

    def __or__(self, other: "Hint") -> "Hint":
        return Hint({"op": "or", "children": [self.tree, other.tree]}, self.expression | other.expression)


@dataclass(frozen=True)
class Comparison(Hint):
    """A column compared with a value."""

    column: str
    kind: str
    operator: str
    value: Any

    def sql(self, *, is_mirrored: bool = False) -> str:
        """The comparison in SQL, with the column first or last."""
        sign, mirrored, _ = OPERATORS[self.operator]
        literal = to_literal(self.value) if isinstance(self.value, int) else f"'{to_literal(self.value)}'"
        return f"{literal} {mirrored} {self.column}" if is_mirrored else f"{self.column} {sign} {literal}"


def compare(column: str, kind: str, operator: str, value: Any, declared: str = "") -> Comparison:
    """A comparison; `declared` is the type in the JSON if it is not the column's."""
    value_type = declared or VALUE_TYPES[kind]
    literal = {"op": "literal", "value": to_literal(value), "valueType": value_type}
    tree = {"op": operator, "children": [_column_node(column, value_type), literal]}
    is_time = isinstance(value, datetime)
    compared = value - timedelta(microseconds=value.microsecond % 1000) if is_time else value
    values = pc.field(column)
    if kind in FLOATS:
        # Engines compare NaN differently: such rows count as null.
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, TYPES[kind]), values)
    expression = OPERATORS[operator][2](values, pa.scalar(compared, TYPES[kind]))
    return Comparison(tree, expression, column, kind, operator, value)


def is_null(column: str, kind: str) -> Hint:
    tree = {"op": "isNull", "children": [_column_node(column, VALUE_TYPES[kind])]}
    return Hint(tree, pc.field(column).is_null())


def _column_node(name: str, value_type: str) -> dict[str, str]:
    return {"op": "column", "name": name, "valueType": value_type}


class TableRows:
    """The rows of a view, and the predicates that are tried on them."""

    def __init__(self, view: View) -> None:
        """Read every file without a deletion vector; raises `NotApplicable` if they are too large or have no rows."""
        reply, name = view.snapshot, view.table.name
        size, count = sum(action.size for action in reply.actions), len(reply.actions)
        is_fit = count <= MAX_FILES and size <= MAX_BYTES
        require(is_fit, f"{name} is too large to read whole: {count} files, {size} bytes")
        plain = [action for action in reply.actions if action.deletion_vector is None]
        self.files = [
            FileRows(action, select_rows(reply, action, read_parquet(view, action))) for action in plain
        ]
        require(any(file.rows.num_rows for file in self.files), "no table has rows to compare with")
        self.partition_columns = reply.metadata.partition_columns
        columns = [(name, kind) for name, kind in get_columns(reply).values() if kind and name.isidentifier()]
        columns.sort(key=lambda column: column[0] not in self.partition_columns)
        # The names and types of columns to compare, partition columns first.
        self.columns = columns[:MAX_COLUMNS]

    def list_comparisons(self) -> Iterator[Comparison]:
        """Every comparison of each column with its least, its middle and its greatest value."""
        for name, kind in self.columns:
            for value in self.sample_values(name):
                for operator in OPERATORS:
                    yield compare(name, kind, operator, value)

    def sample_values(self, column: str) -> list[Any]:
        """The least, the middle and the greatest value of a column."""
        whole = pa.chunked_array([chunk for file in self.files for chunk in file.rows.column(column).chunks])
        try:
            values = sorted(value for value in whole.drop_null().unique().to_pylist() if is_ordinary(value))
        except (OverflowError, ValueError):
            # Python has no dates before year 1 and after 9999.
            return []
        return sorted({values[0], values[len(values) // 2], values[-1]}) if values else []

    def list_casts(self) -> Iterator[Comparison]:
        """Comparisons under another type than the column has, as casts in a query make them."""
        for name, kind in self.columns:
            others = {"date": ("string",), **dict.fromkeys(INTEGERS, ("long", "double", "string"))}.get(
                kind, ()
            )
            for value in self.sample_values(name):
                for declared in others:
                    for operator in ("equal",) if declared == "string" else OPERATORS:
                        yield compare(name, kind, operator, value, declared)

    def list_combinations(self) -> Iterator[Hint]:
        """AND, OR and NOT over pairs of columns, as Spark writes IN, <=>, and its own null tests."""
        parts = [one for one in self.list_comparisons() if one.operator in ("equal", "greaterThanOrEqual")]
        for left, right in zip(parts, reversed(parts), strict=True):
            no_left, no_right = (is_null(part.column, part.kind) for part in (left, right))
            yield ~no_left & left
            yield left | right
            yield ~left & right
            yield ~(left & right)
            yield ~(no_left | right)
            yield (no_left & no_right) | (left & right)

    def count_matches(self, hint: Hint) -> list[int]:
        """The number of rows in each file that match."""
        return [file.rows.filter(hint.expression).num_rows for file in self.files]

    def expect_no_row_lost(self, hint: Hint, where: str, ids: frozenset[str]) -> None:
        """Expect every file with a row that matches among the files of the answer."""
        for file in self.files:
            if file.action.id not in ids:
                count = file.rows.filter(hint.expression).num_rows
                expect(
                    count == 0, where, f"file {file.action.id} with {count} rows that match", "no such file"
                )

    def list_null_tests(self) -> Iterator[Hint]:
        """A test for null of each column."""
        return (is_null(name, kind) for name, kind in self.columns)


MAGIC = struct.pack("<I", 1681511377)
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# The same signs in the alphabet of Python's base85.
TO_B85 = str.maketrans(Z85, f"{digits}{ascii_uppercase}{ascii_lowercase}!#$%&()*+-;<=>?@^_`{{|}}~")


def unpack_inline_vector(text: str, where: str) -> bytes:
    """The bytes of an inline deletion vector; fails if the text is not Z85."""
    expect(len(text) % 5 == 0 and set(text) <= set(Z85), where, "pathOrInlineDv in Z85", text)
    return base64.b85decode(text.translate(TO_B85))


def count_marked_rows(content: bytes) -> int:
    """The number of rows that a deletion vector marks; -1 if its bytes are not a bitmap in the portable format."""
    try:
        return len(pyroaring.BitMap64.deserialize(content[len(MAGIC) :]))
    except (ValueError, IndexError):
        return -1
