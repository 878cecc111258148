"""Parses `predicateHints`: SQL comparisons joined by AND, as Spark's connector sends them.

Hints are best effort by the protocol: a part that cannot be parsed becomes Unknown, never an error.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser

from lakeshare_server.tables.predicates import (
    DATE,
    INTEGER,
    MAX_DEPTH,
    MIRRORED,
    NUMBER,
    TIMESTAMP,
    And,
    ColumnName,
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
    begins_with,
    float32,
    parse_whole,
)

Kind = exp.DataType.Type
# Types as JSON predicates name them.
KINDS: dict[Any, str] = {
    Kind.INT: "int",
    Kind.BIGINT: "long",
    Kind.TEXT: "string",
    Kind.VARCHAR: "string",
    Kind.BOOLEAN: "bool",
    Kind.DATE: "date",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    # Spark's TIMESTAMP is an instant; a text without a zone is in the client's zone.
    Kind.TIMESTAMPTZ: "timestamp",
    Kind.TIMESTAMPLTZ: "timestamp",
    Kind.TIMESTAMPNTZ: "timestamp_ntz",
}
BITS: dict[Any, int] = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64}
DEFAULT_DECIMAL = (10, 0)


def _sql_value(node: exp.Expr) -> tuple[Value, str | None] | None:
    """A constant's value, and the type to which a column is cast before the comparison, if any."""
    if isinstance(node, exp.Paren):
        return _sql_value(node.this)
    if isinstance(node, exp.Neg):
        inner = _sql_value(node.this)
        if inner is None or isinstance(inner[0], bool | str | date):
            return None
        # A unary minus on a Decimal would round it.
        return (inner[0].copy_negate() if isinstance(inner[0], Decimal) else -inner[0]), inner[1]
    if isinstance(node, exp.Boolean):
        return bool(node.this), None
    if isinstance(node, exp.Cast):
        return _cast(node)
    return _literal(node) if isinstance(node, exp.Literal) else None


def _literal(node: exp.Literal) -> tuple[Value, str | None] | None:
    if node.is_string:
        return node.name, None
    if INTEGER.fullmatch(node.name):
        return int(node.name), None
    if not NUMBER.fullmatch(node.name):
        return None
    # With an exponent it is a double in Spark, else a decimal.
    return (float(node.name), "double") if "e" in node.name.lower() else (Decimal(node.name), None)


def _cast(node: exp.Cast) -> tuple[Value, str | None] | None:
    """A typed constant like `DATE '…'`, `CAST('…' AS TIMESTAMP)` or `5L`; None if the cast would change the value."""
    inner = _sql_value(node.this)
    if inner is None or inner[1] is not None or isinstance(inner[0], bool | date):
        return None
    kind, value = node.to.this, inner[0]
    text = value if isinstance(value, str) else str(value)
    cast: Any = None
    if kind in _INSTANTS:
        if isinstance(value, str) and TIMESTAMP.fullmatch(value):
            cast = datetime.fromisoformat(value)
    elif kind == Kind.DATE:
        cast = date.fromisoformat(text) if DATE.fullmatch(text) else None
    elif kind in BITS:
        cast = parse_whole(text, BITS[kind])
    elif NUMBER.fullmatch(text):
        cast = _fractional(text, node.to)
    return None if cast is None else (cast, KINDS[kind] if kind in _COMPARED_IN else None)


def _fractional(text: str, to: exp.DataType) -> float | Decimal | None:
    if to.this == Kind.FLOAT:
        return float32(text)
    if to.this == Kind.DOUBLE:
        return float(text)
    if to.this != Kind.DECIMAL:
        return None
    precision, scale = [*(int(size.name) for size in to.expressions), *DEFAULT_DECIMAL[len(to.expressions) :]]
    number = Decimal(text)
    fits = number.adjusted() < precision - scale and number == round(number, scale)
    return number if fits else None


_INSTANTS = frozenset({Kind.TIMESTAMPTZ, Kind.TIMESTAMPLTZ, Kind.TIMESTAMPNTZ})
# The other side of a comparison is cast to the constant's type if it is one of these.
_COMPARED_IN = _INSTANTS | {Kind.FLOAT, Kind.DOUBLE}


