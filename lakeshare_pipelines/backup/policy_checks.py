"""Whether the places of a backup are as it needs them, by what the stores themselves answer; changes nothing.

The rights of roles and users are not asked for, they are the accounts' own affair; of buckets every policy is read.
"""

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import get_destination, make_arn
from lakeshare_pipelines.backup.policies import INVENTORY_SERVICE, LIST, READ, find_reports_account
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.store import REFUSALS, make_s3_client
from lakeshare_pipelines.errors import BackupError

ABSENT = {
    "NoSuchBucketPolicy", "ObjectLockConfigurationNotFoundError", "OwnershipControlsNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError", "NoSuchPolicy",
}  # fmt: skip
UNKNOWN = {"NotImplemented", "MethodNotAllowed", "405", "501"}
CHECK_ENDPOINT = "Check the endpoint, the network and the credentials."


@dataclass(frozen=True)
class BucketResponse:
    """`said` is boto3's answer; where there is none, `refusal` says why and `fix` what to do about it."""

    body: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""
    fix: str = ""
    is_absent: bool = False
    """The bucket answers that it has no such setting, or the store that it has none for any bucket."""

    @property
    def is_there(self) -> bool:
        """Something was said."""
        return not self.refusal


class BucketClient:
    """A bucket that is asked about itself, always with the account that should own it."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address

    @cached_property
    def _client(self) -> Any:
        """boto3's client; it ships no types."""
        return make_s3_client(self._address)

    @property
    def region(self) -> str:
        """The region that requests are signed for."""
        region: str = self._client.meta.region_name
        return region

    def ask(self, call: str) -> BucketResponse:
        """What the bucket answers to a call of boto3's client."""
        from botocore.exceptions import BotoCoreError, ClientError

        owner = {"ExpectedBucketOwner": self._address.account} if self._address.account else {}
        try:
            return BucketResponse(getattr(self._client, call)(Bucket=self._address.bucket, **owner))
        except ClientError as error:
            return self._refused(call, str(error.response.get("Error", {}).get("Code", "")), str(error))
        except BotoCoreError as error:
            return BucketResponse(refusal=f"it cannot be asked: {str(error).rstrip('.')}", fix=CHECK_ENDPOINT)

    def policy(self) -> list[dict[str, Any]] | BucketResponse:
        """The bucket's policy, as one document or none; an Answer when it does not say."""
        response = self.ask("get_bucket_policy")
        if response.is_there:
            return [json.loads(response.body["Policy"])]
        return [] if response.is_absent else response

    def _refused(self, call: str, code: str, words: str) -> BucketResponse:
        action = "".join(part.capitalize() for part in call.split("_"))
        if code in ABSENT:
            return BucketResponse(refusal="it has none", fix="Set it.", is_absent=True)
        if code in UNKNOWN:
            return BucketResponse(
                refusal=f"the store does not know {action}", fix="Look by hand.", is_absent=True
            )
        if code in {"404", "NoSuchBucket"}:
            return BucketResponse(refusal=REFUSALS["NoSuchBucket"][0], fix=REFUSALS["NoSuchBucket"][1])
        if code in {"403", "AccessDenied"}:
            account = self._address.account
            other = f", or it is not of account {account}" if account else ""
            return BucketResponse(
                refusal=f"{action}: access is denied{other}", fix=REFUSALS["AccessDenied"][1]
            )
        reason, fix = REFUSALS.get(code, (f"{action}: {words}", CHECK_ENDPOINT))
        return BucketResponse(refusal=reason, fix=fix)


class UnsupportedPolicy(Exception):
    """A policy says something that is not known here."""


def matches(pattern: str, value: str) -> bool:
    """Whether a value is of a pattern with `*` and `?`."""
    return _pattern(pattern).fullmatch(value) is not None


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(one, re.escape(one)) for one in pattern), re.DOTALL)


def _arn_matches(pattern: str, value: str) -> bool:
    """Each of the six parts of an ARN by itself."""
    wanted, found = pattern.split(":", 5), value.split(":", 5)
    return len(wanted) == len(found) and all(map(matches, wanted, found))


def _equal(wanted: str, found: str) -> bool:
    return wanted == found


