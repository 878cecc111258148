"""Columns of S3 Inventory reports, and the inventory configuration of a backup in its store.

Configurations are never deleted: stores without inventories take such a request for the deletion of the bucket.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.stores import FOLDER, REMEDIES, S3Store, StoreAddress, make_unreachable_error
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.storage import s3
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable

ReportFormat = Literal["CSV", "ORC", "Parquet"]
FORMATS: tuple[ReportFormat, ...] = ("CSV", "ORC", "Parquet")


_BOOLEANS = {"IsLatest", "IsDeleteMarker", "IsMultipartUploaded"}
_TIMES = {
    "LastModifiedDate",
    "ObjectLockRetainUntilDate",
    "LifecycleExpirationDate",
    "IntelligentTieringReferenceDate",
}


@dataclass(frozen=True)
class InventoryColumn:
    """One column; `field` is its name in configurations and CSV manifests."""

    field: str

    @property
    def name(self) -> str:
        """The name in data files and other manifests: `e_tag` of `ETag`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.field).lower()

    @property
    def kind(self) -> Literal["string", "bigint", "timestamp", "boolean"]:
        if self.field == "Size":
            return "bigint"
        return "boolean" if self.field in _BOOLEANS else "timestamp" if self.field in _TIMES else "string"

    @property
    def is_required(self) -> bool:
        return self.field in ("Bucket", "Key")

    @property
    def arrow_field(self) -> pa.Field:
        return pa.field(self.name, _ARROW[self.kind], nullable=not self.is_required)


VERSION_FIELDS = ("VersionId", "IsLatest", "IsDeleteMarker")  # Only in reports of all versions

OPTIONAL_FIELDS = (
    "Size", "LastModifiedDate", "ETag", "StorageClass", "IsMultipartUploaded", "ReplicationStatus",
    "EncryptionStatus", "ObjectLockRetainUntilDate", "ObjectLockMode", "ObjectLockLegalHoldStatus",
    "IntelligentTieringAccessTier", "BucketKeyStatus", "ChecksumAlgorithm", "ObjectAccessControlList", "ObjectOwner",
    "LifecycleExpirationDate", "IntelligentTieringReferenceDate", "ObjectLockEventHoldStatus",
    "ObjectLockEventHoldDuration",
)  # fmt: skip
"""OptionalFields of a configuration, in the order of reports."""

NEEDED_FIELDS = (
    "Size", "LastModifiedDate", "ETag", "StorageClass", "IsMultipartUploaded", "EncryptionStatus",
    "ChecksumAlgorithm",
)  # fmt: skip
"""Fields that a backup requests; without the first three, objects cannot be compared."""

LISTED_AS = {
    **{name: name for name in ("bucket", "key", "version_id", "is_latest", "is_delete_marker")},
    "size": "size_bytes",
    "last_modified_date": "last_modified",
    "e_tag": "etag",
    "storage_class": "storage_class",
    "is_multipart_uploaded": "is_multipart",
    "encryption_status": "encryption",
    "checksum_algorithm": "checksum_algorithm",
}
"""Columns of schema LISTING, by the names in data files."""

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
_FIELDS = {"Bucket", "Key", *VERSION_FIELDS, *OPTIONAL_FIELDS}


def select_report_columns(
    fields: Collection[str] = NEEDED_FIELDS, *, versions: bool = False
) -> tuple[InventoryColumn, ...]:
    selected = (field for field in OPTIONAL_FIELDS if field in fields)
    return tuple(map(InventoryColumn, ("Bucket", "Key", *(VERSION_FIELDS if versions else ()), *selected)))


def format_file_schema(file_format: ReportFormat, columns: Sequence[InventoryColumn]) -> str:
    """The `fileSchema` of a manifest (S3 User Guide, "Inventory manifest")."""
    if file_format == "CSV":
        return ", ".join(column.field for column in columns)
    if file_format == "ORC":
        return f"struct<{','.join(f'{column.name}:{column.kind}' for column in columns)}>"
    fields = (
        f"{'required' if column.is_required else 'optional'} {_PARQUET[column.kind].format(column.name)};"
        for column in columns
    )
    return f"message s3.inventory {{ {' '.join(fields)} }}"


def parse_file_schema(file_format: ReportFormat, schema: str) -> tuple[str, ...]:
    """The column names of a `fileSchema`, as spelt in data files. Raises BackupError without bucket and key."""
    if file_format == "CSV":
        fields = [field.strip() for field in schema.split(",")]
        names = [InventoryColumn(field).name if field in _FIELDS else field for field in fields]
    else:
        # Parquet has (UTF8) and (TIMESTAMP_MILLIS), or by newer writers (STRING) and (TIMESTAMP(MILLIS,true)).
        body, column = _SCHEMAS[file_format]
        match = re.fullmatch(body, schema, re.DOTALL)
        names = re.findall(column, match[1]) if match else []
    if not {"bucket", "key"} <= set(names):
        reason = f"it is no schema of a {file_format} report with a bucket and a key"
        fix = "Take a report that AWS S3 Inventory or `lakeshare inventory generate` wrote."
        raise BackupError(f"fileSchema {schema!r}", reason, fix)
    return tuple(names)


