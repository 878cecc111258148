"""The text of a metadata file as pyiceberg's objects, also where it has something that pyiceberg does not know.

Nothing is fetched here, and nothing of what a library says of a broken file goes out.
"""

import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

GZIP = b"\x1f\x8b"
FORMAT_VERSIONS = (1, 2, 3)
OPERATIONS = ("append", "replace", "overwrite", "delete")
NOT_WHOLE = "it is no JSON, or cut off"
# Five times what a hundred thousand commits leave behind; as Python's objects it is some gigabytes.
LONGEST_BYTES = 512 << 20
# They grow with the table's history, and no reader of one snapshot looks at them.
OF_HISTORY = ("snapshot-log", "metadata-log", "refs", "statistics", "partition-statistics")
# Of a snapshot. Summaries of many commits are most of a large file; of all but one only the operation is looked at.
OF_SNAPSHOTS = (
    "snapshot-id", "parent-snapshot-id", "timestamp-ms", "schema-id", "manifest-list", "manifests", "sequence-number",
)  # fmt: skip
# What taking apart does to content that is JSON, but no table's metadata.
WRONG = (ValueError, TypeError, KeyError, AttributeError, IndexError, StopIteration)


class MetadataError(ValueError):
    """Metadata that is not whole, or says what Iceberg does not; the text is fit for the provider."""


class TooLong(MetadataError):
    """Metadata of more bytes than are read."""

    def __init__(self, longest_bytes: int) -> None:
        super().__init__(f"it is longer than {longest_bytes >> 20} MiB; expire snapshots")


def parsed(content: bytes, snapshot_id: int) -> "TableMetadata":
    """The metadata in a file's bytes, plain or in gzip, whatever its name says; the wanted snapshot is told whole.

    Raises:
        MetadataError: says which part of it cannot be read.
    """
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.table.metadata import TableMetadataUtil

    said = _json(content)
    version = said.get("format-version")
    if version not in FORMAT_VERSIONS:
        raise MetadataError(f"its format version is {_shown(version)}, this server knows 1 to 3")
    try:
        return TableMetadataUtil.parse_obj(_readable(said, snapshot_id))
    except (*WRONG, ValidationError) as error:
        raise MetadataError(_what_is_wrong(error)) from error


def unpacked(content: bytes, longest_bytes: int) -> bytes:
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
        raise TooLong(longest_bytes)
    return content


def _json(content: bytes) -> dict[str, Any]:
    try:
        said = orjson.loads(unpacked(content, LONGEST_BYTES))
    except MetadataError:
        raise
    except ValueError as error:
        raise MetadataError(NOT_WHOLE) from error
    if not isinstance(said, dict):
        raise MetadataError("it is no JSON object")
    return said


def _readable(said: Mapping[str, Any], snapshot_id: int) -> dict[str, Any]:
    from lakeshare_server.tables.iceberg.foreign_types import with_foreign_types

    told = {name: value for name, value in said.items() if name not in OF_HISTORY}
    if "schemas" in told:
        told["schemas"] = [with_foreign_types(schema) for schema in told["schemas"]]
    if "schema" in told:
        told["schema"] = with_foreign_types(told["schema"])
    told["snapshots"] = [_snapshot(one, snapshot_id) for one in told.get("snapshots") or ()]
    return told


def _snapshot(said: Any, wanted: int) -> Any:
    from lakeshare_server.tables.iceberg.oldest_snapshots import OldestSnapshot

    if not isinstance(said, dict):
        return said
    if said.get("snapshot-id") != wanted:
        said = {name: said[name] for name in OF_SNAPSHOTS if name in said} | _operation(said)
    summary = said.get("summary")
    if isinstance(summary, dict) and summary.get("operation") not in OPERATIONS:
        said = {**said, "summary": {**summary, "operation": "overwrite"}}
    if said.get("manifest-list") is None and isinstance(said.get("manifests"), list):
        return OldestSnapshot.model_validate(said)
    return said


def _operation(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    summary = snapshot.get("summary")
    return {"summary": {"operation": summary.get("operation")}} if isinstance(summary, dict) else {}


def _what_is_wrong(error: Exception) -> str:
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


def _shown(version: object) -> str:
    return str(version) if isinstance(version, int) else "not said"
