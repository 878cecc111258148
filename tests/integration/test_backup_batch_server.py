"""The Batch Operations stand-in behaves as AWS documents: boto3 makes jobs, a real S3 server has the objects."""

import datetime as dt
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from botocore.exceptions import ClientError

from tests.builders.backup_batch import (
    ACCOUNT,
    Place,
    a_copy_job,
    counts,
    ended,
    rows_of,
    running_batch_server,
    s3control,
    when,
)
from tests.integration.s3_server import S3Server

LIMIT = 2000
THRESHOLD = 20
AWKWARD = ["plain", "with space+plus", "é/ü", "per%cent", "a=b&c?d#e", '"quoted",comma', "new\nline"]


@pytest.fixture(scope="module")
def s3(s3: S3Server) -> S3Server:
    objects = s3.client()
    for bucket in ("lake", "other", "store"):
        objects.create_bucket(Bucket=bucket)
    return s3


@pytest.fixture(scope="module")
def place(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    limits = ("--copy-limit-bytes", str(LIMIT), "--threshold-tasks", str(THRESHOLD))
    with running_batch_server(s3, *limits) as url:
        yield Place(s3, s3.client(), s3control(url, s3.admin))


def test_a_job_copies_and_reports_every_task_by_its_key_in_the_manifest(place: Place) -> None:
    place.put(*AWKWARD)
    job = place.run([*rows_of(*AWKWARD), "lake,gone"])
    # Complete tells that all tasks were run, not that they went well.
    assert (job["Status"], counts(job)) == ("Complete", (8, 7, 1))
    for key in AWKWARD:
        assert place.read(f"objects/{key}").decode() == f"content of {key}"
    rows = {row[1]: row for row in place.report(job)}
    assert rows.keys() == {*(quote(key, safe="") for key in AWKWARD), "gone"}
    for key in AWKWARD:
        encoded = quote(key, safe="")
        # The rows of AWS have the HTTP status before the error code, whatever their schema says.
        assert rows[encoded] == ["lake", encoded, "", "succeeded", "200", "", "Successful"]
    assert rows["gone"][3:6] == ["failed", "404", "NoSuchKey"]


def test_a_report_of_failures_has_no_others_and_none_is_made_where_none_is_asked(place: Place) -> None:
    place.put("one")
    asked = a_copy_job("store", "store/m", "e")["Report"]
    failures = place.run(rows_of("one", "gone"), Report={**asked, "ReportScope": "FailedTasksOnly"})
    assert [row[1] for row in place.report(failures)] == ["gone"]
    silent = place.run(rows_of("one"), Report={"Enabled": False})
    assert (silent["Status"], place.keys(f"reports/job-{silent['JobId']}")) == ("Complete", [])


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        (["lake,a", "other,b"], "InvalidManifestContent", "row 2 is of bucket other"),
        (["lake,a,v1"], "InvalidManifestContent", "3 columns, 2 are declared"),
        ([], "InvalidManifestContent", "has no rows"),
    ],
)
def test_a_manifest_that_cannot_be_a_job_fails_it_before_any_task(
    place: Place, rows: list[str], code: str, told: str
) -> None:
    job = place.run(rows)
    assert (job["Status"], counts(job)) == ("Failed", (0, 0, 0))
    assert [one["FailureCode"] for one in job["FailureReasons"]] == [code]
    assert told in job["FailureReasons"][0]["FailureReason"]
    assert place.keys(f"reports/job-{job['JobId']}") == []


def test_a_manifest_that_changed_or_is_gone_fails_the_job(place: Place) -> None:
    place.put("one")
    before = place.manifest("lake,one\n", "changing.csv")
    place.manifest("lake,two\n", "changing.csv")
    for location, told in (
        ("store/changing.csv", "the job names"),
        ("store/never.csv", "cannot be read: 404"),
    ):
        job = ended(place.jobs, place.jobs.create_job(**a_copy_job("store", location, before))["JobId"])
        assert job["Status"] == "Failed"
        assert told in job["FailureReasons"][0]["FailureReason"]


