"""Values of request parameters: tolerant of spelling, strict about meaning."""

import re
from typing import Any

from lakeshare_server.errors import BadRequest

DIGITS = re.compile(r"-?[0-9]{1,19}")
MAX_LONG = (1 << 63) - 1
MAX_INT = (1 << 31) - 1


def whole_number(field: str, value: Any, *, low: int = 0, high: int = MAX_LONG) -> int:
    """A whole number, written as a number or as digits.

    Raises:
        BadRequest: it is not one, or out of range.
    """
    number = value
    if isinstance(value, str) and DIGITS.fullmatch(value):
        number = int(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int):
        raise BadRequest(field, value, "Give a whole number.")
    if number < low and low == 0:
        raise BadRequest(field, value, f"{field} cannot be negative.")
    if not low <= number <= high:
        raise BadRequest(field, value, f"Give a number from {low} to {high}.")
    return number


def truth(field: str, value: Any) -> bool:
    """True or false, as a boolean or as text in any case (Python's client sends `True`).

    Raises:
        BadRequest: it is neither.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadRequest(field, value, "Give true or false.")
