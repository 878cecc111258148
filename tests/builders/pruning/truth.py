"""What a predicate comes to for a row, in SQL's three-valued logic with Spark's casts: brute force.

Values: dates are days and times microseconds since 1970, times without a zone and those of partitions local ones.
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.builders.pruning.casts import Client, cast, common_type

Row: TypeAlias = Mapping[tuple[str, ...], Any]
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Column:
    path: tuple[str, ...]
    type: str
    is_partition: bool = False


@dataclass(frozen=True)
class Constant:
    value: Any
    type: str


@dataclass(frozen=True)
class Cast:
    value: "Term"
    type: str


Term: TypeAlias = Column | Constant | Cast


@dataclass(frozen=True)
class Comparison:
    operator: str
    left: Term
    right: Term


@dataclass(frozen=True)
class Same:
    """The comparison `<=>`."""

    left: Term
    right: Term


@dataclass(frozen=True)
class OneOf:
    value: Term
    options: tuple[Term, ...]


@dataclass(frozen=True)
class Begins:
    value: Term
    prefix: str


@dataclass(frozen=True)
class Missing:
    value: Term


@dataclass(frozen=True)
class Holds:
    """A column of booleans by itself."""

    value: Term


@dataclass(frozen=True)
class Opaque:
    """What no server can understand: true, false or null by a number of its own and the row's."""

    number: int


@dataclass(frozen=True)
class Negation:
    part: "Question"


@dataclass(frozen=True)
class Every:
    parts: tuple["Question", ...]


@dataclass(frozen=True)
class Some:
    parts: tuple["Question", ...]


Question: TypeAlias = Comparison | Same | OneOf | Begins | Missing | Holds | Opaque | Negation | Every | Some


def truth(question: Question, row: Row, client: Client) -> bool | None:
    """True, false or null."""
    match question:
        case Comparison(sign, left, right):
            one, other = _alike([left, right], row, client)
            return _compare(sign, one, other, client)
        case Same(left, right):
            one, other = _alike([left, right], row, client)
            return one is other if one is None or other is None else _compare("=", one, other, client)
        case OneOf(value, options):
            first, *others = _alike([value, *options], row, client, is_list=True)
            return _or([_compare("=", first, other, client) for other in others])
        case Begins(value, prefix):
            text = _value(value, row, client)
            return None if text is None else text.startswith(prefix)
        case Missing(value):
            return _value(value, row, client) is None
        case Holds(value):
            return _value(value, row, client)
        case Opaque(number):
            return [True, False, None][(number + row[("row",)]) % 3]
        case Negation(part):
            inner = truth(part, row, client)
            return None if inner is None else not inner
        case Every(parts):
            inner = _or([_not(truth(part, row, client)) for part in parts])
            return _not(inner)
        case Some(parts):
            return _or([truth(part, row, client) for part in parts])


def is_meant(question: Question) -> bool:
    """Whether engines take it: the two sides of each comparison have a type in common."""
    match question:
        case Comparison(_, left, right) | Same(left, right):
            return common_type(left.type, right.type, Client()) != "nothing"
        case OneOf(value, options):
            return all(is_meant(Comparison("=", value, option)) for option in options)
        case Negation(part):
            return is_meant(part)
        case Every(parts) | Some(parts):
            return all(map(is_meant, parts))
        case _:
            return True


def _or(parts: list[bool | None]) -> bool | None:
    return True if True in parts else None if None in parts else False


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _compare(sign: str, one: Any, other: Any, client: Client) -> bool | None:
    if one is None or other is None:
        return None
    if isinstance(one, str):
        one, other = one.encode(), other.encode()
    elif isinstance(one, float) and client.nan_is_greatest:
        one, other = (
            (math.isnan(one), 0.0 if math.isnan(one) else one),
            (math.isnan(other), 0.0 if math.isnan(other) else other),
        )
    return OPERATORS[sign](one, other)


def _value(term: Term, row: Row, client: Client) -> Any:
    match term:
        case Column(path, kind, is_partition):
            value = row[path]
            return (
                client.instant(value) if is_partition and kind == "timestamp" and value is not None else value
            )
        case Constant(value, _):
            return value
        case Cast(inner, kind):
            return cast(_value(inner, row, client), inner.type, kind, client)


def _alike(terms: list[Term], row: Row, client: Client, *, is_list: bool = False) -> list[Any]:
    """The values in the one type they are compared in; nulls when there is none."""
    kinds = [term.type for term in terms]
    common = kinds[0]
    if is_list and not client.is_ansi and "string" in kinds and len(set(kinds)) > 1:
        common = "string"
    else:
        for kind in kinds[1:]:
            common = common_type(common, kind, client)
    return [
        cast(_value(term, row, client), kind, common, client) for term, kind in zip(terms, kinds, strict=True)
    ]
