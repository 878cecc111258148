"""Tokens that an OIDC issuer signed, verified by the keys that it publishes.

Keys are kept for minutes; one that is not known yet is looked for at once, so that an issuer may change its keys
whenever it likes. Whose token it is, and what that allows, is decided by who asks.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from lakeshare_server.access.issuer_documents import IssuerDocuments
from lakeshare_server.errors import Unauthenticated, Unavailable
from lakeshare_server.settings import ServerSettings

KEEP_S = 300.0
# What an issuer that does not answer has published before is good for this long.
STALE_S = 3600.0
# Any token can name a key that nobody has: the issuer is not asked again for each.
PAUSE_S = 5.0
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
# The library lets through what JSON of a thousand brackets leads to.
UNREADABLE = (jwt.PyJWTError, RecursionError)
DISCOVERY = "/.well-known/openid-configuration"


class Issuers:
    """Verifies tokens of any issuer that somebody who administers has named; safe from any thread."""

    def __init__(self, settings: ServerSettings) -> None:
        self._leeway_s = settings.oidc_leeway_s
        self._documents = IssuerDocuments(settings.oidc_private_hosts)
        self._keys: dict[str, PublishedKeys] = {}
        self._turn = threading.Lock()

    def verified_claims(self, token: str, issuer: str, audiences: Sequence[str]) -> Mapping[str, Any]:
        """What the issuer says in a token for one of the audiences, once its signature and times are right.

        `issuer` is one that an administrator has named: it is asked for its keys.

        Raises:
            Unauthenticated: the token is not the issuer's, not for these audiences, or not valid now.
            Unavailable: the issuer's keys cannot be had now.
        """
        with self._turn:
            keys = self._keys.setdefault(issuer, PublishedKeys(issuer, self._documents))
        try:
            key = keys.named(jwt.get_unverified_header(token).get("kid"))
            return dict(
                jwt.decode(
                    token,
                    key.key,
                    # Those of this key, whatever the token says: never a symmetric one, nor none.
                    algorithms=key.algorithms,
                    issuer=issuer,
                    audience=list(audiences),
                    leeway=self._leeway_s,
                    options={"require": ["exp", "iss", "aud"]},
                )
            )
        except UNREADABLE as error:
            raise Unauthenticated(f"The token of {issuer} is refused: {error}.") from error


def claimed_issuer(token: str) -> str | None:
    """Which issuer a token says it is of, without a look at its signature; None when it is no such token."""
    # It begins as every JSON object in base64 does, and has two dots.
    if not (token.startswith("ey") and token.count(".") == 2):
        return None
    try:
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except UNREADABLE:
        return None
    return issuer if isinstance(issuer, str) else None


@dataclass(frozen=True)
class PublishedKey:
    """A key, and what may be signed with it."""

    key: Any  # a public key of the cryptography library, of any kind
    algorithms: Sequence[str]


class PublishedKeys:
    """The keys of one issuer, as it published them last."""

    def __init__(self, issuer: str, documents: IssuerDocuments) -> None:
        self._issuer, self._documents = issuer, documents
        self._keys: dict[str | None, PublishedKey] = {}
        self._fetched_at = self._searched_at = self._failed_at = float("-inf")
        self._failure: Unavailable | None = None
        self._turn = threading.Lock()

    def named(self, key_id: object) -> PublishedKey:
        """The key with this id; a token without one means the only key there is.

        Raises:
            PyJWTError: the issuer has none.
            Unavailable: it cannot be asked now.
        """
        self._refresh(since=KEEP_S)
        found = self._find(key_id)
        if found is None and self._may_search():
            self._refresh(since=0)
            found = self._find(key_id)
        if found is None:
            raise jwt.InvalidKeyError("its issuer has no such key")
        return found

    def _find(self, key_id: object) -> PublishedKey | None:
        keys = self._keys
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id) if isinstance(key_id, str) else None

    def _may_search(self) -> bool:
        with self._turn:
            now = time.monotonic()
            if now - self._searched_at < PAUSE_S:
                return False
            self._searched_at = now
            return True

    def _refresh(self, since: float) -> None:
        """Fetch the keys unless that was done within `since` seconds; one thread does, the others take what it got."""
        asked_at = time.monotonic()
        if asked_at - self._fetched_at < since:
            return
        has_usable = asked_at - self._fetched_at < STALE_S
        if not self._turn.acquire(blocking=not has_usable or since == 0):
            return
        try:
            if self._fetched_at < asked_at:
                self._fetch(has_usable)
        finally:
            self._turn.release()

    def _fetch(self, has_usable: bool) -> None:
        if time.monotonic() - self._failed_at >= PAUSE_S:
            try:
                self._keys = self._published()
                self._fetched_at, self._failure = time.monotonic(), None
            except Unavailable as error:
                self._failed_at, self._failure = time.monotonic(), error
        if self._failure is not None and not has_usable:
            raise self._failure

    def _published(self) -> dict[str | None, PublishedKey]:
        about = self._documents.fetch(self._issuer.rstrip("/") + DISCOVERY)
        said, place = about.get("issuer"), about.get("jwks_uri")
        if said != self._issuer or not isinstance(place, str):
            raise Unavailable(
                f"the issuer {self._issuer} calls itself {said!r} and its keys {place!r}",
                "Name it in the policy as it names itself.",
            )
        published = self._documents.fetch(place).get("keys")
        keys = {
            jwk.get("kid"): key
            for jwk in (published if isinstance(published, list) else [])
            if isinstance(jwk, dict)
            and isinstance(jwk.get("kid"), str | None)
            and (key := _usable(jwk)) is not None
        }
        if not keys:
            raise Unavailable(f"{place} has no keys that sign", "Check the issuer of the policy.")
        return keys


def _usable(jwk: dict[str, Any]) -> PublishedKey | None:
    fitting = ALGORITHMS.get(str(jwk.get("kty")), ())
    declared = jwk.get("alg")
    algorithms = fitting if declared is None else tuple(name for name in fitting if name == declared)
    if not algorithms or jwk.get("use") == "enc":
        return None
    try:
        return PublishedKey(jwt.PyJWK(jwk).key, algorithms)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError):
        # One of a kind that is not known here, or with fields of other types, beside others that are usable.
        return None
