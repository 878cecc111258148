"""A case: one rule of the protocol with its name, level, sections and promise, and a function that checks one target.

Functions of `cases/` become cases by the decorators of a `Group`. A check returns if the rule holds, and raises
`ExpectationFailed` if it does not and `NotApplicable` if the target lacks what the rule is about. Cases are not pytest
functions (ADR 0051): the command needs no pytest, and a case has one verdict over all its targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from lakeshare_conformance.targets import Server, Table, Targets, View

MAX_SHOWN = 200
PARQUET, DELTA = "parquet", "delta"


class Level(StrEnum):
    """The weight of a case; only a failed `must` fails a run."""

    MUST = "must"
    SHOULD = "should"
    OPTIONAL = "optional"


MUST, SHOULD, OPTIONAL = Level.MUST, Level.SHOULD, Level.OPTIONAL


class ExpectationFailed(Exception):
    """A rule is broken: the request or line, the expected value and the actual value."""

    def __init__(self, where: str, expected: str, actual: object) -> None:
        super().__init__(f"{where}: expected {expected}, came {format_value(actual)}")


class NotApplicable(Exception):
    """The target lacks what the case is about; the text names it."""


Target = TypeVar("Target")
Required = TypeVar("Required")


@dataclass(frozen=True)
class Case:
    """One rule, its check, and the targets that the check runs on: the server, tables, or views, with their names.

    `lacking` is the reason in reports if there is no target.
    """

    name: str
    group: str
    level: Level
    sections: tuple[str, ...]
    promise: str
    lacking: str
    check: Callable[[Any], None]
    targets: Callable[[Targets], Iterable[tuple[str, Any]]]

    @property
    def section(self) -> str:
        """The sections as they are cited."""
        return ", ".join(f"§{section}" for section in self.sections)


class Group:
    """A subject of the suite: the first part of its cases' names, its title in reports, and its cases in order."""

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title = name, title
        self.cases: list[Case] = []

    def on_server(self, level: Level, *sections: str) -> Callable[[Callable[[Server], None]], Case]:
        """Add a case about the server as a whole."""
        return self._adder(level, sections, "", lambda targets: [("", targets.server)])

    def on_tables(self, level: Level, *sections: str) -> Callable[[Callable[[Table], None]], Case]:
        """Add a case about each shared table."""
        lacking = "nothing is shared"
        return self._adder(
            level, sections, lacking, lambda targets: [(one.name, one) for one in targets.tables]
        )

    def on_views(
        self, level: Level, *sections: str, formats: tuple[str, ...] = (PARQUET, DELTA)
    ) -> Callable[[Callable[[View], None]], Case]:
        """Add a case about each shared table in each of the response formats that it is served in."""
        lacking = f"no table is served as {' or '.join(formats)}"
        return self._adder(level, sections, lacking, lambda targets: targets.views(formats))

    def _adder(
        self,
        level: Level,
        sections: tuple[str, ...],
        lacking: str,
        targets: Callable[[Targets], Iterable[tuple[str, Target]]],
    ) -> Callable[[Callable[[Target], None]], Case]:
        def add(check: Callable[[Target], None]) -> Case:
            if not sections or not check.__doc__:
                raise ValueError(f"{check.__name__} needs a docstring and sections")
            name = f"{self.name}.{check.__name__.replace('_', '-')}"
            promise = " ".join(check.__doc__.split())
            self.cases.append(Case(name, self.name, level, sections, promise, lacking, check, targets))
            return self.cases[-1]

        return add


def expect(holds: object, where: str, expected: str, actual: object) -> None:
    """Raise `ExpectationFailed` unless the condition holds or the value is true."""
    if not holds:
        raise ExpectationFailed(where, expected, actual)


def require(value: Required | None, lacking: str) -> Required:
    """Return the value if it is true, or the condition if it holds; else raise `NotApplicable`."""
    if not value:
        raise NotApplicable(lacking)
    return value


def format_value(value: object) -> str:
    """A value for a sentence: bounded, on one line, and without the signatures of URLs."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = re.sub(r"(https?://[^\s\"'?]+)\?[^\s\"']*", r"\1?…", text).replace("\n", " ")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
