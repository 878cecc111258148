"""Checkpoints: classic, in several parts, and of version 2 with sidecars (Delta's PROTOCOL.md, "Checkpoints")."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakeshare_server.errors import StoreMissing, TableFilesMissing
from lakeshare_server.stores import Stores
from lakeshare_server.tables.delta.commits import parse_commit
from lakeshare_server.tables.delta.log import LOG, Checkpoint

Action = dict[str, Any]
# Other actions stand in rows of their own: a checkpoint of hardly any is sliced at them, others are copied.
FEW_NULLS = 8
SMALL = ("protocol", "metaData", "sidecar")
ADD_FIELDS = (
    "path",
    "partitionValues",
    "size",
    "modificationTime",
    "stats",
    "stats_parsed",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
    "clusteringProvider",
)


@dataclass
class CheckpointState:
    """What a checkpoint says: `adds` are columns of `add` structs, `json_adds` actions of a JSON checkpoint."""

    protocol: Action | None = None
    metadata: Action | None = None
    adds: list[pa.StructArray] = field(default_factory=list)
    json_adds: list[Action] = field(default_factory=list)
    sidecars: list[Action] = field(default_factory=list)

    @property
    def files(self) -> int:
        """How many data files it names."""
        return sum(len(adds) for adds in self.adds) + len(self.json_adds)


def read_checkpoint(stores: Stores, root: str, checkpoint: Checkpoint) -> CheckpointState:
    """The state at a checkpoint, sidecars included.

    Raises:
        TableFilesMissing: a file of it is missing or cannot be read.
    """
    state = CheckpointState()
    for part in checkpoint.parts:
        _read_into(stores, root, part.location, state)
    for sidecar in state.sidecars:
        _read_sidecar(stores, root, sidecar, state)
    return _whole(root, checkpoint, state)


def read_checkpoint_head(stores: Stores, root: str, checkpoint: Checkpoint) -> CheckpointState:
    """Like `read_checkpoint`, with the protocol and the metadata only; columns of files are not read.

    Raises:
        TableFilesMissing: as `read_checkpoint` says.
    """
    state = CheckpointState()
    for part in checkpoint.parts:
        _read_into(stores, root, part.location, state, with_files=False)
    return _whole(root, checkpoint, state)


def _read_sidecar(stores: Stores, root: str, sidecar: Action, state: CheckpointState) -> None:
    """Take over the files it names; anything else that is in it, other sidecars too, does not belong there."""
    path = sidecar.get("path") if isinstance(sidecar, dict) else None
    if not isinstance(path, str):
        raise TableFilesMissing(root, f"a sidecar in its log has the path {path!r}")
    location = path if "/" in path else f"{root}/{LOG}/_sidecars/{path}"
    said = CheckpointState()
    _read_into(stores, root, location, said)
    state.adds += said.adds
    state.json_adds += said.json_adds


def _whole(root: str, checkpoint: Checkpoint, state: CheckpointState) -> CheckpointState:
    if state.protocol is None or state.metadata is None:
        raise TableFilesMissing(
            root, f"the checkpoint of version {checkpoint.version} has no protocol or metadata"
        )
    return state


def _read_into(
    stores: Stores, root: str, location: str, state: CheckpointState, *, with_files: bool = True
) -> None:
    name = location.rsplit("/", 1)[-1]
    try:
        if name.endswith(".json"):
            _read_json(stores.read(location), state)
        else:
            _read_parquet(stores, location, state, with_files)
    except StoreMissing as error:
        raise TableFilesMissing(root, f"{name} of its log has vanished") from error
    except (pa.ArrowException, orjson.JSONDecodeError, OSError, AttributeError, TypeError) as error:
        raise TableFilesMissing(root, f"{name} of its log is not whole") from error


def _read_json(body: bytes, state: CheckpointState) -> None:
    said = parse_commit(body, 0, 0, 0)
    state.protocol = said.protocol or state.protocol
    state.metadata = said.metadata or state.metadata
    state.json_adds += said.adds
    state.sidecars += said.sidecars


def _read_parquet(stores: Stores, location: str, state: CheckpointState, with_files: bool) -> None:
    with pq.ParquetFile(stores.open(location)) as file:
        columns = list(_columns(file.schema_arrow, with_files))
        table = file.read(columns)
    for name in SMALL:
        for row in _rows(table, name):
            if name == "sidecar":
                state.sidecars.append(row)
            else:
                setattr(state, "protocol" if name == "protocol" else "metadata", row)
    if "add" in table.column_names:
        for chunk in table.column("add").chunks:
            state.adds += _valid(chunk)


def _valid(adds: pa.StructArray) -> list[pa.StructArray]:
    """The rows that are not null, without copying them where few others are in between."""
    if adds.null_count > FEW_NULLS:
        return [adds.filter(pc.is_valid(adds))] if adds.null_count < len(adds) else []
    between = [-1, *pc.indices_nonzero(pc.is_null(adds)).to_pylist(), len(adds)]
    runs = [adds.slice(before + 1, after - before - 1) for before, after in pairwise(between)]
    return [run for run in runs if len(run)]


def _columns(schema: pa.Schema, with_files: bool) -> Iterator[str]:
    for name in SMALL:
        if name in schema.names:
            yield name
    if with_files and "add" in schema.names:
        there = {member.name for member in schema.field("add").type}
        yield from (f"add.{name}" for name in ADD_FIELDS if name in there)


def _rows(table: pa.Table, name: str) -> Iterator[Action]:
    if name not in table.column_names:
        return
    for chunk in table.column(name).chunks:
        for row in chunk.filter(pc.is_valid(chunk)).to_pylist(maps_as_pydicts="lossy"):
            yield _without_nulls(row)


def _without_nulls(row: Mapping[str, Any]) -> Action:
    """A row as the JSON of a commit would have it: nulls are left out."""
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if value is not None
    }
