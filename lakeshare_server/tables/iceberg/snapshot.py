"""Reading an Iceberg table at one snapshot: pyiceberg parses its metadata, our own reader its manifests.

What no client could read is refused with a reason and a fix, never approximated; see `head.py` for what some can.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.storage.locations import local_path
from lakeshare_server.tables.iceberg.deletes import Targets, targets_of, vectors_of, with_vectors
from lakeshare_server.tables.iceberg.equality_deletes import rows_deleted_by_equality
from lakeshare_server.tables.iceberg.manifests import DataFiles, LiveFiles, live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata, schema_at
from lakeshare_server.tables.iceberg.partitions import (
    bounded_type,
    columns_in_lines,
    identity_columns,
    maxima,
    minima,
    null_counts,
    partition_columns,
    partition_ranges,
    partition_values,
    told_maxima,
)
from lakeshare_server.tables.iceberg.schema import (
    columns_in_files,
    delta_schema_string,
    iceberg_head,
    require_known_types,
)
from lakeshare_server.tables.serveability import ReasonCode
from lakeshare_server.tables.snapshot import TableSnapshot

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot


def read_iceberg(
    metadata_location: str, snapshot_id: int, vectors_dir: Path | None = None, stores: Stores | None = None
) -> TableSnapshot:
    """The table of a metadata file, at one of its snapshots.

    Deletion vectors that are too large for a line are written to `vectors_dir`; without it they are refused.

    Raises:
        Unserveable: the metadata cannot be read, or no client could read the table.
        Unavailable: the store does not answer.
    """
    stores = stores or Stores(StoreSettings())
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    root = local_path(table.location)
    schema = schema_at(table, snapshot)
    # First what no client can read, then what only the Delta Sharing API cannot carry: READ_BY_ICEBERG_CLIENTS.
    require_known_types(schema, table.format_version, root)
    live = live_files(stores, snapshot, root)
    files = live.data
    _require_known_specs(table, files, root)
    _require_no_encryption(live, root)
    delta_schema_string(schema, root)
    _require_each_file_once(files, root)
    # Nobody has to know of data files one by one where no row of them is deleted.
    targets = targets_of(table, files) if live.deletes else Targets(())
    by_equality = rows_deleted_by_equality(stores, table, snapshot, files, targets, live.deletes, root)
    vectors = vectors_of(stores, targets, live.deletes, by_equality, root, vectors_dir)
    _require_plain_parquet(files, root)
    known = partition_columns(table, schema, files)
    ids = {schema.find_field(name).field_id for name in known}
    in_files = columns_in_files(
        stores, table, schema, files, root, identity_columns(table, schema, files), ids
    )
    in_lines = columns_in_lines(table, schema, files, known, in_files, root)
    # Pruning knows values that are not in lines, too.
    partitioned_by = in_lines or known
    return TableSnapshot(
        format="iceberg",
        location=root,
        head=with_vectors(iceberg_head(table, schema, root, in_lines, in_files), vectors),
        snapshot_id=snapshot_id,
        files=_files(table, schema, snapshot, files, partitioned_by, vectors),
    )


def _require_plain_parquet(files: DataFiles, root: str) -> None:
    others = sorted(set(pc.unique(files.column("format")).to_pylist()) - {"PARQUET"})
    if others:
        raise Unserveable(
            f"{root} has data files in {others[0]}, recipients read Parquet only.",
            ReasonCode.FILE_FORMAT.fix,
            ReasonCode.FILE_FORMAT,
        )


def _require_known_specs(table: "TableMetadata", files: DataFiles, root: str) -> None:
    unknown = sorted(set(pc.unique(files.column("spec_id")).to_pylist()) - table.specs().keys())
    if unknown:
        raise Unserveable(
            f"{root} has manifests of the partition spec {unknown[0]}, which its metadata does not have.",
            "Check that the table's metadata folder is whole, or publish another snapshot.",
        )


def _require_no_encryption(live: LiveFiles, root: str) -> None:
    keys = live.data.column("key_metadata")
    what = "data files" if keys.null_count < len(keys) else None
    if any(delete.is_encrypted for delete in live.deletes):
        what = what or "files of deletes"
    if what is not None:
        raise Unserveable(
            f"{root} has encrypted {what}.", ReasonCode.ENCRYPTED_FILES.fix, ReasonCode.ENCRYPTED_FILES
        )


def _require_each_file_once(files: DataFiles, root: str) -> None:
    """Iceberg's readers read a file as often as it is listed, Delta's once."""
    paths = files.column("path")
    if pc.count_distinct(paths).as_py() == len(paths):
        return
    counts = pc.value_counts(paths)
    [twice, *_] = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    raise Unserveable(
        f"{root} lists {local_path(twice)} more than once.",
        ReasonCode.DUPLICATE_FILES.fix,
        ReasonCode.DUPLICATE_FILES,
    )


def _files(
    table: "TableMetadata",
    schema: "Schema",
    snapshot: "Snapshot",
    files: DataFiles,
    partitioned_by: tuple[str, ...],
    vectors: Mapping[str, pa.Array],
) -> pa.Table:
    names = files.column("path")
    ranges = partition_ranges(table, schema, files, bounded_type)
    known_maxima = maxima(schema.fields, files, ranges)
    return pa.table(
        {
            "path": _paths(names),
            "name": names,
            "size": files.column("size"),
            "modification_time": _added_at(table, snapshot, files),
            "rows": files.column("rows"),
            "partition": partition_values(table, schema, files, partitioned_by),
            "min": minima(schema.fields, files, ranges),
            "max": known_maxima,
            "told_max": told_maxima(known_maxima, schema.fields, files),
            "null_count": null_counts(schema.fields, files, ranges),
            **vectors,
        }
    )


def _paths(names: pa.StringArray) -> pa.StringArray:
    if not pc.any(pc.starts_with(names, "file:"), min_count=0).as_py():
        return names
    return pa.array([local_path(name) for name in names.to_pylist()], pa.string())


def _added_at(table: "TableMetadata", snapshot: "Snapshot", files: DataFiles) -> pa.Array:
    """When each file's snapshot was made, in milliseconds; of one that expired, when the one that is read was."""
    times = {known.snapshot_id: known.timestamp_ms for known in table.snapshots}
    ids = files.column("snapshot_id").dictionary_encode()
    added = [times.get(one, snapshot.timestamp_ms) for one in ids.dictionary.to_pylist()]
    return pc.fill_null(pc.take(pa.array(added, pa.int64()), ids.indices), snapshot.timestamp_ms)
