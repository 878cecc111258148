"""The state of the app, the recipient and table of a request, and its audit record; thread pools."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
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
    Federation,
    PresentedCredential,
)
from lakeshare_server.access.console_sessions import ConsoleSessions, IssuerSignIn
from lakeshare_server.access.oidc import Issuers
from lakeshare_server.access.rate_limit import BruteForceProtection, RecipientLimits, UsageWriter
from lakeshare_server.access.table_access import AsyncWorker, TableView, TableViews
from lakeshare_server.catalog import (
    Access,
    Allowances,
    AsyncQueries,
    AuditEvent,
    AuditLog,
    Catalog,
    Credentials,
    Listings,
    Reader,
    SharedTable,
    TokenUses,
    open_catalog,
    states,
)
from lakeshare_server.catalog.audit.verifications import Verifications
from lakeshare_server.errors import BadRequest, MalformedRequest, Unauthenticated, Unavailable, shorten_value
from lakeshare_server.iceberg_rest.scans import IcebergScans, PlanTasks, SignableFiles
from lakeshare_server.iceberg_rest.tables import IcebergTables
from lakeshare_server.metrics import RequestMetrics
from lakeshare_server.outbound import LATER, PAUSE_S
from lakeshare_server.protocol.feed import FeedTokens
from lakeshare_server.protocol.lines import HEADER, Capabilities, ResponseFormat, parse_capabilities
from lakeshare_server.protocol.tokens import Pager, PageRequest, TableTokens, TokenHolder
from lakeshare_server.provider.usage import UsageSummary
from lakeshare_server.provider.webhooks import WebhookDispatcher, WebhookRegistry
from lakeshare_server.settings import FILES_PATH, ServerSettings
from lakeshare_server.storage import LocalSigner, Signers, Stores, load_key
from lakeshare_server.versions import Version, Versions

if TYPE_CHECKING:
    from lakeshare_server.routes.health import WriteCheck
    from lakeshare_server.routes.monitoring import StateMetrics

THREADS = 16
# Pools for requests that read tables of several stores, and for those that wait for a write of the database.
LISTINGS, READINESS = ("listings",), ("readiness",)
# Pools for tokens of OIDC issuers, and for tokens from addresses that sent too many wrong ones.
ISSUERS, SUSPECTS = ("issuers",), ("guessing",)

Result = TypeVar("Result")


class Pools:
    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._executors: dict[tuple[str, ...], ThreadPoolExecutor] = {}
        self._turn = Lock()

    async def run(self, services: Sequence[str], work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs `work` in the pool of the services that it may wait for; without services, in the shared pool.

        Raises Unavailable if it does not end in time; it continues without a caller.
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
        key = tuple(services)
        executor = self._executors.get(key)
        if executor is None:
            with self._turn:
                executor = self._executors.get(key) or ThreadPoolExecutor(THREADS, "-".join(key))
                self._executors[key] = executor
        return executor

    def close(self) -> None:
        for executor in self._executors.values():
            executor.shutdown(wait=False, cancel_futures=True)


def in_table_pool(route: Callable[..., Result]) -> Callable[..., Awaitable[Result]]:
    """Runs a synchronous route, whose first parameter is `request`, in the pool of the table's services."""

    @wraps(route)
    async def pooled(request: "TableRequest", **named: Any) -> Result:
        return await request.run(partial(route, request, **named))

    return pooled


IMPERSONATION = "lakeshare.seen_as"
AGENT = "lakeshare as"


@dataclass(frozen=True)
class Impersonation:
    reader: Reader
    principal: str


def make_impersonation(catalog: Catalog, recipient: str, principal: str) -> Impersonation:
    """The impersonation of a recipient. Raises NotFound, or Unauthenticated if it is revoked or expired."""
    with catalog.reading() as session:
        state = states.get_recipient(session, recipient)
    if state.revoked_at is not None:
        raise Unauthenticated(
            f"{state.name} gets nothing: it was revoked on {state.revoked_at:%Y-%m-%d %H:%MZ}."
        )
    if state.expires_at is not None and state.expires_at <= datetime.now(UTC):
        raise Unauthenticated(f"{state.name} gets nothing: it expired on {state.expires_at:%Y-%m-%d %H:%MZ}.")
    return Impersonation(Reader(state.id, state.name), principal)


def impersonating_client(app: ASGIApp, impersonation: Impersonation, root: str) -> httpx.AsyncClient:
    """A client of the app below `root` that sends requests as the recipient, without a token."""

    async def impersonate(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, IMPERSONATION: impersonation, "client": None}, receive, send)

    transport = httpx.ASGITransport(impersonate, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=root, headers={"User-Agent": AGENT})


