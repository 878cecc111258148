"""What routes are given: the app's parts, the recipient behind the token, and the note for the audit log."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from lakeshare_server.access.authentication import authenticate
from lakeshare_server.access.view import Views
from lakeshare_server.catalog import AuditLog, Catalog, Reader, Recipients, TableEntry
from lakeshare_server.errors import MalformedRequest
from lakeshare_server.protocol.capabilities import HEADER, Capabilities, parse_capabilities
from lakeshare_server.protocol.paging import Pager, PageRequest
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing import LocalSigner


@dataclass(frozen=True)
class Parts:
    """The parts of a running server."""

    settings: ServerSettings
    catalog: Catalog
    views: Views
    pager: Pager
    signer: LocalSigner
    audit: AuditLog


@dataclass
class Note:
    """What the audit log will say of a request; filled in by whoever learns it."""

    request_id: str
    action: str = "unknown"
    recipient: str | None = None
    object_name: str | None = None
    error_code: str | None = None
    version: int | None = None
    files: int | None = None

    def count(self, files: int) -> None:
        """Add files whose URLs were handed out."""
        self.files = (self.files or 0) + files


# What only looks at the request is `async`: the framework sends every other dependency through a thread.
async def parts_of(request: Request) -> Parts:
    """The parts of the server that got this request."""
    parts: Parts = request.app.state.parts
    return parts


async def note_of(request: Request) -> Note:
    """The request's note for the audit log."""
    note: Note = request.state.note
    return note


PartsDep = Annotated[Parts, Depends(parts_of)]
NoteDep = Annotated[Note, Depends(note_of)]


def _recipient(request: Request, parts: PartsDep, note: NoteDep) -> Reader:
    # The route's name and object are noted first: a refusal is to say what it was that was refused.
    note.action = request.scope["route"].name
    names = [
        request.path_params[name] for name in ("share", "schema", "table") if name in request.path_params
    ]
    note.object_name = ".".join(names) or None
    reader = authenticate(Recipients(parts.catalog), request.headers.get("authorization"))
    note.recipient = reader.name
    return reader


RecipientDep = Annotated[Reader, Depends(_recipient)]


def _table(recipient: RecipientDep, parts: PartsDep, share: str, schema: str, table: str) -> TableEntry:
    return parts.views.table(recipient, share, schema, table)


async def _page(request: Request) -> PageRequest:
    return PageRequest(request.query_params.get("maxResults"), request.query_params.get("pageToken"))


async def _capabilities(request: Request) -> Capabilities:
    return parse_capabilities(request.headers.get(HEADER))


async def _body(request: Request, parts: PartsDep, _: RecipientDep) -> bytes:
    limit = parts.settings.max_body_bytes
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise MalformedRequest(
                f"the body is larger than {limit} bytes", "Ask with fewer or shorter hints."
            )
    return bytes(body)


TableDep = Annotated[TableEntry, Depends(_table)]
PageDep = Annotated[PageRequest, Depends(_page)]
CapabilitiesDep = Annotated[Capabilities, Depends(_capabilities)]
BodyDep = Annotated[bytes, Depends(_body)]
