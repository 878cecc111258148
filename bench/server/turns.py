"""Things measured by turns, so that the machine's moods strike all of them alike; medians, and ratios by turn."""

import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

Measured = TypeVar("Measured")
BEGAN = time.monotonic()


def by_turns(turns: int, works: Mapping[str, Callable[[], Measured]]) -> dict[str, list[Measured]]:
    """What each of the works gives in each turn; each turn begins with another of them."""
    names = list(works)
    given: dict[str, list[Measured]] = {name: [] for name in names}
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            given[name].append(works[name]())
    return given


def ratio(above: list[float], below: list[float]) -> float:
    """The median of the ratios of two things that were measured in the same turns."""
    return median(one / other for one, other in zip(above, below, strict=True))


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", file=sys.stderr, flush=True)


def number(value: float) -> str:
    """A figure as a person reads it: three digits that count, or all before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    """A time as a person reads it."""
    return f"{number(seconds * 1000)} ms" if seconds < 1 else f"{number(seconds)} s"


def clients_said(count: int) -> str:
    """So many clients."""
    return "1 client" if count == 1 else f"{count} clients"
