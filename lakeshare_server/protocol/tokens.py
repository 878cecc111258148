"""Page tokens and refresh tokens of a table: bound to the table, the recipient and the question, and to a version.

A page token pins what page one saw, so that commits made between pages are not seen (protocol §1.7); a refresh
token pins a snapshot (protocol §0.16).
"""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, Protocol, TypeVar, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from pydantic import TypeAdapter, ValidationError

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.requests import parse_integer

Shape = TypeVar("Shape")


class TokenSealer:
    """Seals and opens the tokens of one purpose; those of another purpose do not open.

    The cipher is AES-SIV (RFC 5297): the same content gives the same token, and no nonce has to be unique.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._cipher = AESSIV(hmac.digest(key, f"lakeshare {purpose}".encode(), hashlib.sha512))

    def seal(self, content: Mapping[str, Any]) -> str:
        """A URL-safe token."""
        return self.seal_bytes(json.dumps(content, separators=(",", ":"), sort_keys=True).encode())

    def open(self, token: str, shape: type[Shape]) -> Shape | None:
        """The content of a token, None when it is not one of ours or not of this shape.

        A token of another lakeshare version opens with the same key and may hold anything.
        """
        content, any_shape = self.open_bytes(token), cast(Any, shape)
        if content is None:
            return None
        try:
            found: Shape = _adapter(any_shape).validate_json(content, strict=True)
        except ValidationError:
            return None
        return found

    def seal_bytes(self, content: bytes) -> str:
        """A URL-safe token of bytes, of which there is at least one."""
        return _text(self._cipher.encrypt(content, None))

    def open_bytes(self, token: str) -> bytes | None:
        """The bytes in a token, None when it is not one of ours."""
        try:
            sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            # The last character may hold bits that say nothing: only the text that was made is a token.
            return self._cipher.decrypt(sealed, None) if _text(sealed) == token else None
        except (binascii.Error, ValueError, InvalidTag):
            return None


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


PAGE_HINT = "Pass on the nextPageToken of the page before, unchanged, or begin again without one."
REFRESH_HINT = "Query again without refreshToken, with includeRefreshToken for a new one."
HINTS = {"page": PAGE_HINT, "refresh": REFRESH_HINT}


@dataclass(frozen=True)
class TokenHolder:
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
class _StampedToken:
    """What both kinds of token hold: whose they are, and until when in seconds since 1970."""

    recipient: str
    table: str
    until: int


@dataclass(frozen=True)
class _PageToken(_StampedToken):
    question: str
    page: Page


@dataclass(frozen=True)
class _RefreshToken(_StampedToken):
    pin: Pin


Token = TypeVar("Token", _PageToken, _RefreshToken)


class TableTokens:
    """Makes and reads the tokens; lives are in seconds."""

    def __init__(self, key: bytes, page_life_s: int, refresh_life_s: int) -> None:
        self._pages, self._refreshes = TokenSealer(key, "table page v1"), TokenSealer(key, "table refresh v1")
        self._page_life_s, self._refresh_life_s = page_life_s, refresh_life_s

    def page_token(self, token_holder: TokenHolder, question: Mapping[str, Any], page: Page) -> str:
        """The token of the page that begins there."""
        return self._pages.seal(
            {**_stamp(token_holder, self._page_life_s), "question": _digest(question), "page": asdict(page)}
        )

    def page(self, token_holder: TokenHolder, question: Mapping[str, Any], token: str) -> Page:
        """Where the page of a token begins.

        Raises:
            BadRequest: not one of ours, expired, or of another table, recipient or question.
        """
        found = _open(self._pages, _PageToken, "page", token, token_holder)
        if found.question != _digest(question):
            raise BadRequest(
                "pageToken", token, f"Query parameter mismatch detected for the next page query. {PAGE_HINT}"
            )
        return found.page

    def refresh_token(self, token_holder: TokenHolder, pin: Pin) -> str:
        """A token that asks for the files of a version again."""
        return self._refreshes.seal({**_stamp(token_holder, self._refresh_life_s), "pin": asdict(pin)})

    def read_refresh_token(self, token_holder: TokenHolder, token: str) -> Pin:
        """What a refresh token pins.

        Raises:
            BadRequest: not one of ours, expired, or of another table or recipient.
        """
        return _open(self._refreshes, _RefreshToken, "refresh", token, token_holder).pin


def require_same_table(kind: Literal["page", "refresh"], of: str, table_id: str) -> None:
    """Refuse a token of a table that stood where this one stands now.

    Raises:
        BadRequest: it is another table.
    """
    if of != table_id:
        raise _mismatch(kind, of)


def _stamp(token_holder: TokenHolder, life_s: int) -> dict[str, Any]:
    return {
        "recipient": token_holder.recipient_id,
        "table": token_holder.table_id,
        "until": int(time.time()) + life_s,
    }


def _mismatch(kind: Literal["page", "refresh"], told: str) -> BadRequest:
    words = f"The table specified in the {kind} token does not match the table being queried."
    return BadRequest(f"{kind}Token", told, f"{words} {HINTS[kind]}")


def _open(
    seals: TokenSealer,
    shape: type[Token],
    kind: Literal["page", "refresh"],
    token: str,
    token_holder: TokenHolder,
) -> Token:
    found, field, hint = seals.open(token, shape), f"{kind}Token", HINTS[kind]
    article = "the " if kind == "page" else ""
    if found is None or found.recipient != token_holder.recipient_id:
        raise BadRequest(field, token, f"Error decoding {article}{kind} token. {hint}")
    if found.table != token_holder.table_id:
        raise _mismatch(kind, token)
    if found.until < time.time():
        raise BadRequest(field, token, f"The {kind} token has expired. {hint}")
    return found


def _digest(question: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]


HINT = "Pass on the nextPageToken of the page before, unchanged."


class Keyed(Protocol):
    """An entry of a listing."""

    @property
    def key(self) -> int: ...


Entry = TypeVar("Entry", bound=Keyed)


@dataclass(frozen=True)
class PageRequest:
    """`maxResults` and `pageToken` as they were sent."""

    max_results: str | None
    page_token: str | None


@dataclass(frozen=True)
class _ListingPage:
    """What a token holds; `after` is a key of the catalog, which clients do not see."""

    holder: str
    listing: str
    after: int


class Pager:
    """Cuts listings into pages; a token is refused by any other listing, and from anybody but its holder."""

    def __init__(self, key: bytes, page_size: int) -> None:
        self._seals, self.page_size = TokenSealer(key, "listing page v2"), page_size

    def page(
        self, holder: str, listing: str, request: PageRequest, read: Callable[[int, int], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The page's entries and the next page's token; `read(after, limit)` gets the entries for the holder.

        Raises:
            BadRequest: `maxResults` is no number from 0 to the page size, or the token is not one of ours.
            NotFound: as `read`, whatever is wrong with the request.
        """
        try:
            size = self._size(request.max_results)
            after = self._after(holder, listing, request.page_token) if request.page_token else 0
        except BadRequest:
            # Whoever may not see the listing is told that first.
            read(0, 1)
            raise
        entries = read(after, size + 1)
        if len(entries) <= size:
            return entries, None
        page = entries[:size]
        return page, self._token(holder, listing, page[-1].key if page else after)

    def _size(self, max_results: str | None) -> int:
        if max_results is None:
            return self.page_size
        return min(parse_integer("maxResults", max_results, low=0, high=500), self.page_size)

    def _token(self, holder: str, listing: str, after: int) -> str:
        return self._seals.seal({"holder": holder, "listing": listing, "after": after})

    def _after(self, holder: str, listing: str, token: str) -> int:
        found = self._seals.open(token, _ListingPage)
        if found is None or (found.holder, found.listing) != (holder, listing):
            raise BadRequest("pageToken", token, HINT)
        return found.after
