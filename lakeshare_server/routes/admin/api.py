"""The admin API put together, with its document: an application of its own below `/api`, for its errors are its own."""

import base64
import hashlib
import logging
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from pydantic.json_schema import models_json_schema
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
    shorten_value,
)
from lakeshare_server.protocol import admin_requests
from lakeshare_server.protocol.admin_requests import RequestBody
from lakeshare_server.protocol.admin_responses import ErrorReply
from lakeshare_server.routes.admin import resources
from lakeshare_server.routes.context import AppState, AuditRecord
from lakeshare_server.routes.errors import BROKEN_OFF, HEADERS, NO_RESPONSE, RESPONSES
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
    app.add_exception_handler(LakeshareError, _lakeshare_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(ClientDisconnect, _client_disconnected)
    app.add_exception_handler(Exception, _unexpected_error)


def _respond(
    request: Request, status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> Response:
    audit_record: AuditRecord | None = getattr(request.state, "audit_record", None)
    if audit_record is not None:
        audit_record.error_code = code
    return json_response({"error_code": code, "message": message}, status, headers)


def _lakeshare_error(request: Request, error: Exception) -> Response:
    kinds = (kind for kind in type(error).__mro__ if kind in OURS)
    status, code = OURS.get(next(kinds, LakeshareError), (500, "INTERNAL_ERROR"))
    if status >= 500:
        _log.error("%s %s: %s", request.method, request.url.path, error)
    # Recipients are sent to their provider; this is the provider.
    message = (
        f"{error.kind} '{shorten_value(error.name)}' does not exist."
        if isinstance(error, NotFound)
        else str(error)
    )
    headers = HEADERS.get(status)
    if isinstance(error, TooManyRequests | Unavailable) and error.retry_s is not None:
        headers = {"Retry-After": str(error.retry_s)}
    return _respond(request, status, code, message, headers)


def _invalid_request(request: Request, error: Exception) -> Response:
    first = error.errors()[0] if isinstance(error, RequestValidationError) else {}
    where = ".".join(str(part) for part in first.get("loc", ())[1:])
    return _lakeshare_error(request, BadRequest(where, first.get("input"), f"{first.get('msg')}."))


def _routing_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    message = f"{request.method} {request.url.path} is not part of the API; /api/docs lists what is."
    return _respond(
        request, status, ROUTING.get(status, "BAD_REQUEST"), message, getattr(error, "headers", None)
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


STYLE = (files("lakeshare_server.routes.admin") / "document.css").read_text()
_digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_digest}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
METHODS = ("get", "post", "put", "patch", "delete")

_templates = Environment(
    loader=PackageLoader("lakeshare_server.routes.admin", ""), autoescape=True, trim_blocks=True
)


def render_page(document: dict[str, Any]) -> Response:
    """The page."""
    operations: dict[str, list[dict[str, Any]]] = {}
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                told = {"method": method.upper(), "path": f"/api{path}", **item[method]}
                operations.setdefault(item[method]["tags"][0], []).append(told)
    text = _templates.get_template("document.html.jinja").render(
        document=document,
        operations=operations,
        schemas=document["components"]["schemas"],
        style=Markup(STYLE),  # noqa: S704 - ours
    )
    return Response(text, headers=PAGE_HEADERS, media_type="text/html; charset=utf-8")


PREFIX = "/api"
DATABRICKS = "/2.1/unity-catalog"
OPENSHARING = "/2.1/opensharing"
PROVIDER = f"{OPENSHARING}/provider"
DESCRIPTION = (
    "Shares, recipients and grants of lakeshare. The paths below `/api/2.1/unity-catalog`, `/api/2.0/data-sharing` "
    "and `/api/2.0/preview` are those of Databricks, so that its SDKs can drive this server; "
    "`/api/2.1/opensharing/provider` has the same calls by the paths of OpenSharing, and those that only lakeshare "
    "has. Send an administrator's key as `Authorization: Bearer`. What is told has an ETag; send it back as If-Match "
    "and a change is refused when somebody else was there in between."
)

well_known = APIRouter()


def admin_api(app_state: AppState, server: FastAPI) -> FastAPI:
    """The application to mount at `PREFIX` of the server."""
    app = FastAPI(
        title="lakeshare admin API",
        description=DESCRIPTION,
        version="1",
        openapi_url=None,
        redirect_slashes=False,
        servers=[{"url": PREFIX}],
        root_path_in_servers=False,
        responses={"default": {"model": ErrorReply, "description": "An error."}},
    )
    app.state.app_state, app.state.server = app_state, server
    add_error_responses(app)
    of_both = (resources.share_router, resources.permissions_router, resources.router)
    for router in of_both:
        app.include_router(router, prefix=DATABRICKS)
    app.include_router(resources.policies_router, prefix="/2.0/data-sharing")
    app.include_router(resources.me, prefix="/2.0/preview/scim/v2")
    app.include_router(resources.activation_router, prefix=f"{DATABRICKS}/public")
    provider = APIRouter(prefix=PROVIDER)
    for router in (*of_both, resources.policies_router, resources.groups_router, resources.keys_router):
        provider.include_router(router)
    provider.include_router(resources.own)
    provider.include_router(resources.followed_router)
    provider.include_router(resources.impersonation_router)
    app.include_router(provider)
    app.include_router(resources.activation_router, prefix=f"{OPENSHARING}/public")
    _add_document(app)
    return app


@well_known.get("/.well-known/databricks-config")
async def databricks_config() -> Response:
    """What SDKs of Databricks ask of a host before anything else: there is no issuer to log in at."""
    return json_response({"oidc_endpoint": ""})


def _add_document(app: FastAPI) -> None:
    """Let the application tell what it can do, to programs and to people; what it can do is no secret."""
    made: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        return made or made.update(_document(app)) or made

    @app.get("/openapi.json", include_in_schema=False)
    def tell_document() -> dict[str, Any]:
        return document()

    @app.get("/docs", include_in_schema=False)
    def show_document() -> Response:
        return render_page(document())


def _document(app: FastAPI) -> dict[str, Any]:
    document = app.openapi()
    bodies = [
        model
        for model in vars(admin_requests).values()
        if isinstance(model, type) and issubclass(model, RequestBody)
    ]
    _, schemas = models_json_schema(
        [(model, "validation") for model in bodies], ref_template="#/components/schemas/{model}"
    )
    components = document.setdefault("components", {})
    # Bodies are read after their sender is known, so the framework does not see them.
    components["schemas"] = {**components.get("schemas", {}), **schemas["$defs"]}
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    for path, item in document["paths"].items():
        if "/public/" in path:
            for operation in item.values():
                operation["security"] = []
    return document
