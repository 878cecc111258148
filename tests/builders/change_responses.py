"""What an answer tells of changes, what the log says it should be, and stores that count."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_server.protocol.lines import ChangeLines, ChangeResponse, HeadLines, Progress, ResponseFormat
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.changes import VersionChanges
from tests.builders import delta_log
from tests.builders.deletion_vector import relative_path

Line = dict[str, Any]
FORMATS: tuple[ResponseFormat, ...] = ("parquet", "delta")


class CountingStores(Stores):
    """Real stores that remember what was read and listed."""

    def __init__(self) -> None:
        super().__init__(StoreSettings(_env_file=None))
        self.was_read: list[str] = []
        self.was_listed = 0

    def read(self, location: str) -> bytes:
        self.was_read.append(location)
        return super().read(location)

    def open(self, location: str) -> Any:
        self.was_read.append(location)
        return super().open(location)

    def list(self, prefix_location: str, after: str | None = None) -> Any:
        self.was_listed += 1
        return super().list(prefix_location, after)


def url(path: str) -> str:
    return f"http://files{path}?sig=1"


def answer(changes: Sequence[VersionChanges], *, feed: bool, **given: Any) -> ChangeResponse:
    said: dict[str, Any] = {"historical_metadata": True, "historical_protocol": False, **given}
    return ChangeResponse(changes=changes, feed=feed, announced=lambda head: head.protocol, **said)


def told(
    wanted: ChangeResponse, response_format: ResponseFormat = "delta", progress: Progress | None = None
) -> list[Line]:
    head = wanted.changes[0].head
    heads = HeadLines(response_format=response_format, protocol=head.protocol, version=0)
    lines = ChangeLines(response_format=response_format, ids=response_format, expires_at_ms=99)

    def sign(paths: pa.StringArray) -> pa.StringArray:
        return pa.array(map(url, paths.to_pylist()), pa.string())

    body = b"".join(wanted.render(lines, heads, sign, progress or Progress()))
    return [json.loads(line) for line in body.splitlines()]


def expected(
    table: Path, version: int, kind: str, action: Line, response_format: ResponseFormat, timestamp_ms: int
) -> Line:
    """The line of an action of the log, made in the plainest way (protocol §2.1, §2.2, §2.6)."""
    digest = hashlib.md5 if response_format == "parquet" else hashlib.sha256
    line: Line = {
        "id": digest(action["path"].encode()).hexdigest(),
        "version": version,
        "timestamp": timestamp_ms,
        "expirationTimestamp": 99,
    }
    path = str(delta_log.local_path(table, action["path"]))
    common: Line = {"size": action["size"], "partitionValues": action["partitionValues"]}
    if kind == "add" and action.get("stats"):
        common["stats"] = action["stats"]
    if response_format == "parquet":
        return {{"cdc": "cdf"}.get(kind, kind): {**line, "url": url(path), **common}}
    passed_on = {
        name: value
        for name, value in action.items()
        if name not in ("path", "deletionVector", "stats") and value is not None
    }
    inner = {**passed_on, **common, "path": url(path)}
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "i":
        inner["deletionVector"] = vector
    elif vector:
        file = f"{table}/{relative_path(vector['pathOrInlineDv'])}"
        inner["deletionVector"] = {**vector, "storageType": "p", "pathOrInlineDv": url(file)}
        unique = f"{vector['storageType']}{vector['pathOrInlineDv']}" + (
            f"@{vector['offset']}" if "offset" in vector else ""
        )
        line["deletionVectorFileId"] = hashlib.sha256(unique.encode()).hexdigest()
    return {"file": {**line, "deltaSingleAction": {kind: inner}}}


def in_order(lines: Sequence[Line]) -> list[str]:
    return sorted(json.dumps(line, sort_keys=True) for line in lines)