_SCHEMAS = {
    "ORC": (r"\s*struct<(.*)>\s*", r"(?:^|,)\s*(\w+)\s*:"),
    "Parquet": (r"\s*message\s+\S+\s*\{(.*)\}\s*", r"(?:required|optional)\s+\w+\s+(\w+)"),
}


def own_prefixes(backup: Backup) -> tuple[str, ...]:
    """Prefixes of keys in the source's bucket that are never backed up.

    Those are `_lakeshare/` at the top of the bucket and of the source, copies and records if the target is inside the
    source, and the location of reports if that is in the source's bucket too.
    """
    source, target = backup.source, backup.target
    prefixes = {OWN_PREFIX, f"{source.prefix}{OWN_PREFIX}"}
    # Of a target with a day in it the common prefix of all days, which need not end where a name does.
    target_url, day, _ = target.url.partition("{day}")
    addresses = [target.model_copy(update={"url": target_url}), backup.records]
    if backup.listing.kind != "manifest_csv":
        locations = (backup.listing.location, backup.listing.journal)
        addresses += [resolve_address(backup, location) for location in locations if location is not None]
    root = f"{source.url.rstrip('/')}/" if source.kind == FOLDER else f"s3://{source.bucket}/"
    for address in addresses:
        if address.url.startswith(root) and address.endpoint == source.endpoint:
            below = address.url.removeprefix(root)
            is_whole = below.endswith("/") or (day and address.url == target_url)
            prefixes.add(below if is_whole or not below else f"{below}/")
    return tuple(sorted(prefixes - {""}))


def resolve_address(backup: Backup, location: str) -> StoreAddress:
    """The address of a listing's location, with the endpoint and credentials of `listing.store` or the source."""
    url = location.rstrip("/") if location.startswith("/") else location
    return (backup.listing.store or backup.source).model_copy(update={"url": url})


def drop_prefixes(rows: pa.RecordBatch, prefixes: Sequence[str]) -> pa.RecordBatch:
    for prefix in prefixes:
        is_own = pc.starts_with(rows["key"], prefix)
        if pc.any(is_own).as_py():
            rows = rows.filter(pc.invert(is_own))
    return rows


