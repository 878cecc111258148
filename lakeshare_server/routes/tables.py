"""One table: its version, its metadata, its files. Answers come from versions and indexes, never from the lake."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from lakeshare_server.access.table_access import (
    Submission,
    TableView,
    describe_directory_access,
    require_directory_access,
)
from lakeshare_server.catalog import AsyncQuery, Listings, ShareEntry, TableEntry
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.lines import HeadLines, json_line, negotiate_format, negotiate_protocol
from lakeshare_server.protocol.requests import (
    FIELDS,
    QueryRequest,
    TimePoint,
    optional_integer,
    optional_text,
    parse_json_object,
    parse_milliseconds,
    parse_paging,
    parse_query,
)
from lakeshare_server.routes.context import (
    LISTINGS,
    READ_METHODS,
    BodyDep,
    RecipientRequest,
    RecipientRequestDep,
    TableRequest,
    TableRequestDep,
    get_table_request,
    in_table_pool,
    read_body,
)
from lakeshare_server.routes.errors import HEADERS, find_error_response
from lakeshare_server.routes.queries import lines_response, respond_to_pinned, respond_to_query
from lakeshare_server.routes.responses import VERSION_HEADER, error_response, json_response
from lakeshare_server.storage import normalise_location
from lakeshare_server.versions import Version

listings_router = APIRouter()


@listings_router.api_route("/shares", methods=READ_METHODS, name="list_shares")
def list_shares(request: RecipientRequestDep) -> Response:
    listings = Listings(request.app_state.catalog, request.reader.id)
    shares, token = request.app_state.pager.page(request.reader.id, "shares", request.page, listings.shares)
    return _items([_share(share) for share in shares], token)


@listings_router.api_route("/shares/{share}", methods=READ_METHODS, name="get_share")
def get_share(request: RecipientRequestDep, share: str) -> Response:
    return json_response(
        {"share": _share(Listings(request.app_state.catalog, request.reader.id).share(share))}
    )


@listings_router.api_route("/shares/{share}/schemas", methods=READ_METHODS, name="list_schemas")
def list_schemas(request: RecipientRequestDep, share: str) -> Response:
    listings = Listings(request.app_state.catalog, request.reader.id)
    schemas, token = request.app_state.pager.page(
        request.reader.id,
        f"schemas/{share.lower()}",
        request.page,
        lambda after, limit: listings.schemas(share, after, limit),
    )
    return _items([{"name": schema.name, "share": schema.share.name} for schema in schemas], token)


@listings_router.api_route(
    "/shares/{share}/schemas/{schema}/tables", methods=READ_METHODS, name="list_tables"
)
async def list_tables(request: RecipientRequestDep, share: str, schema: str) -> Response:
    return await request.app_state.pools.run(LISTINGS, _tables, request, share, schema)


@listings_router.api_route("/shares/{share}/all-tables", methods=READ_METHODS, name="list_all_tables")
async def list_all_tables(request: RecipientRequestDep, share: str) -> Response:
    return await request.app_state.pools.run(LISTINGS, _tables, request, share, None)


def _tables(request: RecipientRequest, share: str, schema: str | None) -> Response:
    listings = Listings(request.app_state.catalog, request.reader.id)
    of = "all" if schema is None else f"schema/{schema.lower()}"
    tables, token = request.app_state.pager.page(
        request.reader.id,
        f"tables/{share.lower()}/{of}",
        request.page,
        lambda after, limit: listings.tables(share, schema, after, limit),
    )
    return _items([make_table_item(request, table) for table in tables], token)


def _items(items: list[dict[str, Any]], token: str | None) -> Response:
    return json_response({"items": items, "nextPageToken": token} if token else {"items": items})


def _share(share: ShareEntry) -> dict[str, Any]:
    fields = {
        "name": share.name,
        "id": share.id,
        "displayName": share.display_name,
        "comment": share.comment,
        "properties": share.properties,
    }
    return {key: value for key, value in fields.items() if value}


def make_table_item(request: RecipientRequest, table: TableEntry) -> dict[str, Any]:
    """A table as listings show it."""
    fields = {
        "name": table.name,
        "schema": table.schema,
        "share": table.share.name,
        "shareId": table.share.id,
        "id": table.id,
    }
    if not table.directory_access:
        return fields
    view = request.app_state.views.table(
        request.reader, table.share.name, table.schema, table.name, request.generation
    )
    return {**fields, **describe_directory_access(view, request.app_state.signers).as_fields()}


router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")


@router.post("/temporary-table-credentials", name="table_credentials")
@in_table_pool
def table_credentials(request: TableRequestDep, body: BodyDep) -> Response:
    requested = optional_text(parse_json_object(body), "location")
    location = require_directory_access(request.view, request.app_state.signers)
    account = request.app_state.settings.azure_account
    if requested is not None and normalise_location(requested, account).rstrip("/") != location:
        raise BadRequest(
            "location", requested, f"It is not a location of {request.view.entry.path}. Leave it out."
        )
    granted = request.app_state.signers.vend(location, request.app_state.settings.url_life_s)
    request.audit_record.details = {
        "vended": granted.kind,
        "location": granted.location,
        "expires_at_ms": granted.expires_at_ms,
    }
    content = {
        "location": granted.location,
        granted.kind: dict(granted.fields),
        "expirationTime": granted.expires_at_ms,
    }
    return json_response({"credentials": content})


def submit_query(request: TableRequest, asked: QueryRequest, fields: Mapping[str, Any]) -> Response:
    """Take a query in, or answer for the one that came in under the same key."""
    if asked.idempotency_key is None:
        raise BadRequest("idempotencyKey", None, "idempotency_key is required for async query. Give a UUID.")
    entry = request.view.entry
    # What nobody reads is not kept: it may be of any depth, which cannot be written.
    stored = {name: value for name, value in fields.items() if name in FIELDS}
    names = (entry.share.name, entry.schema, entry.name)
    query = request.app_state.async_queries.submit(
        request.reader.id,
        entry.id,
        kind="query",
        request=Submission(request.reader, names, stored).as_json(),
        idempotency_key=asked.idempotency_key,
    )
    request.app_state.async_worker.wake()
    return _query_status(request, query, {})


@router.post("/queries/{query_id}", name="get_query")
@in_table_pool
def get_query(request: TableRequestDep, body: BodyDep, query_id: str) -> Response:
    query = request.app_state.async_queries.get(query_id, request.reader.id, request.view.entry.id)
    return _query_status(request, query, parse_json_object(body))


def _query_status(request: TableRequest, query: AsyncQuery, poll: Mapping[str, Any]) -> Response:
    if query.state == "failed":
        # Clients that see the word failed go on polling (protocol §0.8): they get the error itself.
        status, code = find_error_response(query.error_code)
        request.audit_record.error_code = code
        return error_response(status, code, query.error_message or "The query failed.", HEADERS.get(status))
    if query.state != "done" or query.version is None:
        return _pending(request, query)
    submitted, paging = Submission.from_json(query.request).query(), parse_paging(poll)
    if not paging.is_asked:
        paging = submitted.paging
    return respond_to_pinned(request, replace(submitted, paging=paging), query.version)


def _pending(request: TableRequest, query: AsyncQuery) -> Response:
    formats = request.response_options.capabilities.response_formats
    response_format = "delta" if formats and "parquet" not in formats else "parquet"
    # Clients want the header on every reply (protocol §0.7), also when the version is still to be found.
    latest = request.view.versions.latest_now()
    version = latest.number if latest is not None else 0
    pending_line = json_line({"queryStatus": {"queryId": query.id, "status": "pending"}})
    return lines_response(
        pending_line, None, version, response_format, request.response_options.without_end(), is_pending=True
    )


@router.get("", name="get_table")
@in_table_pool
def get_table(request: TableRequestDep) -> Response:
    # OpenSharing's own call (protocol §9); Delta Sharing has HEAD at the same place.
    header = request.view.index(request.view.latest()).header
    return json_response({**make_table_item(request, request.view.entry), "format": header.table_format})


def make_priority_routes(prefix: str) -> list[Route]:
    """Version polls and queries: most of the requests, and not delayed by the framework's dependencies."""
    path = prefix + router.prefix
    return [
        Route(f"{path}/version", table_version, methods=["GET", "HEAD"], name="table_version"),
        Route(path, table_version, methods=["HEAD"], name="table_version"),
        Route(f"{path}/query", query_table, methods=["POST"], name="query_table"),
    ]


