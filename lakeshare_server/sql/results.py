"""What statements answer: rows under named columns, or a sentence about what was done."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

Cell = str | int | bool | datetime | None
Columns = Mapping[str, type]  # str, int, bool or datetime


@dataclass(frozen=True)
class Result:
    """Rows, or none; `told` is for a person to read and never needed to understand the rows."""

    columns: Columns = field(default_factory=dict)
    rows: tuple[tuple[Cell, ...], ...] = ()
    told: str = ""


def rows_of(columns: Columns, rows: Iterable[tuple[Cell, ...]], told: str = "") -> Result:
    """A result with rows."""
    return Result(columns, tuple(rows), told)


def done(told: str) -> Result:
    """A result without rows."""
    return Result(told=told)


def matches(pattern: str | None, name: str) -> bool:
    """Whether a name is like a pattern: `*` stands for anything, `|` between alternatives; case makes no difference."""
    if pattern is None:
        return True
    alternatives = pattern.strip().split("|")
    parts = (".*".join(map(re.escape, one.strip().split("*"))) for one in alternatives)
    return any(re.fullmatch(part, name, re.IGNORECASE | re.DOTALL) for part in parts)
