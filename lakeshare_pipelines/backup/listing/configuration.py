"""The configuration of S3 Inventory that a backup needs, put into the store and read back from it.

Nothing here ever deletes one: stores that do not know inventories take that for the deletion of the bucket.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.columns import NEEDED_FIELDS, ReportFormat
from lakeshare_pipelines.backup.listing.own_keys import reached
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.stores.s3 import REFUSALS, s3_client
from lakeshare_pipelines.errors import BackupError

Document = dict[str, Any]  # JSON, as boto3 takes and gives it
Frequency = Literal["Daily", "Weekly"]
LOCK_FIELDS = ("ObjectLockRetainUntilDate", "ObjectLockMode", "ObjectLockLegalHoldStatus")
ABSENT = {"NoSuchConfiguration", "NoSuchBucketPolicy"}
UNKNOWN = {"NotImplemented", "MethodNotAllowed", "BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
"""How stores answer that do not know the request; some take it for the creation of the bucket."""
USE_GENERATOR = "Use the generator: leave `listing` out, or set `listing.kind: generator`."


@dataclass(frozen=True)
class Wanted:
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


def destination_of(backup: Backup) -> Destination:
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
    address = reached(backup, location)
    parts = address.prefix.rstrip("/").split("/")
    if address.kind == FOLDER or len(parts) < 2 or parts[-2] != backup.source.bucket:
        raise BackupError(
            location,
            "reports cannot arrive there",
            f"Let `listing.location` be s3://bucket/prefix/{backup.source.bucket}/configuration-id.",
        )
    return Destination(address.at(address.bucket), "/".join(parts[:-2]), parts[-1])


def configuration_of(backup: Backup, wanted: Wanted) -> Document:
    """The InventoryConfiguration (S3 API, PutBucketInventoryConfiguration)."""
    destination = destination_of(backup)
    bucket: Document = {
        "Bucket": arn(destination.address),
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


def statement_of(backup: Backup) -> Document:
    """What the destination's bucket policy has to allow (S3 User Guide, "Granting permissions for … Inventory").

    Raises:
        BackupError: the source's account is not declared.
    """
    destination = destination_of(backup)
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
        "Resource": f"{arn(destination.address)}/*",
        "Condition": {
            "ArnLike": {"aws:SourceArn": arn(backup.source)},
            "StringEquals": {
                "aws:SourceAccount": backup.source.account,
                "s3:x-amz-acl": "bucket-owner-full-control",
            },
        },
    }


def configured(backup: Backup) -> Document | None:
    """The configuration that the store has under the backup's id; None when it has none.

    Raises:
        BackupError: the store knows no inventories, refuses, or does not answer.
    """
    destination = destination_of(backup)
    try:
        with _asking(backup.source) as asked:
            answer = asked.get_bucket_inventory_configuration(
                Bucket=backup.source.bucket, Id=destination.configuration, **_owner(backup.source)
            )
    except _Absent:
        return None
    found: Document = answer.get("InventoryConfiguration", {})
    if "Id" not in found:
        # It took the request for a listing of the bucket.
        raise BackupError(f"{backup.source}", "the store knows no inventories", USE_GENERATOR)
    return found


def put_configuration(backup: Backup, wanted: Wanted) -> Document:
    """Put the configuration into the store and read it back; one of the same id is replaced, no other is touched.

    Raises:
        BackupError: the store knows no inventories or did not keep this one, or the destination is in another region.
    """
    document, destination = configuration_of(backup, wanted), destination_of(backup)
    # Looked at first: a store that knows no inventories may take the request for another one.
    configured(backup)
    regions = [_region(backup.source), _region(destination.address)]
    if regions[0] != regions[1]:
        raise BackupError(
            f"{destination.address}",
            f"it is in {regions[1]}, and {backup.source} in {regions[0]}: inventories go to the same region",
            "Let the reports arrive in a bucket of the source's region.",
        )
    with _asking(backup.source) as asked:
        asked.put_bucket_inventory_configuration(
            Bucket=backup.source.bucket,
            Id=document["Id"],
            InventoryConfiguration=document,
            **_owner(backup.source),
        )
    kept = configured(backup)
    if kept is None or _comparable(kept) != _comparable(document):
        raise BackupError(
            f"{backup.source}",
            f"the store did not keep inventory configuration {document['Id']} as it was put",
            USE_GENERATOR,
        )
    return kept


def put_statement(backup: Backup) -> Document:
    """Allow the store to write reports into the destination; other statements of its policy stay. Returns the policy.

    Raises:
        BackupError: the destination refuses, or did not keep it.
    """
    address, statement = destination_of(backup).address, statement_of(backup)
    policy: Document = _policy(address) or {"Version": "2012-10-17", "Statement": []}
    others = [one for one in policy["Statement"] if one.get("Sid") != statement["Sid"]]
    policy = {**policy, "Statement": [*others, statement]}
    with _asking(address) as asked:
        asked.put_bucket_policy(Bucket=address.bucket, Policy=json.dumps(policy), **_owner(address))
    if statement not in (_policy(address) or {"Statement": []})["Statement"]:
        raise BackupError(f"{address}", "the store did not keep the bucket policy", "Put it there by hand.")
    return policy


def arn(address: StoreAddress) -> str:
    """The ARN of a bucket; its partition follows from the region."""
    region = address.region or ""
    partition = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    name = next((name for start, name in partition.items() if region.startswith(start)), "aws")
    return f"arn:{name}:s3:::{address.bucket}"


def _policy(address: StoreAddress) -> Document | None:
    try:
        with _asking(address) as asked:
            answer = asked.get_bucket_policy(Bucket=address.bucket, **_owner(address))
    except _Absent:
        return None
    found: Document = json.loads(answer["Policy"])
    return found


def _region(address: StoreAddress) -> str:
    with _asking(address) as asked:
        answer = asked.get_bucket_location(Bucket=address.bucket, **_owner(address))
    return str(answer.get("LocationConstraint") or "us-east-1")


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
def _asking(address: StoreAddress) -> Iterator[Any]:
    """A client of boto3, which has no types; what the store refuses becomes a sentence."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield s3_client(address)
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
