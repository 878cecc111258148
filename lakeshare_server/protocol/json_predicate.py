"""Parses `jsonPredicateHints`, a predicate tree (protocol §1.14).

Hints are best effort by the protocol: a part that cannot be parsed becomes Unknown, never an error.
"""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any

from lakeshare_server.tables.predicates import (
    DATE,
    INTEGER,
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
MAX_SHOWN_CHARS = 200
COMPARISONS: dict[str, Comparison] = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
# As Java writes times; Python's parser accepts more.
INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
NON_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def parse_json_predicate(text: str) -> Predicate:
    if len(text) > MAX_CHARS:
        return Unknown(f"a predicate of more than {MAX_CHARS} characters")
    try:
        return _parse(json.loads(text), MAX_DEPTH)
    except (ValueError, RecursionError):
        return Unknown(text[:MAX_SHOWN_CHARS])


def parse_whole(text: str, bits: int) -> int | None:
    """A whole number; None if the text is not one or needs more bits."""
    number = int(text) if INTEGER.fullmatch(text) else None
    return number if number is not None and -1 << (bits - 1) <= number < 1 << (bits - 1) else None


def _parse(node: Any, depth: int) -> Predicate:
    operation = node.get("op") if isinstance(node, dict) else None
    if not isinstance(operation, str):
        return Unknown("a node without an operation")
    children = node.get("children")
    parsed = None if depth == 0 else _parse_operation(operation, node, children, depth)
    if parsed is not None:
        return parsed
    # Short, because the whole node may be nested too deep to print.
    leaves = [leaf for leaf in children if isinstance(leaf, dict)] if isinstance(children, list) else [node]
    names = [str(leaf.get("name", leaf.get("value", leaf.get("op")))) for leaf in leaves]
    return Unknown(f"{operation}({', '.join(names)})"[:MAX_SHOWN_CHARS])


def _parse_operation(operation: str, node: dict[str, Any], children: Any, depth: int) -> Predicate | None:
    if operation == "literal":
        value = _literal(node)
        return Constant(value) if isinstance(value, bool) else None
    if operation == "column":
        column = _column(node) if node.get("valueType") == "bool" else None
        return None if column is None else Compare(column, "=", True, "bool")
    if not isinstance(children, list) or not children:
        return None
    if operation in ("and", "or"):
        operands = tuple(_parse(child, depth - 1) for child in children)
        return And(operands) if operation == "and" else Or(operands)
    if operation == "not" and len(children) == 1:
        return Not(_parse(children[0], depth - 1))
    if operation == "isNull" and len(children) == 1:
        return _is_null(children[0])
    if operation in COMPARISONS and len(children) == 2 and not _is_collated(node):
        operator = COMPARISONS[operation]
        return _compare(operator, children) or _compare(MIRRORED[operator], children[::-1])
    return None


def _is_collated(node: dict[str, Any]) -> bool:
    """Whether texts compare by a collation, which Spark sends as the comparison's context."""
    context = node.get("exprCtx")
    return context is not None and context != {} and context != {"collationIdentifier": None}


def _is_null(child: Any) -> Predicate | None:
    if _is_literal(child):
        # Spark writes a null of type string as the text "null", so this may be a null.
        return None if _literal(child) in (None, "null") else Constant(False)
    column = _column(child)
    return None if column is None else IsNull(column, _value_type(child))


def _compare(operator: Comparison, children: Sequence[Any]) -> Predicate | None:
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
    return kind if isinstance(kind, str) and kind in _PARSERS else None


def _is_literal(node: Any) -> bool:
    return isinstance(node, dict) and node.get("op") == "literal"


def _literal(node: Any) -> Value | None:
    kind = _value_type(node) if _is_literal(node) else None
    if kind is None or not isinstance(node.get("value"), str):
        return None
    try:
        return _PARSERS[kind](node["value"])
    except ValueError:
        return None


_PARSERS: dict[str, Callable[[str], Value | None]] = {
    "bool": lambda text: {"true": True, "false": False}.get(text.lower()),
    "int": partial(parse_whole, bits=32),
    "long": partial(parse_whole, bits=64),
    "string": str,
    "date": lambda text: date.fromisoformat(text) if DATE.fullmatch(text) else None,
    "float": lambda text: float32(text) if NUMBER.fullmatch(text) else NON_FINITE.get(text),
    "double": lambda text: float(text) if NUMBER.fullmatch(text) else NON_FINITE.get(text),
    "timestamp": lambda text: datetime.fromisoformat(text) if INSTANT.fullmatch(text) else None,
}
