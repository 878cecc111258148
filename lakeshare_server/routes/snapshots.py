"""Answers with the files of a snapshot: the version is known, what remains is to prune, sign and stream."""

from fastapi import Response

from lakeshare_server.access.directory import access_of
from lakeshare_server.protocol.answer import Progress, SnapshotAnswer
from lakeshare_server.protocol.file_lines import SnapshotLines
from lakeshare_server.protocol.requests import QueryRequest
from lakeshare_server.protocol.table_tokens import Page, Pin, require_same_table
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.routes.streams import Closing, opened, page_question, page_size
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.versions import Version


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
