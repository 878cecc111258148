"""Verification of tokens by the keys that their OIDC issuers publish.

Keys are cached for minutes; an unknown key is looked up immediately, so that issuers can rotate keys at any time.
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import jwt

from lakeshare_server.errors import Unauthenticated, Unavailable
from lakeshare_server.outbound import GuardedClient, Service, Services
from lakeshare_server.settings import ServerSettings

TIMEOUT_S = 5
MAX_DOCUMENT_BYTES = 1 << 20


class IssuerDocuments:
    """Fetches JSON over TLS from public addresses, and from the configured private hosts."""

    def __init__(self, private_hosts: str) -> None:
        self._client = GuardedClient(private_hosts)

    def fetch(
        self, url: str, within_s: float = TIMEOUT_S, form: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The JSON object at a URL, by POST if there is a form to send.

        Raises Unavailable if it is not complete in time or the URL is not allowed, Unauthenticated for a refused form.
        """
        try:
            document = json.loads(self._body(url, within_s, form))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(
                f"the issuer's {url} cannot be had: {error}",
                "Check that the server reaches it; LAKESHARE_OIDC_PRIVATE_HOSTS names hosts of your own network.",
            ) from error
        if not isinstance(document, dict):
            raise Unavailable(f"the issuer's {url} is not a JSON object", "Check the issuer of the policy.")
        return document

    def _body(self, url: str, within_s: float, form: Mapping[str, str] | None) -> bytes:
        headers = {"Accept": "application/json"}
        sent = None if form is None else urlencode(form).encode()
        if sent is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        method, limit = "GET" if sent is None else "POST", MAX_DOCUMENT_BYTES + 1
        response = self._client.request(method, url, headers, sent, within_s=within_s, max_bytes=limit)
        body = response.body
        if sent is not None and response.status in (400, 401):
            path = urlsplit(url).path
            raise Unauthenticated(f"The issuer's {path} refuses the sign-in ({response.status}).")
        if response.status != 200 or len(body) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"it answers {response.status} with {len(body)} bytes")
        return body


KEEP_S = 300.0
# Keys of an issuer that does not respond stay valid for this long.
STALE_S = 3600.0
# Minimum time between searches, because any token can name an unknown key.
PAUSE_S = 5.0
# Limit for all requests of one refresh.
TOTAL_S = 10.0
# Requests wait this long after the beginning of a refresh, at most `MAX_WAITERS` of them.
WAIT_S = 1.0
MAX_WAITERS = 16
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
# Deeply nested JSON raises RecursionError.
UNREADABLE = (jwt.PyJWTError, RecursionError)
RETRY_S = 2
DISCOVERY = "/.well-known/openid-configuration"

_log = logging.getLogger(__name__)


class Issuers:
    """Verifies tokens of issuers that administrators have configured; safe from any thread."""

    def __init__(self, settings: ServerSettings, services: Services | None = None) -> None:
        self._leeway_s = settings.oidc_leeway_s
        self._services = services or Services(settings.outside_answer_s)
        self._documents = IssuerDocuments(settings.oidc_private_hosts)
        self._keys: dict[str, PublishedKeys] = {}
        self._turn = threading.Lock()

    def verified_claims(self, token: str, issuer: str, audiences: Sequence[str]) -> Mapping[str, Any]:
        """The claims of a token for one of the audiences; `issuer` must be one that an administrator configured.

        Raises:
            Unauthenticated: the token is not the issuer's, not for these audiences, or not valid now.
            Unavailable: the issuer's keys are unavailable.
        """
        with self._turn:
            keys = self._keys.get(issuer)
            if keys is None:
                service = self._services.of(issuer, TOTAL_S)
                keys = self._keys[issuer] = PublishedKeys(issuer, self._documents, service)
        try:
            key = keys.named(jwt.get_unverified_header(token).get("kid"))
            return dict(
                jwt.decode(
                    token,
                    key.key,
                    # The key's algorithms, not the token's: never a symmetric algorithm or `none`.
                    algorithms=key.algorithms,
                    issuer=issuer,
                    audience=list(audiences),
                    leeway=self._leeway_s,
                    options={"require": ["exp", "iss", "aud"]},
                )
            )
        except UNREADABLE as error:
            raise Unauthenticated(f"The token of {issuer} is refused: {error}.") from error

    def endpoint(self, issuer: str, name: str) -> str:
        """The URL of an endpoint in the issuer's discovery document, like `token_endpoint`. Raises Unavailable."""
        service = self._services.of(issuer, TOTAL_S)
        about = service.call(lambda: self._documents.fetch(issuer.rstrip("/") + DISCOVERY, TOTAL_S))
        url = about.get(name)
        if about.get("issuer") != issuer or not isinstance(url, str):
            what = f"the discovery document of {issuer} has no usable {name}"
            raise Unavailable(what, "Check LAKESHARE_ADMIN_OIDC_ISSUER.")
        return url

    def redeem_code(self, issuer: str, form: Mapping[str, str]) -> str:
        """The ID token for an authorization code. Raises Unauthenticated if the issuer refuses it, or Unavailable."""
        url = self.endpoint(issuer, "token_endpoint")
        service = self._services.of(issuer, TOTAL_S)
        token = service.call(lambda: self._documents.fetch(url, TOTAL_S, form)).get("id_token")
        if not isinstance(token, str):
            raise Unauthenticated(f"{issuer} gives no ID token: ask it for the scope openid.")
        return token


