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
from lakeshare_server.access.authentication import (
    AccessTokens,
    AdminAuthenticator,
    Authenticator,
    PresentedCredential,
)
from lakeshare_server.access.rate_limit import RecipientLimits, UsageWriter
from lakeshare_server.access.table_access import AsyncWorker, TableView, TableViews
from lakeshare_server.catalog import Access, AsyncQueries, AuditLog, Catalog, Reader
from lakeshare_server.catalog.sharing import states
from lakeshare_server.errors import BadRequest, MalformedRequest, Unauthenticated, Unavailable, shorten_value
from lakeshare_server.iceberg_rest.scans import IcebergScans, PlanTasks, SignableFiles
from lakeshare_server.iceberg_rest.tables import IcebergTables
from lakeshare_server.outbound import LATER, PAUSE_S, Services
from lakeshare_server.protocol.lines import HEADER, Capabilities, ResponseFormat, parse_capabilities
from lakeshare_server.protocol.tokens import Pager, PageRequest, TableTokens, TokenHolder
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, Signers
from lakeshare_server.versions import Versions

if TYPE_CHECKING:
    from lakeshare_server.routes.health import Metrics, WriteCheck

THREADS = 16
# What may look at tables of several stores, or wait for the database to write, in one request.
LISTINGS, READINESS = ("listings",), ("readiness",)
# Tokens of OIDC issuers, and those from addresses that have tried too many wrong ones.
ISSUERS, SUSPECTS = ("issuers",), ("guessing",)

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
    """A synchronous route of a table, whose first parameter is `request`, run in the pool of the table's services."""

    @wraps(route)
    async def pooled(request: "TableRequest", **named: Any) -> Result:
        return await request.run(partial(route, request, **named))

    return pooled


IMPERSONATION = "lakeshare.seen_as"
AGENT = "lakeshare as"


@dataclass(frozen=True)
class Impersonation:
    """`principal` administers, and looks at what the reader gets."""

    reader: Reader
    principal: str


def make_impersonation(catalog: Catalog, recipient: str, principal: str) -> Impersonation:
    """The eyes of a recipient, lent to `principal`.

    Raises:
        NotFound: there is no such recipient.
        Unauthenticated: it was revoked, or has expired: it is let in nowhere, so there is nothing to see.
    """
    with catalog.reading() as session:
        found = states.get_recipient(session, recipient)
    if found.revoked_at is not None:
        raise Unauthenticated(
            f"{found.name} gets nothing: it was revoked on {found.revoked_at:%Y-%m-%d %H:%MZ}."
        )
    if found.expires_at is not None and found.expires_at <= datetime.now(UTC):
        raise Unauthenticated(f"{found.name} gets nothing: it expired on {found.expires_at:%Y-%m-%d %H:%MZ}.")
    return Impersonation(Reader(found.id, found.name), principal)


def impersonating_client(app: ASGIApp, impersonation: Impersonation, root: str) -> httpx.AsyncClient:
    """A client of the app below `root` that asks as the recipient; it sends no token, and needs none."""

    async def looked_at(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, IMPERSONATION: impersonation, "client": None}, receive, send)

    transport = httpx.ASGITransport(looked_at, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=root, headers={"User-Agent": AGENT})


FILE_IDS_HEADER = "fileidhash"
# The methods of what can be read: HEAD has the headers of GET, and no body.
READ_METHODS = ["GET", "HEAD"]


@dataclass(frozen=True)
class AppState:
    """The parts of a running server."""

    settings: ServerSettings
    catalog: Catalog
    authenticator: Authenticator
    access_tokens: AccessTokens
    limits: RecipientLimits
    usage_writer: UsageWriter
    admin_authenticator: AdminAuthenticator
    versions: Versions
    views: TableViews
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
class AuditRecord:
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
class ResponseOptions:
    """What the headers of a table's request say: what the client can take, and which file ids it insists on."""

    capabilities: Capabilities
    file_ids: ResponseFormat | None

    def without_end(self) -> "ResponseOptions":
        """The same where a closing line is not offered."""
        return replace(self, capabilities=replace(self.capabilities, wants_end_stream_action=False))


@dataclass(frozen=True)
class RecipientRequest:
    """A request of a known recipient, and with what it is answered."""

    http_request: Request
    app_state: AppState
    audit_record: AuditRecord
    reader: Reader
    generation: int

    @cached_property
    def response_options(self) -> ResponseOptions:
        """What its headers say.

        Raises:
            BadRequest: a header has a value that cannot be used.
        """
        headers = self.http_request.headers
        return ResponseOptions(
            parse_capabilities(headers.get(HEADER)), _parse_file_ids(headers.get(FILE_IDS_HEADER))
        )

    def require_signing(self) -> None:
        """Whether the recipient may get URLs of more files now.

        Raises:
            TooManyRequests: it has had as many as it may.
        """
        if self.audit_record.access is not None:
            self.app_state.limits.require_signing(self.audit_record.access)

    @property
    def page(self) -> PageRequest:
        """Which page of a listing it asks for."""
        query = self.http_request.query_params
        return PageRequest(query.get("maxResults"), query.get("pageToken"))


