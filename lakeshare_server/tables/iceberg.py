"""Reading an Iceberg table at one snapshot: metadata and manifests through pyiceberg.

What the parquet response format cannot carry is refused with a reason and a fix, never approximated.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.head import TableHead
from lakeshare_server.tables.iceberg_bounds import bounds, column_type, null_counts, told_maxima
from lakeshare_server.tables.iceberg_names import require_names_in_files
from lakeshare_server.tables.iceberg_schema import delta_schema_string
from lakeshare_server.tables.locations import local_path
from lakeshare_server.tables.snapshot import TableSnapshot

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import PrimitiveType

logger = logging.getLogger(__name__)

DELETE_FIX = (
    "Write with merge-on-read switched off (write.delete.mode, write.update.mode, write.merge.mode = "
    "copy-on-write) and run CALL system.rewrite_data_files with delete-file-threshold 1."
)


def read_iceberg(metadata_location: str, snapshot_id: int) -> TableSnapshot:
    """The table of a metadata file, at one of its snapshots.

    Raises:
        Unserveable: the metadata cannot be read, or the parquet response format cannot carry the table.
    """
    table, snapshot = _open(metadata_location, snapshot_id)
    root = local_path(table.metadata.location)
    schema = _schema_at(table, snapshot)
    schema_string = delta_schema_string(schema, root)
    entries = _live_entries(table.io, snapshot, root)
    files = [entry.data_file for entry in entries]
    _require_plain_parquet(files, root)
    require_names_in_files(table, schema, [file.file_path for file in files], root)
    partition_columns = _partition_columns(table, schema, files)
    return TableSnapshot(
        format="iceberg",
        location=root,
        head=TableHead(
            table_id=str(table.metadata.table_uuid),
            schema_string=schema_string,
            partition_columns=partition_columns,
        ),
        snapshot_id=snapshot_id,
        files=_files(table, schema, snapshot, entries, partition_columns),
    )


def _open(metadata_location: str, snapshot_id: int) -> "tuple[StaticTable, Snapshot]":
    from pyiceberg.exceptions import NotInstalledError, ValidationError
    from pyiceberg.table import StaticTable

    try:
        table = StaticTable.from_metadata(local_path(metadata_location))
    except (OSError, ValueError, ValidationError, NotInstalledError) as error:
        logger.warning("%s cannot be read: %s", metadata_location, error)
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} cannot be read.",
            "Check that the file is there and whole.",
        ) from error
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} has no snapshot {snapshot_id}.",
            "It may have been expired; publish a newer one.",
        )
    return table, snapshot


def _schema_at(table: "StaticTable", snapshot: "Snapshot") -> "Schema":
    schemas = table.schemas()
    # Readers of the newest snapshot get today's columns, also those that changed since it was written.
    if snapshot.snapshot_id == table.metadata.current_snapshot_id:
        return table.schema()
    if snapshot.schema_id is not None and snapshot.schema_id in schemas:
        return schemas[snapshot.schema_id]
    return table.schema()


def _live_entries(io: "FileIO", snapshot: "Snapshot", root: str) -> "list[ManifestEntry]":
    from pyiceberg.manifest import ManifestContent

    entries: list[ManifestEntry] = []
    try:
        for manifest in snapshot.manifests(io):
            live = manifest.fetch_manifest_entry(io)
            if live and manifest.content == ManifestContent.DELETES:
                raise Unserveable(
                    f"{root} has row-level deletes ({_deletes(manifest)} delete files), which the parquet "
                    "response format cannot carry.",
                    DELETE_FIX,
                )
            entries += live
    except (OSError, ValueError) as error:
        logger.warning(
            "a manifest of snapshot %s of %s cannot be read: %s", snapshot.snapshot_id, root, error
        )
        raise Unserveable(
            f"A manifest of snapshot {snapshot.snapshot_id} of {root} cannot be read.",
            "Check that the table's metadata folder is whole.",
        ) from error
    return entries


def _deletes(manifest: "ManifestFile") -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _require_plain_parquet(files: "Sequence[DataFile]", root: str) -> None:
    from pyiceberg.manifest import FileFormat

    for file in files:
        if file.file_format != FileFormat.PARQUET:
            raise Unserveable(
                f"{root} has data files in {file.file_format.name}, recipients read Parquet only.",
                "Set write.format.default to parquet and rewrite the data files.",
            )
        if file.key_metadata:
            raise Unserveable(f"{root} has encrypted data files.", "Share a copy that is not encrypted.")


def _partition_columns(
    table: "StaticTable", schema: "Schema", files: "Sequence[DataFile]"
) -> tuple[str, ...]:
    """Columns whose value every file states: partitioned by identity in each spec that has live files."""
    positions = [_identity_positions(table, spec) for spec in {file.spec_id for file in files}]
    if not positions:
        return ()
    everywhere = set.intersection(*(set(position) for position in positions))
    names = {field.field_id: field.name for field in schema.fields}
    return tuple(
        names[field_id]
        for field_id in names
        if field_id in everywhere and _is_sayable(table, schema, files, field_id)
    )


def _identity_positions(table: "StaticTable", spec_id: int) -> dict[int, int]:
    """`{source column id: place in the partition record}` of a spec's identity fields."""
    from pyiceberg.transforms import IdentityTransform

    fields = table.specs()[spec_id].fields
    return {
        field.source_id: place
        for place, field in enumerate(fields)
        if isinstance(field.transform, IdentityTransform)
    }


def _is_sayable(table: "StaticTable", schema: "Schema", files: "Sequence[DataFile]", field_id: int) -> bool:
    kind = str(schema.find_type(field_id))
    # Texts of times have no zone on the wire, so every client would take its own.
    if kind in ("binary", "timestamptz"):
        return False
    # On the wire an empty partition value means null: such a column is left to be read from the files.
    return kind != "string" or "" not in _partition_values(table, files, field_id)


def _partition_values(table: "StaticTable", files: "Sequence[DataFile]", field_id: int) -> list[object]:
    places = {spec: _identity_positions(table, spec)[field_id] for spec in {file.spec_id for file in files}}
    return [file.partition[places[file.spec_id]] for file in files]


def _files(
    table: "StaticTable",
    schema: "Schema",
    snapshot: "Snapshot",
    entries: "Sequence[ManifestEntry]",
    partition_columns: tuple[str, ...],
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
            "partition": _partition(table, schema, files, partition_columns),
            "min": bounds(schema.fields, files, "lower_bounds"),
            "max": maxima,
            "told_max": told_maxima(maxima, schema.fields, files),
            "null_count": null_counts(schema.fields, files),
        }
    )


def _partition(
    table: "StaticTable", schema: "Schema", files: "Sequence[DataFile]", columns: tuple[str, ...]
) -> pa.StructArray:
    if not columns:
        return pa.nulls(len(files), pa.struct([]))
    arrays = []
    for column in columns:
        field = schema.find_field(column)
        values = _partition_values(table, files, field.field_id)
        arrays.append(pa.array(values, column_type(cast("PrimitiveType", field.field_type))))
    return pa.StructArray.from_arrays(arrays, list(columns))
