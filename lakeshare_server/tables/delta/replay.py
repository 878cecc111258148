"""Action reconciliation: the protocol, the metadata and the live files of a table at one version.

Delta's PROTOCOL.md, "Action Reconciliation": of each path with its deletion vector the newest action counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import Stores
from lakeshare_server.tables.arrays import column_of
from lakeshare_server.tables.delta.adds import from_actions, from_checkpoint, key_of, keys_of
from lakeshare_server.tables.delta.checkpoint import CheckpointState, read_checkpoint
from lakeshare_server.tables.delta.commits import Commit, read_commits
from lakeshare_server.tables.delta.log import LogListing, Segment, last_checkpoint
from lakeshare_server.tables.delta.mapping import physical_partition_columns
from lakeshare_server.tables.delta.stats import stats_texts
from lakeshare_server.tables.delta_schema import parse_schema

Action = dict[str, Any]
Key = tuple[str, str | None]
# What reading an action ends in that has other fields, or fields of other types.
NOT_AS_SPECIFIED = (
    *(AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError),
    pa.ArrowException,
)


@dataclass(frozen=True)
class TableState:
    """A table at a version: actions as the log has them, live files as `adds` of tables.delta.adds."""

    version: int
    protocol: Action
    metadata: Action
    adds: pa.Table
    # Of the commit of this very version; None when only a checkpoint was read.
    commit: Commit | None


def replay(stores: Stores, listing: LogListing, version: int) -> TableState:
    """The state at a version, by the first way through the log that can be read.

    Raises:
        TableFilesMissing: there is none.
    """
    return listing.read(version, lambda segment: _state(stores, listing.root, segment))


def _state(stores: Stores, root: str, segment: Segment) -> TableState:
    commits = read_commits(stores, root, segment.deltas)
    checkpoint = None
    if segment.checkpoint is not None:
        checkpoint = read_checkpoint(stores, root, segment.checkpoint)
        _require_as_announced(stores, root, segment.checkpoint.version, checkpoint)
    protocol = _newest(
        [commit.protocol for commit in commits], None if checkpoint is None else checkpoint.protocol
    )
    metadata = _newest(
        [commit.metadata for commit in commits], None if checkpoint is None else checkpoint.metadata
    )
    if protocol is None or metadata is None:
        raise TableFilesMissing(root, "its log has no protocol or no metadata")
    _require_head(root, protocol, metadata)
    try:
        adds = _live(commits, checkpoint, physical_partition_columns(metadata))
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "a file's entry in its log is not whole") from error
    if adds.column("path").null_count or adds.column("size").null_count:
        raise TableFilesMissing(root, "a file's entry in its log has no path or no size")
    newest = commits[0] if commits and commits[0].first == segment.version else None
    return TableState(segment.version, protocol, metadata, adds, newest)


def _require_head(root: str, protocol: Action, metadata: Action) -> None:
    try:
        names = {field.name for field in parse_schema(metadata["schemaString"])}
        strays = [name for name in metadata.get("partitionColumns") or () if name not in names]
        versions = [int(protocol.get(name, 1)) for name in ("minReaderVersion", "minWriterVersion")]
        is_whole = isinstance(metadata["id"], str) and not strays and min(versions) >= 1
    except NOT_AS_SPECIFIED as error:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole") from error
    if not is_whole:
        raise TableFilesMissing(root, "the protocol or the metadata in its log is not whole")


def _newest(actions: Sequence[Action | None], otherwise: Action | None) -> Action | None:
    return next((action for action in actions if action is not None), otherwise)


def _require_as_announced(stores: Stores, root: str, version: int, state: CheckpointState) -> None:
    """A checkpoint that names fewer files than its own announcement is not whole."""
    said: Mapping[str, object] = last_checkpoint(stores, root)
    files = said.get("numOfAddFiles")
    if said.get("version") == version and files not in (None, state.files):
        raise TableFilesMissing(
            root, f"the checkpoint of version {version} names {state.files} files, {files} announced"
        )


def _live(
    commits: Sequence[Commit], checkpoint: CheckpointState | None, partition_columns: Sequence[str]
) -> pa.Table:
    seen: set[Key] = set()
    parts: list[pa.Table] = []
    for commit in commits:
        # By key: a commit that adds a file twice adds one.
        added = {key_of(add): add for add in commit.adds}
        new = [add for key, add in added.items() if key not in seen]
        seen.update(added, (key_of(remove) for remove in commit.removes))
        if new:
            parts.append(from_actions(new, partition_columns))
    if checkpoint is not None:
        left = [add for add in checkpoint.json_adds if key_of(add) not in seen]
        parts += [from_actions(left, partition_columns)] if left else []
        for adds in checkpoint.adds:
            table = from_checkpoint(adds, partition_columns)
            parts.append(_unseen(table.set_column(*_stats_of(table, adds)), seen))
    return pa.concat_tables(parts) if parts else from_actions([], partition_columns)


def _stats_of(table: pa.Table, adds: pa.StructArray) -> tuple[int, str, pa.Array]:
    texts = stats_texts(column_of(table, "stats"), adds)
    return table.schema.get_field_index("stats"), "stats", texts


def _unseen(table: pa.Table, seen: set[Key]) -> pa.Table:
    if not seen:
        return table
    paths = pa.array(sorted({path for path, _ in seen}), pa.string())
    names = table.column("path")
    # Absolute paths are spelt in several ways: they are looked at one by one.
    suspects = pc.or_(pc.is_in(names, paths), pc.match_substring_regex(names, "^(/|file:)"))
    if not pc.any(suspects, min_count=0).as_py():
        return table
    suspected = table.filter(suspects)
    kept = pa.array([key not in seen for key in keys_of(suspected)], pa.bool_())
    return pa.concat_tables([table.filter(pc.invert(suspects)), suspected.filter(kept)])
