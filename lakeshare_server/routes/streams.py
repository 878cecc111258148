"""What every answer with files has in common: format and signer before it, its lines, and the action that ends it."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Response

from lakeshare_server.access.elsewhere import is_local, local_folders, require_own_stores
from lakeshare_server.protocol.answer import Progress
from lakeshare_server.protocol.capabilities import answered
from lakeshare_server.protocol.heads import HeadLines, end_stream_action
from lakeshare_server.protocol.negotiation import ResponseFormat, announced_protocol, negotiated
from lakeshare_server.protocol.requests import Paging
from lakeshare_server.protocol.table_tokens import Page, Pin
from lakeshare_server.routes.context import FILE_IDS_HEADER, AskedTable, Note, Wants
from lakeshare_server.routes.responses import ndjson
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing import SigningSession
from lakeshare_server.tables.head import TableHead

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
