"""A case: one promise of the protocol, how much it weighs, and how it is tried on what a server offers.

The functions of `cases/` become cases of a `Group` by `on_server`, `on_tables` and `on_views`.
Each returns when the promise holds, raises `Broken` when it does not, and `NothingToTry` when the place has nothing to
try it on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from lakeshare_conformance.targets import Server, Table, Targets, View

SECTIONS = {
    "0.1": "the Python client dies of lines it does not know: no endStreamAction unless asked for",
    "0.2": "the Python client fetches delta-format URLs only if their query has a signature's key it knows",
    "0.3": "file:// URLs are of no use to clients",
    "0.4": "Spark's delta-format reader needs metaData.size",
    "0.5": "Spark needs deletionVectorFileId, and vectors stored as p (a URL) or i (inline)",
    "0.6": "Spark reads files by Range and insists on 206",
    "0.7": "Spark's async client needs Delta-Table-Version on every reply, pending ones too",
    "0.8": "Spark's async client does not read queryStatus.status: failures must be HTTP errors",
    "0.9": "the idempotency key goes by two names, idempotencyKey and idempotency_key",
    "0.10": "Spark needs the head lines of all pages to be the same bytes",
    "0.11": "the Python client writes booleans as True and False",
    "0.12": "clients take bearer tokens from profiles of version 1 only",
    "0.13": "the Python client's delta-format changes need versions, timestamps and a truthful writer protocol",
    "0.14": "tables with deletion vectors or column mapping are paged and streamed like others",
    "0.15": "predicates with NOT and NULL lose no rows",
    "0.16": "a refresh token pins the snapshot",
    "0.18": "row tracking is sent whole or not at all",
    "0.19": "clients retry 5xx for minutes: lasting faults are 4xx",
    "1.0": "common rules: authentication, names, content types, the shape of errors",
    "1.1": "endpoints",
    "1.2": "List Shares, Get Share",
    "1.3": "List Schemas",
    "1.4": "List Tables, List All Tables",
    "1.5": "Query Table Version",
    "1.6": "Query Table Metadata",
    "1.7": "Query Table",
    "1.8": "Read Change Data Feed",
    "1.9": "Get Query Info, async queries",
    "1.10": "Generate Temporary Table Credential",
    "1.11": "the header delta-sharing-capabilities",
    "1.12": "the header fileidhash",
    "1.13": "EndStreamAction",
    "1.14": "predicates for filtering",
    "2.1": "response lines in parquet format",
    "2.2": "response lines in delta format",
    "2.3": "deletion vectors on the wire",
    "2.4": "which table features are sent to whom",
    "2.5": "how the response format is chosen",
    "2.6": "file ids",
    "2.7": "the expiry of URLs",
    "3": "profile files",
    "4": "error codes, and what clients do about errors",
    "6.1": "what the Python client relies on",
    "6.2": "what the Spark connectors rely on",
    "7.3": "sentences that the clients' own test suites look for",
    "9": "OpenSharing's additions",
    "10": "files that a server serves itself",
}


MAX_SHOWN = 200


class Level(StrEnum):
    """How much a case weighs; only a failed `must` fails a run."""

    MUST = "must"
    SHOULD = "should"
    OPTIONAL = "optional"


MUST, SHOULD, OPTIONAL = Level.MUST, Level.SHOULD, Level.OPTIONAL
PARQUET, DELTA = "parquet", "delta"
BOTH = (PARQUET, DELTA)


class ExpectationFailed(Exception):
    """A promise that does not hold: where it was seen, what was expected and what came."""

    def __init__(self, where: str, expected: str, actual: object) -> None:
        super().__init__(f"{where}: expected {expected}, came {format_value(actual)}")


class NotApplicable(Exception):
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
    trials: Callable[[Targets], Iterator[Trial]]

    @property
    def section(self) -> str:
        """The sections as they are cited."""
        return ", ".join(f"§{section}" for section in self.sections)


def expect(holds: bool, where: str, expected: str, actual: object) -> None:
    """Go on if it holds.

    Raises:
        Broken: it does not.
    """
    if not holds:
        raise ExpectationFailed(where, expected, actual)


def format_value(value: object) -> str:
    """A value for a sentence: bounded, on one line, and without the signatures of URLs."""
    text = value if isinstance(value, str) else _json(value)
    text = re.sub(r"(https?://[^\s\"'?]+)\?[^\s\"']*", r"\1?…", text).replace("\n", " ")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


class Group:
    """A subject of the suite: the first part of its cases' names, its title in reports, and its cases in order."""

    def __init__(self, name: str, title: str) -> None:
        self.name, self.title = name, title
        self.cases: list[Case] = []

    def on_server(self, level: Level, *sections: str) -> Callable[[Callable[[Server], None]], Case]:
        """Add a case about the server as a whole."""

        def add(judge: Callable[[Server], None]) -> Case:
            def trials(targets: Targets) -> Iterator[Trial]:
                yield Trial("", partial(judge, targets.server))

            return self._add(judge, level, sections, "", trials)

        return add

    def on_tables(self, level: Level, *sections: str) -> Callable[[Callable[[Table], None]], Case]:
        """Add a case about each shared table, whatever its format."""

        def add(judge: Callable[[Table], None]) -> Case:
            def trials(targets: Targets) -> Iterator[Trial]:
                for table in targets.tables:
                    yield Trial(table.name, partial(judge, table))

            return self._add(judge, level, sections, "nothing is shared", trials)

        return add

    def on_views(
        self, level: Level, *sections: str, formats: tuple[str, ...] = BOTH
    ) -> Callable[[Callable[[View], None]], Case]:
        """Add a case about each shared table in each of the response formats it is served in."""

        def add(judge: Callable[[View], None]) -> Case:
            def trials(targets: Targets) -> Iterator[Trial]:
                for view in targets.views(formats):
                    yield Trial(f"{view.table.name} as {view.format}", partial(judge, view))

            return self._add(judge, level, sections, f"no table is served as {' or '.join(formats)}", trials)

        return add

    def _add(
        self,
        judge: Callable[[Any], None],
        level: Level,
        sections: tuple[str, ...],
        lacking: str,
        trials: Callable[[Targets], Iterator[Trial]],
    ) -> Case:
        unknown = [section for section in sections if section not in SECTIONS]
        if unknown or not sections or not judge.__doc__:
            raise ValueError(f"{judge.__name__} needs a docstring and known sections, not {unknown}")
        name = f"{self.name}.{judge.__name__.replace('_', '-')}"
        promise = " ".join(judge.__doc__.split())
        case = Case(name, self.name, level, sections, promise, lacking, trials)
        self.cases.append(case)
        return case


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