MAX_CHARS = 32_768  # of all hints together: parsing takes up to 30 µs for each
# Of all hints together: the parser tries `DATE (…)` in two ways, so nested ones in two to the power of the depth.
MAX_TOKENS_AGAIN = 20_000
MAX_SHOWN_CHARS = 200
COMPARISONS: dict[type[exp.Expr], Comparison] = {
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
# A pattern with these before its closing % is more than a prefix.
WILDCARDS = frozenset("%_\\")
# sqlglot warns about unknown syntax; recipients' hints are not worth a log line.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)


def parse_sql_predicates(texts: Sequence[str]) -> Predicate:
    """The conjunction of all hints; hints beyond `MAX_CHARS` are Unknown."""
    parts: list[Predicate] = []
    parser = _BoundedParser(dialect=Spark())
    chars = 0
    for text in texts:
        chars += len(text)
        is_short = chars <= MAX_CHARS
        parts.append(_parse(parser, text) if is_short else Unknown(f"beyond {MAX_CHARS} characters of SQL"))
    return all_of(parts)


class _BacktrackingLimitError(Exception):
    pass


class _BoundedParser(SparkParser):
    """Spark's grammar with a limit on backtracking, which bounds all work beyond one pass over the tokens."""

    tokens_again = 0

    def _retreat(self, index: int) -> None:
        again = max(self._index - index, 0)
        self.tokens_again += again
        if again and self.tokens_again > MAX_TOKENS_AGAIN:
            # Not a ParseError, on which the parser would backtrack again.
            raise _BacktrackingLimitError
        super()._retreat(index)


def _parse(parser: SparkParser, text: str) -> Predicate:
    try:
        parsed = parser.parse(parser.dialect.tokenize(text), text)
    except Exception:  # the parser may raise anything on a client's text
        parsed = []
    if len(parsed) != 1 or parsed[0] is None:
        return Unknown(text[:MAX_SHOWN_CHARS])
    return _predicate(parsed[0], MAX_DEPTH)


def _predicate(node: exp.Expr, depth: int) -> Predicate:
    if depth == 0:
        return Unknown("a part too deep to be looked at")
    read = _READERS.get(type(node))
    try:
        parsed = read and read(node, depth)
    except (ValueError, ArithmeticError):  # a date like 2020-02-30
        parsed = None
    return parsed or _unknown(node)


def _unknown(node: exp.Expr) -> Unknown:
    try:
        return Unknown(node.sql(dialect="spark")[:MAX_SHOWN_CHARS])
    except Exception:  # the text is only for people
        return Unknown(node.key)


def _operands(node: exp.Expr, depth: int) -> tuple[Predicate, ...]:
    return tuple(_predicate(operand, depth - 1) for operand in node.flatten(unnest=False))


def _null_safe_equal(node: exp.Expr, _depth: int) -> Predicate | None:
    for left, right in ((node.this, node.expression), (node.expression, node.this)):
        column = _column(left)
        if column is None:
            continue
        is_null = IsNull(*column)
        if isinstance(right, exp.Null):
            return is_null
        equal = _comparison("=", left, right)
        if equal is not None:
            both_set = And((Not(is_null), equal))
            # A text that is no value of the column's type is cast to null, which equals a null of the column.
            return Or((both_set, And((is_null, Unknown())))) if isinstance(equal.value, str) else both_set
    return None


def _is(node: exp.Expr, _depth: int) -> Predicate | None:
    column, value = _column(node.this), node.expression
    if column is None or isinstance(value, exp.Null):
        return None if column is None else IsNull(*column)
    if isinstance(value, exp.Boolean) and column[1] in (None, "bool"):
        return And((Not(IsNull(*column)), Compare(column[0], "=", bool(value.this), "bool")))
    return None


def _starts_with(node: exp.Expr, _depth: int) -> Predicate | None:
    prefix = node.expression
    return _begins_with(node.this, prefix.name) if prefix.is_string else None


def _in(node: exp.Expr, _depth: int) -> Predicate | None:
    options = node.args.get("expressions")
    if not options or any(node.args.get(other) for other in ("query", "unnest", "field")):
        return None
    equals = [_comparison("=", node.this, option) for option in options]
    parsed = [equal for equal in equals if equal is not None]
    kinds = {equal.kind for equal in parsed if equal.kind is not None}
    if len(kinds) > 1 or len({isinstance(equal.value, str) for equal in parsed}) > 1:
        return None  # Spark casts all options to one type
    kind = next(iter(kinds), None)
    return Or(
        tuple(
            _unknown(option) if equal is None else replace(equal, kind=kind)
            for equal, option in zip(equals, options, strict=True)
        )
    )


def _between(node: exp.Expr, _depth: int) -> Predicate | None:
    low = _comparison(">=", node.this, node.args["low"])
    high = _comparison("<=", node.this, node.args["high"])
    if node.args.get("symmetric") or (low is None and high is None):
        return None
    return And((low or Unknown("the lower end"), high or Unknown("the upper end")))


def _like(node: exp.Expr, _depth: int) -> Predicate | None:
    pattern = node.expression
    if not (isinstance(pattern, exp.Literal) and pattern.is_string) or not pattern.name:
        return None
    prefix, last = pattern.name[:-1], pattern.name[-1]
    if not WILDCARDS.isdisjoint(prefix) or last in "_\\":
        return None
    like = _begins_with(node.this, prefix) if last == "%" else _text("=", node.this, pattern.name)
    return _negate(like) if node.args.get("negate") else like


def _boolean_column(node: exp.Expr, _depth: int) -> Predicate | None:
    column = _column(node)
    return None if column is None else Compare(column[0], "=", True, "bool")


_READERS: dict[type[exp.Expr], Callable[[exp.Expr, int], Predicate | None]] = {
    exp.Paren: lambda node, depth: _predicate(node.this, depth - 1),
    exp.And: lambda node, depth: And(_operands(node, depth)),
    exp.Or: lambda node, depth: Or(_operands(node, depth)),
    exp.Not: lambda node, depth: Not(_predicate(node.this, depth - 1)),
    exp.NEQ: lambda node, _depth: _negate(_comparison("=", node.this, node.expression)),
    exp.NullSafeEQ: _null_safe_equal,
    exp.NullSafeNEQ: lambda node, depth: _negate(_null_safe_equal(node, depth)),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.StartsWith: _starts_with,
    exp.Boolean: lambda node, _depth: Constant(bool(node.this)),
    exp.Column: _boolean_column,
    **dict.fromkeys(
        COMPARISONS, lambda node, _depth: _comparison(COMPARISONS[type(node)], node.this, node.expression)
    ),
}


def _negate(predicate: Predicate | None) -> Predicate | None:
    return None if predicate is None else Not(predicate)


def _comparison(operator: Comparison, left: exp.Expr, right: exp.Expr) -> Compare | None:
    column, constant = _column(left), _sql_value(right)
    if column is None:
        column, constant, operator = _column(right), _sql_value(left), MIRRORED[operator]
    if column is None or constant is None:
        return None
    kinds = {kind for kind in (column[1], constant[1]) if kind is not None}
    # A column and a constant of different types are compared in a third type.
    return Compare(column[0], operator, constant[0], next(iter(kinds), None)) if len(kinds) < 2 else None


def _begins_with(node: exp.Expr, prefix: str) -> Predicate | None:
    low = _text(">=", node, prefix)
    return None if low is None else begins_with(low.column, prefix, low.kind)


def _text(operator: Comparison, node: exp.Expr, text: str) -> Compare | None:
    column = _column(node)
    if column is None or column[1] not in (None, "string"):
        return None
    return Compare(column[0], operator, text, "string")


def _column(node: exp.Expr) -> tuple[ColumnName, str | None] | None:
    if isinstance(node, exp.Paren):
        return _column(node.this)
    if isinstance(node, exp.Cast):
        inner = _column(node.this)
        kind = KINDS.get(node.to.this)
        # Each of several casts may change the value.
        return (inner[0], kind) if inner is not None and inner[1] is None and kind is not None else None
    if isinstance(node, exp.Column) or (
        isinstance(node, exp.Dot) and all(isinstance(part, exp.Identifier) for part in node.parts)
    ):
        return tuple(part.name for part in node.parts), None
    return None