def test_an_object_above_the_limit_fails_as_it_does_at_aws(place: Place) -> None:
    place.objects.put_object(Bucket="lake", Key="at", Body=b"x" * LIMIT)
    place.objects.put_object(Bucket="lake", Key="above", Body=b"x" * (LIMIT + 1))
    rows = {row[1]: row for row in place.report(place.run(rows_of("at", "above")))}
    assert rows["at"][3] == "succeeded"
    assert rows["above"][3:6] == ["failed", "400", "InvalidRequest"]
    assert f"maximum allowable size for a copy source: {LIMIT}" in rows["above"][6]


def test_what_was_modified_since_fails_instead_of_being_copied(place: Place) -> None:
    place.put("since")
    modified = place.objects.head_object(Bucket="lake", Key="since")["LastModified"]
    for until, expected in ((modified - dt.timedelta(seconds=1), "412"), (modified, "200")):
        copy = {"TargetResource": "arn:aws:s3:::store", "UnModifiedSinceConstraint": until}
        job = place.run(rows_of("since"), Operation={"S3PutObjectCopy": copy})
        assert [row[4] for row in place.report(job)] == [expected]


def test_a_job_fails_when_more_than_half_failed_and_not_when_half_did(place: Place) -> None:
    half = THRESHOLD // 2
    there = [f"there{number}" for number in range(half)]
    place.put(*there)
    bearable = place.run(rows_of(*there, *(f"gone{number}" for number in range(half))))
    assert (bearable["Status"], counts(bearable)) == ("Complete", (THRESHOLD, half, half))
    failed = place.run(rows_of(*(f"gone{number}" for number in range(5 * THRESHOLD))))
    assert failed["Status"] == "Failed"
    assert failed["FailureReasons"][0]["FailureCode"] == "FailureThresholdExceeded"
    assert counts(failed)[2] >= THRESHOLD
    # It was begun, so its report tells what was run.
    assert len(place.report(failed)) == counts(failed)[2]


def test_a_token_is_one_job(place: Place) -> None:
    place.put("one")
    etag = place.manifest("lake,one\n")
    asked = a_copy_job("store", "store/manifest.csv", etag)
    first = place.jobs.create_job(**asked)["JobId"]
    assert place.jobs.create_job(**asked)["JobId"] == first
    with pytest.raises(place.jobs.exceptions.IdempotencyException, match=first):
        place.jobs.create_job(**{**asked, "Priority": 11})


def test_a_job_that_needs_a_person_waits_for_one(place: Place) -> None:
    place.put("one")
    job_id = place.job(rows_of("one"), ConfirmationRequired=True)
    waiting = when(place.jobs, job_id, "Suspended")
    assert waiting["SuspendedCause"]
    assert counts(waiting) == (1, 0, 0)
    confirmed = place.jobs.update_job_status(
        AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Ready", StatusUpdateReason="looks right"
    )
    assert (confirmed["Status"], confirmed["StatusUpdateReason"]) == ("Ready", "looks right")
    assert ended(place.jobs, job_id)["Status"] == "Complete"
    for status in ("Ready", "Cancelled"):
        with pytest.raises(place.jobs.exceptions.JobStatusException, match="is Complete"):
            place.jobs.update_job_status(AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus=status)