Document = dict[str, Any]  # JSON, as boto3 takes and returns it
LOCK_FIELDS = ("ObjectLockRetainUntilDate", "ObjectLockMode", "ObjectLockLegalHoldStatus")
ABSENT_CODES = {"NoSuchConfiguration", "NoSuchBucketPolicy"}
UNKNOWN_CODES = {"NotImplemented", "MethodNotAllowed", "BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
"""Responses of stores that do not support a request; some take it for the creation of the bucket."""
USE_GENERATOR = "Use the generator: leave `listing` out, or set `listing.kind: generator`."


@dataclass(frozen=True)
class InventoryOptions:
    file_format: ReportFormat = "Parquet"
    frequency: Literal["Daily", "Weekly"] = "Daily"
    kms_key: str | None = None  # ARN of the key of reports; by default the bucket's own (SSE-S3)
    with_lock: bool = False  # Include the columns of Object Lock


@dataclass(frozen=True)
class Destination:
    """The location of reports: `<prefix>/<source bucket>/<configuration>/` in a bucket."""

    address: StoreAddress
    prefix: str
    configuration: str


def get_destination(backup: Backup) -> Destination:
    """The destination in `listing.location`. Raises BackupError if reports of the source cannot arrive there."""
    location = backup.listing.location
    if backup.listing.kind != "s3_inventory" or location is None or backup.source.kind == FOLDER:
        reason = f"its listing is of kind {backup.listing.kind}, of {backup.source}"
        fix = "Set `listing.kind: s3_inventory` and `listing.location` for a bucket of S3."
        raise BackupError(f"backup {backup.name}", reason, fix)
    address = resolve_address(backup, location)
    parts = address.prefix.rstrip("/").split("/")
    if address.kind == FOLDER or len(parts) < 2 or parts[-2] != backup.source.bucket:
        fix = f"Let `listing.location` be s3://bucket/prefix/{backup.source.bucket}/configuration-id."
        raise BackupError(location, "reports cannot arrive there", fix)
    return Destination(address.at(address.bucket), "/".join(parts[:-2]), parts[-1])


def make_configuration(backup: Backup, options: InventoryOptions) -> Document:
    """The InventoryConfiguration (S3 API, PutBucketInventoryConfiguration)."""
    destination = get_destination(backup)
    bucket: Document = {
        "Bucket": make_arn(destination.address),
        "Format": options.file_format,
        "Encryption": {"SSEKMS": {"KeyId": options.kms_key}} if options.kms_key else {"SSES3": {}},
    }
    if destination.prefix:
        bucket["Prefix"] = destination.prefix
    if destination.address.account:
        bucket["AccountId"] = destination.address.account
    configuration: Document = {
        "Id": destination.configuration,
        "IsEnabled": True,
        "IncludedObjectVersions": "All" if backup.listing.versions else "Current",
        "Schedule": {"Frequency": options.frequency},
        "Destination": {"S3BucketDestination": bucket},
        "OptionalFields": [*NEEDED_FIELDS, *(LOCK_FIELDS if options.with_lock else ())],
    }
    if backup.source.prefix:
        configuration["Filter"] = {"Prefix": backup.source.prefix}
    return configuration


def make_statement(backup: Backup) -> Document:
    """The statement of the destination's bucket policy (S3 User Guide, "Granting permissions for … Inventory").
    Raises BackupError if the source's account is not declared."""
    destination = get_destination(backup)
    if backup.source.account is None:
        fix = "Give `source.account`: the destination's policy lets only that account's bucket report."
        raise BackupError(f"backup {backup.name}", "the account of its source is not declared", fix)
    return {
        "Sid": f"LakeshareInventory{backup.name.replace('_', '').capitalize()}",
        "Effect": "Allow",
        "Principal": {"Service": "s3.amazonaws.com"},
        "Action": "s3:PutObject",
        "Resource": f"{make_arn(destination.address)}/*",
        "Condition": {
            "ArnLike": {"aws:SourceArn": make_arn(backup.source)},
            "StringEquals": {
                "aws:SourceAccount": backup.source.account,
                "s3:x-amz-acl": "bucket-owner-full-control",
            },
        },
    }


def get_configuration(backup: Backup) -> Document | None:
    """The store's configuration with the backup's id. Raises BackupError if the store has no inventories."""
    source, id_ = backup.source, get_destination(backup).configuration
    try:
        response = _call(source, "get_bucket_inventory_configuration", Id=id_)
    except _Absent:
        return None
    configuration: Document = response.get("InventoryConfiguration", {})
    if "Id" not in configuration:
        # The store took the request for a listing of the bucket.
        raise BackupError(f"{source}", "the store does not support inventories", USE_GENERATOR)
    return configuration


def put_configuration(backup: Backup, options: InventoryOptions) -> Document:
    """Put the configuration and read it back; replaces one with the same id, and no other. Raises BackupError if the
    store has no inventories or did not keep this one, or the destination is in another region."""
    source, destination = backup.source, get_destination(backup).address
    document = make_configuration(backup, options)
    # First a read: a store without inventories may take a write for another request.
    get_configuration(backup)
    regions = [
        str(_call(address, "get_bucket_location").get("LocationConstraint") or "us-east-1")
        for address in (source, destination)
    ]
    if regions[0] != regions[1]:
        reason = f"it is in {regions[1]}, and {source} in {regions[0]}: inventories go to the same region"
        fix = "Let the reports arrive in a bucket of the source's region."
        raise BackupError(f"{destination}", reason, fix)
    _call(source, "put_bucket_inventory_configuration", Id=document["Id"], InventoryConfiguration=document)
    stored = get_configuration(backup)
    if stored is None or _normalize(stored) != _normalize(document):
        reason = f"the store did not keep inventory configuration {document['Id']} as it was put"
        raise BackupError(f"{source}", reason, USE_GENERATOR)
    return stored


def put_statement(backup: Backup) -> Document:
    """Add the statement to the destination's bucket policy, keeping its other statements; returns the policy."""
    address, statement = get_destination(backup).address, make_statement(backup)
    policy = _get_policy(address)
    others = [other for other in policy["Statement"] if other.get("Sid") != statement["Sid"]]
    policy = {**policy, "Statement": [*others, statement]}
    _call(address, "put_bucket_policy", Policy=json.dumps(policy))
    if statement not in _get_policy(address)["Statement"]:
        raise BackupError(f"{address}", "the store did not keep the bucket policy", "Put it there by hand.")
    return policy


def make_arn(address: StoreAddress) -> str:
    """The ARN of a bucket."""
    return s3.make_bucket_arn(address.bucket, address.region)


def _get_policy(address: StoreAddress) -> Document:
    try:
        policy: Document = json.loads(_call(address, "get_bucket_policy")["Policy"])
    except _Absent:
        return {"Version": "2012-10-17", "Statement": []}
    return policy


def _normalize(document: Document) -> Document:
    """A configuration without what stores reorder or add."""
    bucket = dict(document["Destination"]["S3BucketDestination"])
    bucket.pop("Encryption", None)
    return {
        **document,
        "OptionalFields": sorted(document.get("OptionalFields", ())),
        "Destination": {"S3BucketDestination": bucket},
    }


class _Absent(BackupError):
    """The store has no such document."""


def _call(address: StoreAddress, method: str, **request: Any) -> Document:
    try:
        return S3Store(address).call(method, **request)
    except S3Refused as error:
        if error.code in ABSENT_CODES:
            raise _Absent(f"{address}", "there is none", "Put it there.") from error
        if error.code in UNKNOWN_CODES:
            reason = f"the store does not support {error.operation}"
            raise BackupError(f"{address}", reason, USE_GENERATOR) from error
        reason = f"{error.operation}: {s3.REASONS.get(error.code, f'the store refused: {error}')}"
        fix = REMEDIES.get(error.code, "Nothing else was changed; correct it and run it again.")
        raise BackupError(f"{address}", reason, fix) from error
    except S3Unreachable as error:
        raise make_unreachable_error(f"{address}", error) from error
