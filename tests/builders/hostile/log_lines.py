"""The lines of an answer against the actions of the table's log that they stand for, one by one."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.builders.deletion_vector import relative_path
from tests.builders.delta_log import Action, LogState, changes, commit, local_path, read_state
from tests.builders.protocol_lines import LOG_ONLY, FileLine, Format, Head

DIGESTS = {"parquet": hashlib.md5, "delta": hashlib.sha256}
CARRIED = ("modificationTime", "baseRowId", "defaultRowCommitVersion", "clusteringProvider")
# They speak of files that only who reads the log has.
LOG_PROPERTIES = {
    "delta.checkpointPolicy",
    "delta.enableInCommitTimestamps",
    "delta.inCommitTimestampEnablementTimestamp",
    "delta.inCommitTimestampEnablementVersion",
}


def file_id(fmt: Format, path: str) -> str:
    """The id that a file has in a format (protocol §2.6)."""
    return DIGESTS[fmt](path.encode()).hexdigest()


FileKey = tuple[int, str, str]
"""Version, kind and id of a file line."""


def window_of(
    place: Path, start: int, end: int, fmt: Format, served_as: Callable[[str], str]
) -> list[FileKey]:
    """The file lines that a streaming window has: every data change of its commits."""
    return [
        (version, kind, file_id(fmt, served_as(action["path"])))
        for version, kind, action in changes(place, start, end)
        if kind != "cdc" and action["dataChange"]
    ]


def feed_of(place: Path, start: int, end: int, fmt: Format, served_as: Callable[[str], str]) -> list[FileKey]:
    """The file lines of the change data feed (protocol §1.8)."""
    keys = []
    for version in range(start, end + 1):
        found = list(changes(place, version, version))
        cdc = [(kind, action) for _, kind, action in found if kind == "cdc"]
        inferred = [(kind, action) for _, kind, action in found if kind != "cdc" and action["dataChange"]]
        for kind, action in cdc or ([] if _changed_nothing(commit(place, version)) else inferred):
            keys.append((version, kind, file_id(fmt, served_as(action["path"]))))
    return keys


def later_heads(place: Path, start: int, end: int) -> list[tuple[str, int]]:
    """The metadata and protocol lines behind the head of a window: changes, not what a RESTORE says once more."""
    before = read_state(place, start)
    in_force = {"metaData": before.metadata, "protocol": before.protocol}
    found = []
    for version in range(start + 1, end + 1):
        for kind, told in (pair for action in commit(place, version) for pair in action.items()):
            if kind in in_force and told != in_force[kind]:
                in_force[kind] = told
                found.append((kind, version))
    return found


def _changed_nothing(actions: list[Action]) -> bool:
    """Whether a commit is a MERGE that says it changed no row."""
    for action in actions:
        info = action.get("commitInfo", {})
        if info.get("operation") == "MERGE":
            metrics = info.get("operationMetrics", {})
            return all(
                metrics.get(f"numTargetRows{what}") == "0" for what in ("Inserted", "Updated", "Deleted")
            )
    return False


def same_head(state: LogState, head: Head) -> None:
    """Metadata and protocol of an answer are those of the log, less what only readers of logs need."""
    told, meant = head.metadata, state.metadata
    for field in ("id", "name", "description", "partitionColumns"):
        assert told.get(field) == meant.get(field), field
    if head.format == "parquet":
        return
    assert told.get("createdTime") == meant.get("createdTime")
    kept = {key: value for key, value in state.configuration.items() if key not in LOG_PROPERTIES}
    assert {key: told["configuration"].get(key) for key in kept} == kept
    assert set(told["configuration"]) <= set(state.configuration)
    assert json.loads(told["schemaString"]) == state.schema
    features = set(state.protocol.get("readerFeatures") or ()) - LOG_ONLY
    assert set(head.protocol.get("readerFeatures") or ()) <= features


def same_add(place: Path, add: Action, file: FileLine, head: Head, content: bytes) -> None:
    """A line and the bytes behind its URL are those of an `add` and of the file on the disk."""
    assert content == local_path(place, add["path"]).read_bytes()
    assert file.size == add["size"]
    assert file.partition_values == add["partitionValues"]
    if head.format == "delta":
        for field in CARRIED:
            assert file.action.get(field) == add.get(field), field
        assert (file.action.get("tags") or {}) == (add.get("tags") or {})
    if add.get("stats"):
        _same_statistics(json.loads(add["stats"]), json.loads(file.stats or "{}"))
    _same_vector(place, add.get("deletionVector"), file)


def _same_statistics(meant: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Counts are those of the log, and no column has bounds that has none there."""
    assert told.get("numRecords") == meant.get("numRecords")
    for kind in ("minValues", "maxValues", "nullCount"):
        assert set(told.get(kind) or {}) <= set(meant.get(kind) or {}), kind


def _same_vector(place: Path, vector: Mapping[str, Any] | None, file: FileLine) -> None:
    """Vectors on the wire are absolute or inline, and otherwise those of the log (protocol §2.3)."""
    assert (vector is None) == (file.vector is None)
    if vector is None or file.vector is None:
        return
    for field in ("offset", "sizeInBytes", "cardinality"):
        assert file.vector.get(field) == vector.get(field), field
    if vector["storageType"] == "i":
        assert dict(file.vector) == dict(vector)
        return
    path = vector["pathOrInlineDv"]
    stored = local_path(place, path) if vector["storageType"] == "p" else place / relative_path(path)
    assert stored.is_file()
