"""A table's metadata file: the snapshot that is meant, and the columns that its readers get."""

import logging
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_serializer, model_validator
from pyiceberg.exceptions import ValidationError as MalformedType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, PrimitiveType

from lakeshare_server.errors import Unserveable
from lakeshare_server.storage import LASTING, Stores

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

GZIP = b"\x1f\x8b"
FORMAT_VERSIONS = (1, 2, 3)
OPERATIONS = ("append", "replace", "overwrite", "delete")
NOT_WHOLE = "it is no JSON, or cut off"
# Five times what a hundred thousand commits leave behind; as Python's objects it is some gigabytes.
MAX_METADATA_BYTES = 512 << 20
# They grow with the table's history, and no reader of one snapshot looks at them.
OF_HISTORY = ("snapshot-log", "metadata-log", "refs", "statistics", "partition-statistics")
# Of a snapshot. Summaries of many commits are most of a large file; of all but one only the operation is looked at.
OF_SNAPSHOTS = (
    "snapshot-id", "parent-snapshot-id", "timestamp-ms", "schema-id", "manifest-list", "manifests", "sequence-number",
)  # fmt: skip
# What taking apart does to content that is JSON, but no table's metadata.
PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration)


class MetadataError(ValueError):
    """Metadata that is not whole, or says what Iceberg does not; the text is fit for the provider."""


class MetadataTooLarge(MetadataError):
    """Metadata of more bytes than are read."""

    def __init__(self, longest_bytes: int) -> None:
        super().__init__(f"it is longer than {longest_bytes >> 20} MiB; expire snapshots")


def parse_metadata(content: bytes, snapshot_id: int) -> "TableMetadata":
    """The metadata in a file's bytes, plain or in gzip, whatever its name says; the wanted snapshot is told whole.

    Raises:
        MetadataError: says which part of it cannot be read.
    """
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.table.metadata import TableMetadataUtil

    metadata = _json(content)
    version = metadata.get("format-version")
    if version not in FORMAT_VERSIONS:
        raise MetadataError(f"its format version is {_format_version(version)}, this server knows 1 to 3")
    try:
        return TableMetadataUtil.parse_obj(_readable(metadata, snapshot_id))
    except (*PARSE_ERRORS, ValidationError) as error:
        raise MetadataError(_describe_error(error)) from error


