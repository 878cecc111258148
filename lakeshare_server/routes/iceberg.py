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
from lakeshare_server.errors import BadRequest, NotFound, shown
from lakeshare_server.iceberg_rest.scans import (
    PlanTask,
    ScanRequest,
    asked_task,
    parse_scan_request,
    tasks_json,
)
from lakeshare_server.iceberg_rest.tables import (
    NOTHING,
    ClientStorage,
    LoadedTable,
    client_storage,
    needs_no_storage,
    planning_config,
    vended_storage,
)
from lakeshare_server.protocol.requests import json_object, whole_number
from lakeshare_server.protocol.tokens import Keyed, PageRequest
from lakeshare_server.routes.context import LISTINGS, Asked, AskedTable, asked, asked_table, body_of
from lakeshare_server.routes.responses import iceberg_error, json_response
from lakeshare_server.settings import ICEBERG_PATH

JSON = "application/json; charset=utf-8"


async def load_table(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    storage = NOTHING
    if not needs_no_storage(by.view, table):
        storage = await by.run(_storage, by, table)
        _note_credentials(by, table, storage)
    # The metadata is put in as it is kept: taking thousands of snapshots apart for each answer would cost more.
    planning = planning_config(by.view, table, by.parts.settings)
    told = _told(table, replace(storage, config={**planning, **storage.config}))
    around = orjson.dumps({"metadata-location": table.metadata_location, **told})
    return Response(around[:-1] + b',"metadata":' + table.metadata + b"}", media_type=JSON)


async def table_exists(request: Request) -> Response:
    await loaded(await asked_table(request))
    return Response(status_code=204)


async def load_credentials(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    storage = await by.run(_vended, by, table)
    _note_credentials(by, table, storage)
    return json_response({"storage-credentials": _told(table, storage)["storage-credentials"]})


async def sign_request(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    body = await body_of(request, by)
    return await by.run(_signed, by, table, body)


async def report_metrics(request: Request) -> Response:
    by = await asked_table(request)
    await loaded(by)
    # Nobody here reads what clients measure; the audit log has the request itself.
    json_object(await body_of(request, by))
    return Response(status_code=204)


async def loaded(by: AskedTable) -> LoadedTable:
    tables = by.parts.iceberg_tables
    table = tables.peek(by.view, by.generation)
    if table is None:
        table = await by.run(tables.load, by.view, by.generation)
    by.note.version = table.version
    return table


def _storage(by: AskedTable, table: LoadedTable) -> ClientStorage:
    entry = by.view.entry
    names = [quote(name, safe="") for name in (entry.share.name, entry.schema, entry.name)]
    sign_at = "v1/shares/{}/namespaces/{}/tables/{}/sign".format(*names)
    folder = by.parts.iceberg_tables.folder(by.view, by.generation)
    return client_storage(by.view, table, folder, by.parts.signers, by.parts.settings, sign_at)


def _vended(by: AskedTable, table: LoadedTable) -> ClientStorage:
    folder = by.parts.iceberg_tables.folder(by.view, by.generation)
    return vended_storage(by.view, table, folder, by.parts.signers, by.parts.settings)


def _note_credentials(by: AskedTable, table: LoadedTable, storage: ClientStorage) -> None:
    if storage.credentials is not None:
        by.note.details = {"vended": "storage-credentials", "location": table.location}


def _told(table: LoadedTable, storage: ClientStorage) -> dict[str, object]:
    told: dict[str, object] = {"config": dict(storage.config)}
    if storage.credentials is not None:
        told["storage-credentials"] = [{"prefix": table.location, "config": dict(storage.credentials)}]
    return told


def _signed(by: AskedTable, table: LoadedTable, body: bytes) -> Response:
    fields = json_object(body)
    method, uri = text_field(fields, "method"), text_field(fields, "uri")
    by.require_signing()
    signers = by.parts.signers
    location = signers.s3_read(table.location, method, uri)
    by.note.details = {"location": location}
    by.parts.signable_files.require(by.view, table, location)
    by.note.files = 1
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


async def plan_scan(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    fields = json_object(await body_of(request, by))
    asked = parse_scan_request(fields)
    tasks = await by.run(_tasks, by, table, asked, asked_task(table, asked), _is_pyiceberg(request))
    return Response(f'{{"status":"completed",{tasks}}}', media_type=JSON)


async def fetch_plan(request: Request) -> Response:
    await loaded(await asked_table(request))
    raise NotFound("plan-id", shown(request.path_params["plan_id"]))


async def cancel_plan(request: Request) -> Response:
    return await fetch_plan(request)


async def fetch_scan_tasks(request: Request) -> Response:
    by = await asked_table(request)
    table = await loaded(by)
    fields = json_object(await body_of(request, by))
    asked, task = by.parts.plan_tasks.opened(by.asker, text_field(fields, "plan-task"))
    tasks = await by.run(_tasks, by, table, asked, task, _is_pyiceberg(request))
    return Response(f"{{{tasks}}}", media_type=JSON)


def _is_pyiceberg(request: Request) -> bool:
    return request.headers.get("user-agent", "").startswith("PyIceberg/")


def _tasks(
    by: AskedTable, table: LoadedTable, asked: ScanRequest, task: PlanTask, is_for_pyiceberg: bool
) -> str:
    by.require_signing()
    page = by.parts.iceberg_scans.page(
        by.view, table, asked, task, by.parts.settings.page_files, is_for_pyiceberg=is_for_pyiceberg
    )
    by.note.files = len(page.tasks)
    following = None
    if page.following is not None:
        next_task = PlanTask(task.snapshot_id, page.following)
        following = by.parts.plan_tasks.token(by.asker, asked, next_task)
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
