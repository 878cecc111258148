"""Filters of Iceberg's scan requests (REST specification, "Expression"): to prune by, and to hand back.

Parts that are not understood prune nothing, and are handed back as they came: the client filters the rows itself. In
Iceberg's logic nothing is null, so whatever is the opposite of a comparison is true for rows without a value too.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa

from lakeshare_server.errors import BadRequest
from lakeshare_server.tables.iceberg.partitions import json_value, text_after_prefix
from lakeshare_server.tables.predicates import (
    EVERYTHING,
    MAX_DEPTH,
    WIDE,
    And,
    Compare,
    Comparison,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    Value,
)

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)


@dataclass(frozen=True)
class FilterConstant:
    """A constant to prune by, and as it is told."""

    value: Value
    told: Any


def parse_constant(kind: str, value: Any) -> FilterConstant | None:
    """The constant for a column of a type in Iceberg's words; None when nothing can be done with it."""
    read = _READ.get(kind.partition("(")[0])
    try:
        return None if read is None else read(kind, value)
    except (ValueError, OverflowError, InvalidOperation):
        return None


def _boolean(_kind: str, value: Any) -> FilterConstant | None:
    return FilterConstant(value, value) if isinstance(value, bool) else None


def _integer(_kind: str, value: Any) -> FilterConstant | None:
    return FilterConstant(value, value) if isinstance(value, int) and not isinstance(value, bool) else None


def _float(_kind: str, value: Any) -> FilterConstant | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return FilterConstant(float(value), float(value)) if is_number else None


def _string(_kind: str, value: Any) -> FilterConstant | None:
    return FilterConstant(value, value) if isinstance(value, str) else None


def _decimal(kind: str, said: Any) -> FilterConstant | None:
    if not isinstance(said, str | int) or isinstance(said, bool):
        return None
    value, scale = Decimal(said), int(kind.rstrip(")").rpartition(",")[2])
    told = value.quantize(Decimal(1).scaleb(-scale), context=WIDE) if value.is_finite() else None
    return FilterConstant(value, f"{told:f}") if told == value else None


def _date(_kind: str, said: Any) -> FilterConstant | None:
    text = json_value("date", said) if isinstance(said, int) and not isinstance(said, bool) else said
    if not isinstance(text, str) or not DATE.fullmatch(text):
        return None
    return FilterConstant(date.fromisoformat(text), text)


def _timestamp(kind: str, said: Any) -> FilterConstant | None:
    if isinstance(said, bool) or not isinstance(said, str | int):
        return None
    moment = EPOCH + said * US if isinstance(said, int) else _read(said)
    if moment is None:
        return None
    told = json_value(kind, (moment - EPOCH) // US)
    return FilterConstant(moment if kind == "timestamptz" else moment.replace(tzinfo=None), told)


def _read(text: str) -> datetime | None:
    if not TIMESTAMP.fullmatch(text):
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


_READ = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "string": _string,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
}


Fields = Mapping[str, Any]


@dataclass(frozen=True)
class NamedColumn:
    """A primitive column: its field id, and its type in Iceberg's words."""

    field_id: int
    type: str


class ColumnNames:
    """Names by two schemas, the table's and the snapshot's: clients differ in which of them they go by."""

    def __init__(self, table: Fields, snapshot: Fields, *, is_case_sensitive: bool) -> None:
        self._is_case_sensitive = is_case_sensitive
        self._table, self._snapshot = (self._by_name(schema) for schema in (table, snapshot))

    def column(self, name: str) -> NamedColumn | None:
        """The column of this name; None when there is none, or when the schemas do not agree which it is."""
        key = self._key(name)
        today, then = self._table.get(key), self._snapshot.get(key)
        if today is None or then is None or today.field_id != then.field_id:
            return None
        return today

    def is_of_table(self, name: str) -> bool:
        """Whether the table's own schema has the name, and no other column under it than the snapshot's has."""
        key = self._key(name)
        today = self._table.get(key)
        return today is not None and self._snapshot.get(key, today).field_id == today.field_id

    def _key(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()

    def _by_name(self, schema: Fields) -> Mapping[str, NamedColumn]:
        found: dict[str, NamedColumn] = {}
        twice = set()
        for name, column in _primitives(schema["fields"], ""):
            key = self._key(name)
            if key in found:
                twice.add(key)
            found[key] = column
        return {name: column for name, column in found.items() if name not in twice}


def _primitives(fields: Sequence[Fields], above: str) -> Iterator[tuple[str, NamedColumn]]:
    for field in fields:
        kind = field["type"]
        if isinstance(kind, str):
            # Both clients write decimals with a space, the specification does not.
            yield above + field["name"], NamedColumn(field["id"], kind.replace(" ", ""))
        elif kind.get("type") == "struct":
            yield from _primitives(kind["fields"], f"{above}{field['name']}.")


FALSE = Constant(False)
COMPARISONS: dict[str, Comparison] = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "="}
OPPOSITE = {
    "lt": "gt-eq", "gt-eq": "lt", "gt": "lt-eq", "lt-eq": "gt", "eq": "not-eq", "not-eq": "eq", "in": "not-in",
    "not-in": "in", "is-null": "not-null", "not-null": "is-null",
}  # fmt: skip
# Engines chain what users write: of deeper parts, constants are handed back as they came.
MAX_RESIDUAL_DEPTH = 300
TOO_DEEP = "It has too many levels; plan the scan in the client (scan-planning-mode)."


