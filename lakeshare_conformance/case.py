"""A case: one rule of the protocol with its name, level, sections and promise, and a function that checks one target.

Methods of a `Group` become cases by `must`, `should` and `optional`. A check returns if the rule holds, and raises
`ExpectationFailed` if it does not and `NotApplicable` if the target lacks what the rule is about. Cases are not pytest
functions (ADR 0051): the command needs no pytest, and a case has one verdict over all its targets.
"""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import ClassVar, TypeVar

MAX_SHOWN = 200
PARQUET, DELTA = "parquet", "delta"
FORMATS = (PARQUET, DELTA)


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


Required = TypeVar("Required")


@dataclass(frozen=True)
class Case:
    """One rule and its check. `target` is what the check takes: the server, a table, or a view in one of `formats`."""

    name: str
    group: str
    level: Level
    sections: tuple[str, ...]
    promise: str
    target: str
    formats: tuple[str, ...]
    check: Callable[..., None]

    @property
    def section(self) -> str:
        """The sections as they are cited."""
        return ", ".join(f"§{section}" for section in self.sections)

    @property
    def short_name(self) -> str:
        """The name without the group."""
        return self.name.partition(".")[2]

    @property
    def lacking(self) -> str:
        """The reason in reports if there is no target."""
        return (
            "nothing is shared"
            if self.target == "table"
            else f"no table is served as {' or '.join(self.formats)}"
        )


def rule(
    level: Level, *sections: str, formats: tuple[str, ...] = FORMATS
) -> Callable[[Callable[..., None]], Case]:
    """Make a case of a method with a docstring; its parameter `server`, `table` or `view` is what it is run on."""

    def mark(check: Callable[..., None]) -> Case:
        if not sections or not check.__doc__:
            raise ValueError(f"{check.__name__} needs a docstring and sections")
        name, promise = check.__name__.replace("_", "-"), " ".join(check.__doc__.split())
        target = list(inspect.signature(check).parameters)[-1]
        return Case(name, "", level, sections, promise, target, formats, check)

    return mark


must, should, optional = (partial(rule, level) for level in Level)


class Group:
    """A subject of the suite: its name is that of the class, its title the docstring, its cases are the methods."""

    name: ClassVar[str]
    title: ClassVar[str]
    cases: ClassVar[list[Case]]

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"\B(?=[A-Z])", "-", cls.__name__).lower()
        cls.title = " ".join(str(cls.__doc__).split()).rstrip(".")
        cls.cases = []
        for case in [value for value in vars(cls).values() if isinstance(value, Case)]:
            cls.add(case)

    @classmethod
    def add(cls, case: Case) -> None:
        """Add a case, named after the group."""
        check = partial(case.check, cls())
        cls.cases.append(replace(case, name=f"{cls.name}.{case.name}", group=cls.name, check=check))


def expect(holds: object, where: str, expected: str, actual: object) -> None:
    """Raise `ExpectationFailed` unless the condition holds or the value is true."""
    if not holds:
        raise ExpectationFailed(where, expected, actual)


class Located:
    """A part of an answer; `where` names it in the sentences of failed expectations."""

    where: str

    def expect(self, holds: object, expected: str, actual: object, part: str = "") -> None:
        """Raise `ExpectationFailed`, about a part if one is named, unless the condition holds or the value is true."""
        expect(holds, f"{self.where}, {part}" if part else self.where, expected, actual)

    def expect_equal(self, actual: object, wanted: object, what: str = "", part: str = "") -> None:
        """Expect a value; `what` comes before it in the sentence."""
        self.expect(actual == wanted, f"{what} {wanted}".strip(), actual, part)


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
