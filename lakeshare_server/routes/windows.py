"""Answers with what a range of versions changed: `startingVersion` queries and the change data feed."""

from fastapi import Response

from lakeshare_server.errors import Unserveable
from lakeshare_server.protocol.requests import QueryRequest
from lakeshare_server.protocol.table_tokens import Page
from lakeshare_server.routes.context import AskedTable


def answer_window(by: AskedTable, asked: QueryRequest, page: Page | None) -> Response:
    """The data changes of the versions from `startingVersion` on, or one page of them."""
    raise Unserveable(
        "startingVersion is not supported by this server yet.", "Ask for a snapshot with `version`."
    )