def read_claimed_issuer(token: str) -> str | None:
    # A JWT begins as every JSON object in base64 does, and has two dots.
    if not (token.startswith("ey") and token.count(".") == 2):
        return None
    try:
        issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
    except UNREADABLE:
        return None
    return issuer if isinstance(issuer, str) else None


@dataclass(frozen=True)
class PublishedKey:
    key: Any  # a public key of the cryptography library, of any kind
    algorithms: Sequence[str]


class _Refresh:
    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self.is_over = threading.Event()
        self.waiters = 0


class PublishedKeys:
    """The keys of one issuer, refreshed by one thread at a time; requests wait for it up to `WAIT_S`."""

    def __init__(self, issuer: str, documents: IssuerDocuments, service: Service) -> None:
        self._issuer, self._documents, self._service = issuer, documents, service
        self._keys: dict[str | None, PublishedKey] = {}
        self._fetched_at = self._searched_at = self._failed_at = float("-inf")
        self._failure: Unavailable | None = None
        self._under_way: _Refresh | None = None
        self._turn = threading.Lock()

    def named(self, key_id: object) -> PublishedKey:
        """The key with this id, by default the only key. Raises PyJWTError if it is unknown, or Unavailable."""
        age_s = time.monotonic() - self._fetched_at
        if age_s >= KEEP_S:
            refresh = self._refresh()
            if age_s >= STALE_S:
                self._await(refresh)
        key = self._find(key_id)
        if key is None:
            with self._turn:
                now = time.monotonic()
                may_search = now - self._searched_at >= PAUSE_S
                self._searched_at = now if may_search else self._searched_at
            if may_search:
                self._await(self._refresh())
                key = self._find(key_id)
        if key is None:
            raise jwt.InvalidKeyError("its issuer has no such key")
        return key

    def _find(self, key_id: object) -> PublishedKey | None:
        keys = self._keys
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id) if isinstance(key_id, str) else None

    def _refresh(self) -> _Refresh | None:
        """The refresh in progress, started if there is none; None shortly after a failed refresh."""
        with self._turn:
            if self._under_way is None:
                if self._failure is not None and time.monotonic() - self._failed_at < PAUSE_S:
                    return None
                self._under_way = _Refresh()
                thread = threading.Thread(
                    target=self._fetch, args=(self._under_way,), name=f"keys of {self._issuer}", daemon=True
                )
                thread.start()
            return self._under_way

    def _await(self, refresh: _Refresh | None) -> None:
        """Waits for a refresh. Raises Unavailable if it failed or is not finished in time."""
        if refresh is not None:
            with self._turn:
                may_wait = refresh.waiters < MAX_WAITERS
                refresh.waiters += 1
            left_s = refresh.began_at + WAIT_S - time.monotonic()
            is_over = refresh.is_over.wait(max(0.0, left_s) if may_wait else 0.0)
            if not is_over:
                raise self._failure or Unavailable(
                    f"the keys of the issuer {self._issuer} are not available yet", "Try again.", RETRY_S
                )
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _fetch(self, refresh: _Refresh) -> None:
        failure: Unavailable | None = None
        try:
            keys = self._service.call(self._published)
        except Unavailable as error:
            failure = error
        # The thread must not die silently: requests for the keys get this failure.
        except Exception as error:
            _log.exception("the keys of %s", self._issuer)
            failure = Unavailable(
                f"the keys of {self._issuer} cannot be used ({type(error).__name__})", "Check the issuer."
            )
        with self._turn:
            now = time.monotonic()
            if failure is None:
                self._keys, self._fetched_at = keys, now
            else:
                self._failed_at = now
                _log.warning("%s", failure)
            self._failure, self._under_way = failure, None
        refresh.is_over.set()

    def _published(self) -> dict[str | None, PublishedKey]:
        ends_at = time.monotonic() + TOTAL_S
        about = self._documents.fetch(self._issuer.rstrip("/") + DISCOVERY, TOTAL_S)
        name, keys_url = about.get("issuer"), about.get("jwks_uri")
        if name != self._issuer or not isinstance(keys_url, str):
            raise Unavailable(
                f"the issuer {self._issuer} calls itself {name!r} and its keys {keys_url!r}",
                "Name it in the policy as it names itself.",
            )
        published = self._documents.fetch(keys_url, ends_at - time.monotonic()).get("keys")
        keys = {
            jwk.get("kid"): key
            for jwk in (published if isinstance(published, list) else [])
            if isinstance(jwk, dict)
            and isinstance(jwk.get("kid"), str | None)
            and (key := _parse_jwk(jwk)) is not None
        }
        if not keys:
            raise Unavailable(f"{keys_url} has no keys that sign", "Check the issuer of the policy.")
        return keys


def _parse_jwk(jwk: dict[str, Any]) -> PublishedKey | None:
    declared = jwk.get("alg")
    algorithms = [name for name in ALGORITHMS.get(str(jwk.get("kty")), ()) if declared in (None, name)]
    if not algorithms or jwk.get("use") == "enc":
        return None
    try:
        return PublishedKey(jwt.PyJWK(jwk).key, algorithms)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError):
        # An unusable key does not affect the other keys.
        return None