def _equal_in_any_case(wanted: str, found: str) -> bool:
    return wanted.lower() == found.lower()


def _numbers(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda wanted, found: compare(float(found), float(wanted))


def _moments(compare: Callable[[float, float], bool]) -> Callable[[str, str], bool]:
    return lambda wanted, found: compare(_moment(found), _moment(wanted))


def _moment(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+", text) else dt.datetime.fromisoformat(text).timestamp()


POSITIVE: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": _equal,
    "StringEqualsIgnoreCase": _equal_in_any_case,
    "StringLike": matches,
    "ArnEquals": _arn_matches,
    "ArnLike": _arn_matches,
    "Bool": _equal_in_any_case,
    "NumericEquals": _numbers(lambda found, wanted: found == wanted),
    "NumericLessThan": _numbers(lambda found, wanted: found < wanted),
    "NumericLessThanEquals": _numbers(lambda found, wanted: found <= wanted),
    "NumericGreaterThan": _numbers(lambda found, wanted: found > wanted),
    "NumericGreaterThanEquals": _numbers(lambda found, wanted: found >= wanted),
    "DateLessThan": _moments(lambda found, wanted: found < wanted),
    "DateGreaterThan": _moments(lambda found, wanted: found > wanted),
}
NEGATIVE = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
}


def is_met(operator: str, key: str, values: Sequence[str], context: Mapping[str, str]) -> bool:
    """Whether a condition holds for a request's context, whose keys are found in any case.

    Raises:
        NotUnderstood: the operator is not known here, or a value is of another kind than it takes.
    """
    found = {name.lower(): value for name, value in context.items()}.get(key.lower())
    base = operator.removesuffix("IfExists")
    if base == "Null":
        return (found is None) == (values[0].lower() == "true")
    if base not in POSITIVE and base not in NEGATIVE:
        raise UnsupportedPolicy(f"the condition operator {operator} is not understood here")
    if found is None:
        # A negated operator holds of a key that is not there, a plain one does not.
        return base != operator or base in NEGATIVE
    compare = POSITIVE[NEGATIVE.get(base, base)]
    try:
        is_one = any(compare(str(wanted), found) for wanted in values)
    except ValueError as error:
        raise UnsupportedPolicy(f"the condition {operator} of {key} cannot be compared: {error}") from error
    return is_one != (base in NEGATIVE)


