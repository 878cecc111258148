"""Errors become responses here, and only here."""

import asyncio
import logging
import random
import time
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.access.rate_limit import RecipientLimits, TrustedProxies
from lakeshare_server.catalog import AuditEvent, AuditLog
from lakeshare_server.catalog.audit import Kind
from lakeshare_server.errors import (
    ASK_PROVIDER,
    BadRequest,
    Denied,
    LakeshareError,
    LinkEnded,
    MalformedRequest,
    NotFound,
    StoreDenied,
    StoreMissing,
    TableFilesMissing,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    Unserveable,
)
from lakeshare_server.routes.context import AuditRecord
from lakeshare_server.routes.health import WATCHED_PATHS, Metrics, Trace
from lakeshare_server.routes.responses import error_response, iceberg_error
from lakeshare_server.settings import ICEBERG_PATH

BROKEN_OFF = "CONNECTION_LOST"
FULL_S = 0.1
NO_RESPONSE = 499  # as web servers log a client that left before its answer

_log = logging.getLogger(__name__)


class AuditMiddleware:
    """Gives each request a note to fill in, and writes down what it says before the reply begins and when it ends."""

    def __init__(self, app: ASGIApp, audit: AuditLog, metrics: Metrics, *, names: bool = False) -> None:
        self.app, self.audit = app, audit
        self._metrics, self._names = metrics, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self.app(scope, receive, send)
            return
        request = _AuditedRequest(scope, self.audit, Trace(scope, names=self._names))

        refused: Response | None = None

        async def send_noted(message: Message) -> None:
            nonlocal refused
            if refused is not None:
                # What the application goes on to say is not for anybody.
                return
            if message["type"] == "http.response.start":
                try:
                    request.begin(message)
                except Unavailable as error:
                    refused = _refusal(scope, error)
                    await refused(scope, receive, send)
                    return
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_last:
                request.trace()
            await send(message)
            request.is_whole = is_last

        try:
            await self.app(scope, receive, send_noted)
        except Exception:
            request.fail()
            raise
        finally:
            request.end(self._metrics)
            # This connection waits, the server goes on: its health is asked for on the same thread.
            while self.audit.is_full:
                await asyncio.sleep(FULL_S)


def _refusal(scope: Scope, error: Unavailable) -> Response:
    code, later = 503, {"Retry-After": "5"}
    if scope["path"].startswith(f"{ICEBERG_PATH}/v1/"):
        return iceberg_error(code, "ServiceUnavailableException", str(error), later)
    return error_response(code, "TEMPORARILY_UNAVAILABLE", str(error), later)


