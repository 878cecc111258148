"""Responses in the protocol's spelling: JSON with its charset, NDJSON with the table's version, errors as objects."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from lakeshare_server.protocol.capabilities import HEADER

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
    parts: Iterable[bytes | memoryview], version: int, capabilities: str, extra: Mapping[str, str]
) -> Response:
    """Lines of a table, streamed."""
    headers = {VERSION_HEADER: str(version), HEADER: capabilities, **extra}
    return StreamingResponse(parts, headers=headers, media_type="application/x-ndjson; charset=utf-8")
