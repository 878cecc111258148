"""The model server's tables as Delta tables on the local disk, for our own server to serve."""

import json
import os
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakeshare_server.access.authentication import write_profile
from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from tests.builders.sharing import Provider
from tests.builders.waiting import wait_until
from tests.fakes.model_tables import Change, File, ModelTable, the_hidden_tables, the_tables, z85


@dataclass(frozen=True)
class ModelRecipients:
    """Tokens for what `share_model_tables` shares."""

    token: str
    foreign_token: str
    expired_token: str


def share_model_tables(provider: Provider, folder: Path, *beside: SharedTable) -> ModelRecipients:
    """Share the model's tables by our own server as the model server shares them; `beside` go into the share alpha."""
    shared: dict[str, list[SharedTable]] = {"alpha": list(beside)}
    for table in (*the_tables(), *the_hidden_tables()):
        name = f"{table.schema}.{table.name}"
        provider.follow(name, write_delta(table, folder / table.name))
        shared.setdefault(table.share, []).append(
            SharedTable(table.schema, table.name, name, history=table.has_history)
        )
    apply_shares(provider.catalog, [DeclaredShare(name, tuple(tables)) for name, tables in shared.items()])
    own = tuple(sorted({table.share for table in the_tables()}))
    ends = datetime.now(UTC) + timedelta(seconds=1)
    expired = provider.recipient("expired", shares=own, expires_at=ends)
    wait_until(lambda: datetime.now(UTC) > ends)
    return ModelRecipients(
        provider.recipient(shares=own), provider.recipient("eve", shares=("gamma",)), expired
    )


def profile_file(path: Path, endpoint: str, token: str) -> str:
    """Write a profile; returns its path."""
    write_profile(path, endpoint, token, datetime.now(UTC) + timedelta(days=1))
    return str(path)


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
