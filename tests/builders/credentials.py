"""Recipients that get in by each way there is."""

from dataclasses import dataclass
from typing import Any

import httpx

from lakeshare_server.catalog.credentials import issue_token, put_policy
from lakeshare_server.catalog.sharing import create_recipient, editing, grant
from lakeshare_server.catalog.states import FederationPolicy, IssuedSecret, RecipientState
from tests.builders import plain_http
from tests.builders.sharing import Provider, Running

TOKEN, OAUTH, OIDC = "TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"


@dataclass(frozen=True)
class Known:
    """A recipient, and what it was given; nothing when it has an issuer of its own."""

    state: RecipientState
    given: IssuedSecret | None = None

    @property
    def secret(self) -> str:
        assert self.given is not None
        return self.given.secret


def a_recipient(
    provider: Provider,
    name: str,
    authentication: Any = TOKEN,
    *,
    shares: tuple[str, ...] = ("flights",),
    **options: Any,
) -> Known:
    """A recipient with grants on the shares, and a token or client secret."""
    with editing(provider.catalog, "tests") as edit:
        state = create_recipient(edit, name, authentication=authentication, **options)
        for share in shares:
            grant(edit, share, recipient=name)
        return Known(state, None if authentication == OIDC else issue_token(edit, name))


def a_policy(provider: Provider, recipient: str, issuer: str, **fields: Any) -> None:
    """Let a recipient in with tokens of an issuer."""
    wanted = {"name": "policy", "subject_claim": "sub", "subject": "acme-job", "audiences": ("lakeshare",)}
    with editing(provider.catalog, "tests") as edit:
        put_policy(edit, recipient, FederationPolicy(issuer=issuer, **{**wanted, **fields}))


def ask_token(running: Running, client: Known, **fields: str) -> httpx.Response:
    """Ask for an access token as the official clients do."""
    return plain_http.post(
        f"{running.url}/oauth/token",
        auth=(client.state.id, client.secret),
        data={"grant_type": "client_credentials", **fields},
        timeout=30,
    )
