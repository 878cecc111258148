"""Responses in the protocol's spelling: JSON with its charset, NDJSON with the table's version, errors as objects."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import Response

from lakeshare_server.protocol.capabilities import HEADER
from lakeshare_server.routes.lines_response import NDJSON, LinesResponse, Piece

VERSION_HEADER = "Delta-Table-Version"


def json_response(
    content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON object."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    # Text of recipients may hold half a surrogate pair, which has no UTF-8.
    body = text.encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json; charset=utf-8")


def error_response(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as the protocol says it."""
    return json_response({"errorCode": code, "message": message}, status, headers)


def ndjson(
    first: bytes,
    pieces: Iterator[Piece] | None,
    version: int,
    capabilities: str,
    extra: Mapping[str, str],
    *,
    slow_store: str | None = None,
) -> Response:
    """Lines of a table; `pieces` are streamed, `slow_store` names a store that making them waits for."""
    headers = {VERSION_HEADER: str(version), HEADER: capabilities, **extra}
    if pieces is None:
        return Response(first, 200, headers, media_type=NDJSON)
    return LinesResponse(first, pieces, headers, slow_store=slow_store)


def iceberg_error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as Iceberg's REST catalogs say it; `kind` is the name of a Java exception, clients go by it."""
    return json_response({"error": {"message": message, "type": kind, "code": status}}, status, headers)
