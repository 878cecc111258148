"""Pieces of the model server's answers: bodies with their headers, refusals, where versions and pages begin and end."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from tests.fakes.model_lines import Wording
from tests.fakes.model_requests import Refused, Reply, Request
from tests.fakes.model_tables import ModelTable

NDJSON, JSON = "application/x-ndjson; charset=utf-8", "application/json; charset=utf-8"


def lines_reply(
    lines: list[bytes], version: int, words: Wording, request: Request, *, echoes: bool = False
) -> Reply:
    told = f"responseformat={words.format}" + (";includeendstreamaction=true" if echoes else "")
    headers = {
        "Content-Type": NDJSON,
        "Delta-Table-Version": str(version),
        "delta-sharing-capabilities": told,
    }
    if "fileidhash" in request.headers:
        headers["fileidhash"] = words.scheme
    return Reply(200, headers, b"\n".join(lines) + b"\n")


def json_reply(content: Mapping[str, Any]) -> Reply:
    return Reply(200, {"Content-Type": JSON}, json.dumps(content).encode())


def share_item(name: str) -> dict[str, Any]:
    return {"name": name, "id": f"id-of-{name}", "comment": "of the model", "properties": {"a": "b"}}


def table_item(table: ModelTable) -> dict[str, Any]:
    names = {"name": table.name, "schema": table.schema, "share": table.share}
    item = {**names, "shareId": f"id-of-{table.share}", "id": table.id}
    return item | (
        {"accessModes": ["url", "dir"], "location": f"s3://model/{table.name}"} if table.credentials else {}
    )


def missing(name: str) -> Refused:
    message = f"'{name[:100]}' does not exist, please contact your share provider for further information."
    return Refused(404, message, "RESOURCE_DOES_NOT_EXIST")


def needs_history(table: ModelTable) -> None:
    if not table.has_history:
        name = f"{table.share}.{table.schema}.{table.name}"
        raise Refused(
            400,
            "Reading table by version or timestamp is not supported because history sharing is not enabled "
            f"on table: {name}",
        )


def first_at(table: ModelTable, at_ms: int) -> int:
    for version in range(table.latest + 1):
        if table.timestamp_ms(version) >= at_ms:
            return version
    raise Refused(400, "Please use a timestamp less than or equal to the latest")


def last_at(table: ModelTable, at_ms: int) -> int:
    for version in range(table.latest, -1, -1):
        if table.timestamp_ms(version) <= at_ms:
            return version
    raise Refused(400, "The provided timestamp (…) is before the earliest available version")


def page_end(lines: list[tuple[bool, bytes]], start: int, max_files: int) -> int:
    files = 0
    for place in range(start, len(lines)):
        files += lines[place][0]
        if files > max_files:
            return place
    return len(lines)


def decoded(part: str) -> str:
    try:
        name = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Refused(400, "The name is not UTF-8.") from None
    return name
