"""Which answer a query gets: a snapshot or a window, from its first page or from a token's."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from fastapi import APIRouter, Response

from lakeshare_server.access.allowed_locations import is_local, local_folders, require_own_stores
from lakeshare_server.access.table_access import access_of
from lakeshare_server.protocol.lines import (
    ChangeAnswer,
    ChangeLines,
    HeadLines,
    Progress,
    ResponseFormat,
    SnapshotAnswer,
    SnapshotLines,
    announced_protocol,
    answered,
    end_stream_action,
    negotiated,
    require_one_schema,
    require_recorded,
)
from lakeshare_server.protocol.requests import Paging, QueryRequest, parse_changes
from lakeshare_server.protocol.tokens import Page, Pin, require_same_table
from lakeshare_server.routes.context import FILE_IDS_HEADER, AskedTable, Note, TableDep, Wants, in_table_pool
from lakeshare_server.routes.responses import ndjson
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import SigningSession
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.delta.snapshot import covering_protocol
from lakeshare_server.tables.iceberg.changes import change_head
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.snapshot import TableHead
from lakeshare_server.versions import Version

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What the last line of an answer says; nothing unless `wanted`. `following` is where the next page begins."""

    wanted: bool
    question: Mapping[str, object]
    following: Callable[[Progress], Page]
    refresh: Pin | None = None


@dataclass(frozen=True)
class Opening:
    """The format that was negotiated for an answer, and the session that signs its files."""

    by: AskedTable
    response_format: ResponseFormat
    session: SigningSession

    @property
    def ids(self) -> ResponseFormat:
        """The scheme of the files' ids."""
        return self.by.wants.file_ids or self.response_format

    def head_lines(self, head: TableHead, **told: Any) -> HeadLines:
        """The lines before the files; `told` are the fields of `HeadLines` that differ from answer to answer."""
        return HeadLines(
            response_format=self.response_format,
            protocol=announced_protocol(self.by.wants.capabilities, head),
            shares_changes=self.by.view.entry.history,
            **told,
        )

    def sent(
        self,
        version: int,
        first: bytes,
        pieces: Iterator[bytes | memoryview],
        progress: Progress,
        closing: Closing,
    ) -> Response:
        """The response: first the head lines, then the files, then what closes them."""
        note = self.by.note
        note.version = version
        wants_end = closing.wanted or self.by.wants.capabilities.wants_end_stream_action
        last = (lambda: self._closing(closing, progress)) if wants_end else None
        files = _streamed(pieces, progress, note, last)
        return table_lines(
            first, files, version, self.response_format, self.by.wants, slow_store=self.session.slow_store
        )

    def _closing(self, closing: Closing, progress: Progress) -> dict[str, object]:
        said: dict[str, object] = {}
        tokens, asker = self.by.parts.tokens, self.by.asker
        if progress.files:
            said["minUrlExpirationTimestamp"] = self.session.expires_at_ms
        if progress.next_place is not None:
            page = closing.following(progress)
            said["nextPageToken"] = tokens.page_token(asker, closing.question, page)
        if closing.refresh is not None:
            said["refreshToken"] = tokens.refresh_token(asker, closing.refresh)
        return said


def opened(by: AskedTable, head: TableHead, location: str, roots: Collection[str]) -> Opening:
    """Negotiate and prepare to sign for files in these stores, of a table at that location.

    Raises:
        BadRequest, Unserveable: the client takes no format the table can go out in, or its files are not to be
            handed out.
    """
    parts, table = by.parts, by.view.entry.path
    response_format = negotiated(by.wants.capabilities, head, table)
    require_own_stores(table, location, roots, parts.settings)
    by.require_signing()
    credential = None if by.note.access is None else by.note.access.credential_id

    def issue(folder: str) -> str:
        require_own_stores(table, location, {folder}, parts.settings)
        return parts.file_tickets.issue(by.reader, credential, by.view, folder)

    folders = local_folders(location, roots)
    stores = (root for root in roots if not is_local(root))
    session = parts.signers.session([*folders, *sorted(stores)], issue, parts.settings.url_life_s)
    return Opening(by, response_format, session)


def page_question(parameters: Mapping[str, Any], by: AskedTable) -> dict[str, object]:
    """What must be the same on every page, so that the head lines and the files of all pages fit together."""
    wants = by.wants
    # Places count the files that may be read: after another rule a page would begin somewhere else.
    restriction = {"restriction": by.view.restriction} if by.view.is_restricted else {}
    return {
        **parameters,
        **restriction,
        "formats": sorted(wants.capabilities.response_formats),
        "features": sorted(wants.capabilities.reader_features),
        "ids": wants.file_ids,
    }


def page_size(settings: ServerSettings, paging: Paging) -> int | None:
    """How many files a page has; None for an answer in one piece."""
    if not paging.is_asked:
        return None
    return min(paging.max_files or settings.page_files, settings.page_files)


