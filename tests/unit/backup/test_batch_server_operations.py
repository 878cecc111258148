"""What an operation asks of a store, word by word, and how what the store says becomes the outcome of a task."""

import asyncio
from typing import Any

import pytest

from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.answering_store import answering_store, said
from tests.builders.batch_server.job import Outcome, Task
from tests.builders.batch_server.run import Endpoint, outcome_of

RESTORE = {"ExpirationInDays": 3, "GlacierJobTier": "BULK"}
OBJECT = ("Content-Length: 7", 'ETag: "e"', "Last-Modified: Tue, 01 Jan 2030 00:00:00 GMT")


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sk")


def run(name: str, told: dict[str, Any], answers: list[bytes], task: Task) -> tuple[Outcome, list[str]]:
    """Run one task at a store that answers one after another; what came out, and what was asked."""

    async def outcome(endpoint: str) -> Outcome:
        address = StoreAddress(url="s3://any", endpoint=endpoint, region="eu-central-1")
        at = Endpoint(address, 4)
        try:
            return await outcome_of(name, told, at, 5 * 1024**3, task)
        finally:
            await at.close()

    left = iter(answers)
    with answering_store(lambda _: next(left)) as store:
        return asyncio.run(outcome(store.endpoint)), store.requests


def test_a_restore_is_begun_with_days_and_tier() -> None:
    task = Task(0, "lake", "a%20b", "v1")
    outcome, [request] = run("S3InitiateRestoreObject", RESTORE, [said("202 Accepted")], task)
    assert outcome == Outcome(0, 200, "", "Successful")
    assert request.startswith("POST /lake/a%20b?restore=&versionId=v1 HTTP/1.1")
    assert "<Days>3</Days>" in request
    assert "<Tier>Bulk</Tier>" in request


@pytest.mark.parametrize(
    ("status", "code"),
    [("409 Conflict", "RestoreAlreadyInProgress"), ("403 Forbidden", "InvalidObjectState")],
)
def test_a_refusal_of_the_store_is_the_outcome(status: str, code: str) -> None:
    answer = said(status, f"<Error><Code>{code}</Code><Message>No, &quot;no&quot;</Message></Error>")
    outcome, _ = run("S3InitiateRestoreObject", RESTORE, [answer], Task(0, "lake", "k", None))
    assert (outcome.http_status, outcome.error_code) == (int(status[:3]), code)
    assert outcome.message.startswith('No, "no" (Service: Amazon S3; Status Code: ')


def test_a_copy_that_says_200_with_an_error_inside_has_failed() -> None:
    error = "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *(line.encode() for line in OBJECT), b"", b""])
    told = {"TargetResource": "arn:aws:s3:::store", "TargetKeyPrefix": "objects"}
    outcome, asked = run(
        "S3PutObjectCopy", told, [head, said("200 OK", error)], Task(7, "lake", "a%2Bb", None)
    )
    assert (outcome.number, outcome.http_status, outcome.error_code) == (7, 403, "AccessDenied")
    assert asked[0].startswith("HEAD /lake/a%2Bb ")
    assert asked[1].startswith("PUT /store/objects/a%2Bb ")
    assert "x-amz-copy-source: /lake/a%2Bb\r\n" in asked[1]


def test_a_copy_without_an_etag_has_failed() -> None:
    head = b"\r\n".join([b"HTTP/1.1 200 OK", *(line.encode() for line in OBJECT), b"", b""])
    told = {"TargetResource": "arn:aws:s3:::store"}
    answers = [head, said("200 OK", "<CopyObjectResult></CopyObjectResult>")]
    outcome, _ = run("S3PutObjectCopy", told, answers, Task(0, "lake", "k", None))
    assert (outcome.http_status, outcome.error_code) == (500, "InternalError")


def test_an_empty_version_is_not_asked_for() -> None:
    outcome, asked = run("S3InitiateRestoreObject", RESTORE, [], Task(0, "lake", "k", ""))
    assert (outcome.http_status, outcome.error_code, asked) == (400, "InvalidRequest", [])
