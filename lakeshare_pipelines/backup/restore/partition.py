"""A partition of a Delta table put back by a commit: its files of now go, those of a point come, all others stay."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa

from lakeshare_pipelines.backup.restore.delta import Add, live_adds, log_names, newest_commit, put_commit
from lakeshare_pipelines.backup.restore.estimate import told_of
from lakeshare_pipelines.backup.restore.opening import opened_delta
from lakeshare_pipelines.backup.restore.placed import Placed, placed
from lakeshare_pipelines.backup.restore.records import RestorePlan, RestoreRecord
from lakeshare_pipelines.backup.restore.work import Work
from lakeshare_pipelines.backup.stores import open_store
from lakeshare_pipelines.backup.stores.readers import storage_options
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.tables.z85 import z85_bytes

UUID_CHARS = 20
LEGACY_WRITER = 6
"""Up to this version of writers a protocol has no list of features (Delta PROTOCOL.md, "Protocol Evolution")."""
# What asks nothing of a commit that only brings back files as they were.
BORNE = {
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
    "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "typeWidening", "variantType",
}  # fmt: skip
OF_REMOVE = (
    "path",
    "partitionValues",
    "size",
    "tags",
    "deletionVector",
    "baseRowId",
    "defaultRowCommitVersion",
)
Wanted = Mapping[str, str | None]
Adds = dict[tuple[str, str | None], Add]


def restore_partition(work: Work, wanted: Wanted) -> RestoreRecord:
    """Put a partition of a live Delta table back to what it was in the point; `wanted` has a text for each column.

    Files that are missing are put back at their keys first. Publications stay what they are: recipients read the
    partition with the next run.

    Raises:
        BackupError: the point has no such partition, the table's columns or features are others now, something else
            is at a file's key, or somebody committed meanwhile; the table shows what it did before.
    """
    found = _compared(work, wanted)
    found.part.bring(found.at)
    work.objects, work.size_bytes = found.part.objects, found.part.size_bytes
    version = found.now
    if len(found.actions) > 1:
        version = found.now + 1
        put_commit(work.to, work.root, version, found.actions)
        work.say(f"version {version} of {work.place} has the partition as it was")
    opened = opened_delta(work.to, work.root, version)
    work.notes.append("Recipients read the partition with the next publication of the table.")
    return work.record(work.place, opened, is_part=True)


def plan_of_partition(work: Work, wanted: Wanted) -> RestorePlan:
    """What putting a partition back would do and take; nothing is written.

    Raises:
        BackupError: it would be refused.
    """
    found = _compared(work, wanted)
    comes = sum("add" in action for action in found.actions)
    goes = sum("remove" in action for action in found.actions)
    commit = f"A commit takes {goes:,} files out of the partition and brings {comes:,} back into it."
    steps = [
        f"{found.at.missing.num_rows:,} missing objects are put back; {found.at.there:,} are there and stay.",
        commit if comes or goes else "The partition is what it was: there is no commit.",
        "Recipients read it with the next publication of the table.",
    ]
    return told_of(found.part, found.at.missing, found.at.there, steps, "in_place")


@dataclass(frozen=True)
class _Compared:
    now: int
    part: Work
    at: Placed
    actions: list[dict[str, Any]]


def _compared(work: Work, wanted: Wanted) -> _Compared:
    """The partition in the point beside what it is now."""
    now = newest_commit(log_names(work.store, work.root))
    if now is None:
        raise BackupError(work.place, "no table is there", "Restore the whole table in place.")
    _require_like(work, now)
    copies, stored_root = open_store(work.choice.copies), work.choice.table.stored_root
    then = _of_partition(live_adds(copies, stored_root, work.choice.version), wanted)
    live = _of_partition(live_adds(work.store, work.root, now), wanted)
    if not then:
        told = ", ".join(f"{name}={value}" for name, value in wanted.items())
        raise BackupError(
            f"point {work.choice.point.day}, table {work.choice.table.root}",
            f"it has no files of {told} at version {work.choice.version}",
            "Values are spelt as in the table's log; `lakeshare backup list` tells the other points.",
        )
    part = _part(work, then)
    at = placed(part.choice, work.to, work.root, lambda bucket, key: (bucket, key))
    if at.differing:
        raise BackupError(
            at.differing[0], "something else is there now", "Restore the table to another place with --to."
        )
    return _Compared(now, part, at, _actions(then, live, work.choice.version))


def _part(work: Work, adds: Adds) -> Work:
    """The restore of these files alone."""
    keys = {key for add in adds.values() for key in _keys(work.choice.table.root, add)}
    rows = work.choice.rows
    mine = rows.filter(pa.array([key in keys for key in rows["key"].to_pylist()], pa.bool_()))
    if absent := keys - set(mine["key"].to_pylist()):
        raise BackupError(
            f"point {work.choice.point.day}", f"it does not hold {min(absent)}", "Restore from another point."
        )
    return replace(work, choice=replace(work.choice, rows=mine))


def _keys(root: str, add: Add) -> list[str]:
    """Keys of a data file and of the file of its deletion vector (Delta PROTOCOL.md, "Deletion Vector Descriptor")."""
    keys = [f"{root}/{unquote(add['path'])}"]
    vector = add.get("deletionVector")
    if vector is not None and vector["storageType"] == "u":
        prefix, encoded = vector["pathOrInlineDv"][:-UUID_CHARS], vector["pathOrInlineDv"][-UUID_CHARS:]
        name = f"deletion_vector_{UUID(bytes=z85_bytes(encoded))}.bin"
        keys.append("/".join(part for part in (root, prefix, name) if part))
    return keys


def _of_partition(adds: Adds, wanted: Wanted) -> Adds:
    return {
        identity: add
        for identity, add in adds.items()
        if all(add["partitionValues"].get(name, "") == value for name, value in wanted.items())
    }


def _actions(then: Adds, live: Adds, version: int) -> list[dict[str, Any]]:
    """A commit's actions; only the first, which tells of it, where the partition is what it was."""
    now_ms = int(time.time() * 1000)
    told = {
        "operation": "RESTORE",
        "operationParameters": {"version": str(version)},
        "engineInfo": "lakeshare",
    }
    actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": now_ms, "isBlindAppend": False, **told}}]
    for identity in live.keys() - then.keys():
        said = {name: live[identity].get(name) for name in OF_REMOVE}
        said |= {"deletionTimestamp": now_ms, "dataChange": True, "extendedFileMetadata": True}
        actions.append({"remove": _plain(said)})
    for identity in then.keys() - live.keys():
        actions.append({"add": _plain({**then[identity], "dataChange": True})})
    return actions


