"""Sessions of the console: a sealed cookie, form tokens against forged requests, sign-in by the issuer, and sign-out.

A session of a key ends with the key, and has the key's role of now. Signing out ends it on all hosts.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from starlette.responses import Response

from lakeshare_server.access.authentication import AdminIssuer, Administrator
from lakeshare_server.access.oidc import Issuers
from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.credentials import (
    Role,
    end_console_session,
    get_admin_key,
    has_console_session_ended,
)
from lakeshare_server.errors import BadRequest, Denied, Unauthenticated
from lakeshare_server.protocol.tokens import TokenSealer
from lakeshare_server.settings import CONSOLE_PATH, ServerSettings

COOKIE = "lakeshare_console"
SIGN_IN = "Sign in to the console."
OTHER_SITE = (
    "The form is not one of this session. Open the page again and repeat the change; if another site has brought you "
    "here, it tried to make the change in your name."
)


@dataclass(frozen=True)
class ConsoleSession:
    """A signed-in administrator; `key_id` is that of the key, None for a token of the issuer; `until` in seconds."""

    id: str
    name: str
    role: Role
    key_id: str | None
    until: int


class ConsoleSessions:
    def __init__(self, key: bytes, catalog: Catalog, settings: ServerSettings) -> None:
        self._cookies, self._forms = (
            TokenSealer(key, "console session v1"),
            TokenSealer(key, "console form v1"),
        )
        self._catalog, self._life_s = catalog, settings.console_session_s
        # Browsers send it to the paths of the console only, and never with requests that other sites make but links.
        self._options = {
            "path": settings.root_path() + CONSOLE_PATH,
            "secure": (settings.public_url or "").startswith("https:"),
            "httponly": True,
            "samesite": "lax",
        }

    def begin(self, response: Response, administrator: Administrator) -> None:
        """Sets the cookie of a new session; its id is new at each sign-in."""
        with self._catalog.reading() as session:
            key = get_admin_key(session, administrator.name)
        begun = ConsoleSession(
            secrets.token_hex(16),
            administrator.name,
            administrator.role,
            None if key is None else key.id,
            int(time.time()) + self._life_s,
        )
        response.set_cookie(COOKIE, self._cookies.seal(asdict(begun)), self._life_s, **self._options)  # type: ignore[arg-type]

    def end(self, response: Response, session: ConsoleSession) -> None:
        """Ends a session for all hosts and removes its cookie."""
        end_console_session(self._catalog, session.id, datetime.fromtimestamp(session.until, UTC))
        response.delete_cookie(COOKIE, **self._options)  # type: ignore[arg-type]

    def open(self, cookie: str | None) -> ConsoleSession:
        """The session of a cookie. Raises Unauthenticated if there is none, or an invalid or expired one."""
        session = self._cookies.open(cookie or "", ConsoleSession)
        if session is None or session.until <= time.time():
            raise Unauthenticated(SIGN_IN)
        return session

    def administrator(self, session: ConsoleSession) -> Administrator:
        """The administrator of a session as of now. Raises Unauthenticated."""
        with self._catalog.reading() as reading:
            key = None if session.key_id is None else get_admin_key(reading, session.name)
            has_ended = has_console_session_ended(reading, session.id)
        if session.key_id is None:
            role = session.role
        elif key is None or key.id != session.key_id or not key.is_valid(datetime.now(UTC)):
            raise Unauthenticated(
                "The key of this session has expired or was revoked. Sign in with another one."
            )
        else:
            role = key.role
        if has_ended:
            raise Unauthenticated(SIGN_IN)
        return Administrator(session.name, role)

    def form_token(self, session: ConsoleSession) -> str:
        """The field of forms that shows that a page of this session has them."""
        return self._forms.seal({"session": session.id})

    def require_form_token(self, token: str, session: ConsoleSession) -> None:
        """Raises Denied if the token is not that of the session."""
        if not secrets.compare_digest(token.encode(), self.form_token(session).encode()):
            raise Denied(OTHER_SITE)


SIGN_IN_COOKIE = "lakeshare_console_sign_in"
SIGN_IN_S = 600
CALLBACK = "/sign-in/callback"


@dataclass(frozen=True)
class _SignIn:
    """A sign-in that has begun: what the issuer's answer must repeat, and the page that opens afterwards."""

    state: str
    nonce: str
    verifier: str
    next_path: str
    until: int