def test_a_job_that_waits_is_cancelled_without_a_report(place: Place) -> None:
    job_id = place.job(rows_of("one"), ConfirmationRequired=True)
    when(place.jobs, job_id, "Suspended")
    place.jobs.update_job_status(AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Cancelled")
    assert ended(place.jobs, job_id)["Status"] == "Cancelled"
    assert place.keys(f"reports/job-{job_id}") == []


def test_a_refused_request_makes_no_job(place: Place) -> None:
    before = {job["JobId"] for job in place.jobs.list_jobs(AccountId=ACCOUNT)["Jobs"]}
    with pytest.raises(place.jobs.exceptions.BadRequestException, match="has quotes"):
        place.jobs.create_job(**a_copy_job("store", "store/m", '"e"'))
    assert {job["JobId"] for job in place.jobs.list_jobs(AccountId=ACCOUNT)["Jobs"]} == before


def test_jobs_are_listed_in_pages_newest_first_and_belong_to_their_account(place: Place) -> None:
    ids = [place.job(rows_of("one"), ConfirmationRequired=True) for _ in range(3)]
    found, page = list[str](), dict[str, Any]()
    while not page or "NextToken" in page:
        token = {"NextToken": page["NextToken"]} if page else {}
        page = place.jobs.list_jobs(AccountId=ACCOUNT, MaxResults=2, **token)
        assert len(page["Jobs"]) == 2 or "NextToken" not in page
        found += [job["JobId"] for job in page["Jobs"]]
    assert found[:3] == ids[::-1]
    assert len(found) == len(set(found))
    with pytest.raises(place.jobs.exceptions.InvalidNextTokenException):
        place.jobs.list_jobs(AccountId=ACCOUNT, NextToken="bm9uZQ==")
    assert place.jobs.list_jobs(AccountId="111111111111")["Jobs"] == []
    with pytest.raises(place.jobs.exceptions.NotFoundException):
        place.jobs.describe_job(AccountId="111111111111", JobId=ids[0])
    for job_id in ids:
        when(place.jobs, job_id, "Suspended")
        place.jobs.update_job_status(AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Cancelled")


def test_another_access_key_is_refused(place: Place) -> None:
    with pytest.raises(ClientError, match="AccessDenied"):
        s3control(place.jobs.meta.endpoint_url, place.s3.stranger).list_jobs(AccountId=ACCOUNT)


def test_a_cancelled_job_reports_what_it_did_and_does_no_more(place: Place) -> None:
    place.put("one")
    job_id = place.job(rows_of(*["one"] * 2000))
    when(place.jobs, job_id, "Active")
    place.jobs.update_job_status(
        AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Cancelled", StatusUpdateReason="enough"
    )
    job = ended(place.jobs, job_id)
    assert (job["Status"], job["StatusUpdateReason"]) == ("Cancelled", "enough")
    run = counts(job)[1]
    assert 0 < run < 2000
    assert len(place.report(job)) == run


def test_versions_are_copied_as_the_manifest_names_them(place: Place) -> None:
    place.objects.create_bucket(Bucket="versioned")
    place.objects.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    first = place.objects.put_object(Bucket="versioned", Key="c+d", Body=b"first")["VersionId"]
    place.objects.put_object(Bucket="versioned", Key="c+d", Body=b"second")
    etag = place.manifest(f"versioned,c%2Bd,{first}\nversioned,empty,\n", "versions.csv")
    asked = a_copy_job("store", "store/versions.csv", etag)
    asked["Manifest"]["Spec"]["Fields"].append("VersionId")
    job = ended(place.jobs, place.jobs.create_job(**asked)["JobId"])
    assert (job["Status"], counts(job)) == ("Complete", (2, 1, 1))
    assert place.read("objects/c+d") == b"first"
    failed = next(row for row in place.report(job) if row[3] == "failed")
    assert failed[1:6] == ["empty", "", "failed", "400", "InvalidRequest"]


def test_the_priority_of_a_job_is_changed_until_it_ends(place: Place) -> None:
    job_id = place.job(rows_of("one"), ConfirmationRequired=True)
    when(place.jobs, job_id, "Suspended")
    priority = {"AccountId": ACCOUNT, "JobId": job_id, "Priority": 99}
    assert place.jobs.update_job_priority(**priority)["Priority"] == 99
    assert place.jobs.describe_job(AccountId=ACCOUNT, JobId=job_id)["Job"]["Priority"] == 99
    place.jobs.update_job_status(AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Cancelled")
    ended(place.jobs, job_id)
    with pytest.raises(place.jobs.exceptions.BadRequestException, match="no effect"):
        place.jobs.update_job_priority(**priority)
