"""One table: its version, its metadata, its files. Answers come from versions and indexes, never from the lake."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from lakeshare_server.access.table_access import Submission, TableView, access_of, require_directory_access
from lakeshare_server.catalog import AsyncQuery, Listings, ShareEntry, TableEntry
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.lines import HeadLines, announced_protocol, line, negotiated
from lakeshare_server.protocol.requests import (
    FIELDS,
    QueryRequest,
    TimePoint,
    json_object,
    milliseconds,
    optional_number,
    optional_text,
    paging_of,
    query_of,
)
from lakeshare_server.routes.context import (
    LISTINGS,
    READING,
    Asked,
    AskedDep,
    AskedTable,
    BodyDep,
    TableDep,
    asked_table,
    body_of,
    in_table_pool,
)
from lakeshare_server.routes.errors import HEADERS, told_of
from lakeshare_server.routes.queries import answer_pinned, answer_query, table_lines
from lakeshare_server.routes.responses import VERSION_HEADER, error_response, json_response
from lakeshare_server.storage import normalised
from lakeshare_server.versions import Version

listings_router = APIRouter()


@listings_router.api_route("/shares", methods=READING, name="list_shares")
def list_shares(by: AskedDep) -> Response:
    listings = Listings(by.parts.catalog, by.reader.id)
    shares, token = by.parts.pager.page(by.reader.id, "shares", by.page, listings.shares)
    return _items([_share(share) for share in shares], token)


@listings_router.api_route("/shares/{share}", methods=READING, name="get_share")
def get_share(by: AskedDep, share: str) -> Response:
    return json_response({"share": _share(Listings(by.parts.catalog, by.reader.id).share(share))})


@listings_router.api_route("/shares/{share}/schemas", methods=READING, name="list_schemas")
def list_schemas(by: AskedDep, share: str) -> Response:
    listings = Listings(by.parts.catalog, by.reader.id)
    schemas, token = by.parts.pager.page(
        by.reader.id,
        f"schemas/{share.lower()}",
        by.page,
        lambda after, limit: listings.schemas(share, after, limit),
    )
    return _items([{"name": schema.name, "share": schema.share.name} for schema in schemas], token)


@listings_router.api_route("/shares/{share}/schemas/{schema}/tables", methods=READING, name="list_tables")
async def list_tables(by: AskedDep, share: str, schema: str) -> Response:
    return await by.parts.pools.run(LISTINGS, _tables, by, share, schema)


@listings_router.api_route("/shares/{share}/all-tables", methods=READING, name="list_all_tables")
async def list_all_tables(by: AskedDep, share: str) -> Response:
    return await by.parts.pools.run(LISTINGS, _tables, by, share, None)


def _tables(by: Asked, share: str, schema: str | None) -> Response:
    listings = Listings(by.parts.catalog, by.reader.id)
    of = "all" if schema is None else f"schema/{schema.lower()}"
    tables, token = by.parts.pager.page(
        by.reader.id,
        f"tables/{share.lower()}/{of}",
        by.page,
        lambda after, limit: listings.tables(share, schema, after, limit),
    )
    return _items([table_item(by, table) for table in tables], token)


def _items(items: list[dict[str, Any]], token: str | None) -> Response:
    return json_response({"items": items, "nextPageToken": token} if token else {"items": items})


def _share(share: ShareEntry) -> dict[str, Any]:
    said = {
        "name": share.name,
        "id": share.id,
        "displayName": share.display_name,
        "comment": share.comment,
        "properties": share.properties,
    }
    return {key: value for key, value in said.items() if value}


def table_item(by: Asked, table: TableEntry) -> dict[str, Any]:
    """A table as listings show it."""
    said = {
        "name": table.name,
        "schema": table.schema,
        "share": table.share.name,
        "shareId": table.share.id,
        "id": table.id,
    }
    if not table.directory_access:
        return said
    view = by.parts.views.table(by.reader, table.share.name, table.schema, table.name, by.generation)
    return {**said, **access_of(view, by.parts.signers).as_fields()}


router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")


@router.post("/temporary-table-credentials", name="table_credentials")
@in_table_pool
def table_credentials(by: TableDep, body: BodyDep) -> Response:
    asked = optional_text(json_object(body), "location")
    location = require_directory_access(by.view, by.parts.signers)
    account = by.parts.settings.azure_account
    if asked is not None and normalised(asked, account).rstrip("/") != location:
        raise BadRequest("location", asked, f"It is not a location of {by.view.entry.path}. Leave it out.")
    granted = by.parts.signers.vend(location, by.parts.settings.url_life_s)
    by.note.details = {
        "vended": granted.kind,
        "location": granted.location,
        "expires_at_ms": granted.expires_at_ms,
    }
    said = {
        "location": granted.location,
        granted.kind: dict(granted.fields),
        "expirationTime": granted.expires_at_ms,
    }
    return json_response({"credentials": said})


def submit(by: AskedTable, asked: QueryRequest, fields: Mapping[str, Any]) -> Response:
    """Take a query in, or answer for the one that came in under the same key."""
    if asked.idempotency_key is None:
        raise BadRequest("idempotencyKey", None, "idempotency_key is required for async query. Give a UUID.")
    entry = by.view.entry
    # What nobody reads is not kept: it may be of any depth, which cannot be written.
    kept = {name: value for name, value in fields.items() if name in FIELDS}
    names = (entry.share.name, entry.schema, entry.name)
    query = by.parts.async_queries.submit(
        by.reader.id,
        entry.id,
        kind="query",
        request=Submission(by.reader, names, kept).as_json(),
        idempotency_key=asked.idempotency_key,
    )
    by.parts.async_worker.wake()
    return _state_of(by, query, {})


@router.post("/queries/{query_id}", name="get_query")
@in_table_pool
def get_query(by: TableDep, body: BodyDep, query_id: str) -> Response:
    query = by.parts.async_queries.get(query_id, by.reader.id, by.view.entry.id)
    return _state_of(by, query, json_object(body))


def _state_of(by: AskedTable, query: AsyncQuery, poll: Mapping[str, Any]) -> Response:
    if query.state == "failed":
        # Clients that see the word failed go on polling (protocol §0.8): they get the error itself.
        status, code = told_of(query.error_code)
        by.note.error_code = code
        return error_response(status, code, query.error_message or "The query failed.", HEADERS.get(status))
    if query.state != "done" or query.version is None:
        return _pending(by, query)
    asked, paging = Submission.from_json(query.request).asked(), paging_of(poll)
    if not paging.is_asked:
        paging = asked.paging
    return answer_pinned(by, replace(asked, paging=paging), query.version)


def _pending(by: AskedTable, query: AsyncQuery) -> Response:
    formats = by.wants.capabilities.response_formats
    response_format = "delta" if formats and "parquet" not in formats else "parquet"
    # Clients want the header on every reply (protocol §0.7), also when the version is still to be found.
    latest = by.view.versions.latest_now()
    version = latest.number if latest is not None else 0
    said = line({"queryStatus": {"queryId": query.id, "status": "pending"}})
    return table_lines(said, None, version, response_format, by.wants.without_end(), is_pending=True)


@router.get("", name="get_table")
@in_table_pool
def get_table(by: TableDep) -> Response:
    # OpenSharing's own call (protocol §9); Delta Sharing has HEAD at the same place.
    header = by.view.index(by.view.latest()).header
    return json_response({**table_item(by, by.view.entry), "format": header.table_format})


def first_in_line(prefix: str) -> list[Route]:
    """Version polls and queries: most of the requests, and not delayed by the framework's dependencies."""
    path = prefix + router.prefix
    return [
        Route(f"{path}/version", table_version, methods=["GET", "HEAD"], name="table_version"),
        Route(path, table_version, methods=["HEAD"], name="table_version"),
        Route(f"{path}/query", query_table, methods=["POST"], name="query_table"),
    ]


