"""The calls of the protocol: listings, and the version, metadata, files, changes and credentials of a table."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from lakeshare_server.access.allowed_locations import is_local, local_folders, require_own_stores
from lakeshare_server.access.table_access import (
    Submission,
    TableView,
    find_shared_folder,
    require_directory_access,
)
from lakeshare_server.catalog import AsyncQuery, Share, SharedTable
from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.lines import (
    HEADER,
    Capabilities,
    ChangeLines,
    ChangeResponse,
    FileLines,
    HeadLines,
    Progress,
    ResponseFormat,
    SnapshotLines,
    SnapshotResponse,
    directory_fields,
    end_stream_line,
    format_capabilities,
    json_line,
    negotiate_format,
    negotiate_protocol,
    require_one_schema,
    require_recorded,
)
from lakeshare_server.protocol.requests import (
    FIELDS,
    ChangesRequest,
    Paging,
    QueryRequest,
    optional_integer,
    optional_text,
    optional_time,
    parse_changes,
    parse_json_object,
    parse_paging,
    parse_query,
)
from lakeshare_server.protocol.tokens import Keyed, Page, Pin, require_same_table
from lakeshare_server.routes.context import (
    FILE_IDS_HEADER,
    LISTINGS,
    READ_METHODS,
    AuditRecord,
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
from lakeshare_server.routes.responses import NDJSON, LinesResponse, error_response, json_response
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import SigningSession, normalise_location
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.delta.snapshot import merge_protocols
from lakeshare_server.tables.iceberg.changes import change_head
from lakeshare_server.tables.snapshot import TableHead
from lakeshare_server.versions import Version

VERSION_HEADER = "Delta-Table-Version"

_log = logging.getLogger(__name__)
Entry = TypeVar("Entry", bound=Keyed)
Lines = TypeVar("Lines", bound=FileLines)

listings_router = APIRouter()


@listings_router.api_route("/shares", methods=READ_METHODS, name="list_shares")
def list_shares(request: RecipientRequestDep) -> Response:
    shares, token = _page_of(request, "shares", request.listings.shares)
    return _items([_share(share) for share in shares], token)


@listings_router.api_route("/shares/{share}", methods=READ_METHODS, name="get_share")
def get_share(request: RecipientRequestDep, share: str) -> Response:
    return json_response({"share": _share(request.listings.share(share))})


@listings_router.api_route("/shares/{share}/schemas", methods=READ_METHODS, name="list_schemas")
def list_schemas(request: RecipientRequestDep, share: str) -> Response:
    read = partial(request.listings.schemas, share)
    schemas, token = _page_of(request, f"schemas/{share.lower()}", read)
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
    of = "all" if schema is None else f"schema/{schema.lower()}"
    read = partial(request.listings.tables, share, schema)
    tables, token = _page_of(request, f"tables/{share.lower()}/{of}", read)
    return _items([make_table_item(request, table) for table in tables], token)


def _page_of(
    request: RecipientRequest, listing: str, read: Callable[[int, int], Sequence[Entry]]
) -> tuple[Sequence[Entry], str | None]:
    return request.app_state.pager.page(request.reader.id, listing, request.page, read)


def _items(items: list[dict[str, Any]], token: str | None) -> Response:
    return json_response({"items": items, "nextPageToken": token} if token else {"items": items})


def _share(share: Share) -> dict[str, Any]:
    fields = {
        "name": share.name,
        "id": share.id,
        "displayName": share.display_name,
        "comment": share.comment,
        "properties": share.properties,
    }
    return {key: value for key, value in fields.items() if value}


def make_table_item(request: RecipientRequest, table: SharedTable) -> dict[str, Any]:
    fields = {
        "name": table.name,
        "schema": table.schema,
        "share": table.share,
        "shareId": table.share_id,
        "id": table.id,
    }
    if not table.directory_access:
        return fields
    folder = find_shared_folder(request.view_of(table), request.app_state.signers)
    return {**fields, **directory_fields(folder)}


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


@router.post("/queries/{query_id}", name="get_query")
@in_table_pool
def get_query(request: TableRequestDep, body: BodyDep, query_id: str) -> Response:
    query = request.app_state.async_queries.get(query_id, request.reader.id, request.view.entry.id)
    return _query_status(request, query, parse_json_object(body))


def _query_status(request: TableRequest, query: AsyncQuery, poll: Mapping[str, Any]) -> Response:
    if query.state == "failed":
        # Clients continue to poll on the status "failed" (protocol §0.8), so they get the error itself.
        status, code = find_error_response(query.error_code)
        request.audit_record.error_code = code
        return error_response(status, code, query.error_message or "The query failed.", HEADERS.get(status))
    if query.state != "done" or query.version is None:
        formats = request.capabilities.response_formats
        response_format = "delta" if formats and "parquet" not in formats else "parquet"
        # Clients need the version header on every response (protocol §0.7), even before the version is known.
        latest = request.view.versions.latest_now()
        line = json_line({"queryStatus": {"queryId": query.id, "status": "pending"}})
        return lines_response(
            line,
            None,
            latest.number if latest is not None else 0,
            response_format,
            request.capabilities.without_end(),
            is_pending=True,
        )
    submitted, paging = Submission.from_json(query.request).query(), parse_paging(poll)
    if not paging.is_requested:
        paging = submitted.paging
    return respond_to_query(request, replace(submitted, paging=paging), query.version)


@router.get("", name="get_table")
@in_table_pool
def get_table(request: TableRequestDep) -> Response:
    # A call of OpenSharing (protocol §9); Delta Sharing has HEAD at the same path.
    header = request.view.index(request.view.latest()).header
    return json_response({**make_table_item(request, request.view.entry), "format": header.table_format})


def make_priority_routes(prefix: str) -> list[Route]:
    """The routes of most requests, version polls and queries, without the framework's dependencies."""
    path = prefix + router.prefix
    return [
        Route(f"{path}/version", table_version, methods=["GET", "HEAD"], name="table_version"),
        Route(path, table_version, methods=["HEAD"], name="table_version"),
        Route(f"{path}/query", query_table, methods=["POST"], name="query_table"),
    ]


