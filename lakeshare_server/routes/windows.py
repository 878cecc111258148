"""Answers with what a range of versions changed: `startingVersion` queries and the change data feed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fastapi import APIRouter, Response

from lakeshare_server.protocol.answer import Progress
from lakeshare_server.protocol.change_answer import ChangeAnswer, require_one_schema, require_recorded
from lakeshare_server.protocol.change_lines import ChangeLines
from lakeshare_server.protocol.changes_request import parse_changes
from lakeshare_server.protocol.negotiation import announced_protocol
from lakeshare_server.protocol.requests import Paging, QueryRequest
from lakeshare_server.protocol.table_tokens import Page, require_same_table
from lakeshare_server.routes.context import AskedTable, TableDep
from lakeshare_server.routes.pools import in_table_pool
from lakeshare_server.routes.streams import Closing, opened, page_question, page_size
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.tables.delta.features import covering_protocol
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.iceberg.change_head import change_head

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
    return _answer(by, window, wants_end=asked.wants_end_stream_action)


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
    return _answer(by, window, wants_end=asked.paging.is_asked)


def _latest_head(by: AskedTable, changes: Sequence[VersionChanges], last: int, latest: int) -> TableHead:
    """Protocol and metadata of the latest version, which is what a feed without history begins with."""
    if last == latest:
        return changes[-1].head
    header = by.view.index(by.view.pinned(latest)).header
    if header.table_format != "iceberg":
        return header.head
    return replace(change_head(header.head), partition_columns=changes[-1].head.partition_columns)


def _answer(by: AskedTable, window: Window, *, wants_end: bool) -> Response:
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
