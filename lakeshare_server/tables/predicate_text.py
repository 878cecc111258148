"""Predicates as people read them: something like SQL, however they were sent."""

from datetime import date, datetime
from decimal import Decimal

from lakeshare_server.tables.predicate import (
    And,
    ColumnName,
    Compare,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Unknown,
    Value,
)

MAX_CHARS = 200


def text_of(predicate: Predicate) -> str:
    """The predicate in one line, cut when it is long."""
    text = _text(predicate)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 2]} …"


def name_of(column: ColumnName) -> str:
    """A column's name as it was written."""
    return column if isinstance(column, str) else ".".join(column)


def value_text(value: Value) -> str:
    """A constant as SQL writes it."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, datetime):
        return f"'{value.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    if isinstance(value, int | float | Decimal):
        return str(value)
    return "'" + value.replace("'", "''").encode("utf-8", "replace").decode() + "'"


def _text(predicate: Predicate) -> str:
    match predicate:
        case Unknown(text):
            return text or "…"
        case Constant(value):
            return str(value).upper()
        case Compare(column, operator, value, _):
            return f"{name_of(column)} {operator} {value_text(value)}"
        case IsNull(column, _):
            return f"{name_of(column)} IS NULL"
        case Not(IsNull(column, _)):
            return f"{name_of(column)} IS NOT NULL"
        case Not(operand):
            return f"NOT ({_text(operand)})"
        case And(operands):
            return "(" + " AND ".join(map(_text, operands)) + ")"
        case Or(operands):
            return "(" + " OR ".join(map(_text, operands)) + ")"
