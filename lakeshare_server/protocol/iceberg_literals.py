"""Constants in Iceberg's filters: what clients send, as values to prune by and in the form that all of them read.

Java sends dates and times as numbers, as its engines have them, but reads only texts (spec, Appendix D, "JSON
single-value serialization"); PyIceberg sends texts, times in UTC without saying so.
"""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from lakeshare_server.tables.iceberg.partition_texts import json_value
from lakeshare_server.tables.literals import WIDE
from lakeshare_server.tables.predicate import Value

DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
US = timedelta(microseconds=1)


@dataclass(frozen=True)
class Constant:
    """A constant to prune by, and as it is told."""

    value: Value
    told: Any


def constant(kind: str, said: Any) -> Constant | None:
    """The constant for a column of a type in Iceberg's words; None when nothing can be done with it."""
    read = _READ.get(kind.partition("(")[0])
    try:
        return None if read is None else read(kind, said)
    except (ValueError, OverflowError, InvalidOperation):
        return None


def _boolean(_kind: str, said: Any) -> Constant | None:
    return Constant(said, said) if isinstance(said, bool) else None


def _integer(_kind: str, said: Any) -> Constant | None:
    return Constant(said, said) if isinstance(said, int) and not isinstance(said, bool) else None


def _float(_kind: str, said: Any) -> Constant | None:
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return Constant(float(said), float(said)) if is_number else None


def _string(_kind: str, said: Any) -> Constant | None:
    return Constant(said, said) if isinstance(said, str) else None


def _decimal(kind: str, said: Any) -> Constant | None:
    if not isinstance(said, str | int) or isinstance(said, bool):
        return None
    value, scale = Decimal(said), int(kind.rstrip(")").rpartition(",")[2])
    told = value.quantize(Decimal(1).scaleb(-scale), context=WIDE) if value.is_finite() else None
    return Constant(value, f"{told:f}") if told == value else None


def _date(_kind: str, said: Any) -> Constant | None:
    text = json_value("date", said) if isinstance(said, int) and not isinstance(said, bool) else said
    if not isinstance(text, str) or not DATE.fullmatch(text):
        return None
    return Constant(date.fromisoformat(text), text)


def _timestamp(kind: str, said: Any) -> Constant | None:
    if isinstance(said, bool) or not isinstance(said, str | int):
        return None
    moment = EPOCH + said * US if isinstance(said, int) else _read(said)
    if moment is None:
        return None
    told = json_value(kind, (moment - EPOCH) // US)
    return Constant(moment if kind == "timestamptz" else moment.replace(tzinfo=None), told)


def _read(text: str) -> datetime | None:
    if not TIMESTAMP.fullmatch(text):
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


_READ = {
    "boolean": _boolean,
    "int": _integer,
    "long": _integer,
    "float": _float,
    "double": _float,
    "string": _string,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
}
