"""A Delta table's log, read in the simplest way there is: every commit in order, or a checkpoint and what follows.

For tables on the local disk. It shares no code with the server: the tests compare the server's lines with it.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

Action = dict[str, Any]
MAPS = frozenset({"partitionValues", "configuration", "options", "tags"})


@dataclass(frozen=True)
class LogState:
    """A table at one version: its protocol, its metadata, and the `add` of every file."""

    version: int
    protocol: Action
    metadata: Action
    adds: tuple[Action, ...]

    @property
    def schema(self) -> dict[str, Any]:
        return json.loads(self.metadata["schemaString"])

    @property
    def columns(self) -> list[str]:
        return [field["name"] for field in self.schema["fields"]]

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}


def latest_version(table: Path) -> int:
    """The newest version with a commit file."""
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def read_state(table: Path, version: int | None = None) -> LogState:
    """The table at a version, the newest by default."""
    at = latest_version(table) if version is None else version
    first, actions = _start(table / "_delta_log", at)
    for later in range(first, at + 1):
        actions += commit(table, later)
    return _reconciled(at, actions)


def commit(table: Path, version: int) -> list[Action]:
    """The actions of one commit, as it has them."""
    path = table / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def changes(table: Path, start: int, end: int) -> Iterator[tuple[int, str, Action]]:
    """What happened to files from one commit to another: `(version, add|remove|cdc, action)`."""
    for version in range(start, end + 1):
        for line in commit(table, version):
            for kind in ("add", "remove", "cdc"):
                if kind in line:
                    yield version, kind, line[kind]


def file_key(action: Mapping[str, Any]) -> tuple[str, str]:
    """What makes a logical file: its path and its deletion vector."""
    vector = action.get("deletionVector")
    if not vector:
        return action["path"], ""
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def local_path(table: Path, path: str) -> Path:
    """Where a path of the log, relative or absolute, percent-encoded as it is, lies on the disk."""
    parsed = urlparse(path)
    if parsed.scheme in ("", "file"):
        # Not what `urlparse` says of the path: a file's name may hold `;` and, encoded, all else.
        bare = path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")
        return table / unquote(bare)
    raise AssertionError(f"not on this disk: {path}")


def _start(log: Path, at: int) -> tuple[int, list[Action]]:
    """The first commit to read, and the actions of the checkpoint in front of it."""
    if all((log / f"{version:020}.json").is_file() for version in range(at + 1)):
        return 0, []
    found = {
        int(path.name[:20]): path for path in log.glob("[0-9]*.checkpoint*") if int(path.name[:20]) <= at
    }
    newest = max(found, default=None)
    assert newest is not None, f"{log} has a gap below version {at} and no checkpoint"
    parts = sorted(log.glob(f"{newest:020}.checkpoint*"))
    return newest + 1, [action for part in parts for action in _checkpoint(log, part)]


def _checkpoint(log: Path, part: Path) -> Iterator[Action]:
    if part.suffix == ".json":
        actions = [json.loads(line) for line in part.read_text("utf-8").splitlines()]
    else:
        actions = [_told(row) for row in pq.read_table(part).to_pylist()]
    for action in actions:
        if "sidecar" in action:
            yield from _checkpoint(log, log / "_sidecars" / action["sidecar"]["path"])
        else:
            yield action


def _told(value: Any) -> Any:
    """A value of a parquet row as the JSON of a commit would tell it: maps as objects, nothing for null."""
    if not isinstance(value, dict):
        return value
    given = {key: inner for key, inner in value.items() if inner is not None}
    return {key: dict(inner) if key in MAPS else _told(inner) for key, inner in given.items()}


def _reconciled(version: int, actions: list[Action]) -> LogState:
    protocol: Action | None = None
    metadata: Action | None = None
    adds: dict[tuple[str, str], Action] = {}
    for action in actions:
        protocol = action.get("protocol") or protocol
        metadata = action.get("metaData") or metadata
        if "remove" in action:
            adds.pop(file_key(action["remove"]), None)
        if "add" in action:
            adds[file_key(action["add"])] = action["add"]
    assert protocol is not None, f"no protocol at version {version}"
    assert metadata is not None, f"no metadata at version {version}"
    return LogState(version, protocol, metadata, tuple(adds.values()))
