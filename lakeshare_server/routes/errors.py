"""Errors as responses, the audit event of each request, and the middleware around all routes."""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakeshare_server.access.rate_limit import RecipientLimits, TrustedProxies
from lakeshare_server.catalog import AuditLog
from lakeshare_server.catalog.audit import Kind
from lakeshare_server.errors import (
    ASK_PROVIDER,
    BadRequest,
    Denied,
    LakeshareError,
    LinkEnded,
    MalformedRequest,
    NoEvidence,
    NotFound,
    StoreDenied,
    StoreMissing,
    TableFilesMissing,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    Unserveable,
)
from lakeshare_server.metrics import FinishedRequest, RequestMetrics
from lakeshare_server.routes.context import UNKNOWN, AuditRecord
from lakeshare_server.routes.health import WATCHED_PATHS, Trace
from lakeshare_server.routes.responses import error_response, iceberg_error
from lakeshare_server.settings import ICEBERG_PATH
from lakeshare_server.telemetry.logs import REQUEST_ID

BROKEN_OFF = "CONNECTION_LOST"
FULL_S = 0.1
# What these name is a path, which may hold a secret.
UNTRACED = frozenset({"read_file", UNKNOWN})
NO_RESPONSE = 499  # as web servers log a client that disconnected before its response

_log = logging.getLogger(__name__)


class AuditMiddleware:
    """Writes a request's audit event before its response begins, and again at its end if it changed."""

    def __init__(
        self, app: ASGIApp, audit: AuditLog, metrics: RequestMetrics, *, names: bool = False
    ) -> None:
        self.app, self.audit = app, audit
        self._metrics, self._names = metrics, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHED_PATHS:
            await self.app(scope, receive, send)
            return
        request = _AuditedRequest(scope, self.audit, Trace(scope, names=self._names))
        REQUEST_ID.set(request.audit_record.request_id)
        refused: Response | None = None

        async def send_audited(message: Message) -> None:
            nonlocal refused
            if refused is not None:
                # The refusal has replaced the application's response.
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
            await self.app(scope, receive, send_audited)
        except Exception:
            request.fail()
            raise
        finally:
            request.end(self._metrics)
            # Only this connection waits: health checks are answered on the same thread.
            while self.audit.is_full:
                await asyncio.sleep(FULL_S)


def _refusal(scope: Scope, error: Unavailable) -> Response:
    code, later = 503, {"Retry-After": "5"}
    if scope["path"].startswith(f"{ICEBERG_PATH}/v1/"):
        return iceberg_error(code, "ServiceUnavailableException", str(error), later)
    return error_response(code, "TEMPORARILY_UNAVAILABLE", str(error), later)


class _AuditedRequest:
    def __init__(self, scope: Scope, audit: AuditLog, span: Trace) -> None:
        request_id = f"{random.getrandbits(128):032x}"
        self.audit_record = AuditRecord(at=datetime.now(UTC), request_id=request_id, status=NO_RESPONSE)
        self.is_whole = False
        self._scope, self._audit, self._span = scope, audit, span
        self._written: tuple[Any, ...] | None = None
        self._began = time.monotonic()
        scope.setdefault("state", {})["audit_record"] = self.audit_record

    def begin(self, message: Message) -> None:
        """Writes the event durably before the first byte of the response. Raises Unavailable if that fails."""
        self.audit_record.status = message["status"]
        try:
            self._write("request")
        except OSError as error:
            self.audit_record.status, self.audit_record.error_code = 503, "TEMPORARILY_UNAVAILABLE"
            _log.critical(
                "request %s is refused, its audit event cannot be written: %s", self.audit_record, error
            )
            raise Unavailable(
                "the request cannot be recorded", "Try again; the server's log says why."
            ) from error
        request_id = (b"x-request-id", self.audit_record.request_id.encode())
        message["headers"] = [*message.get("headers", ()), request_id]

    def fail(self) -> None:
        """Notes an unhandled exception, whose response the framework sends outside of this middleware."""
        if self.audit_record.status == NO_RESPONSE:
            self.audit_record.status, self.audit_record.error_code = 500, "INTERNAL_ERROR"

    def trace(self) -> None:
        audit_record = self.audit_record
        if audit_record.traceparent is not None:
            self._span.add_link(audit_record.traceparent)
        self._span.add_attributes(
            audit_record.recipient,
            request_id=audit_record.request_id,
            action=audit_record.action,
            object=audit_record.object_name if audit_record.action not in UNTRACED else None,
            error_code=audit_record.error_code,
            version=audit_record.version,
            files=audit_record.files,
            size_bytes=audit_record.size_bytes,
        )

    def end(self, metrics: RequestMetrics) -> None:
        """Counts the request, and writes its outcome unless it is already written."""
        if not self.is_whole and self.audit_record.error_code is None:
            self.audit_record.error_code = BROKEN_OFF
        metrics.count(self._describe())
        if self._written == self._outcome():
            return
        try:
            self._write("request" if self._written is None else "end")
        except OSError as error:
            _log.critical("the audit event of request %s cannot be written: %s", self.audit_record, error)

    def _describe(self) -> FinishedRequest:
        record = self.audit_record
        is_admin = record.principal is not None and record.credential == "none"
        return FinishedRequest(
            action=record.action,
            status=record.status,
            error=record.error_code or "",
            credential="admin" if is_admin else record.credential,
            recipient=record.recipient or "",
            elapsed_s=time.monotonic() - self._began,
            files=record.files or 0,
            size_bytes=record.size_bytes or 0,
        )

    def _outcome(self) -> tuple[Any, ...]:
        record = self.audit_record
        return record.status, record.error_code, record.files, record.size_bytes, record.rows

    def _write(self, kind: Kind) -> None:
        scope, event = self._scope, self.audit_record
        event.kind, event.elapsed_ms = kind, round((time.monotonic() - self._began) * 1000)
        if kind == "end":
            event.at = datetime.now(UTC)
        if event.action == UNKNOWN and not event.object_name:
            event.object_name = scope["path"]
        client = scope.get("client")
        event.ip = client[0] if client else None
        for name, value in scope["headers"]:
            if name == b"user-agent":
                event.user_agent = value.decode("latin-1") or None
                break
        self._audit.record(event)
        self._written = self._outcome()