class _AuditedRequest:
    """A request under way, and what of it is written down already."""

    def __init__(self, scope: Scope, audit: AuditLog, span: Trace) -> None:
        self.audit_record = AuditRecord(f"{random.getrandbits(128):032x}")
        self.is_whole = False
        self._scope, self._audit, self._span = scope, audit, span
        self._status = NO_RESPONSE
        self._told: tuple[Any, ...] | None = None
        self._began, self._at = time.monotonic(), datetime.now(UTC)
        scope.setdefault("state", {})["audit_record"] = self.audit_record

    def begin(self, message: Message) -> None:
        """Write the event, durably, before the first byte of the reply leaves.

        Raises:
            Unavailable: it cannot be written, so there is no reply.
        """
        self._status = message["status"]
        try:
            self._write("request")
        except OSError as error:
            self._status, self.audit_record.error_code = 503, "TEMPORARILY_UNAVAILABLE"
            _log.critical(
                "request %s is refused, its audit event cannot be written: %s", self.audit_record, error
            )
            raise Unavailable(
                "the request cannot be recorded", "Try again; the server's log says why."
            ) from error
        message["headers"] = [
            *message.get("headers", ()),
            (b"x-request-id", self.audit_record.request_id.encode()),
        ]

    def fail(self) -> None:
        """Note that the reply will be the framework's last resort, which is made outside of here."""
        if self._status == NO_RESPONSE:
            self._status, self.audit_record.error_code = 500, "INTERNAL_ERROR"

    def trace(self) -> None:
        """Tell the span what came of it, before the framework ends it with the reply."""
        audit_record = self.audit_record
        self._span.say(
            audit_record.recipient,
            request_id=audit_record.request_id,
            action=audit_record.action,
            object=audit_record.object_name if audit_record.action != "read_file" else None,
            error_code=audit_record.error_code,
            version=audit_record.version,
            files=audit_record.files,
            size_bytes=audit_record.size_bytes,
        )

    def end(self, metrics: Metrics) -> None:
        """Count it, and write what came of it unless that is written already."""
        if not self.is_whole and self.audit_record.error_code is None:
            self.audit_record.error_code = BROKEN_OFF
        metrics.count(self.audit_record, self._status, time.monotonic() - self._began)
        if self._told == self._outcome():
            return
        try:
            self._write("request" if self._told is None else "end")
        except OSError as error:
            _log.critical("the audit event of request %s cannot be written: %s", self.audit_record, error)

    def _outcome(self) -> tuple[Any, ...]:
        audit_record = self.audit_record
        return (
            self._status,
            audit_record.error_code,
            audit_record.files,
            audit_record.size_bytes,
            audit_record.rows,
        )

    def _write(self, kind: Kind) -> None:
        audit_record, scope = self.audit_record, self._scope
        client = scope.get("client")
        agent = next((value for name, value in scope["headers"] if name == b"user-agent"), None)
        self._audit.record(
            AuditEvent(
                kind=kind,
                at=datetime.now(UTC) if kind == "end" else self._at,
                recipient=audit_record.recipient,
                principal=audit_record.principal,
                action=audit_record.action,
                object_name=audit_record.object_name
                or (scope["path"] if audit_record.action == "unknown" else None),
                status=self._status,
                error_code=audit_record.error_code,
                version=audit_record.version,
                files=audit_record.files,
                size_bytes=audit_record.size_bytes,
                rows=audit_record.rows,
                request_id=audit_record.request_id,
                ip=client[0] if client else None,
                user_agent=agent.decode("latin-1") if agent else None,
                elapsed_ms=round((time.monotonic() - self._began) * 1000),
                details=audit_record.details,
            )
        )
        self._told = self._outcome()


RESPONSES: dict[type[LakeshareError], tuple[int, str]] = {
    NotFound: (404, "RESOURCE_DOES_NOT_EXIST"),
    BadRequest: (400, "INVALID_PARAMETER_VALUE"),
    MalformedRequest: (400, "MALFORMED_REQUEST"),
    Unserveable: (400, "UNSUPPORTED_OPERATION"),
    StoreMissing: (400, "RESOURCE_DOES_NOT_EXIST"),
    StoreDenied: (400, "RESOURCE_DOES_NOT_EXIST"),
    TableFilesMissing: (400, "RESOURCE_DOES_NOT_EXIST"),
    LinkEnded: (410, "RESOURCE_DOES_NOT_EXIST"),
    Unauthenticated: (401, "UNAUTHENTICATED"),
    Denied: (403, "PERMISSION_DENIED"),
    TooManyRequests: (429, "REQUEST_LIMIT_EXCEEDED"),
    Unavailable: (503, "TEMPORARILY_UNAVAILABLE"),
}
HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "5"}}
ICEBERG_KINDS = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    406: "UnsupportedOperationException",
    429: "TooManyRequestsException",
    503: "ServiceUnavailableException",
}
ICEBERG_MISSING = {
    "[Share/Schema/Table]": "NoSuchTableException",
    "[Share/Schema]": "NoSuchNamespaceException",
    "Share": "NoSuchNamespaceException",
    "plan-id": "NoSuchPlanIdException",
    "plan-task": "NoSuchPlanTaskException",
}
ROUTING = {404: "RESOURCE_DOES_NOT_EXIST", 405: "METHOD_NOT_ALLOWED"}


def add_error_responses(app: FastAPI) -> None:
    """Make every error of the application one of the protocol."""
    app.add_exception_handler(LakeshareError, _lakeshare_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _unexpected_error)


