"""Errors of the admin API, in the spelling from which the Databricks SDK makes its exceptions."""

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lakeshare_server.errors import (
    BadRequest,
    CatalogConflict,
    EditedMeanwhile,
    LakeshareError,
    NameTaken,
    NotFound,
    TooManyRequests,
    Unavailable,
    shown,
)
from lakeshare_server.routes.audit import BROKEN_OFF, NO_RESPONSE
from lakeshare_server.routes.context import Note
from lakeshare_server.routes.errors import HEADERS, RESPONSES
from lakeshare_server.routes.responses import json_response

OURS: dict[type[LakeshareError], tuple[int, str]] = {
    **RESPONSES,
    CatalogConflict: (409, "RESOURCE_CONFLICT"),
    NameTaken: (409, "RESOURCE_ALREADY_EXISTS"),
    EditedMeanwhile: (412, "ABORTED"),
}
ROUTING = {404: "ENDPOINT_NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}

_log = logging.getLogger(__name__)


def add_error_responses(app: FastAPI) -> None:
    """Make every error of the application one of the admin API."""
    app.add_exception_handler(LakeshareError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unforeseen)


def _respond(
    request: Request, status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> Response:
    note: Note | None = getattr(request.state, "note", None)
    if note is not None:
        note.error_code = code
    return json_response({"error_code": code, "message": message}, status, headers)


def _ours(request: Request, error: Exception) -> Response:
    kinds = (kind for kind in type(error).__mro__ if kind in OURS)
    status, code = OURS.get(next(kinds, LakeshareError), (500, "INTERNAL_ERROR"))
    if status >= 500:
        _log.error("%s %s: %s", request.method, request.url.path, error)
    # Recipients are sent to their provider; this is the provider.
    message = (
        f"{error.kind} '{shown(error.name)}' does not exist." if isinstance(error, NotFound) else str(error)
    )
    headers = HEADERS.get(status)
    if isinstance(error, TooManyRequests | Unavailable) and error.retry_s is not None:
        headers = {"Retry-After": str(error.retry_s)}
    return _respond(request, status, code, message, headers)


def _invalid(request: Request, error: Exception) -> Response:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return _ours(request, BadRequest(where, first.get("input"), f"{first.get('msg')}."))


def _routing(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    message = f"{request.method} {request.url.path} is not part of the API; /api/docs lists what is."
    return _respond(
        request, status, ROUTING.get(status, "BAD_REQUEST"), message, getattr(error, "headers", None)
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
