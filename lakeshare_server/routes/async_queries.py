"""Async queries (protocol §1.9): taken in by the query endpoint, fetched here. State is in the catalog."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response

from lakeshare_server.access.async_worker import Submission
from lakeshare_server.catalog import AsyncQuery
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.bodies import json_object
from lakeshare_server.protocol.heads import line
from lakeshare_server.protocol.requests import FIELDS, QueryRequest, paging_of
from lakeshare_server.routes.context import AskedTable, BodyDep, TableDep
from lakeshare_server.routes.errors import HEADERS, told_of
from lakeshare_server.routes.pools import in_table_pool
from lakeshare_server.routes.queries import answer_pinned
from lakeshare_server.routes.responses import error_response
from lakeshare_server.routes.streams import table_lines

router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")


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
