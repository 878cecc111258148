"""Predicates of recipients as a tree, for all their notations.

A part that is not understood is `Unknown`: it may be true, false or null for any row, so it never rules out a file.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any
from typing import Literal as OneOf

import pyarrow as pa

from lakeshare_server.tables.snapshot import Field, arrow_type, parse_schema

Value = bool | int | float | Decimal | str | date | datetime
Comparison = OneOf["=", "<", "<=", ">", ">="]
# A text is a name in a JSON predicate, including dots; a tuple has the parts of a name in SQL.
ColumnName = str | tuple[str, ...]
# A comparison with its sides exchanged.
MIRRORED: dict[Comparison, Comparison] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Trees are parsed and evaluated recursively; deeper parts are Unknown.
MAX_DEPTH = 100


@dataclass(frozen=True)
class Unknown:
    """A part that is not understood; `text` is for display."""

    text: str = dataclass_field(default="", compare=False)


@dataclass(frozen=True)
class Constant:
    """True or false for every row."""

    value: bool


@dataclass(frozen=True)
class Compare:
    """A column compared with a constant.

    `kind` is the protocol's name of the type in which they are compared; None in SQL without a cast, where a text
    is a value of the column's own type.
    """

    column: ColumnName
    operator: Comparison
    value: Value
    kind: str | None


@dataclass(frozen=True)
class IsNull:
    """Whether a column is null; `kind` is the column's type in the client, None for its own."""

    column: ColumnName
    kind: str | None = None


@dataclass(frozen=True)
class Not:
    """The negation; null stays null."""

    operand: "Predicate"


@dataclass(frozen=True)
class And:
    operands: tuple["Predicate", ...]


@dataclass(frozen=True)
class Or:
    operands: tuple["Predicate", ...]


Predicate = Unknown | Constant | Compare | IsNull | Not | And | Or


EVERYTHING, NOTHING = Constant(True), Constant(False)


def replace_leaves(predicate: Predicate, replaced: Callable[[Predicate], Predicate]) -> Predicate:
    """Returns the predicate with other parts in place of those without operands."""
    match predicate:
        case Not(operand):
            return Not(replace_leaves(operand, replaced))
        case And(operands):
            return And(tuple(replace_leaves(operand, replaced) for operand in operands))
        case Or(operands):
            return Or(tuple(replace_leaves(operand, replaced) for operand in operands))
        case _:
            return replaced(predicate)


def operands_of(predicate: Predicate) -> tuple[Predicate, ...]:
    match predicate:
        case Not(operand):
            return (operand,)
        case And(operands) | Or(operands):
            return operands
        case _:
            return ()


def list_leaves(predicate: Predicate) -> Iterator[Predicate]:
    """The parts without operands."""
    if isinstance(predicate, Not | And | Or):
        for operand in operands_of(predicate):
            yield from list_leaves(operand)
    else:
        yield predicate


LAST_CHARACTER = chr(0x10FFFF)
SURROGATES = range(0xD800, 0xE000)


def begins_with(column: ColumnName, prefix: str, kind: str | None) -> Predicate:
    """The texts from the prefix on, before all greater texts that do not begin with it."""
    low, after = Compare(column, ">=", prefix, kind), text_after_prefix(prefix)
    return low if after is None else And((low, Compare(column, "<", after, kind)))


def text_after_prefix(prefix: str) -> str | None:
    """The first text, in byte order, that is greater than all texts that begin with the prefix."""
    kept = prefix.rstrip(LAST_CHARACTER)
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(SURROGATES.stop if following in SURROGATES else following)


def count_parts(predicate: Predicate) -> int:
    return 1 + sum(map(count_parts, operands_of(predicate)))


def all_of(predicates: Sequence[Predicate]) -> Predicate:
    return And(tuple(predicates)) if predicates else EVERYTHING


def conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    if isinstance(predicate, And):
        for operand in predicate.operands:
            yield from conjuncts(operand)
    else:
        yield predicate


def limit_parts(predicate: Predicate, max_parts: int) -> Predicate:
    """Returns the first conjuncts with at most `max_parts` parts: pruning must not cost more than it saves."""
    if count_parts(predicate) <= max_parts:
        return predicate
    kept: list[Predicate] = []
    for part in conjuncts(predicate):
        max_parts -= count_parts(part)
        if max_parts < 0:
            kept.append(Unknown("more than is evaluated"))
            break
        kept.append(part)
    return all_of(kept)


MAX_CHARS = 200