def table_lines(
    first: bytes,
    pieces: Iterator[bytes | memoryview] | None,
    version: int,
    response_format: str,
    wants: Wants,
    *,
    slow_store: str | None = None,
    is_pending: bool = False,
) -> Response:
    """The response around lines, those in `pieces` streamed; a client that sent `fileidhash` insists on it."""
    extra = {} if wants.file_ids is None else {FILE_IDS_HEADER: wants.file_ids}
    header = answered(response_format, wants.capabilities, is_pending=is_pending)
    return ndjson(first, pieces, version, header, extra, slow_store=slow_store)


def _streamed(
    pieces: Iterator[bytes | memoryview],
    progress: Progress,
    note: Note,
    closing: Callable[[], dict[str, object]] | None,
) -> Iterator[bytes | memoryview]:
    """The lines of files; an answer that breaks off does not look whole (protocol §1.13)."""
    note.files = 0
    try:
        for piece in pieces:
            yield piece
            # Only what was taken counts: a client may leave while the next piece is made.
            note.files, note.size_bytes, note.rows = progress.files, progress.size_bytes, progress.rows
        if closing is not None:
            yield end_stream_action(closing())
    except Exception as error:
        note.error_code = "INTERNAL_ERROR"
        _log.exception("request %s: the answer broke off after %s files", note.request_id, note.files)
        if closing is None:
            # The connection is cut: a short answer must not look whole.
            raise
        message = f"The answer broke off ({type(error).__name__}); request id {note.request_id}."
        yield end_stream_action({"errorMessage": message, "httpStatusErrorCode": 500})


def answer_snapshot(by: AskedTable, asked: QueryRequest, version: Version, page: Page | None) -> Response:
    """The files of a version, or one page of them."""
    index = by.view.index(version)
    header = index.header
    table_id = header.head.table_id
    if page is not None:
        require_same_table("page", page.of, table_id)
    opening = opened(by, header.head, header.location, header.roots)
    told = version.number if asked.version is not None or asked.timestamp is not None else None
    head = opening.head_lines(
        header.head,
        version=told,
        size_bytes=header.size_bytes,
        files=header.files,
        access=access_of(by.view, by.parts.signers),
    )
    lines = SnapshotLines(
        response_format=opening.response_format,
        ids=opening.ids,
        expires_at_ms=opening.session.expires_at_ms,
        version=told,
    )
    refreshes = asked.include_refresh_token or asked.refresh_token is not None
    closing = Closing(
        wanted=asked.wants_end_stream_action,
        question=page_question(asked.parameters, by),
        following=lambda so_far: _page_after(so_far, version.number, table_id),
        refresh=Pin(version.number, table_id) if refreshes else None,
    )
    progress = Progress()
    pieces = _answer(by, index, asked, page).parts(lines, opening.session.sign, progress)
    return opening.sent(version.number, head.of(header.head), pieces, progress, closing)


def _answer(by: AskedTable, index: FileIndex, asked: QueryRequest, page: Page | None) -> SnapshotAnswer:
    return SnapshotAnswer(
        index=index,
        predicate=asked.predicate,
        rows_wanted=asked.limit if page is None else page.rows_wanted,
        start=0 if page is None else page.start,
        most=page_size(by.parts.settings, asked.paging),
    )


def _page_after(so_far: Progress, version: int, table_id: str) -> Page:
    return Page(version, version, so_far.next_place or 0, so_far.rows_wanted, of=table_id)


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
    def covering_head(self) -> TableHead:
        """The head that is told first, with one protocol for the whole range."""
        protocols = (one.head.protocol for one in self.changes)
        return replace(self.head, protocol=covering_protocol([self.head.protocol, *protocols]))

    @property
    def hindered_head(self) -> TableHead:
        """The head that is told first, hindered by what hinders any version of the range."""
        others = self.changes[0].head.hindrances if self.changes else ()
        of_files = (one.feed_hindrances if self.feed else one.window_hindrances for one in self.changes)
        hindrances = dict.fromkeys((*self.head.hindrances, *others, *chain.from_iterable(of_files)))
        return replace(self.head, hindrances=tuple(hindrances))

    def page_after(self, so_far: Progress, table_id: str) -> Page:
        """The page that begins where an answer has come to."""
        return Page(self.first, self.last, so_far.next_place or 0, latest=self.head_version, of=table_id)


