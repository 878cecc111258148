"""`jsonPredicateHints`: the predicate tree as clients send it.

Best effort by the protocol's own word: what cannot be understood is Unknown, never an error.
"""

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any

from lakeshare_server.tables.predicate import (
    MAX_DEPTH,
    MIRRORED,
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

MAX_CHARS = 1_048_576
COMPARISONS: dict[str, Comparison] = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
VALUE_TYPES = frozenset({"bool", "int", "long", "string", "date", "float", "double", "timestamp"})


def parse_json_predicate(text: str) -> Predicate:
    """The predicate of a `jsonPredicateHints` value."""
    if len(text) > MAX_CHARS:
        return Unknown()
    try:
        return _node(json.loads(text), MAX_DEPTH)
    except (ValueError, RecursionError):
        return Unknown()


def _node(node: Any, depth: int) -> Predicate:
    if depth == 0 or not isinstance(node, dict) or not isinstance(node.get("op"), str):
        return Unknown()
    operation = node["op"]
    if operation in COMPARISONS:
        return _comparison(COMPARISONS[operation], node.get("children"))
    read = _OPERATIONS.get(operation)
    return Unknown() if read is None else read(node, depth)


def _children(node: dict[str, Any], depth: int) -> tuple[Predicate, ...] | None:
    children = node.get("children")
    if not isinstance(children, list) or not children:
        return None
    return tuple(_node(child, depth - 1) for child in children)


def _and(node: dict[str, Any], depth: int) -> Predicate:
    operands = _children(node, depth)
    return Unknown() if operands is None else And(operands)


def _or(node: dict[str, Any], depth: int) -> Predicate:
    operands = _children(node, depth)
    return Unknown() if operands is None else Or(operands)


def _not(node: dict[str, Any], depth: int) -> Predicate:
    operands = _children(node, depth)
    return Unknown() if operands is None or len(operands) != 1 else Not(operands[0])


def _is_null(node: dict[str, Any], _depth: int) -> Predicate:
    children = node.get("children")
    if not isinstance(children, list) or len(children) != 1:
        return Unknown()
    if _is_literal(children[0]):
        return Unknown() if _literal(children[0]) is None else Constant(False)
    column = _column(children[0])
    return Unknown() if column is None else IsNull(column, _value_type(children[0]))


def _literal_node(node: dict[str, Any], _depth: int) -> Predicate:
    value = _literal(node)
    return Constant(value) if isinstance(value, bool) else Unknown()


def _column_node(node: dict[str, Any], _depth: int) -> Predicate:
    column = _column(node)
    if column is None or node.get("valueType") != "bool":
        return Unknown()
    return Compare(column, "=", True, "bool")


_OPERATIONS: dict[str, Callable[[dict[str, Any], int], Predicate]] = {
    "and": _and,
    "or": _or,
    "not": _not,
    "isNull": _is_null,
    "literal": _literal_node,
    "column": _column_node,
}


def _comparison(operator: Comparison, children: Any) -> Predicate:
    if not isinstance(children, list) or len(children) != 2:
        return Unknown()
    return (
        _column_and_literal(operator, children)
        or _column_and_literal(MIRRORED[operator], children[::-1])
        or Unknown()
    )


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
    return kind if isinstance(kind, str) and kind in VALUE_TYPES else None


def _is_literal(node: Any) -> bool:
    return isinstance(node, dict) and node.get("op") == "literal"


def _literal(node: Any) -> Value | None:
    if not _is_literal(node) or not isinstance(node.get("value"), str):
        return None
    read = _VALUES.get(_value_type(node) or "")
    try:
        return None if read is None else read(node["value"])
    except ValueError:
        return None


def _bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _date(text: str) -> date | None:
    return date.fromisoformat(text) if len(text) == 10 else None


# Floats are left out: NaN makes their bounds useless for most comparisons.
_VALUES: dict[str, Callable[[str], Value | None]] = {
    "bool": _bool,
    "int": int,
    "long": int,
    "string": str,
    "date": _date,
    "timestamp": datetime.fromisoformat,
}
