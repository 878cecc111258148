"""Values as the protocol writes them: partition values and bounds as text and JSON, of the types of a schema."""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation

INTEGERS = ("byte", "short", "integer", "long")
FLOATS = ("float", "double")
_TIMESTAMP = re.compile(r"\d{4,}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?)?")


def is_partition_value(value: str | None, kind: object) -> bool:
    """Whether a text is a value of the type, as partition values are written. Null and empty are null."""
    if not value or not isinstance(kind, str):
        return True
    if kind.startswith("decimal"):
        return _reads(Decimal, value)
    check = _CHECKS.get(kind)
    return check is None or check(value)


def to_value(text: str | None, kind: str) -> object:
    """A partition value as Python has it.

    Raises:
        ValueError: it is not of the type.
    """
    if text is None or text == "":
        return None
    if kind in INTEGERS:
        return int(text)
    if kind in FLOATS:
        return float(text)
    if kind == "boolean":
        return text == "true"
    if kind == "date":
        return date.fromisoformat(text)
    if kind in ("timestamp", "timestamp_ntz"):
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo or kind == "timestamp_ntz" else moment.replace(tzinfo=UTC)
    return text


def to_literal(value: object) -> str:
    """A value as the text of a predicate's literal; times are cut to milliseconds, as Spark cuts them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
    if isinstance(value, date):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def as_compared(value: object) -> object:
    """The value that a literal of it stands for."""
    if isinstance(value, datetime):
        return value - timedelta(microseconds=value.microsecond % 1000)
    return value


def is_ordinary(value: object) -> bool:
    """Whether a value has one meaning to everybody: no NaN, and no text that needs escaping."""
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or (value.isprintable() and not set(value) & set("'\"\\%_`"))


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except (ValueError, InvalidOperation):
        return False
    return True


_CHECKS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(INTEGERS, lambda text: re.fullmatch(r"[+-]?\d+", text) is not None),
    **dict.fromkeys(FLOATS, lambda text: _reads(float, text)),
    "boolean": lambda text: text in ("true", "false"),
    "date": lambda text: re.fullmatch(r"[+-]?\d{4,}-\d\d-\d\d", text) is not None,
    "timestamp": lambda text: _TIMESTAMP.fullmatch(text) is not None,
    "timestamp_ntz": lambda text: _TIMESTAMP.fullmatch(text) is not None,
}
