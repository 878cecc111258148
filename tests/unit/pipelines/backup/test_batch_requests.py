"""Every request to S3 Batch Operations is valid under the service's own model, or refused before it is sent."""

import datetime as dt
from typing import Any

import pytest

from lakeshare_pipelines.backup.config import Batch
from lakeshare_pipelines.backup.copy.aws_batch import BatchJob, check_request, make_copy_request
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError

AS_OF = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
BATCH = Batch(account="222222222222", role_arn="arn:aws:iam::222222222222:role/copier")
TARGET = StoreAddress(url="s3://vault/lake/", region="eu-central-1", account="222222222222")


JOB = BatchJob(
    number=0, bucket="lake", stored_prefix="lake/objects", has_versions=False, objects=1, size_bytes=1, token="token",
    manifest_key="work/manifest.csv", manifest_etag="0" * 32, rows_key="work/rows", report_prefix="work/report",
)  # fmt: skip


def a_request(batch: Batch = BATCH, job: BatchJob = JOB, **changed: Any) -> dict[str, Any]:
    return {**make_copy_request(batch, TARGET, job, AS_OF, "of a test"), **changed}


def changed_at(path: str, value: Any) -> dict[str, Any]:
    """A request with another value at a path of names; None takes the member away."""
    request = a_request()
    *above, last = path.split(".")
    inner = request
    for name in above:
        inner[name] = dict(inner[name])
        inner = inner[name]
    inner[last] = value
    if value is None:
        del inner[last]
    return request


def test_a_copy_job_says_what_is_to_be_copied_as_of_when() -> None:
    request = a_request()
    check_request("CreateJob", request)
    assert request["Operation"] == {
        "S3PutObjectCopy": {
            "TargetResource": "arn:aws:s3:::vault",
            "TargetKeyPrefix": "lake/objects",
            "MetadataDirective": "COPY",
            "UnModifiedSinceConstraint": AS_OF,
        }
    }
    assert request["Manifest"]["Spec"]["Fields"] == ["Bucket", "Key"]
    assert request["Manifest"]["Location"]["ObjectArn"] == "arn:aws:s3:::vault/work/manifest.csv"
    assert request["Report"]["ExpectedBucketOwner"] == TARGET.account
    assert request["Report"]["ReportScope"] == "AllTasks"


def test_versions_classes_confirmation_and_partitions_are_told() -> None:
    batch = BATCH.model_copy(
        update={
            "storage_class": "GLACIER_IR",
            "confirm": True,
            "priority": 2**31 - 1,
            "role_arn": "arn:aws-cn:iam::222222222222:role/copier",
        }
    )
    request = a_request(batch, JOB.model_copy(update={"stored_prefix": "", "has_versions": True}))
    operation = request["Operation"]["S3PutObjectCopy"]
    assert (operation["StorageClass"], operation["TargetResource"]) == ("GLACIER_IR", "arn:aws-cn:s3:::vault")
    assert "TargetKeyPrefix" not in operation
    assert request["Manifest"]["Spec"]["Fields"] == ["Bucket", "Key", "VersionId"]
    assert (request["ConfirmationRequired"], request["Priority"]) == (True, 2**31 - 1)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("ClientRequestToken", "t" * 65, "ClientRequestToken is 65 long, at most 64"),
        ("ClientRequestToken", None, 'Missing required parameter in input: "ClientRequestToken"'),
        ("ClientRequestToken", "", "valid min length: 1"),
        ("AccountId", "22222222222", "AccountId is '22222222222', not like"),
        ("RoleArn", "copier", "RoleArn is 'copier'"),
        ("Priority", 2**31, "at most 2147483647"),
        ("Priority", -1, "valid min value: 0"),
        ("Priority", "10", "Invalid type for parameter Priority"),
        ("ConfirmationRequired", "yes", "Invalid type for parameter ConfirmationRequired"),
        ("Manifest.Spec.Format", "S3InventoryReport_ORC", "none of S3BatchOperations_CSV_20180820"),
        ("Manifest.Spec.Fields", ["Bucket", "Name"], "Fields[1] is 'Name'"),
        ("Manifest.Location.ETag", '"0123"', "ETag has quotes"),
        ("Manifest.Location.ETag", None, 'Missing required parameter in Manifest.Location: "ETag"'),
        ("Manifest", None, "exactly one of Manifest and ManifestGenerator"),
        ("Report.ReportScope", "Everything", "ReportScope is 'Everything'"),
        ("Report.Prefix", "p" * 513, "Report.Prefix is 513 long"),
        ("Report.Bucket", None, "Report needs Bucket"),
        ("Operation.S3PutObjectCopy.StorageClass", "COLD", "StorageClass is 'COLD'"),
        ("Operation.S3PutObjectCopy.IfMatch", "e", 'Unknown parameter in Operation.S3PutObjectCopy: "IfMatch"'),
        ("Operation.S3PutObjectCopy.TargetKeyPrefix", "", "TargetKeyPrefix, value: 0, valid min length: 1"),
        ("Operation.S3DeleteObjectTagging", {}, "exactly one operation"),
    ],
)  # fmt: skip
def test_what_botocore_would_send_and_the_service_refuse_is_refused(path: str, value: Any, told: str) -> None:
    with pytest.raises(BackupError, match="the request is not valid") as refused:
        check_request("CreateJob", changed_at(path, value))
    assert told in str(refused.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(BackupError) as refused:
        check_request("CreateJob", a_request(Priority=-1, AccountId="none"))
    assert "Priority" in str(refused.value)
    assert "AccountId" in str(refused.value)


def test_a_job_cannot_be_made_active_by_hand() -> None:
    said = {"AccountId": "222222222222", "JobId": "0001-0002", "RequestedJobStatus": "Active"}
    with pytest.raises(BackupError, match="none of Cancelled, Ready"):
        check_request("UpdateJobStatus", said)
