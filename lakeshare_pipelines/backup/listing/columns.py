"""The columns of an S3 inventory report, and how manifests spell them for CSV, ORC and Parquet.

Reports are read by the schema that their own manifest tells, never by position from here: AWS adds columns.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from lakeshare_pipelines.errors import BackupError

ReportFormat = Literal["CSV", "ORC", "Parquet"]
FORMATS: tuple[ReportFormat, ...] = ("CSV", "ORC", "Parquet")
Kind = Literal["string", "bigint", "timestamp", "boolean"]

MANIFEST_VERSION = "2016-11-30"
"""What every manifest.json says of itself."""


@dataclass(frozen=True)
class InventoryColumn:
    """One column: `field` as configurations and CSV manifests spell it, `name` as ORC, Parquet and the files do."""

    field: str
    name: str
    kind: Kind
    is_required: bool = False

    @property
    def arrow_field(self) -> pa.Field:
        """As it is in a data file; times are milliseconds of UTC."""
        return pa.field(self.name, _ARROW[self.kind], nullable=not self.is_required)


BUCKET = InventoryColumn("Bucket", "bucket", "string", is_required=True)
KEY = InventoryColumn("Key", "key", "string", is_required=True)

VERSION_COLUMNS = (
    InventoryColumn("VersionId", "version_id", "string"),
    InventoryColumn("IsLatest", "is_latest", "boolean"),
    InventoryColumn("IsDeleteMarker", "is_delete_marker", "boolean"),
)
"""Of reports of all versions only."""

OPTIONAL_COLUMNS = (
    InventoryColumn("Size", "size", "bigint"),
    InventoryColumn("LastModifiedDate", "last_modified_date", "timestamp"),
    InventoryColumn("ETag", "e_tag", "string"),
    InventoryColumn("StorageClass", "storage_class", "string"),
    InventoryColumn("IsMultipartUploaded", "is_multipart_uploaded", "boolean"),
    InventoryColumn("ReplicationStatus", "replication_status", "string"),
    InventoryColumn("EncryptionStatus", "encryption_status", "string"),
    InventoryColumn("ObjectLockRetainUntilDate", "object_lock_retain_until_date", "timestamp"),
    InventoryColumn("ObjectLockMode", "object_lock_mode", "string"),
    InventoryColumn("ObjectLockLegalHoldStatus", "object_lock_legal_hold_status", "string"),
    InventoryColumn("IntelligentTieringAccessTier", "intelligent_tiering_access_tier", "string"),
    InventoryColumn("BucketKeyStatus", "bucket_key_status", "string"),
    InventoryColumn("ChecksumAlgorithm", "checksum_algorithm", "string"),
    InventoryColumn("ObjectAccessControlList", "object_access_control_list", "string"),
    InventoryColumn("ObjectOwner", "object_owner", "string"),
    InventoryColumn("LifecycleExpirationDate", "lifecycle_expiration_date", "timestamp"),
    InventoryColumn("IntelligentTieringReferenceDate", "intelligent_tiering_reference_date", "timestamp"),
    InventoryColumn("ObjectLockEventHoldStatus", "object_lock_event_hold_status", "string"),
    InventoryColumn("ObjectLockEventHoldDuration", "object_lock_event_hold_duration", "string"),
)
"""What a configuration may ask for (OptionalFields), in the order reports have them."""

NEEDED_FIELDS = (
    "Size",
    "LastModifiedDate",
    "ETag",
    "StorageClass",
    "IsMultipartUploaded",
    "EncryptionStatus",
    "ChecksumAlgorithm",
)
"""What a backup asks a report for; without the first three there is nothing to compare with."""

LISTED_AS = {
    "bucket": "bucket",
    "key": "key",
    "version_id": "version_id",
    "is_latest": "is_latest",
    "is_delete_marker": "is_delete_marker",
    "size": "size_bytes",
    "last_modified_date": "last_modified",
    "e_tag": "etag",
    "storage_class": "storage_class",
    "is_multipart_uploaded": "is_multipart",
    "encryption_status": "encryption",
    "checksum_algorithm": "checksum_algorithm",
}
"""Columns of reports that a listing keeps (backup/rows.py, LISTING), by their names in data files."""

_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "boolean": pa.bool_(),
}
_PARQUET = {
    "string": "binary {} (UTF8)",
    "bigint": "int64 {}",
    "timestamp": "int64 {} (TIMESTAMP_MILLIS)",
    "boolean": "boolean {}",
}
_BY_FIELD = {column.field: column for column in (BUCKET, KEY, *VERSION_COLUMNS, *OPTIONAL_COLUMNS)}


def report_columns(
    fields: Collection[str] = NEEDED_FIELDS, *, versions: bool = False
) -> tuple[InventoryColumn, ...]:
    """The columns of a report that was asked for some optional fields, in their order."""
    asked = tuple(column for column in OPTIONAL_COLUMNS if column.field in fields)
    return (BUCKET, KEY, *(VERSION_COLUMNS if versions else ()), *asked)


def arrow_schema(columns: Sequence[InventoryColumn]) -> pa.Schema:
    """The columns of a data file (ORC, Parquet), or of its rows before they become CSV."""
    return pa.schema([column.arrow_field for column in columns])


def file_schema(file_format: ReportFormat, columns: Sequence[InventoryColumn]) -> str:
    """The `fileSchema` of a manifest (S3 User Guide, "Inventory manifest")."""
    if file_format == "CSV":
        return ", ".join(column.field for column in columns)
    if file_format == "ORC":
        return f"struct<{','.join(f'{column.name}:{column.kind}' for column in columns)}>"
    told = (
        f"{'required' if column.is_required else 'optional'} {_PARQUET[column.kind].format(column.name)};"
        for column in columns
    )
    return f"message s3.inventory {{ {' '.join(told)} }}"


def names_in(file_format: ReportFormat, told: str) -> tuple[str, ...]:
    """The names of the columns a `fileSchema` tells, in its order, as data files spell them; unknown ones as told.

    Raises:
        BackupError: it is no schema of that format, or has no bucket and key.
    """
    found = tuple(_NAMES[file_format](told))
    if not {"bucket", "key"} <= set(found):
        raise BackupError(
            f"fileSchema {told!r}",
            f"it is no schema of a {file_format} report with a bucket and a key",
            "Take a report that AWS S3 Inventory or `lakeshare inventory generate` wrote.",
        )
    return found


def _csv_names(told: str) -> list[str]:
    fields = (field.strip() for field in told.split(","))
    return [_BY_FIELD[field].name if field in _BY_FIELD else field for field in fields]


def _orc_names(told: str) -> list[str]:
    body = re.fullmatch(r"\s*struct<(.*)>\s*", told, re.DOTALL)
    return re.findall(r"(?:^|,)\s*(\w+)\s*:", body[1]) if body else []


def _parquet_names(told: str) -> list[str]:
    # Reports say (UTF8) and (TIMESTAMP_MILLIS), or by newer writers (STRING) and (TIMESTAMP(MILLIS,true)).
    body = re.fullmatch(r"\s*message\s+\S+\s*\{(.*)\}\s*", told, re.DOTALL)
    return re.findall(r"(?:required|optional)\s+\w+\s+(\w+)", body[1]) if body else []


_NAMES = {"CSV": _csv_names, "ORC": _orc_names, "Parquet": _parquet_names}
