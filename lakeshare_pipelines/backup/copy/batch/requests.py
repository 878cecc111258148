"""What is said to S3 Batch Operations: the requests, checked, and a client that reaches a stand-in too."""

import datetime as dt
from typing import Any

from lakeshare_pipelines.backup.copy.batch.manifests import JobKind
from lakeshare_pipelines.backup.copy.batch.service_model import check_request
from lakeshare_pipelines.backup.declared import Batch
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.s3 import s3_client

MANIFEST_FORMAT = "S3BatchOperations_CSV_20180820"
REPORT_FORMAT = "Report_CSV_20180820"

# A request's or an answer's members by name, as boto3 takes and gives them: it ships no types.
Said = dict[str, Any]


def copy_job(
    batch: Batch,
    target: StoreAddress,
    kind: JobKind,
    as_of: dt.datetime,
    manifest: tuple[str, str],
    report_prefix: str,
    token: str,
    description: str,
) -> Said:
    """A CreateJob request that copies one manifest's objects; `manifest` is its key in the target and its ETag.

    An object that was modified after `as_of` is a failed task (UnModifiedSinceConstraint): a job knows no condition on
    ETags. No ACL is sent: in the target bucket the owner is enforced.

    Raises:
        BackupError: the service would refuse it.
    """
    operation: Said = {
        "TargetResource": bucket_arn(batch, target.bucket),
        "MetadataDirective": "COPY",
        "UnModifiedSinceConstraint": as_of,
    }
    if kind.stored_prefix:
        operation["TargetKeyPrefix"] = kind.stored_prefix
    if batch.storage_class:
        operation["StorageClass"] = batch.storage_class
    key, etag = manifest
    request: Said = {
        "AccountId": batch.account,
        "ConfirmationRequired": batch.confirm,
        "Operation": {"S3PutObjectCopy": operation},
        "Report": _report(batch, target, report_prefix),
        "ClientRequestToken": token,
        "Manifest": {
            "Spec": {
                "Format": MANIFEST_FORMAT,
                "Fields": ["Bucket", "Key", *(["VersionId"] if kind.has_versions else [])],
            },
            "Location": {"ObjectArn": f"{bucket_arn(batch, target.bucket)}/{key}", "ETag": etag},
        },
        "Description": description[:256],
        "Priority": batch.priority,
        "RoleArn": batch.role_arn,
    }
    check_request("s3control", "CreateJob", request)
    return request


def bucket_arn(batch: Batch, bucket: str) -> str:
    """A bucket's ARN, in the partition (`aws`, `aws-cn`, …) that the role is in."""
    return f"arn:{batch.role_arn.split(':')[1]}:s3:::{bucket}"


def control_client(batch: Batch, target: StoreAddress) -> Any:
    """boto3's client of s3control in the target's region, where jobs must be made; it ships no types."""
    client = s3_client(target.model_copy(update={"endpoint": batch.endpoint}), "s3control")
    if batch.endpoint:
        prefix = f"{batch.account}."

        def without_account(request: Any, **_: object) -> None:
            # boto3 puts the account before the host, whatever is configured; it stays in a header.
            request.url = request.url.replace(f"://{prefix}", "://", 1)

        client.meta.events.register("before-sign.s3-control", without_account)
    return client


def _report(batch: Batch, target: StoreAddress, prefix: str) -> Said:
    owner = {"ExpectedBucketOwner": target.account} if target.account else {}
    return {
        "Bucket": bucket_arn(batch, target.bucket),
        "Format": REPORT_FORMAT,
        "Enabled": True,
        "Prefix": prefix,
        "ReportScope": "AllTasks",
        **owner,
    }