class IssuerSignIn:
    """Sign-in by the administrators' issuer: OpenID Connect, authorization code with PKCE (RFC 7636).

    Raises BadRequest if the settings name a client and no issuer.
    """

    def __init__(self, key: bytes, settings: ServerSettings, issuers: Issuers) -> None:
        issuer, client_id = settings.admin_oidc_issuer, settings.console_oidc_client_id
        if client_id is not None and issuer is None:
            hint = "Name the issuer in LAKESHARE_ADMIN_OIDC_ISSUER."
            raise BadRequest("LAKESHARE_CONSOLE_OIDC_CLIENT_ID", client_id, hint)
        self._issuer = AdminIssuer(issuer, settings) if issuer is not None and client_id is not None else None
        self._client_id, self._secret = client_id or "", settings.console_oidc_client_secret
        self._scopes, self._issuers = settings.console_oidc_scopes, issuers
        self._redirect_uri = settings.console_url() + CALLBACK
        self._cookies = TokenSealer(key, "console sign-in v1")
        self._options = {
            "path": settings.root_path() + CONSOLE_PATH + "/sign-in",
            "secure": (settings.public_url or "").startswith("https:"),
            "httponly": True,
            # The issuer's page leads back here, which is a request from another site.
            "samesite": "lax",
        }

    @property
    def issuer(self) -> str | None:
        """The issuer; None if administrators sign in with keys only."""
        return None if self._issuer is None else self._issuer.issuer

    def begin(self, next_path: str) -> tuple[str, str]:
        """The URL of the issuer's page, and the cookie of this sign-in. Raises BadRequest or Unavailable."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        sign_in = _SignIn(state, nonce, verifier, next_path, int(time.time()) + SIGN_IN_S)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(sign_in.verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": self._scopes,
            "state": sign_in.state,
            "nonce": sign_in.nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        url = self._issuers.endpoint(self._require_issuer().issuer, "authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", self._cookies.seal(asdict(sign_in))

    def set_cookie(self, response: Response, cookie: str) -> None:
        response.set_cookie(SIGN_IN_COOKIE, cookie, SIGN_IN_S, **self._options)  # type: ignore[arg-type]

    def finish(self, cookie: str | None, answer: Mapping[str, str]) -> tuple[Administrator, str]:
        """The administrator of the issuer's answer, and the page to open.

        Raises Unauthenticated, Denied without a role, or Unavailable.
        """
        issuer = self._require_issuer()
        sign_in = self._cookies.open(cookie or "", _SignIn)
        if sign_in is None or sign_in.until <= time.time():
            raise Unauthenticated("This sign-in has expired. Begin it again.")
        if not secrets.compare_digest(answer.get("state", "").encode(), sign_in.state.encode()):
            raise Unauthenticated("The answer belongs to another sign-in. Begin it again.")
        if "code" not in answer:
            reason = answer.get("error_description") or answer.get("error") or "no code"
            raise Unauthenticated(f"{issuer.issuer} refuses the sign-in: {reason[:200]}.")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": self._redirect_uri,
            "client_id": self._client_id,
            "code_verifier": sign_in.verifier,
        }
        if self._secret is not None:
            form["client_secret"] = self._secret.get_secret_value()
        token = self._issuers.redeem_code(issuer.issuer, form)
        claims = self._issuers.verified_claims(token, issuer.issuer, [self._client_id])
        if claims.get("nonce") != sign_in.nonce:
            raise Unauthenticated("The ID token belongs to another sign-in. Begin it again.")
        return issuer.administrator(claims), sign_in.next_path

    def _require_issuer(self) -> AdminIssuer:
        if self._issuer is None:
            raise BadRequest(
                "issuer", None, "This server has no issuer to sign in by; use an administrator's key."
            )
        return self._issuer
