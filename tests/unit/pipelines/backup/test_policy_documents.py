"""The policies that are written allow every request a backup makes, and none that harms the source or the copies."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.policies import (
    Parties,
    PolicyFile,
    Request,
    Verdict,
    make_policy_files,
    write_policies,
)
from lakeshare_pipelines.errors import BackupError
from tests.builders.policy_decisions import EVERYTHING, decide_between

SOURCE, TARGET = "111111111111", "222222222222"
ROLE, RUNNER, SWEEPER, GLASS = (
    f"arn:aws:iam::{TARGET}:role/{name}" for name in ("copy", "run", "sweep", "glass")
)
SOURCE_KEY = f"arn:aws:kms:eu-central-1:{SOURCE}:key/s"
TARGET_KEY = f"arn:aws:kms:eu-central-1:{TARGET}:key/t"
JOBS = "batchoperations.s3.amazonaws.com"
LAKE, VAULT = "arn:aws:s3:::lake", "arn:aws:s3:::vault"
COPY, CLAIM = (
    f"{VAULT}/kept/objects/sales/a.parquet",
    f"{VAULT}/kept/_lakeshare/lake/points/2026-11-20/claim.json",
)


def a_backup(**changed: Any) -> Backup:
    """A backup from one account into another, by jobs."""
    said = {
        "name": "lake",
        "source": {"url": "s3://lake/sales/", "account": SOURCE, "region": "eu-central-1"},
        "target": {"url": "s3://vault/kept/", "account": TARGET, "region": "eu-central-1"},
        "engine": "aws_batch",
        "batch": {"account": TARGET, "role_arn": ROLE},
        "lock": {"mode": "compliance"},
        "listing": {"kind": "s3_inventory", "location": "s3://reports/inv/lake/daily"},
    }
    return Backup.model_validate({**said, **changed})


ALL = Parties(RUNNER, GLASS, SWEEPER, None, SOURCE_KEY, TARGET_KEY)


def files_of(backup: Backup, parties: Parties = ALL) -> dict[str, PolicyFile]:
    """The documents by name."""
    return {one.name: one for one in make_policy_files(backup, parties)}


def verdict(
    files: dict[str, PolicyFile],
    principal: str,
    action: str,
    resource: str,
    *,
    extra: bool = False,
    **context: str,
) -> Verdict:
    """Whether somebody may do something; `extra` gives everything to the identity besides."""
    identity = [one.document for one in files.values() if one.kind == "identity" and one.subject == principal]
    if extra:
        identity.append(EVERYTHING)
    bucket = resource.removeprefix("arn:aws:s3:::").partition("/")[0]
    theirs = [
        one for one in files.values() if one.kind in ("bucket", "key") and one.subject in (bucket, resource)
    ]
    trust = [one for one in files.values() if one.kind == "trust" and one.subject == resource]
    account = next((one.account for one in (*theirs, *trust)), TARGET)
    context = {"aws:PrincipalArn": principal, "aws:SecureTransport": "true", **context}
    return decide_between(
        Request(action, resource, principal, context),
        account,
        identity,
        [one.document for one in (*theirs, *trust)],
    )


@pytest.mark.parametrize(
    ("principal", "action", "resource"),
    [
        *((who, "s3:GetObject", f"{LAKE}/sales/a.parquet") for who in (ROLE, RUNNER)),
        *((who, "s3:GetObjectVersionTagging", f"{LAKE}/sales/a.parquet") for who in (ROLE, RUNNER)),
        *((who, "s3:ListBucket", LAKE) for who in (ROLE, RUNNER)),
        *((who, "s3:PutObject", COPY) for who in (ROLE, RUNNER)),
        *((who, "s3:PutObjectRetention", COPY) for who in (ROLE, RUNNER)),
        *((who, "kms:Decrypt", SOURCE_KEY) for who in (ROLE, RUNNER)),
        *((who, "kms:GenerateDataKey", TARGET_KEY) for who in (ROLE, RUNNER)),
        (RUNNER, "s3:RestoreObject", f"{LAKE}/sales/a.parquet"),
        (RUNNER, "s3:GetObjectVersion", COPY),
        (RUNNER, "s3:PutObject", CLAIM),
        (RUNNER, "s3:DeleteObject", CLAIM),
        (RUNNER, "s3:CreateJob", "*"),
        (RUNNER, "s3:GetObject", "arn:aws:s3:::reports/inv/lake/daily/data/x.parquet"),
        (RUNNER, "s3:GetBucketPolicy", LAKE),
        (RUNNER, "s3:GetBucketVersioning", VAULT),
        (
            ROLE,
            "s3:GetObject",
            f"{VAULT}/kept/_lakeshare/lake/points/2026-11-20/engine/batch/x/0/manifest.csv",
        ),
        (
            ROLE,
            "s3:PutObject",
            f"{VAULT}/kept/_lakeshare/lake/points/2026-11-20/engine/batch/x/0/reports/r.csv",
        ),
        (SWEEPER, "s3:DeleteObjectVersion", COPY),
        (SWEEPER, "s3:DeleteObject", COPY),
        (SWEEPER, "s3:PutObject", CLAIM),
        (SWEEPER, "s3:PutObjectRetention", COPY),
    ],
)
def test_every_request_of_a_backup_is_allowed(principal: str, action: str, resource: str) -> None:
    found = verdict(files_of(a_backup()), principal, action, resource)
    assert found.decision == "allowed", found.because


def test_the_role_is_handed_to_jobs_of_this_account_and_to_nothing_else() -> None:
    files = files_of(a_backup())
    assert verdict(files, RUNNER, "iam:PassRole", ROLE, **{"iam:PassedToService": JOBS}).decision == "allowed"
    assert (
        verdict(files, RUNNER, "iam:PassRole", ROLE, **{"iam:PassedToService": "ec2.amazonaws.com"}).decision
        != "allowed"
    )
    assert (
        verdict(files, RUNNER, "iam:PassRole", GLASS, **{"iam:PassedToService": JOBS}).decision != "allowed"
    )
    assert verdict(files, JOBS, "sts:AssumeRole", ROLE, **{"aws:SourceAccount": TARGET}).decision == "allowed"
    assert verdict(files, JOBS, "sts:AssumeRole", ROLE, **{"aws:SourceAccount": SOURCE}).decision != "allowed"
    assert (
        verdict(files, "ec2.amazonaws.com", "sts:AssumeRole", ROLE, **{"aws:SourceAccount": TARGET}).decision
        != "allowed"
    )


@pytest.mark.parametrize("principal", [ROLE, RUNNER, SWEEPER])
@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("s3:PutObject", f"{LAKE}/sales/a.parquet"),
        ("s3:DeleteObject", f"{LAKE}/sales/a.parquet"),
        ("s3:GetObject", f"{LAKE}/elsewhere/a.parquet"),
        ("s3:PutBucketPolicy", LAKE),
    ],
)
def test_nobody_of_the_backup_account_harms_the_source(principal: str, action: str, resource: str) -> None:
    # Even somebody who may everything at home: the source's bucket has the last word.
    assert verdict(files_of(a_backup()), principal, action, resource, extra=True).decision != "allowed"


@pytest.mark.parametrize(
    ("action", "resource", "allowed_to"),
    [
        ("s3:DeleteObjectVersion", COPY, {SWEEPER, GLASS}),
        ("s3:DeleteObject", COPY, {SWEEPER, GLASS}),
        ("s3:DeleteObjectVersion", CLAIM, {SWEEPER, GLASS}),
        ("s3:BypassGovernanceRetention", COPY, {GLASS}),
        ("s3:PutLifecycleConfiguration", VAULT, {GLASS}),
        ("s3:PutBucketVersioning", VAULT, {GLASS}),
        ("s3:DeleteBucket", VAULT, {GLASS}),
        ("s3:DeleteBucketPolicy", VAULT, {GLASS}),
        ("s3:PutObject", COPY, {ROLE, RUNNER, SWEEPER, GLASS}),
    ],
)
def test_guard_rails_hold_against_who_may_everything(
    action: str, resource: str, allowed_to: set[str]
) -> None:
    files = files_of(a_backup())
    everybody = (ROLE, RUNNER, SWEEPER, GLASS)
    assert {
        who for who in everybody if verdict(files, who, action, resource, extra=True).decision == "allowed"
    } == allowed_to
    rails = [files["guard-rails.json"].document, EVERYTHING]
    denied = set()
    for who in everybody:
        context = {"aws:PrincipalArn": who, "aws:SecureTransport": "true"}
        if decide_between(Request(action, resource, who, context), TARGET, rails, []).decision == "denied":
            denied.add(who)
    # The account's own guard-rails are the same but for plain deletions, which would be those of all its buckets.
    assert denied == (set() if action == "s3:DeleteObject" else set(everybody) - allowed_to)


def test_nobody_speaks_to_the_target_in_clear() -> None:
    found = verdict(files_of(a_backup()), RUNNER, "s3:PutObject", COPY, **{"aws:SecureTransport": "false"})
    assert "OnlyEncryptedLines" in found.because


def test_without_a_retention_role_nobody_removes_copies() -> None:
    files = files_of(a_backup(), Parties(RUNNER))
    assert "retention-policy.json" not in files
    assert verdict(files, SWEEPER, "s3:DeleteObjectVersion", COPY, extra=True).decision != "allowed"
    glass = f"arn:aws:iam::{TARGET}:role/lakeshare-break-glass"
    assert verdict(files, glass, "s3:DeleteObjectVersion", COPY, extra=True).decision == "allowed"


def test_only_the_organisation_reads_the_source() -> None:
    files = files_of(a_backup(), Parties(RUNNER, organisation="o-abcdefghij"))
    read = (files, ROLE, "s3:GetObject", f"{LAKE}/sales/a.parquet")
    assert verdict(*read, **{"aws:PrincipalOrgID": "o-abcdefghij"}).decision == "allowed"
    assert verdict(*read, **{"aws:PrincipalOrgID": "o-another000"}).decision != "allowed"


def test_one_bucket_has_one_policy() -> None:
    backup = a_backup(listing={"kind": "s3_inventory", "location": "s3://vault/inv/lake/daily"})
    buckets = [one for one in make_policy_files(backup, ALL) if one.kind == "bucket"]
    assert sorted(one.subject for one in buckets) == ["lake", "vault"]
    [vault] = [one.document["Statement"] for one in buckets if one.subject == "vault"]
    assert {"KeepVersions", "LakeshareInventoryLake"} <= {one["Sid"] for one in vault}
    assert len({one["Sid"] for one in vault}) == len(vault)


def test_reports_come_only_from_the_source_of_its_account() -> None:
    report = ("s3:PutObject", "arn:aws:s3:::reports/inv/lake/daily/data/x.parquet")
    of_source = {
        "aws:SourceArn": LAKE,
        "aws:SourceAccount": SOURCE,
        "s3:x-amz-acl": "bucket-owner-full-control",
    }
    files = files_of(a_backup())
    assert verdict(files, "s3.amazonaws.com", *report, **of_source).decision == "allowed"
    for wrong in ({"aws:SourceAccount": TARGET}, {"aws:SourceArn": "arn:aws:s3:::other"}):
        assert verdict(files, "s3.amazonaws.com", *report, **{**of_source, **wrong}).decision != "allowed"


def test_a_dated_layout_names_every_day() -> None:
    dated = a_backup(target={"url": "s3://vault/lake/{day}/", "account": TARGET}, layout="dated", lock=None)
    files = files_of(dated)
    assert (
        verdict(files, ROLE, "s3:PutObject", f"{VAULT}/lake/2026-11-20/sales/a.parquet").decision == "allowed"
    )
    assert (
        verdict(
            files, RUNNER, "s3:DeleteObject", f"{VAULT}/lake/_lakeshare/lake/points/x/claim.json"
        ).decision
        == "allowed"
    )
    assert (
        verdict(files, RUNNER, "s3:DeleteObject", f"{VAULT}/lake/2026-11-20/a", extra=True).decision
        != "allowed"
    )
    commit = f"{VAULT}/lake/2026-11-20/sales/t/_delta_log/00000000000000000007.json"
    assert verdict(files, RUNNER, "s3:DeleteObject", commit).decision == "allowed"
    assert verdict(files, RUNNER, "s3:DeleteObjectVersion", commit, extra=True).decision != "allowed"
    assert verdict(files, ROLE, "s3:PutObjectRetention", f"{VAULT}/lake/2026-11-20/a").decision != "allowed"


@pytest.mark.parametrize(
    ("backup", "parties", "told"),
    [
        ({"source": {"url": "/lake"}, "engine": "local"}, ALL, "its source is a folder"),
        ({"target": {"url": "s3://vault"}}, ALL, "the account of its target is not declared"),
        ({}, Parties("lakeshare"), "not a role or user of account 222222222222"),
        ({}, Parties(f"arn:aws:iam::{SOURCE}:role/run"), "not a role or user of account 222222222222"),
        ({}, Parties(RUNNER, source_key="key/s"), "not the ARN of a key"),
        ({}, Parties(RUNNER, organisation="mine"), "not the id of an organisation"),
    ],
)
def test_what_cannot_have_policies_is_refused(backup: dict[str, Any], parties: Parties, told: str) -> None:
    with pytest.raises(BackupError, match=told):
        make_policy_files(a_backup(**backup), parties)


def test_a_folder_of_policies_says_where_each_belongs(tmp_path: Path) -> None:
    files = make_policy_files(a_backup(), ALL)
    paths = write_policies(a_backup(), files, tmp_path / "policies")
    assert {path.name for path in paths} == {*(one.name for one in files), "index.json", "README.md"}
    for one in files:
        assert json.loads((tmp_path / "policies" / one.name).read_text()) == one.document
        # Bucket policies end at 20 KB, policies of roles at 10,240 characters, of accounts at 5,120.
        assert len(json.dumps(one.document)) < (5_120 if one.kind == "account" else 10_000)
    page = (tmp_path / "policies" / "README.md").read_text()
    assert all(one.name in page and one.apply in page for one in files)
    (tmp_path / "file").write_text("")
    with pytest.raises(BackupError, match="cannot be written"):
        write_policies(a_backup(), files, tmp_path / "file")
