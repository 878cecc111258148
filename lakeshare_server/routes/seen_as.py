"""Looking as a recipient: requests of this very process that the routes answer as if the recipient had asked.

Who is looked as stands in the ASGI scope, beside what a server puts there. Nothing that comes over a network becomes an
entry of the scope, so no header, path or token can do the same.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server.catalog import Catalog, Reader
from lakeshare_server.catalog.sharing import look
from lakeshare_server.errors import Unauthenticated

SEEN_AS = "lakeshare.seen_as"
AGENT = "lakeshare as"


@dataclass(frozen=True)
class SeenAs:
    """`by` administers, and looks at what the reader gets."""

    reader: Reader
    by: str


def seen_as(catalog: Catalog, recipient: str, by: str) -> SeenAs:
    """The eyes of a recipient, lent to `by`.

    Raises:
        NotFound: there is no such recipient.
        Unauthenticated: it was revoked, or has expired: it is let in nowhere, so there is nothing to see.
    """
    with catalog.reading() as session:
        found = look.recipient(session, recipient)
    if found.revoked_at is not None:
        raise Unauthenticated(
            f"{found.name} gets nothing: it was revoked on {found.revoked_at:%Y-%m-%d %H:%MZ}."
        )
    if found.expires_at is not None and found.expires_at <= datetime.now(UTC):
        raise Unauthenticated(f"{found.name} gets nothing: it expired on {found.expires_at:%Y-%m-%d %H:%MZ}.")
    return SeenAs(Reader(found.id, found.name), by)


def eyes(app: ASGIApp, seen: SeenAs, root: str) -> httpx.AsyncClient:
    """A client of the app below `root` that asks as the recipient; it sends no token, and needs none."""

    async def looked_at(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, SEEN_AS: seen, "client": None}, receive, send)

    transport = httpx.ASGITransport(looked_at, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=root, headers={"User-Agent": AGENT})