def format_predicate(predicate: Predicate) -> str:
    """The predicate in one line, cut when it is long."""
    text = _text(predicate)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 2]} …"


def _text(predicate: Predicate) -> str:
    match predicate:
        case Unknown(text):
            return text or "…"
        case Constant(value):
            return str(value).upper()
        case Compare(column, operator, value, _):
            return f"{format_column(column)} {operator} {format_value(value)}"
        case IsNull(column, _):
            return f"{format_column(column)} IS NULL"
        case Not(IsNull(column, _)):
            return f"{format_column(column)} IS NOT NULL"
        case Not(operand):
            return f"NOT ({_text(operand)})"
        case And(operands):
            return "(" + " AND ".join(map(_text, operands)) + ")"
        case Or(operands):
            return "(" + " OR ".join(map(_text, operands)) + ")"


def format_column(column: ColumnName) -> str:
    return column if isinstance(column, str) else ".".join(column)


def format_value(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime):
        return f"'{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    if isinstance(value, int | float | Decimal):
        return str(value)
    return "'" + value.replace("'", "''").encode("utf-8", "replace").decode() + "'"


Path = tuple[str, ...]
SCHEMAS_KEPT = 64


@dataclass(frozen=True)
class Column:
    """A primitive column, in a struct or not.

    `is_binary` is False for texts in a collation, whose order differs from that of bounds; `was_float` is True for
    doubles that are floats in older files.
    """

    path: Path
    type: pa.DataType
    is_binary: bool = True
    was_float: bool = False


class Columns:
    """The columns of a table by their names in predicates, case-insensitive."""

    def __init__(self, columns: Sequence[Column], others: Sequence[Path] = ()) -> None:
        self._by_path: dict[Path, Column | None] = {}
        self._by_text: dict[str, Column | None] = {}
        known: list[tuple[Path, Column | None]] = [(column.path, column) for column in columns]
        for path, column in known + [(path, None) for path in others]:
            lower = tuple(part.lower() for part in path)
            # A name of two columns is ambiguous.
            self._by_path[lower] = None if lower in self._by_path else column
            text = ".".join(lower)
            self._by_text[text] = None if text in self._by_text else column
        self._tops = {path[0] for path in self._by_path}

    def resolve(self, name: ColumnName) -> Column | None:
        """Returns the column that a predicate names; None if the name is unknown or ambiguous."""
        if isinstance(name, str):
            # A column named `a.b` takes precedence over the field b of a.
            lower = (name.lower(),)
            return self._by_path[lower] if lower in self._by_path else self._by_text.get(lower[0])
        parts = tuple(part.lower() for part in name)
        # The first parts may be the table's name: the column is certain only if a single reading is possible.
        start = next((place for place, part in enumerate(parts) if part in self._tops), None)
        if start is None or any(parts[later:] in self._by_path for later in range(start + 1, len(parts))):
            return None
        return self._by_path.get(parts[start:])


def columns_of(schema_string: str | None, schema: pa.Schema) -> Columns:
    """The columns of a table; without its schema, those with statistics in the index."""
    if schema_string is not None:
        return _of_delta(schema_string)
    columns: dict[Path, Column] = {}
    for struct in ("null_count", "min", "partition"):
        position = schema.get_field_index(struct)
        if position >= 0:
            members = _members(schema.field(position).type, ())
            columns.update((path, Column(path, kind)) for path, kind in members)
    return Columns(list(columns.values()))


@lru_cache(SCHEMAS_KEPT)
def _of_delta(schema_string: str) -> Columns:
    columns: list[Column] = []
    others: list[Path] = []
    for path, field in _primitives(parse_schema(schema_string), ()):
        kind = arrow_type(field.type) if isinstance(field.type, str) else None
        if kind is None:
            others.append(path)
        else:
            changes = field.metadata.get("delta.typeChanges")
            was_float = field.type == "double" and isinstance(changes, list) and "float" in str(changes)
            columns.append(Column(path, kind, "__COLLATIONS" not in field.metadata, was_float))
    return Columns(columns, others)


def _primitives(fields: Sequence[Field], above: Path) -> Iterator[tuple[Path, Field]]:
    for field in fields:
        path = (*above, field.name)
        if field.members is None:
            yield path, field
        else:
            yield from _primitives(field.members, path)


def _members(struct: pa.StructType, above: Path) -> Iterator[tuple[Path, pa.DataType]]:
    for member in struct:
        path = (*above, member.name)
        if pa.types.is_struct(member.type):
            yield from _members(member.type, path)
        else:
            yield path, member.type


INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
# The only text of a number: clients compare some texts with numbers as texts.
CANONICAL = re.compile(r"0|-?[1-9][0-9]{0,18}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?)?"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)
# Clients truncate constants and writers truncate statistics to milliseconds, both towards 1970.
CUT_US = 2000
# A time without a zone is in the client's unknown zone, which is less than a day from UTC.
DAY_US = 86_400_000_000
# Half the distance of two floats relative to their value: the error of a bound that is the shortest text of a float.
FLOAT_ERROR = 2.0**-23
SMALLEST_FLOAT = 2.0**-148
# Old writers end truncated upper bounds in this character, which is not the last in byte order.
OLD_LAST_CHARACTER = "\ufffd"
WIDE = Context(prec=200)


@dataclass(frozen=True)
class Range:
    """A constant as a range in the type of a column's bounds; None where an end is unknown.

    With `hides_nan` the column may have NaN, which bounds ignore and clients compare differently.
    """

    low: pa.Scalar | None
    high: pa.Scalar | None
    hides_nan: bool = False

    @property
    def is_point(self) -> bool:
        return self.low is not None and self.low == self.high


def constant_range(part: Compare, column: Column, bounds: pa.DataType, *, exact: bool) -> Range | None:
    """The constant as a range of the column's values; None if they may compare in another order.

    `bounds` is the type of the column's bounds; `exact` means that they are the values of partitions.
    """
    for is_kind, kept_as, kinds, convert in _CONVERSIONS:
        if is_kind(column.type):
            is_known = column.is_binary and kept_as(bounds) and (part.kind is None or part.kind in kinds)
            return convert(part, _Target(column, bounds, exact)) if is_known else None
    return None


def json_kind(kind: pa.DataType) -> str | None:
    return next((name for is_kind, name in _OWN if is_kind(kind)), None)


