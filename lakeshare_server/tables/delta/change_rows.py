"""What commits did to files, as rows of the index of changes: a file's place, its ids, and the words of its lines.

The columns of lines are those of `tables.lines`; `kind` says whose words they are. What changed no data has no row:
recipients never hear of it.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from lakeshare_server.tables.delta.adds import vector_id
from lakeshare_server.tables.delta.commits import Commit
from lakeshare_server.tables.delta.partitions import WITH_EMPTY_VALUES
from lakeshare_server.tables.delta.vectors import vector_paths
from lakeshare_server.tables.lines import LINE_COLUMNS, file_ids
from lakeshare_server.tables.locations import resolve_names

Action = dict[str, Any]
ADD, REMOVE, CDC = 0, 1, 2
COLUMNS = (
    ("version", pa.int64()),
    ("kind", pa.int8()),
    ("in_feed", pa.bool_()),
    ("path", pa.string()),
    ("size", pa.int64()),
    *((name, pa.string()) for name in LINE_COLUMNS),
)
PASSED_ON = ("baseRowId", "defaultRowCommitVersion", "tags", "clusteringProvider")
MERGE_COUNTS = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True)
class FileChange:
    """One action of a commit; `in_feed` tells whether the change data feed has it, too."""

    version: int
    kind: int
    in_feed: bool
    action: Action
    committed_ms: int


def file_changes(commit: Commit, removes: Sequence[Action]) -> Iterator[FileChange]:
    """What a commit did to data; `removes` are its own, as whole as the log can make them."""
    inferred = not commit.cdc and not _is_merge_of_nothing(commit)
    for kind, actions in ((ADD, commit.adds), (REMOVE, removes)):
        for action in actions:
            if changes_data(action):
                yield FileChange(commit.last, kind, inferred, action, commit.modified_ms)
    for action in commit.cdc:
        yield FileChange(commit.last, CDC, True, action, commit.modified_ms)


def changes_data(action: Action) -> bool:
    """Whether rows change with a file: those that OPTIMIZE writes anew stay as they are."""
    return action.get("dataChange") is not False


def change_table(root: str, changes: Sequence[FileChange], partition_types: Mapping[str, str]) -> pa.Table:
    """The rows of the changes; `partition_types` are by the names the log uses for partition columns.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, TableFilesMissing: an action is not what the specification
            says.
    """
    names = pa.array([change.action["path"] for change in changes], pa.string())
    if names.null_count:
        raise ValueError("a file without a path")
    vectors = [change.action.get("deletionVector") or {} for change in changes]
    columns = [
        pa.array([change.version for change in changes], pa.int64()),
        pa.array([change.kind for change in changes], pa.int8()),
        pa.array([change.in_feed for change in changes], pa.bool_()),
        resolve_names(root, names),
        pa.array([change.action["size"] for change in changes], pa.int64()),
        file_ids(names, hashlib.md5),
        file_ids(names, hashlib.sha256),
        pa.array([_common(change, partition_types) for change in changes], pa.string()),
        pa.array([_rest(change) for change in changes], pa.string()),
        _vector_paths(root, vectors),
        pa.array([_vector_id(vector) for vector in vectors], pa.string()),
        pa.array([_vector_rest(vector) for vector in vectors], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(COLUMNS)))


def _is_merge_of_nothing(commit: Commit) -> bool:
    """A MERGE that rewrote files without touching a row (protocol §1.8)."""
    metrics = commit.info.get("operationMetrics") or {}
    return commit.info.get("operation") == "MERGE" and all(metrics.get(name) == "0" for name in MERGE_COUNTS)


def _common(change: FileChange, partition_types: Mapping[str, str]) -> str:
    """`partitionValues`, `size` and `stats`: what both formats say in the same words."""
    action = change.action
    # Spark leaves nulls out of some actions: clients take a null that is there for sure.
    logged = action.get("partitionValues") or {}
    values = {
        column: None if logged.get(column) == "" and kind not in WITH_EMPTY_VALUES else logged.get(column)
        for column, kind in partition_types.items()
    }
    fields: Action = {"partitionValues": values, "size": action["size"]}
    stats = action.get("stats")
    if change.kind == ADD and stats and _counts_rows(stats):
        fields["stats"] = stats
    return _members(fields)


def _counts_rows(stats: str) -> bool:
    """Whether readers can use statistics; as in snapshots, those without a row count go out with no file."""
    try:
        rows = orjson.loads(stats)["numRecords"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return False
    return isinstance(rows, int) and rows >= 0


def _rest(change: FileChange) -> str:
    """What only the delta format says."""
    action = change.action
    fields: Action = {"dataChange": change.kind != CDC}
    if change.kind == ADD:
        fields["modificationTime"] = action.get("modificationTime", change.committed_ms)
    elif change.kind == REMOVE:
        fields["deletionTimestamp"] = action.get("deletionTimestamp", change.committed_ms)
        fields["extendedFileMetadata"] = True
    fields.update({name: action[name] for name in PASSED_ON if action.get(name) is not None})
    vector = action.get("deletionVector")
    if vector and vector["storageType"] == "i":
        inline = {"storageType": "i", "pathOrInlineDv": vector["pathOrInlineDv"], **_vector_size(vector)}
        fields["deletionVector"] = inline
    return "," + _members(fields)


def _vector_paths(root: str, vectors: Sequence[Action]) -> pa.Array:
    described = {
        "dv_storage": pa.array([vector.get("storageType") for vector in vectors], pa.string()),
        "dv_path": pa.array([vector.get("pathOrInlineDv") for vector in vectors], pa.string()),
    }
    return vector_paths(root, pa.table(described))


def _vector_id(vector: Action) -> str | None:
    unique = vector_id(vector) if _is_stored(vector) else None
    return None if unique is None else hashlib.sha256(unique.encode()).hexdigest()


def _vector_rest(vector: Action) -> str | None:
    """What follows the URL of a deletion vector, with the quote that ends the URL."""
    return '",' + _members(_vector_size(vector)) + "}" if _is_stored(vector) else None


def _is_stored(vector: Action) -> bool:
    return bool(vector) and vector["storageType"] != "i"


def _vector_size(vector: Action) -> Action:
    offset = vector.get("offset")
    size: Action = {} if offset is None else {"offset": offset}
    return {**size, "sizeInBytes": vector["sizeInBytes"], "cardinality": vector["cardinality"]}


def _members(fields: Action) -> str:
    """The inside of a JSON object."""
    return orjson.dumps(fields).decode()[1:-1].replace("\x7f", "\\u007f")
