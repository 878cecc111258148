"""Sessions of the console: a sealed cookie, form tokens against forged requests, and the end of sessions.

A session of a key ends with the key, and has the key's role of now. Signing out ends it on all hosts.
"""

import secrets
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from starlette.responses import Response

from lakeshare_server.access.authentication import Administrator
from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.credentials import (
    Role,
    end_console_session,
    get_admin_key,
    has_console_session_ended,
)
from lakeshare_server.errors import Denied, Unauthenticated
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
