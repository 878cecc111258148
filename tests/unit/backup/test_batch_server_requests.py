"""What boto3 writes for s3control is read as it was meant, and what AWS would refuse is refused with all its faults."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from tests.builders.backup_batch import ACCOUNT, a_copy_job
from tests.builders.batch_server import requests
from tests.builders.batch_server.job import new_job
from tests.builders.batch_server.requests import Refused, operation, other_request, require_acceptable

MOMENT = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
FULL_COPY = {
    "TargetResource": "arn:aws:s3:::store",
    "TargetKeyPrefix": "objects",
    "UnModifiedSinceConstraint": MOMENT,
    "StorageClass": "STANDARD_IA",
    "MetadataDirective": "REPLACE",
    "NewObjectMetadata": {"UserMetadata": {"made-by": "a & b <c>"}, "ContentLength": 5},
    "NewObjectTagging": [{"Key": "é", "Value": ""}],
    "BucketKeyEnabled": True,
}


class _Answer:
    """What stands for a connection's answer."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> list[bytes]:
        return [self._body]


def through_boto3(name: str, asked: Mapping[str, Any], answer: bytes) -> tuple[bytes, dict[str, Any]]:
    """The body that boto3 sends for a call, and what it understands of an answer."""
    client = boto3.client(
        "s3control", region_name="eu-central-1", aws_access_key_id="AK", aws_secret_access_key="sk"
    )
    sent: list[bytes] = []

    def keep(request: Any, **_: Any) -> AWSResponse:
        sent.append(request.body or b"")
        return AWSResponse(request.url, 200, {"content-type": "application/xml"}, _Answer(answer))

    client.meta.events.register(f"before-send.s3-control.{name}", keep)
    method = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
    result = getattr(client, method)(**asked)
    return sent[0], result


def test_a_request_is_read_as_boto3_meant_it() -> None:
    asked = a_copy_job("store", "store/m.csv", "abc", Operation={"S3PutObjectCopy": FULL_COPY})
    shape = operation("CreateJob")
    body, answered = through_boto3(
        "CreateJob", asked, requests.write(shape.output_shape, {"JobId": "12345-abc"})
    )
    assert {"AccountId": ACCOUNT, **requests.read(body, shape.input_shape)} == asked
    assert answered["JobId"] == "12345-abc"


def test_a_description_is_understood_by_boto3() -> None:
    body, _ = through_boto3("CreateJob", a_copy_job("store", "store/m.csv", "abc"), b"<x/>")
    job = new_job(ACCOUNT, "eu-central-1", body, MOMENT)
    job.become("Preparing", MOMENT)
    job.fail("ManifestChanged", "it has another ETag", MOMENT)
    described = job.described()
    shape = operation("DescribeJob").output_shape
    _, answered = through_boto3(
        "DescribeJob", {"AccountId": ACCOUNT, "JobId": job.id}, requests.write(shape, {"Job": described})
    )
    understood = {name: value for name, value in answered["Job"].items() if value is not None}
    assert understood == {name: value for name, value in described.items() if value is not None}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "is no XML"),
        (b"<CreateJobRequest/>", "is a CreateJobRequest, not a"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "declares a document type"),
        (
            f'<CreateJobRequest xmlns="{requests.NAMESPACE}"><Colour/></CreateJobRequest>'.encode(),
            "has no Colour",
        ),
        (
            f'<CreateJobRequest xmlns="{requests.NAMESPACE}"><Priority>high</Priority></CreateJobRequest>'.encode(),
            "Priority is 'high', not a integer",
        ),
        (
            f'<CreateJobRequest xmlns="{requests.NAMESPACE}"><Priority>1</Priority><Priority>2</Priority>'
            "</CreateJobRequest>".encode(),
            "says Priority twice",
        ),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(Refused, match=told) as refused:
        requests.read(body, operation("CreateJob").input_shape)
    assert (refused.value.code, refused.value.status) == ("BadRequestException", 400)


def without(path: str) -> dict[str, Any]:
    """A good request without one member."""
    return changed(path, None)


def changed(path: str, value: Any) -> dict[str, Any]:
    """A good request with another value of one member; None takes it away."""
    asked = a_copy_job("store", "store/m.csv", "abc")
    *folders, last = path.split(".")
    inside = asked
    for folder in folders:
        inside = inside[folder]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return asked


