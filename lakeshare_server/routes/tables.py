"""One table: its version, its metadata, its files. Answers come from versions and indexes, never from the lake."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from lakeshare_server.access.directory import access_of
from lakeshare_server.access.view import TableView
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.bodies import json_object
from lakeshare_server.protocol.heads import HeadLines
from lakeshare_server.protocol.negotiation import announced_protocol, negotiated
from lakeshare_server.protocol.parameters import optional_number
from lakeshare_server.protocol.requests import TimePoint, query_of
from lakeshare_server.protocol.timestamps import milliseconds
from lakeshare_server.routes.async_queries import submit
from lakeshare_server.routes.context import READING, AskedTable, TableDep, asked_table, body_of
from lakeshare_server.routes.listings import table_item
from lakeshare_server.routes.pools import in_table_pool
from lakeshare_server.routes.queries import answer_query
from lakeshare_server.routes.responses import VERSION_HEADER, json_response
from lakeshare_server.routes.streams import table_lines
from lakeshare_server.versions import Version

router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")


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
