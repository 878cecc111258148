"""A recipient's own questions, asked by the server in its place: the routes' answers, with places instead of URLs.

Nothing here decides what may be read. Whatever a grant, a rule or a history limit takes from a client's answer is not
in these either, because they are made by the same functions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import orjson
import pyarrow as pa
from fastapi import Request, Response

from lakeshare_server.protocol.capabilities import HEADER
from lakeshare_server.protocol.requests import query_of
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.routes.lines_response import LinesResponse
from lakeshare_server.routes.queries import answer_query
from lakeshare_server.signing import Signers, SigningSession
from lakeshare_server.tables.serveability import CLIENTS

# Pages read as much as any client that is known.
FEATURES = sorted(frozenset[str]().union(*(client.features for client in CLIENTS)))
CAPABILITIES = f"responseformat=delta;readerfeatures={','.join(FEATURES)}"


class PlaceNames(SigningSession):
    """Names places where others sign URLs: for files that this process itself is to read."""

    def __init__(self) -> None:
        self.slow_store = None
        self.expires_at_ms = 0

    def sign(self, paths: pa.StringArray) -> list[bytes]:
        # Lines are JSON that nobody escapes any more: URLs need no escapes, so places are made like them.
        return [quote(path).encode() for path in paths.to_pylist()]


class PlaceSigners(Signers):
    """Signers whose sessions only name places."""

    def session(self, roots: Sequence[str], issue: Callable[[str], str], life_s: int) -> SigningSession:
        return PlaceNames()


def asked_in_place(by: AskedTable, signers: PlaceSigners) -> AskedTable:
    """The same request as a client would make it that reads everything; noted is what comes of this one."""
    headers = [(name, value) for name, value in by.request.scope["headers"] if name != HEADER.encode()]
    headers.append((HEADER.encode(), CAPABILITIES.encode()))
    request = Request({**by.request.scope, "headers": headers, "query_string": b""})
    # No URL leaves for what it answers: its files are not counted as those that were signed.
    parts, note = replace(by.parts, signers=signers), replace(by.note)
    return replace(by, request=request, parts=parts, note=note)


def query_lines(by: AskedTable, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines of a query with these fields in its body, made while they are taken.

    Raises:
        LakeshareError: whatever the query is refused with.
    """
    return lines_of(answer_query(by, query_of(fields)))


def lines_of(answer: Response) -> Iterator[dict[str, Any]]:
    """The lines of a table's answer."""
    pieces = answer.pieces() if isinstance(answer, LinesResponse) else iter([answer.body])
    for piece in pieces:
        for line in bytes(piece).splitlines():
            yield orjson.loads(line)


def place_in(line: str) -> str:
    """The place that a line names."""
    return unquote(line)