COPY = "Operation.S3PutObjectCopy"
INVENTORY = {"Format": "S3InventoryReport_CSV_20161130"}


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        *(
            (without(name), f"{name} is missing")
            for name in ("RoleArn", "Priority", "ClientRequestToken", "Report", "Operation")
        ),
        (changed("ClientRequestToken", "t" * 65), "65 characters, at most 64"),
        (changed("ClientRequestToken", ""), "0 characters, at least 1"),
        (changed("Priority", -1), "at least 0"),
        (changed("Priority", 2**31), "at most 2147483647"),
        (changed("RoleArn", "arn:aws:iam::12:role/x"), "does not match"),
        (changed("Description", "d" * 257), "257 characters"),
        (changed("Manifest.Spec.Format", "S3InventoryReport_Parquet_20161130"), "it can be"),
        (changed("Manifest.Spec.Fields", ["Bucket", "Key", "Size"]), r"Fields\[2\] is 'Size'"),
        (changed("Manifest.Spec.Fields", ["Bucket"]), "has to name Bucket and Key"),
        (changed("Manifest.Spec.Fields", ["Bucket", "Key", "Key"]), "names a column twice"),
        (changed("Manifest.Spec", {**INVENTORY, "Fields": ["Bucket", "Key"]}), "belongs to CSV manifests"),
        (changed("Manifest.Location.ETag", '"abc"'), "has quotes"),
        (changed("Manifest.Location.ObjectArn", "arn:aws:s3:::store"), "ARN of an object"),
        (without("Manifest"), "a Manifest or a ManifestGenerator"),
        (changed("Report.Format", "Report_JSON"), "it can be Report_CSV_20180820"),
        (without("Report.Bucket"), "Report.Bucket is missing"),
        (changed("Report.Bucket", "arn:aws:s3:::store/prefix"), "Report.Bucket is the ARN of a bucket"),
        (changed("Report.Prefix", "p" * 513), "513 characters"),
        (changed(f"{COPY}.StorageClass", "REDUCED"), "StorageClass is 'REDUCED'"),
        (changed(f"{COPY}.TargetResource", "store"), "does not match"),
        (changed(f"{COPY}.ObjectLockMode", "COMPLIANCE"), "go together"),
        (changed("Operation.S3DeleteObjectTagging", {}), "exactly one member"),
        (changed("Operation", {"S3DeleteObjectTagging": {}}), "is not run here"),
        (changed("Operation", {"S3InitiateRestoreObject": {}}), "ExpirationInDays is 1 or more"),
        (changed("Operation", {"S3ComputeObjectChecksum": {"ChecksumAlgorithm": "XXHASH3"}}), "can be CRC32"),
    ],
)
def test_an_unacceptable_request_is_refused_with_its_fault(asked: dict[str, Any], told: str) -> None:
    account = asked.pop("AccountId")
    with pytest.raises(Refused, match=told):
        require_acceptable(account, asked)


def test_all_faults_are_told_at_once() -> None:
    asked = {**changed("Priority", -1), "ClientRequestToken": ""}
    with pytest.raises(Refused, match=r"Priority.*ClientRequestToken|ClientRequestToken.*Priority"):
        require_acceptable(asked.pop("AccountId"), asked)


def test_fifty_tags_are_enough() -> None:
    tags = [{"Key": f"k{number}", "Value": "v"} for number in range(51)]
    asked = changed("Tags", tags)
    with pytest.raises(Refused) as refused:
        require_acceptable(asked.pop("AccountId"), asked)
    assert refused.value.code == "TooManyTagsException"
    fewer = changed("Tags", tags[:50])
    require_acceptable(fewer.pop("AccountId"), fewer)


def test_a_refusal_is_an_exception_of_the_client() -> None:
    refusal = other_request("12345")
    document = requests.write_refusal(refusal, "R1")
    client = boto3.client(
        "s3control", region_name="eu-central-1", aws_access_key_id="AK", aws_secret_access_key="sk"
    )
    client.meta.events.register(
        "before-send.s3-control.DescribeJob",
        lambda request, **_: AWSResponse(request.url, refusal.status, {}, _Answer(document)),
    )
    with pytest.raises(client.exceptions.IdempotencyException, match="made job 12345"):
        client.describe_job(AccountId=ACCOUNT, JobId="12345")


def test_what_xml_cannot_say_does_not_break_an_answer() -> None:
    shape = operation("UpdateJobStatus").output_shape
    told = {"JobId": "12345", "Status": "Failed", "StatusUpdateReason": "key \x00\x1b\ud800 é"}
    _, answered = through_boto3(
        "UpdateJobStatus",
        {"AccountId": ACCOUNT, "JobId": "12345", "RequestedJobStatus": "Ready"},
        requests.write(shape, told),
    )
    assert answered["StatusUpdateReason"] == "key \ufffd\ufffd\ufffd é"
