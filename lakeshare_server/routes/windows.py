"""Answers with what a range of versions changed: `startingVersion` queries and the change data feed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fastapi import APIRouter, Response

from lakeshare_server.access.elsewhere import require_own_stores
from lakeshare_server.protocol.answer import Progress
from lakeshare_server.protocol.change_answer import ChangeAnswer, require_recorded
from lakeshare_server.protocol.change_lines import ChangeLines
from lakeshare_server.protocol.changes_request import parse_changes
from lakeshare_server.protocol.heads import HeadLines
from lakeshare_server.protocol.negotiation import announced_protocol, negotiated
from lakeshare_server.protocol.requests import Paging, QueryRequest
from lakeshare_server.protocol.table_tokens import Page, require_same_table
from lakeshare_server.routes.context import AskedTable, TableDep
from lakeshare_server.routes.snapshots import page_question, page_size, streamed, table_lines
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.head import TableHead

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
    def hindered_head(self) -> TableHead:
        """The head that is told first, hindered by what hinders any version of the range."""
        others = self.changes[0].head.hindrances if self.changes else ()
        hindrances = dict.fromkeys((*self.head.hindrances, *others))
        return replace(self.head, hindrances=tuple(hindrances))


def answer_window(by: AskedTable, asked: QueryRequest, page: Page | None) -> Response:
    """The data changes of the versions from `startingVersion` on, or one page of them."""
    if page is not None:
        first, last = page.first, page.last
    else:
        first = asked.starting_version or 0
        last = by.view.window(first, asked.ending_version)
    # Numbers of publications have gaps, and a window may lie in one: then nothing has changed.
    changes = by.view.versions.changes(first, last) if first <= last else []
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
        question=page_question(asked.parameters, by.wants),
    )
    return _answer(by, window, wants_end=asked.wants_end_stream_action)


@router.get("/changes", name="table_changes")
def table_changes(by: TableDep) -> Response:
    asked = parse_changes(by.request.query_params)
    question = page_question(asked.parameters, by.wants)
    page = None
    if asked.paging.page_token is not None:
        page = by.parts.tokens.page(by.asker, question, asked.paging.page_token)
        first, last, latest = page.first, page.last, page.latest
    else:
        first, last = by.view.changes_range(asked)
        latest = by.view.latest().number
    changes = by.view.versions.changes(first, last)
    require_recorded(changes)
    head, head_version = changes[0].head, changes[0].version
    if not asked.include_historical_metadata:
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
    return _answer(by, window, wants_end=asked.paging.is_asked)


def _latest_head(by: AskedTable, changes: Sequence[VersionChanges], last: int, latest: int) -> TableHead:
    """Protocol and metadata of the latest version, which is what a feed without history begins with."""
    return changes[-1].head if last == latest else by.view.index(by.view.pinned(latest)).header.head


def _answer(by: AskedTable, window: Window, *, wants_end: bool) -> Response:
    parts, wants, note = by.parts, by.wants, by.note
    table_id = window.head.table_id
    if window.page is not None:
        require_same_table("page", window.page.of, table_id)
    capabilities = wants.capabilities
    response_format = negotiated(capabilities, window.hindered_head, by.view.entry.path)
    version = window.changes[0].version if window.changes else window.first
    note.version, note.files = version, 0
    roots = sorted({root for one in window.changes for root in one.roots})
    require_own_stores(by.view.entry.path, by.view.versions.location(), roots, parts.settings)
    session = parts.signers.session(roots, by.reader.name, parts.settings.url_life_s)
    answer = ChangeAnswer(
        changes=window.changes,
        feed=window.feed,
        historical_metadata=window.historical_metadata,
        historical_protocol=window.historical_protocol and response_format == "delta",
        announced=lambda head: announced_protocol(capabilities, head),
        start=0 if window.page is None else window.page.start,
        most=page_size(parts.settings, window.paging),
    )
    head = HeadLines(
        response_format=response_format,
        protocol=announced_protocol(capabilities, window.head),
        version=window.head_version,
        size_bytes=answer.size_bytes,
        files=answer.files,
        shares_changes=by.view.entry.history,
        protocol_version=window.head_version if answer.historical_protocol else None,
    )
    lines = ChangeLines(
        response_format=response_format,
        ids=wants.file_ids or response_format,
        expires_at_ms=session.expires_at_ms,
    )

    def closing(progress: Progress) -> dict[str, object]:
        said: dict[str, object] = (
            {"minUrlExpirationTimestamp": session.expires_at_ms} if progress.files else {}
        )
        if progress.next_place is not None:
            place, latest = progress.next_place, window.head_version
            page = Page(window.first, window.last, place, latest=latest, of=table_id)
            said["nextPageToken"] = parts.tokens.page_token(by.asker, window.question, page)
        return said

    progress = Progress()
    body = streamed(
        head.of(window.head),
        answer.parts(lines, head, session.sign, progress),
        progress,
        note,
        closing if capabilities.wants_end_stream_action or wants_end else None,
    )
    return table_lines(body, version, response_format, wants, is_quick=session.is_quick)
