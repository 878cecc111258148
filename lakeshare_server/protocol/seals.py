"""Tokens that only this server can have made: what they say is open to read, but not to change."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

SEAL_BYTES = 16


class Seals:
    """Seals and opens the tokens of one purpose; those of another purpose do not open."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = hmac.digest(key, f"lakeshare {purpose}".encode(), hashlib.sha256)

    def sealed(self, said: Mapping[str, Any]) -> str:
        """A URL-safe token."""
        text = json.dumps(said, separators=(",", ":"), sort_keys=True).encode()
        return base64.urlsafe_b64encode(self._seal(text) + text).decode().rstrip("=")

    def opened(self, token: str) -> dict[str, Any] | None:
        """What the token says, None when it is not one of ours."""
        try:
            sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        seal, text = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
        if not hmac.compare_digest(seal, self._seal(text)):
            return None
        said: dict[str, Any] = json.loads(text)
        return said

    def _seal(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, hashlib.sha256)[:SEAL_BYTES]
