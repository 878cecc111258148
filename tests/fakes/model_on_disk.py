"""The model server's tables as Delta tables on the local disk, for our own server to serve."""

import json
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.fakes.model_tables import Change, File, ModelTable, z85


def write_delta(table: ModelTable, location: Path) -> Path:
    """Write a table's files and its log, with the commit times that the model has."""
    log = location / "_delta_log"
    log.mkdir(parents=True)
    for version, commit in enumerate(table.commits):
        actions = [{"commitInfo": {"timestamp": table.timestamp_ms(version), "operation": "WRITE"}}]
        actions += _head(table, version)
        actions += [_action(table, change, location, version) for change in commit]
        path = log / f"{version:020}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in actions), "utf-8")
        at_s = table.timestamp_ms(version) / 1000
        os.utime(path, (at_s, at_s))
    return location


def _head(table: ModelTable, version: int) -> Iterator[dict[str, Any]]:
    if version == 0:
        yield {"protocol": table.protocol}
    if version in table.schemas:
        yield {
            "metaData": {
                "id": str(uuid.UUID(table.id)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": table.schema_string(version),
                "partitionColumns": list(table.partitioned_by),
                "configuration": table.configuration,
                "createdTime": table.timestamp_ms(0),
            }
        }


def _action(table: ModelTable, change: Change, location: Path, version: int) -> dict[str, Any]:
    file = change.file
    path = f"_change_data/{file.path}" if change.kind == "cdc" else file.path
    _write(location / path, file.content)
    action: dict[str, Any] = {
        "path": quote(path),
        "partitionValues": file.partition,
        "size": len(file.content),
        "dataChange": change.data_change and change.kind != "cdc",
    }
    if change.kind == "remove":
        action |= {"deletionTimestamp": table.timestamp_ms(version), "extendedFileMetadata": True}
    if change.kind == "add":
        action |= {"modificationTime": table.timestamp_ms(version), "stats": file.stats}
    if table.is_mapped and change.kind != "cdc":
        action |= {"baseRowId": file.base_row_id, "defaultRowCommitVersion": 0}
    if file.vector is not None:
        action["deletionVector"] = _vector(file, location)
    return {change.kind: action}


def _vector(file: File, location: Path) -> dict[str, Any]:
    assert file.vector is not None
    sizes = {"sizeInBytes": len(file.vector.content), "cardinality": len(file.vector.deleted)}
    if file.vector.inline:
        return {"storageType": "i", "pathOrInlineDv": file.vector.text, **sizes}
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{file.path}{file.vector.deleted}")
    _write(location / f"deletion_vector_{name}.bin", file.vector.stored)
    words = struct.unpack("4s4s4s4s", name.bytes)
    return {"storageType": "u", "pathOrInlineDv": "".join(map(z85, words)), "offset": 1, **sizes}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
