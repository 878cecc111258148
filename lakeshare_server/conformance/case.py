"""A case: one promise of the protocol, how much it weighs, and how it is tried on what a server offers.

The functions of `cases/` become cases by `on_server`, `on_tables` and `on_views`. Each returns when the promise
holds, raises `Broken` when it does not, and `NothingToTry` when the place has nothing to try it on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from lakeshare_server.conformance.sections import SECTIONS

if TYPE_CHECKING:
    from lakeshare_server.conformance.ground import Ground, Server, Table, View

LONGEST_SHOWN = 200


class Level(StrEnum):
    """How much a case weighs; only a failed `must` fails a run."""

    MUST = "must"
    SHOULD = "should"
    OPTIONAL = "optional"


MUST, SHOULD, OPTIONAL = Level.MUST, Level.SHOULD, Level.OPTIONAL
PARQUET, DELTA = "parquet", "delta"
BOTH = (PARQUET, DELTA)


class Broken(Exception):
    """A promise that does not hold: where it was seen, what was expected and what came."""

    def __init__(self, where: str, expected: str, came: object) -> None:
        super().__init__(f"{where}: expected {expected}, came {shown(came)}")


class NothingToTry(Exception):
    """The place lacks what the case is about; the text says what."""


@dataclass(frozen=True)
class Trial:
    """A case on one place: the server, a table, or a table in one response format."""

    place: str
    run: Callable[[], None]


@dataclass(frozen=True)
class Case:
    """One promise, and the trials it comes to on a given ground."""

    name: str
    group: str
    level: Level
    sections: tuple[str, ...]
    promise: str
    lacking: str
    trials: Callable[[Ground], Iterator[Trial]]

    @property
    def section(self) -> str:
        """The sections as they are cited."""
        return ", ".join(f"§{section}" for section in self.sections)


def expect(holds: bool, where: str, expected: str, came: object) -> None:
    """Go on if it holds.

    Raises:
        Broken: it does not.
    """
    if not holds:
        raise Broken(where, expected, came)


def shown(value: object) -> str:
    """A value for a sentence: bounded, on one line, and without the signatures of URLs."""
    text = value if isinstance(value, str) else _json(value)
    text = re.sub(r"(https?://[^\s\"'?]+)\?[^\s\"']*", r"\1?…", text).replace("\n", " ")
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def on_server(level: Level, *sections: str) -> Callable[[Callable[[Server], None]], Case]:
    """A case about the server as a whole."""

    def made(judge: Callable[[Server], None]) -> Case:
        def trials(ground: Ground) -> Iterator[Trial]:
            yield Trial("", partial(judge, ground.server))

        return _case(judge, level, sections, "", trials)

    return made


def on_tables(level: Level, *sections: str) -> Callable[[Callable[[Table], None]], Case]:
    """A case about each shared table, whatever its format."""

    def made(judge: Callable[[Table], None]) -> Case:
        def trials(ground: Ground) -> Iterator[Trial]:
            for table in ground.tables:
                yield Trial(table.name, partial(judge, table))

        return _case(judge, level, sections, "nothing is shared", trials)

    return made


def on_views(
    level: Level, *sections: str, formats: tuple[str, ...] = BOTH
) -> Callable[[Callable[[View], None]], Case]:
    """A case about each shared table in each of the response formats it is served in."""

    def made(judge: Callable[[View], None]) -> Case:
        def trials(ground: Ground) -> Iterator[Trial]:
            for view in ground.views(formats):
                yield Trial(f"{view.table.name} as {view.format}", partial(judge, view))

        return _case(judge, level, sections, f"no table is served as {' or '.join(formats)}", trials)

    return made


def _case(
    judge: Callable[[Any], None],
    level: Level,
    sections: tuple[str, ...],
    lacking: str,
    trials: Callable[[Ground], Iterator[Trial]],
) -> Case:
    unknown = [section for section in sections if section not in SECTIONS]
    if unknown or not sections or not judge.__doc__:
        raise ValueError(f"{judge.__name__} needs a docstring and known sections, not {unknown}")
    group = judge.__module__.rpartition(".")[2].replace("_", "-")
    name = f"{group}.{judge.__name__.replace('_', '-')}"
    promise = " ".join(judge.__doc__.split())
    return Case(name, group, level, sections, promise, lacking, trials)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)
