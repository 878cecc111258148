"""From where a request comes, put right for everything behind; and what its answer signed, counted at its end."""

from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server.access.addresses import Proxies
from lakeshare_server.access.limits import Limits
from lakeshare_server.routes.context import Note

FORWARDED = b"x-forwarded-for"


class ClientAddress:
    """Puts the address of the client in the place of a believed proxy's."""

    def __init__(self, app: ASGIApp, proxies: Proxies) -> None:
        self.app, self.proxies = app, proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if scope["type"] == "http" and peer is not None:
            forwarded = (value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED)
            address = self.proxies.client(peer[0], forwarded)
            scope["client"] = None if address is None else (address, peer[1])
        await self.app(scope, receive, send)


class Metering:
    """Counts what was signed against the recipient's limits when its answer has ended, whole or not."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            note: Note | None = scope.get("state", {}).get("note")
            if note is not None and note.access is not None and note.files:
                self.limits.has_signed(note.access, note.files, note.size_bytes or 0)
