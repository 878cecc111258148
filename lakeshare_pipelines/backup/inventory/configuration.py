"""The configuration of S3 Inventory that a backup needs, put into the store and read back from it.

Nothing here ever deletes one: stores that do not know inventories take that for the deletion of the bucket.
"""

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.store import FOLDER, REFUSALS, make_s3_client
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


def select_report_columns(
    fields: Collection[str] = NEEDED_FIELDS, *, versions: bool = False
) -> tuple[InventoryColumn, ...]:
    """The columns of a report that was asked for some optional fields, in their order."""
    selected = tuple(column for column in OPTIONAL_COLUMNS if column.field in fields)
    return (BUCKET, KEY, *(VERSION_COLUMNS if versions else ()), *selected)


def arrow_schema(columns: Sequence[InventoryColumn]) -> pa.Schema:
    """The columns of a data file (ORC, Parquet), or of its rows before they become CSV."""
    return pa.schema([column.arrow_field for column in columns])


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
    """The names of the columns a `fileSchema` tells, in its order, as data files spell them; unknown ones as told.

    Raises:
        BackupError: it is no schema of that format, or has no bucket and key.
    """
    found = tuple(_NAMES[file_format](schema))
    if not {"bucket", "key"} <= set(found):
        raise BackupError(
            f"fileSchema {schema!r}",
            f"it is no schema of a {file_format} report with a bucket and a key",
            "Take a report that AWS S3 Inventory or `lakeshare inventory generate` wrote.",
        )
    return found


def _parse_csv_schema(schema: str) -> list[str]:
    fields = (field.strip() for field in schema.split(","))
    return [_BY_FIELD[field].name if field in _BY_FIELD else field for field in fields]


def _parse_orc_schema(schema: str) -> list[str]:
    body = re.fullmatch(r"\s*struct<(.*)>\s*", schema, re.DOTALL)
    return re.findall(r"(?:^|,)\s*(\w+)\s*:", body[1]) if body else []


def _parse_parquet_schema(schema: str) -> list[str]:
    # Reports say (UTF8) and (TIMESTAMP_MILLIS), or by newer writers (STRING) and (TIMESTAMP(MILLIS,true)).
    body = re.fullmatch(r"\s*message\s+\S+\s*\{(.*)\}\s*", schema, re.DOTALL)
    return re.findall(r"(?:required|optional)\s+\w+\s+(\w+)", body[1]) if body else []


_NAMES = {"CSV": _parse_csv_schema, "ORC": _parse_orc_schema, "Parquet": _parse_parquet_schema}


def own_prefixes(backup: Backup) -> tuple[str, ...]:
    """Prefixes of keys in the source's bucket that are never backed up.

    Those are `_lakeshare/` at the top of the bucket and of the source, copies and records when the target lies in the
    source, and the place where reports arrive when that is the source's bucket too.
    """
    source, target = backup.source, backup.target
    found = {OWN_PREFIX, f"{source.prefix}{OWN_PREFIX}"}
    # Of a target with a day in it all days: they begin alike.
    places = [target.model_copy(update={"url": target.url.split("{day}")[0]}), backup.records]
    if backup.listing.kind != "manifest_csv":
        locations = (backup.listing.location, backup.listing.journal)
        places += [resolve_address(backup, location) for location in locations if location is not None]
    found |= {below for place in places if (below := _below(place, source))}
    return tuple(sorted(found))


def resolve_address(backup: Backup, location: str) -> StoreAddress:
    """The address of a location that a listing is told of, reached as `listing.store` says, or as the source is."""
    url = location.rstrip("/") if location.startswith("/") else location
    return (backup.listing.store or backup.source).model_copy(update={"url": url})


def drop_prefixes(rows: pa.RecordBatch, prefixes: Sequence[str]) -> pa.RecordBatch:
    """The rows of a listing whose keys begin with none of the prefixes."""
    for prefix in prefixes:
        is_own = pc.starts_with(rows["key"], prefix)
        if pc.any(is_own).as_py():
            rows = rows.filter(pc.invert(is_own))
    return rows


def _below(place: StoreAddress, source: StoreAddress) -> str:
    """What keys of the source begin with that lie at a place; empty when none can."""
    root = f"{source.url.rstrip('/')}/" if source.kind == FOLDER else f"s3://{source.bucket}/"
    if not place.url.startswith(root) or place.endpoint != source.endpoint:
        return ""
    below = place.url.removeprefix(root)
    return below if below.endswith(("-", "/")) or not below else f"{below}/"