@dataclass(frozen=True)
class Kind:
    """A kind of JSON value, with the words for it."""

    words: str
    holds: Callable[[Any], bool]


Fields = Mapping[str, Kind]


def is_whole(value: Any) -> bool:
    """A JSON number that is whole; true and false are no numbers."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_url(value: Any) -> bool:
    """An absolute URL that clients can fetch."""
    if not isinstance(value, str):
        return False
    parts = urlsplit(value)
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _is_map(value: Any, *kinds: type) -> bool:
    return isinstance(value, dict) and all(isinstance(one, kinds) for one in value.values())


TEXT = Kind("a text", lambda value: isinstance(value, str))
NAME = Kind("a text that is not empty", lambda value: isinstance(value, str) and value != "")
WHOLE = Kind("a whole number", is_whole)
COUNT = Kind("a whole number from 0", lambda value: is_whole(value) and value >= 0)
TRUTH = Kind("true or false", lambda value: isinstance(value, bool))
TEXTS = Kind(
    "a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)
)
TEXT_MAP = Kind("an object of texts", lambda value: _is_map(value, str))
VALUES = Kind("an object of texts and nulls", lambda value: _is_map(value, str, type(None)))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
URL = Kind("an absolute http or https URL", is_url)


def bounded_text(longest: int) -> Kind:
    """A text of bounded length."""
    return Kind(
        f"a text of at most {longest} characters",
        lambda value: isinstance(value, str) and len(value) <= longest,
    )


def one_of(*values: object) -> Kind:
    """One of some values."""
    return Kind(f"one of {', '.join(map(str, values))}", lambda value: value in values)


def expect_fields(where: str, value: Mapping[str, Any], required: Fields, optional: Fields) -> None:
    """Expect that an object has fields of these kinds.

    Raises:
        Broken: one is missing, or of another kind; null counts as missing.
    """
    for name, kind in required.items():
        expect(value.get(name) is not None, where, f"the field {name}, {kind.words}", value)
        expect_kind(f"{where}, field {name}", kind, value[name])
    for name, kind in optional.items():
        if value.get(name) is not None:
            expect_kind(f"{where}, field {name}", kind, value[name])


def expect_kind(where: str, kind: Kind, value: object) -> None:
    """Expect a value of a kind.

    Raises:
        Broken: it is of another.
    """
    expect(kind.holds(value), where, kind.words, value)
