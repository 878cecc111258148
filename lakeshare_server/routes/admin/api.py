"""The admin API put together, with its document: an application of its own below `/api`, for its errors are its own."""

from typing import Any

from fastapi import APIRouter, FastAPI, Response
from pydantic.json_schema import models_json_schema

from lakeshare_server.protocol.admin import requests
from lakeshare_server.protocol.admin.fields import RequestBody
from lakeshare_server.protocol.admin.replies import ErrorReply
from lakeshare_server.routes.admin import (
    activation,
    followed,
    groups,
    keys,
    permissions,
    policies,
    recipients,
    see_as,
    shares,
)
from lakeshare_server.routes.admin.document_page import page_of
from lakeshare_server.routes.admin.errors import add_error_responses
from lakeshare_server.routes.context import Parts
from lakeshare_server.routes.responses import json_response

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


def admin_api(parts: Parts, server: FastAPI) -> FastAPI:
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
    app.state.parts, app.state.server = parts, server
    add_error_responses(app)
    for module in (shares, permissions, recipients):
        app.include_router(module.router, prefix=DATABRICKS)
    app.include_router(policies.router, prefix="/2.0/data-sharing")
    app.include_router(keys.me, prefix="/2.0/preview/scim/v2")
    app.include_router(activation.router, prefix=f"{DATABRICKS}/public")
    provider = APIRouter(prefix=PROVIDER)
    for module in (shares, permissions, recipients, policies, groups, keys):
        provider.include_router(module.router)
    provider.include_router(recipients.own)
    provider.include_router(followed.router)
    provider.include_router(see_as.router)
    app.include_router(provider)
    app.include_router(activation.router, prefix=f"{OPENSHARING}/public")
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
        return page_of(document())


def _document(app: FastAPI) -> dict[str, Any]:
    document = app.openapi()
    bodies = [
        model
        for model in vars(requests).values()
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
