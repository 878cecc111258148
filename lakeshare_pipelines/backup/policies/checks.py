"""Whether the places of a backup are as it needs them, by what the stores themselves answer; changes nothing.

The rights of roles and users are not asked for, they are the accounts' own affair; of buckets every policy is read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.configuration import arn, destination_of
from lakeshare_pipelines.backup.policies.asking import Answer, Asked
from lakeshare_pipelines.backup.policies.evaluate import Request, decide
from lakeshare_pipelines.backup.policies.parties import owner_of_reports
from lakeshare_pipelines.backup.policies.statements import INVENTORY_SERVICE, LIST, READ
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError

EVERYTHING = {"Statement": {"Sid": "Everything", "Effect": "Allow", "Action": "*", "Resource": "*"}}
"""What stands for the rights of an identity, so that only the other side decides."""
GUARDED = ("s3:DeleteObjectVersion", "s3:BypassGovernanceRetention", "s3:PutLifecycleConfiguration")
NOBODY = "somebody-of-the-account"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` is empty when nothing is to be done."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def checks_of(backup: Backup) -> Iterator[Check]:
    """Everything about a backup's places, in the order it needs them."""
    for end, address, of_bucket in (
        ("source", backup.source, _of_source),
        ("target", backup.records, _of_target),
    ):
        if address.kind == "folder":
            yield _of_folder(end, Path(address.url))
        elif "*" in address.bucket or "{" in address.bucket:
            yield Check(f"{end} {address}", True, "a bucket a day: each is looked at when its day is made")
        else:
            yield from _of_place(end, backup, address, of_bucket)
    if backup.listing.kind == "s3_inventory":
        try:
            reports = destination_of(backup).address
        except BackupError as error:
            yield Check("inventory reports", False, f"{error.subject}: {error.reason}", error.fix)
        else:
            whose = reports.model_copy(update={"account": owner_of_reports(backup, reports)})
            yield from _of_place("reports", backup, whose, _of_reports)


def _of_folder(end: str, path: Path) -> Check:
    name = f"{end} {path}"
    if path.is_dir():
        return Check(name, True, "a folder of this host")
    if path.exists():
        return Check(name, False, "it is no folder", f"Correct the {end} of the backup.")
    return Check(name, True, "is not there yet; the first run makes it")


Looked = Callable[[Backup, StoreAddress, Asked], Iterator[Check]]


def _of_place(end: str, backup: Backup, address: StoreAddress, of_bucket: Looked) -> Iterator[Check]:
    """First whether the bucket answers at all: nothing else is told of one that does not."""
    asked = Asked(address)
    name = f"{end} bucket {address.bucket}"
    head = asked.ask("head_bucket")
    if not head.is_there:
        yield Check(name, False, head.refusal, head.fix)
        return
    owner = f", and belongs to account {address.account}" if address.account else ""
    yield Check(name, True, f"answers{owner}")
    if address.endpoint is None:
        yield _region(f"region of {address.bucket}", address, asked)
    yield from of_bucket(backup, address, asked)


def _region(name: str, address: StoreAddress, asked: Asked) -> Check:
    answer = asked.ask("get_bucket_location")
    if not answer.is_there:
        return Check(name, False, answer.refusal, answer.fix)
    found = answer.said.get("LocationConstraint") or "us-east-1"
    if found != asked.region:
        return Check(
            name, False, f"it is in {found}, requests go to {asked.region}", f"Give its `region`: {found}."
        )
    return Check(name, True, found)


def _of_source(backup: Backup, address: StoreAddress, asked: Asked) -> Iterator[Check]:
    account, role = backup.target.account, backup.batch.role_arn if backup.batch else None
    if address.account is None or account is None or role is None or address.account == account:
        return
    policy = asked.policy()
    name = f"policy of {address.bucket}"
    if isinstance(policy, Answer):
        yield Check(name, False, policy.refusal, policy.fix)
        return
    wanted = [(action, f"{arn(address)}/{address.prefix}x") for action in READ[:4]] + [
        (LIST[0], arn(address))
    ]
    verdicts = [
        (action, decide(Request(action, resource, role, address.account, _told(role)), [EVERYTHING], policy))
        for action, resource in wanted
    ]
    refused = [(action, verdict) for action, verdict in verdicts if not verdict.is_allowed]
    if refused:
        actions = ", ".join(action for action, _ in refused)
        yield Check(name, False, f"{role} may not {actions}: {refused[0][1].because}", _put(backup, address))
    else:
        yield Check(name, True, f"lets {role} read")


def _of_target(backup: Backup, address: StoreAddress, asked: Asked) -> Iterator[Check]:
    if backup.lock is not None:
        yield _versions(address, asked)
        yield _lock(address, asked)
    if backup.engine == "aws_batch":
        yield _encryption(address, asked)
    if address.endpoint is None:
        yield _ownership(address, asked)
    if address.account is not None:
        yield _guard_rails(backup, address, address.account, asked)


