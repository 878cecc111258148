"""Filters of Iceberg's scan requests (REST specification, "Expression"), for pruning and as residual filters.

A part that cannot be parsed prunes nothing and is returned unchanged: the client filters the rows itself. Iceberg has
no null results, so the opposite of a comparison is also true for rows without a value.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson
import pyarrow as pa

from lakeshare_server.errors import BadRequest
from lakeshare_server.iceberg_rest.metadata import Fields, walk_fields
from lakeshare_server.tables.iceberg.partitions import json_value
from lakeshare_server.tables.predicates import (
    DATE,
    EPOCH,
    EVERYTHING,
    MAX_DEPTH,
    NOTHING,
    US,
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
    begins_with,
)

TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


@dataclass(frozen=True)
class FilterConstant:
    """A constant for pruning, and its JSON in residual filters."""

    value: Value
    json: Any


SAME_IN_JSON: dict[str, Any] = {"boolean": bool, "int": int, "long": int, "string": str}


def parse_constant(kind: str, value: Any) -> FilterConstant | None:
    same = SAME_IN_JSON.get(kind)
    if same is not None:
        # No subclasses: booleans are integers to Python.
        return FilterConstant(value, value) if type(value) is same else None
    parse = _PARSERS.get(kind.partition("(")[0])
    try:
        return None if parse is None else parse(kind, value)
    except (ValueError, OverflowError, InvalidOperation):
        return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _float(_kind: str, given: Any) -> FilterConstant | None:
    is_number = isinstance(given, float) or _is_integer(given)
    return FilterConstant(float(given), float(given)) if is_number else None


def _decimal(kind: str, given: Any) -> FilterConstant | None:
    if not isinstance(given, str | int) or isinstance(given, bool):
        return None
    value, scale = Decimal(given), int(kind.rstrip(")").rpartition(",")[2])
    scaled = value.quantize(Decimal(1).scaleb(-scale), context=WIDE) if value.is_finite() else None
    return FilterConstant(value, f"{scaled:f}") if scaled == value else None


def _date(_kind: str, given: Any) -> FilterConstant | None:
    text = json_value("date", given) if _is_integer(given) else given
    if not isinstance(text, str) or not DATE.fullmatch(text):
        return None
    return FilterConstant(date.fromisoformat(text), text)


def _timestamp(kind: str, given: Any) -> FilterConstant | None:
    if _is_integer(given):
        moment = EPOCH + given * US
    elif isinstance(given, str) and TIMESTAMP.fullmatch(given):
        parsed = datetime.fromisoformat(given)
        moment = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
    else:
        return None
    text = json_value(kind, (moment - EPOCH) // US)
    return FilterConstant(moment if kind == "timestamptz" else moment.replace(tzinfo=None), text)


_PARSERS: dict[str, Callable[[str, Any], FilterConstant | None]] = {
    "float": _float,
    "double": _float,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
}


@dataclass(frozen=True)
class NamedColumn:
    field_id: int
    type: str


class ColumnNames:
    """Column names in the table's schema and in the snapshot's: clients use either."""

    def __init__(self, table: Fields, snapshot: Fields, *, is_case_sensitive: bool) -> None:
        self._is_case_sensitive = is_case_sensitive
        self._table, self._snapshot = (self._by_name(schema) for schema in (table, snapshot))

    def column(self, name: str) -> NamedColumn | None:
        """The column of this name; None if it is unknown, or another column in each schema."""
        key = self._key(name)
        current, then = self._table.get(key), self._snapshot.get(key)
        if current is None or then is None or current.field_id != then.field_id:
            return None
        return current

    def is_of_table(self, name: str) -> bool:
        key = self._key(name)
        current = self._table.get(key)
        return current is not None and self._snapshot.get(key, current).field_id == current.field_id

    def _key(self, name: str) -> str:
        return name if self._is_case_sensitive else name.lower()

    def _by_name(self, schema: Fields) -> Mapping[str, NamedColumn]:
        columns: dict[str, NamedColumn] = {}
        ambiguous = set()
        for name, field in walk_fields(schema["fields"]):
            key, kind = self._key(name), field["type"]
            if not isinstance(kind, str):
                continue
            if key in columns:
                ambiguous.add(key)
            # Java and PyIceberg write decimals with a space, the specification does not.
            columns[key] = NamedColumn(field["id"], kind.replace(" ", ""))
        return {name: column for name, column in columns.items() if name not in ambiguous}


COMPARISONS: dict[str, Comparison] = {"lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">=", "eq": "="}
OPPOSITE = {
    "lt": "gt-eq", "gt-eq": "lt", "gt": "lt-eq", "lt-eq": "gt", "eq": "not-eq", "not-eq": "eq", "in": "not-in",
    "not-in": "in", "is-null": "not-null", "not-null": "is-null",
}  # fmt: skip
# Constants of deeper parts are returned unchanged.
MAX_RESIDUAL_DEPTH = 300
TOO_DEEP = "It has too many levels; plan the scan in the client (scan-planning-mode)."


@dataclass(frozen=True)
class Filter:
    predicate: Predicate
    residual: str


def parse_filter(expression: Any, names: ColumnNames, *, is_of_snapshot: bool) -> Filter:
    """A request's filter; with `is_of_snapshot` in the snapshot's column names. Raises BadRequest."""
    if expression is None:
        return Filter(EVERYTHING, "true")
    if not isinstance(expression, bool | dict):
        raise BadRequest("filter", expression, "Give an expression: an object with a type, or true or false.")
    parser = _FilterParser(names)
    try:
        predicate = parser.predicate(expression, MAX_DEPTH, is_negated=False)
        residual = json.dumps(parser.residual(expression, MAX_RESIDUAL_DEPTH), separators=(",", ":"))
    except RecursionError as error:
        raise BadRequest("filter", "…", TOO_DEEP) from error
    # Java binds the residual to the table's own columns, which must not happen with the snapshot's names.
    return Filter(predicate, residual if parser.is_of_table or not is_of_snapshot else "true")


class _FilterParser:
    def __init__(self, names: ColumnNames) -> None:
        self._names = names
        self.is_of_table = True

    def predicate(self, node: Any, depth: int, *, is_negated: bool) -> Predicate:
        if depth == 0:
            return Unknown("a part of a part of …")
        truth = _truth(node)
        if truth is not None:
            return Constant(truth != is_negated)
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
        name = _name(node.get("term")) if isinstance(node, dict) else None
        column = None if name is None else self._names.column(name)
        if column is None:
            return Unknown(kind)
        if not is_negated:
            return _leaf_predicate(column, kind, _literals(column.type, node))
        # The opposite of a comparison is true for nulls and, in some clients, for NaN.
        if kind not in OPPOSITE or (kind in COMPARISONS and column.type in ("float", "double")):
            return Unknown(f"not {kind}")
        opposite = _leaf_predicate(column, OPPOSITE[kind], _literals(column.type, node))
        return Or((IsNull(str(column.field_id)), opposite)) if kind in COMPARISONS else opposite

    def residual(self, node: Any, depth: int) -> Any:
        if depth == 0 or not isinstance(node, dict):
            return node
        children = {
            name: self.residual(node[name], depth - 1) for name in ("left", "right", "child") if name in node
        }
        name = _name(node.get("term")) or _transformed(node.get("term"))
        if name is not None and not self._names.is_of_table(name):
            self.is_of_table = False
        kind = self._type(node.get("term"))
        literals: dict[str, Any] = {}
        if kind is not None and "value" in node:
            literals["value"] = _residual_literal(kind, node["value"])
        if kind is not None and isinstance(node.get("values"), list):
            literals["values"] = [_residual_literal(kind, value) for value in node["values"]]
        return {**node, **children, **literals}

    def _type(self, term: Any) -> str | None:
        name = _name(term)
        source = name if name is not None else _transformed(term)
        column = None if source is None else self._names.column(source)
        if column is None or name is not None:
            return None if column is None else column.type
        transform = str(term.get("transform"))
        if transform == "day":
            return "date"
        return column.type if transform.startswith(("truncate[", "identity")) else None


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
    constant = parse_constant(kind, value)
    return value if constant is None else constant.json


def _literals(kind: str, node: Mapping[str, Any]) -> list[FilterConstant] | None:
    values = node.get("values") if "values" in node else [node["value"]] if "value" in node else []
    parsed = [parse_constant(kind, value) for value in values] if isinstance(values, list) else [None]
    constants = [constant for constant in parsed if constant is not None]
    return constants if len(constants) == len(parsed) else None


def _leaf_predicate(column: NamedColumn, kind: str, literals: list[FilterConstant] | None) -> Predicate:
    name = str(column.field_id)
    if kind in ("is-null", "not-null"):
        return IsNull(name) if kind == "is-null" else Not(IsNull(name))
    if literals is None:
        return Unknown(kind)
    equals = tuple(Compare(name, "=", literal.value, None) for literal in literals)
    if kind == "in":
        return Or(equals) if equals else NOTHING
    if kind in ("not-in", "not-eq"):
        return Or((IsNull(name), And(tuple(Not(equal) for equal in equals))))
    value = literals[0].value if len(literals) == 1 else None
    if value is not None and kind in COMPARISONS:
        return Compare(name, COMPARISONS[kind], value, None)
    if kind == "starts-with" and isinstance(value, str):
        return begins_with(name, value, None)
    return Unknown(kind)


COUNTS = {"null-value-counts": "null_counts", "nan-value-counts": "nan_counts"}
BOUNDS = {"lower-bounds": "lower", "upper-bounds": "upper"}


def add_statistics(files: pa.RecordBatch, field_ids: Sequence[int]) -> list[str]:
    """The data files as JSON, with the statistics of these columns."""
    texts: list[str] = files.column("data_file").to_pylist()
    if not field_ids:
        return texts
    # Each row has one value of such a column, null or not.
    maps = {"value-counts": dict.fromkeys(field_ids, files.column("rows").to_pylist())}
    for name, column in (COUNTS | BOUNDS).items():
        maps[name] = {
            field_id: files.column(f"{column}:{field_id}").to_pylist()
            for field_id in field_ids
            if f"{column}:{field_id}" in files.schema.names
        }
    return [
        f"{text[:-1]},{orjson.dumps({name: _map(maps[name], row) for name in maps}).decode()[1:]}"
        for row, text in enumerate(texts)
    ]


def _map(columns: dict[int, list[Any]], row: int) -> dict[str, list[Any]]:
    known = {field_id: values[row] for field_id, values in columns.items() if values[row] is not None}
    values = [value.hex().upper() if isinstance(value, bytes) else value for value in known.values()]
    return {"keys": list(known), "values": values}
