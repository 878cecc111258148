"""The same shares for Iceberg clients: a read-only REST catalog, with a share as its warehouse (protocol §9).

Listings are here, tables in `iceberg_tables`. What config announces is the very list that requests are routed by.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

import orjson
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.routing import Route

from lakeshare_server.catalog import Listings, TableEntry
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
from lakeshare_server.routes.responses import iceberg_error, json_response
from lakeshare_server.settings import ICEBERG_PATH

JSON = "application/json; charset=utf-8"


async def load_table(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    table = await load_table_response(request)
    storage = NO_STORAGE
    if not needs_no_storage(request.view, table):
        storage = await request.run(_storage, request, table)
        _note_credentials(request, table, storage)
    # The metadata is put in as it is kept: taking thousands of snapshots apart for each answer would cost more.
    planning = planning_config(request.view, table, request.app_state.settings)
    fields = _storage_fields(table, replace(storage, config={**planning, **storage.config}))
    around = orjson.dumps({"metadata-location": table.metadata_location, **fields})
    return Response(around[:-1] + b',"metadata":' + table.metadata + b"}", media_type=JSON)


async def table_exists(http_request: Request) -> Response:
    await load_table_response(await get_table_request(http_request))
    return Response(status_code=204)


async def load_credentials(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    table = await load_table_response(request)
    storage = await request.run(_vend_storage, request, table)
    _note_credentials(request, table, storage)
    return json_response({"storage-credentials": _storage_fields(table, storage)["storage-credentials"]})


async def sign_request(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    table = await load_table_response(request)
    body = await read_body(http_request, request)
    return await request.run(_sign_request, request, table, body)


async def report_metrics(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    await load_table_response(request)
    # Nobody here reads what clients measure; the audit log has the request itself.
    parse_json_object(await read_body(http_request, request))
    return Response(status_code=204)


async def load_table_response(request: TableRequest) -> LoadedTable:
    tables = request.app_state.iceberg_tables
    table = tables.peek(request.view, request.generation)
    if table is None:
        table = await request.run(tables.load, request.view, request.generation)
    request.audit_record.version = table.version
    return table


def _storage(request: TableRequest, table: LoadedTable) -> ClientStorage:
    entry = request.view.entry
    names = [quote(name, safe="") for name in (entry.share.name, entry.schema, entry.name)]
    sign_at = "v1/shares/{}/namespaces/{}/tables/{}/sign".format(*names)
    folder = request.app_state.iceberg_tables.folder(request.view, request.generation)
    return client_storage(
        request.view, table, folder, request.app_state.signers, request.app_state.settings, sign_at
    )


def _vend_storage(request: TableRequest, table: LoadedTable) -> ClientStorage:
    folder = request.app_state.iceberg_tables.folder(request.view, request.generation)
    return vended_storage(request.view, table, folder, request.app_state.signers, request.app_state.settings)


def _note_credentials(request: TableRequest, table: LoadedTable, storage: ClientStorage) -> None:
    if storage.credentials is not None:
        request.audit_record.details = {"vended": "storage-credentials", "location": table.location}


def _storage_fields(table: LoadedTable, storage: ClientStorage) -> dict[str, object]:
    fields: dict[str, object] = {"config": dict(storage.config)}
    if storage.credentials is not None:
        fields["storage-credentials"] = [{"prefix": table.location, "config": dict(storage.credentials)}]
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
    signed = signers.signed_read(location, method, _headers(fields))
    # A client may keep it for as long as S3 takes it: files of a publication never change.
    return json_response({"uri": signed.uri, "headers": signed.headers}, headers={"Cache-Control": "private"})


def text_field(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise BadRequest(name, value, "Give it as text, as the request to sign has it.")
    return value


def _headers(fields: dict[str, object]) -> dict[str, list[str]]:
    headers = fields.get("headers") or {}
    if isinstance(headers, dict) and all(
        isinstance(values, list) and all(isinstance(value, str) for value in values)
        for values in headers.values()
    ):
        return headers
    raise BadRequest("headers", headers, "Give an object of lists of texts.")


async def plan_scan(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    table = await load_table_response(request)
    fields = parse_json_object(await read_body(http_request, request))
    scan = parse_scan_request(fields)
    tasks = await request.run(
        _tasks, request, table, scan, first_task(table, scan), _is_pyiceberg(http_request)
    )
    return Response(f'{{"status":"completed",{tasks}}}', media_type=JSON)


async def fetch_plan(http_request: Request) -> Response:
    await load_table_response(await get_table_request(http_request))
    raise NotFound("plan-id", shorten_value(http_request.path_params["plan_id"]))


async def cancel_plan(http_request: Request) -> Response:
    return await fetch_plan(http_request)


async def fetch_scan_tasks(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    table = await load_table_response(request)
    fields = parse_json_object(await read_body(http_request, request))
    scan, task = request.app_state.plan_tasks.open(request.token_holder, text_field(fields, "plan-task"))
    tasks = await request.run(_tasks, request, table, scan, task, _is_pyiceberg(http_request))
    return Response(f"{{{tasks}}}", media_type=JSON)


def _is_pyiceberg(http_request: Request) -> bool:
    return http_request.headers.get("user-agent", "").startswith("PyIceberg/")


def _tasks(
    request: TableRequest, table: LoadedTable, scan: ScanRequest, task: PlanTask, is_for_pyiceberg: bool
) -> str:
    request.require_signing()
    page = request.app_state.iceberg_scans.page(
        request.view,
        table,
        scan,
        task,
        request.app_state.settings.page_files,
        is_for_pyiceberg=is_for_pyiceberg,
    )
    request.audit_record.files = len(page.tasks)
    following = None
    if page.following is not None:
        next_task = PlanTask(task.snapshot_id, page.following)
        following = request.app_state.plan_tasks.token(request.token_holder, scan, next_task)
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


async def iceberg_config(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    warehouse = http_request.query_params.get("warehouse")
    if not warehouse:
        raise BadRequest("warehouse", warehouse, "Give the name of a share, like `warehouse=<share>`.")
    request.audit_record.object_name = warehouse
    share = await run_in_threadpool(_listings(request).share, warehouse)
    return json_response(
        {
            "defaults": {},
            "overrides": {"prefix": f"shares/{quote(share.name, safe='')}"},
            "endpoints": [endpoint.told for endpoint in ENDPOINTS],
        }
    )


async def list_namespaces(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    return await run_in_threadpool(_namespaces, request, http_request.path_params["share"])


async def load_namespace(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    names = http_request.path_params
    schema = await run_in_threadpool(_listings(request).schema, names["share"], names["schema"])
    return json_response({"namespace": [schema.name], "properties": {}})


async def namespace_exists(http_request: Request) -> Response:
    await load_namespace(http_request)
    return Response(status_code=204)


async def list_iceberg_tables(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    names = http_request.path_params
    return await request.app_state.pools.run(LISTINGS, _tables, request, names["share"], names["schema"])


async def not_offered(http_request: Request) -> Response:
    request = await get_recipient_request(http_request)
    request.audit_record.object_name, request.audit_record.error_code = (
        http_request.url.path,
        "UNSUPPORTED_OPERATION",
    )
    message = (
        f"{http_request.method} {http_request.url.path} is not offered: this catalog is for reading "
        "shares, see its config."
    )
    return iceberg_error(406, "UnsupportedOperationException", message)


def _namespaces(request: RecipientRequest, share: str) -> Response:
    listings, parent = _listings(request), request.http_request.query_params.get("parent")
    if parent:
        listings.schema(share, parent)
        return json_response({"namespaces": []})
    schemas, token = _listed(
        request, f"namespaces/{share.lower()}", lambda after, limit: listings.schemas(share, after, limit)
    )
    return _page({"namespaces": [[schema.name] for schema in schemas]}, token)


def _tables(request: RecipientRequest, share: str, schema: str) -> Response:
    listings = _listings(request)
    tables, token = _listed(
        request,
        f"iceberg/{share.lower()}/{schema.lower()}",
        lambda after, limit: listings.tables(share, schema, after, limit),
    )
    identifiers = [
        {"namespace": [table.schema], "name": table.name} for table in tables if _is_iceberg(request, table)
    ]
    return _page({"identifiers": identifiers}, token)


def _is_iceberg(request: RecipientRequest, table: TableEntry) -> bool:
    view = request.app_state.views.table(
        request.reader, table.share.name, table.schema, table.name, request.generation
    )
    return request.app_state.iceberg_tables.lists(view)


def _listed(
    request: RecipientRequest, listing: str, read: Callable[[int, int], Sequence[Entry]]
) -> tuple[Sequence[Entry], str | None]:
    """One page, or all for a client that does not page: it would take the first page for all there is."""
    query = request.http_request.query_params
    size, token = query.get("pageSize"), query.get("pageToken")
    if size is None and token is None:
        return _read_all(read), None
    max_entries = PAGE if size is None else min(parse_integer("pageSize", size, low=1), PAGE)
    return request.app_state.pager.page(
        request.reader.id, listing, PageRequest(str(max_entries), token), read
    )


def _read_all(read: Callable[[int, int], Sequence[Entry]]) -> Sequence[Entry]:
    found: list[Entry] = []
    while True:
        page = read(found[-1].key if found else 0, PAGE)
        found += page
        if len(page) < PAGE:
            return found


def _page(content: dict[str, Any], token: str | None) -> Response:
    return json_response({**content, "next-page-token": token} if token else content)


def _listings(request: RecipientRequest) -> Listings:
    return Listings(request.app_state.catalog, request.reader.id)


# Tables first, they are asked for most; HEAD before GET, since a route for GET takes HEAD, too.
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
