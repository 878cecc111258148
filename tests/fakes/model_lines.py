"""The lines of the model server's answers, and which files a hint leaves."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fakes.model_requests import Ask
from tests.fakes.model_tables import File, ModelTable, physical

LIFE_MS = 3_600_000
Sign = Callable[[str], str]
PARQUET_KEYS = {"add": "add", "remove": "remove", "cdc": "cdf"}


@dataclass(frozen=True)
class Wording:
    """How lines are written: the format, the scheme of ids, and who signs."""

    format: str
    scheme: str
    sign: Sign
    expires_ms: int

    def head(
        self, table: ModelTable, version: int, told: int | None, protocol_version: int | None
    ) -> list[bytes]:
        return [self.protocol(table, protocol_version), self.metadata(table, version, told)]

    def protocol(self, table: ModelTable, version: int | None) -> bytes:
        if self.format == "parquet":
            return line("protocol", {"minReaderVersion": 1})
        told = {} if version is None else {"version": version}
        return line("protocol", {"deltaProtocol": table.protocol, **told})

    def metadata(self, table: ModelTable, version: int, told: int | None) -> bytes:
        files = table.files(version)
        outer: dict[str, Any] = {"size": sum(len(one.content) for one in files), "numFiles": len(files)}
        outer |= {} if told is None else {"version": told}
        inner: dict[str, Any] = {
            "id": table.id,
            "format": {"provider": "parquet"},
            "schemaString": table.schema_string(version),
            "partitionColumns": list(table.partitioned_by),
            "configuration": table.configuration,
        }
        if self.format == "parquet":
            short = {"enableChangeDataFeed": "true"} if table.has_changes else {}
            return line("metaData", {**inner, "configuration": short, **outer})
        return line("metaData", {"deltaMetadata": {**inner, "createdTime": 1}, **outer})

    def file(
        self,
        table: ModelTable,
        file: File,
        kind: str = "file",
        version: int | None = None,
        changes: bool = True,
    ) -> bytes:
        outer: dict[str, Any] = {"id": self._id(file), "expirationTimestamp": self.expires_ms}
        if version is not None:
            outer |= {"version": version, "timestamp": table.timestamp_ms(version)}
        size = {"partitionValues": file.partition, "size": len(file.content)}
        has_stats = kind in ("file", "add")
        stats = {"stats": file.stats} if has_stats else {}
        url = self.sign(f"{table.name}/{file.path}")
        if self.format == "parquet":
            return line(PARQUET_KEYS.get(kind, "file"), {"url": url, **outer, **size, **stats})
        single: dict[str, Any] = {"path": url, **size, **stats, "dataChange": changes and kind != "cdc"}
        if has_stats:
            single["modificationTime"] = table.timestamp_ms(0)
        if table.is_mapped and kind != "cdc":
            single |= {"baseRowId": file.base_row_id, "defaultRowCommitVersion": 0}
        if file.vector is not None:
            single["deletionVector"], vector_id = self._vector(table, file)
            outer |= vector_id
        action = "add" if kind == "file" else kind
        return line("file", {**outer, "deltaSingleAction": {action: single}})

    def _vector(self, table: ModelTable, file: File) -> tuple[dict[str, Any], dict[str, str]]:
        assert file.vector is not None
        sizes = {"sizeInBytes": len(file.vector.content), "cardinality": len(file.vector.deleted)}
        if file.vector.inline:
            return {"storageType": "i", "pathOrInlineDv": file.vector.text, **sizes}, {}
        url = self.sign(f"{table.name}/{file.path}.{len(file.vector.deleted)}.bin")
        return (
            {"storageType": "p", "pathOrInlineDv": url, "offset": 1, **sizes},
            {"deletionVectorFileId": file.vector.id},
        )

    def _id(self, file: File) -> str:
        made = hashlib.md5 if self.scheme == "parquet" else hashlib.sha256
        return made(file.path.encode()).hexdigest()


def wording(format: str, scheme: str | None, sign: Sign) -> Wording:
    return Wording(format, scheme or format, sign, int(time.time() * 1000) + LIFE_MS)


def line(kind: str, value: dict[str, Any]) -> bytes:
    return json.dumps({kind: value}).encode()


def kept(table: ModelTable, files: list[File], ask: Ask) -> list[File]:
    """What hints and limit leave: only comparisons of one column by equality leave anything out."""
    tests = [test for hint in ask.sql if (test := _sql(hint))]
    tests += [test for test in [_json(ask.json_hint)] if test]
    found = [file for file in files if all(_may_match(table, file, *test) for test in tests)]
    if ask.limit is None or tests or ask.json_hint or ask.sql:
        return found
    enough, rows = [], 0
    for file in found:
        if rows < ask.limit:
            enough.append(file)
        rows += file.live_rows
    return enough


def _may_match(table: ModelTable, file: File, column: str, value: str) -> bool:
    name = physical(column) if table.is_mapped else column
    if name in file.partition:
        return file.partition[name] == value
    bounds = json.loads(file.stats)
    low, high = bounds["minValues"].get(name), bounds["maxValues"].get(name)
    if not isinstance(low, int) or isinstance(low, bool) or not value.lstrip("-").isdigit():
        return True
    return bool(low <= int(value) <= high)


def _sql(hint: str) -> tuple[str, str] | None:
    column, equals, value = hint.partition(" = ")
    is_simple = equals and column.isidentifier() and value.startswith("'") and value.endswith("'")
    return (column, value[1:-1]) if is_simple and column == "day" else None


def _json(hint: str | None) -> tuple[str, str] | None:
    try:
        node = json.loads(hint or "null")
        column, literal = node["children"]
        is_simple = node["op"] == "equal" and column["name"] in ("day", "id", "region")
        return (column["name"], str(literal["value"])) if is_simple and literal["op"] == "literal" else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
