"""The test double of S3 Batch Operations: requests and results of boto3, states of jobs, outcomes of copies."""

import asyncio
import datetime as dt
from collections.abc import Mapping
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.answering_store import answering_store, said
from tests.builders.backup_batch import ACCOUNT, a_copy_job
from tests.builders.batch_jobs import TRANSITIONS, Job, Outcome, Refused, Store, Task
from tests.builders.batch_server import NAMESPACE, operation, read, require_acceptable, write, write_refusal

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
    body, answered = through_boto3("CreateJob", asked, write(shape.output_shape, {"JobId": "12345-abc"}))
    assert {"AccountId": ACCOUNT, **read(body, shape.input_shape)} == asked
    assert answered["JobId"] == "12345-abc"


@cache
def no_store() -> Store:
    """A store that no request is sent to."""
    return Store(StoreAddress(url="s3://any", endpoint="http://127.0.0.1:9", region="eu-central-1"))


def a_job() -> Job:
    """A job that is not run."""
    asked = a_copy_job("store", "store/m.csv", "abc")
    return Job(asked.pop("AccountId"), asked, no_store())


def test_a_description_is_understood_by_boto3() -> None:
    job = a_job()
    job.become("Preparing")
    job.fail("ManifestChanged", "it has another ETag" * 100)
    described = job.describe()
    shape = operation("DescribeJob").output_shape
    _, answered = through_boto3(
        "DescribeJob", {"AccountId": ACCOUNT, "JobId": job.id}, write(shape, {"Job": described})
    )
    understood = {name: value for name, value in answered["Job"].items() if value is not None}
    understood["CreationTime"] = described["CreationTime"]
    assert understood == {name: value for name, value in described.items() if value is not None}
    assert [len(one["FailureReason"]) for one in understood["FailureReasons"]] == [256]


@pytest.mark.parametrize("state", TRANSITIONS)
def test_a_job_changes_only_to_the_states_that_follow(state: str) -> None:
    for wanted in set(TRANSITIONS) - set(TRANSITIONS[state]):
        job = a_job()
        job.status = state
        with pytest.raises(Refused, match=f"is {state}; it cannot become {wanted}"):
            job.become(wanted)
        assert job.status == state


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "is no XML"),
        (b"<CreateJobRequest/>", "is a CreateJobRequest, not a"),
        (
            f'<CreateJobRequest xmlns="{NAMESPACE}"><Priority>high</Priority></CreateJobRequest>'.encode(),
            "no XML of this shape",
        ),
    ],
)
def test_what_is_no_request_is_refused(body: bytes, told: str) -> None:
    with pytest.raises(Refused, match=told) as refused:
        read(body, operation("CreateJob").input_shape)
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
        (changed("ClientRequestToken", ""), "0 characters, at least 1 are needed"),
        (changed("Priority", -1), "at least 0"),
        (changed("Priority", 2**31), "at most 2147483647"),
        (changed("RoleArn", "arn:aws:iam::12:role/x"), "does not match"),
        (changed("Description", "d" * 257), "257 characters"),
        (changed("Manifest.Spec.Format", "S3InventoryReport_Parquet_20161130"), "it can be"),
        (changed("Manifest.Spec.Fields", ["Bucket", "Key", "Size"]), r"Fields\[2\] is 'Size'"),
        (changed("Manifest.Spec.Fields", ["Bucket"]), "has to name Bucket and Key"),
        (
            changed("Manifest.Spec", {**INVENTORY, "Fields": ["Bucket", "Key"]}),
            "can be S3BatchOperations_CSV",
        ),
        (changed("Manifest.Location.ETag", '"abc"'), "has quotes"),
        (changed("Manifest.Location.ObjectArn", "arn:aws:s3:::store"), "ARN of an object"),
        (without("Manifest"), "takes a Manifest"),
        (changed("Report.Format", "Report_JSON"), "it can be Report_CSV_20180820"),
        (without("Report.Bucket"), "Report.Bucket is missing"),
        (changed("Report.Bucket", "arn:aws:s3:::store/prefix"), "Report.Bucket is the ARN of a bucket"),
        (changed("Report.Prefix", "p" * 513), "513 characters"),
        (changed(f"{COPY}.StorageClass", "REDUCED"), "StorageClass is 'REDUCED'"),
        (changed(f"{COPY}.TargetResource", "store"), "does not match"),
        (changed(f"{COPY}.ObjectLockMode", "COMPLIANCE"), "ObjectLockMode is not run"),
        (changed("Operation.S3DeleteObjectTagging", {}), "exactly one member"),
        (changed("Operation", {"S3DeleteObjectTagging": {}}), "is not run by this double"),
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


def test_a_refusal_is_an_exception_of_the_client() -> None:
    refusal = Refused(400, "IdempotencyException", "made job 12345")
    document = write_refusal(refusal)
    client = boto3.client(
        "s3control", region_name="eu-central-1", aws_access_key_id="AK", aws_secret_access_key="sk"
    )
    client.meta.events.register(
        "before-send.s3-control.DescribeJob",
        lambda request, **_: AWSResponse(request.url, refusal.status, {}, _Answer(document)),
    )
    with pytest.raises(client.exceptions.IdempotencyException, match="made job 12345"):
        client.describe_job(AccountId=ACCOUNT, JobId="12345")


def run(answers: list[bytes], task: Task) -> tuple[Outcome, list[str]]:
    """Copy one object at a store that answers one after another: the outcome, and the requests."""

    async def outcome(endpoint: str) -> Outcome:
        store = Store(StoreAddress(url="s3://any", endpoint=endpoint, region="eu-central-1"))
        asked = a_copy_job("store", "store/m.csv", "abc")
        try:
            return await Job(ACCOUNT, asked, store).run_task(task)
        finally:
            await store.close()

    left = iter(answers)
    with answering_store(lambda _: next(left)) as store:
        return asyncio.run(outcome(store.endpoint)), store.requests


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sk")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nLast-Modified: Tue, 01 Jan 2030 00:00:00 GMT\r\n\r\n"


@pytest.mark.usefixtures("keys")
def test_a_copy_that_says_200_with_an_error_inside_has_failed() -> None:
    error = (
        "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>No, &quot;no&quot;</Message></Error>"
    )
    outcome, asked = run([HEAD, said("200 OK", error)], Task(7, "lake", "a%2Bb"))
    assert (outcome.task.number, outcome.http_status, outcome.error_code) == (7, 403, "AccessDenied")
    assert outcome.message.startswith('No, "no" (Service: Amazon S3; Status Code: ')
    assert asked[0].startswith("HEAD /lake/a%2Bb ")
    assert asked[1].startswith("PUT /store/objects/a%2Bb ")
    assert "x-amz-copy-source: /lake/a%2Bb\r\n" in asked[1]


@pytest.mark.usefixtures("keys")
def test_a_copy_without_an_etag_has_failed() -> None:
    outcome, _ = run([HEAD, said("200 OK", "<CopyObjectResult></CopyObjectResult>")], Task(0, "lake", "k"))
    assert (outcome.http_status, outcome.error_code) == (500, "InternalError")


@pytest.mark.usefixtures("keys")
def test_an_empty_version_is_not_requested() -> None:
    outcome, asked = run([], Task(0, "lake", "k", ""))
    assert (outcome.http_status, outcome.error_code, asked) == (400, "InvalidRequest", [])
