"""What routes are given: the app's parts, the recipient behind the token, and the note for the audit log."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial, wraps
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import httpx
from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from lakeshare_server.access.allowed_locations import FileTickets
from lakeshare_server.access.authentication import AccessTokens, Administrators, Asking, Readers
from lakeshare_server.access.rate_limit import Bookkeeping, Limits
from lakeshare_server.access.table_access import AsyncWorker, TableView, Views
from lakeshare_server.catalog import Access, AsyncQueries, AuditLog, Catalog, Reader
from lakeshare_server.catalog.sharing import states
from lakeshare_server.errors import BadRequest, MalformedRequest, Unauthenticated, Unavailable, shown
from lakeshare_server.iceberg_rest.scans import IcebergScans, PlanTasks, SignableFiles
from lakeshare_server.iceberg_rest.tables import IcebergTables
from lakeshare_server.outbound import LATER, PAUSE_S, Services
from lakeshare_server.protocol.lines import HEADER, Capabilities, ResponseFormat, parse_capabilities
from lakeshare_server.protocol.tokens import Asker, Pager, PageRequest, TableTokens
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers
from lakeshare_server.versions import Versions

if TYPE_CHECKING:
    from lakeshare_server.routes.health import Metrics, WriteCheck

THREADS = 16
# What may look at tables of several stores, or wait for the database to write, in one request.
LISTINGS, READINESS = ("listings",), ("readiness",)
# Tokens of OIDC issuers, and those from addresses that have tried too many wrong ones.
ISSUERS, GUESSING = ("issuers",), ("guessing",)

Result = TypeVar("Result")


class Pools:
    """The pools of this process, each made when it is first used."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._executors: dict[tuple[str, ...], ThreadPoolExecutor] = {}
        self._turn = Lock()

    async def run(self, services: Sequence[str], work: Callable[..., Result], *arguments: Any) -> Result:
        """Run `work` where waiting for these services delays nobody else; for none of them, in the shared pool.

        Raises:
            Unavailable: it did not end in time. It goes on, but nobody waits for it.
        """
        if not services:
            return await run_in_threadpool(work, *arguments)
        call = partial(copy_context().run, work, *arguments)
        running = asyncio.get_running_loop().run_in_executor(self.executor(services), call)
        try:
            async with asyncio.timeout(self._within_s) as deadline:
                return await running
        except TimeoutError:
            if not deadline.expired():
                raise
            what = f"{' and '.join(services)} did not answer within {self._within_s:g} seconds"
            raise Unavailable(what, LATER, math.ceil(PAUSE_S)) from None

    def executor(self, services: Sequence[str]) -> ThreadPoolExecutor:
        """The threads for work that needs these services."""
        key = tuple(services)
        found = self._executors.get(key)
        if found is None:
            with self._turn:
                found = self._executors.get(key) or ThreadPoolExecutor(THREADS, "-".join(key))
                self._executors[key] = found
        return found

    def close(self) -> None:
        """Start nothing new; what is running ends by itself."""
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)


def in_table_pool(route: Callable[..., Result]) -> Callable[..., Awaitable[Result]]:
    """A synchronous route of a table, whose first parameter is `by`, run in the pool of the table's services."""

    @wraps(route)
    async def pooled(by: "AskedTable", **named: Any) -> Result:
        return await by.run(partial(route, by, **named))

    return pooled


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
        found = states.recipient(session, recipient)
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


FILE_IDS_HEADER = "fileidhash"
# The methods of what can be read: HEAD has the headers of GET, and no body.
READING = ["GET", "HEAD"]


@dataclass(frozen=True)
class Parts:
    """The parts of a running server."""

    settings: ServerSettings
    catalog: Catalog
    readers: Readers
    access_tokens: AccessTokens
    limits: Limits
    bookkeeping: Bookkeeping
    administrators: Administrators
    versions: Versions
    views: Views
    pager: Pager
    tokens: TableTokens
    local_signer: LocalSigner
    file_tickets: FileTickets
    signers: Signers
    async_queries: AsyncQueries
    async_worker: AsyncWorker
    iceberg_tables: IcebergTables
    iceberg_scans: IcebergScans
    plan_tasks: PlanTasks
    signable_files: SignableFiles
    services: Services
    write_check: "WriteCheck"
    pools: Pools
    metrics: "Metrics"
    audit: AuditLog


@dataclass
class Note:
    """What the audit log will say of a request; filled in by whoever learns it."""

    request_id: str
    action: str = "unknown"
    recipient: str | None = None
    principal: str | None = None
    object_name: str | None = None
    error_code: str | None = None
    version: int | None = None
    files: int | None = None
    size_bytes: int | None = None
    rows: int | None = None
    details: dict[str, Any] | None = None
    access: Access | None = None


@dataclass(frozen=True)
class Wants:
    """What the headers of a table's request say: what the client can take, and which file ids it insists on."""

    capabilities: Capabilities
    file_ids: ResponseFormat | None

    def without_end(self) -> "Wants":
        """The same where a closing line is not offered."""
        return replace(self, capabilities=replace(self.capabilities, wants_end_stream_action=False))


