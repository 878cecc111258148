"""What routes are given: the app's parts, the recipient behind the token, and the note for the audit log."""

from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.async_worker import AsyncWorker
from lakeshare_server.access.authentication import Readers
from lakeshare_server.access.view import TableView, Views
from lakeshare_server.catalog import AsyncQueries, AuditLog, Catalog, Reader
from lakeshare_server.errors import BadRequest, MalformedRequest
from lakeshare_server.protocol.capabilities import HEADER, Capabilities, parse_capabilities
from lakeshare_server.protocol.negotiation import ResponseFormat
from lakeshare_server.protocol.paging import Pager, PageRequest
from lakeshare_server.protocol.table_tokens import TableTokens
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing import LocalSigner, Signers

FILE_IDS_HEADER = "fileidhash"


@dataclass(frozen=True)
class Parts:
    """The parts of a running server."""

    settings: ServerSettings
    catalog: Catalog
    readers: Readers
    views: Views
    pager: Pager
    tokens: TableTokens
    local_signer: LocalSigner
    signers: Signers
    async_queries: AsyncQueries
    async_worker: AsyncWorker
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


@dataclass(frozen=True)
class Wants:
    """What the headers of a table's request say: what the client can take, and which file ids it insists on."""

    capabilities: Capabilities
    file_ids: ResponseFormat | None

    def without_end(self) -> "Wants":
        """The same where a closing line is not offered."""
        return replace(self, capabilities=replace(self.capabilities, wants_end_stream_action=False))


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


async def _recipient(request: Request, parts: PartsDep, note: NoteDep) -> Reader:
    # The route's name and object are noted first: a refusal is to say what it was that was refused.
    note.action = request.scope["route"].name
    names = [
        request.path_params[name] for name in ("share", "schema", "table") if name in request.path_params
    ]
    note.object_name = ".".join(names) or None
    header = request.headers.get("authorization")
    generation = await _generation(request, parts.catalog)
    # What is known is answered on the event loop; only what has to be looked up goes through a thread.
    reader = parts.readers.peek(header, generation)
    if reader is None:
        reader = await run_in_threadpool(parts.readers.authenticated, header, generation)
    note.recipient = reader.name
    return reader


RecipientDep = Annotated[Reader, Depends(_recipient)]


async def _generation(request: Request, catalog: Catalog) -> int:
    """The catalog's generation, read once for a request."""
    quick = catalog.reads_generation_at_once
    generation = catalog.generation() if quick else await run_in_threadpool(catalog.generation)
    request.state.generation = generation
    return generation


async def _table(recipient: RecipientDep, parts: PartsDep, request: Request) -> TableView:
    names = request.path_params
    asked = recipient, names["share"], names["schema"], names["table"], request.state.generation
    view = parts.views.peek(*asked)
    return view if view is not None else await run_in_threadpool(parts.views.table, *asked)


async def _page(request: Request) -> PageRequest:
    return PageRequest(request.query_params.get("maxResults"), request.query_params.get("pageToken"))


async def _wants(request: Request) -> Wants:
    return Wants(
        parse_capabilities(request.headers.get(HEADER)), _file_ids(request.headers.get(FILE_IDS_HEADER))
    )


def _file_ids(asked: str | None) -> ResponseFormat | None:
    if asked is None:
        return None
    match asked.lower():
        case "parquet":
            return "parquet"
        case "delta":
            return "delta"
    raise BadRequest(FILE_IDS_HEADER, asked, f"Unsupported fileidhash: '{asked}'. It is parquet or delta.")


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


TableDep = Annotated[TableView, Depends(_table)]
PageDep = Annotated[PageRequest, Depends(_page)]
WantsDep = Annotated[Wants, Depends(_wants)]
BodyDep = Annotated[bytes, Depends(_body)]
