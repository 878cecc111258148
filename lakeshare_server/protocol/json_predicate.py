"""`jsonPredicateHints`: the predicate tree as clients send it (protocol §1.14).

Best effort by the protocol's own word: what cannot be understood is Unknown, part by part, never an error.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

from lakeshare_server.tables.predicates import (
    MAX_DEPTH,
    MIRRORED,
    NUMBER,
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
    float32,
)

MAX_CHARS = 1_048_576
TEXT_SHOWN = 200
COMPARISONS: dict[str, Comparison] = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
# What Java writes: Python reads more than that as numbers and times, which would be a guess.
INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def parse_json_predicate(text: str) -> Predicate:
    """The predicate of a `jsonPredicateHints` value."""
    if len(text) > MAX_CHARS:
        return Unknown(f"a predicate of more than {MAX_CHARS} characters")
    try:
        return _node(json.loads(text), MAX_DEPTH)
    except (ValueError, RecursionError):
        return Unknown(text[:TEXT_SHOWN])


def _node(node: Any, depth: int) -> Predicate:
    if depth == 0 or not isinstance(node, dict) or not isinstance(node.get("op"), str):
        return _unknown(node)
    operation = node["op"]
    if operation in COMPARISONS:
        found = None if _is_collated(node) else _comparison(COMPARISONS[operation], node.get("children"))
        return found or _unknown(node)
    read = _OPERATIONS.get(operation)
    return (read and read(node, depth)) or _unknown(node)


def _unknown(node: Any) -> Unknown:
    """What was not understood, short: the whole of it may be deeper than can be written down."""
    operation = node.get("op") if isinstance(node, dict) else None
    if not isinstance(operation, str):
        return Unknown("a node without an operation")
    children = node.get("children")
    leaves = (
        [child for child in children if isinstance(child, dict)] if isinstance(children, list) else [node]
    )
    said = [str(leaf.get("name", leaf.get("value", leaf.get("op")))) for leaf in leaves]
    return Unknown(f"{operation}({', '.join(said)})"[:TEXT_SHOWN])


def _is_collated(node: dict[str, Any]) -> bool:
    """Whether texts compare in an order of their own: Spark tells a collation as the comparison's context."""
    context = node.get("exprCtx")
    return context is not None and context != {} and context != {"collationIdentifier": None}


def _children(node: dict[str, Any], depth: int) -> tuple[Predicate, ...] | None:
    children = node.get("children")
    if not isinstance(children, list) or not children:
        return None
    return tuple(_node(child, depth - 1) for child in children)


def _and(node: dict[str, Any], depth: int) -> Predicate | None:
    operands = _children(node, depth)
    return None if operands is None else And(operands)


def _or(node: dict[str, Any], depth: int) -> Predicate | None:
    operands = _children(node, depth)
    return None if operands is None else Or(operands)


def _not(node: dict[str, Any], depth: int) -> Predicate | None:
    operands = _children(node, depth)
    return None if operands is None or len(operands) != 1 else Not(operands[0])


def _is_null(node: dict[str, Any], _depth: int) -> Predicate | None:
    children = node.get("children")
    if not isinstance(children, list) or len(children) != 1:
        return None
    if _is_literal(children[0]):
        # Spark writes a null of type string as the text "null": it may be one.
        return None if _literal(children[0]) in (None, "null") else Constant(False)
    column = _column(children[0])
    return None if column is None else IsNull(column, _value_type(children[0]))


def _literal_node(node: dict[str, Any], _depth: int) -> Predicate | None:
    value = _literal(node)
    return Constant(value) if isinstance(value, bool) else None


def _column_node(node: dict[str, Any], _depth: int) -> Predicate | None:
    column = _column(node)
    if column is None or node.get("valueType") != "bool":
        return None
    return Compare(column, "=", True, "bool")


_OPERATIONS: dict[str, Callable[[dict[str, Any], int], Predicate | None]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "isNull": _is_null,
    "literal": _literal_node,
    "column": _column_node,
}


def _comparison(operator: Comparison, children: Any) -> Predicate | None:
    if not isinstance(children, list) or len(children) != 2:
        return None
    return _column_and_literal(operator, children) or _column_and_literal(MIRRORED[operator], children[::-1])


def _column_and_literal(operator: Comparison, children: Sequence[Any]) -> Predicate | None:
    column, value = _column(children[0]), _literal(children[1])
    if column is None or value is None or children[0].get("valueType") != children[1].get("valueType"):
        return None
    return Compare(column, operator, value, children[1]["valueType"])


def _column(node: Any) -> str | None:
    if not isinstance(node, dict) or node.get("op") != "column" or _value_type(node) is None:
        return None
    name = node.get("name")
    return name if isinstance(name, str) else None


def _value_type(node: dict[str, Any]) -> str | None:
    kind = node.get("valueType")
    return kind if isinstance(kind, str) and kind in _VALUES else None


def _is_literal(node: Any) -> bool:
    return isinstance(node, dict) and node.get("op") == "literal"


def _literal(node: Any) -> Value | None:
    kind = _value_type(node) if _is_literal(node) else None
    if kind is None or not isinstance(node.get("value"), str):
        return None
    try:
        return _VALUES[kind](node["value"])
    except ValueError:
        return None


def _bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _int(text: str) -> int | None:
    return _within(text, 32)


def _long(text: str) -> int | None:
    return _within(text, 64)


def _within(text: str, bits: int) -> int | None:
    number = int(text) if INTEGER.fullmatch(text) else None
    return number if number is not None and -1 << (bits - 1) <= number < 1 << (bits - 1) else None


def _float(text: str) -> float | None:
    return float32(text) if NUMBER.fullmatch(text) else NO_NUMBERS.get(text)


def _double(text: str) -> float | None:
    return float(text) if NUMBER.fullmatch(text) else NO_NUMBERS.get(text)


def _date(text: str) -> date | None:
    return date.fromisoformat(text) if DATE.fullmatch(text) else None


def _timestamp(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if INSTANT.fullmatch(text) else None


_VALUES: dict[str, Callable[[str], Value | None]] = {
    "bool": _bool,
    "int": _int,
    "long": _long,
    "string": str,
    "date": _date,
    "float": _float,
    "double": _double,
    "timestamp": _timestamp,
}
