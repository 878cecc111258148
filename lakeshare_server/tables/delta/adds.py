"""`add` actions as one Arrow table, whether they came from commits or from a checkpoint.

Texts are those of the log: paths encoded, partition values and statistics not yet typed.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.locations import local_path

Action = dict[str, Any]
# Column, type, and where the log has it.
PLAIN: tuple[tuple[str, pa.DataType, str], ...] = (
    ("path", pa.string(), "path"),
    ("size", pa.int64(), "size"),
    ("modification_time", pa.int64(), "modificationTime"),
    ("stats", pa.string(), "stats"),
    ("base_row_id", pa.int64(), "baseRowId"),
    ("default_row_commit_version", pa.int64(), "defaultRowCommitVersion"),
    ("clustering_provider", pa.string(), "clusteringProvider"),
)
VECTOR: tuple[tuple[str, pa.DataType, str], ...] = (
    ("dv_storage", pa.string(), "storageType"),
    ("dv_path", pa.string(), "pathOrInlineDv"),
    ("dv_offset", pa.int64(), "offset"),
    ("dv_size", pa.int64(), "sizeInBytes"),
    ("dv_cardinality", pa.int64(), "cardinality"),
)


def from_actions(actions: Sequence[Action], partition_columns: Sequence[str]) -> pa.Table:
    """The actions of commits; `partition_columns` are the names the log uses for them.

    Raises:
        KeyError, TypeError, pa.ArrowInvalid: an action is not what the specification says.
    """
    columns: dict[str, pa.Array] = {
        name: pa.array([action.get(key) for action in actions], kind) for name, kind, key in PLAIN
    }
    vectors = [action.get("deletionVector") or {} for action in actions]
    for name, kind, key in VECTOR:
        columns[name] = pa.array([vector.get(key) for vector in vectors], kind)
    columns["tags"] = pa.array([_tags(action.get("tags")) for action in actions], pa.string())
    values = [action.get("partitionValues") or {} for action in actions]
    columns["partition_values"] = _struct(
        partition_columns,
        len(actions),
        lambda column: pa.array([value.get(column) for value in values], pa.string()),
    )
    return pa.table(columns)


def from_checkpoint(adds: pa.StructArray, partition_columns: Sequence[str]) -> pa.Table:
    """The `add` column of a checkpoint, its rows that are not null; `stats_parsed` is handled by the caller."""
    count = len(adds)
    columns = {name: _member(adds, key, kind) for name, kind, key in PLAIN}
    vector = _member(adds, "deletionVector", None)
    for name, kind, key in VECTOR:
        columns[name] = pa.nulls(count, kind) if vector is None else _member(vector, key, kind)
    columns["tags"] = _tag_texts(_member(adds, "tags", None), count)
    values = _member(adds, "partitionValues", None)
    columns["partition_values"] = _struct(
        partition_columns,
        count,
        lambda column: pa.nulls(count, pa.string()) if values is None else _looked_up(values, column),
    )
    return pa.table(columns)


def keys_of(adds: pa.Table) -> list[tuple[str, str | None]]:
    """What tells logical files apart: the path and the deletion vector."""
    paths = [file_name(path) for path in adds.column("path").to_pylist()]
    return list(zip(paths, vector_ids(adds).to_pylist(), strict=True))


def key_of(action: Action) -> tuple[str, str | None]:
    """The same, for an action of a commit."""
    return file_name(action["path"]), vector_id(action.get("deletionVector"))


def file_name(path: str) -> str:
    """A path as the log has it, in one spelling: absolute ones are written in several ways."""
    return local_path(unquote(path)) if path.startswith(("/", "file:")) else path


def vector_ids(adds: pa.Table) -> pa.Array:
    """Per file the unique id of its deletion vector, null without one ("Deletion Vector Descriptor Schema")."""
    storage = column_of(adds, "dv_storage")
    offset = pc.cast(column_of(adds, "dv_offset"), pa.string())
    at = pc.fill_null(pc.binary_join_element_wise("@", offset, ""), "")
    return pc.binary_join_element_wise(storage, column_of(adds, "dv_path"), at, "")


def vector_id(vector: Action | None) -> str | None:
    """The unique id of a descriptor as the log has it."""
    if not vector:
        return None
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


def _member(values: pa.StructArray, name: str, kind: pa.DataType | None) -> Any:
    if values.type.get_field_index(name) < 0:
        return None if kind is None else pa.nulls(len(values), kind)
    member = pc.struct_field(values, [name])
    return member if kind is None else pc.cast(member, kind)


def _looked_up(values: pa.MapArray, column: str) -> pa.Array:
    name = pa.scalar(column, values.type.key_type)
    first, end = values.offsets[0].as_py(), values.offsets[len(values)].as_py()
    keys = values.keys.slice(first, end - first)
    # With one partition column no map has to be searched: keys of a map differ, so each has just this one.
    is_alone = end - first == len(values) and not values.null_count
    if is_alone and pc.all(pc.equal(keys, name), min_count=0).as_py():
        return pc.cast(values.items.slice(first, end - first), pa.string())
    return pc.cast(pc.map_lookup(values, name, "first"), pa.string())


def _struct(columns: Sequence[str], count: int, values: Callable[[str], pa.Array]) -> pa.StructArray:
    if not columns:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays([values(column) for column in columns], list(columns))


def _tags(tags: object) -> str | None:
    return json.dumps(tags, separators=(",", ":"), ensure_ascii=False) if isinstance(tags, dict) else None


def _tag_texts(tags: pa.MapArray | None, count: int) -> pa.Array:
    if tags is None or tags.null_count == count:
        return pa.nulls(count, pa.string())
    return pa.array([_tags(None if tag is None else dict(tag)) for tag in tags.to_pylist()], pa.string())
