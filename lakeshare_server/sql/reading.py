"""From what the grammar found to statements. Values that no statement can have are refused with their place."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lark import Token
from lark.tree import Meta

from lakeshare_server.sql import statements as said
from lakeshare_server.sql.errors import Place
from lakeshare_server.sql.words import moment, plain_name, plain_text, quoted_text, span

MAX_NUMBER = (1 << 63) - 1
DEEPEST = 64
T = TypeVar("T")


class Unusable(Exception):
    """A value or clause that cannot stand where it stands."""

    def __init__(self, what: str, place: Place) -> None:
        super().__init__(what)
        self.what, self.place = what, place


@dataclass(frozen=True)
class Clause:
    """A named part of a statement, whose order makes no difference."""

    name: str
    value: Any  # what the statement takes under this name
    place: Place
    spelt: str


def place_of(token: Token) -> Place:
    """Where a token stands."""
    return Place(token.line or 1, token.column or 1, len(token.split("\n", 1)[0]))


def place_at(meta: Meta) -> Place:
    """Where a part begins."""
    return Place(getattr(meta, "line", 1), getattr(meta, "column", 1))


def name_in(token: Token) -> str:
    """The name a token writes."""
    name = str(plain_name(token))
    if not name.strip():
        raise Unusable("A name has at least one character.", place_of(token))
    return name


def text_in(token: Token | None) -> str | None:
    """The text a token writes; NULL is none."""
    return None if token is None or token.type == "NULL" else plain_text(token)


def number_in(token: Token) -> int:
    """The whole number a token writes."""
    # Counted before it is made a number: Python refuses to read very long ones.
    if not token.isdecimal() or len(token) > 19 or int(token) > MAX_NUMBER:
        raise Unusable(f"Give a whole number of at most {MAX_NUMBER}.", place_of(token))
    return int(token)


def moment_in(token: Token) -> Any:
    """The moment a token writes."""
    hint = "is no time; write '2027-01-31', '2027-01-31 18:00' or '2027-01-31T18:00:00+02:00' (UTC without a zone)."
    return _tried(moment, token, hint)


def span_in(token: Token) -> Any:
    """The span of time a token writes."""
    return _tried(span, token, "is no span of time; write it like '24 hours', '7 days' or '1 day 12 hours'.")


def _tried(read: Callable[[str], T], token: Token, hint: str) -> T:
    try:
        return read(plain_text(token))
    except ValueError:
        raise Unusable(f"{token[:60]} {hint}", place_of(token)) from None


def gathered(clauses: Sequence[Clause]) -> dict[str, Any]:
    """The values of clauses by name; each name once."""
    found: dict[str, Clause] = {}
    for clause in clauses:
        if clause.name in found:
            first = found[clause.name]
            same = first.spelt == clause.spelt
            what = (
                f"{clause.spelt} is there twice."
                if same
                else f"{first.spelt} and {clause.spelt} exclude each other."
            )
            raise Unusable(what, clause.place)
        found[clause.name] = clause
    return {name: clause.value for name, clause in found.items()}


def unique(pairs: Sequence[tuple[str, str, Place]], what: str) -> dict[str, str]:
    """Pairs as a mapping; each key once."""
    found: dict[str, str] = {}
    for key, value, place in pairs:
        if key in found:
            raise Unusable(f"{what} {key!r} is there twice.", place)
        found[key] = value
    return found


def policy_of(meta: Meta, fields: Sequence[tuple[str, str, Place]]) -> said.Policy:
    """The federation policy that OIDC (…) describes."""
    known = ("issuer", "subject", "subject_claim", "audience", "name")
    audiences = tuple(value for key, value, _ in fields if key == "audience")
    for key, _, place in fields:
        if key not in known:
            raise Unusable(f"OIDC has no {key}; it takes {', '.join(known)}.", place)
    given = unique([field for field in fields if field[0] != "audience"], "OIDC's")
    for key in ("issuer", "subject"):
        if key not in given:
            raise Unusable(f"OIDC needs an issuer and a subject; {key} is missing.", place_at(meta))
    return said.Policy(**given, audiences=audiences)


class Nested(tuple[str, ...]):
    """The tokens of a part of a predicate in parentheses, and how deep it is."""

    depth: int

    @classmethod
    def of(cls, meta: Meta, pieces: "Sequence[Token | Nested]") -> "Nested":
        """Parentheses around pieces; no deeper than anything that reads them can follow."""
        nested = cls(("(", *tokens_of(pieces), ")"))
        nested.depth = 1 + max((piece.depth for piece in pieces if isinstance(piece, Nested)), default=0)
        if nested.depth > DEEPEST:
            raise Unusable(f"Parentheses are nested deeper than {DEEPEST}.", place_at(meta))
        return nested


def tokens_of(pieces: "Sequence[Token | Nested]") -> Iterator[str]:
    """The tokens of a predicate, with those between its parentheses."""
    for piece in pieces:
        if isinstance(piece, Nested):
            yield from piece
        elif piece.type == "TEXT":
            yield quoted_text(plain_text(piece))
        else:
            yield str(piece)
