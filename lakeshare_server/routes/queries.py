"""Which answer a query gets: a snapshot or a window, from its first page or from a token's."""

from dataclasses import replace

from fastapi import Response

from lakeshare_server.protocol.requests import QueryRequest
from lakeshare_server.protocol.table_tokens import Page
from lakeshare_server.routes.snapshots import Question, answer_snapshot, page_question
from lakeshare_server.routes.windows import answer_window


def answer_query(question: Question, asked: QueryRequest) -> Response:
    """The answer to a query in any of its forms."""
    page = _page(question, asked)
    if asked.starting_version is not None:
        return answer_window(question, asked, page)
    view = question.view
    if page is not None:
        version = view.pinned(page.first)
    elif asked.refresh_token is not None:
        tokens = question.parts.tokens
        version = view.pinned(tokens.refreshed_version(question.asker, asked.refresh_token))
    else:
        version = view.asked(asked)
    return answer_snapshot(question, asked, version, page)


def answer_pinned(question: Question, asked: QueryRequest, number: int) -> Response:
    """The answer to a query whose version is known already: of a window the last one."""
    page = _page(question, asked)
    if asked.starting_version is not None:
        return answer_window(question, replace(asked, ending_version=number), page)
    return answer_snapshot(
        question, asked, question.view.pinned(number if page is None else page.first), page
    )


def _page(question: Question, asked: QueryRequest) -> Page | None:
    token = asked.paging.page_token
    if token is None:
        return None
    return question.parts.tokens.page(question.asker, page_question(asked, question.wants), token)
