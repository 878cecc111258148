"""The policies that are written suffice for jobs between two accounts, and each right in them is needed."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.policies import Parties, make_policy_files, write_policies
from tests.builders.backup_batch import ACCOUNT, ROLE, a_copy_job, ended, running_batch_server, s3control
from tests.integration.s3_server import S3Server

OWN = "kept/_lakeshare/lake/points/2026-11-20/engine/"


@pytest.fixture(scope="module")
def s3(s3: S3Server) -> S3Server:
    objects = s3.client()
    for bucket in ("lake", "vault"):
        objects.create_bucket(Bucket=bucket)
    objects.put_object(Bucket="lake", Key="sales/a.parquet", Body=b"a")
    objects.put_object(Bucket="lake", Key="private/b.parquet", Body=b"b")
    objects.put_object(
        Bucket="vault", Key=f"{OWN}m.csv", Body=b"lake,sales/a.parquet\nlake,private/b.parquet\n"
    )
    return s3


def written(folder: Path) -> Path:
    """The policies of a backup of lake/sales into vault/kept."""
    backup = Backup.model_validate(
        {
            "name": "lake",
            "source": {"url": "s3://lake/sales/", "account": "111111111111"},
            "target": {"url": "s3://vault/kept/", "account": ACCOUNT},
            "engine": "aws_batch",
            "batch": {"account": ACCOUNT, "role_arn": ROLE},
        }
    )
    write_policies(backup, make_policy_files(backup, Parties(f"arn:aws:iam::{ACCOUNT}:role/run")), folder)
    return folder


def run(s3: S3Server, policies: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """A job under these policies once it has ended, and the message about each folder in its report."""
    objects = s3.client()
    etag = objects.head_object(Bucket="vault", Key=f"{OWN}m.csv")["ETag"].strip('"')
    asked = a_copy_job("vault", f"vault/{OWN}m.csv", etag)
    asked["Operation"]["S3PutObjectCopy"]["TargetKeyPrefix"] = "kept/objects"
    asked["Report"]["Prefix"] = f"{OWN}reports"
    with running_batch_server(s3, "--policies", str(policies)) as url:
        client = s3control(url, s3.admin)
        job = ended(client, client.create_job(**asked)["JobId"])
    report = objects.list_objects_v2(Bucket="vault", Prefix=f"{OWN}reports/job-{job['JobId']}/results/")
    messages = {}
    for file in report.get("Contents", ()) if job["Status"] == "Complete" else ():
        text = objects.get_object(Bucket="vault", Key=file["Key"])["Body"].read().decode()
        rows = csv.reader(io.StringIO(text, newline=""))
        messages |= {row[1].partition("/")[0]: row[6] for row in rows}
    return job, messages


def test_what_is_written_lets_a_job_copy_the_source_and_nothing_else(s3: S3Server, tmp_path: Path) -> None:
    job, told = run(s3, written(tmp_path / "policies"))
    assert job["Status"] == "Complete"
    assert told["sales"] == "Successful"
    # Outside the backup's prefix neither side allows anything.
    assert "the policies of the principal and the policy of the resource do not allow it" in told["private"]
    objects = s3.client()
    assert objects.get_object(Bucket="vault", Key="kept/objects/sales/a.parquet")["Body"].read() == b"a"
    assert objects.list_objects_v2(Bucket="vault", Prefix=f"{OWN}reports/job-{job['JobId']}/")["KeyCount"] > 0


@pytest.mark.parametrize(
    ("file", "lost", "status", "told"),
    [
        ("bucket-lake.json", "s3:GetObject", "Complete", "the policy of the resource do not allow it"),
        ("role-policy.json", "s3:GetObjectTagging", "Complete", "s3:GetObjectTagging"),
        ("role-policy.json", "s3:PutObject", "Failed", "the report cannot be written"),
        ("role-trust.json", "sts:AssumeRole", "Failed", "may not become"),
    ],
)
def test_a_right_that_is_taken_away_is_missed(
    s3: S3Server, tmp_path: Path, file: str, lost: str, status: str, told: str
) -> None:
    path = written(tmp_path / "policies") / file
    document = json.loads(path.read_text())
    for statement in document["Statement"]:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        statement["Action"] = [action for action in actions if action != lost]
    path.write_text(json.dumps(document))
    job, words = run(s3, tmp_path / "policies")
    assert job["Status"] == status
    reasons = " ".join(one["FailureReason"] for one in job["FailureReasons"])
    assert told in (words["sales"] if status == "Complete" else reasons)