Document = Mapping[str, Any]
Decision = Literal["allowed", "denied", "unknown"]
KNOWN = {
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One action of somebody on something."""

    action: str
    resource: str
    """ARN."""
    principal: str
    """ARN of a user or a role, or a service such as batchoperations.s3.amazonaws.com."""
    resource_account: str
    context: Mapping[str, str] = field(default_factory=dict)
    """Condition keys with their values."""

    @property
    def account(self) -> str | None:
        """The account of who asks; a service has none."""
        found = re.match(r"arn:[^:]*:[^:]*:[^:]*:(\d{12}):", self.principal)
        return found[1] if found else None


@dataclass(frozen=True)
class Verdict:
    """What was decided, and by what: the Sid of a statement, or the side that says nothing."""

    decision: Decision
    because: str

    @property
    def is_allowed(self) -> bool:
        """It is allowed for certain."""
        return self.decision == "allowed"


def decide(request: Request, identity: Sequence[Document], resource: Sequence[Document]) -> Verdict:
    """Whether a request goes through, by the policies of who asks and those of what is asked for.

    An explicit denial ends it. Across accounts both sides have to allow it, within one account either of them.
    """
    try:
        mine = [one for policy in identity for one in _statements(policy) if _is_about(one, request, False)]
        theirs = [one for policy in resource for one in _statements(policy) if _is_about(one, request, True)]
    except UnsupportedPolicy as error:
        return Verdict("unknown", str(error))
    for one in (*mine, *theirs):
        if one["Effect"] == "Deny":
            return Verdict("denied", f"statement {one.get('Sid', 'without a Sid')} denies it")
    return _decide_by_allowances(request, _find_allowing(mine), theirs)


def _decide_by_allowances(request: Request, by_identity: str | None, theirs: list[Document]) -> Verdict:
    by_name = _find_allowing(one for one in theirs if not _delegates_to_account(one, request))
    by_resource = by_name or _find_allowing(theirs)
    if request.account is None:
        allowing: tuple[str | None, ...] = (by_name,)
    elif request.account != request.resource_account:
        allowing = (by_identity, by_resource)
    elif request.action.startswith("kms:"):
        # A key obeys its own policy only, which may hand the decision on to the account.
        allowing = (by_name or by_resource, by_name or by_identity)
    else:
        allowing = (by_name or by_identity,)
    if all(allowing):
        return Verdict("allowed", " and ".join(dict.fromkeys(name for name in allowing if name)))
    silent = ["the policies of who asks"] * (by_identity is None) + ["the policy of the resource"] * (
        by_resource is None
    )
    return Verdict("denied", f"{' and '.join(silent)} do not allow it")


def _delegates_to_account(statement: Document, request: Request) -> bool:
    """Whether it names the account and nobody in it: then the account's own policies decide."""
    principal = statement.get("Principal", {})
    if principal == "*" or request.account is None or isinstance(principal, str):
        return False
    return not {"*", request.principal} & set(as_list(principal.get("AWS", [])))


def _find_allowing(statements: Iterable[Document]) -> str | None:
    return next(
        (
            f"statement {statement.get('Sid', 'without a Sid')}"
            for statement in statements
            if statement["Effect"] == "Allow"
        ),
        None,
    )


def _statements(policy: Document) -> list[Document]:
    found = policy.get("Statement", [])
    return [found] if isinstance(found, Mapping) else list(found)


def _is_about(statement: Document, request: Request, names_principals: bool) -> bool:
    if unknown := set(statement) - KNOWN:
        raise UnsupportedPolicy(f"a statement has {', '.join(sorted(unknown))}, which is not understood here")
    return (
        (not names_principals or _is_of(statement, request))
        and _either(statement, "Action", request.action.lower(), lower=True)
        and _either(statement, "Resource", request.resource)
        and all(
            is_met(operator, key, as_list(values), request.context)
            for operator, tests in statement.get("Condition", {}).items()
            for key, values in tests.items()
        )
    )


def _either(statement: Document, name: str, value: str, *, lower: bool = False) -> bool:
    """Whether a value is among `name`, or not among `Not…`."""
    values = as_list(statement.get(name, statement.get(f"Not{name}", [])))
    found = any(matches(one.lower() if lower else one, value) for one in values)
    return found if name in statement else not found


def _is_of(statement: Document, request: Request) -> bool:
    if "NotPrincipal" in statement:
        return not _names(statement["NotPrincipal"], request)
    return _names(statement.get("Principal", {}), request)


def _names(principal: str | Document, request: Request) -> bool:
    if principal == "*":
        return True
    if isinstance(principal, str):
        raise UnsupportedPolicy(f"the principal {principal!r} is not understood here")
    if request.account is None:
        return request.principal in as_list(principal.get("Service", []))
    whole_account = (request.account, f":iam::{request.account}:root")
    return any(
        one in ("*", request.principal, whole_account[0]) or one.endswith(whole_account[1])
        for one in as_list(principal.get("AWS", []))
    )


def as_list(value: str | Sequence[str]) -> list[str]:
    """What may be one or several, as several."""
    return [value] if isinstance(value, str) else list(value)


EVERYTHING = {"Statement": {"Sid": "Everything", "Effect": "Allow", "Action": "*", "Resource": "*"}}
"""What stands for the rights of an identity, so that only the other side decides."""
GUARDED = ("s3:DeleteObjectVersion", "s3:BypassGovernanceRetention", "s3:PutLifecycleConfiguration")
ANY_PRINCIPAL = "somebody-of-the-account"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` is empty when nothing is to be done."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def check_backup(backup: Backup) -> Iterator[Check]:
    """Everything about a backup's places, in the order it needs them."""
    for end, address, of_bucket in (
        ("source", backup.source, _check_source),
        ("target", backup.records, _check_target),
    ):
        if address.kind == "folder":
            yield _check_folder(end, Path(address.url))
        elif "*" in address.bucket or "{" in address.bucket:
            yield Check(f"{end} {address}", True, "a bucket a day: each is looked at when its day is made")
        else:
            yield from _check_location(end, backup, address, of_bucket)
    if backup.listing.kind == "s3_inventory":
        try:
            reports = get_destination(backup).address
        except BackupError as error:
            yield Check("inventory reports", False, f"{error.subject}: {error.reason}", error.fix)
        else:
            whose = reports.model_copy(update={"account": find_reports_account(backup, reports)})
            yield from _check_location("reports", backup, whose, _check_reports)


def _check_folder(end: str, path: Path) -> Check:
    name = f"{end} {path}"
    if path.is_dir():
        return Check(name, True, "a folder of this host")
    if path.exists():
        return Check(name, False, "it is no folder", f"Correct the {end} of the backup.")
    return Check(name, True, "is not there yet; the first run makes it")


BucketCheck = Callable[[Backup, StoreAddress, BucketClient], Iterator[Check]]


def _check_location(
    end: str, backup: Backup, address: StoreAddress, of_bucket: BucketCheck
) -> Iterator[Check]:
    """First whether the bucket answers at all: nothing else is told of one that does not."""
    client = BucketClient(address)
    name = f"{end} bucket {address.bucket}"
    head = client.ask("head_bucket")
    if not head.is_there:
        yield Check(name, False, head.refusal, head.fix)
        return
    owner = f", and belongs to account {address.account}" if address.account else ""
    yield Check(name, True, f"answers{owner}")
    if address.endpoint is None:
        yield _check_region(f"region of {address.bucket}", address, client)
    yield from of_bucket(backup, address, client)


def _check_region(name: str, address: StoreAddress, client: BucketClient) -> Check:
    response = client.ask("get_bucket_location")
    if not response.is_there:
        return Check(name, False, response.refusal, response.fix)
    found = response.body.get("LocationConstraint") or "us-east-1"
    if found != client.region:
        return Check(
            name, False, f"it is in {found}, requests go to {client.region}", f"Give its `region`: {found}."
        )
    return Check(name, True, found)


def _check_source(backup: Backup, address: StoreAddress, client: BucketClient) -> Iterator[Check]:
    account, role = backup.target.account, backup.batch.role_arn if backup.batch else None
    if address.account is None or account is None or role is None or address.account == account:
        return
    policy = client.policy()
    name = f"policy of {address.bucket}"
    if isinstance(policy, BucketResponse):
        yield Check(name, False, policy.refusal, policy.fix)
        return
    wanted = [(action, f"{make_arn(address)}/{address.prefix}x") for action in READ[:4]] + [
        (LIST[0], make_arn(address))
    ]
    verdicts = [
        (
            action,
            decide(
                Request(action, resource, role, address.account, _make_principal(role)), [EVERYTHING], policy
            ),
        )
        for action, resource in wanted
    ]
    refused = [(action, verdict) for action, verdict in verdicts if not verdict.is_allowed]
    if refused:
        actions = ", ".join(action for action, _ in refused)
        yield Check(
            name, False, f"{role} may not {actions}: {refused[0][1].because}", _format_remedy(backup, address)
        )
    else:
        yield Check(name, True, f"lets {role} read")


def _check_target(backup: Backup, address: StoreAddress, client: BucketClient) -> Iterator[Check]:
    if backup.lock is not None:
        yield _check_versioning(address, client)
        yield _check_lock(address, client)
    if backup.engine == "aws_batch":
        yield _check_encryption(address, client)
    if address.endpoint is None:
        yield _check_ownership(address, client)
    if address.account is not None:
        yield _guard_rails(backup, address, address.account, client)


def _check_versioning(address: StoreAddress, client: BucketClient) -> Check:
    name, response = f"versions of {address.bucket}", client.ask("get_bucket_versioning")
    if not response.is_there:
        return Check(name, False, response.refusal, response.fix)
    status = response.body.get("Status", "off")
    if status != "Enabled":
        return Check(name, False, f"versioning is {status.lower()}", "Turn it on: a lock is of versions.")
    return Check(name, True, "versioning is on")


def _check_lock(address: StoreAddress, client: BucketClient) -> Check:
    name, response = f"Object Lock of {address.bucket}", client.ask("get_object_lock_configuration")
    on = response.body.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled"
    if response.is_there and on:
        return Check(name, True, "on")
    detail = (
        response.refusal
        if not response.is_there and not response.is_absent
        else "off, and the backup declares a lock"
    )
    return Check(name, False, detail, "Turn it on for the bucket, or take `lock` out of the backup.")


def _check_encryption(address: StoreAddress, client: BucketClient) -> Check:
    name, response = f"encryption of {address.bucket}", client.ask("get_bucket_encryption")
    if not response.is_there:
        if response.is_absent:
            return Check(name, True, "none by default: manifests of jobs can be read")
        return Check(name, False, response.refusal, response.fix)
    rules = response.body["ServerSideEncryptionConfiguration"]["Rules"]
    kinds = [rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "") for rule in rules]
    if any(kind.startswith("aws:kms") for kind in kinds):
        return Check(
            name,
            False,
            "KMS by default: S3 Batch Operations reads no manifest that is encrypted so",
            "Let the default be SSE-S3 (AES256), or use engine spark.",
        )
    return Check(name, True, ", ".join(kinds))


def _check_ownership(address: StoreAddress, client: BucketClient) -> Check:
    name, response = f"ownership in {address.bucket}", client.ask("get_bucket_ownership_controls")
    if not response.is_there and not response.is_absent:
        return Check(name, False, response.refusal, response.fix)
    rules = response.body.get("OwnershipControls", {}).get("Rules", [])
    found = ", ".join(rule["ObjectOwnership"] for rule in rules) or "ObjectWriter"
    if found != "BucketOwnerEnforced":
        return Check(
            name,
            False,
            f"{found}: copies may belong to who writes them",
            "Set object ownership to BucketOwnerEnforced.",
        )
    return Check(name, True, found)


def _guard_rails(backup: Backup, address: StoreAddress, account: str, client: BucketClient) -> Check:
    name, policy = f"guard-rails of {address.bucket}", client.policy()
    if isinstance(policy, BucketResponse):
        return Check(name, False, policy.refusal, policy.fix)
    who = f"arn:aws:iam::{account}:role/{ANY_PRINCIPAL}"
    objects, bucket = f"{make_arn(address)}/{address.prefix}x", make_arn(address)
    open_ = [
        action
        for action in GUARDED
        if decide(
            Request(action, bucket if "Lifecycle" in action else objects, who, account, _make_principal(who)),
            [EVERYTHING],
            policy,
        ).decision
        != "denied"
    ]
    if open_:
        detail = f"whoever may everything in account {account} may {', '.join(open_)}"
        return Check(name, False, detail, _format_remedy(backup, address))
    return Check(name, True, "versions, locks and lifecycle are kept from everybody who is not named")


def _check_reports(backup: Backup, address: StoreAddress, client: BucketClient) -> Iterator[Check]:
    source = backup.source
    if source.account is None:
        return
    policy = client.policy()
    name = f"reports into {address.bucket}"
    if isinstance(policy, BucketResponse):
        yield Check(name, False, policy.refusal, policy.fix)
        return
    context = {
        "aws:SourceArn": make_arn(source),
        "aws:SourceAccount": source.account,
        "s3:x-amz-acl": "bucket-owner-full-control",
        "aws:SecureTransport": "true",
    }
    request = Request(
        "s3:PutObject",
        f"{make_arn(address)}/x",
        INVENTORY_SERVICE,
        address.account or source.account,
        context,
    )
    verdict = decide(request, [], policy)
    if verdict.is_allowed:
        yield Check(name, True, f"S3 may write those of {source.bucket}")
    else:
        yield Check(
            name, False, f"S3 may not write reports: {verdict.because}", _format_remedy(backup, address)
        )


def _make_principal(principal: str) -> dict[str, Any]:
    return {"aws:PrincipalArn": principal, "aws:SecureTransport": "true"}


def _format_remedy(backup: Backup, address: StoreAddress) -> str:
    return (
        f"Run `lakeshare backup policies {backup.name} --runner ARN --to FOLDER` and put bucket-{address.bucket}.json "
        "on the bucket."
    )
