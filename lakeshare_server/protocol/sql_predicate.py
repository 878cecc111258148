"""`predicateHints`: comparisons in SQL, joined by AND; Spark's connector sends its own SQL text here.

Best effort by the protocol's own word: what cannot be understood is Unknown, part by part, never an error.
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
    float32,
)

Kind = exp.DataType.Type
# Types in the words of JSON predicates.
KINDS: dict[Any, str] = {
    Kind.INT: "int",
    Kind.BIGINT: "long",
    Kind.TEXT: "string",
    Kind.VARCHAR: "string",
    Kind.BOOLEAN: "bool",
    Kind.DATE: "date",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    # Spark's TIMESTAMP is an instant; a text without a zone means the client's own.
    Kind.TIMESTAMPTZ: "timestamp",
    Kind.TIMESTAMPLTZ: "timestamp",
    Kind.TIMESTAMPNTZ: "timestamp_ntz",
}
BITS: dict[Any, int] = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64}
DEFAULT_DECIMAL = (10, 0)


def sql_value(node: exp.Expr) -> tuple[Value, str | None] | None:
    """A constant's value and the type that a column is cast to before it is compared with it, if any."""
    if isinstance(node, exp.Paren):
        return sql_value(node.this)
    if isinstance(node, exp.Neg):
        return _negative(sql_value(node.this))
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


def _negative(found: tuple[Value, str | None] | None) -> tuple[Value, str | None] | None:
    if found is None or isinstance(found[0], bool | str | date):
        return None
    # A unary minus on a Decimal would round it.
    return (found[0].copy_negate() if isinstance(found[0], Decimal) else -found[0]), found[1]


def _cast(node: exp.Cast) -> tuple[Value, str | None] | None:
    """Typed constants: `DATE '…'`, `CAST('…' AS TIMESTAMP)`, `5L`, `1.5D`, and the like.

    A cast that would change the value gives nothing.
    """
    inner = sql_value(node.this)
    if inner is None or inner[1] is not None or isinstance(inner[0], bool | date):
        return None
    kind, value = node.to.this, inner[0]
    text = value if isinstance(value, str) else str(value)
    if kind in _INSTANTS:
        found: Any = None
        if isinstance(value, str) and TIMESTAMP.fullmatch(value):
            found = datetime.fromisoformat(value)
    elif kind == Kind.DATE:
        found = date.fromisoformat(text) if DATE.fullmatch(text) else None
    elif kind in BITS:
        found = _whole(text, BITS[kind])
    elif NUMBER.fullmatch(text):
        found = _fractional(text, node.to)
    else:
        found = None
    return None if found is None else (found, KINDS[kind] if kind in _COMPARED_IN else None)


def _whole(text: str, bits: int) -> int | None:
    number = int(text) if INTEGER.fullmatch(text) else None
    return number if number is not None and -1 << (bits - 1) <= number < 1 << (bits - 1) else None


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
# A constant of these types makes what it is compared with one of them.
_COMPARED_IN = _INSTANTS | {Kind.FLOAT, Kind.DOUBLE}


MAX_CHARS = 32_768  # of all hints together: parsing takes up to 30 µs for each
# Of all hints together too: types with their brackets, `DATE (…)`, are tried in two ways, nested in two to the depth.
MAX_TOKENS_AGAIN = 20_000
TEXT_SHOWN = 200
COMPARISONS: dict[type[exp.Expr], Comparison] = {
    exp.EQ: "=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
# What a pattern of LIKE may not have in front of its closing %: with these it says more than "begins with".
WILDCARDS = frozenset("%_\\")
LAST_CHARACTER = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)
# sqlglot warns about syntax it does not know; recipients' hints are not worth a line in our log.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)


def parse_sql_predicates(texts: Sequence[str]) -> Predicate:
    """All of the hints together; what is longer than can be looked at in a moment is left out."""
    parts: list[Predicate] = []
    parser = _BoundedParser(dialect=Spark())
    chars = 0
    for text in texts:
        chars += len(text)
        is_short = chars <= MAX_CHARS
        parts.append(_parse(parser, text) if is_short else Unknown(f"beyond {MAX_CHARS} characters of SQL"))
    return all_of(parts)


class _TooOftenError(Exception):
    """The same tokens were read again too often."""


class _BoundedParser(SparkParser):
    """Spark's grammar, read with an end to going back: all work beyond one look at each token follows from that."""

    tokens_again = 0

    def _retreat(self, index: int) -> None:
        again = max(self._index - index, 0)
        self.tokens_again += again
        if again and self.tokens_again > MAX_TOKENS_AGAIN:
            # No ParseError: that is what the parser goes back for, to try the next way.
            raise _TooOftenError
        super()._retreat(index)


def _parse(parser: SparkParser, text: str) -> Predicate:
    try:
        parsed = parser.parse(parser.dialect.tokenize(text), text)
    except Exception:  # whatever somebody else's parser stumbles over in a stranger's text
        parsed = []
    if len(parsed) != 1 or parsed[0] is None:
        return Unknown(text[:TEXT_SHOWN])
    return _predicate(parsed[0], MAX_DEPTH)


def _predicate(node: exp.Expr, depth: int) -> Predicate:
    if depth == 0:
        return Unknown("a part too deep to be looked at")
    read = _READERS.get(type(node))
    try:
        found = read and read(node, depth)
    except (ValueError, ArithmeticError):  # a date like 2020-02-30
        found = None
    return found or _unknown(node)


def _unknown(node: exp.Expr) -> Unknown:
    try:
        return Unknown(node.sql(dialect="spark")[:TEXT_SHOWN])
    except Exception:  # it is only for people to read
        return Unknown(node.key)


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