async def table_version(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    # What is known is answered without leaving the event loop.
    text = request.http_request.query_params.get("startingTimestamp")
    version = request.view.versions.latest_now() if text is None else None
    if version is None:
        version = await request.run(_version_from, request.view, text)
    request.audit_record.version = version.number
    return Response(headers={VERSION_HEADER: str(version.number)})


@router.api_route("/metadata", methods=READ_METHODS, name="table_metadata")
@in_table_pool
def table_metadata(request: TableRequestDep) -> Response:
    return respond_with_metadata(request)


def respond_with_metadata(request: TableRequest) -> Response:
    """The metadata of a version, the latest one by default."""
    view, response_options = request.view, request.response_options
    version, is_requested = _version_of_metadata(view, request.http_request.query_params)
    request.audit_record.version = version.number
    header = view.index(version).header
    response_format = negotiate_format(response_options.capabilities, header.head, view.entry.path)
    lines = HeadLines(
        response_format=response_format,
        protocol=negotiate_protocol(response_options.capabilities, header.head),
        version=version.number if is_requested else None,
        size_bytes=header.size_bytes,
        files=header.files,
        shares_changes=view.entry.history,
        access=describe_directory_access(view, request.app_state.signers),
    )
    # Spark takes exactly two lines here (protocol §1.6): the closing action is not offered, so not announced either.
    first = lines.of(header.head)
    return lines_response(first, None, version.number, response_format, response_options.without_end())


async def query_table(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    return await request.run(_query, request, await read_body(http_request, request))


def _query(request: TableRequest, body: bytes) -> Response:
    fields = parse_json_object(body)
    query = parse_query(fields)
    # There is nothing to find out about a version that a token names: such a query is answered at once (protocol §1.9).
    is_async = request.response_options.capabilities.wants_async and not query.goes_on
    return submit_query(request, query, fields) if is_async else respond_to_query(request, query)


def _version_from(view: TableView, text: str | None) -> Version:
    if text is None:
        return view.latest()
    return view.from_timestamp(
        "startingTimestamp", TimePoint(parse_milliseconds("startingTimestamp", text), text)
    )


def _version_of_metadata(view: TableView, query: Mapping[str, str]) -> tuple[Version, bool]:
    """The version, and whether it was asked for."""
    number = optional_integer(query, "version", said="table version")
    text = query.get("timestamp")
    if number is not None and text is not None:
        raise BadRequest("version,timestamp", "both", "Please only provide one of: version,timestamp.")
    if number is not None:
        return view.at_version(number), True
    if text is not None:
        return view.at_timestamp(TimePoint(parse_milliseconds("timestamp", text), text)), True
    return view.latest(), False
