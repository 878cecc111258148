"""Which answer a query gets: a snapshot or a window, from its first page or from a token's."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from fastapi import APIRouter, Response

from lakeshare_server.access.allowed_locations import is_local, local_folders, require_own_stores
from lakeshare_server.access.table_access import describe_directory_access
from lakeshare_server.protocol.lines import (
    ChangeLines,
    ChangeResponse,
    HeadLines,
    Progress,
    ResponseFormat,
    SnapshotLines,
    SnapshotResponse,
    end_stream_line,
    format_capabilities,
    negotiate_format,
    negotiate_protocol,
    require_one_schema,
    require_recorded,
)
from lakeshare_server.protocol.requests import Paging, QueryRequest, parse_changes
from lakeshare_server.protocol.tokens import Page, Pin, require_same_table
from lakeshare_server.routes.context import (
    FILE_IDS_HEADER,
    AuditRecord,
    ResponseOptions,
    TableRequest,
    TableRequestDep,
    in_table_pool,
)
from lakeshare_server.routes.responses import ndjson_response
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import SigningSession
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.delta.snapshot import merge_protocols
from lakeshare_server.tables.iceberg.changes import change_head
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.snapshot import TableHead
from lakeshare_server.versions import Version

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EndStreamFields:
    """What the last line of an answer says; nothing unless `wanted`. `following` is where the next page begins."""

    wanted: bool
    question: Mapping[str, object]
    following: Callable[[Progress], Page]
    refresh: Pin | None = None


@dataclass(frozen=True)
class OpenResponse:
    """The format that was negotiated for an answer, and the session that signs its files."""

    request: TableRequest
    response_format: ResponseFormat
    session: SigningSession

    @property
    def ids(self) -> ResponseFormat:
        """The scheme of the files' ids."""
        return self.request.response_options.file_ids or self.response_format

    def head_lines(self, head: TableHead, **fields: Any) -> HeadLines:
        """The lines before the files; `told` are the fields of `HeadLines` that differ from answer to answer."""
        return HeadLines(
            response_format=self.response_format,
            protocol=negotiate_protocol(self.request.response_options.capabilities, head),
            shares_changes=self.request.view.entry.history,
            **fields,
        )

    def respond(
        self,
        version: int,
        first: bytes,
        pieces: Iterator[bytes | memoryview],
        progress: Progress,
        closing: EndStreamFields,
    ) -> Response:
        """The response: first the head lines, then the files, then what closes them."""
        audit_record = self.request.audit_record
        audit_record.version = version
        wants_end = closing.wanted or self.request.response_options.capabilities.wants_end_stream_action
        last = (lambda: self._closing(closing, progress)) if wants_end else None
        files = _stream(pieces, progress, audit_record, last)
        return lines_response(
            first,
            files,
            version,
            self.response_format,
            self.request.response_options,
            slow_store=self.session.slow_store,
        )

    def _closing(self, closing: EndStreamFields, progress: Progress) -> dict[str, object]:
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
    """Negotiate and prepare to sign for files in these stores, of a table at that location.

    Raises:
        BadRequest, Unserveable: the client takes no format the table can go out in, or its files are not to be
            handed out.
    """
    app_state, table = request.app_state, request.view.entry.path
    response_format = negotiate_format(request.response_options.capabilities, head, table)
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
    """What must be the same on every page, so that the head lines and the files of all pages fit together."""
    response_options = request.response_options
    # Places count the files that may be read: after another rule a page would begin somewhere else.
    restriction = {"restriction": request.view.restriction} if request.view.is_restricted else {}
    return {
        **parameters,
        **restriction,
        "formats": sorted(response_options.capabilities.response_formats),
        "features": sorted(response_options.capabilities.reader_features),
        "ids": response_options.file_ids,
    }


def files_per_page(settings: ServerSettings, paging: Paging) -> int | None:
    """How many files a page has; None for an answer in one piece."""
    if not paging.is_asked:
        return None
    return min(paging.max_files or settings.page_files, settings.page_files)


def lines_response(
    first: bytes,
    pieces: Iterator[bytes | memoryview] | None,
    version: int,
    response_format: str,
    response_options: ResponseOptions,
    *,
    slow_store: str | None = None,
    is_pending: bool = False,
) -> Response:
    """The response around lines, those in `pieces` streamed; a client that sent `fileidhash` insists on it."""
    extra = {} if response_options.file_ids is None else {FILE_IDS_HEADER: response_options.file_ids}
    header = format_capabilities(response_format, response_options.capabilities, is_pending=is_pending)
    return ndjson_response(first, pieces, version, header, extra, slow_store=slow_store)