def decompress_metadata(content: bytes, longest_bytes: int) -> bytes:
    """The text of a metadata file, plain or in gzip, whatever its name says (Iceberg spec, Appendix F).

    Raises:
        MetadataError: it is compressed and cut off.
        TooLong: it is; no more than `longest_bytes` are unpacked to tell.
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


def _json(content: bytes) -> dict[str, Any]:
    try:
        metadata = orjson.loads(decompress_metadata(content, MAX_METADATA_BYTES))
    except MetadataError:
        raise
    except ValueError as error:
        raise MetadataError(NOT_WHOLE) from error
    if not isinstance(metadata, dict):
        raise MetadataError("it is no JSON object")
    return metadata


def _readable(metadata: Mapping[str, Any], snapshot_id: int) -> dict[str, Any]:

    fields = {name: value for name, value in metadata.items() if name not in OF_HISTORY}
    if "schemas" in fields:
        fields["schemas"] = [with_foreign_types(schema) for schema in fields["schemas"]]
    if "schema" in fields:
        fields["schema"] = with_foreign_types(fields["schema"])
    fields["snapshots"] = [_snapshot(one, snapshot_id) for one in fields.get("snapshots") or ()]
    return fields


def _snapshot(snapshot: Any, snapshot_id: int) -> Any:

    if not isinstance(snapshot, dict):
        return snapshot
    if snapshot.get("snapshot-id") != snapshot_id:
        snapshot = {name: snapshot[name] for name in OF_SNAPSHOTS if name in snapshot} | _operation(snapshot)
    summary = snapshot.get("summary")
    if isinstance(summary, dict) and summary.get("operation") not in OPERATIONS:
        snapshot = {**snapshot, "summary": {**summary, "operation": "overwrite"}}
    if snapshot.get("manifest-list") is None and isinstance(snapshot.get("manifests"), list):
        return OldestSnapshot.model_validate(snapshot)
    return snapshot


def _operation(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    summary = snapshot.get("summary")
    return {"summary": {"operation": summary.get("operation")}} if isinstance(summary, dict) else {}


def _describe_error(error: Exception) -> str:
    """The field that pydantic stumbled over; its own words may have the whole text."""
    from pydantic import ValidationError

    cause = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(cause, ValidationError):
        return "it lacks a part, or has one of another type than Iceberg says"
    first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(step) for step in first["loc"])
    return (
        f"its field {place} is missing or not what Iceberg says"
        if place
        else "its parts contradict each other"
    )


def _format_version(version: object) -> str:
    return str(version) if isinstance(version, int) else "not said"


NO_SNAPSHOT = -1

_log = logging.getLogger(__name__)


def read_metadata_text(stores: Stores, location: str) -> bytes:
    """The JSON of a metadata file, which may be compressed, whatever its name says (Iceberg spec, Appendix F).

    Raises:
        MetadataError: it is compressed and not whole, or too long.
        StoreError, Unavailable, BadRequest: as `Stores.read` says.
    """
    return decompress_metadata(stores.read(location), MAX_METADATA_BYTES)


def open_metadata(
    stores: Stores, metadata_location: str, snapshot_id: int
) -> "tuple[TableMetadata, Snapshot]":
    """What a metadata file says of its table, and one of its snapshots.

    Of a table without one, `NO_SNAPSHOT` gives a snapshot without files.

    Raises:
        Unserveable: the file cannot be read, or has no such snapshot.
        Unavailable: its store does not answer.
    """
    table = _open(stores, metadata_location, snapshot_id)
    if snapshot_id == NO_SNAPSHOT and table.current_snapshot_id is None:
        return table, _without_files(table)
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} has no snapshot {snapshot_id}.",
            "It may have been expired; publish a newer one.",
        )
    return table, snapshot


def schema_at(table: "TableMetadata", snapshot: "Snapshot") -> "Schema":
    """The columns that readers of a snapshot get."""
    schemas = {schema.schema_id: schema for schema in table.schemas}
    is_newest = snapshot.snapshot_id == table.current_snapshot_id
    return schemas[
        readers_schema_id(
            is_newest=is_newest,
            written_with=snapshot.schema_id,
            today=table.current_schema_id,
            known=schemas.keys(),
        )
    ]


def readers_schema_id(
    *, is_newest: bool, written_with: int | None, today: int, known: Collection[int]
) -> int:
    """The id of the schema that readers of a snapshot get.

    Readers of a table's newest snapshot get today's columns, also those that changed since it was written.
    """
    if is_newest or written_with is None or written_with not in known:
        return today
    return written_with


def _without_files(table: "TableMetadata") -> "Snapshot":

    return OldestSnapshot.model_validate(
        {
            "snapshot-id": NO_SNAPSHOT,
            "timestamp-ms": table.last_updated_ms,
            "schema-id": table.current_schema_id,
            "manifests": [],
        }
    )


def _open(stores: Stores, location: str, snapshot_id: int) -> "TableMetadata":
    try:
        return parse_metadata(stores.read(location), snapshot_id)
    except (*LASTING, MetadataError) as error:
        _log.warning("%s cannot be read: %s", location, error)
        reason = f": {error}" if isinstance(error, MetadataError) else ""
        raise Unserveable(
            f"The Iceberg metadata {location} cannot be read{reason}.",
            "Check that the file is there and whole.",
        ) from error


class OldestSnapshot(Snapshot):
    """A snapshot without a manifest list: it names its manifests itself (Iceberg spec, "Snapshots", `manifests`)."""

    manifest_list: str = Field(alias="manifest-list", default="")
    manifest_paths: list[str] = Field(alias="manifests")


class ForeignType(PrimitiveType):
    """A type of a column that is known by its name only."""

    root: str = Field()

    def __init__(self, name: str) -> None:
        super().__init__(root=name)

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Take any name; pyiceberg's own types refuse those that it does not know."""
        return handler(v)

    @model_serializer
    def ser_model(self) -> str:
        """The name, as metadata has it."""
        return self.root

    def __getnewargs__(self) -> tuple[str]:
        return (self.root,)


