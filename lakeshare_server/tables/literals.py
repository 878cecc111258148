"""Constants of predicates as values of a column's type, where the two compare the way the client means it.

Clients fold casts into the type they name, so a constant may speak of another type than the column has.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa

from lakeshare_server.tables.predicate import Compare, Value

INTEGER = re.compile(r"[+-]?\d{1,18}")
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
# A cast to a wider integer changes no value; to a narrower one it may wrap around.
WIDTHS = {"int": 32, "long": 64}


def is_lossless(declared: str | None, kind: pa.DataType) -> bool:
    """Whether every value of the column is the same, and none null, in the type the client sees it as."""
    if declared is None:
        return True
    if pa.types.is_signed_integer(kind):
        return bool(WIDTHS.get(declared, 0) >= kind.bit_width)
    return any(is_kind(kind) and declared == name for name, is_kind in _SAME.items())


def column_value(part: Compare, kind: pa.DataType) -> pa.Scalar | None:
    """The constant in the column's type; None when the comparison cannot be decided from the column's values."""
    if not is_lossless(part.kind, kind):
        return None
    for is_kind, convert in _CONVERSIONS:
        if is_kind(kind):
            value = convert(part.value, kind)
            return None if value is None else pa.scalar(value, kind)
    return None


def _integer(value: Value, kind: pa.DataType) -> int | None:
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    limit = 1 << (kind.bit_width - 1)
    return value if -limit <= value < limit else None


def _string(value: Value, _kind: pa.DataType) -> str | None:
    return value if isinstance(value, str) else None


def _boolean(value: Value, _kind: pa.DataType) -> bool | None:
    return value if isinstance(value, bool) else None


def _date(value: Value, _kind: pa.DataType) -> date | None:
    if isinstance(value, str) and DATE.fullmatch(value):
        return _parsed_date(value)
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _parsed_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _timestamp(value: Value, kind: pa.DataType) -> datetime | None:
    # A text without a zone means the client's own zone, which the server does not know.
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return value.astimezone(UTC) if kind.tz else None


_SAME: dict[str, Callable[[pa.DataType], bool]] = {
    "string": pa.types.is_string,
    "bool": pa.types.is_boolean,
    "date": pa.types.is_date32,
    "timestamp": pa.types.is_timestamp,
    "double": pa.types.is_floating,
    "float": pa.types.is_float32,
}
_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Value, pa.DataType], Any]], ...] = (
    (pa.types.is_signed_integer, _integer),
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_date32, _date),
    (pa.types.is_timestamp, _timestamp),
)