FILE_IDS_HEADER = "fileidhash"
FILE_ID_SCHEMES: dict[str, ResponseFormat] = {"parquet": "parquet", "delta": "delta"}
READ_METHODS = ["GET", "HEAD"]


class AppState:
    """What all requests share, over the catalog of the settings.

    Raises:
        BadRequest: the signing key is short, or a URL or an address of the settings is invalid.
        Unavailable: the catalog or the signing key cannot be opened.
    """

    write_check: "WriteCheck"
    state_metrics: "StateMetrics"

    def __init__(self, settings: ServerSettings, stores: Stores, metrics: RequestMetrics) -> None:
        self.settings, self.metrics, self.services = settings, metrics, stores.services
        self.catalog = catalog = open_catalog(settings.catalog_url)
        key = load_key(settings)
        self.local_signer = LocalSigner(key, settings.base_url() + FILES_PATH)
        self.versions = Versions(catalog, settings, stores)
        self.views = TableViews(catalog, self.versions)
        allowances, uses = Allowances(catalog), TokenUses(catalog)
        self.limits = RecipientLimits(allowances, settings)
        self.usage_writer = UsageWriter(uses, self.limits.daily_limits)
        brute_force = BruteForceProtection(allowances, settings.guesses_per_minute)
        issuers = Issuers(settings, stores.services)
        federation = Federation(catalog, Credentials(catalog), settings, stores.services)
        self.access_tokens = AccessTokens(key, settings.access_token_life_s)
        self.authenticator = Authenticator(catalog, federation, self.access_tokens, brute_force, uses)
        self.admin_authenticator = AdminAuthenticator(catalog, settings, issuers, brute_force)
        self.console_sessions = ConsoleSessions(key, catalog, settings)
        self.issuer_sign_in = IssuerSignIn(key, settings, issuers)
        self.pager = Pager(key, settings.page_size)
        self.feed_tokens = FeedTokens(key)
        self.tokens = TableTokens(key, settings.page_token_life_s, settings.refresh_token_life_s)
        self.file_tickets = FileTickets(key, catalog, self.views)
        self.signers = Signers(settings, self.local_signer, stores)
        self.async_queries = AsyncQueries(catalog)
        self.async_worker = AsyncWorker(self.async_queries, self.views)
        self.webhooks = WebhookRegistry(settings, key)
        self.webhook_dispatcher = WebhookDispatcher(catalog, self.versions, settings, key)
        self.iceberg_tables = IcebergTables(catalog, stores)
        self.iceberg_scans = IcebergScans(stores, settings)
        self.plan_tasks = PlanTasks(key, settings.page_token_life_s, settings.max_body_bytes)
        self.signable_files = SignableFiles(stores, self.iceberg_scans)
        self.pools = Pools(settings.request_wait_s)
        self.audit = AuditLog(catalog, settings.audit_dir)
        self.usage, self.verifications = UsageSummary(catalog, settings.usage_spike), Verifications(catalog)

    def with_signers(self, signers: Signers) -> "AppState":
        """The same state, but for the signers of files."""
        other = copy(self)
        other.signers = signers
        return other


UNKNOWN = "unknown"


# Not frozen: it is filled in while the request is handled.
@dataclass(kw_only=True)
class AuditRecord(AuditEvent):
    """A request's audit event, and what else metrics and traces need to know of the request."""

    action: str = UNKNOWN
    access: Access | None = None
    credential: str = "none"
    traceparent: str | None = None

    def note_version(self, version: Version) -> None:
        """Notes the version that is served, and the trace of the run that published it."""
        self.version, self.traceparent = version.number, version.traceparent


@dataclass(frozen=True)
class RecipientRequest:
    http_request: Request
    app_state: AppState
    audit_record: AuditRecord
    reader: Reader
    generation: int

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the headers ask for. Raises BadRequest for unusable values."""
        headers = self.http_request.headers
        file_ids = headers.get(FILE_IDS_HEADER)
        scheme = FILE_ID_SCHEMES.get(file_ids.lower()) if file_ids is not None else None
        if file_ids is not None and scheme is None:
            hint = f"Unsupported fileidhash: '{shorten_value(file_ids)}'. It is parquet or delta."
            raise BadRequest(FILE_IDS_HEADER, file_ids, hint)
        return replace(parse_capabilities(headers.get(HEADER)), file_ids=scheme)

    @property
    def listings(self) -> Listings:
        return Listings(self.app_state.catalog, self.reader.id)

    def view_of(self, table: SharedTable) -> TableView:
        names = table.share, table.schema, table.name
        return self.app_state.views.table(self.reader, *names, self.generation)

    def require_signing(self) -> None:
        """Raises TooManyRequests if the recipient may not get more URLs today."""
        if self.audit_record.access is not None:
            self.app_state.limits.require_signing(self.audit_record.access)

    @property
    def page(self) -> PageRequest:
        query = self.http_request.query_params
        return PageRequest(query.get("maxResults"), query.get("pageToken"))


@dataclass(frozen=True)
class TableRequest(RecipientRequest):
    view: TableView

    @property
    def token_holder(self) -> TokenHolder:
        return TokenHolder(self.reader.id, self.view.entry.id)

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs work that may wait for the table's store or catalog. Raises Unavailable as `Pools.run`."""
        return await self.app_state.pools.run(self.view.services, work, *arguments)


