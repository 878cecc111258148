"""Conditions of policies (IAM user guide, "IAM JSON policy elements: Condition operators")."""

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache


class NotUnderstood(Exception):
    """A policy says something that is not known here."""


def matches(pattern: str, value: str) -> bool:
    """Whether a value is of a pattern with `*` and `?`."""
    return _pattern(pattern).fullmatch(value) is not None


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(one, re.escape(one)) for one in pattern), re.DOTALL)


def _arn_matches(pattern: str, value: str) -> bool:
    """Each of the six parts of an ARN by itself."""
    wanted, found = pattern.split(":", 5), value.split(":", 5)
    return len(wanted) == len(found) and all(map(matches, wanted, found))


def _equal(wanted: str, found: str) -> bool:
    return wanted == found


def _equal_in_any_case(wanted: str, found: str) -> bool:
    return wanted.lower() == found.lower()


def _numbers(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda wanted, found: compare(float(found), float(wanted))


def _moments(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda wanted, found: compare(_moment(found), _moment(wanted))


def _moment(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+", text) else dt.datetime.fromisoformat(text).timestamp()


POSITIVE: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": _equal,
    "StringEqualsIgnoreCase": _equal_in_any_case,
    "StringLike": matches,
    "ArnEquals": _arn_matches,
    "ArnLike": _arn_matches,
    "Bool": _equal_in_any_case,
    "NumericEquals": _numbers(lambda found, wanted: found == wanted),
    "NumericLessThan": _numbers(lambda found, wanted: found < wanted),
    "NumericLessThanEquals": _numbers(lambda found, wanted: found <= wanted),
    "NumericGreaterThan": _numbers(lambda found, wanted: found > wanted),
    "NumericGreaterThanEquals": _numbers(lambda found, wanted: found >= wanted),
    "DateLessThan": _moments(lambda found, wanted: found < wanted),
    "DateGreaterThan": _moments(lambda found, wanted: found > wanted),
}
NEGATIVE = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
}


def is_met(operator: str, key: str, values: Sequence[str], context: Mapping[str, str]) -> bool:
    """Whether a condition holds for a request's context, whose keys are found in any case.

    Raises:
        NotUnderstood: the operator is not known here, or a value is of another kind than it takes.
    """
    found = {name.lower(): value for name, value in context.items()}.get(key.lower())
    base = operator.removesuffix("IfExists")
    if base == "Null":
        return (found is None) == (values[0].lower() == "true")
    if base not in POSITIVE and base not in NEGATIVE:
        raise NotUnderstood(f"the condition operator {operator} is not understood here")
    if found is None:
        # A negated operator holds of a key that is not there, a plain one does not.
        return base != operator or base in NEGATIVE
    compare = POSITIVE[NEGATIVE.get(base, base)]
    try:
        is_one = any(compare(str(wanted), found) for wanted in values)
    except ValueError as error:
        raise NotUnderstood(f"the condition {operator} of {key} cannot be compared: {error}") from error
    return is_one != (base in NEGATIVE)
