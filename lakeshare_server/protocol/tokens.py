"""Page tokens and refresh tokens, bound to the table, the recipient, the query and a version.

A page token pins the version of page one (protocol §1.7), a refresh token pins a snapshot (protocol §0.16).
"""

import base64
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
    """Seals and opens the tokens of one purpose; tokens of another purpose do not open.

    The cipher is AES-SIV (RFC 5297): the same content gives the same token, and no nonce has to be unique.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._cipher = AESSIV(hmac.digest(key, f"lakeshare {purpose}".encode(), hashlib.sha512))

    def seal(self, content: Mapping[str, Any]) -> str:
        return self.seal_bytes(json.dumps(content, separators=(",", ":"), sort_keys=True).encode())

    def open(self, token: str, shape: type[Shape]) -> Shape | None:
        """The content of a token; None if the token is invalid or, sealed by another version, of another shape."""
        content, any_shape = self.open_bytes(token), cast(Any, shape)
        if content is None:
            return None
        try:
            opened: Shape = _adapter(any_shape).validate_json(content, strict=True)
        except ValidationError:
            return None
        return opened

    def seal_bytes(self, content: bytes) -> str:
        """A URL-safe token of at least one byte."""
        return _text(self._cipher.encrypt(content, None))

    def open_bytes(self, token: str) -> bytes | None:
        try:
            sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            # The last character has unused bits: only the text that was issued is a token.
            return self._cipher.decrypt(sealed, None) if _text(sealed) == token else None
        except (ValueError, InvalidTag):
            return None


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


TokenKind = Literal["page", "refresh"]
HINTS: dict[TokenKind, str] = {
    "page": "Pass on the nextPageToken of the page before, unchanged, or begin again without one.",
    "refresh": "Query again without refreshToken, with includeRefreshToken for a new one.",
}


@dataclass(frozen=True)
class TokenHolder:
    recipient_id: str
    table_id: str


@dataclass(frozen=True)
class Pin:
    """A version of a table; `of` is the table's own id, because another table may replace it."""

    version: int
    of: str


@dataclass(frozen=True)
class Page:
    """The start of a page in the pinned versions, and the rows still to find; `of` is the table's own id."""

    first: int
    last: int
    start: int
    rows_wanted: int | None = None
    latest: int = 0  # of a change data feed: the version of the metadata in its first lines
    of: str = ""


@dataclass(frozen=True)
class StampedToken:
    """What all tokens for tables contain; `until` is in seconds since 1970."""

    recipient: str
    table: str
    until: int


@dataclass(frozen=True)
class _PageToken(StampedToken):
    question: str
    page: Page


@dataclass(frozen=True)
class _RefreshToken(StampedToken):
    pin: Pin


Token = TypeVar("Token", _PageToken, _RefreshToken)


class TableTokens:
    def __init__(self, key: bytes, page_life_s: int, refresh_life_s: int) -> None:
        self._pages, self._refreshes = TokenSealer(key, "table page v1"), TokenSealer(key, "table refresh v1")
        self._page_life_s, self._refresh_life_s = page_life_s, refresh_life_s

    def page_token(self, token_holder: TokenHolder, question: Mapping[str, Any], page: Page) -> str:
        return self._pages.seal(
            {**stamp(token_holder, self._page_life_s), "question": _digest(question), "page": asdict(page)}
        )

    def page(self, token_holder: TokenHolder, question: Mapping[str, Any], token: str) -> Page:
        """The page of a token. Raises BadRequest if it is invalid, expired or of another query, table or recipient."""
        opened = _open(self._pages, _PageToken, "page", token, token_holder)
        if opened.question != _digest(question):
            hint = f"Query parameter mismatch detected for the next page query. {HINTS['page']}"
            raise BadRequest("pageToken", token, hint)
        return opened.page

    def refresh_token(self, token_holder: TokenHolder, pin: Pin) -> str:
        return self._refreshes.seal({**stamp(token_holder, self._refresh_life_s), "pin": asdict(pin)})

    def read_refresh_token(self, token_holder: TokenHolder, token: str) -> Pin:
        """What a token pins. Raises BadRequest if it is invalid, expired or another holder's."""
        return _open(self._refreshes, _RefreshToken, "refresh", token, token_holder).pin


def require_same_table(kind: TokenKind, of: str, table_id: str) -> None:
    """Refuses, with BadRequest, a token of a table that this table has replaced."""
    if of != table_id:
        raise _mismatch(kind, of)


def stamp(token_holder: TokenHolder, life_s: int) -> dict[str, Any]:
    return {
        "recipient": token_holder.recipient_id,
        "table": token_holder.table_id,
        "until": int(time.time()) + life_s,
    }


def _mismatch(kind: TokenKind, value: str) -> BadRequest:
    hint = f"The table specified in the {kind} token does not match the table being queried. {HINTS[kind]}"
    return BadRequest(f"{kind}Token", value, hint)


def _open(
    sealer: TokenSealer, shape: type[Token], kind: TokenKind, token: str, token_holder: TokenHolder
) -> Token:
    opened, field, hint = sealer.open(token, shape), f"{kind}Token", HINTS[kind]
    article = "the " if kind == "page" else ""
    if opened is None or opened.recipient != token_holder.recipient_id:
        raise BadRequest(field, token, f"Error decoding {article}{kind} token. {hint}")
    if opened.table != token_holder.table_id:
        raise _mismatch(kind, token)
    if opened.until < time.time():
        raise BadRequest(field, token, f"The {kind} token has expired. {hint}")
    return opened


def _digest(question: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]


class Keyed(Protocol):
    @property
    def key(self) -> int: ...


Entry = TypeVar("Entry", bound=Keyed)


@dataclass(frozen=True)
class PageRequest:
    max_results: str | None
    page_token: str | None


@dataclass(frozen=True)
class _ListingPage:
    holder: str
    listing: str
    after: int


class Pager:
    def __init__(self, key: bytes, page_size: int) -> None:
        self._sealer, self.page_size = TokenSealer(key, "listing page v2"), page_size

    def page(
        self, holder: str, listing: str, request: PageRequest, read: Callable[[int, int], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """A page and the next page's token; `read(after, limit)` returns entries. Raises BadRequest or its NotFound."""
        try:
            size = self.page_size
            if request.max_results is not None:
                size = min(parse_integer("maxResults", request.max_results, low=0, high=500), size)
            after = self._open(holder, listing, request.page_token) if request.page_token else 0
        except BadRequest:
            # Raises NotFound for a listing that the holder may not read.
            read(0, 1)
            raise
        entries = read(after, size + 1)
        if len(entries) <= size:
            return entries, None
        page = entries[:size]
        last = page[-1].key if page else after
        return page, self._sealer.seal({"holder": holder, "listing": listing, "after": last})

    def _open(self, holder: str, listing: str, token: str) -> int:
        opened = self._sealer.open(token, _ListingPage)
        if opened is None or (opened.holder, opened.listing) != (holder, listing):
            raise BadRequest("pageToken", token, "Pass on the nextPageToken of the page before, unchanged.")
        return opened.after
