"""The same shares for Iceberg clients: a read-only REST catalog, with a share as its warehouse (protocol §9).

Listings are here, tables in `iceberg_tables`. What config announces is the very list that requests are routed by.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import Route

from lakeshare_server.catalog import Listings, TableEntry
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.paging import Keyed, PageRequest
from lakeshare_server.protocol.parameters import whole_number
from lakeshare_server.routes import iceberg_scans, iceberg_tables
from lakeshare_server.routes.context import Asked, asked
from lakeshare_server.routes.pools import LISTINGS
from lakeshare_server.routes.responses import iceberg_error, json_response
from lakeshare_server.settings import ICEBERG_PATH

PAGE = 500
EVERY_METHOD = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
NAMESPACE = "/namespaces/{namespace}"
TABLE = f"{NAMESPACE}/tables/{{table}}"

Entry = TypeVar("Entry", bound=Keyed)


@dataclass(frozen=True)
class Endpoint:
    """A call of the REST specification below its `/v1/{prefix}`."""

    method: str
    path: str
    answer: Callable[[Request], Awaitable[Response]]

    @property
    def told(self) -> str:
        """As config announces it."""
        return f"{self.method} /v1/{{prefix}}{self.path}"

    def route(self) -> Route:
        """Where requests find it: a namespace is what a schema is elsewhere."""
        path = self.path.replace("{namespace}", "{schema}").replace("{plan-id}", "{plan_id}")
        path = f"{ICEBERG_PATH}/v1/shares/{{share}}{path}"
        return Route(path, self.answer, methods=[self.method], name=self.answer.__name__)


def routes() -> list[Route]:
    """All calls."""
    config = Route(f"{ICEBERG_PATH}/v1/config", iceberg_config, methods=["GET"])
    return [*(endpoint.route() for endpoint in ENDPOINTS), config]


def other_calls() -> Route:
    """What a read-only catalog does not have; after all other routes, whose prefix may be like this one."""
    return Route(f"{ICEBERG_PATH}/v1/{{rest:path}}", not_offered, methods=list(EVERY_METHOD))


async def iceberg_config(request: Request) -> Response:
    by = await asked(request)
    warehouse = request.query_params.get("warehouse")
    if not warehouse:
        raise BadRequest("warehouse", warehouse, "Give the name of a share, like `warehouse=<share>`.")
    by.note.object_name = warehouse
    share = await run_in_threadpool(_listings(by).share, warehouse)
    return json_response(
        {
            "defaults": {},
            "overrides": {"prefix": f"shares/{quote(share.name, safe='')}"},
            "endpoints": [endpoint.told for endpoint in ENDPOINTS],
        }
    )


async def list_namespaces(request: Request) -> Response:
    by = await asked(request)
    return await run_in_threadpool(_namespaces, by, request.path_params["share"])


async def load_namespace(request: Request) -> Response:
    by = await asked(request)
    names = request.path_params
    schema = await run_in_threadpool(_listings(by).schema, names["share"], names["schema"])
    return json_response({"namespace": [schema.name], "properties": {}})


async def namespace_exists(request: Request) -> Response:
    await load_namespace(request)
    return Response(status_code=204)


async def list_iceberg_tables(request: Request) -> Response:
    by = await asked(request)
    names = request.path_params
    return await by.parts.pools.run(LISTINGS, _tables, by, names["share"], names["schema"])


async def not_offered(request: Request) -> Response:
    by = await asked(request)
    by.note.object_name, by.note.error_code = request.url.path, "UNSUPPORTED_OPERATION"
    told = f"{request.method} {request.url.path} is not offered: this catalog is for reading shares, see its config."
    return iceberg_error(406, "UnsupportedOperationException", told)


def _namespaces(by: Asked, share: str) -> Response:
    listings, parent = _listings(by), by.request.query_params.get("parent")
    if parent:
        listings.schema(share, parent)
        return json_response({"namespaces": []})
    schemas, token = _listed(
        by, f"namespaces/{share.lower()}", lambda after, limit: listings.schemas(share, after, limit)
    )
    return _page({"namespaces": [[schema.name] for schema in schemas]}, token)


def _tables(by: Asked, share: str, schema: str) -> Response:
    listings = _listings(by)
    tables, token = _listed(
        by,
        f"iceberg/{share.lower()}/{schema.lower()}",
        lambda after, limit: listings.tables(share, schema, after, limit),
    )
    said = [{"namespace": [table.schema], "name": table.name} for table in tables if _is_iceberg(by, table)]
    return _page({"identifiers": said}, token)


def _is_iceberg(by: Asked, table: TableEntry) -> bool:
    view = by.parts.views.table(by.reader, table.share.name, table.schema, table.name, by.generation)
    return by.parts.iceberg_tables.lists(view)


def _listed(
    by: Asked, listing: str, read: Callable[[int, int], Sequence[Entry]]
) -> tuple[Sequence[Entry], str | None]:
    """One page, or all for a client that does not page: it would take the first page for all there is."""
    query = by.request.query_params
    size, token = query.get("pageSize"), query.get("pageToken")
    if size is None and token is None:
        return _all(read), None
    most = PAGE if size is None else min(whole_number("pageSize", size, low=1), PAGE)
    return by.parts.pager.page(by.reader.id, listing, PageRequest(str(most), token), read)


def _all(read: Callable[[int, int], Sequence[Entry]]) -> Sequence[Entry]:
    found: list[Entry] = []
    while True:
        page = read(found[-1].key if found else 0, PAGE)
        found += page
        if len(page) < PAGE:
            return found


def _page(said: dict[str, Any], token: str | None) -> Response:
    return json_response({**said, "next-page-token": token} if token else said)


def _listings(by: Asked) -> Listings:
    return Listings(by.parts.catalog, by.reader.id)


# Tables first, they are asked for most; HEAD before GET, since a route for GET takes HEAD, too.
ENDPOINTS = (
    Endpoint("HEAD", TABLE, iceberg_tables.table_exists),
    Endpoint("GET", TABLE, iceberg_tables.load_table),
    Endpoint("POST", f"{TABLE}/sign", iceberg_tables.sign_request),
    Endpoint("POST", f"{TABLE}/plan", iceberg_scans.plan_scan),
    Endpoint("POST", f"{TABLE}/tasks", iceberg_scans.fetch_scan_tasks),
    Endpoint("GET", f"{TABLE}/plan/{{plan-id}}", iceberg_scans.fetch_plan),
    Endpoint("DELETE", f"{TABLE}/plan/{{plan-id}}", iceberg_scans.cancel_plan),
    Endpoint("POST", f"{TABLE}/metrics", iceberg_tables.report_metrics),
    Endpoint("GET", f"{TABLE}/credentials", iceberg_tables.load_credentials),
    Endpoint("GET", "/namespaces", list_namespaces),
    Endpoint("HEAD", NAMESPACE, namespace_exists),
    Endpoint("GET", NAMESPACE, load_namespace),
    Endpoint("GET", f"{NAMESPACE}/tables", list_iceberg_tables),
)
