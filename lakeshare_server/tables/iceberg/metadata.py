"""An Iceberg table at one snapshot: its metadata file, parsed by pyiceberg, and the input of the file index.

What no client can read is refused with a reason and a fix, never approximated.
"""

import logging
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_serializer, model_validator
from pyiceberg.exceptions import ValidationError as MalformedType
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, PrimitiveType

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import LASTING, Stores
from lakeshare_server.storage.locations import local_path
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

GZIP = b"\x1f\x8b"
FORMAT_VERSIONS = (1, 2, 3)
OPERATIONS = ("append", "replace", "overwrite", "delete")
NOT_WHOLE = "it is no JSON, or cut off"
# Five times the metadata of a hundred thousand commits; some gigabytes as Python objects.
MAX_METADATA_BYTES = 512 << 20
# These fields grow with the table's history and are not needed to read one snapshot.
OF_HISTORY = ("snapshot-log", "metadata-log", "refs", "statistics", "partition-statistics")
# The fields kept of other snapshots: of their summaries, which are most of a large file, only the operation.
OF_SNAPSHOTS = (
    "snapshot-id", "parent-snapshot-id", "timestamp-ms", "schema-id", "manifest-list", "manifests", "sequence-number",
)  # fmt: skip
# Errors of reducing and parsing JSON that is no table metadata.
PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration)
NO_SNAPSHOT = -1

_log = logging.getLogger(__name__)


def read_iceberg(
    metadata_location: str, snapshot_id: int, vectors_dir: Path | None = None, stores: Stores | None = None
) -> TableSnapshot:
    """Reads the table of a metadata file at one of its snapshots.

    Deletion vectors that are too large for a line are written to `vectors_dir`; without it they are refused.

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
    unknown = sorted(set(files.spec_ids) - table.specs().keys())
    if unknown:
        raise Unserveable(
            f"{root} has manifests of the partition spec {unknown[0]}, which its metadata does not have.",
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
    ranges = partitions.partition_ranges(table, schema, files, partitions.bounded_type)
    upper = partitions.column_bounds(schema.fields, files, ranges, is_upper=True)
    paths = names = files.column("path")
    if pc.any(pc.starts_with(names, "file:"), min_count=0).as_py():
        paths = pa.array([local_path(name) for name in names.to_pylist()], pa.string())
    # When each file's snapshot was committed, in milliseconds; for an expired snapshot, the time of the one read.
    times = {one.snapshot_id: one.timestamp_ms for one in table.snapshots}
    added_by = files.column("snapshot_id").dictionary_encode()
    added_ms = [times.get(one, snapshot.timestamp_ms) for one in added_by.dictionary.to_pylist()]
    modified_ms = pc.take(pa.array(added_ms, pa.int64()), added_by.indices)
    columns = {
        "path": paths,
        "name": names,
        "size": files.column("size"),
        "modification_time": pc.fill_null(modified_ms, snapshot.timestamp_ms),
        "rows": files.column("rows"),
        # Pruning also uses values that are not in lines.
        "partition": partitions.partition_values(table, schema, files, in_lines or known),
        "min": partitions.column_bounds(schema.fields, files, ranges, is_upper=False),
        "max": upper,
        "client_max": partitions.client_maxima(upper, schema.fields, files),
        "null_count": partitions.null_counts(schema.fields, files, ranges),
        **vectors,
    }
    return TableSnapshot(
        format="iceberg", location=root, head=head, snapshot_id=snapshot_id, files=pa.table(columns)
    )


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


def open_metadata(stores: Stores, metadata_location: str, snapshot_id: int) -> tuple[TableMetadata, Snapshot]:
    """Reads the metadata of a table, and a snapshot; `NO_SNAPSHOT` gives one without files if the table has none.

    Raises Unserveable without such a file or snapshot, Unavailable if the store does not answer.
    """
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


def parse_metadata(content: bytes, snapshot_id: int) -> TableMetadata:
    """Parses a metadata file, plain or gzip, with one complete snapshot; raises MetadataError if it cannot be read."""
    try:
        metadata = orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES))
    except MetadataError:
        raise
    except ValueError as error:
        raise MetadataError(NOT_WHOLE) from error
    if not isinstance(metadata, dict):
        raise MetadataError("it is no JSON object")
    version = metadata.get("format-version")
    if version not in FORMAT_VERSIONS:
        name = str(version) if isinstance(version, int) else "not said"
        raise MetadataError(f"its format version is {name}, this server knows 1 to 3")
    try:
        fields = {name: value for name, value in metadata.items() if name not in OF_HISTORY}
        if "schemas" in fields:
            fields["schemas"] = [with_foreign_types(schema) for schema in fields["schemas"]]
        if "schema" in fields:
            fields["schema"] = with_foreign_types(fields["schema"])
        fields["snapshots"] = [_reduce_snapshot(one, snapshot_id) for one in fields.get("snapshots") or ()]
        return TableMetadataUtil.parse_obj(fields)
    except (*PARSE_ERRORS, MalformedType) as error:
        raise MetadataError(_describe_error(error)) from error


def _reduce_snapshot(snapshot: Any, snapshot_id: int) -> Any:
    if not isinstance(snapshot, dict):
        return snapshot
    summary = snapshot.get("summary")
    if snapshot.get("snapshot-id") != snapshot_id:
        snapshot = {name: snapshot[name] for name in OF_SNAPSHOTS if name in snapshot}
        if isinstance(summary, dict):
            snapshot["summary"] = summary = {"operation": summary.get("operation")}
    if isinstance(summary, dict) and summary.get("operation") not in OPERATIONS:
        snapshot = {**snapshot, "summary": {**summary, "operation": "overwrite"}}
    if snapshot.get("manifest-list") is None and isinstance(snapshot.get("manifests"), list):
        return OldestSnapshot.model_validate(snapshot)
    return snapshot


def _describe_error(error: Exception) -> str:
    """The field that pydantic refuses; pydantic's own message may contain the whole text."""
    cause = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(cause, ValidationError):
        return "it lacks a part, or has one of another type than Iceberg says"
    first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"])
    if not field:
        return "its parts contradict each other"
    return f"its field {field} is missing or not what Iceberg says"