async def table_version(request: Request) -> Response:
    by = await asked_table(request)
    # What is known is answered without leaving the event loop.
    text = by.request.query_params.get("startingTimestamp")
    version = by.view.versions.latest_now() if text is None else None
    if version is None:
        version = await by.run(_version_from, by.view, text)
    by.note.version = version.number
    return Response(headers={VERSION_HEADER: str(version.number)})


@router.api_route("/metadata", methods=READING, name="table_metadata")
@in_table_pool
def table_metadata(by: TableDep) -> Response:
    return answer_metadata(by)


def answer_metadata(by: AskedTable) -> Response:
    """The metadata of a version, the latest one by default."""
    view, wants = by.view, by.wants
    version, told = _version_of_metadata(view, by.request.query_params)
    by.note.version = version.number
    header = view.index(version).header
    response_format = negotiated(wants.capabilities, header.head, view.entry.path)
    lines = HeadLines(
        response_format=response_format,
        protocol=announced_protocol(wants.capabilities, header.head),
        version=version.number if told else None,
        size_bytes=header.size_bytes,
        files=header.files,
        shares_changes=view.entry.history,
        access=access_of(view, by.parts.signers),
    )
    # Spark takes exactly two lines here (protocol §1.6): the closing action is not offered, so not announced either.
    first = lines.of(header.head)
    return table_lines(first, None, version.number, response_format, wants.without_end())


async def query_table(request: Request) -> Response:
    by = await asked_table(request)
    return await by.run(_query, by, await body_of(request, by))


def _query(by: AskedTable, body: bytes) -> Response:
    fields = json_object(body)
    asked = query_of(fields)
    # There is nothing to find out about a version that a token names: such a query is answered at once (protocol §1.9).
    is_async = by.wants.capabilities.wants_async and not asked.goes_on
    return submit(by, asked, fields) if is_async else answer_query(by, asked)


def _version_from(view: TableView, text: str | None) -> Version:
    if text is None:
        return view.latest()
    return view.from_timestamp("startingTimestamp", TimePoint(milliseconds("startingTimestamp", text), text))


def _version_of_metadata(view: TableView, query: Mapping[str, str]) -> tuple[Version, bool]:
    """The version, and whether it was asked for."""
    number = optional_number(query, "version", said="table version")
    text = query.get("timestamp")
    if number is not None and text is not None:
        raise BadRequest("version,timestamp", "both", "Please only provide one of: version,timestamp.")
    if number is not None:
        return view.at_version(number), True
    if text is not None:
        return view.at_timestamp(TimePoint(milliseconds("timestamp", text), text)), True
    return view.latest(), False