# Dependencies without I/O are `async`, and each route has one dependency, because most requests are version polls.
async def get_app_state(http_request: Request) -> AppState:
    app_state: AppState = http_request.app.state.app_state
    return app_state


async def get_audit_record(http_request: Request) -> AuditRecord:
    audit_record: AuditRecord = http_request.state.audit_record
    return audit_record


def client_address(http_request: Request) -> str | None:
    return http_request.client.host if http_request.client else None


async def get_recipient_request(http_request: Request) -> RecipientRequest:
    """The request with its authenticated recipient. Raises Unauthenticated, Denied or TooManyRequests."""
    app_state, audit_record = await get_app_state(http_request), await get_audit_record(http_request)
    # Set first, so that refusals are logged with their action and object.
    audit_record.action = http_request.scope["endpoint"].__name__
    path_params = http_request.path_params
    names = [path_params[name] for name in ("share", "schema", "table") if name in path_params]
    audit_record.object_name = ".".join(names) or None
    if IMPERSONATION in http_request.scope:
        impersonation: Impersonation = http_request.scope[IMPERSONATION]
        audit_record.recipient, audit_record.principal = impersonation.reader.name, impersonation.principal
        audit_record.credential = "impersonation"
        generation = await run_in_threadpool(app_state.catalog.generation)
        return RecipientRequest(http_request, app_state, audit_record, impersonation.reader, generation)
    authenticator, catalog = app_state.authenticator, app_state.catalog
    header = http_request.headers.get("authorization") or ""
    credential = PresentedCredential(header, client_address(http_request))
    at_once = catalog.reads_generation_at_once
    generation = catalog.generation() if at_once else await run_in_threadpool(catalog.generation)
    # Known credentials are accepted on the event loop; only lookups need a thread.
    access = authenticator.peek(credential, generation)
    if access is None:
        # Separate pools, so that neither a slow issuer nor guessed tokens block the others.
        pool: Sequence[str] = ISSUERS if credential.claims_issuer else ()
        if not pool and authenticator.is_blocked(credential):
            pool = SUSPECTS
        access = await app_state.pools.run(pool, authenticator.authenticate, credential, generation)
    audit_record.recipient, audit_record.access = access.reader.name, access
    audit_record.credential = credential.kind
    authenticator.require_allowed_address(access, credential.address)
    if not app_state.limits.try_count_request(access):
        await run_in_threadpool(app_state.limits.count_request, access)
    return RecipientRequest(http_request, app_state, audit_record, access.reader, generation)


async def get_table_request(http_request: Request) -> TableRequest:
    """The request with the recipient's view of its table. Raises NotFound if the table is unknown or not granted."""
    request = await get_recipient_request(http_request)
    names = http_request.path_params
    key = request.reader, names["share"], names["schema"], names["table"], request.generation
    view = request.app_state.views.peek(*key)
    if view is None:
        view = await run_in_threadpool(request.app_state.views.table, *key)
    app_state, audit_record = request.app_state, request.audit_record
    return TableRequest(http_request, app_state, audit_record, request.reader, request.generation, view)


async def read_body(http_request: Request, request: "TableRequestDep") -> bytes:
    """The body of an authenticated request. Raises MalformedRequest if it is too large or too slow."""
    settings = request.app_state.settings
    return await read_bounded_body(http_request, settings.max_body_bytes, settings.slow_client_s)


async def read_bounded_body(http_request: Request, limit: int, within_s: float) -> bytes:
    """The body of a request. Raises MalformedRequest above `limit` bytes or after `within_s` seconds."""
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in http_request.stream():
                body += piece
                if len(body) > limit:
                    what = f"the body is larger than {limit} bytes"
                    raise MalformedRequest(what, "Ask with fewer or shorter hints.")
    except TimeoutError as error:
        what = f"the body did not arrive within {within_s:g} seconds"
        raise MalformedRequest(what, "Send it faster.") from error
    return bytes(body)


AppStateDep = Annotated[AppState, Depends(get_app_state)]
AuditRecordDep = Annotated[AuditRecord, Depends(get_audit_record)]
RecipientRequestDep = Annotated[RecipientRequest, Depends(get_recipient_request)]
TableRequestDep = Annotated[TableRequest, Depends(get_table_request)]
BodyDep = Annotated[bytes, Depends(read_body)]
