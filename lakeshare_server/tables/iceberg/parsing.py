"""The JSON of an Iceberg metadata file as objects of pyiceberg, with what pyiceberg itself does not accept.

Imported when a metadata file is read: it is what needs pyiceberg's tables.
"""

from typing import Any

import orjson
from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pyiceberg.exceptions import ValidationError as MalformedType
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, PrimitiveType

from lakeshare_server.tables.iceberg.metadata import (
    FORMAT_VERSIONS,
    MAX_METADATA_BYTES,
    NOT_WHOLE,
    OPERATIONS,
    MetadataError,
    decompress_metadata,
)

# These fields grow with the table's history and are not needed to read one snapshot.
OF_HISTORY = ("snapshot-log", "metadata-log", "refs", "statistics", "partition-statistics")
# The fields kept of other snapshots: of their summaries, which are most of a large file, only the operation.
OF_SNAPSHOTS = (
    "snapshot-id", "parent-snapshot-id", "timestamp-ms", "schema-id", "manifest-list", "manifests", "sequence-number",
)  # fmt: skip
# Errors of reducing and parsing JSON that is no table metadata.
PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration)


def parse_metadata(content: bytes, snapshot_id: int) -> TableMetadata:
    """Parses a metadata file, plain or gzip, with one complete snapshot; raises MetadataError if it cannot be read."""
    text = decompress_metadata(content, MAX_METADATA_BYTES)
    try:
        metadata = orjson.loads(text)
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
            if version == 1 and "current-schema-id" in fields:
                fields.setdefault("schema", fields["schemas"][0])  # pyiceberg requires it, and reads the list
        if version == 1 and (specs := fields.get("partition-specs")):  # there, the default is optional
            fields.setdefault("default-spec-id", max(spec["spec-id"] for spec in specs))
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
    has_part = isinstance(field, dict) and part in field
    return {**field, part: with_foreign_types(field[part])} if has_part else field
