"""Constants of SQL texts: their values, and the types in which they make others compare."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlglot import exp

from lakeshare_server.tables.literals import DATE, INTEGER, NUMBER, TIMESTAMP, float32
from lakeshare_server.tables.predicate import Value

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