def _compare(node: exp.Expr, _depth: int) -> Predicate | None:
    return _comparison(COMPARISONS[type(node)], node.this, node.expression)


def _not_equal(node: exp.Expr, _depth: int) -> Predicate | None:
    return _negate(_comparison("=", node.this, node.expression))


def _null_safe_equal(node: exp.Expr, _depth: int) -> Predicate | None:
    for one, other in ((node.this, node.expression), (node.expression, node.this)):
        column = _column(one)
        if column is not None and isinstance(other, exp.Null):
            return IsNull(*column)
        equal = None if column is None else _comparison("=", one, other)
        if column is not None and equal is not None:
            return _null_safe(IsNull(*column), equal)
    return None


def _null_safe(is_null: IsNull, equal: Compare) -> Predicate:
    both_set = And((Not(is_null), equal))
    # A text that is no value of the column's type is null, and as such the same as a null of the column.
    return Or((both_set, And((is_null, Unknown())))) if isinstance(equal.value, str) else both_set


def _null_safe_not_equal(node: exp.Expr, depth: int) -> Predicate | None:
    return _negate(_null_safe_equal(node, depth))


def _is(node: exp.Expr, _depth: int) -> Predicate | None:
    column = _column(node.this)
    if column is None:
        return None
    if isinstance(node.expression, exp.Null):
        return IsNull(*column)
    if isinstance(node.expression, exp.Boolean) and column[1] in (None, "bool"):
        return And((Not(IsNull(*column)), Compare(column[0], "=", bool(node.expression.this), "bool")))
    return None


def _in(node: exp.Expr, _depth: int) -> Predicate | None:
    options = node.args.get("expressions")
    if not options or any(node.args.get(other) for other in ("query", "unnest", "field")):
        return None
    equals = [_comparison("=", node.this, option) for option in options]
    compared = [equal for equal in equals if equal is not None]
    kinds = {equal.kind for equal in compared if equal.kind is not None}
    if len(kinds) > 1 or len({isinstance(equal.value, str) for equal in compared}) > 1:
        return None  # all options are cast to one type, whichever it is
    in_one = next(iter(kinds), None)
    return Or(
        tuple(
            _unknown(option) if equal is None else replace(equal, kind=in_one)
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
    begins = _begins_with(node.this, prefix) if last == "%" else _text("=", node.this, pattern.name)
    return _negate(begins) if node.args.get("negate") else begins


def _starts_with(node: exp.Expr, _depth: int) -> Predicate | None:
    prefix = node.expression
    is_text = isinstance(prefix, exp.Literal) and prefix.is_string
    return _begins_with(node.this, prefix.name) if is_text else None


def _boolean(node: exp.Expr, _depth: int) -> Predicate:
    return Constant(bool(node.this))


def _boolean_column(node: exp.Expr, _depth: int) -> Predicate | None:
    column = _column(node)
    return None if column is None else Compare(column[0], "=", True, "bool")


_READERS: dict[type[exp.Expr], Callable[[exp.Expr, int], Predicate | None]] = {
    exp.Paren: _paren,
    exp.And: _and,
    exp.Or: _or,
    exp.Not: _not,
    exp.NEQ: _not_equal,
    exp.NullSafeEQ: _null_safe_equal,
    exp.NullSafeNEQ: _null_safe_not_equal,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.StartsWith: _starts_with,
    exp.Boolean: _boolean,
    exp.Column: _boolean_column,
    **dict.fromkeys(COMPARISONS, _compare),
}


def _negate(predicate: Predicate | None) -> Predicate | None:
    return None if predicate is None else Not(predicate)


def _comparison(operator: Comparison, left: exp.Expr, right: exp.Expr) -> Compare | None:
    column, constant = _column(left), sql_value(right)
    if column is None:
        column, constant, operator = _column(right), sql_value(left), MIRRORED[operator]
    if column is None or constant is None:
        return None
    kinds = {kind for kind in (column[1], constant[1]) if kind is not None}
    # A column cast to one type and a constant of another are compared in a third.
    return Compare(column[0], operator, constant[0], next(iter(kinds), None)) if len(kinds) < 2 else None


def _begins_with(node: exp.Expr, prefix: str) -> Predicate | None:
    low, after = _text(">=", node, prefix), text_after_prefix(prefix)
    if low is None or after is None:
        return low
    return And((low, Compare(low.column, "<", after, low.kind)))


def _text(operator: Comparison, node: exp.Expr, text: str) -> Compare | None:
    column = _column(node)
    if column is None or column[1] not in (None, "string"):
        return None
    return Compare(column[0], operator, text, "string")


def text_after_prefix(prefix: str) -> str | None:
    """The first text, in the order of bytes, that neither begins with the prefix nor comes before it."""
    kept = prefix.rstrip(chr(LAST_CHARACTER))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(SURROGATES.stop if following in SURROGATES else following)


def _column(node: exp.Expr) -> tuple[ColumnName, str | None] | None:
    """A column's name and the type it is cast to, if any."""
    if isinstance(node, exp.Paren):
        return _column(node.this)
    if isinstance(node, exp.Cast):
        inner = _column(node.this)
        kind = KINDS.get(node.to.this)
        # Of casts in a row each may change the value: one is what can be followed.
        return (inner[0], kind) if inner is not None and inner[1] is None and kind is not None else None
    if isinstance(node, exp.Column):
        return tuple(part.name for part in node.parts), None
    if isinstance(node, exp.Dot) and all(isinstance(part, exp.Identifier) for part in node.parts):
        return tuple(part.name for part in node.parts), None
    return None