def _respond(
    request: Request,
    status: int,
    code: str,
    message: str,
    headers: dict[str, str] | None = None,
    missing: str | None = None,
) -> Response:
    audit_record: AuditRecord | None = getattr(request.state, "audit_record", None)
    if audit_record is not None:
        audit_record.error_code = code
    if request.url.path.startswith(f"{ICEBERG_PATH}/v1/"):
        kind = ICEBERG_MISSING.get(missing or "") or ICEBERG_KINDS.get(status, "InternalServerException")
        return iceberg_error(status, kind, message, headers)
    return error_response(status, code, message, headers)


def find_error_response(name: str | None) -> tuple[int, str]:
    """Status and code of the error with this name: what is kept of an async query that failed."""
    named = {error.__name__: response for error, response in RESPONSES.items()}
    return named.get(name or "", (500, "INTERNAL_ERROR"))


def _lakeshare_error(request: Request, error: Exception) -> Response:
    kinds = (kind for kind in type(error).__mro__ if kind in RESPONSES)
    status, code = RESPONSES.get(next(kinds, LakeshareError), (500, "INTERNAL_ERROR"))
    if status == 500:
        return _unexpected_error(request, error)
    message = describe_for_recipient(request, error) if isinstance(error, LakeshareError) else str(error)
    missing = error.kind if isinstance(error, NotFound) else None
    headers = HEADERS.get(status)
    if isinstance(error, TooManyRequests | Unavailable) and error.retry_s is not None:
        headers = {"Retry-After": str(error.retry_s)}
    return _respond(request, status, code, message, headers, missing)


def describe_for_recipient(request: Request, error: LakeshareError) -> str:
    """The text of an error for the recipient; what it leaves out goes to the log under the request's id."""
    audit_record: AuditRecord | None = getattr(request.state, "audit_record", None)
    message, request_id = error.for_recipient(), audit_record.request_id if audit_record else "unknown"
    # An outage is logged when it begins and when it ends, not with each request that is refused meanwhile.
    is_outage = isinstance(error, Unavailable) and error.retry_s is not None
    if not is_outage and (message != str(error) or isinstance(error, Unavailable)):
        _log.warning("request %s: %s %s: %s", request_id, request.method, request.url.path, error)
    return message.replace(f"{ASK_PROVIDER}.", f"{ASK_PROVIDER} at request id {request_id}.")


def _invalid_request(request: Request, error: Exception) -> Response:
    return _respond(request, 400, "INVALID_PARAMETER_VALUE", str(error))


def _routing_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    message = (
        f"{request.method} {request.url.path} is not part of the protocol. Check the profile's endpoint."
    )
    return _respond(
        request, status, ROUTING.get(status, "MALFORMED_REQUEST"), message, getattr(error, "headers", None)
    )


def _client_disconnected(request: Request, _error: Exception) -> Response:
    # Nobody reads this: it is for the audit log.
    return _respond(request, NO_RESPONSE, BROKEN_OFF, "The client left before its body was whole.")


def _unexpected_error(request: Request, error: Exception) -> Response:
    audit_record: AuditRecord | None = getattr(request.state, "audit_record", None)
    request_id = audit_record.request_id if audit_record else "unknown"
    _log.error("request %s: %s %s failed", request_id, request.method, request.url.path, exc_info=error)
    return _respond(
        request, 500, "INTERNAL_ERROR", f"The server failed; request id {request_id} is in its log."
    )


FORWARDED = b"x-forwarded-for"


class ClientAddressMiddleware:
    """Puts the address of the client in the place of a believed proxy's."""

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self.app, self.proxies = app, proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if scope["type"] == "http" and peer is not None:
            forwarded = (value.decode("latin-1") for name, value in scope["headers"] if name == FORWARDED)
            address = self.proxies.client(peer[0], forwarded)
            scope["client"] = None if address is None else (address, peer[1])
        await self.app(scope, receive, send)


class RateLimitMiddleware:
    """Counts what was signed against the recipient's limits when its answer has ended, whole or not."""

    def __init__(self, app: ASGIApp, limits: RecipientLimits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            audit_record: AuditRecord | None = scope.get("state", {}).get("audit_record")
            if audit_record is not None and audit_record.access is not None and audit_record.files:
                self.limits.count_signed(
                    audit_record.access, audit_record.files, audit_record.size_bytes or 0
                )
