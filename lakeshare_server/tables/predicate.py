"""Predicates of recipients as a tree, whichever way they were written.

A part that is not understood is `Unknown`: it may be true, false or null for any row, so it never drops a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Literal as OneOf

Value = bool | int | str | date | datetime
Comparison = OneOf["=", "<", "<=", ">", ">="]
# A comparison with its sides exchanged.
MIRRORED: dict[Comparison, Comparison] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Trees are read and evaluated by recursion; deeper than this, a part of one is Unknown.
MAX_DEPTH = 100


@dataclass(frozen=True)
class Unknown:
    """A part of which nothing can be said."""


@dataclass(frozen=True)
class Constant:
    """True or false for every row."""

    value: bool


@dataclass(frozen=True)
class Compare:
    """A column compared with a constant.

    `kind` is the type the constant was given as, in the protocol's words; None when it was written in SQL, where
    a text stands for a value of the column's own type.
    """

    column: str
    operator: Comparison
    value: Value
    kind: str | None


@dataclass(frozen=True)
class IsNull:
    """Whether a column is null; `kind` is the type the client sees it as, None for its own."""

    column: str
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