Document = dict[str, Any]  # JSON, as boto3 takes and gives it
Frequency = Literal["Daily", "Weekly"]
LOCK_FIELDS = ("ObjectLockRetainUntilDate", "ObjectLockMode", "ObjectLockLegalHoldStatus")
ABSENT = {"NoSuchConfiguration", "NoSuchBucketPolicy"}
UNKNOWN = {"NotImplemented", "MethodNotAllowed", "BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
"""How stores answer that do not know the request; some take it for the creation of the bucket."""
USE_GENERATOR = "Use the generator: leave `listing` out, or set `listing.kind: generator`."


@dataclass(frozen=True)
class InventoryOptions:
    """What is asked of a store besides what a backup declares."""

    file_format: ReportFormat = "Parquet"
    frequency: Frequency = "Daily"
    kms_key: str | None = None
    """ARN of the key that reports are encrypted with; the bucket's own keys (SSE-S3) without."""
    with_lock: bool = False
    """Ask for the columns of Object Lock as well."""


@dataclass(frozen=True)
class Destination:
    """Where reports arrive: `<prefix>/<source bucket>/<configuration>/` in a bucket."""

    address: StoreAddress
    prefix: str
    configuration: str


def get_destination(backup: Backup) -> Destination:
    """The destination that `listing.location` tells.

    Raises:
        BackupError: reports of the backup's source cannot arrive there.
    """
    location = backup.listing.location
    if backup.listing.kind != "s3_inventory" or location is None or backup.source.kind == FOLDER:
        raise BackupError(
            f"backup {backup.name}",
            f"its listing is of kind {backup.listing.kind}, of {backup.source}",
            "Set `listing.kind: s3_inventory` and `listing.location` for a bucket of S3.",
        )
    address = resolve_address(backup, location)
    parts = address.prefix.rstrip("/").split("/")
    if address.kind == FOLDER or len(parts) < 2 or parts[-2] != backup.source.bucket:
        raise BackupError(
            location,
            "reports cannot arrive there",
            f"Let `listing.location` be s3://bucket/prefix/{backup.source.bucket}/configuration-id.",
        )
    return Destination(address.at(address.bucket), "/".join(parts[:-2]), parts[-1])


def make_configuration(backup: Backup, wanted: InventoryOptions) -> Document:
    """The InventoryConfiguration (S3 API, PutBucketInventoryConfiguration)."""
    destination = get_destination(backup)
    bucket: Document = {
        "Bucket": make_arn(destination.address),
        "Format": wanted.file_format,
        "Encryption": {"SSEKMS": {"KeyId": wanted.kms_key}} if wanted.kms_key else {"SSES3": {}},
    }
    if destination.prefix:
        bucket["Prefix"] = destination.prefix
    if destination.address.account:
        bucket["AccountId"] = destination.address.account
    configuration: Document = {
        "Id": destination.configuration,
        "IsEnabled": True,
        "IncludedObjectVersions": "All" if backup.listing.versions else "Current",
        "Schedule": {"Frequency": wanted.frequency},
        "Destination": {"S3BucketDestination": bucket},
        "OptionalFields": [*NEEDED_FIELDS, *(LOCK_FIELDS if wanted.with_lock else ())],
    }
    if backup.source.prefix:
        configuration["Filter"] = {"Prefix": backup.source.prefix}
    return configuration


def make_statement(backup: Backup) -> Document:
    """What the destination's bucket policy has to allow (S3 User Guide, "Granting permissions for … Inventory").

    Raises:
        BackupError: the source's account is not declared.
    """
    destination = get_destination(backup)
    if backup.source.account is None:
        raise BackupError(
            f"backup {backup.name}",
            "the account of its source is not declared",
            "Give `source.account`: the destination's policy lets only that account's bucket report.",
        )
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
    """The configuration that the store has under the backup's id; None when it has none.

    Raises:
        BackupError: the store knows no inventories, refuses, or does not answer.
    """
    destination = get_destination(backup)
    try:
        with _open_client(backup.source) as client:
            response = client.get_bucket_inventory_configuration(
                Bucket=backup.source.bucket, Id=destination.configuration, **_owner(backup.source)
            )
    except _Absent:
        return None
    found: Document = response.get("InventoryConfiguration", {})
    if "Id" not in found:
        # It took the request for a listing of the bucket.
        raise BackupError(f"{backup.source}", "the store knows no inventories", USE_GENERATOR)
    return found


def put_configuration(backup: Backup, wanted: InventoryOptions) -> Document:
    """Put the configuration into the store and read it back; one of the same id is replaced, no other is touched.

    Raises:
        BackupError: the store knows no inventories or did not keep this one, or the destination is in another region.
    """
    document, destination = make_configuration(backup, wanted), get_destination(backup)
    # Looked at first: a store that knows no inventories may take the request for another one.
    get_configuration(backup)
    regions = [_region(backup.source), _region(destination.address)]
    if regions[0] != regions[1]:
        raise BackupError(
            f"{destination.address}",
            f"it is in {regions[1]}, and {backup.source} in {regions[0]}: inventories go to the same region",
            "Let the reports arrive in a bucket of the source's region.",
        )
    with _open_client(backup.source) as client:
        client.put_bucket_inventory_configuration(
            Bucket=backup.source.bucket,
            Id=document["Id"],
            InventoryConfiguration=document,
            **_owner(backup.source),
        )
    stored = get_configuration(backup)
    if stored is None or _comparable(stored) != _comparable(document):
        raise BackupError(
            f"{backup.source}",
            f"the store did not keep inventory configuration {document['Id']} as it was put",
            USE_GENERATOR,
        )
    return stored


def put_statement(backup: Backup) -> Document:
    """Allow the store to write reports into the destination; other statements of its policy stay. Returns the policy.

    Raises:
        BackupError: the destination refuses, or did not keep it.
    """
    address, statement = get_destination(backup).address, make_statement(backup)
    policy: Document = _policy(address) or {"Version": "2012-10-17", "Statement": []}
    others = [one for one in policy["Statement"] if one.get("Sid") != statement["Sid"]]
    policy = {**policy, "Statement": [*others, statement]}
    with _open_client(address) as client:
        client.put_bucket_policy(Bucket=address.bucket, Policy=json.dumps(policy), **_owner(address))
    if statement not in (_policy(address) or {"Statement": []})["Statement"]:
        raise BackupError(f"{address}", "the store did not keep the bucket policy", "Put it there by hand.")
    return policy


def make_arn(address: StoreAddress) -> str:
    """The ARN of a bucket; its partition follows from the region."""
    region = address.region or ""
    partition = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    name = next((name for start, name in partition.items() if region.startswith(start)), "aws")
    return f"arn:{name}:s3:::{address.bucket}"


def _policy(address: StoreAddress) -> Document | None:
    try:
        with _open_client(address) as client:
            response = client.get_bucket_policy(Bucket=address.bucket, **_owner(address))
    except _Absent:
        return None
    found: Document = json.loads(response["Policy"])
    return found


def _region(address: StoreAddress) -> str:
    with _open_client(address) as client:
        response = client.get_bucket_location(Bucket=address.bucket, **_owner(address))
    return str(response.get("LocationConstraint") or "us-east-1")


def _comparable(document: Document) -> Document:
    """A configuration without what stores order or add as they like."""
    bucket = dict(document["Destination"]["S3BucketDestination"])
    bucket.pop("Encryption", None)
    return {
        **document,
        "OptionalFields": sorted(document.get("OptionalFields", ())),
        "Destination": {"S3BucketDestination": bucket},
    }


class _Absent(BackupError):
    """The store has no such document."""


def _owner(address: StoreAddress) -> dict[str, str]:
    return {"ExpectedBucketOwner": address.account} if address.account else {}


@contextmanager
def _open_client(address: StoreAddress) -> Iterator[Any]:
    """A client of boto3, which has no types; what the store refuses becomes a sentence."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield make_s3_client(address)
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in ABSENT:
            raise _Absent(f"{address}", "there is none", "Put it there.") from error
        if code in UNKNOWN:
            raise BackupError(
                f"{address}", f"the store does not know {error.operation_name}", USE_GENERATOR
            ) from error
        reason, fix = REFUSALS.get(
            code, (f"the store refused: {error}", "Nothing else was changed; correct it and run it again.")
        )
        raise BackupError(f"{address}", f"{error.operation_name}: {reason}", fix) from error
    except BotoCoreError as error:
        raise BackupError(
            f"{address}",
            f"the store cannot be asked: {str(error).rstrip('.')}",
            "Check the endpoint, the network and the credentials.",
        ) from error


ReportProgress = Callable[[str], None]

log = logging.getLogger("lakeshare_pipelines.backup.inventory")


def log_message(sentence: str) -> None:
    """Tell it to the log."""
    log.info("%s", sentence)
