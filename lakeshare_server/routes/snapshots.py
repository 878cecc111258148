"""Answers with the files of a snapshot: the version is known, what remains is to negotiate, prune, sign and stream."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fastapi import Response

from lakeshare_server.access.directory import access_of
from lakeshare_server.access.elsewhere import require_own_stores
from lakeshare_server.protocol.answer import Progress, SnapshotAnswer
from lakeshare_server.protocol.capabilities import answered
from lakeshare_server.protocol.file_lines import SnapshotLines
from lakeshare_server.protocol.heads import HeadLines, end_stream_action
from lakeshare_server.protocol.negotiation import announced_protocol, negotiated
from lakeshare_server.protocol.requests import Paging, QueryRequest
from lakeshare_server.protocol.table_tokens import Page, Pin, require_same_table
from lakeshare_server.routes.context import FILE_IDS_HEADER, AskedTable, Note, Wants
from lakeshare_server.routes.responses import ndjson
from lakeshare_server.settings import ServerSettings
from lakeshare_server.versions import Version

_log = logging.getLogger(__name__)


def answer_snapshot(by: AskedTable, asked: QueryRequest, version: Version, page: Page | None) -> Response:
    """The files of a version, or one page of them."""
    parts, wants, note = by.parts, by.wants, by.note
    index = by.view.index(version)
    header = index.header
    table_id = header.head.table_id
    if page is not None:
        require_same_table("page", page.of, table_id)
    response_format = negotiated(wants.capabilities, header.head, by.view.entry.path)
    note.version, note.files = version.number, 0
    require_own_stores(by.view.entry.path, header.location, header.roots, parts.settings)
    session = parts.signers.session(header.roots, by.reader.name, parts.settings.url_life_s)
    told = version.number if asked.version is not None or asked.timestamp is not None else None
    head = HeadLines(
        response_format=response_format,
        protocol=announced_protocol(wants.capabilities, header.head),
        version=told,
        size_bytes=header.size_bytes,
        files=header.files,
        shares_changes=by.view.entry.history,
        access=access_of(by.view, parts.signers),
    )
    lines = SnapshotLines(
        response_format=response_format,
        ids=wants.file_ids or response_format,
        expires_at_ms=session.expires_at_ms,
        version=told,
    )
    answer = SnapshotAnswer(
        index=index,
        predicate=asked.predicate,
        rows_wanted=asked.limit if page is None else page.rows_wanted,
        start=0 if page is None else page.start,
        most=page_size(parts.settings, asked.paging),
    )

    def closing(progress: Progress) -> dict[str, object]:
        said: dict[str, object] = (
            {"minUrlExpirationTimestamp": session.expires_at_ms} if progress.files else {}
        )
        if progress.next_place is not None:
            following = Page(
                version.number, version.number, progress.next_place, progress.rows_wanted, of=table_id
            )
            said["nextPageToken"] = parts.tokens.page_token(
                by.asker, page_question(asked.parameters, wants), following
            )
        if asked.include_refresh_token or asked.refresh_token is not None:
            said["refreshToken"] = parts.tokens.refresh_token(by.asker, Pin(version.number, table_id))
        return said

    progress = Progress()
    body = streamed(
        head.of(header.head),
        answer.parts(lines, session.sign, progress),
        progress,
        note,
        closing if wants.capabilities.wants_end_stream_action or asked.wants_end_stream_action else None,
    )
    return table_lines(body, version.number, response_format, wants, is_quick=session.is_quick)


def page_question(parameters: Mapping[str, Any], wants: Wants) -> dict[str, object]:
    """What must be the same on every page, so that the head lines and the files of all pages fit together."""
    return {
        **parameters,
        "formats": sorted(wants.capabilities.response_formats),
        "features": sorted(wants.capabilities.reader_features),
        "ids": wants.file_ids,
    }


def table_lines(
    body: Iterator[bytes | memoryview],
    version: int,
    response_format: str,
    wants: Wants,
    *,
    is_quick: bool = True,
) -> Response:
    """The response around lines that are streamed; a client that sent `fileidhash` insists on it."""
    extra = {} if wants.file_ids is None else {FILE_IDS_HEADER: wants.file_ids}
    return ndjson(body, version, answered(response_format, wants.capabilities), extra, is_quick=is_quick)


def streamed(
    first: bytes,
    pieces: Iterator[bytes | memoryview],
    progress: Progress,
    note: Note,
    closing: Callable[[Progress], dict[str, object]] | None,
) -> Iterator[bytes | memoryview]:
    """The lines of an answer; one that breaks off does not look whole (protocol §1.13)."""
    yield first
    try:
        for piece in pieces:
            if piece:
                yield piece
            # Only what was taken counts: a client may leave while the next piece is made.
            note.files = progress.files
        if closing is not None:
            yield end_stream_action(closing(progress))
    except Exception as error:
        note.error_code = "INTERNAL_ERROR"
        _log.exception("request %s: the answer broke off after %s files", note.request_id, note.files)
        if closing is None:
            # The connection is cut: a short answer must not look whole.
            raise
        message = f"The answer broke off ({type(error).__name__}); request id {note.request_id}."
        yield end_stream_action({"errorMessage": message, "httpStatusErrorCode": 500})


def page_size(settings: ServerSettings, paging: Paging) -> int | None:
    """How many files a page has; None for an answer in one piece."""
    if not paging.is_asked:
        return None
    return min(paging.max_files or settings.page_files, settings.page_files)