@dataclass(frozen=True)
class Asked:
    """A request of a known recipient, and with what it is answered."""

    request: Request
    parts: Parts
    note: Note
    reader: Reader
    generation: int

    @cached_property
    def wants(self) -> Wants:
        """What its headers say.

        Raises:
            BadRequest: a header has a value that cannot be used.
        """
        headers = self.request.headers
        return Wants(parse_capabilities(headers.get(HEADER)), _file_ids(headers.get(FILE_IDS_HEADER)))

    def require_signing(self) -> None:
        """Whether the recipient may get URLs of more files now.

        Raises:
            TooManyRequests: it has had as many as it may.
        """
        if self.note.access is not None:
            self.parts.limits.require_signing(self.note.access)

    @property
    def page(self) -> PageRequest:
        """Which page of a listing it asks for."""
        query = self.request.query_params
        return PageRequest(query.get("maxResults"), query.get("pageToken"))


@dataclass(frozen=True)
class AskedTable(Asked):
    """A request about one granted table."""

    view: TableView

    @property
    def asker(self) -> Asker:
        """Whose tokens are made and taken."""
        return Asker(self.reader.id, self.view.entry.id)

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run what may wait for the table's store or catalog.

        Raises:
            Unavailable: it did not end in time.
        """
        return await self.parts.pools.run(self.view.services, work, *arguments)


# What only looks at the request is `async`, and each route has one dependency: polls spend their time in these.
async def parts_of(request: Request) -> Parts:
    """The parts of the server that got this request."""
    parts: Parts = request.app.state.parts
    return parts


async def note_of(request: Request) -> Note:
    """The request's note for the audit log."""
    note: Note = request.state.note
    return note


def address_of(request: Request) -> str | None:
    """From where the request comes, as far as believed proxies tell."""
    return request.client.host if request.client else None


async def asked(request: Request) -> Asked:
    """The request with the recipient behind its token.

    Raises:
        Unauthenticated: there is none.
        Denied: it may not ask from this address.
        TooManyRequests: it has asked as often as it may, or too many wrong tokens came from this address.
    """
    parts, note = await parts_of(request), await note_of(request)
    # The action and its object are noted first: a refusal is to say what it was that was refused.
    note.action = request.scope["endpoint"].__name__
    names = [
        request.path_params[name] for name in ("share", "schema", "table") if name in request.path_params
    ]
    note.object_name = ".".join(names) or None
    if SEEN_AS in request.scope:
        return await _looked_at(request.scope[SEEN_AS], request, parts, note)
    asking = Asking(request.headers.get("authorization") or "", address_of(request))
    catalog = parts.catalog
    at_once = catalog.reads_generation_at_once
    generation = catalog.generation() if at_once else await run_in_threadpool(catalog.generation)
    # What is known is answered on the event loop; only what has to be looked up goes through a thread.
    access = parts.readers.peek(asking, generation)
    if access is None:
        access = await parts.pools.run(
            _pool_of(asking, parts), parts.readers.authenticated, asking, generation
        )
    note.recipient, note.access = access.reader.name, access
    parts.readers.let_in(access, asking.address)
    if not parts.limits.let_in_at_once(access):
        await run_in_threadpool(parts.limits.let_in, access)
    return Asked(request, parts, note, access.reader, generation)


def _pool_of(asking: Asking, parts: Parts) -> Sequence[str]:
    """Where a credential is looked up, so that neither a slow issuer nor guesses keep threads from the others."""
    if asking.claims_issuer:
        return ISSUERS
    return GUESSING if parts.readers.are_guesses_used_up(asking) else ()


async def _looked_at(seen: SeenAs, request: Request, parts: Parts, note: Note) -> Asked:
    """The request of an administrator that sees as a recipient; the log has both."""
    note.recipient, note.principal = seen.reader.name, seen.by
    generation = await run_in_threadpool(parts.catalog.generation)
    return Asked(request, parts, note, seen.reader, generation)


async def asked_table(request: Request) -> AskedTable:
    """The request with the recipient's view of the table it names.

    Raises:
        Unauthenticated: there is no recipient.
        NotFound: the table is unknown, or not granted.
    """
    by = await asked(request)
    names = request.path_params
    look = by.reader, names["share"], names["schema"], names["table"], by.generation
    view = by.parts.views.peek(*look)
    if view is None:
        view = await run_in_threadpool(by.parts.views.table, *look)
    return AskedTable(by.request, by.parts, by.note, by.reader, by.generation, view)


async def body_of(request: Request, by: "TableDep") -> bytes:
    """The body of an authenticated request.

    Raises:
        MalformedRequest: it is too large.
    """
    settings = by.parts.settings
    return await whole_body(request, settings.max_body_bytes, settings.slow_client_s)


async def whole_body(request: Request, limit: int, within_s: float) -> bytes:
    """The body of a request, if it has no more than `limit` bytes and is here in time.

    Raises:
        MalformedRequest: it has, or is not.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limit:
                    raise MalformedRequest(
                        f"the body is larger than {limit} bytes", "Ask with fewer or shorter hints."
                    )
    except TimeoutError as error:
        raise MalformedRequest(
            f"the body did not arrive within {within_s:g} seconds", "Send it faster."
        ) from error
    return bytes(body)


def _file_ids(asked: str | None) -> ResponseFormat | None:
    if asked is None:
        return None
    match asked.lower():
        case "parquet":
            return "parquet"
        case "delta":
            return "delta"
    hint = f"Unsupported fileidhash: '{shown(asked)}'. It is parquet or delta."
    raise BadRequest(FILE_IDS_HEADER, asked, hint)


PartsDep = Annotated[Parts, Depends(parts_of)]
NoteDep = Annotated[Note, Depends(note_of)]
AskedDep = Annotated[Asked, Depends(asked)]
TableDep = Annotated[AskedTable, Depends(asked_table)]
BodyDep = Annotated[bytes, Depends(body_of)]