def _plain(action: dict[str, Any]) -> dict[str, Any]:
    """As a log's JSON has it: fields without a value are left out, maps of a checkpoint are objects."""
    told = {name: value for name, value in action.items() if value is not None}
    for name in ("partitionValues", "tags"):
        if isinstance(told.get(name), list):
            told[name] = dict(told[name])
    if "deletionVector" in told:
        told["deletionVector"] = {
            name: value for name, value in told["deletionVector"].items() if value is not None
        }
    # Statistics as a structure are a checkpoint's only.
    return {name: value for name, value in told.items() if not name.endswith("_parsed")}


def _require_like(work: Work, now: int) -> None:
    """Refuse a table whose columns changed, or whose features ask more of a commit than files that come back.

    Raises:
        BackupError: says which.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        live = DeltaTable(work.place, now, storage_options(work.to) or None)
        stored = work.choice.copies.location(work.choice.table.stored_root)
        then = DeltaTable(stored, work.choice.version, storage_options(work.choice.copies) or None)
    except (DeltaError, OSError) as error:
        said = str(error).splitlines()[0]
        raise BackupError(
            work.place, f"it does not open: {said}", "Restore the whole table in place."
        ) from error
    if json.loads(live.schema().to_json()) != json.loads(then.schema().to_json()):
        raise BackupError(
            work.place, "its columns changed since", "Restore the whole table to another place."
        )
    if live.metadata().configuration.get("delta.appendOnly") == "true":
        raise BackupError(work.place, "it takes appends only", "Unset delta.appendOnly, then restore.")
    protocol = live.protocol()
    features = set(protocol.writer_features or ())
    strange = features - BORNE if protocol.min_writer_version > LEGACY_WRITER else set()
    if strange:
        raise BackupError(
            work.place,
            f"its features {', '.join(sorted(strange))} ask more of a commit than lakeshare knows",
            "Restore the table to another place, and overwrite the partition from there.",
        )
