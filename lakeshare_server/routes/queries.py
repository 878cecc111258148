"""Which answer a query gets: a snapshot or a window, from its first page or from a token's."""

from dataclasses import replace

from fastapi import Response

from lakeshare_server.protocol.requests import QueryRequest
from lakeshare_server.protocol.table_tokens import Page, require_same_table
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.routes.snapshots import answer_snapshot
from lakeshare_server.routes.streams import page_question
from lakeshare_server.routes.windows import answer_window


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
