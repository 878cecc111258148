"""The Batch Operations stand-in as a process of its own, and the real boto3 client that talks to it."""

import csv
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
from botocore.config import Config

from tests.integration.s3_server import REGION, S3Server, S3User

ROOT = Path(__file__).parents[2]
ACCOUNT = "222222222222"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/backup"
ENDED = {"Complete", "Cancelled", "Failed"}
PATIENCE_S = 60.0
NUMBERS = itertools.count()


@contextmanager
def running_batch_server(s3: S3Server, *options: str) -> Iterator[str]:
    """The stand-in over an S3 server; its URL, until the end of the block."""
    command = [sys.executable, "-m", "tests.builders.batch_server", s3.endpoint, REGION, *options]
    environment = {**os.environ, **keys_of(s3.admin)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def keys_of(user: S3User) -> Mapping[str, str]:
    """The variables that boto3 takes a user's keys from."""
    return {
        "AWS_ACCESS_KEY_ID": user.access_key,
        "AWS_SECRET_ACCESS_KEY": user.secret_key,
        "AWS_DEFAULT_REGION": REGION,
    }


def s3control(url: str, user: S3User) -> Any:
    """boto3's client of the stand-in; the account, which it puts in front of the host, stays in the header only."""
    client = boto3.client(
        "s3control",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=user.access_key,
        aws_secret_access_key=user.secret_key,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=20),
    )

    def without_account(request: Any, **_: Any) -> None:
        request.url = re.sub(r"//\d{12}\.", "//", request.url)

    client.meta.events.register("before-sign.s3-control", without_account)
    return client


def ended(client: Any, job_id: str) -> dict[str, Any]:
    """A job once it has ended."""
    return when(client, job_id, *ENDED)


def when(client: Any, job_id: str, *statuses: str) -> dict[str, Any]:
    """A job once it is in one of some states.

    Raises:
        AssertionError: it does not get there.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        job: dict[str, Any] = client.describe_job(AccountId=ACCOUNT, JobId=job_id)["Job"]
        if job["Status"] in statuses:
            return job
        assert job["Status"] not in ENDED, f"the job has ended: {job}"
        assert time.monotonic() < deadline, f"the job stays {job['Status']}: {job}"
        time.sleep(0.02)


def a_copy_job(target: str, manifest: str, etag: str, **changed: Any) -> dict[str, Any]:
    """The members of a CreateJob request that copies what a CSV manifest (`bucket/key`) lists."""
    copy = {"TargetResource": f"arn:aws:s3:::{target}", "TargetKeyPrefix": "objects"}
    return {
        "AccountId": ACCOUNT,
        "ConfirmationRequired": False,
        "Operation": {"S3PutObjectCopy": copy},
        "Report": {
            "Enabled": True,
            "Bucket": f"arn:aws:s3:::{target}",
            "Format": "Report_CSV_20180820",
            "ReportScope": "AllTasks",
            "Prefix": "reports",
        },
        "Manifest": {
            "Spec": {"Format": "S3BatchOperations_CSV_20180820", "Fields": ["Bucket", "Key"]},
            "Location": {"ObjectArn": f"arn:aws:s3:::{manifest}", "ETag": etag},
        },
        "Priority": 10,
        "RoleArn": ROLE,
        "ClientRequestToken": os.urandom(8).hex(),
        **changed,
    }


@dataclass(frozen=True)
class Place:
    """A store with a lake and room for copies, and a client of the stand-in over it."""

    s3: S3Server
    objects: Any
    jobs: Any

    def put(self, *keys: str, bucket: str = "lake") -> None:
        """Objects that say which they are."""
        for key in keys:
            self.objects.put_object(Bucket=bucket, Key=key, Body=f"content of {key}".encode())

    def manifest(self, content: str | bytes, key: str = "manifest.csv") -> str:
        """Write a manifest; its ETag."""
        body = content.encode() if isinstance(content, str) else content
        etag: str = self.objects.put_object(Bucket="store", Key=key, Body=body)["ETag"]
        return etag.strip('"')

    def job(self, rows: list[str], **changed: Any) -> str:
        """A job of a CSV manifest."""
        key = f"manifests/{next(NUMBERS)}.csv"
        etag = self.manifest("".join(f"{row}\n" for row in rows), key)
        asked = a_copy_job("store", f"store/{key}", etag, **changed)
        job_id: str = self.jobs.create_job(**asked)["JobId"]
        return job_id

    def run(self, rows: list[str], **changed: Any) -> dict[str, Any]:
        """The same, once it has ended."""
        return ended(self.jobs, self.job(rows, **changed))

    def report(self, job: dict[str, Any]) -> list[list[str]]:
        """All rows of a report, whose digests are looked at."""
        prefix = f"reports/job-{job['JobId']}"
        top = self.read(f"{prefix}/manifest.json")
        assert self.read(f"{prefix}/manifest.json.md5").decode() == hashlib.md5(top).hexdigest()
        told = json.loads(top)
        assert told["Format"] == "Report_CSV_20180820"
        assert told["ReportSchema"].split(", ")[4:6] == ["ErrorCode", "HTTPStatusCode"]
        rows = []
        for result in told["Results"]:
            content = self.read(result["Key"])
            assert result["Key"].startswith(f"{prefix}/results/")
            assert result["Bucket"] == "store"
            assert result["MD5Checksum"] == hashlib.md5(content).hexdigest()
            found = list(csv.reader(io.StringIO(content.decode(), newline="")))
            assert {row[3] for row in found} == {result["TaskExecutionStatus"]}
            rows += found
        return rows

    def read(self, key: str, bucket: str = "store") -> bytes:
        """An object's content."""
        content: bytes = self.objects.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def keys(self, prefix: str) -> list[str]:
        """What the store holds below a prefix."""
        return [
            one["Key"]
            for one in self.objects.list_objects_v2(Bucket="store", Prefix=prefix).get("Contents", ())
        ]


def rows_of(*keys: str, bucket: str = "lake") -> list[str]:
    """Rows of a CSV manifest, encoded."""
    return [f"{bucket},{quote(key, safe='')}" for key in keys]


def counts(job: dict[str, Any]) -> tuple[int, int, int]:
    """All tasks of a job, those that went well, those that failed."""
    told = job["ProgressSummary"]
    return told["TotalNumberOfTasks"], told["NumberOfTasksSucceeded"], told["NumberOfTasksFailed"]
