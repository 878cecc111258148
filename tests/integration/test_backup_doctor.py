"""The doctor finds what a real store's buckets lack for a backup; policies mean to it what they mean to the store."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.policies import (
    Check,
    Parties,
    Request,
    check_backup,
    decide,
    make_policy_files,
)
from tests.builders.backup_batch import keys_of
from tests.integration.ministack import MiniStack, running_ministack
from tests.integration.s3_server import S3User, a_client

SOURCE, TARGET = "111111111111", "222222222222"
RUNNER = f"arn:aws:iam::{TARGET}:role/run"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniStack]:
    # SeaweedFS knows neither ArnNotLike in policies nor services as principals.
    with running_ministack(tmp_path_factory.mktemp("doctor_s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def keys(s3: MiniStack, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in keys_of(s3.user).items():
        monkeypatch.setenv(name, value)


def a_backup(s3: MiniStack, source: str, target: str, **changed: Any) -> Backup:
    return Backup.model_validate(
        {
            "name": "lake",
            "source": {"url": f"s3://{source}", "endpoint": s3.endpoint, "account": SOURCE},
            "target": {"url": f"s3://{target}/kept/", "endpoint": s3.endpoint, "account": TARGET},
            "engine": "aws_batch",
            "batch": {"account": TARGET, "role_arn": f"arn:aws:iam::{TARGET}:role/copy"},
            "lock": {"mode": "governance"},
            "listing": {"kind": "s3_inventory", "location": f"s3://{target}/inventory/{source}/daily"},
            **changed,
        }
    )


def faults(backup: Backup) -> dict[str, Check]:
    found = {check.name: check for check in check_backup(backup)}
    assert all(check.ok != bool(check.remedy) for check in found.values())
    return {name: check for name, check in found.items() if not check.ok}


def but_for_tls(document: dict[str, Any]) -> dict[str, Any]:
    """A policy for a store that is reached in clear, and obeys."""
    kept = [one for one in document["Statement"] if one["Sid"] != "OnlyEncryptedLines"]
    return {**document, "Statement": kept}


def test_what_is_missing_is_told_one_by_one_until_nothing_is(s3: MiniStack) -> None:
    objects = a_client(s3.endpoint, s3.user)
    objects.create_bucket(Bucket="lake")
    objects.create_bucket(Bucket="bare")
    bare = faults(a_backup(s3, "lake", "bare"))
    assert bare.keys() == {
        "policy of lake", "versions of bare", "Object Lock of bare", "guard-rails of bare", "reports into bare"
    }  # fmt: skip
    assert "lakeshare backup policies lake" in bare["policy of lake"].remedy
    assert "s3:DeleteObjectVersion" in bare["guard-rails of bare"].detail
    objects.create_bucket(Bucket="vault", ObjectLockEnabledForBucket=True)
    backup = a_backup(s3, "lake", "vault")
    assert faults(backup).keys() == {"policy of lake", "guard-rails of vault", "reports into vault"}
    for one in make_policy_files(backup, Parties(RUNNER)):
        if one.kind == "bucket":
            objects.put_bucket_policy(Bucket=one.subject, Policy=json.dumps(but_for_tls(one.document)))
    assert faults(backup) == {}


def test_a_policy_that_lost_a_right_is_found(s3: MiniStack) -> None:
    objects = a_client(s3.endpoint, s3.user)
    objects.create_bucket(Bucket="narrow")
    backup = a_backup(s3, "narrow", "vault", lock=None, listing={})
    [document] = [
        one.document for one in make_policy_files(backup, Parties(RUNNER)) if one.subject == "narrow"
    ]
    for statement in document["Statement"]:
        statement["Action"] = [action for action in statement["Action"] if action != "s3:GetObjectVersion"]
    objects.put_bucket_policy(Bucket="narrow", Policy=json.dumps(document))
    assert "may not s3:GetObjectVersion:" in faults(backup)["policy of narrow"].detail


def test_a_bucket_that_is_not_there_is_all_that_is_told_of_it(s3: MiniStack) -> None:
    told = faults(a_backup(s3, "nowhere", "nowhere", lock=None, listing={}))
    assert told.keys() == {"source bucket nowhere", "target bucket nowhere"}
    assert "there is no such bucket" in told["source bucket nowhere"].detail


def test_keys_that_may_not_look_and_stores_that_do_not_answer_are_told(
    s3: MiniStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in keys_of(S3User("AKSTRANGER", "secret")).items():
        monkeypatch.setenv(name, value)
    refused = faults(a_backup(s3, "lake", "vault", listing={}))
    assert (
        "access is denied, or the bucket does not belong to account 111111111111"
        in refused["source bucket lake"].detail
    )
    silent = a_backup(MiniStack("http://127.0.0.1:9", s3.user), "lake", "vault", listing={})
    assert "the request failed" in faults(silent)["source bucket lake"].detail


def test_at_aws_the_region_and_the_ownership_are_looked_at_too(
    s3: MiniStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = a_client(s3.endpoint, s3.user)
    for bucket in ("here", "open"):
        objects.create_bucket(Bucket=bucket)
    # Without an endpoint of its own a backup is AWS's; boto3 takes MiniStack for it.
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    ends = {"source": {"url": "s3://here", "region": "eu-west-3"}, "target": {"url": "s3://open"}}
    backup = Backup.model_validate({"name": "lake", **ends})
    told = faults(backup)
    assert told.keys() == {"region of here"}
    assert told["region of here"].remedy == "Give its `region`: us-east-1."
    controls = {"Rules": [{"ObjectOwnership": "ObjectWriter"}]}
    objects.put_bucket_ownership_controls(Bucket="open", OwnershipControls=controls)
    assert "ObjectWriter: copies may belong" in faults(backup)["ownership in open"].detail


def test_a_target_that_encrypts_with_kms_takes_no_jobs(s3: MiniStack) -> None:
    objects = a_client(s3.endpoint, s3.user)
    objects.create_bucket(Bucket="sealed")
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    objects.put_bucket_encryption(Bucket="sealed", ServerSideEncryptionConfiguration={"Rules": [rule]})
    told = faults(a_backup(s3, "sealed", "sealed", lock=None, listing={}))
    assert "reads no manifest" in told["encryption of sealed"].detail


ME = "arn:aws:iam::000000000000:user/user"
OTHER = "arn:aws:iam::000000000000:role/other"
OBJECTS = "arn:aws:s3:::judged/*"


def a_denial(**said: Any) -> dict[str, Any]:
    """Nobody reads anything, unless `said` says otherwise."""
    return {
        "Sid": "No", "Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": OBJECTS, **said
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "denied"),
    [
        ({}, {"GetObject"}),
        ({"Action": "s3:*Object"}, {"GetObject", "PutObject"}),
        ({"Resource": "arn:aws:s3:::judged/else*"}, set()),
        ({"Resource": "arn:aws:s3:::judged/k?y"}, {"GetObject"}),
        ({"Principal": {"AWS": OTHER}}, set()),
        ({"Principal": {"AWS": ME}}, {"GetObject"}),
        ({"Condition": {"ArnNotLike": {"aws:PrincipalArn": [OTHER]}}}, {"GetObject"}),
        ({"Condition": {"ArnNotLike": {"aws:PrincipalArn": [OTHER, ME]}}}, set()),
        ({"Condition": {"Bool": {"aws:SecureTransport": "false"}}}, {"GetObject"}),
        ({"Condition": {"Bool": {"aws:SecureTransport": "true"}}}, set()),
    ],
)
def test_what_policies_mean_is_what_a_store_makes_of_them(
    s3: MiniStack, said: dict[str, Any], denied: set[str]
) -> None:
    objects = a_client(s3.endpoint, s3.user)
    objects.create_bucket(Bucket="judged")
    document = {"Version": "2012-10-17", "Statement": [a_denial(**said)]}
    try:
        objects.put_object(Bucket="judged", Key="key", Body=b"x")
        objects.put_bucket_policy(Bucket="judged", Policy=json.dumps(document))
        refused = {}
        for name, ask in (
            ("GetObject", lambda: objects.get_object(Bucket="judged", Key="key")),
            ("PutObject", lambda: objects.put_object(Bucket="judged", Key="key", Body=b"x")),
        ):
            try:
                ask()
            except ClientError as error:
                refused[name] = error.response["Error"]["Code"]
    finally:
        objects.delete_bucket_policy(Bucket="judged")
    assert refused == dict.fromkeys(denied, "AccessDenied")
    context = {"aws:PrincipalArn": ME, "aws:SecureTransport": "false"}
    decided = {
        name
        for name in ("GetObject", "PutObject")
        if decide(Request(f"s3:{name}", "arn:aws:s3:::judged/key", ME, context), [document]).decision
        == "denied"
    }
    assert decided == denied
