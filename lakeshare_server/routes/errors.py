"""Errors become responses here, and only here."""

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

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
from lakeshare_server.routes.audit import BROKEN_OFF, NO_RESPONSE
from lakeshare_server.routes.context import Note
from lakeshare_server.routes.responses import error_response, iceberg_error
from lakeshare_server.settings import ICEBERG_PATH

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

_log = logging.getLogger(__name__)


def add_error_responses(app: FastAPI) -> None:
    """Make every error of the application one of the protocol."""
    app.add_exception_handler(LakeshareError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unforeseen)


def _respond(
    request: Request,
    status: int,
    code: str,
    message: str,
    headers: dict[str, str] | None = None,
    missing: str | None = None,
) -> Response:
    note: Note | None = getattr(request.state, "note", None)
    if note is not None:
        note.error_code = code
    if request.url.path.startswith(f"{ICEBERG_PATH}/v1/"):
        kind = ICEBERG_MISSING.get(missing or "") or ICEBERG_KINDS.get(status, "InternalServerException")
        return iceberg_error(status, kind, message, headers)
    return error_response(status, code, message, headers)


def told_of(name: str | None) -> tuple[int, str]:
    """Status and code of the error with this name: what is kept of an async query that failed."""
    named = {error.__name__: told for error, told in RESPONSES.items()}
    return named.get(name or "", (500, "INTERNAL_ERROR"))


def _ours(request: Request, error: Exception) -> Response:
    kinds = (kind for kind in type(error).__mro__ if kind in RESPONSES)
    status, code = RESPONSES.get(next(kinds, LakeshareError), (500, "INTERNAL_ERROR"))
    if status == 500:
        return _unforeseen(request, error)
    message = told_recipient(request, error) if isinstance(error, LakeshareError) else str(error)
    missing = error.kind if isinstance(error, NotFound) else None
    headers = HEADERS.get(status)
    if isinstance(error, TooManyRequests | Unavailable) and error.retry_s is not None:
        headers = {"Retry-After": str(error.retry_s)}
    return _respond(request, status, code, message, headers, missing)


def told_recipient(request: Request, error: LakeshareError) -> str:
    """The text of an error for the recipient; what it leaves out goes to the log under the request's id."""
    note: Note | None = getattr(request.state, "note", None)
    message, request_id = error.for_recipient(), note.request_id if note else "unknown"
    # An outage is logged when it begins and when it ends, not with each request that is refused meanwhile.
    is_outage = isinstance(error, Unavailable) and error.retry_s is not None
    if not is_outage and (message != str(error) or isinstance(error, Unavailable)):
        _log.warning("request %s: %s %s: %s", request_id, request.method, request.url.path, error)
    return message.replace(f"{ASK_PROVIDER}.", f"{ASK_PROVIDER} at request id {request_id}.")


def _invalid(request: Request, error: Exception) -> Response:
    return _respond(request, 400, "INVALID_PARAMETER_VALUE", str(error))


def _routing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    message = (
        f"{request.method} {request.url.path} is not part of the protocol. Check the profile's endpoint."
    )
    return _respond(
        request, status, ROUTING.get(status, "MALFORMED_REQUEST"), message, getattr(error, "headers", None)
    )


def _gone(request: Request, _error: Exception) -> Response:
    # Nobody reads this: it is for the audit log.
    return _respond(request, NO_RESPONSE, BROKEN_OFF, "The client left before its body was whole.")


def _unforeseen(request: Request, error: Exception) -> Response:
    note: Note | None = getattr(request.state, "note", None)
    request_id = note.request_id if note else "unknown"
    _log.error("request %s: %s %s failed", request_id, request.method, request.url.path, exc_info=error)
    return _respond(
        request, 500, "INTERNAL_ERROR", f"The server failed; request id {request_id} is in its log."
    )
