"""The policies of a backup in its two accounts: the role that copies, who runs lakeshare, buckets, keys, guard-rails.

One document for each place that takes one, least rights first: nobody here may change the source or remove a copy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.policies import statements
from lakeshare_pipelines.backup.policies.parties import Parties, Places
from lakeshare_pipelines.backup.policies.statements import Statement

Kind = Literal["trust", "identity", "bucket", "key", "account"]
VERSION = "2012-10-17"


@dataclass(frozen=True)
class PolicyFile:
    """One document, where it belongs and how it gets there."""

    name: str
    kind: Kind
    account: str
    subject: str
    """ARN of the role or key it is of, the bucket's name, or the account."""
    purpose: str
    apply: str
    """The command that puts it there; a person with rights in the account runs it."""
    document: dict[str, Any]
    """JSON, as IAM takes it."""


def policy_files(backup: Backup, parties: Parties) -> tuple[PolicyFile, ...]:
    """All documents for a backup between two accounts.

    Raises:
        BackupError: the backup is not between buckets whose accounts are declared, or lacks a name of someone.
    """
    places = Places.of(backup)
    parties.require(backup)
    return (
        *_of_role(backup, parties, places),
        *_of_runner(backup, parties, places),
        *_of_retention(parties, places),
        *_of_buckets(backup, parties, places),
        *_of_keys(backup, parties, places),
        _of_account(parties, places),
    )


def _of_role(backup: Backup, parties: Parties, places: Places) -> Iterator[PolicyFile]:
    if backup.batch is None:
        return
    role, account = backup.batch.role_arn, places.target_account
    name = role.rpartition("/")[2]
    yield PolicyFile(
        "role-trust.json",
        "trust",
        account,
        role,
        "lets S3 Batch Operations, for jobs of this account only, become the role that copies",
        f"aws iam create-role --role-name {name} --assume-role-policy-document file://role-trust.json",
        _document(statements.trust(account)),
    )
    yield PolicyFile(
        "role-policy.json",
        "identity",
        account,
        role,
        "lets the role read the source, write copies and reports, and read its manifests",
        f"aws iam put-role-policy --role-name {name} --policy-name lakeshare-copy "
        "--policy-document file://role-policy.json",
        _document(
            *statements.reading(places.source),
            *statements.writing(places.target, with_lock=backup.lock is not None),
            *statements.using_manifests(places.records),
            *statements.using_keys(parties),
        ),
    )


def _of_runner(backup: Backup, parties: Parties, places: Places) -> Iterator[PolicyFile]:
    yield PolicyFile(
        "runner-policy.json",
        "identity",
        places.target_account,
        parties.runner,
        "lets whoever runs lakeshare list, plan, copy what jobs cannot, verify and keep the points' records",
        _put_on(parties.runner, "lakeshare-runner", "runner-policy.json"),
        _document(
            *statements.reading(places.source),
            *statements.thawing(places.source),
            *statements.writing(places.target, with_lock=backup.lock is not None),
            *statements.reading(places.target, "Copies"),
            *statements.keeping_records(places.records),
            *statements.cutting(places),
            *statements.looking_at_buckets(places.all_buckets()),
            *statements.reading_reports(places.reports),
            *statements.submitting(backup.batch),
            *statements.using_keys(parties),
        ),
    )


def _of_retention(parties: Parties, places: Places) -> Iterator[PolicyFile]:
    if parties.retention_role is None:
        return
    yield PolicyFile(
        "retention-policy.json",
        "identity",
        places.target_account,
        parties.retention_role,
        "lets the role that sweeps remove copies whose lock has ended, and nothing of the source",
        _put_on(parties.retention_role, "lakeshare-retention", "retention-policy.json"),
        _document(
            *statements.reading(places.target, "Copies"),
            *statements.removing(places.target, places.records),
            *statements.keeping_records(places.records),
            *statements.looking_at_buckets(places.target_buckets()),
        ),
    )


def _of_buckets(backup: Backup, parties: Parties, places: Places) -> Iterator[PolicyFile]:
    for bucket, (account, found) in statements.of_buckets(backup, parties, places).items():
        name = f"bucket-{bucket.replace('*', 'DAY')}.json"
        yield PolicyFile(
            name,
            "bucket",
            account,
            bucket,
            statements.purpose_of(bucket, places),
            f"aws s3api put-bucket-policy --bucket {bucket.replace('*', 'DAY')} --policy file://{name} "
            f"--expected-bucket-owner {account}",
            _document(*found),
        )


def _of_keys(backup: Backup, parties: Parties, places: Places) -> Iterator[PolicyFile]:
    for key, account, which, found in statements.of_keys(backup, parties, places):
        name = f"{which}-key-statements.json"
        yield PolicyFile(
            name,
            "key",
            account,
            key,
            f"lets the backup use the key of the {which}: add its statements to the key's policy, do not replace it",
            f"aws kms put-key-policy --key-id {key} --policy-name default --policy file://WHOLE-KEY-POLICY.json",
            _document(*found),
        )


def _of_account(parties: Parties, places: Places) -> PolicyFile:
    return PolicyFile(
        "guard-rails.json",
        "account",
        places.target_account,
        places.target_account,
        "a service control policy for the backup account: nobody but the break-glass role removes protection",
        "aws organizations create-policy --type SERVICE_CONTROL_POLICY --name lakeshare-guard-rails "
        "--description 'Backups stay' --content file://guard-rails.json",
        _document(*statements.guard_rails(parties, places, names_principals=False)),
    )


def _put_on(arn: str, policy: str, name: str) -> str:
    kind, _, short = arn.rpartition(":")[2].partition("/")
    return (
        f"aws iam put-{kind}-policy --{kind}-name {short.rpartition('/')[2]} --policy-name {policy} "
        f"--policy-document file://{name}"
    )


def _document(*found: Statement) -> dict[str, Any]:
    return {"Version": VERSION, "Statement": list(found)}
