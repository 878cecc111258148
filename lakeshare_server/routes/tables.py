"""One table: its version, its metadata, its files. Answers come from the ledger and the index, never from the lake."""

import logging
import time
from collections.abc import Iterator

from fastapi import APIRouter, Request, Response

from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.protocol.answer import FileAnswer, end_stream_action, head
from lakeshare_server.protocol.capabilities import answered_capabilities, require_parquet
from lakeshare_server.protocol.parameters import whole_number
from lakeshare_server.protocol.requests import parse_query, refuse_not_served
from lakeshare_server.routes.context import (
    BodyDep,
    CapabilitiesDep,
    Note,
    NoteDep,
    PartsDep,
    RecipientDep,
    TableDep,
)
from lakeshare_server.routes.responses import VERSION_HEADER, ndjson
from lakeshare_server.signing import LocalSigner

router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")
_log = logging.getLogger(__name__)


@router.head("", name="table_version")
@router.api_route("/version", methods=["GET", "HEAD"], name="table_version")
def table_version(at: TableDep, parts: PartsDep, note: NoteDep, request: Request) -> Response:
    refuse_not_served(request.query_params)
    publication = parts.views.publication(at, None)
    note.version = publication.version
    return Response(headers={VERSION_HEADER: str(publication.version)})


@router.get("/metadata", name="table_metadata")
def table_metadata(
    at: TableDep, parts: PartsDep, note: NoteDep, wants: CapabilitiesDep, request: Request
) -> Response:
    require_parquet(wants)
    refuse_not_served(request.query_params)
    text = request.query_params.get("version")
    asked = None if text is None else whole_number("version", text)
    publication = parts.views.publication(at, asked)
    note.version = publication.version
    lines = head(parts.views.index(publication).header, asked)
    # Spark takes exactly two lines here: the closing action is not offered, so not announced either.
    return ndjson([lines], publication.version, "responseformat=parquet", _file_ids(request))


@router.post("/query", name="query_table")
def query_table(
    at: TableDep,
    recipient: RecipientDep,
    parts: PartsDep,
    note: NoteDep,
    wants: CapabilitiesDep,
    body: BodyDep,
    request: Request,
) -> Response:
    require_parquet(wants)
    asked = parse_query(body)
    extra = _file_ids(request)
    publication = parts.views.publication(at, asked.version)
    index = parts.views.index(publication)
    note.version, note.files = publication.version, 0
    expires_at_ms = int((time.time() + parts.settings.url_life_s) * 1000)
    ends = wants.wants_end_stream_action or asked.wants_end_stream_action
    answer = FileAnswer(index, asked, expires_at_ms, ends)
    lines = _streamed(head(index.header, asked.version), answer, parts.signer, recipient.name, note)
    return ndjson(lines, publication.version, answered_capabilities(wants), extra)


@router.get("/changes", name="table_changes")
def table_changes(at: TableDep) -> Response:
    raise Unserveable(
        f"Changes of {at.path} are not served by this server yet.", "Query its versions instead."
    )


@router.post("/temporary-table-credentials", name="table_credentials")
def table_credentials(at: TableDep) -> Response:
    raise Unserveable(f"{at.path} is not served by directory access.", "Query it for URLs.")


def _streamed(
    first: bytes, answer: FileAnswer, signer: LocalSigner, recipient: str, note: Note
) -> Iterator[bytes]:
    yield first
    try:
        yield from answer.parts(lambda paths: signer.sign(paths, recipient, answer.expires_at_ms), note.count)
    except Exception as error:
        note.error_code = "INTERNAL_ERROR"
        _log.exception("request %s: the answer broke off after %s files", note.request_id, note.files)
        if not answer.ends_with_action:
            # The connection is cut: a short answer must not look whole.
            raise
        message = f"The answer broke off ({type(error).__name__}); request id {note.request_id}."
        yield end_stream_action({"errorMessage": message, "httpStatusErrorCode": 500})


def _file_ids(request: Request) -> dict[str, str]:
    """The `fileidhash` header to answer with: a client that sent it insists on it."""
    asked = request.headers.get("fileidhash")
    if asked is None:
        return {}
    if asked.lower() == "delta":
        raise Unserveable(
            "fileidhash delta is not supported by this server yet.", "Ask for parquet, or leave it out."
        )
    if asked.lower() != "parquet":
        raise BadRequest("fileidhash", asked, f"Unsupported fileidhash: '{asked}'. It is parquet or delta.")
    return {"fileidhash": "parquet"}
