"""Tokens that only this server can make and read: encrypted and authenticated, each for one purpose."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from pydantic import TypeAdapter, ValidationError

Shape = TypeVar("Shape")


class Seals:
    """Seals and opens the tokens of one purpose; those of another purpose do not open.

    The cipher is AES-SIV (RFC 5297): the same content gives the same token, and no nonce has to be unique.
    """

    def __init__(self, key: bytes, purpose: str) -> None:
        self._cipher = AESSIV(hmac.digest(key, f"lakeshare {purpose}".encode(), hashlib.sha512))

    def sealed(self, content: Mapping[str, Any]) -> str:
        """A URL-safe token."""
        return self.sealed_bytes(json.dumps(content, separators=(",", ":"), sort_keys=True).encode())

    def opened(self, token: str, shape: type[Shape]) -> Shape | None:
        """The content of a token, None when it is not one of ours or not of this shape.

        A token of another lakeshare version opens with the same key and may hold anything.
        """
        content, any_shape = self.opened_bytes(token), cast(Any, shape)
        if content is None:
            return None
        try:
            found: Shape = _adapter(any_shape).validate_json(content, strict=True)
        except ValidationError:
            return None
        return found

    def sealed_bytes(self, content: bytes) -> str:
        """A URL-safe token of bytes, of which there is at least one."""
        return _text(self._cipher.encrypt(content, None))

    def opened_bytes(self, token: str) -> bytes | None:
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