def with_foreign_types(kind: Any) -> Any:
    """A type of a schema in Iceberg's JSON form, in which each name that pyiceberg cannot parse is a `ForeignType`."""
    if isinstance(kind, str):
        return kind if _is_known(kind) else ForeignType(kind)
    if not isinstance(kind, dict):
        return kind
    if isinstance(kind.get("fields"), list):
        return {**kind, "fields": [_with_type(field, "type") for field in kind["fields"]]}
    for part in ("element", "key", "value"):
        kind = _with_type(kind, part)
    return kind


def _with_type(field: Any, part: str) -> Any:
    return (
        {**field, part: with_foreign_types(field[part])}
        if isinstance(field, dict) and part in field
        else field
    )


def _is_known(name: str) -> bool:
    try:
        IcebergType.model_validate(name)
    except (ValidationError, ValueError, MalformedType):
        return False
    return True


REPLACE = "replace"
ColumnsById = Mapping[int, tuple[str, str]]


def keeps_rows(stores: Stores, metadata_location: str, snapshot_id: int, before_id: int) -> bool:
    """Whether every snapshot from one to the other only replaced files by others with the same rows, as compaction
    does (Iceberg's specification, "Snapshots": operation `replace`).

    Raises:
        Unserveable: the metadata cannot be read.
        Unavailable: its store does not answer.
    """
    table, _ = open_metadata(stores, metadata_location, snapshot_id)
    for ancestor, operation in _ancestors(table, snapshot_id):
        if ancestor == before_id:
            return True
        if operation != REPLACE:
            return False
    return False


def restores_columns(stores: Stores, before: tuple[str, int], after: tuple[str, int]) -> bool:
    """Whether a later state, given by metadata location and snapshot id, has a column that the table had before, but
    not at the earlier state: files of both then tell other rows in each. Rolling back over a dropped column does that.

    Raises:
        Unserveable: the metadata cannot be read.
        Unavailable: its store does not answer.
    """
    then = open_metadata(stores, *before)
    now = open_metadata(stores, *after)
    new = schema_at(*now).field_ids - schema_at(*then).field_ids
    return any(field_id <= then[0].last_column_id for field_id in new)


def columns_by_id(stores: Stores, metadata_location: str, snapshot_id: int) -> ColumnsById:
    """The name and the type of each column of a snapshot, those inside of others too, by field id.

    Raises:
        Unserveable: the metadata cannot be read.
        Unavailable: its store does not answer.
    """
    table, snapshot = open_metadata(stores, metadata_location, snapshot_id)
    schema = schema_at(table, snapshot)
    names = {field_id: schema.find_column_name(field_id) or "" for field_id in schema.field_ids}
    return {
        field_id: (name, str(kind) if (kind := schema.find_type(field_id)).is_primitive else "")
        for field_id, name in names.items()
    }


def column_conflict(versions: Iterable[ColumnsById]) -> str | None:
    """A column that has another name, another type, or is another one in some version; None when there is none."""
    by_id: dict[int, tuple[str, str]] = {}
    by_name: dict[str, int] = {}
    for columns in versions:
        for field_id, (name, kind) in columns.items():
            if by_id.setdefault(field_id, (name, kind)) != (name, kind):
                return by_id[field_id][0]
            if by_name.setdefault(name.lower(), field_id) != field_id:
                return name
    return None


def _ancestors(table: "TableMetadata", snapshot_id: int) -> Iterator[tuple[int, str | None]]:
    """The snapshot and those it came from, the newest first, with what made them."""
    at: int | None = snapshot_id
    while at is not None:
        snapshot = table.snapshot_by_id(at)
        if snapshot is None:
            return
        summary = snapshot.summary
        yield at, None if summary is None else summary.operation.value
        at = snapshot.parent_snapshot_id
