"""Every request to S3 Batch Operations is valid under the service's own model."""

import datetime as dt
from typing import Any

from lakeshare_pipelines.backup.config import Batch
from lakeshare_pipelines.backup.copy.aws_batch import BatchJob, make_copy_request
from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.batch_server import require_acceptable

AS_OF = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)
BATCH = Batch(account="222222222222", role_arn="arn:aws:iam::222222222222:role/copier")
TARGET = StoreAddress(url="s3://vault/lake/", region="eu-central-1", account="222222222222")


JOB = BatchJob(
    number=0, bucket="lake", stored_prefix="lake/objects", has_versions=False, objects=1, size_bytes=1, token="token",
    manifest_key="work/manifest.csv", manifest_etag="0" * 32, rows_key="work/rows", report_prefix="work/report",
)  # fmt: skip


def a_request(batch: Batch = BATCH, job: BatchJob = JOB, **changed: Any) -> dict[str, Any]:
    return {**make_copy_request(batch, TARGET, job, AS_OF, "of a test"), **changed}


def test_a_copy_job_says_what_is_to_be_copied_as_of_when() -> None:
    request = a_request()
    require_acceptable(BATCH.account, request)
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
    require_acceptable(BATCH.account, request)