def answer_window(by: AskedTable, asked: QueryRequest, page: Page | None) -> Response:
    """The data changes of the versions from `startingVersion` on, or one page of them."""
    # Asked again for each page: who may read history may have changed since page one.
    if page is not None:
        first, last = page.first, by.view.window(page.first, page.last)
    else:
        first = asked.starting_version or 0
        last = by.view.window(first, asked.ending_version)
    # Numbers of publications have gaps, and a window may lie in one: then nothing has changed.
    changes = by.view.changes(first, last) if first <= last else []
    window = Window(
        changes=changes,
        first=first,
        last=last,
        feed=False,
        head=changes[0].head if changes else by.view.index(by.view.pinned(last)).header.head,
        head_version=changes[0].version if changes else first,
        historical_metadata=True,
        historical_protocol=asked.include_historical_protocol,
        paging=asked.paging,
        page=page,
        question=page_question(asked.parameters, by),
    )
    return _answer_window(by, window, wants_end=asked.wants_end_stream_action)


@router.get("/changes", name="table_changes")
@in_table_pool
def table_changes(by: TableDep) -> Response:
    asked = parse_changes(by.request.query_params)
    question = page_question(asked.parameters, by)
    page = None
    if asked.paging.page_token is not None:
        page = by.parts.tokens.page(by.asker, question, asked.paging.page_token)
        first, last, latest = page.first, by.view.window(page.first, page.last), page.latest
    else:
        first, last = by.view.changes_range(asked)
        latest = by.view.latest().number
    told_at = None if asked.include_historical_metadata else latest
    changes = by.view.feed(first, last, told_at)
    require_recorded(changes)
    head, head_version = changes[0].head, changes[0].version
    if not asked.include_historical_metadata:
        require_one_schema(by.view.versions.unlike_columns(first, last, latest), first, latest)
        head, head_version = _latest_head(by, changes, last, latest), latest
    window = Window(
        changes=changes,
        first=first,
        last=last,
        feed=True,
        head=head,
        head_version=head_version,
        historical_metadata=asked.include_historical_metadata,
        historical_protocol=asked.include_historical_protocol,
        paging=asked.paging,
        page=page,
        question=question,
    )
    return _answer_window(by, window, wants_end=asked.paging.is_asked)


def _latest_head(by: AskedTable, changes: Sequence[VersionChanges], last: int, latest: int) -> TableHead:
    """Protocol and metadata of the latest version, which is what a feed without history begins with."""
    if last == latest:
        return changes[-1].head
    header = by.view.index(by.view.pinned(latest)).header
    if header.table_format != "iceberg":
        return header.head
    return replace(change_head(header.head), partition_columns=changes[-1].head.partition_columns)


def _answer_window(by: AskedTable, window: Window, *, wants_end: bool) -> Response:
    table_id = window.head.table_id
    if window.page is not None:
        require_same_table("page", window.page.of, table_id)
    roots = {root for one in window.changes for root in one.roots}
    opening = opened(by, window.hindered_head, by.view.versions.location(), roots)
    capabilities = by.wants.capabilities
    answer = ChangeAnswer(
        changes=window.changes,
        feed=window.feed,
        historical_metadata=window.historical_metadata,
        historical_protocol=window.historical_protocol and opening.response_format == "delta",
        announced=lambda head: announced_protocol(capabilities, head),
        start=0 if window.page is None else window.page.start,
        most=page_size(by.parts.settings, window.paging),
    )
    # Without its history, the protocol of the range's start would not let clients read what later versions wrote.
    head = opening.head_lines(
        window.head if answer.historical_protocol else window.covering_head,
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
    closing = Closing(
        wanted=wants_end,
        question=window.question,
        following=lambda so_far: window.page_after(so_far, table_id),
    )
    progress = Progress()
    pieces = answer.parts(lines, head, opening.session.sign, progress)
    version = window.changes[0].version if window.changes else window.first
    return opening.sent(version, head.of(window.head), pieces, progress, closing)


def answer_query(by: AskedTable, asked: QueryRequest) -> Response:
    """The answer to a query in any of its forms."""
    page = _page(by, asked)
    if asked.starting_version is not None:
        return answer_window(by, asked, page)
    view = by.view
    if page is not None:
        version = view.found_for(asked, page.first)
    elif asked.refresh_token is not None:
        pin = by.parts.tokens.refreshed(by.asker, asked.refresh_token)
        version = view.pinned(pin.version)
        require_same_table("refresh", pin.of, view.index(version).header.head.table_id)
    else:
        version = view.asked(asked)
    return answer_snapshot(by, asked, version, page)


def answer_pinned(by: AskedTable, asked: QueryRequest, number: int) -> Response:
    """The answer to a query whose version is known already: of a window the last one."""
    page = _page(by, asked)
    if asked.starting_version is not None:
        return answer_window(by, replace(asked, ending_version=number), page)
    version = by.view.found_for(asked, number if page is None else page.first)
    return answer_snapshot(by, asked, version, page)


def _page(by: AskedTable, asked: QueryRequest) -> Page | None:
    token = asked.paging.page_token
    if token is None:
        return None
    return by.parts.tokens.page(by.asker, page_question(asked.parameters, by), token)