def _stream(
    pieces: Iterator[bytes | memoryview],
    progress: Progress,
    audit_record: AuditRecord,
    closing: Callable[[], dict[str, object]] | None,
) -> Iterator[bytes | memoryview]:
    """The lines of files; an answer that breaks off does not look whole (protocol §1.13)."""
    audit_record.files = 0
    try:
        for piece in pieces:
            yield piece
            # Only what was taken counts: a client may leave while the next piece is made.
            audit_record.files, audit_record.size_bytes, audit_record.rows = (
                progress.files,
                progress.size_bytes,
                progress.rows,
            )
        if closing is not None:
            yield end_stream_line(closing())
    except Exception as error:
        audit_record.error_code = "INTERNAL_ERROR"
        _log.exception(
            "request %s: the answer broke off after %s files", audit_record.request_id, audit_record.files
        )
        if closing is None:
            # The connection is cut: a short answer must not look whole.
            raise
        message = f"The answer broke off ({type(error).__name__}); request id {audit_record.request_id}."
        yield end_stream_line({"errorMessage": message, "httpStatusErrorCode": 500})


def respond_with_snapshot(
    request: TableRequest, query: QueryRequest, version: Version, page: Page | None
) -> Response:
    """The files of a version, or one page of them."""
    index = request.view.index(version)
    header = index.header
    table_id = header.head.table_id
    if page is not None:
        require_same_table("page", page.of, table_id)
    opening = open_response(request, header.head, header.location, header.roots)
    requested_version = version.number if query.version is not None or query.timestamp is not None else None
    head = opening.head_lines(
        header.head,
        version=requested_version,
        size_bytes=header.size_bytes,
        files=header.files,
        access=describe_directory_access(request.view, request.app_state.signers),
    )
    lines = SnapshotLines(
        response_format=opening.response_format,
        ids=opening.ids,
        expires_at_ms=opening.session.expires_at_ms,
        version=requested_version,
    )
    refreshes = query.include_refresh_token or query.refresh_token is not None
    closing = EndStreamFields(
        wanted=query.wants_end_stream_action,
        question=make_page_question(query.parameters, request),
        following=lambda answered: _page_after(answered, version.number, table_id),
        refresh=Pin(version.number, table_id) if refreshes else None,
    )
    progress = Progress()
    pieces = _select_snapshot(request, index, query, page).render(lines, opening.session.sign, progress)
    return opening.respond(version.number, head.of(header.head), pieces, progress, closing)


def _select_snapshot(
    request: TableRequest, index: FileIndex, query: QueryRequest, page: Page | None
) -> SnapshotResponse:
    return SnapshotResponse(
        index=index,
        predicate=query.predicate,
        rows_wanted=query.limit if page is None else page.rows_wanted,
        start=0 if page is None else page.start,
        most=files_per_page(request.app_state.settings, query.paging),
    )


def _page_after(progress: Progress, version: int, table_id: str) -> Page:
    return Page(version, version, progress.next_place or 0, progress.rows_wanted, of=table_id)


router = APIRouter(prefix="/shares/{share}/schemas/{schema}/tables/{table}")


@dataclass(frozen=True, kw_only=True)
class Window:
    """A range of versions as it was asked for, with what is to be told of it; `head_version` is that of `head`."""

    changes: Sequence[VersionChanges]
    first: int
    last: int
    feed: bool
    head: TableHead
    head_version: int
    historical_metadata: bool
    historical_protocol: bool
    paging: Paging
    page: Page | None
    question: Mapping[str, object]

    @property
    def merged_head(self) -> TableHead:
        """The head that is told first, with one protocol for the whole range."""
        protocols = (change.head.protocol for change in self.changes)
        return replace(self.head, protocol=merge_protocols([self.head.protocol, *protocols]))

    @property
    def head_with_hindrances(self) -> TableHead:
        """The head that is told first, hindered by what hinders any version of the range."""
        others = self.changes[0].head.hindrances if self.changes else ()
        of_files = (
            change.feed_hindrances if self.feed else change.window_hindrances for change in self.changes
        )
        hindrances = dict.fromkeys((*self.head.hindrances, *others, *chain.from_iterable(of_files)))
        return replace(self.head, hindrances=tuple(hindrances))

    def page_after(self, progress: Progress, table_id: str) -> Page:
        """The page that begins where an answer has come to."""
        return Page(self.first, self.last, progress.next_place or 0, latest=self.head_version, of=table_id)


def respond_with_window(request: TableRequest, query: QueryRequest, page: Page | None) -> Response:
    """The data changes of the versions from `startingVersion` on, or one page of them."""
    # Asked again for each page: who may read history may have changed since page one.
    if page is not None:
        first, last = page.first, request.view.window(page.first, page.last)
    else:
        first = query.starting_version or 0
        last = request.view.window(first, query.ending_version)
    # Numbers of publications have gaps, and a window may lie in one: then nothing has changed.
    changes = request.view.changes(first, last) if first <= last else []
    window = Window(
        changes=changes,
        first=first,
        last=last,
        feed=False,
        head=changes[0].head if changes else request.view.index(request.view.pinned(last)).header.head,
        head_version=changes[0].version if changes else first,
        historical_metadata=True,
        historical_protocol=query.include_historical_protocol,
        paging=query.paging,
        page=page,
        question=make_page_question(query.parameters, request),
    )
    return _respond_with_window(request, window, wants_end=query.wants_end_stream_action)


