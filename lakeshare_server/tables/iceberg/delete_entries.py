"""Manifest entries in the words of delete_targets.py and manifests.py."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakeshare_server.tables.iceberg.delete_targets import Target, Targets
from lakeshare_server.tables.iceberg.manifests import DeleteFile, LiveFiles, PartitionRecord

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.table import StaticTable

# The field id that the specification reserves for the path in position deletes.
FILE_PATH_ID = 2147483546
# Where records have what v3 added; pyiceberg has no names for them.
REFERENCED_DATA_FILE, CONTENT_OFFSET, CONTENT_SIZE = 17, 18, 19


def targets_and_deletes(table: "StaticTable", live: LiveFiles) -> tuple[Targets, list[DeleteFile]]:
    """The data files as deletes have to know them, and the deletes; nothing of both without deletes."""
    if not live.deletes:
        return Targets(()), []
    specs = table.specs()
    fields = {spec_id: [field.field_id for field in spec.fields] for spec_id, spec in specs.items()}
    unpartitioned = frozenset(spec_id for spec_id, spec in specs.items() if spec.is_unpartitioned())
    targets = Targets([_target(entry, fields) for entry in live.data], unpartitioned)
    return targets, [_delete_file(entry, fields) for entry in live.deletes]


def _target(entry: "ManifestEntry", fields: Mapping[int, Sequence[int]]) -> Target:
    file = entry.data_file
    return Target(
        path=file.file_path,
        spec_id=file.spec_id,
        partition=_partition(file, fields),
        sequence_number=entry.sequence_number or 0,
        rows=file.record_count,
    )


def _delete_file(entry: "ManifestEntry", fields: Mapping[int, Sequence[int]]) -> DeleteFile:
    """An entry of a manifest of deletes in our words."""
    from pyiceberg.manifest import DataFileContent

    file = entry.data_file
    is_equality = file.content == DataFileContent.EQUALITY_DELETES
    low, high = ((bounds or {}).get(FILE_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    return DeleteFile(
        content="equality" if is_equality else "position",
        path=file.file_path,
        format=file.file_format.name,
        spec_id=file.spec_id,
        partition=_partition(file, fields),
        sequence_number=entry.sequence_number or 0,
        rows=file.record_count,
        size_bytes=file.file_size_in_bytes,
        lowest_path=None if low is None else low.decode(),
        highest_path=None if high is None else high.decode(),
        referenced_data_file=file[REFERENCED_DATA_FILE],
        content_offset=file[CONTENT_OFFSET],
        content_size_in_bytes=file[CONTENT_SIZE],
        equality_ids=tuple(file.equality_ids or ()),
    )


def _partition(file: "DataFile", fields: Mapping[int, Sequence[int]]) -> PartitionRecord:
    values = [file.partition[place] for place in range(len(file.partition))]
    return tuple(zip(fields[file.spec_id], values, strict=True))
