"""What a recipient gets, shown to an administrator: the answer of the route that answers the recipient, as it comes."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server.errors import BadRequest, Unauthenticated
from lakeshare_server.routes.admin.context import AdminRequest, ShareDep
from lakeshare_server.routes.seen_as import SEEN_AS, seen_as

router = APIRouter(tags=["recipients"])
# The administrator's own, which the other request is not made with.
OWN_HEADERS = frozenset({b"authorization", b"cookie", b"if-match", b"x-forwarded-for"})
ANY_BODY = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}


class SentOn(Response):
    """Whatever an application answers another request with; nothing of it is kept back or held in memory."""

    def __init__(self, app: ASGIApp, scope: Scope) -> None:
        super().__init__()
        self._app, self._scope = app, scope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(self._scope, receive, send)


@router.get("/recipients/{recipient}/as/{path:path}", response_class=Response)
def see_as_recipient(by: ShareDep, recipient: str, path: str) -> Response:
    """What the recipient gets for a GET of this path below the protocol's root. URLs in it are signed for it."""
    return _looked_at(by, recipient, path)


@router.post("/recipients/{recipient}/as/{path:path}", response_class=Response, openapi_extra=ANY_BODY)
def ask_as_recipient(by: ShareDep, recipient: str, path: str) -> Response:
    """What the recipient gets for a POST of this body, such as a query."""
    return _looked_at(by, recipient, path)


def _looked_at(by: AdminRequest, recipient: str, path: str) -> Response:
    try:
        seen = seen_as(by.parts.catalog, recipient, by.by.name)
    except Unauthenticated as error:
        # It is the recipient that is let in nowhere; whoever asks has a good key.
        raise BadRequest("recipient", recipient, str(error)) from error
    asked, root = by.request.scope, by.parts.settings.endpoint.rstrip("/")
    kept = ("type", "asgi", "http_version", "method", "scheme", "server", "query_string")
    scope: dict[str, Any] = {name: asked[name] for name in kept if name in asked}
    scope |= {
        "path": f"{root}/{path}",
        "raw_path": quote(f"{root}/{path}").encode(),
        "root_path": "",
        "headers": [(name, value) for name, value in asked["headers"] if name not in OWN_HEADERS],
        "client": None,
        SEEN_AS: seen,
    }
    return SentOn(by.request.app.state.sharing, scope)
