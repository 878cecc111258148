"""Reading an Iceberg table at one snapshot: metadata and manifests through pyiceberg.

What no client could read is refused with a reason and a fix, never approximated; see `head.py` for what some can.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.bounds import bounds, null_counts, told_maxima
from lakeshare_server.tables.iceberg.head import iceberg_head
from lakeshare_server.tables.iceberg.manifests import LiveFiles, live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata, schema_at
from lakeshare_server.tables.iceberg.names import columns_in_files
from lakeshare_server.tables.iceberg.partitions import partition_columns, partition_values
from lakeshare_server.tables.iceberg.schema import delta_schema_string
from lakeshare_server.tables.locations import local_path
from lakeshare_server.tables.reason_codes import ReasonCode
from lakeshare_server.tables.snapshot import TableSnapshot

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot


def read_iceberg(metadata_location: str, snapshot_id: int) -> TableSnapshot:
    """The table of a metadata file, at one of its snapshots.

    Raises:
        Unserveable: the metadata cannot be read, or no client could read the table.
    """
    table, snapshot = open_metadata(metadata_location, snapshot_id)
    root = local_path(table.metadata.location)
    schema = schema_at(table, snapshot)
    # A type that nobody can be told of is refused before a file is looked at.
    delta_schema_string(schema, root)
    live = live_files(table.io, snapshot, root)
    _require_no_deletes(live, root)
    files = [entry.data_file for entry in live.data]
    _require_plain_parquet(files, root)
    in_files = columns_in_files(table, schema, [file.file_path for file in files], root)
    partitioned_by = partition_columns(table, schema, files)
    return TableSnapshot(
        format="iceberg",
        location=root,
        head=iceberg_head(table, schema, root, partitioned_by, in_files),
        snapshot_id=snapshot_id,
        files=_files(table, schema, snapshot, live.data, partitioned_by),
    )


def _require_no_deletes(live: LiveFiles, root: str) -> None:
    if live.deletes:
        raise Unserveable(
            f"{root} has row-level deletes ({len(live.deletes)} delete files).",
            ReasonCode.ROW_LEVEL_DELETES.fix,
            ReasonCode.ROW_LEVEL_DELETES,
        )


def _require_plain_parquet(files: "Sequence[DataFile]", root: str) -> None:
    from pyiceberg.manifest import FileFormat

    for file in files:
        if file.file_format != FileFormat.PARQUET:
            raise Unserveable(
                f"{root} has data files in {file.file_format.name}, recipients read Parquet only.",
                ReasonCode.FILE_FORMAT.fix,
                ReasonCode.FILE_FORMAT,
            )
        if file.key_metadata:
            raise Unserveable(
                f"{root} has encrypted data files.",
                ReasonCode.ENCRYPTED_FILES.fix,
                ReasonCode.ENCRYPTED_FILES,
            )


def _files(
    table: "StaticTable",
    schema: "Schema",
    snapshot: "Snapshot",
    entries: "Sequence[ManifestEntry]",
    partitioned_by: tuple[str, ...],
) -> pa.Table:
    files = [entry.data_file for entry in entries]
    times = {known.snapshot_id: known.timestamp_ms for known in table.snapshots()}
    added = [times.get(entry.snapshot_id or 0, snapshot.timestamp_ms) for entry in entries]
    maxima = bounds(schema.fields, files, "upper_bounds")
    return pa.table(
        {
            "path": pa.array([local_path(file.file_path) for file in files], pa.string()),
            "name": pa.array([file.file_path for file in files], pa.string()),
            "size": pa.array([file.file_size_in_bytes for file in files], pa.int64()),
            "modification_time": pa.array(added, pa.int64()),
            "rows": pa.array([file.record_count for file in files], pa.int64()),
            "partition": partition_values(table, schema, files, partitioned_by),
            "min": bounds(schema.fields, files, "lower_bounds"),
            "max": maxima,
            "told_max": told_maxima(maxima, schema.fields, files),
            "null_count": null_counts(schema.fields, files),
        }
    )
