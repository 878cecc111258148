"""The live files of a snapshot: its manifest list, and the manifests of data and of deletes."""

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lakeshare_server.errors import Unserveable

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.snapshots import Snapshot

_log = logging.getLogger(__name__)

# The values a file was written under, by partition field id. Dates and times are integers, decimals and UUIDs bytes.
PartitionRecord: TypeAlias = tuple[tuple[int, object], ...]


@dataclass(frozen=True, kw_only=True)
class DeleteFile:
    """A file of row-level deletes, as its manifest tells it (Iceberg spec, "Manifests" and "Delete Formats").

    `format` is upper case: PARQUET, AVRO, ORC, or PUFFIN for a deletion vector, which alone has `content_offset` and
    `content_size_in_bytes`. `lowest_path` and `highest_path` bound the data files that position deletes speak of;
    they may be cut. `rows` of a deletion vector is its cardinality.
    """

    content: Literal["position", "equality"]
    path: str
    format: str
    spec_id: int
    partition: PartitionRecord
    sequence_number: int
    rows: int
    size_bytes: int
    lowest_path: str | None = None
    highest_path: str | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None
    equality_ids: tuple[int, ...] = ()


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
            if manifest.content == ManifestContent.DELETES:
                found.deletes.extend(_entries_of_deletes(io, manifest))
            else:
                found.data.extend(manifest.fetch_manifest_entry(io))
    except (OSError, ValueError) as error:
        _log.warning("a manifest of snapshot %s of %s cannot be read: %s", snapshot.snapshot_id, root, error)
        raise Unserveable(
            f"A manifest of snapshot {snapshot.snapshot_id} of {root} cannot be read.",
            "Check that the table's metadata folder is whole.",
        ) from error
    return found


def _entries_of_deletes(io: "FileIO", manifest: "ManifestFile") -> "list[ManifestEntry]":
    """The live entries with what v3 says of deletion vectors, which pyiceberg reads but for its own use."""
    from pyiceberg import manifest as iceberg
    from pyiceberg.avro.file import AvroFile

    with AvroFile[iceberg.ManifestEntry](
        io.new_input(manifest.manifest_path),
        iceberg.MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: iceberg.ManifestEntry, 2: iceberg.DataFile},
        read_enums={0: iceberg.ManifestEntryStatus, 101: iceberg.FileFormat, 134: iceberg.DataFileContent},
    ) as reader:
        entries = [iceberg._inherit_from_manifest(entry, manifest) for entry in reader]
    return [entry for entry in entries if entry.status != iceberg.ManifestEntryStatus.DELETED]
