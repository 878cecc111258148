"""The Batch Operations stand-in behaves as AWS tells of its own: boto3 makes jobs, a real S3 server has the objects."""

import datetime as dt
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest
from botocore.exceptions import ClientError

from tests.builders.backup_batch import (
    ACCOUNT,
    Place,
    a_batch_process,
    a_copy_job,
    counts,
    ended,
    rows_of,
    running_batch_server,
    s3control,
    when,
)
from tests.integration.s3_server import S3Server, running_s3

LIMIT = 2000
THRESHOLD = 20
AWKWARD = ["plain", "with space+plus", "é/ü", "per%cent", "a=b&c?d#e", '"quoted",comma', "new\nline"]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("batch_s3")) as server:
        objects = server.client()
        for bucket in ("lake", "other", "store"):
            objects.create_bucket(Bucket=bucket)
        yield server


@pytest.fixture(scope="module")
def place(s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    limits = ("--copy-limit-bytes", str(LIMIT), "--threshold-tasks", str(THRESHOLD))
    with running_batch_server(s3, tmp_path_factory.mktemp("jobs"), *limits) as url:
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


def test_an_inventory_report_is_a_manifest_and_versions_are_copied_as_told(place: Place) -> None:
    place.objects.create_bucket(Bucket="versioned")
    place.objects.put_object(Bucket="versioned", Key="a b", Body=b"null")
    place.objects.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    first = place.objects.put_object(Bucket="versioned", Key="c+d", Body=b"first")["VersionId"]
    place.objects.put_object(Bucket="versioned", Key="c+d", Body=b"second")
    place.objects.put_object(Bucket="versioned", Key="a b", Body=b"newer")
    lines = [("a b", "null"), ("c+d", first), ("empty", "")]
    files = []
    for number, (key, version) in enumerate(lines):
        content = gzip.compress(f'"versioned","{quote_plus(key)}","{version}","true","5"\n'.encode())
        name = f"inventory/data/{number}.csv.gz"
        place.objects.put_object(Bucket="store", Key=name, Body=content)
        files.append({"key": name, "size": len(content), "MD5checksum": hashlib.md5(content).hexdigest()})
    told = {
        "sourceBucket": "versioned",
        "destinationBucket": "arn:aws:s3:::store",
        "version": "2016-11-30",
        "creationTimestamp": "1700000000000",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, VersionId, IsLatest, Size",
        "files": files,
    }
    etag = place.manifest(json.dumps(told), "inventory/manifest.json")
    manifest = {
        "Spec": {"Format": "S3InventoryReport_CSV_20161130"},
        "Location": {"ObjectArn": "arn:aws:s3:::store/inventory/manifest.json", "ETag": etag},
    }
    asked = a_copy_job("store", "store/x", etag, Manifest=manifest)
    job = ended(place.jobs, place.jobs.create_job(**asked)["JobId"])
    assert (job["Status"], counts(job)) == ("Complete", (3, 2, 1))
    assert (place.read("objects/a b"), place.read("objects/c+d")) == (b"null", b"first")
    failed = next(row for row in place.report(job) if row[3] == "failed")
    assert failed[1:6] == ["empty", "", "failed", "400", "InvalidRequest"]


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
        ("store/changing.csv", "the job was told"),
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


def test_jobs_are_listed_in_pages_and_by_status_and_belong_to_their_account(place: Place) -> None:
    ids = [place.job(rows_of("one"), ConfirmationRequired=True) for _ in range(3)]
    for job_id in ids:
        when(place.jobs, job_id, "Suspended")
    pages = _pages(place.jobs)
    assert [len(page) for page in pages] == [2, 1]
    assert [job for page in pages for job in page] == ids[::-1]
    with pytest.raises(place.jobs.exceptions.InvalidNextTokenException):
        place.jobs.list_jobs(AccountId=ACCOUNT, NextToken="bm9uZQ==")
    assert place.jobs.list_jobs(AccountId="111111111111")["Jobs"] == []
    with pytest.raises(place.jobs.exceptions.NotFoundException):
        place.jobs.describe_job(AccountId="111111111111", JobId=ids[0])
    for job_id in ids:
        place.jobs.update_job_status(AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Cancelled")


def _pages(jobs: Any) -> list[list[str]]:
    found, token = [], {}
    while True:
        page = jobs.list_jobs(AccountId=ACCOUNT, JobStatuses=["Suspended", "Paused"], MaxResults=2, **token)
        found.append([job["JobId"] for job in page["Jobs"]])
        if "NextToken" not in page:
            return found
        token = {"NextToken": page["NextToken"]}


def test_tags_and_priority_of_a_job_are_changed(place: Place) -> None:
    tags = [{"Key": "backup", "Value": "lake"}]
    job_id = place.job(rows_of("one"), ConfirmationRequired=True, Tags=tags)
    assert place.jobs.get_job_tagging(AccountId=ACCOUNT, JobId=job_id)["Tags"] == tags
    place.jobs.put_job_tagging(AccountId=ACCOUNT, JobId=job_id, Tags=[{"Key": "day", "Value": ""}])
    assert place.jobs.get_job_tagging(AccountId=ACCOUNT, JobId=job_id)["Tags"] == [
        {"Key": "day", "Value": ""}
    ]
    place.jobs.delete_job_tagging(AccountId=ACCOUNT, JobId=job_id)
    assert place.jobs.get_job_tagging(AccountId=ACCOUNT, JobId=job_id)["Tags"] == []
    assert place.jobs.update_job_priority(AccountId=ACCOUNT, JobId=job_id, Priority=99)["Priority"] == 99
    assert place.jobs.describe_job(AccountId=ACCOUNT, JobId=job_id)["Job"]["Priority"] == 99
    place.jobs.update_job_status(AccountId=ACCOUNT, JobId=job_id, RequestedJobStatus="Cancelled")
    ended(place.jobs, job_id)


def test_only_who_has_the_keys_makes_jobs(place: Place) -> None:
    url = place.jobs.meta.endpoint_url
    for user in (place.s3.stranger, type(place.s3.admin)(place.s3.admin.access_key, "another-secret")):
        with pytest.raises(ClientError, match="AccessDenied"):
            s3control(url, user).list_jobs(AccountId=ACCOUNT)


def test_a_body_without_end_is_refused(place: Place) -> None:
    url = place.jobs.meta.endpoint_url
    answer = httpx.post(
        f"{url}/v20180820/jobs", content=b" " * 2_000_000, headers={"x-amz-account-id": ACCOUNT}
    )
    assert answer.status_code == 400
    assert "more than 1048576 bytes" in answer.text


def test_retention_is_set_and_sticks(place: Place) -> None:
    place.objects.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    version = place.objects.put_object(Bucket="locked", Key="kept", Body=b"x")["VersionId"]
    until = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=2)
    operation = {"S3PutObjectRetention": {"Retention": {"Mode": "GOVERNANCE", "RetainUntilDate": until}}}
    job = place.run(rows_of("kept", bucket="locked"), Operation=operation)
    assert counts(job) == (1, 1, 0), place.report(job)
    held = place.objects.get_object_retention(Bucket="locked", Key="kept", VersionId=version)["Retention"]
    assert held == {"Mode": "GOVERNANCE", "RetainUntilDate": until}
    refused = place.run(rows_of("plain"), Operation=operation)
    # A bucket without a lock takes no retention: the task says so, the job is Complete all the same.
    assert (refused["Status"], counts(refused)[2]) == ("Complete", 1)


def test_checksums_arrive_in_the_report(place: Place) -> None:
    content = b"content of one"
    place.put("one")
    operation = {"S3ComputeObjectChecksum": {"ChecksumAlgorithm": "SHA256", "ChecksumType": "FULL_OBJECT"}}
    told = json.loads(place.report(place.run(rows_of("one"), Operation=operation))[0][6])
    assert told["checksum_hex"] == hashlib.sha256(content).hexdigest().upper()
    assert told["etag"] == hashlib.md5(content).hexdigest()
    assert (told["checksumAlgorithm"], told["checksumType"]) == ("SHA256", "FULL_OBJECT")


def test_a_higher_priority_pauses_a_running_job_which_goes_on_by_itself(s3: S3Server, tmp_path: Path) -> None:
    one_at_a_time = ("--jobs-at-once", "1", "--in-flight", "1")
    with running_batch_server(s3, tmp_path / "jobs", *one_at_a_time) as url:
        place = Place(s3, s3.client(), s3control(url, s3.admin))
        place.put("one")
        low = place.job(rows_of(*["one"] * 1000), Priority=1)
        when(place.jobs, low, "Active")
        high = place.job(rows_of(*["one"] * 200), Priority=2)
        assert when(place.jobs, low, "Paused")["ProgressSummary"]["NumberOfTasksSucceeded"] < 1000
        assert ended(place.jobs, high)["Status"] == "Complete"
        job = ended(place.jobs, low)
        assert (job["Status"], counts(job)) == ("Complete", (1000, 1000, 0))
        # None was run twice: a task has one outcome.
        assert len(_outcomes(tmp_path / "jobs", low)) == 1000


def test_a_cancelled_job_reports_what_it_did_and_does_no_more(s3: S3Server, tmp_path: Path) -> None:
    with running_batch_server(s3, tmp_path / "jobs", "--in-flight", "1") as url:
        place = Place(s3, s3.client(), s3control(url, s3.admin))
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
        assert len(place.report(job)) == run == len(_outcomes(tmp_path / "jobs", job_id))


def test_a_job_goes_on_after_the_process_was_killed(s3: S3Server, tmp_path: Path) -> None:
    objects, folder = s3.client(), tmp_path / "jobs"
    with a_batch_process(s3, folder, "--in-flight", "4") as (process, url):
        place = Place(s3, objects, s3control(url, s3.admin))
        place.put("one")
        job_id = place.job(rows_of(*["one"] * 500))
        waiting = place.job(rows_of("one"), ConfirmationRequired=True)
        when(place.jobs, job_id, "Active")
        process.kill()
        process.wait()
    done = len(_outcomes(folder, job_id))
    assert done < 500
    with running_batch_server(s3, folder, "--in-flight", "4") as url:
        place = Place(s3, objects, s3control(url, s3.admin))
        job = ended(place.jobs, job_id)
        assert (job["Status"], counts(job)) == ("Complete", (500, 500, 0))
        assert len(place.report(job)) == 500
        assert when(place.jobs, waiting, "Suspended")["ProgressSummary"]["TotalNumberOfTasks"] == 1


def _outcomes(folder: Path, job_id: str) -> list[str]:
    text = (folder / ACCOUNT / job_id / "outcomes.jsonl").read_text()
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
