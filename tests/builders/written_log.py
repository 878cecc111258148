"""Delta logs written by hand, commit by commit: what no library here would write. There are no data files."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Action = dict[str, Any]
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "p", "type": "string", "nullable": True, "metadata": {}},
    ],
}
FEED = {"delta.enableChangeDataFeed": "true"}
FIRST_MS = 1_700_000_000_000


class WrittenLog:
    """A table whose log is made here; each commit's file is a second younger than the one before."""

    def __init__(self, location: Path) -> None:
        self.location = location
        self.folder = location / "_delta_log"
        self.folder.mkdir(parents=True)
        self.versions = 0

    def commit(self, *actions: Action, modified_ms: int | None = None) -> int:
        """The next version."""
        version = self.versions
        path = self.folder / f"{version:020}.json"
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        at_ms = FIRST_MS + version * 1000 if modified_ms is None else modified_ms
        os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))
        self.versions += 1
        return version

    def forget(self, *versions: int) -> None:
        """Lose commits."""
        for version in versions:
            (self.folder / f"{version:020}.json").unlink()


def protocol(reader: int = 1, writer: int = 4, features: tuple[str, ...] = ()) -> Action:
    """A protocol; with features it is of versions 3 and 7."""
    if not features:
        return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}
    readers = [one for one in features if one in ("deletionVectors", "columnMapping")]
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": {**versions, "readerFeatures": readers, "writerFeatures": list(features)}}


def metadata(
    configuration: Mapping[str, str] = FEED,
    *,
    partitions: tuple[str, ...] = ("p",),
    schema: Mapping[str, Any] = SCHEMA,
    **given: Any,
) -> Action:
    """The metadata of a table of numbers and texts, partitioned by the texts."""
    return {
        "metaData": {
            "id": "a-table",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": list(partitions),
            "configuration": dict(configuration),
            "createdTime": 5,
            **given,
        }
    }


def add(path: str, **given: Any) -> Action:
    """An add of one row."""
    return {
        "add": {
            "path": path,
            "partitionValues": {"p": "a b"},
            "size": 100,
            "modificationTime": 7,
            "dataChange": True,
            "stats": '{"numRecords":1}',
            **given,
        }
    }


def remove(path: str, **given: Any) -> Action:
    """A remove as writers of today make it."""
    whole = {"extendedFileMetadata": True, "partitionValues": {"p": "a b"}, "size": 100}
    return {"remove": {"path": path, "deletionTimestamp": 8, "dataChange": True, **whole, **given}}


def bare_remove(path: str) -> Action:
    """A remove as writers of old made it."""
    return {"remove": {"path": path, "deletionTimestamp": 8, "dataChange": True}}


def cdc(path: str, **given: Any) -> Action:
    """A file of row-level changes."""
    return {"cdc": {"path": path, "partitionValues": {"p": "a b"}, "size": 50, "dataChange": False, **given}}


def info(operation: str, **given: Any) -> Action:
    """What a commit says of itself."""
    return {"commitInfo": {"timestamp": 9, "operation": operation, **given}}
