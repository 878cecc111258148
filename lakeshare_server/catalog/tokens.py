"""Bearer tokens of recipients: random, shown once, kept only as their SHA-256."""

import hashlib
import secrets

TOKEN_BYTES = 32


def new_token() -> str:
    """A fresh URL-safe bearer token of 256 random bits."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_digest(token: str) -> str:
    """The SHA-256 of `token` in hex: what the catalog stores and looks up."""
    return hashlib.sha256(token.encode()).hexdigest()