def schema_at(table: TableMetadata, snapshot: Snapshot) -> Schema:
    schemas = {schema.schema_id: schema for schema in table.schemas}
    is_newest, today = snapshot.snapshot_id == table.current_snapshot_id, table.current_schema_id
    own = snapshot.schema_id
    return schemas[readers_schema_id(is_newest=is_newest, written_with=own, today=today, known=schemas)]


def readers_schema_id(
    *, is_newest: bool, written_with: int | None, today: int, known: Collection[int]
) -> int:
    """Returns the id of the schema for readers of a snapshot: today's for the newest one, even if it changed since."""
    return today if is_newest or written_with is None or written_with not in known else written_with


class OldestSnapshot(Snapshot):
    """A snapshot without a manifest list, which names its manifests (Iceberg spec, "Snapshots", `manifests`)."""

    manifest_list: str = Field(alias="manifest-list", default="")
    manifest_paths: list[str] = Field(alias="manifests")


class ForeignType(PrimitiveType):
    """A column type that pyiceberg does not know."""

    root: str = Field()

    def __init__(self, name: str) -> None:
        super().__init__(root=name)

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        return handler(v)

    @model_serializer
    def ser_model(self) -> str:
        return self.root

    def __getnewargs__(self) -> tuple[str]:
        return (self.root,)


def with_foreign_types(kind: Any) -> Any:
    """Returns a type in Iceberg's JSON form, with a `ForeignType` for each name that pyiceberg cannot parse."""
    if isinstance(kind, str):
        try:
            IcebergType.model_validate(kind)
        except (ValidationError, ValueError, MalformedType):
            return ForeignType(kind)
        return kind
    if not isinstance(kind, dict):
        return kind
    if isinstance(kind.get("fields"), list):
        return {**kind, "fields": [_with_foreign_type(field, "type") for field in kind["fields"]]}
    for part in ("element", "key", "value"):
        kind = _with_foreign_type(kind, part)
    return kind


def _with_foreign_type(field: Any, part: str) -> Any:
    if not isinstance(field, dict) or part not in field:
        return field
    return {**field, part: with_foreign_types(field[part])}


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
