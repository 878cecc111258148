"""Delta logs written file by file, as any writer might leave them: commits, compactions, checkpoints of all kinds."""

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Action = dict[str, Any]
TEXTS = pa.map_(pa.string(), pa.string())
VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
PROTOCOL_TYPE = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", pa.list_(pa.string())),
        ("writerFeatures", pa.list_(pa.string())),
    ]
)
METADATA_TYPE = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", TEXTS),
        ("createdTime", pa.int64()),
    ]
)
ADD_FIELDS = [
    ("path", pa.string()),
    ("partitionValues", TEXTS),
    ("size", pa.int64()),
    ("modificationTime", pa.int64()),
    ("dataChange", pa.bool_()),
    ("stats", pa.string()),
    ("tags", TEXTS),
    ("deletionVector", VECTOR),
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
    ("clusteringProvider", pa.string()),
]
REMOVE_TYPE = pa.struct(
    [("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]
)
SIDECAR_TYPE = pa.struct(
    [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())]
)
PROTOCOL: Action = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
COLUMNS = {"day": "date", "n": "long"}


def metadata(columns: Mapping[str, Any] = COLUMNS, *partitions: str, **different: Any) -> Action:
    """The `metaData` of a table with these columns."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    told = {
        "id": "11111111-2222-3333-4444-555555555555",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions),
        "configuration": {},
    }
    return {"metaData": told | different}


def add(path: str, **different: Any) -> Action:
    """The `add` of a file that need not exist."""
    told = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 7, "dataChange": True}
    return {"add": told | different}


def remove(path: str, **different: Any) -> Action:
    """The `remove` of a file."""
    return {"remove": {"path": path, "dataChange": True} | different}


class WrittenLog:
    """The log of a table below `root`, whose data files need not exist."""

    def __init__(self, root: Path, stats_type: pa.StructType | None = None) -> None:
        self.root, self.folder = root, root / "_delta_log"
        self.folder.mkdir(parents=True)
        parsed = [] if stats_type is None else [("stats_parsed", stats_type)]
        self._schema = pa.schema(
            [
                ("protocol", PROTOCOL_TYPE),
                ("metaData", METADATA_TYPE),
                ("add", pa.struct([*ADD_FIELDS, *parsed])),
                ("remove", REMOVE_TYPE),
                ("sidecar", SIDECAR_TYPE),
            ]
        )

    def commit(self, version: int, *actions: Action) -> Path:
        """One commit."""
        return self._json(f"{version:020}.json", actions)

    def first(self, *actions: Action) -> Path:
        """Commit 0 of a table of two columns."""
        return self.commit(0, PROTOCOL, metadata(), *actions)

    def compacted(self, first: int, last: int, *actions: Action) -> Path:
        """A file that stands for several commits."""
        return self._json(f"{first:020}.{last:020}.compacted.json", actions)

    def checkpoint(self, version: int, *actions: Action) -> Path:
        """A classic checkpoint in one file."""
        return self._parquet(self.folder / f"{version:020}.checkpoint.parquet", actions)

    def part(self, version: int, number: int, count: int, *actions: Action) -> Path:
        """One part of a checkpoint in several files."""
        return self._parquet(
            self.folder / f"{version:020}.checkpoint.{number:010}.{count:010}.parquet", actions
        )

    def v2(
        self, version: int, kind: str, *actions: Action, sidecars: Sequence[Sequence[Action]] = ()
    ) -> Path:
        """A checkpoint of version 2, `kind` json, parquet or classic, with its files in sidecars or at its top."""
        named = [self.sidecar(f"{uuid.uuid4()}.parquet", *sidecar) for sidecar in sidecars]
        every = ({"checkpointMetadata": {"version": version}}, *actions, *named)
        if kind == "classic":
            return self.checkpoint(version, *every)
        name = f"{version:020}.checkpoint.{uuid.uuid4()}.{kind}"
        if kind == "json":
            return self._json(name, every)
        return self._parquet(self.folder / name, every)

    def sidecar(self, name: str, *actions: Action) -> Action:
        """A file of a checkpoint of version 2, and the action that names it there."""
        path = self.folder / "_sidecars" / name
        path.parent.mkdir(exist_ok=True)
        self._parquet(path, actions)
        return {"sidecar": {"path": name, "sizeInBytes": path.stat().st_size, "modificationTime": 1}}

    def announce(self, **fields: Any) -> None:
        """`_last_checkpoint`."""
        (self.folder / "_last_checkpoint").write_text(json.dumps(fields))

    def _json(self, name: str, actions: Sequence[Action]) -> Path:
        path = self.folder / name
        path.write_text("".join(json.dumps(action) + "\n" for action in actions), "utf-8")
        return path

    def _parquet(self, path: Path, actions: Sequence[Action]) -> Path:
        columns = {
            kind.name: pa.array([_row(action.get(kind.name), kind.type) for action in actions], kind.type)
            for kind in self._schema
        }
        pq.write_table(pa.table(columns, schema=self._schema), path)
        return path


def _row(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as Arrow takes it: maps as pairs."""
    if pa.types.is_map(kind) and value is not None:
        return list(value.items())
    if pa.types.is_struct(kind) and value is not None:
        return {member.name: _row(value.get(member.name), member.type) for member in kind}
    return value