@router.get("/changes", name="table_changes")
@in_table_pool
def table_changes(request: TableRequestDep) -> Response:
    query = parse_changes(request.http_request.query_params)
    question = make_page_question(query.parameters, request)
    page = None
    if query.paging.page_token is not None:
        page = request.app_state.tokens.page(request.token_holder, question, query.paging.page_token)
        first, last, latest = page.first, request.view.window(page.first, page.last), page.latest
    else:
        first, last = request.view.changes_range(query)
        latest = request.view.latest().number
    schema_at = None if query.include_historical_metadata else latest
    changes = request.view.feed(first, last, schema_at)
    require_recorded(changes)
    head, head_version = changes[0].head, changes[0].version
    if not query.include_historical_metadata:
        require_one_schema(request.view.versions.unlike_columns(first, last, latest), first, latest)
        head, head_version = _latest_head(request, changes, last, latest), latest
    window = Window(
        changes=changes,
        first=first,
        last=last,
        feed=True,
        head=head,
        head_version=head_version,
        historical_metadata=query.include_historical_metadata,
        historical_protocol=query.include_historical_protocol,
        paging=query.paging,
        page=page,
        question=question,
    )
    return _respond_with_window(request, window, wants_end=query.paging.is_asked)


def _latest_head(
    request: TableRequest, changes: Sequence[VersionChanges], last: int, latest: int
) -> TableHead:
    """Protocol and metadata of the latest version, which is what a feed without history begins with."""
    if last == latest:
        return changes[-1].head
    header = request.view.index(request.view.pinned(latest)).header
    if header.table_format != "iceberg":
        return header.head
    return replace(change_head(header.head), partition_columns=changes[-1].head.partition_columns)


def _respond_with_window(request: TableRequest, window: Window, *, wants_end: bool) -> Response:
    table_id = window.head.table_id
    if window.page is not None:
        require_same_table("page", window.page.of, table_id)
    roots = {root for change in window.changes for root in change.roots}
    opening = open_response(request, window.head_with_hindrances, request.view.versions.location(), roots)
    capabilities = request.response_options.capabilities
    answer = ChangeResponse(
        changes=window.changes,
        feed=window.feed,
        historical_metadata=window.historical_metadata,
        historical_protocol=window.historical_protocol and opening.response_format == "delta",
        announced=lambda head: negotiate_protocol(capabilities, head),
        start=0 if window.page is None else window.page.start,
        most=files_per_page(request.app_state.settings, window.paging),
    )
    # Without its history, the protocol of the range's start would not let clients read what later versions wrote.
    head = opening.head_lines(
        window.head if answer.historical_protocol else window.merged_head,
        version=window.head_version,
        size_bytes=answer.size_bytes,
        files=answer.files,
        protocol_version=window.head_version if answer.historical_protocol else None,
    )
    lines = ChangeLines(
        response_format=opening.response_format,
        ids=opening.ids,
        expires_at_ms=opening.session.expires_at_ms,
    )
    closing = EndStreamFields(
        wanted=wants_end,
        question=window.question,
        following=lambda answered: window.page_after(answered, table_id),
    )
    progress = Progress()
    pieces = answer.render(lines, head, opening.session.sign, progress)
    version = window.changes[0].version if window.changes else window.first
    return opening.respond(version, head.of(window.head), pieces, progress, closing)


def respond_to_query(request: TableRequest, query: QueryRequest) -> Response:
    """The answer to a query in any of its forms."""
    page = _page(request, query)
    if query.starting_version is not None:
        return respond_with_window(request, query, page)
    view = request.view
    if page is not None:
        version = view.version_for_page(query, page.first)
    elif query.refresh_token is not None:
        pin = request.app_state.tokens.read_refresh_token(request.token_holder, query.refresh_token)
        version = view.pinned(pin.version)
        require_same_table("refresh", pin.of, view.index(version).header.head.table_id)
    else:
        version = view.requested_version(query)
    return respond_with_snapshot(request, query, version, page)


def respond_to_pinned(request: TableRequest, query: QueryRequest, number: int) -> Response:
    """The answer to a query whose version is known already: of a window the last one."""
    page = _page(request, query)
    if query.starting_version is not None:
        return respond_with_window(request, replace(query, ending_version=number), page)
    version = request.view.version_for_page(query, number if page is None else page.first)
    return respond_with_snapshot(request, query, version, page)


def _page(request: TableRequest, query: QueryRequest) -> Page | None:
    token = query.paging.page_token
    if token is None:
        return None
    return request.app_state.tokens.page(
        request.token_holder, make_page_question(query.parameters, request), token
    )
