"""An Iceberg table at one snapshot: its metadata file, parsed by pyiceberg, and the input of the file index.

What no client can read is refused with a reason and a fix, never approximated.
"""

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.locations import local_path
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.tables.iceberg import partitions
from lakeshare_server.tables.iceberg.deletes import Targets, add_vector_feature, targets_of, vectors_of
from lakeshare_server.tables.iceberg.equality_deletes import rows_deleted_by_equality
from lakeshare_server.tables.iceberg.manifests import DataFiles, LiveFiles, live_files
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

GZIP = b"\x1f\x8b"
FORMAT_VERSIONS = (1, 2, 3)
OPERATIONS = ("append", "replace", "overwrite", "delete")
# Errors of metadata that is incomplete or malformed.
UNUSABLE = (KeyError, TypeError, ValueError, AttributeError)
NOT_WHOLE = "it is no JSON, or cut off"
# Five times the metadata of a hundred thousand commits; some gigabytes as Python objects.
MAX_METADATA_BYTES = 512 << 20
NO_SNAPSHOT = -1

_log = logging.getLogger(__name__)


def read_iceberg(
    metadata_location: str,
    snapshot_id: int,
    vectors_dir: Path | str | None = None,
    stores: Stores | None = None,
) -> TableSnapshot:
    """Reads the table of a metadata file at one of its snapshots.

    Deletion vectors that are too large for a line are written to `vectors_dir`, a folder or a location in a store;
    without it they are refused.

    Raises:
        Unserveable: the metadata cannot be read, or no client can read the table.
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
    unknown = sorted({*files.spec_ids, table.default_spec_id} - table.specs().keys())
    if unknown:
        raise Unserveable(
            f"{root} is partitioned by the spec {unknown[0]}, which its metadata does not have.",
            "Check that the table's metadata folder is whole, or publish another snapshot.",
        )
    _require_no_encryption(live, root)
    delta_schema_string(schema, root)
    _require_each_file_once(files, root)
    # Without deletes, no list of the data files is needed.
    targets = targets_of(table, files) if live.deletes else Targets(())
    by_equality = rows_deleted_by_equality(stores, table, snapshot, files, targets, live.deletes, root)
    vectors = vectors_of(stores, targets, live.deletes, by_equality, root, vectors_dir)
    others = files.formats - {"PARQUET"}
    if others:
        reason = f"{root} has data files in {min(others)}, recipients read Parquet only."
        raise ReasonCode.FILE_FORMAT.error(reason)
    known = partitions.partition_columns(table, schema, files)
    ids = {schema.find_field(name).field_id for name in known}
    identities = partitions.identity_columns(table, schema, files)
    in_files = columns_in_files(stores, table, schema, files, root, identities, ids)
    in_lines = partitions.columns_in_lines(table, schema, files, known, in_files, root)
    head = add_vector_feature(iceberg_head(table, schema, root, in_lines, in_files), vectors)
    # Pruning also uses values that are not in lines.
    pruning = partitions.pruning_columns(table, schema, files, in_lines or known)
    columns = {
        "path": list_paths(files),
        "name": files.column("path"),
        "size": files.column("size"),
        "modification_time": _list_times(table, snapshot, files.column("snapshot_id")),
        "rows": files.column("rows"),
        **pruning,
        "client_max": partitions.client_maxima(pruning["max"], schema.fields, files),
        **vectors,
    }
    return TableSnapshot(
        format="iceberg", location=root, head=head, snapshot_id=snapshot_id, files=pa.table(columns)
    )


def list_paths(files: DataFiles) -> pa.Array:
    """Where files are read, by their names in manifests."""
    names = files.column("path")
    if not pc.any(pc.starts_with(names, "file:"), min_count=0).as_py():
        return names
    return pa.array([local_path(name) for name in names.to_pylist()], pa.string())


def _list_times(
    table: "TableMetadata", snapshot: "Snapshot", snapshot_ids: pa.ChunkedArray
) -> pa.ChunkedArray:
    """When each file's snapshot was committed, in milliseconds; of an expired one, the time of the one that is read."""
    times = {one.snapshot_id: one.timestamp_ms for one in table.snapshots}
    added_by = snapshot_ids.dictionary_encode()
    added_ms = [times.get(one, snapshot.timestamp_ms) for one in added_by.dictionary.to_pylist()]
    return pc.fill_null(pc.take(pa.array(added_ms, pa.int64()), added_by.indices), snapshot.timestamp_ms)


def _require_no_encryption(live: LiveFiles, root: str) -> None:
    keys = live.data.column("key_metadata")
    what = "data files" if keys.null_count < len(keys) else None
    if any(delete.is_encrypted for delete in live.deletes):
        what = what or "files of deletes"
    if what is not None:
        raise ReasonCode.ENCRYPTED_FILES.error(f"{root} has encrypted {what}.")


def _require_each_file_once(files: DataFiles, root: str) -> None:
    """Iceberg's readers read a file as often as it is listed, Delta's once."""
    paths = files.column("path")
    if pc.count_distinct(paths).as_py() == len(paths):
        return
    counts = pc.value_counts(paths)
    [twice, *_] = counts.field("values").filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    raise ReasonCode.DUPLICATE_FILES.error(f"{root} lists {local_path(twice)} more than once.")


class MetadataError(ValueError):
    """Metadata that is truncated or not as Iceberg specifies; the text is for the provider."""


class MetadataTooLarge(MetadataError):
    """Metadata of more bytes than the limit."""

    def __init__(self, longest_bytes: int) -> None:
        super().__init__(f"it is longer than {longest_bytes >> 20} MiB; expire snapshots")