def _versions(address: StoreAddress, asked: Asked) -> Check:
    name, answer = f"versions of {address.bucket}", asked.ask("get_bucket_versioning")
    if not answer.is_there:
        return Check(name, False, answer.refusal, answer.fix)
    status = answer.said.get("Status", "off")
    if status != "Enabled":
        return Check(name, False, f"versioning is {status.lower()}", "Turn it on: a lock is of versions.")
    return Check(name, True, "versioning is on")


def _lock(address: StoreAddress, asked: Asked) -> Check:
    name, answer = f"Object Lock of {address.bucket}", asked.ask("get_object_lock_configuration")
    on = answer.said.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"
    if answer.is_there and on:
        return Check(name, True, "on")
    told = (
        answer.refusal
        if not answer.is_there and not answer.is_absent
        else "off, and the backup declares a lock"
    )
    return Check(name, False, told, "Turn it on for the bucket, or take `lock` out of the backup.")


def _encryption(address: StoreAddress, asked: Asked) -> Check:
    name, answer = f"encryption of {address.bucket}", asked.ask("get_bucket_encryption")
    if not answer.is_there:
        if answer.is_absent:
            return Check(name, True, "none by default: manifests of jobs can be read")
        return Check(name, False, answer.refusal, answer.fix)
    rules = answer.said["ServerSideEncryptionConfiguration"]["Rules"]
    kinds = [rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "") for rule in rules]
    if any(kind.startswith("aws:kms") for kind in kinds):
        return Check(
            name,
            False,
            "KMS by default: S3 Batch Operations reads no manifest that is encrypted so",
            "Let the default be SSE-S3 (AES256), or use engine spark.",
        )
    return Check(name, True, ", ".join(kinds))


def _ownership(address: StoreAddress, asked: Asked) -> Check:
    name, answer = f"ownership in {address.bucket}", asked.ask("get_bucket_ownership_controls")
    if not answer.is_there and not answer.is_absent:
        return Check(name, False, answer.refusal, answer.fix)
    rules = answer.said.get("OwnershipControls", {}).get("Rules", [])
    found = ", ".join(rule["ObjectOwnership"] for rule in rules) or "ObjectWriter"
    if found != "BucketOwnerEnforced":
        return Check(
            name,
            False,
            f"{found}: copies may belong to who writes them",
            "Set object ownership to BucketOwnerEnforced.",
        )
    return Check(name, True, found)


def _guard_rails(backup: Backup, address: StoreAddress, account: str, asked: Asked) -> Check:
    name, policy = f"guard-rails of {address.bucket}", asked.policy()
    if isinstance(policy, Answer):
        return Check(name, False, policy.refusal, policy.fix)
    who = f"arn:aws:iam::{account}:role/{NOBODY}"
    objects, bucket = f"{arn(address)}/{address.prefix}x", arn(address)
    open_ = [
        action
        for action in GUARDED
        if decide(
            Request(action, bucket if "Lifecycle" in action else objects, who, account, _told(who)),
            [EVERYTHING],
            policy,
        ).decision
        != "denied"
    ]
    if open_:
        told = f"whoever may everything in account {account} may {', '.join(open_)}"
        return Check(name, False, told, _put(backup, address))
    return Check(name, True, "versions, locks and lifecycle are kept from everybody who is not named")


def _of_reports(backup: Backup, address: StoreAddress, asked: Asked) -> Iterator[Check]:
    source = backup.source
    if source.account is None:
        return
    policy = asked.policy()
    name = f"reports into {address.bucket}"
    if isinstance(policy, Answer):
        yield Check(name, False, policy.refusal, policy.fix)
        return
    context = {
        "aws:SourceArn": arn(source),
        "aws:SourceAccount": source.account,
        "s3:x-amz-acl": "bucket-owner-full-control",
        "aws:SecureTransport": "true",
    }
    request = Request(
        "s3:PutObject", f"{arn(address)}/x", INVENTORY_SERVICE, address.account or source.account, context
    )
    verdict = decide(request, [], policy)
    if verdict.is_allowed:
        yield Check(name, True, f"S3 may write those of {source.bucket}")
    else:
        yield Check(name, False, f"S3 may not write reports: {verdict.because}", _put(backup, address))


def _told(principal: str) -> dict[str, Any]:
    return {"aws:PrincipalArn": principal, "aws:SecureTransport": "true"}


def _put(backup: Backup, address: StoreAddress) -> str:
    return (
        f"Run `lakeshare backup policies {backup.name} --runner ARN --to FOLDER` and put bucket-{address.bucket}.json "
        "on the bucket."
    )
