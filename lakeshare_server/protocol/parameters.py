"""Values of request parameters: tolerant of spelling, strict about meaning."""

import re
from collections.abc import Mapping
from typing import Any

from lakeshare_server.errors import BadRequest, shown

DIGITS = re.compile(r"-?[0-9]{1,19}")
MAX_LONG = (1 << 63) - 1
MAX_INT = (1 << 31) - 1


def whole_number(
    field: str, value: Any, *, low: int = 0, high: int = MAX_LONG, said: str | None = None
) -> int:
    """A whole number, written as a number or as digits; `said` is how clients' tests know the field.

    Raises:
        BadRequest: it is not one, or out of range.
    """
    number = value
    if isinstance(value, str) and DIGITS.fullmatch(value):
        number = int(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        hint = f"{field} is not a valid number. Not a numeric value: {shown(value)}."
        raise BadRequest(field, value, hint)
    if number < low and low == 0:
        raise BadRequest(field, value, f"{said or field} cannot be negative.")
    if number < low and low == 1:
        raise BadRequest(field, value, f"{said or field} must be positive.")
    if not low <= number <= high:
        raise BadRequest(field, value, f"Give a number from {low} to {high}.")
    return number


def optional_number(fields: Mapping[str, Any], name: str, **limits: Any) -> int | None:
    """The whole number under a name, None when it is not given."""
    value = fields.get(name)
    return None if value is None else whole_number(name, value, **limits)


def truth(field: str, value: Any) -> bool:
    """True or false, as a boolean or as text in any case (Python's client sends `True`, protocol §0.11).

    Raises:
        BadRequest: it is neither.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadRequest(field, value, "Give true or false.")


def optional_truth(fields: Mapping[str, Any], name: str) -> bool:
    """The truth under a name, False when it is not given."""
    value = fields.get(name)
    return False if value is None else truth(name, value)


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """The text under a name, None when it is not given.

    Raises:
        BadRequest: it is something else.
    """
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise BadRequest(name, value, "Give a text.")
