"""A read-only Iceberg REST catalog of the shares, with a share as its warehouse (protocol §9).

The endpoints in the config response are the routes themselves.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import Route

from lakeshare_server.errors import BadRequest, NotFound, shorten_value
from lakeshare_server.iceberg_rest.scans import (
    PlanTask,
    ScanRequest,
    first_task,
    parse_scan_request,
    tasks_json,
)
from lakeshare_server.iceberg_rest.tables import (
    NO_STORAGE,
    ClientStorage,
    LoadedTable,
    client_storage,
    needs_no_storage,
    planning_config,
    vended_storage,
)
from lakeshare_server.protocol.requests import parse_integer, parse_json_object
from lakeshare_server.protocol.tokens import Keyed, PageRequest
from lakeshare_server.routes.context import (
    LISTINGS,
    RecipientRequest,
    TableRequest,
    get_recipient_request,
    get_table_request,
    read_body,
)
from lakeshare_server.routes.responses import JSON_TYPE, iceberg_error, json_response
from lakeshare_server.settings import ICEBERG_PATH


async def load_table(http_request: Request) -> Response:
    request, table = await _load(http_request)
    storage = NO_STORAGE
    if not needs_no_storage(request.view, table):
        storage = await request.run(_storage, request, table)
    # The stored metadata is inserted as bytes: parsing thousands of snapshots per response would cost more.
    planning = planning_config(request.view, table, request.app_state.settings)
    fields = _storage_fields(request, table, replace(storage, config={**planning, **storage.config}))
    around = orjson.dumps({"metadata-location": table.metadata_location, **fields})
    return Response(around[:-1] + b',"metadata":' + table.metadata + b"}", media_type=JSON_TYPE)


async def table_exists(http_request: Request) -> Response:
    await _load(http_request)
    return Response(status_code=204)


async def load_credentials(http_request: Request) -> Response:
    request, table = await _load(http_request)
    fields = _storage_fields(request, table, await request.run(_vend_storage, request, table))
    return json_response({"storage-credentials": fields["storage-credentials"]})


async def sign_request(http_request: Request) -> Response:
    request, table = await _load(http_request)
    return await request.run(_sign_request, request, table, await read_body(http_request, request))


async def report_metrics(http_request: Request) -> Response:
    request, _ = await _load(http_request)

    parse_json_object(await read_body(http_request, request))
    return Response(status_code=204)


async def _load(http_request: Request) -> tuple[TableRequest, LoadedTable]:
    request = await get_table_request(http_request)
    tables = request.app_state.iceberg_tables
    table = tables.peek(request.view, request.generation)
    if table is None:
        table = await request.run(tables.load, request.view, request.generation)
    request.audit_record.version = table.version
    if table.pins and table.pins[-1].version.number == table.version:
        request.audit_record.note_version(table.pins[-1].version)
    return request, table


def _storage(request: TableRequest, table: LoadedTable) -> ClientStorage:
    view, app_state = request.view, request.app_state
    names = [quote(name, safe="") for name in (view.entry.share, view.entry.schema, view.entry.name)]
    sign_at = "v1/shares/{}/namespaces/{}/tables/{}/sign".format(*names)
    folder = app_state.iceberg_tables.folder(view, request.generation)
    return client_storage(view, table, folder, app_state.signers, app_state.settings, sign_at)


def _vend_storage(request: TableRequest, table: LoadedTable) -> ClientStorage:
    view, app_state = request.view, request.app_state
    folder = app_state.iceberg_tables.folder(view, request.generation)
    return vended_storage(view, table, folder, app_state.signers, app_state.settings)


def _storage_fields(request: TableRequest, table: LoadedTable, storage: ClientStorage) -> dict[str, object]:
    fields: dict[str, object] = {"config": dict(storage.config)}
    if storage.credentials is not None:
        fields["storage-credentials"] = [{"prefix": table.location, "config": dict(storage.credentials)}]
        request.audit_record.details = {"vended": "storage-credentials", "location": table.location}
    return fields


def _sign_request(request: TableRequest, table: LoadedTable, body: bytes) -> Response:
    fields = parse_json_object(body)
    method, uri = text_field(fields, "method"), text_field(fields, "uri")
    request.require_signing()
    signers = request.app_state.signers
    location = signers.s3_read(table.location, method, uri)
    request.audit_record.details = {"location": location}
    request.app_state.signable_files.require(request.view, table, location)
    request.audit_record.files = 1
    headers = fields.get("headers") or {}
    if not isinstance(headers, dict) or not all(
        isinstance(values, list) and all(isinstance(value, str) for value in values)
        for values in headers.values()
    ):
        raise BadRequest("headers", headers, "Give an object of lists of texts.")
    signed = signers.signed_read(location, method, headers)
    # Clients may cache the signature while S3 accepts it: files of a publication never change.
    return json_response({"uri": signed.uri, "headers": signed.headers}, headers={"Cache-Control": "private"})


def text_field(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadRequest(name, value, "Give it as text.")
    return value


async def plan_scan(http_request: Request) -> Response:
    request, table = await _load(http_request)
    scan = parse_scan_request(parse_json_object(await read_body(http_request, request)))
    tasks = await request.run(_tasks, request, table, scan, first_task(table, scan))
    return Response(f'{{"status":"completed",{tasks}}}', media_type=JSON_TYPE)


async def fetch_plan(http_request: Request) -> Response:
    await _load(http_request)
    raise NotFound("plan-id", shorten_value(http_request.path_params["plan_id"]))


async def cancel_plan(http_request: Request) -> Response:
    return await fetch_plan(http_request)


async def fetch_scan_tasks(http_request: Request) -> Response:
    request, table = await _load(http_request)
    fields = parse_json_object(await read_body(http_request, request))
    scan, task = request.app_state.plan_tasks.open(request.token_holder, text_field(fields, "plan-task"))
    tasks = await request.run(_tasks, request, table, scan, task)
    return Response(f"{{{tasks}}}", media_type=JSON_TYPE)


def _tasks(request: TableRequest, table: LoadedTable, scan: ScanRequest, task: PlanTask) -> str:
    request.require_signing()
    app_state = request.app_state
    page = app_state.iceberg_scans.page(
        request.view,
        table,
        scan,
        task,
        app_state.settings.page_files,
        is_for_pyiceberg=request.http_request.headers.get("user-agent", "").startswith("PyIceberg/"),
    )
    request.audit_record.files = len(page.tasks)
    following = None
    if page.following is not None:
        next_task = PlanTask(task.snapshot_id, page.following)
        following = app_state.plan_tasks.token(request.token_holder, scan, next_task)
    return tasks_json(page.tasks, page.deletes, following)


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
    handler: Callable[[Request], Awaitable[Response]]

    def route(self) -> Route:
        """The route; a namespace is a schema in the rest of the code."""
        path = self.path.replace("{namespace}", "{schema}").replace("{plan-id}", "{plan_id}")
        path = f"{ICEBERG_PATH}/v1/shares/{{share}}{path}"
        return Route(path, self.handler, methods=[self.method], name=self.handler.__name__)


def routes() -> list[Route]:
    config = Route(f"{ICEBERG_PATH}/v1/config", iceberg_config, methods=["GET"])
    return [*(endpoint.route() for endpoint in ENDPOINTS), config]


def other_calls() -> Route:
    """The route of calls that a read-only catalog does not have; it must come after all other routes."""
    return Route(f"{ICEBERG_PATH}/v1/{{rest:path}}", not_offered, methods=list(EVERY_METHOD))


async def iceberg_config(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    warehouse = http_request.query_params.get("warehouse")
    if not warehouse:
        raise BadRequest("warehouse", warehouse, "Give the name of a share, like `warehouse=<share>`.")
    request.audit_record.object_name = warehouse
    share = await run_in_threadpool(request.listings.share, warehouse)
    return json_response(
        {
            "defaults": {},
            "overrides": {"prefix": f"shares/{quote(share.name, safe='')}"},
            "endpoints": [f"{endpoint.method} /v1/{{prefix}}{endpoint.path}" for endpoint in ENDPOINTS],
        }
    )


async def list_namespaces(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    return await run_in_threadpool(_namespaces, request, http_request.path_params["share"])


async def load_namespace(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    names = http_request.path_params
    schema = await run_in_threadpool(request.listings.schema, names["share"], names["schema"])
    return json_response({"namespace": [schema.name], "properties": {}})


async def namespace_exists(http_request: Request) -> Response:
    await load_namespace(http_request)
    return Response(status_code=204)


async def list_iceberg_tables(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    names = http_request.path_params
    return await request.app_state.pools.run(LISTINGS, _tables, request, names["share"], names["schema"])


async def not_offered(http_request: Request) -> Response:
    audit_record = (await get_recipient_request(http_request)).audit_record
    audit_record.object_name, audit_record.error_code = http_request.url.path, "UNSUPPORTED_OPERATION"
    message = (
        f"{http_request.method} {http_request.url.path} is not offered: this catalog is for reading "
        "shares, see its config."
    )
    return iceberg_error(406, "UnsupportedOperationException", message)


def _namespaces(request: RecipientRequest, share: str) -> Response:
    listings, parent = request.listings, request.http_request.query_params.get("parent")
    if parent:
        listings.schema(share, parent)
        return json_response({"namespaces": []})
    schemas, token = _list_page(request, f"namespaces/{share.lower()}", partial(listings.schemas, share))
    return _page({"namespaces": [[schema.name] for schema in schemas]}, token)


def _tables(request: RecipientRequest, share: str, schema: str) -> Response:
    listing, read = (
        f"iceberg/{share.lower()}/{schema.lower()}",
        partial(request.listings.tables, share, schema),
    )
    tables, token = _list_page(request, listing, read)
    lists = request.app_state.iceberg_tables.lists
    identifiers = [
        {"namespace": [table.schema], "name": table.name} for table in tables if lists(request.view_of(table))
    ]
    return _page({"identifiers": identifiers}, token)


def _list_page(
    request: RecipientRequest, listing: str, read: Callable[[int, int], Sequence[Entry]]
) -> tuple[Sequence[Entry], str | None]:
    """The requested page; all entries for a client without paging, which would ignore the token of a next page."""
    query = request.http_request.query_params
    size, token = query.get("pageSize"), query.get("pageToken")
    if size is None and token is None:
        entries: list[Entry] = []
        while True:
            page = read(entries[-1].key if entries else 0, PAGE)
            entries += page
            if len(page) < PAGE:
                return entries, None
    max_entries = PAGE if size is None else min(parse_integer("pageSize", size, low=1), PAGE)
    page_request = PageRequest(str(max_entries), token)
    return request.app_state.pager.page(request.reader.id, listing, page_request, read)


def _page(content: dict[str, Any], token: str | None) -> Response:
    return json_response({**content, "next-page-token": token} if token else content)


# Tables first, because most requests are for them; HEAD before GET, because a route for GET also accepts HEAD.
ENDPOINTS = (
    Endpoint("HEAD", TABLE, table_exists),
    Endpoint("GET", TABLE, load_table),
    Endpoint("POST", f"{TABLE}/sign", sign_request),
    Endpoint("POST", f"{TABLE}/plan", plan_scan),
    Endpoint("POST", f"{TABLE}/tasks", fetch_scan_tasks),
    Endpoint("GET", f"{TABLE}/plan/{{plan-id}}", fetch_plan),
    Endpoint("DELETE", f"{TABLE}/plan/{{plan-id}}", cancel_plan),
    Endpoint("POST", f"{TABLE}/metrics", report_metrics),
    Endpoint("GET", f"{TABLE}/credentials", load_credentials),
    Endpoint("GET", "/namespaces", list_namespaces),
    Endpoint("HEAD", NAMESPACE, namespace_exists),
    Endpoint("GET", NAMESPACE, load_namespace),
    Endpoint("GET", f"{NAMESPACE}/tables", list_iceberg_tables),
)
