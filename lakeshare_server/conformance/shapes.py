"""Kinds of values, and objects whose fields are of them. Fields nobody asked about are allowed: clients ignore them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lakeshare_server.conformance.case import expect


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


def text_up_to(longest: int) -> Kind:
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
