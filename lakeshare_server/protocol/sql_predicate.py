"""`predicateHints`: comparisons in SQL, joined by AND; Spark's connector sends its own SQL text here.

Best effort by the protocol's own word: what cannot be understood is Unknown, never an error.
"""

import logging
from collections.abc import Callable, Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

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
    all_of,
)

MAX_CHARS = 100_000
COMPARISONS: dict[type[exp.Expr], Comparison] = {
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
# sqlglot warns about syntax it does not know; recipients' hints are not worth a line in our log.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)


def parse_sql_predicates(texts: Sequence[str]) -> Predicate:
    """All of the hints together."""
    return all_of([_parse(text) for text in texts])


def _parse(text: str) -> Predicate:
    if len(text) > MAX_CHARS:
        return Unknown()
    try:
        return _predicate(sqlglot.parse_one(text, dialect="spark"), MAX_DEPTH)
    except (SqlglotError, RecursionError, ValueError):
        return Unknown()


def _predicate(node: exp.Expr, depth: int) -> Predicate:
    read = _READERS.get(type(node))
    return Unknown() if read is None or depth == 0 else read(node, depth)


def _paren(node: exp.Expr, depth: int) -> Predicate:
    return _predicate(node.this, depth - 1)


def _and(node: exp.Expr, depth: int) -> Predicate:
    return And(_operands(node, depth))


def _or(node: exp.Expr, depth: int) -> Predicate:
    return Or(_operands(node, depth))


def _operands(node: exp.Expr, depth: int) -> tuple[Predicate, ...]:
    """A chain of one operator, which the parser nests as deep as it is long, side by side."""
    return tuple(_predicate(operand, depth - 1) for operand in node.flatten(unnest=False))


def _not(node: exp.Expr, depth: int) -> Predicate:
    return Not(_predicate(node.this, depth - 1))


def _compare(node: exp.Expr, _depth: int) -> Predicate:
    return _comparison(COMPARISONS[type(node)], node.this, node.expression)


def _not_equal(node: exp.Expr, _depth: int) -> Predicate:
    return Not(_comparison("=", node.this, node.expression))


def _is(node: exp.Expr, _depth: int) -> Predicate:
    column = _column(node.this)
    if column is not None and isinstance(node.expression, exp.Null):
        return IsNull(column)
    return Unknown()


def _in(node: exp.Expr, _depth: int) -> Predicate:
    options = node.args.get("expressions")
    if not options or node.args.get("query") is not None:
        return Unknown()
    return Or(tuple(_comparison("=", node.this, option) for option in options))


def _between(node: exp.Expr, _depth: int) -> Predicate:
    if node.args.get("symmetric"):
        return Unknown()
    low = _comparison(">=", node.this, node.args["low"])
    return And((low, _comparison("<=", node.this, node.args["high"])))


def _boolean(node: exp.Expr, _depth: int) -> Predicate:
    return Constant(bool(node.this))


_READERS: dict[type[exp.Expr], Callable[[exp.Expr, int], Predicate]] = {
    exp.Paren: _paren,
    exp.And: _and,
    exp.Or: _or,
    exp.Not: _not,
    exp.NEQ: _not_equal,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Boolean: _boolean,
    **dict.fromkeys(COMPARISONS, _compare),
}


def _comparison(operator: Comparison, left: exp.Expr, right: exp.Expr) -> Predicate:
    column, value = _column(left), _value(right)
    if column is None:
        column, value, operator = _column(right), _value(left), MIRRORED[operator]
    if column is None or value is None:
        return Unknown()
    return Compare(column, operator, value[0], value[1])


def _column(node: exp.Expr) -> str | None:
    # A name with dots may be a table's column or a field of a struct: not worth guessing.
    return node.name if isinstance(node, exp.Column) and len(node.parts) == 1 else None


def _value(node: exp.Expr) -> tuple[Value, str | None] | None:
    """A constant and the type it was given, if any."""
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal):
        inner = _value(node.this)
        return (-inner[0], None) if inner is not None and type(inner[0]) is int else None
    if isinstance(node, exp.Literal):
        return _literal(node)
    if isinstance(node, exp.Boolean):
        return bool(node.this), None
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        return (node.this.name, "date") if node.to.is_type("date") else None
    return None


def _literal(node: exp.Literal) -> tuple[Value, str | None] | None:
    if node.is_string:
        return node.name, None
    return (int(node.name), None) if node.name.isdigit() else None