@dataclass(frozen=True)
class Filter:
    """A filter to prune by, whose columns are called by their field ids, and as it is told with each file."""

    predicate: Predicate
    residual: str


def parse_filter(expression: Any, names: ColumnNames, *, is_of_snapshot: bool) -> Filter:
    """The filter of a request; with `is_of_snapshot` it goes by names that the snapshot had.

    Raises:
        BadRequest: it is no expression at all, or has too many levels.
    """
    if expression is None:
        return Filter(EVERYTHING, "true")
    if not isinstance(expression, bool | dict):
        raise BadRequest("filter", expression, "Give an expression: an object with a type, or true or false.")
    reading = _Reading(names)
    try:
        predicate = reading.predicate(expression, MAX_DEPTH, is_negated=False)
        residual = json.dumps(reading.told(expression, MAX_RESIDUAL_DEPTH), separators=(",", ":"))
    except RecursionError as error:
        raise BadRequest("filter", "…", TOO_DEEP) from error
    # Java binds what it gets back to the table's own columns, by whose names this one is not to be read.
    return Filter(predicate, residual if reading.is_of_table or not is_of_snapshot else "true")


class _Reading:
    """One filter being read."""

    def __init__(self, names: ColumnNames) -> None:
        self._names = names
        self.is_of_table = True

    def predicate(self, node: Any, depth: int, *, is_negated: bool) -> Predicate:
        if depth == 0:
            return Unknown("a part of a part of …")
        known = _truth(node)
        if known is not None:
            return Constant(known != is_negated)
        kind = node.get("type") if isinstance(node, dict) else None
        if kind == "not":
            return self.predicate(node.get("child"), depth - 1, is_negated=not is_negated)
        if kind in ("and", "or"):
            parts = (
                self.predicate(node.get("left"), depth - 1, is_negated=is_negated),
                self.predicate(node.get("right"), depth - 1, is_negated=is_negated),
            )
            return And(parts) if (kind == "and") != is_negated else Or(parts)
        return self._leaf(node, str(kind), is_negated=is_negated)

    def _leaf(self, node: Any, kind: str, *, is_negated: bool) -> Predicate:
        column = self._column(node)
        if column is None:
            return Unknown(kind)
        is_opposite = is_negated and kind in OPPOSITE
        if is_negated and not is_opposite:
            return Unknown(f"not {kind}")
        read = _LEAVES.get(OPPOSITE[kind] if is_opposite else kind)
        if read is None:
            return Unknown(kind)
        found = read(column, _literals(column.type, node), OPPOSITE[kind] if is_opposite else kind)
        # The opposite of a comparison is true for nulls and, in some clients, for NaN.
        if is_negated and kind in COMPARISONS:
            return Unknown(f"not {kind}") if column.type in ("float", "double") else _or_null(column, found)
        return found

    def _column(self, node: Any) -> NamedColumn | None:
        name = _name(node.get("term")) if isinstance(node, dict) else None
        return None if name is None else self._names.column(name)

    def told(self, node: Any, depth: int) -> Any:
        """The same with its constants as every client reads them."""
        if depth == 0 or not isinstance(node, dict):
            return node
        inner = {
            name: self.told(node[name], depth - 1) for name in ("left", "right", "child") if name in node
        }
        name = _name(node.get("term")) or _transformed(node.get("term"))
        if name is not None and not self._names.is_of_table(name):
            self.is_of_table = False
        return {**node, **inner, **self._told_literals(node)}

    def _told_literals(self, node: Mapping[str, Any]) -> dict[str, Any]:
        kind = self._type(node.get("term"))
        if kind is None:
            return {}
        found: dict[str, Any] = {}
        if "value" in node:
            found["value"] = _residual_literal(kind, node["value"])
        if isinstance(node.get("values"), list):
            found["values"] = [_residual_literal(kind, value) for value in node["values"]]
        return found

    def _type(self, term: Any) -> str | None:
        """The type of what is compared; None where it is not known."""
        name = _name(term)
        if name is not None:
            column = self._names.column(name)
            return None if column is None else column.type
        name = _transformed(term)
        column = None if name is None else self._names.column(name)
        transform = str(term.get("transform")) if column is not None else ""
        if transform == "day":
            return "date"
        return column.type if column is not None and transform.startswith(("truncate[", "identity")) else None


def _truth(node: Any) -> bool | None:
    if isinstance(node, bool):
        return node
    kind = node.get("type") if isinstance(node, dict) else None
    if kind in ("true", "false"):
        return bool(kind == "true")
    value = node.get("value") if kind == "literal" else None
    return value if isinstance(value, bool) else None