RESPONSES: dict[type[LakeshareError], tuple[int, str]] = {
    NotFound: (404, "RESOURCE_DOES_NOT_EXIST"),
    NoEvidence: (404, "RESOURCE_DOES_NOT_EXIST"),
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
Headers = Mapping[str, str] | None
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


class ProtocolErrors:
    responses: ClassVar = RESPONSES
    routing_codes: ClassVar = {404: "RESOURCE_DOES_NOT_EXIST", 405: "METHOD_NOT_ALLOWED"}
    default_routing_code = "MALFORMED_REQUEST"
    unknown_path = "is not part of the protocol. Check the profile's endpoint."

    def respond(
        self, request: Request, status: int, code: str, message: str, headers: Headers, missing: str | None
    ) -> Response:
        if request.url.path.startswith(f"{ICEBERG_PATH}/v1/"):
            kind = ICEBERG_MISSING.get(missing or "") or ICEBERG_KINDS.get(status, "InternalServerException")
            return iceberg_error(status, kind, message, headers)
        return error_response(status, code, message, headers)

    def message(self, request: Request, status: int, error: LakeshareError) -> str:
        return _log_failure(request, error) if status == 500 else describe_for_recipient(request, error)

    def lakeshare_error(self, request: Request, error: Exception) -> Response:
        kinds = (kind for kind in type(error).__mro__ if kind in self.responses)
        status, code = self.responses.get(next(kinds, LakeshareError), (500, "INTERNAL_ERROR"))
        message = self.message(request, status, error) if isinstance(error, LakeshareError) else str(error)
        headers: Headers = HEADERS.get(status)
        if isinstance(error, TooManyRequests | Unavailable) and error.retry_s is not None:
            headers = {"Retry-After": str(error.retry_s)}
        missing = error.kind if isinstance(error, NotFound) else None
        return self._respond(request, status, code, message, headers, missing)

    def invalid_request(self, request: Request, error: Exception) -> Response:
        return self._respond(request, 400, "INVALID_PARAMETER_VALUE", str(error))

    def routing_error(self, request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        code = self.routing_codes.get(status, self.default_routing_code)
        message = f"{request.method} {request.url.path} {self.unknown_path}"
        return self._respond(request, status, code, message, getattr(error, "headers", None))

    def client_disconnected(self, request: Request, _error: Exception) -> Response:
        # Only the audit log gets this response.
        return self._respond(request, NO_RESPONSE, BROKEN_OFF, "The client left before its body was whole.")

    def unexpected_error(self, request: Request, error: Exception) -> Response:
        return self._respond(request, 500, "INTERNAL_ERROR", _log_failure(request, error))

    def _respond(
        self,
        request: Request,
        status: int,
        code: str,
        message: str,
        headers: Headers = None,
        missing: str | None = None,
    ) -> Response:
        audit_record = _audit_record(request)
        if audit_record is not None:
            audit_record.error_code = code
        return self.respond(request, status, code, message, headers, missing)


def add_error_responses(app: FastAPI, errors: ProtocolErrors | None = None) -> None:
    errors = errors or ProtocolErrors()
    app.add_exception_handler(LakeshareError, errors.lakeshare_error)
    app.add_exception_handler(RequestValidationError, errors.invalid_request)
    app.add_exception_handler(HTTPException, errors.routing_error)
    app.add_exception_handler(ClientDisconnect, errors.client_disconnected)
    app.add_exception_handler(Exception, errors.unexpected_error)


def _audit_record(request: Request) -> AuditRecord | None:
    return getattr(request.state, "audit_record", None)


def find_error_response(name: str | None) -> tuple[int, str]:
    """Status and code for the name of an error class, as stored with a failed async query."""
    named = {error.__name__: response for error, response in RESPONSES.items()}
    return named.get(name or "", (500, "INTERNAL_ERROR"))


def describe_for_recipient(request: Request, error: LakeshareError) -> str:
    """The text of an error for the recipient; details that it omits are logged under the request's id."""
    audit_record = _audit_record(request)
    message, request_id = error.for_recipient(), audit_record.request_id if audit_record else "unknown"
    # An outage is logged when it begins and ends, not with each request that is refused meanwhile.
    is_outage = isinstance(error, Unavailable) and error.retry_s is not None
    if not is_outage and (message != str(error) or isinstance(error, Unavailable)):
        _log.warning("request %s: %s %s: %s", request_id, request.method, request.url.path, error)
    return message.replace(f"{ASK_PROVIDER}.", f"{ASK_PROVIDER} at request id {request_id}.")


def _log_failure(request: Request, error: Exception) -> str:
    audit_record = _audit_record(request)
    request_id = audit_record.request_id if audit_record else "unknown"
    _log.error("request %s: %s %s failed", request_id, request.method, request.url.path, exc_info=error)
    return f"The server failed; request id {request_id} is in its log."


FORWARDED = b"x-forwarded-for"


class ClientAddressMiddleware:
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
    """Counts signed files against the recipient's limits when the response ends, complete or not."""

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
