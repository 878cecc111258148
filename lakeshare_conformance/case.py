"""A case: one rule of the protocol with its name, level, sections and promise, and a function that checks one target.

The public methods of a `Group` are cases. A check returns if the rule holds, and raises
`ExpectationFailed` if it does not and `NotApplicable` if the target lacks what the rule is about. Cases are not pytest
functions (ADR 0051): the command needs no pytest, and a case has one verdict over all its targets.
"""

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import ClassVar, TypeVar, get_args

MAX_SHOWN = 200
PARQUET, DELTA = "parquet", "delta"
FORMATS = (PARQUET, DELTA)
RULE = re.compile(r"(must|should|optional) ((?:§[0-9.]+, )*§[0-9.]+): (.+)")


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
        is_table = self.target == "table"
        return "nothing is shared" if is_table else f"no table is served as {' or '.join(self.formats)}"


class Group:
    """A subject of the suite: its name is that of the class, its title the docstring, its cases are the methods.

    The docstring of a case is its level, the sections of the protocol, and its promise; what it is run on is its last
    parameter, `server`, `table` or `view`. Private methods are no cases.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    cases: ClassVar[list[Case]]

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"\B(?=[A-Z])", "-", cls.__name__).lower()
        cls.title = " ".join(str(cls.__doc__).split()).rstrip(".")
        cls.cases = []
        for name, check in vars(cls).items():
            if inspect.isfunction(check) and not name.startswith("_"):
                cls.add(name, partial(check, cls()), str(check.__doc__))

    @classmethod
    def add(cls, name: str, check: Callable[..., None], rule: str) -> None:
        """Add a case; raises ValueError unless the rule reads like `must §1.7, §6.2: A promise.`"""
        found = RULE.fullmatch(" ".join(rule.split()))
        if found is None:
            raise ValueError(
                f"{cls.__name__}.{name}: the docstring needs level, sections and promise, not {rule!r}"
            )
        level, cited, promise = found.groups()
        [target] = inspect.signature(check).parameters.values()
        formats = get_args(target.annotation)[1:] or FORMATS
        full_name, sections = (
            f"{cls.name}.{name.replace('_', '-')}",
            tuple(cited.replace("§", "").split(", ")),
        )
        case = Case(full_name, cls.name, Level(level), sections, promise, target.name, formats, check)
        cls.cases.append(case)


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
