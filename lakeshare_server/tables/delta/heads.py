"""Protocol and metadata of a Delta table at a version, without its files: two small columns of a checkpoint at most."""

from collections.abc import Sequence
from typing import Any

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.delta.checkpoint import read_checkpoint_head
from lakeshare_server.tables.delta.commits import READERS, read_commits
from lakeshare_server.tables.delta.log import LogListing, Segment

Action = dict[str, Any]


def head_actions(stores: Stores, listing: LogListing, version: int) -> tuple[Action, Action]:
    """The `protocol` and the `metaData` in force at a version, by the first way through the log that can be read.

    Raises:
        TableFilesMissing: there is none.
    """
    return listing.read(version, lambda segment: _head(stores, listing.root, segment))


def _head(stores: Stores, root: str, segment: Segment) -> tuple[Action, Action]:
    protocol, metadata = _newest(stores, root, segment.deltas)
    if segment.checkpoint is not None and (protocol is None or metadata is None):
        state = read_checkpoint_head(stores, root, segment.checkpoint)
        protocol, metadata = protocol or state.protocol, metadata or state.metadata
    if protocol is None or metadata is None:
        raise TableFilesMissing(root, "its log has no protocol or no metadata")
    return protocol, metadata


def _newest(
    stores: Stores, root: str, deltas: Sequence[tuple[int, int, StoredObject]]
) -> tuple[Action | None, Action | None]:
    """What the commits say, newest first; those behind the ones that say both are not read."""
    protocol: Action | None = None
    metadata: Action | None = None
    for start in range(0, len(deltas), READERS):
        for commit in read_commits(stores, root, deltas[start : start + READERS]):
            protocol, metadata = protocol or commit.protocol, metadata or commit.metadata
        if protocol is not None and metadata is not None:
            break
    return protocol, metadata
