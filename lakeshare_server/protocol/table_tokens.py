"""Page tokens and refresh tokens of a table: bound to the table, the recipient and the question, and to a version.

A page token pins what page one saw, so that commits made between pages are not seen (protocol §1.7); a refresh
token pins a snapshot (protocol §0.16).
"""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.seals import Seals

PAGE_HINT = "Pass on the nextPageToken of the page before, unchanged, or begin again without one."
REFRESH_HINT = "Query again without refreshToken, with includeRefreshToken for a new one."
HINTS = {"page": PAGE_HINT, "refresh": REFRESH_HINT}


@dataclass(frozen=True)
class Asker:
    """Whose token it is, for which shared table."""

    recipient_id: str
    table_id: str


@dataclass(frozen=True)
class Pin:
    """A version of the table with this id of its own: another may take its place, and its numbers."""

    version: int
    of: str


@dataclass(frozen=True)
class Page:
    """Where a page begins: versions pinned by page one, the file's place in the answer, rows still wanted.

    `of` is the id of the table itself, as a `Pin` has it.
    """

    first: int
    last: int
    start: int
    rows_wanted: int | None = None
    latest: int = 0  # of a change data feed: the version whose metadata its first lines tell
    of: str = ""


@dataclass(frozen=True)
class _Stamped:
    """What both kinds of token hold: whose they are, and until when in seconds since 1970."""

    recipient: str
    table: str
    until: int


@dataclass(frozen=True)
class _PageToken(_Stamped):
    question: str
    page: Page


@dataclass(frozen=True)
class _RefreshToken(_Stamped):
    pin: Pin


Token = TypeVar("Token", _PageToken, _RefreshToken)


class TableTokens:
    """Makes and reads the tokens; lives are in seconds."""

    def __init__(self, key: bytes, page_life_s: int, refresh_life_s: int) -> None:
        self._pages, self._refreshes = Seals(key, "table page v1"), Seals(key, "table refresh v1")
        self._page_life_s, self._refresh_life_s = page_life_s, refresh_life_s

    def page_token(self, asker: Asker, question: Mapping[str, Any], page: Page) -> str:
        """The token of the page that begins there."""
        return self._pages.sealed(
            {**_stamp(asker, self._page_life_s), "question": _digest(question), "page": asdict(page)}
        )

    def page(self, asker: Asker, question: Mapping[str, Any], token: str) -> Page:
        """Where the page of a token begins.

        Raises:
            BadRequest: not one of ours, expired, or of another table, recipient or question.
        """
        found = _opened(self._pages, _PageToken, "page", token, asker)
        if found.question != _digest(question):
            raise BadRequest(
                "pageToken", token, f"Query parameter mismatch detected for the next page query. {PAGE_HINT}"
            )
        return found.page

    def refresh_token(self, asker: Asker, pin: Pin) -> str:
        """A token that asks for the files of a version again."""
        return self._refreshes.sealed({**_stamp(asker, self._refresh_life_s), "pin": asdict(pin)})

    def refreshed(self, asker: Asker, token: str) -> Pin:
        """What a refresh token pins.

        Raises:
            BadRequest: not one of ours, expired, or of another table or recipient.
        """
        return _opened(self._refreshes, _RefreshToken, "refresh", token, asker).pin


def require_same_table(kind: Literal["page", "refresh"], of: str, table_id: str) -> None:
    """Refuse a token of a table that stood where this one stands now.

    Raises:
        BadRequest: it is another table.
    """
    if of != table_id:
        raise _mismatch(kind, of)


def _stamp(asker: Asker, life_s: int) -> dict[str, Any]:
    return {"recipient": asker.recipient_id, "table": asker.table_id, "until": int(time.time()) + life_s}


def _mismatch(kind: Literal["page", "refresh"], told: str) -> BadRequest:
    words = f"The table specified in the {kind} token does not match the table being queried."
    return BadRequest(f"{kind}Token", told, f"{words} {HINTS[kind]}")


def _opened(
    seals: Seals, shape: type[Token], kind: Literal["page", "refresh"], token: str, asker: Asker
) -> Token:
    found, field, hint = seals.opened(token, shape), f"{kind}Token", HINTS[kind]
    article = "the " if kind == "page" else ""
    if found is None or found.recipient != asker.recipient_id:
        raise BadRequest(field, token, f"Error decoding {article}{kind} token. {hint}")
    if found.table != asker.table_id:
        raise _mismatch(kind, token)
    if found.until < time.time():
        raise BadRequest(field, token, f"The {kind} token has expired. {hint}")
    return found


def _digest(question: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
