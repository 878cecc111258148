"""The live files of a snapshot: its manifest list, and the manifests of data and of deletes."""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakeshare_server.errors import Unserveable

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table.snapshots import Snapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveFiles:
    """The entries of data files and of delete files that a snapshot's readers have to know."""

    data: "list[ManifestEntry]" = field(default_factory=list)
    deletes: "list[ManifestEntry]" = field(default_factory=list)


def live_files(io: "FileIO", snapshot: "Snapshot", root: str) -> LiveFiles:
    """All live files of a snapshot.

    Raises:
        Unserveable: a manifest is missing or cannot be read.
    """
    from pyiceberg.manifest import ManifestContent

    found = LiveFiles()
    try:
        for manifest in snapshot.manifests(io):
            entries = found.deletes if manifest.content == ManifestContent.DELETES else found.data
            entries += manifest.fetch_manifest_entry(io)
    except (OSError, ValueError) as error:
        _log.warning("a manifest of snapshot %s of %s cannot be read: %s", snapshot.snapshot_id, root, error)
        raise Unserveable(
            f"A manifest of snapshot {snapshot.snapshot_id} of {root} cannot be read.",
            "Check that the table's metadata folder is whole.",
        ) from error
    return found
