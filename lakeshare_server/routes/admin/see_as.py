"""What a recipient gets, answered to an administrator by the very routes that answer the recipient."""

from urllib.parse import quote

from fastapi import APIRouter, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server.errors import BadRequest, Unauthenticated
from lakeshare_server.routes.admin.context import AdminRequest, ShareDep
from lakeshare_server.routes.seen_as import SEEN_AS, SeenAs, seen_as

router = APIRouter(tags=["see as"])
# What a request is made of; the rest belongs to the application that got it.
KEPT = ("type", "asgi", "http_version", "method", "scheme", "query_string", "client", "server", "extensions")
# The administrator's own: they stay here.
OWN_HEADERS = frozenset({b"authorization", b"cookie", b"if-match", b"x-forwarded-for"})


class SeenAnswer(Response):
    """The answer of another path of the server, passed on while it is made."""

    def __init__(self, app: ASGIApp, path: str, seen: SeenAs) -> None:
        super().__init__()
        self._app, self._path, self._seen = app, path, seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the path does."""
        asked = {name: scope[name] for name in KEPT if name in scope}
        headers = [(name, value) for name, value in scope["headers"] if name not in OWN_HEADERS]
        place = {"path": self._path, "raw_path": quote(self._path).encode(), "root_path": ""}
        state = dict(scope.get("state", {}))
        await self._app(
            {**asked, **place, "headers": headers, "state": state, SEEN_AS: self._seen}, receive, send
        )


@router.get("/recipients/{recipient}/as/{path:path}")
def see_as(by: ShareDep, recipient: str, path: str) -> Response:
    """What the protocol's path behind `as/` answers the recipient."""
    return _seen(by, recipient, path)


@router.post("/recipients/{recipient}/as/{path:path}")
def query_as(by: ShareDep, recipient: str, path: str) -> Response:
    """The same for queries, which come with URLs that open the recipient's files."""
    return _seen(by, recipient, path)


def _seen(by: AdminRequest, recipient: str, path: str) -> SeenAnswer:
    try:
        seen = seen_as(by.parts.catalog, recipient, by.by.name)
    except Unauthenticated as error:
        raise BadRequest("recipient", recipient, str(error)) from error
    endpoint = by.parts.settings.endpoint.rstrip("/")
    return SeenAnswer(by.request.app.state.server, f"{endpoint}/{path}", seen)