def open_metadata(
    stores: Stores, metadata_location: str, snapshot_id: int
) -> "tuple[TableMetadata, Snapshot]":
    """Reads the metadata of a table, and a snapshot; `NO_SNAPSHOT` gives one without files if the table has none.

    Raises Unserveable without such a file or snapshot, Unavailable if the store does not answer.
    """
    # It imports pyiceberg's tables, a tenth of a server's start.
    from lakeshare_server.tables.iceberg.parsing import OldestSnapshot, parse_metadata

    try:
        table = parse_metadata(stores.read(metadata_location), snapshot_id)
    except (*LASTING, MetadataError) as error:
        _log.warning("%s cannot be read: %s", metadata_location, error)
        reason = f": {error}" if isinstance(error, MetadataError) else ""
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} cannot be read{reason}.",
            "Check that the file is there and whole.",
        ) from error
    if snapshot_id == NO_SNAPSHOT and table.current_snapshot_id is None:
        fields = {"snapshot-id": NO_SNAPSHOT, "timestamp-ms": table.last_updated_ms, "manifests": []}
        return table, OldestSnapshot.model_validate({**fields, "schema-id": table.current_schema_id})
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} has no snapshot {snapshot_id}.",
            "It may have been expired; publish a newer one.",
        )
    return table, snapshot


def read_metadata_text(stores: Stores, location: str) -> bytes:
    """Reads the JSON of a metadata file, decompressed if necessary (Iceberg spec, Appendix F).

    Raises:
        MetadataError: the file is compressed and truncated, or too long.
        StoreError, Unavailable, BadRequest: as in `Stores.read`.
    """
    return decompress_metadata(stores.read(location), MAX_METADATA_BYTES)


def decompress_metadata(content: bytes, longest_bytes: int) -> bytes:
    """Returns the text of a metadata file, plain or gzip, regardless of its name (Iceberg spec, Appendix F).

    Raises:
        MetadataError: the content is compressed and truncated.
        MetadataTooLarge: it is longer than `longest_bytes`; no more than that is decompressed.
    """
    if content.startswith(GZIP):
        unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            content = unpacking.decompress(content, longest_bytes + 1)
        except zlib.error as error:
            raise MetadataError(NOT_WHOLE) from error
        if not unpacking.eof and len(content) <= longest_bytes:
            raise MetadataError(NOT_WHOLE)
    if len(content) > longest_bytes:
        raise MetadataTooLarge(longest_bytes)
    return content


def schema_at(table: "TableMetadata", snapshot: "Snapshot") -> "Schema":
    schemas = {schema.schema_id: schema for schema in table.schemas}
    is_newest, today = snapshot.snapshot_id == table.current_snapshot_id, table.current_schema_id
    own = snapshot.schema_id
    return schemas[readers_schema_id(is_newest=is_newest, written_with=own, today=today, known=schemas)]


def readers_schema_id(
    *, is_newest: bool, written_with: int | None, today: int, known: Collection[int]
) -> int:
    """Returns the id of the schema for readers of a snapshot: today's for the newest one, even if it changed since."""
    return today if is_newest or written_with is None or written_with not in known else written_with


ColumnsById = Mapping[int, tuple[str, str]]


def keeps_rows(stores: Stores, metadata_location: str, snapshot_id: int, before_id: int) -> bool:
    """Whether all snapshots after `before_id` up to this one only replaced files by others with the same rows, as
    compaction does (Iceberg spec, "Snapshots": operation `replace`).

    Raises Unserveable if the metadata cannot be read, Unavailable if its store does not answer.
    """
    table, _ = open_metadata(stores, metadata_location, snapshot_id)
    ancestor: int | None = snapshot_id
    while ancestor is not None and ancestor != before_id:
        snapshot = table.snapshot_by_id(ancestor)
        if snapshot is None or snapshot.summary is None or snapshot.summary.operation.value != "replace":
            return False
        ancestor = snapshot.parent_snapshot_id
    return ancestor is not None and table.snapshot_by_id(ancestor) is not None


def restores_columns(stores: Stores, before: tuple[str, int], after: tuple[str, int]) -> bool:
    """Whether a later state, given by metadata location and snapshot id, has a column that the table had before the
    earlier state, but not in it, such as after a rollback: files of both states then have different rows in each.

    Raises Unserveable if the metadata cannot be read, Unavailable if its store does not answer.
    """
    then = open_metadata(stores, *before)
    now = open_metadata(stores, *after)
    new = schema_at(*now).field_ids - schema_at(*then).field_ids
    return any(field_id <= then[0].last_column_id for field_id in new)


def columns_by_id(stores: Stores, metadata_location: str, snapshot_id: int) -> ColumnsById:
    """Returns the name and the type of each column of a snapshot, also nested ones, by field id."""
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    schema = schema_at(table, snapshot)
    names = {field_id: schema.find_column_name(field_id) or "" for field_id in schema.field_ids}
    return {
        field_id: (name, str(kind) if (kind := schema.find_type(field_id)).is_primitive else "")
        for field_id, name in names.items()
    }


def column_conflict(versions: Iterable[ColumnsById]) -> str | None:
    """Returns a column whose name, type or id differs between versions; None without one."""
    by_id: dict[int, tuple[str, str]] = {}
    by_name: dict[str, int] = {}
    for columns in versions:
        for field_id, (name, kind) in columns.items():
            if by_id.setdefault(field_id, (name, kind)) != (name, kind):
                return by_id[field_id][0]
            if by_name.setdefault(name.lower(), field_id) != field_id:
                return name
    return None