@dataclass(frozen=True)
class TableRequest(RecipientRequest):
    """A request about one granted table."""

    view: TableView

    @property
    def token_holder(self) -> TokenHolder:
        """Whose tokens are made and taken."""
        return TokenHolder(self.reader.id, self.view.entry.id)

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run what may wait for the table's store or catalog.

        Raises:
            Unavailable: it did not end in time.
        """
        return await self.app_state.pools.run(self.view.services, work, *arguments)


# What only looks at the request is `async`, and each route has one dependency: polls spend their time in these.
async def get_app_state(http_request: Request) -> AppState:
    """The parts of the server that got this request."""
    app_state: AppState = http_request.app.state.app_state
    return app_state


async def get_audit_record(http_request: Request) -> AuditRecord:
    """The request's note for the audit log."""
    audit_record: AuditRecord = http_request.state.audit_record
    return audit_record


def client_address(http_request: Request) -> str | None:
    """From where the request comes, as far as believed proxies tell."""
    return http_request.client.host if http_request.client else None


async def get_recipient_request(http_request: Request) -> RecipientRequest:
    """The request with the recipient behind its token.

    Raises:
        Unauthenticated: there is none.
        Denied: it may not ask from this address.
        TooManyRequests: it has asked as often as it may, or too many wrong tokens came from this address.
    """
    app_state, audit_record = await get_app_state(http_request), await get_audit_record(http_request)
    # The action and its object are noted first: a refusal is to say what it was that was refused.
    audit_record.action = http_request.scope["endpoint"].__name__
    names = [
        http_request.path_params[name]
        for name in ("share", "schema", "table")
        if name in http_request.path_params
    ]
    audit_record.object_name = ".".join(names) or None
    if IMPERSONATION in http_request.scope:
        return await _impersonated_request(
            http_request.scope[IMPERSONATION], http_request, app_state, audit_record
        )
    credential = PresentedCredential(
        http_request.headers.get("authorization") or "", client_address(http_request)
    )
    catalog = app_state.catalog
    at_once = catalog.reads_generation_at_once
    generation = catalog.generation() if at_once else await run_in_threadpool(catalog.generation)
    # What is known is answered on the event loop; only what has to be looked up goes through a thread.
    access = app_state.authenticator.peek(credential, generation)
    if access is None:
        access = await app_state.pools.run(
            _choose_pool(credential, app_state), app_state.authenticator.authenticate, credential, generation
        )
    audit_record.recipient, audit_record.access = access.reader.name, access
    app_state.authenticator.require_allowed_address(access, credential.address)
    if not app_state.limits.try_count_request(access):
        await run_in_threadpool(app_state.limits.count_request, access)
    return RecipientRequest(http_request, app_state, audit_record, access.reader, generation)


def _choose_pool(credential: PresentedCredential, app_state: AppState) -> Sequence[str]:
    """Where a credential is looked up, so that neither a slow issuer nor guesses keep threads from the others."""
    if credential.claims_issuer:
        return ISSUERS
    return SUSPECTS if app_state.authenticator.is_blocked(credential) else ()


async def _impersonated_request(
    impersonation: Impersonation, http_request: Request, app_state: AppState, audit_record: AuditRecord
) -> RecipientRequest:
    """The request of an administrator that sees as a recipient; the log has both."""
    audit_record.recipient, audit_record.principal = impersonation.reader.name, impersonation.principal
    generation = await run_in_threadpool(app_state.catalog.generation)
    return RecipientRequest(http_request, app_state, audit_record, impersonation.reader, generation)


async def get_table_request(http_request: Request) -> TableRequest:
    """The request with the recipient's view of the table it names.

    Raises:
        Unauthenticated: there is no recipient.
        NotFound: the table is unknown, or not granted.
    """
    request = await get_recipient_request(http_request)
    names = http_request.path_params
    key = request.reader, names["share"], names["schema"], names["table"], request.generation
    view = request.app_state.views.peek(*key)
    if view is None:
        view = await run_in_threadpool(request.app_state.views.table, *key)
    return TableRequest(
        request.http_request,
        request.app_state,
        request.audit_record,
        request.reader,
        request.generation,
        view,
    )


async def read_body(http_request: Request, request: "TableRequestDep") -> bytes:
    """The body of an authenticated request.

    Raises:
        MalformedRequest: it is too large.
    """
    settings = request.app_state.settings
    return await read_bounded_body(http_request, settings.max_body_bytes, settings.slow_client_s)


async def read_bounded_body(http_request: Request, limit: int, within_s: float) -> bytes:
    """The body of a request, if it has no more than `limit` bytes and is here in time.

    Raises:
        MalformedRequest: it has, or is not.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in http_request.stream():
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


def _parse_file_ids(value: str | None) -> ResponseFormat | None:
    if value is None:
        return None
    match value.lower():
        case "parquet":
            return "parquet"
        case "delta":
            return "delta"
    hint = f"Unsupported fileidhash: '{shorten_value(value)}'. It is parquet or delta."
    raise BadRequest(FILE_IDS_HEADER, value, hint)


AppStateDep = Annotated[AppState, Depends(get_app_state)]
AuditRecordDep = Annotated[AuditRecord, Depends(get_audit_record)]
RecipientRequestDep = Annotated[RecipientRequest, Depends(get_recipient_request)]
TableRequestDep = Annotated[TableRequest, Depends(get_table_request)]
BodyDep = Annotated[bytes, Depends(read_body)]
