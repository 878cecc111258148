"""Which snapshots of an Iceberg table are whole, as far as files are held."""

import json
from collections.abc import Callable

from lakeshare_pipelines.backup.rewriting.avro_files import records_of, unreadable
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.tables.iceberg.metadata_json import LONGEST_BYTES, MetadataError, unpacked

DELETED = 2


def whole_snapshots(
    read: Callable[[str], bytes], metadata_location: str, is_held: Callable[[str], bool]
) -> set[int]:
    """Ids of the snapshots of which every manifest list, manifest, data file and delete file is held.

    `read` and `is_held` are asked by original locations; only what is held is read.

    Raises:
        BackupError: the metadata cannot be read, or a manifest that is held is broken.
    """
    try:
        table = json.loads(unpacked(read(metadata_location), LONGEST_BYTES))
    except (ValueError, MetadataError) as error:
        raise unreadable(metadata_location, error) from error
    known: dict[str, bool] = {}

    def manifest_is_whole(location: str) -> bool:
        if location not in known:
            known[location] = is_held(location) and all(
                is_held(entry["data_file"]["file_path"])
                for entry in records_of(location, read(location))
                if entry["status"] != DELETED
            )
        return known[location]

    whole = set()
    for snapshot in table.get("snapshots", ()):
        told = snapshot.get("manifest-list")
        if told is not None and not is_held(told):
            continue
        manifests = (
            [row["manifest_path"] for row in records_of(told, read(told))]
            if told is not None
            else snapshot.get("manifests", ())
        )
        if all(manifest_is_whole(one) for one in manifests):
            whole.add(snapshot["snapshot-id"])
    return whole


def require_whole(metadata_location: str, snapshot_id: int, whole: set[int]) -> None:
    """Refuse a snapshot that is not whole.

    Raises:
        BackupError: it is not.
    """
    if snapshot_id not in whole:
        others = ", ".join(map(str, sorted(whole))) or "none"
        raise BackupError(
            metadata_location, f"its snapshot {snapshot_id} is not whole in the point", f"Whole are {others}."
        )