def _name(term: Any) -> str | None:
    if isinstance(term, dict) and term.get("type") == "reference":
        term = term.get("term")
    return term if isinstance(term, str) else None


def _transformed(term: Any) -> str | None:
    return _name(term.get("term")) if isinstance(term, dict) and term.get("type") == "transform" else None


def _residual_literal(kind: str, value: Any) -> Any:
    read = parse_constant(kind, value)
    return value if read is None else read.told


def _literals(kind: str, node: Mapping[str, Any]) -> list[FilterConstant] | None:
    """The constants of a leaf; None when one of them is not understood."""
    values = node.get("values") if "values" in node else [node["value"]] if "value" in node else []
    read = [parse_constant(kind, value) for value in values] if isinstance(values, list) else [None]
    found = [one for one in read if one is not None]
    return found if len(found) == len(read) else None


def _or_null(column: NamedColumn, predicate: Predicate) -> Predicate:
    return Or((IsNull(str(column.field_id)), predicate))


def _compare(column: NamedColumn, operator: Comparison, literal: FilterConstant) -> Predicate:
    return Compare(str(column.field_id), operator, literal.value, None)


def _comparison(column: NamedColumn, literals: list[FilterConstant] | None, kind: str) -> Predicate:
    if literals is None or len(literals) != 1:
        return Unknown(kind)
    return _compare(column, COMPARISONS[kind], literals[0])


def _in(column: NamedColumn, literals: list[FilterConstant] | None, kind: str) -> Predicate:
    if literals is None:
        return Unknown(kind)
    return Or(tuple(_compare(column, "=", literal) for literal in literals)) if literals else FALSE


def _not_in(column: NamedColumn, literals: list[FilterConstant] | None, kind: str) -> Predicate:
    if literals is None:
        return Unknown(kind)
    return _or_null(column, And(tuple(Not(_compare(column, "=", literal)) for literal in literals)))


def _starts_with(column: NamedColumn, literals: list[FilterConstant] | None, kind: str) -> Predicate:
    if literals is None or len(literals) != 1 or not isinstance(literals[0].value, str):
        return Unknown(kind)
    prefix, end = literals[0].value, text_after_prefix(literals[0].value)
    least = _compare(column, ">=", literals[0])
    return (
        least if end is None or not prefix else And((least, _compare(column, "<", FilterConstant(end, end))))
    )


def _is_null(column: NamedColumn, _literals: Sequence[FilterConstant] | None, _kind: str) -> Predicate:
    return IsNull(str(column.field_id))


def _not_null(column: NamedColumn, _literals: Sequence[FilterConstant] | None, _kind: str) -> Predicate:
    return Not(IsNull(str(column.field_id)))


_Leaf = Callable[[NamedColumn, list[FilterConstant] | None, str], Predicate]
_LEAVES: dict[str, _Leaf] = {
    **dict.fromkeys(COMPARISONS, _comparison),
    "in": _in,
    "not-in": _not_in,
    "not-eq": _not_in,
    "starts-with": _starts_with,
    "is-null": _is_null,
    "not-null": _not_null,
}


COUNTS = {"null-value-counts": "null_counts", "nan-value-counts": "nan_counts"}
BOUNDS = {"lower-bounds": "lower", "upper-bounds": "upper"}


@dataclass(frozen=True)
class Statistics:
    """The columns of which statistics are asked for, by field id."""

    field_ids: Sequence[int]

    @classmethod
    def of(cls, columns: Iterable[NamedColumn | None]) -> "Statistics":
        """Those that are known."""
        return cls(sorted({column.field_id for column in columns if column is not None}))

    def added(self, files: pa.RecordBatch) -> list[str]:
        """The data files as JSON objects, with these statistics."""
        texts: list[str] = files.column("data_file").to_pylist()
        if not self.field_ids:
            return texts
        columns = self._told(files)
        return [text[:-1] + "," + statistics[1:] for text, statistics in zip(texts, columns, strict=True)]

    def _told(self, files: pa.RecordBatch) -> list[str]:
        rows = files.column("rows").to_pylist()
        # Each row has one value of such a column, null or not.
        maps = [("value-counts", dict.fromkeys(self.field_ids, rows))]
        for name, kept in (*COUNTS.items(), *BOUNDS.items()):
            maps.append((name, self._columns(files, kept, is_bound=name in BOUNDS)))
        return [
            orjson.dumps({name: _map(columns, place) for name, columns in maps}).decode()
            for place in range(files.num_rows)
        ]

    def _columns(self, files: pa.RecordBatch, kept: str, *, is_bound: bool) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for field_id in self.field_ids:
            if f"{kept}:{field_id}" in files.schema.names:
                values = files.column(f"{kept}:{field_id}").to_pylist()
                found[field_id] = [_hex(value) for value in values] if is_bound else values
        return found


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex().upper()


def _map(columns: dict[int, list[Any]], place: int) -> dict[str, list[Any]]:
    known = [(field_id, values[place]) for field_id, values in columns.items() if values[place] is not None]
    return {"keys": [key for key, _ in known], "values": [value for _, value in known]}