async def table_version(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    view, query = request.view, http_request.query_params

    def find_version() -> Version:
        time = optional_time(query, "startingTimestamp")
        return view.latest() if time is None else view.from_timestamp("startingTimestamp", time)

    # A known version is returned on the event loop.
    version = None if "startingTimestamp" in query else view.versions.latest_now()
    if version is None:
        version = await request.run(find_version)
    request.audit_record.note_version(version)
    return Response(headers={VERSION_HEADER: str(version.number)})


@router.api_route("/metadata", methods=READ_METHODS, name="table_metadata")
@in_table_pool
def table_metadata(request: TableRequestDep) -> Response:
    return respond_with_metadata(request)


def respond_with_metadata(request: TableRequest) -> Response:
    view, capabilities = request.view, request.capabilities
    version, is_requested = _version_of_metadata(view, request.http_request.query_params)
    request.audit_record.note_version(version)
    header = view.index(version).header
    response_format = negotiate_format(capabilities, header.head, view.entry.path)
    lines = HeadLines(
        response_format=response_format,
        protocol=negotiate_protocol(capabilities, header.head),
        version=version.number if is_requested else None,
        size_bytes=header.size_bytes,
        files=header.files,
        shares_changes=view.entry.history,
        folder=find_shared_folder(view, request.app_state.signers),
        properties=view.entry.notice_properties,
    )
    # Spark accepts exactly two lines (protocol §1.6), so the closing line is neither sent nor announced.
    first = lines.of(header.head)
    return lines_response(first, None, version.number, response_format, capabilities.without_end())


async def query_table(http_request: Request) -> Response:
    request = await get_table_request(http_request)
    return await request.run(_query, request, await read_body(http_request, request))


def _query(request: TableRequest, body: bytes) -> Response:
    fields = parse_json_object(body)
    query, entry, app_state = parse_query(fields), request.view.entry, request.app_state
    # A token pins a known version, so such a query is answered directly (protocol §1.9).
    if not request.capabilities.wants_async or query.is_pinned:
        return respond_to_query(request, query)
    if query.idempotency_key is None:
        raise BadRequest("idempotencyKey", None, "idempotency_key is required for async query. Give a UUID.")
    # Unknown fields are not stored: they may be nested too deep to serialize.
    stored = {name: value for name, value in fields.items() if name in FIELDS}
    names = (entry.share, entry.schema, entry.name)
    submitted = app_state.async_queries.submit(
        request.reader.id,
        entry.id,
        kind="query",
        request=Submission(request.reader, names, stored).as_json(),
        idempotency_key=query.idempotency_key,
    )
    app_state.async_worker.wake()
    return _query_status(request, submitted, {})


def _version_of_metadata(view: TableView, query: Mapping[str, str]) -> tuple[Version, bool]:
    number = optional_integer(query, "version", label="table version")
    if number is not None and "timestamp" in query:
        raise BadRequest("version,timestamp", "both", "Please only provide one of: version,timestamp.")
    if number is not None:
        return view.at_version(number), True
    time = optional_time(query, "timestamp")
    return (view.latest(), False) if time is None else (view.at_timestamp(time), True)


@dataclass(frozen=True, kw_only=True)
class EndStreamFields:
    """The content of a response's closing line, sent if `is_requested`; `following` returns the next page."""

    is_requested: bool
    question: Mapping[str, object]
    following: Callable[[Progress], Page]
    refresh: Pin | None = None


@dataclass(frozen=True)
class OpenResponse:
    request: TableRequest
    response_format: ResponseFormat
    session: SigningSession

    def file_lines(self, kind: type[Lines], **fields: Any) -> Lines:
        return kind(
            response_format=self.response_format,
            ids=self.request.capabilities.file_ids or self.response_format,
            expires_at_ms=self.session.expires_at_ms,
            **fields,
        )

    def head_lines(self, head: TableHead, **fields: Any) -> HeadLines:
        return HeadLines(
            response_format=self.response_format,
            protocol=negotiate_protocol(self.request.capabilities, head),
            shares_changes=self.request.view.entry.history,
            properties=self.request.view.entry.notice_properties,
            **fields,
        )

    def respond(
        self,
        version: int,
        first: bytes,
        pieces: Iterator[bytes | memoryview],
        progress: Progress,
        closing: EndStreamFields,
        *,
        is_rendered: bool = True,
    ) -> Response:
        """The response: the head lines `first`, the files in `pieces`, and the closing line.

        Not `is_rendered`: making pieces waits for the rendering of lines.
        """
        audit_record, capabilities = self.request.audit_record, self.request.capabilities
        audit_record.version = version
        wants_end = closing.is_requested or capabilities.wants_end_stream_action
        end = (lambda: self._end_stream(closing, progress)) if wants_end else None
        files = _stream(pieces, progress, audit_record, end)
        return lines_response(
            first,
            files,
            version,
            self.response_format,
            capabilities,
            slow_store=self.session.slow_store if is_rendered else "rendering",
        )

    def _end_stream(self, closing: EndStreamFields, progress: Progress) -> dict[str, object]:
        fields: dict[str, object] = {}
        tokens, token_holder = self.request.app_state.tokens, self.request.token_holder
        if progress.files:
            fields["minUrlExpirationTimestamp"] = self.session.expires_at_ms
        if progress.next_place is not None:
            page = closing.following(progress)
            fields["nextPageToken"] = tokens.page_token(token_holder, closing.question, page)
        if closing.refresh is not None:
            fields["refreshToken"] = tokens.refresh_token(token_holder, closing.refresh)
        return fields


def open_response(
    request: TableRequest, head: TableHead, location: str, roots: Collection[str]
) -> OpenResponse:
    """Negotiates the format and prepares to sign files in the stores `roots`. Raises BadRequest or Unserveable."""
    app_state, table = request.app_state, request.view.entry.path
    response_format = negotiate_format(request.capabilities, head, table)
    require_own_stores(table, location, roots, app_state.settings)
    request.require_signing()
    credential = None if request.audit_record.access is None else request.audit_record.access.credential_id

    def issue(folder: str) -> str:
        require_own_stores(table, location, {folder}, app_state.settings)
        return app_state.file_tickets.issue(request.reader, credential, request.view, folder)

    folders = local_folders(location, roots)
    stores = (root for root in roots if not is_local(root))
    session = app_state.signers.session([*folders, *sorted(stores)], issue, app_state.settings.url_life_s)
    return OpenResponse(request, response_format, session)


def make_page_question(parameters: Mapping[str, Any], request: TableRequest) -> dict[str, object]:
    """The parameters that must be equal for all pages, so that their lines and files fit together."""
    capabilities, view = request.capabilities, request.view
    return {
        **parameters,
        # Places count the readable files: under another rule a page would begin elsewhere.
        **({"restriction": view.restriction} if view.is_restricted else {}),
        "formats": sorted(capabilities.response_formats),
        "features": sorted(capabilities.reader_features),
        "ids": capabilities.file_ids,
    }


def files_per_page(settings: ServerSettings, paging: Paging) -> int | None:
    if not paging.is_requested:
        return None
    return min(paging.max_files or settings.page_files, settings.page_files)


def lines_response(
    first: bytes,
    pieces: Iterator[bytes | memoryview] | None,
    version: int,
    response_format: str,
    capabilities: Capabilities,
    *,
    slow_store: str | None = None,
    is_pending: bool = False,
) -> Response:
    """The response of lines, `pieces` streamed; `slow_store` names a store that making them waits for."""
    answered = format_capabilities(response_format, capabilities, is_pending=is_pending)
    headers = {VERSION_HEADER: str(version), HEADER: answered}
    # A client that sent `fileidhash` expects it back.
    if capabilities.file_ids is not None:
        headers[FILE_IDS_HEADER] = capabilities.file_ids
    if pieces is None:
        return Response(first, 200, headers, media_type=NDJSON)
    return LinesResponse(first, pieces, headers, slow_store=slow_store)


def _stream(
    pieces: Iterator[bytes | memoryview],
    progress: Progress,
    audit_record: AuditRecord,
    closing: Callable[[], dict[str, object]] | None,
) -> Iterator[bytes | memoryview]:
    """The lines of files and the closing line; an incomplete response must be recognizable (protocol §1.13)."""
    audit_record.files = 0
    try:
        for piece in pieces:
            yield piece
            # Only sent pieces count: a client may disconnect while the next one is made.
            audit_record.files, audit_record.rows = progress.files, progress.rows
            audit_record.size_bytes = progress.size_bytes
        if closing is not None:
            yield end_stream_line(closing())
    except Exception as error:
        audit_record.error_code = "INTERNAL_ERROR"
        _log.exception(
            "request %s: the answer broke off after %s files", audit_record.request_id, audit_record.files
        )
        if closing is None:
            # The server cuts the connection, so that the client detects the incomplete response.
            raise
        message = f"The answer broke off ({type(error).__name__}); request id {audit_record.request_id}."
        yield end_stream_line({"errorMessage": message, "httpStatusErrorCode": 500})


def respond_with_snapshot(
    request: TableRequest, query: QueryRequest, version: Version, page: Page | None
) -> Response:
    index = request.view.index(version)
    request.audit_record.note_version(version)
    header, number = index.header, version.number
    table_id = header.head.table_id
    if page is not None:
        require_same_table("page", page.of, table_id)
    opening = open_response(request, header.head, header.location, header.roots)
    requested_version = number if query.version is not None or query.timestamp is not None else None
    head = opening.head_lines(
        header.head,
        version=requested_version,
        size_bytes=header.size_bytes,
        files=header.files,
        folder=find_shared_folder(request.view, request.app_state.signers),
    )
    lines = opening.file_lines(SnapshotLines, version=requested_version)
    refreshes = query.include_refresh_token or query.refresh_token is not None
    closing = EndStreamFields(
        is_requested=query.wants_end_stream_action,
        question=make_page_question(query.parameters, request),
        following=lambda done: Page(number, number, done.next_place or 0, done.rows_wanted, of=table_id),
        refresh=Pin(number, table_id) if refreshes else None,
    )
    selected = SnapshotResponse(
        index=index,
        predicate=query.predicate,
        rows_wanted=query.limit if page is None else page.rows_wanted,
        start=0 if page is None else page.start,
        most=files_per_page(request.app_state.settings, query.paging),
    )
    progress = Progress(opening.session.slow_store is not None)
    pieces = selected.render(lines, opening.session.sign, progress)
    return opening.respond(
        number, head.of(header.head), pieces, progress, closing, is_rendered=index.is_written
    )


def respond_with_window(request: TableRequest, query: QueryRequest, page: Page | None) -> Response:
    view = request.view
    first = (query.starting_version or 0) if page is None else page.first
    # Checked for each page, because grants may have changed since page one.
    last = view.window(first, query.ending_version if page is None else page.last)
    # Publication numbers have gaps; a window inside a gap has no changes.
    changes = view.changes(first, last) if first <= last else []
    return _respond(
        request,
        query,
        page,
        changes,
        (first, last),
        head=changes[0].head if changes else view.index(view.pinned(last)).header.head,
        head_version=changes[0].version if changes else first,
    )


@router.get("/changes", name="table_changes")
@in_table_pool
def table_changes(request: TableRequestDep) -> Response:
    query, view = parse_changes(request.http_request.query_params), request.view
    page = _page(request, query)
    if page is not None:
        first, last, latest = page.first, view.window(page.first, page.last), page.latest
    else:
        first, last = view.changes_range(query)
        latest = view.latest().number
    schema_at = None if query.include_historical_metadata else latest
    changes = view.changes(first, last, feed=True, schema_at=schema_at)
    require_recorded(changes)
    head, head_version = changes[0].head, changes[0].version
    if not query.include_historical_metadata:
        require_one_schema(view.versions.unlike_columns(first, last, latest), first, latest)
        head, head_version = _latest_head(request, changes, last, latest), latest
    return _respond(request, query, page, changes, (first, last), head=head, head_version=head_version)


def _latest_head(
    request: TableRequest, changes: Sequence[VersionChanges], last: int, latest: int
) -> TableHead:
    if last == latest:
        return changes[-1].head
    header = request.view.index(request.view.pinned(latest)).header
    if header.table_format != "iceberg":
        return header.head
    return replace(change_head(header.head), partition_columns=changes[-1].head.partition_columns)


def _respond(
    request: TableRequest,
    query: QueryRequest | ChangesRequest,
    page: Page | None,
    changes: Sequence[VersionChanges],
    versions: tuple[int, int],
    *,
    head: TableHead,
    head_version: int,
) -> Response:
    """The response with the changes of a range of versions, first and last; `head` is that of `head_version`."""
    table_id, capabilities = head.table_id, request.capabilities
    if page is not None:
        require_same_table("page", page.of, table_id)
    feed, historical_metadata = False, True
    if isinstance(query, ChangesRequest):
        feed, historical_metadata = True, query.include_historical_metadata
    # The files must be servable under the hindrances of all versions of the range.
    others = changes[0].head.hindrances if changes else ()
    of_files = (change.feed_hindrances if feed else change.window_hindrances for change in changes)
    hindrances = dict.fromkeys((*head.hindrances, *others, *chain.from_iterable(of_files)))
    roots = {root for change in changes for root in change.roots}
    location = request.view.versions.location()
    opening = open_response(request, replace(head, hindrances=tuple(hindrances)), location, roots)
    is_historical = query.include_historical_protocol and opening.response_format == "delta"
    selected = ChangeResponse(
        changes=changes,
        feed=feed,
        historical_metadata=historical_metadata,
        historical_protocol=is_historical,
        announced=lambda head: negotiate_protocol(capabilities, head),
        start=0 if page is None else page.start,
        most=files_per_page(request.app_state.settings, query.paging),
    )
    # Without historical protocols, the first protocol must allow clients to read the files of all versions.
    protocols = [head.protocol, *(change.head.protocol for change in changes)]
    lines_head = opening.head_lines(
        head if is_historical else replace(head, protocol=merge_protocols(protocols)),
        version=head_version,
        size_bytes=selected.size_bytes,
        files=selected.files,
        protocol_version=head_version if is_historical else None,
    )
    first, last = versions
    closing = EndStreamFields(
        is_requested=query.wants_end_stream_action,
        question=make_page_question(query.parameters, request),
        following=lambda done: Page(first, last, done.next_place or 0, latest=head_version, of=table_id),
    )
    progress = Progress(opening.session.slow_store is not None)
    pieces = selected.render(opening.file_lines(ChangeLines), lines_head, opening.session.sign, progress)
    version = changes[0].version if changes else first
    return opening.respond(version, lines_head.of(head), pieces, progress, closing)


def respond_to_query(request: TableRequest, query: QueryRequest, pinned: int | None = None) -> Response:
    """The response to a query; `pinned` is its version, or the last one of its window, if that is already known."""
    view, page = request.view, _page(request, query)
    if query.starting_version is not None:
        bounded = query if pinned is None else replace(query, ending_version=pinned)
        return respond_with_window(request, bounded, page)
    number = pinned if page is None else page.first
    if number is not None:
        version = view.version_for_page(query, number)
    elif query.refresh_token is not None:
        pin = request.app_state.tokens.read_refresh_token(request.token_holder, query.refresh_token)
        version = view.pinned(pin.version)
        require_same_table("refresh", pin.of, view.index(version).header.head.table_id)
    else:
        version = view.requested_version(query)
    return respond_with_snapshot(request, query, version, page)


def _page(request: TableRequest, query: QueryRequest | ChangesRequest) -> Page | None:
    # First, so that unusable headers are refused before anything is read.
    question, token = make_page_question(query.parameters, request), query.paging.page_token
    return None if token is None else request.app_state.tokens.page(request.token_holder, question, token)
