"""A job goes only where AWS's table of states lets it, and what is kept of it survives the death of the process."""

import datetime as dt
import hashlib
from pathlib import Path
from typing import get_args

import pytest

from tests.builders.batch_server.job import ENDED, TRANSITIONS, Job, JobFolder, Outcome, Status, Task, line_of
from tests.builders.batch_server.requests import Refused
from tests.builders.batch_server.run import SUMS, copy_headers

NOW = dt.datetime(2026, 11, 22, 4, 0, tzinfo=dt.UTC)
STATES: tuple[Status, ...] = get_args(Status)


def a_job(status: Status = "New") -> Job:
    """A job in a state."""
    return Job(
        id="job-1", account="222222222222", region="eu-central-1", request_xml="", created_at=NOW, priority=1,
        status=status,
    )  # fmt: skip


def test_there_are_the_thirteen_states_and_each_is_reached() -> None:
    assert len(STATES) == 13
    reached: set[Status] = {"New"}
    for _ in STATES:
        reached |= {after for state in reached for after in TRANSITIONS[state]}
    assert reached == set(STATES)


@pytest.mark.parametrize("state", STATES)
def test_a_job_goes_nowhere_else(state: Status) -> None:
    for wanted in set(STATES) - set(TRANSITIONS[state]):
        job = a_job(state)
        with pytest.raises(Refused, match=f"is {state}; it cannot become {wanted}"):
            job.become(wanted, NOW)
        assert job.status == state


@pytest.mark.parametrize("state", STATES)
def test_what_has_ended_ended_once(state: Status) -> None:
    assert a_job(state).has_ended == (not TRANSITIONS[state]) == (state in ENDED)


def test_a_reason_is_as_long_as_the_model_allows() -> None:
    job = a_job("Preparing")
    job.fail("ManifestChanged", "r" * 1000, NOW)
    assert job.failures == [("ManifestChanged", "r" * 256)]


def test_jobs_are_found_again_by_another_process(tmp_path: Path) -> None:
    kept = JobFolder(tmp_path)
    job = a_job("Active")
    kept.save(job)
    tasks = [Task(0, "lake", "a%20b", None), Task(1, "lake", 'q"x,y%0A', "v1"), Task(2, "lake", "x", "")]
    assert kept.write_tasks(job, tasks) == 3
    again = JobFolder(tmp_path)
    assert again.jobs() == [job]
    assert list(again.tasks(job)) == tasks


@pytest.mark.parametrize("broken", ["", '{"number": 2, "http_st', "{"])
def test_an_outcome_that_was_broken_off_is_run_again(tmp_path: Path, broken: str) -> None:
    kept, job = JobFolder(tmp_path), a_job("Active")
    kept.save(job)
    whole = [Outcome(0, 200, "", "Successful"), Outcome(1, 404, "NoSuchKey", 'line\nbreak, "quote"')]
    with kept.open_outcomes(job) as file:
        file.write("".join(map(line_of, whole)) + broken)
    assert list(kept.outcomes(job)) == whole
    with kept.open_outcomes(job) as file:
        file.write(line_of(Outcome(2, 200, "", "Successful")))
    assert [one.number for one in kept.outcomes(job)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # The check values of the catalogue of parametrised CRC algorithms, of the text 123456789.
        ("CRC32", "cbf43926"),
        ("CRC32C", "e3069283"),
        ("CRC64NVME", "ae8b14860a799888"),
        ("MD5", hashlib.md5(b"123456789").hexdigest()),
        ("SHA256", hashlib.sha256(b"123456789").hexdigest()),
    ],
)
def test_checksums_are_those_of_the_catalogue(algorithm: str, expected: str) -> None:
    total = SUMS[algorithm]()
    total.update(b"1234")
    total.update(b"56789")
    assert total.digest().hex() == expected


def test_a_copy_is_told_what_the_job_was_told() -> None:
    told = {
        "TargetResource": "arn:aws:s3:::store",
        "UnModifiedSinceConstraint": NOW,
        "ObjectLockMode": "COMPLIANCE",
        "ObjectLockRetainUntilDate": NOW,
        "NewObjectTagging": [{"Key": "a b", "Value": "c&d"}],
        "SSEAwsKmsKeyId": "arn:aws:kms:eu-central-1:222222222222:key/k",
        "BucketKeyEnabled": False,
        "StorageClass": "GLACIER_IR",
        "RequesterPays": True,
    }
    assert copy_headers(told) == {
        "x-amz-copy-source-if-unmodified-since": "Sun, 22 Nov 2026 04:00:00 GMT",
        "x-amz-object-lock-mode": "COMPLIANCE",
        "x-amz-object-lock-retain-until-date": "2026-11-22T04:00:00Z",
        "x-amz-tagging-directive": "REPLACE",
        "x-amz-tagging": "a+b=c%26d",
        "x-amz-server-side-encryption": "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:eu-central-1:222222222222:key/k",
        "x-amz-server-side-encryption-bucket-key-enabled": "false",
        "x-amz-storage-class": "GLACIER_IR",
        "x-amz-request-payer": "requester",
    }
