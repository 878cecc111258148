"""What Nessie tells, as records."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True)
class Reference:
    """A branch or tag and the commit it is at."""

    name: str
    hash: str
    type: Literal["BRANCH", "TAG"]


@dataclass(frozen=True)
class Branch:
    """A branch with what a janitor asks about it; `committed_at` is None for a branch at the empty root."""

    name: str
    hash: str
    committed_at: datetime | None
    ahead: int
    behind: int


@dataclass(frozen=True)
class TableContent:
    """Which state of an Iceberg table a commit holds."""

    id: str
    metadata_location: str
    snapshot_id: int
    schema_id: int
    spec_id: int
    sort_order_id: int


@dataclass(frozen=True)
class Commit:
    """One commit of a history."""

    hash: str
    message: str
    properties: Mapping[str, str]
    committed_at: datetime
    parent: str


@dataclass(frozen=True)
class Merge:
    """What a merge did: `head` is the target's commit after it, or would be after a dry run."""

    applied: bool
    head: str


def branch_from(reference: Mapping[str, Any]) -> Branch:
    """A branch from a reference fetched with all its metadata."""
    metadata = reference.get("metadata") or {}
    head = metadata.get("commitMetaOfHEAD")
    return Branch(
        name=reference["name"],
        hash=reference["hash"],
        committed_at=datetime.fromisoformat(head["commitTime"]) if head else None,
        ahead=metadata.get("numCommitsAhead") or 0,
        behind=metadata.get("numCommitsBehind") or 0,
    )


def content_from(content: Mapping[str, Any]) -> TableContent:
    """The state of an Iceberg table from a content as the API tells it."""
    return TableContent(
        id=content["id"],
        metadata_location=content["metadataLocation"],
        snapshot_id=content["snapshotId"],
        schema_id=content["schemaId"],
        spec_id=content["specId"],
        sort_order_id=content["sortOrderId"],
    )


def commit_from(entry: Mapping[str, Any]) -> Commit:
    """A commit from an entry of a history."""
    meta = entry["commitMeta"]
    return Commit(
        hash=meta["hash"],
        message=meta["message"],
        # Each property is a list of values on the wire; ours have one.
        properties={name: values[0] for name, values in meta.get("allProperties", {}).items()},
        committed_at=datetime.fromisoformat(meta["commitTime"]),
        parent=meta["parentCommitHashes"][0],
    )