def float32(text: str) -> float:
    """The float nearest to a number; zero or infinite if the number is out of range."""
    try:
        return float(pa.scalar(text).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        number = float(text)
        return 0.0 if abs(number) < 1 else math.copysign(math.inf, number)


@dataclass(frozen=True)
class _Target:
    column: Column
    bounds: pa.DataType
    exact: bool

    def range_of(self, low: Any, high: Any) -> Range:
        return Range(pa.scalar(low, self.bounds), pa.scalar(high, self.bounds))


def _integer(part: Compare, target: _Target) -> Range | None:
    width, kind = target.column.type.bit_width, part.kind
    if kind in _WIDTHS and _WIDTHS[kind] < width:
        return None  # a cast to a narrower type may wrap around
    number = _number(part.value)
    if isinstance(part.value, str):
        number = int(part.value) if CANONICAL.fullmatch(part.value) else None
    if number is None or (kind in _WHOLE and not -_WHOLE[kind] < number < _WHOLE[kind]):
        return None
    limit = 1 << (width - 1)
    if number >= limit:
        return Range(pa.scalar(limit - 1, target.bounds), None)
    if number < -limit:
        return Range(None, pa.scalar(-limit, target.bounds))
    return target.range_of(math.floor(number), min(math.ceil(number), limit - 1))


def _float(part: Compare, target: _Target) -> Range | None:
    number = _number(part.value)
    if number is None:
        return None
    low = high = _double(number)
    if pa.types.is_float32(target.column.type) and part.kind is None:
        # Some clients compare floats with numbers in SQL as floats, some as doubles.
        rounded = float32(str(number))
        low, high = min(low, rounded), max(high, rounded)
    if target.column.was_float:
        low, high = _widen(low, -1), _widen(high, 1)
    return Range(pa.scalar(low, pa.float64()), pa.scalar(high, pa.float64()), hides_nan=not target.exact)


def _decimal(part: Compare, target: _Target) -> Range | None:
    number = _number(part.value)
    if number is None:
        return None
    near = _double(number)
    if pa.types.is_floating(target.bounds):
        # Such bounds are further apart than the rounding error.
        return target.range_of(near, near)
    if part.kind is None:
        return _decimal_range(Decimal(number), Decimal(number), target)
    # Compared as doubles, all decimals between the neighbours of a double may be equal to it.
    below, above = math.nextafter(near, -math.inf), math.nextafter(near, math.inf)
    return _decimal_range(Decimal(below), Decimal(above), target)


def _decimal_range(lowest: Decimal, highest: Decimal, target: _Target) -> Range | None:
    kind = target.bounds
    limit = Decimal(10) ** (kind.precision - kind.scale)
    if not -limit < lowest <= highest < limit:
        return None
    step = Decimal(1).scaleb(-kind.scale)
    low = lowest.quantize(step, "ROUND_FLOOR", context=WIDE)
    high = highest.quantize(step, "ROUND_CEILING", context=WIDE)
    return target.range_of(low, high) if -limit < low and high < limit else None


def _string(part: Compare, target: _Target) -> Range | None:
    value = part.value
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    text = pa.scalar(value, target.bounds)
    if not target.exact and max(value, default="") >= OLD_LAST_CHARACTER:
        return Range(None, text)
    return Range(text, text)


def _boolean(part: Compare, target: _Target) -> Range | None:
    return target.range_of(part.value, part.value) if isinstance(part.value, bool) else None


def _date(part: Compare, target: _Target) -> Range | None:
    value = date_of(part.value)
    return None if value is None else target.range_of(value, value)


def _timestamp(part: Compare, target: _Target) -> Range | None:
    is_cast_to_date = part.kind == "date"
    moment = _parse(part.value, DATE if is_cast_to_date else TIMESTAMP, datetime.fromisoformat)
    if not isinstance(moment, datetime):
        if not isinstance(moment, date):
            return None
        moment = datetime.combine(moment, time())
    if target.column.type.tz is None:
        is_certain = moment.tzinfo is None and part.kind != "timestamp"
    else:
        # The text of a partition value has no zone: each client uses its own.
        is_certain = moment.tzinfo is not None and not target.exact
    us = (moment.replace(tzinfo=moment.tzinfo or UTC) - EPOCH) // US
    slack = CUT_US if is_certain else CUT_US + DAY_US
    # A date stands for any time of that day.
    return target.range_of(us - slack, us + slack + (DAY_US if is_cast_to_date else 0))


def date_of(value: Value) -> date | None:
    """A date, or the date in a text; None for anything else."""
    parsed = _parse(value, DATE, date.fromisoformat)
    return parsed if isinstance(parsed, date) and not isinstance(parsed, datetime) else None


def _number(value: Value) -> int | float | Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return None if isinstance(value, float) and math.isnan(value) else value


def _double(number: int | float | Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(math.inf, number)


def parse_whole(text: str, bits: int) -> int | None:
    """A whole number; None if the text is not one or needs more bits."""
    number = int(text) if INTEGER.fullmatch(text) else None
    return number if number is not None and -1 << (bits - 1) <= number < 1 << (bits - 1) else None


def _widen(number: float, by: int) -> float:
    return number + by * (abs(number) * FLOAT_ERROR + SMALLEST_FLOAT)


def _parse(value: Value, form: re.Pattern[str], parse: Callable[[str], Any]) -> Any:
    """A text as a value, None if it has another form; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value) if form.fullmatch(value) else None
    except ValueError:
        return None


# A cast to a wider integer changes no value.
_WIDTHS = {"int": 32, "long": 64}
# Whole numbers below these are the same as floats and doubles.
_WHOLE = {"float": 1 << 24, "double": 1 << 53}
_Test = Callable[[pa.DataType], bool]
# For a type of columns: a test of the type of its bounds, the types it may be compared in, and the conversion.
# fmt: off
_CONVERSIONS: tuple[tuple[_Test, _Test, set[str], Callable[[Compare, _Target], Range | None]], ...] = (
    (pa.types.is_signed_integer, pa.types.is_signed_integer, {"int", "long", "float", "double"}, _integer),
    (pa.types.is_string, pa.types.is_string, {"string"}, _string),
    (pa.types.is_boolean, pa.types.is_boolean, {"bool"}, _boolean),
    (pa.types.is_date32, pa.types.is_date32, {"date"}, _date),
    (pa.types.is_timestamp, pa.types.is_timestamp, {"timestamp", "timestamp_ntz", "date"}, _timestamp),
    (pa.types.is_float32, pa.types.is_floating, {"float", "double"}, _float),
    (pa.types.is_float64, pa.types.is_floating, {"double"}, _float),
    (pa.types.is_decimal, lambda kind: pa.types.is_floating(kind) or pa.types.is_decimal(kind), {"double"}, _decimal),
)
# fmt: on
_OWN: tuple[tuple[_Test, str], ...] = (
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_date32, "date"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "timestamp"),
)
