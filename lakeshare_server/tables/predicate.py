"""Predicates of recipients as a tree, whichever way they were written.

A part that is not understood is `Unknown`: it may be true, false or null for any row, so it never drops a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Literal as OneOf

Value = bool | int | float | Decimal | str | date | datetime
Comparison = OneOf["=", "<", "<=", ">", ">="]
# A text is a name as JSON predicates write it, dots and all; a tuple has the parts of a name in SQL.
ColumnName = str | tuple[str, ...]
# A comparison with its sides exchanged.
MIRRORED: dict[Comparison, Comparison] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Trees are read and evaluated by recursion; deeper than this, a part of one is Unknown.
MAX_DEPTH = 100


@dataclass(frozen=True)
class Unknown:
    """A part of which nothing can be said; `text` is for people."""

    text: str = field(default="", compare=False)


@dataclass(frozen=True)
class Constant:
    """True or false for every row."""

    value: bool


@dataclass(frozen=True)
class Compare:
    """A column compared with a constant.

    `kind` is the type in which the two are compared, in the protocol's words; None in SQL without a cast, where a
    text stands for a value of the column's own type.
    """

    column: ColumnName
    operator: Comparison
    value: Value
    kind: str | None


@dataclass(frozen=True)
class IsNull:
    """Whether a column is null; `kind` is the type the client sees it as, None for its own."""

    column: ColumnName
    kind: str | None = None


@dataclass(frozen=True)
class Not:
    """The opposite; null stays null."""

    operand: "Predicate"


@dataclass(frozen=True)
class And:
    """All of them."""

    operands: tuple["Predicate", ...]


@dataclass(frozen=True)
class Or:
    """Any of them."""

    operands: tuple["Predicate", ...]


Predicate = Unknown | Constant | Compare | IsNull | Not | And | Or


EVERYTHING = Constant(True)


def with_columns(predicate: Predicate, column_of: Callable[[ColumnName], ColumnName | None]) -> Predicate:
    """The predicate with other names for its columns; a part whose column has none is not understood."""
    match predicate:
        case Not(operand):
            return Not(with_columns(operand, column_of))
        case And(operands):
            return And(tuple(with_columns(operand, column_of) for operand in operands))
        case Or(operands):
            return Or(tuple(with_columns(operand, column_of) for operand in operands))
        case Compare(column) | IsNull(column):
            name = column_of(column)
            return Unknown(str(column)) if name is None else replace(predicate, column=name)
        case _:
            return predicate


def parts_of(predicate: Predicate) -> int:
    """How many parts the predicate has: what evaluating it costs."""
    match predicate:
        case Not(operand):
            return 1 + parts_of(operand)
        case And(operands) | Or(operands):
            return 1 + sum(parts_of(operand) for operand in operands)
        case _:
            return 1


def all_of(predicates: Sequence[Predicate]) -> Predicate:
    """The predicates together; everything when there are none."""
    return And(tuple(predicates)) if predicates else EVERYTHING


def conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    """The parts that must all be true; together they say what the predicate says."""
    if isinstance(predicate, And):
        for operand in predicate.operands:
            yield from conjuncts(operand)
    else:
        yield predicate


def affordable(predicate: Predicate, max_parts: int) -> Predicate:
    """The predicate, or as many of its conjuncts as `max_parts` allow: looking at files must not cost what it saves."""
    if parts_of(predicate) <= max_parts:
        return predicate
    kept: list[Predicate] = []
    for part in conjuncts(predicate):
        max_parts -= parts_of(part)
        if max_parts < 0:
            kept.append(Unknown("more than is looked at"))
            break
        kept.append(part)
    return all_of(kept)
