"""What `lakeshare doctor` checks of a backup's buckets: their settings and policies, but not policies of identities."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import get_destination, make_arn
from lakeshare_pipelines.backup.policies import INVENTORY_SERVICE, LIST, READ, find_reports_account
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.store import CHECK_ENDPOINT, REMEDIES, make_s3_client
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.storage import s3
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable

ABSENT = {
    "NoSuchBucketPolicy", "ObjectLockConfigurationNotFoundError", "OwnershipControlsNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError", "NoSuchPolicy",
}  # fmt: skip
UNSUPPORTED = {"NotImplemented", "MethodNotAllowed", "405", "501"}


class BucketRefused(Exception):
    """A bucket did not answer a request: why, and what to do."""

    def __init__(self, reason: str, fix: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix
        self.is_absent = is_absent
        """The bucket has no such setting, or the store does not support the request."""


class BucketClient:
    """Reads the settings of a bucket, always with the account that should own it."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address

    @cached_property
    def _client(self) -> Any:
        return make_s3_client(self._address)

    @property
    def region(self) -> str:
        return str(self._client.meta.region_name)

    def request(self, call: str) -> dict[str, Any]:
        """The response to a call of boto3's client; raises BucketRefused without a response."""
        account = self._address.account
        owner = {"ExpectedBucketOwner": account} if account else {}
        try:
            with s3.translate_errors():
                response: dict[str, Any] = getattr(self._client, call)(Bucket=self._address.bucket, **owner)
        except S3Unreachable as error:
            raise BucketRefused(f"the request failed: {error}", CHECK_ENDPOINT) from error
        except S3Refused as error:
            action = error.operation
            if error.code in ABSENT:
                raise BucketRefused("the bucket has no such setting", "Set it.", is_absent=True) from error
            if error.code in UNSUPPORTED:
                raise BucketRefused(
                    f"the store does not support {action}", "Check the setting by hand.", is_absent=True
                ) from error
            if error.code in {"403", "AccessDenied"}:
                other = f", or the bucket does not belong to account {account}" if account else ""
                reason = f"{action}: access is denied{other}"
                raise BucketRefused(reason, REMEDIES["AccessDenied"]) from error
            name = "NoSuchBucket" if error.code == "404" else error.code
            reason = s3.REASONS.get(name, f"{action}: {error}")
            raise BucketRefused(reason, REMEDIES.get(name, CHECK_ENDPOINT)) from error
        return response

    def get_policy(self) -> list[dict[str, Any]]:
        """The bucket's policy, as one document or none."""
        try:
            return [json.loads(self.request("get_bucket_policy")["Policy"])]
        except BucketRefused as error:
            if error.is_absent:
                return []
            raise


class UnsupportedPolicy(Exception):
    """A policy has an element that this module does not support."""


def matches(pattern: str, value: str) -> bool:
    return _compile(pattern).fullmatch(value) is not None


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    wildcards = {"*": ".*", "?": "."}
    return re.compile("".join(wildcards.get(char, re.escape(char)) for char in pattern), re.DOTALL)


def _arn_matches(pattern: str, value: str) -> bool:
    expected, actual = pattern.split(":", 5), value.split(":", 5)
    return len(expected) == len(actual) and all(map(matches, expected, actual))


def _equal_in_any_case(expected: str, actual: str) -> bool:
    return expected.lower() == actual.lower()


POSITIVE: dict[str, Callable[[str, str], bool]] = {
    "StringEquals": str.__eq__,
    "StringEqualsIgnoreCase": _equal_in_any_case,
    "StringLike": matches,
    "ArnEquals": _arn_matches,
    "ArnLike": _arn_matches,
    "Bool": _equal_in_any_case,
}
NEGATIVE = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
}
UNCOMPARED = {
    "NumericEquals", "NumericLessThan", "NumericLessThanEquals", "NumericGreaterThan", "NumericGreaterThanEquals",
    "DateLessThan", "DateGreaterThan",
}  # fmt: skip
"""Operators of keys that no request of this module has, such as `s3:TlsVersion`."""


def is_met(operator: str, key: str, values: Sequence[str], context: Mapping[str, str]) -> bool:
    """Whether a condition holds for the context of a request, whose keys match in any case."""
    actual = {name.lower(): value for name, value in context.items()}.get(key.lower())
    base = operator.removesuffix("IfExists")
    if base == "Null":
        return (actual is None) == (values[0].lower() == "true")
    if base not in POSITIVE and base not in NEGATIVE and base not in UNCOMPARED:
        raise UnsupportedPolicy(f"the condition operator {operator} is not supported")
    if actual is None:
        # A negated operator holds if the request has no such key; others do not.
        return base != operator or base in NEGATIVE
    compare = POSITIVE.get(NEGATIVE.get(base, base))
    if compare is None:
        raise UnsupportedPolicy(f"the condition {operator} of {key} is not supported")
    return any(compare(str(value), actual) for value in values) != (base in NEGATIVE)


Document = Mapping[str, Any]
Decision = Literal["allowed", "denied", "undecided", "unknown"]
KNOWN = {
    "Sid", "Effect", "Principal", "NotPrincipal", "Action", "NotAction", "Resource", "NotResource", "Condition",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    action: str
    resource: str  # ARN
    principal: str  # ARN of a user or a role, or a service such as batchoperations.s3.amazonaws.com
    context: Mapping[str, str] = field(default_factory=dict)  # Condition keys with their values

    @property
    def account(self) -> str | None:
        """The account of the principal; None for a service."""
        match = re.match(r"arn:[^:]*:[^:]*:[^:]*:(\d{12}):", self.principal)
        return match[1] if match else None


@dataclass(frozen=True)
class Verdict:
    decision: Decision
    because: str


def decide(request: Request, policies: Sequence[Document]) -> Verdict:
    """Decide a request by the policies of its resource, for a principal whose own policies allow everything. A
    statement that denies wins; `undecided` if no statement is about the request."""
    try:
        statements = [
            statement
            for policy in policies
            for statement in list_statements(policy)
            if is_about(statement, request)
        ]
    except UnsupportedPolicy as error:
        return Verdict("unknown", str(error))
    first = {
        statement["Effect"]: f"statement {statement.get('Sid', 'without a Sid')}"
        for statement in reversed(statements)
    }
    if "Deny" in first:
        return Verdict("denied", f"{first['Deny']} denies it")
    if "Allow" in first:
        return Verdict("allowed", first["Allow"])
    return Verdict("undecided", "the policy of the bucket does not allow it")


def list_statements(policy: Document) -> list[Document]:
    """The statements of a policy; a single one may stand without a list."""
    statements = policy.get("Statement", [])
    return [statements] if isinstance(statements, Mapping) else list(statements)


def is_about(statement: Document, request: Request) -> bool:
    """Whether the principal, action, resource and conditions of a statement match a request."""
    if unknown := set(statement) - KNOWN:
        raise UnsupportedPolicy(f"the statement element {', '.join(sorted(unknown))} is not supported")
    is_excluding = "NotPrincipal" in statement
    principal = statement["NotPrincipal"] if is_excluding else statement.get("Principal", {})
    return (
        _names_principal(principal, request) != is_excluding
        and _matches_element(statement, "Action", request.action.lower())
        and _matches_element(statement, "Resource", request.resource)
        and all(
            is_met(operator, key, as_list(values), request.context)
            for operator, tests in statement.get("Condition", {}).items()
            for key, values in tests.items()
        )
    )


def _matches_element(statement: Document, name: Literal["Action", "Resource"], value: str) -> bool:
    """Whether a value matches element `name`, or does not match `Not…`; names of actions have no case."""
    patterns = as_list(statement.get(name, statement.get(f"Not{name}", [])))
    is_match = any(matches(pattern.lower() if name == "Action" else pattern, value) for pattern in patterns)
    return is_match == (name in statement)


def _names_principal(principal: str | Document, request: Request) -> bool:
    if principal == "*":
        return True
    if isinstance(principal, str):
        raise UnsupportedPolicy(f"the principal {principal!r} is not supported")
    if request.account is None:
        return request.principal in as_list(principal.get("Service", []))
    return any(
        name in ("*", request.principal, request.account) or name.endswith(f":iam::{request.account}:root")
        for name in as_list(principal.get("AWS", []))
    )


def as_list(value: str | Sequence[str]) -> list[str]:
    """The values of an element that may have one value without a list."""
    return [value] if isinstance(value, str) else list(value)


GUARDED = ("s3:DeleteObjectVersion", "s3:BypassGovernanceRetention", "s3:PutLifecycleConfiguration")
ANY_PRINCIPAL = "any-principal-of-the-account"


@dataclass(frozen=True)
class Check:
    """The result of one check; `remedy` is empty if it passed."""

    name: str
    detail: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return not self.remedy


def check_backup(backup: Backup) -> Iterator[Check]:
    for end, address in (("source", backup.source), ("target", backup.records)):
        if address.kind == "folder":
            path = Path(address.url)
            name = f"{end} {path}"
            if path.is_dir():
                yield Check(name, "a folder of this host")
            elif path.exists():
                yield Check(name, "not a folder", f"Correct the {end} of the backup.")
            else:
                yield Check(name, "does not exist yet; the first run creates it")
        elif "*" in address.bucket or "{" in address.bucket:
            yield Check(f"{end} {address}", "a bucket a day: each is checked when its point is made")
        else:
            yield from _check_bucket(end, backup, address)
    if backup.listing.kind == "s3_inventory":
        try:
            reports = get_destination(backup).address
        except BackupError as error:
            yield Check("inventory reports", f"{error.subject}: {error.reason}", error.fix)
        else:
            owned = reports.model_copy(update={"account": find_reports_account(backup, reports)})
            yield from _check_bucket("reports", backup, owned)


BucketCheck = Callable[[Backup, StoreAddress, BucketClient], tuple[str, str]]  # Returns detail and remedy


def _check_bucket(end: str, backup: Backup, address: StoreAddress) -> Iterator[Check]:
    bucket, client = address.bucket, BucketClient(address)
    try:
        client.request("head_bucket")
    except BucketRefused as error:
        yield Check(f"{end} bucket {bucket}", error.reason, error.fix)
        return
    owner = f", and belongs to account {address.account}" if address.account else ""
    yield Check(f"{end} bucket {bucket}", f"answers{owner}")
    for name, check in _list_checks(end, backup, address):
        try:
            detail, remedy = check(backup, address, client)
        except BucketRefused as error:
            detail, remedy = error.reason, error.fix
        yield Check(f"{name} {bucket}", detail, remedy)


def _list_checks(end: str, backup: Backup, address: StoreAddress) -> Iterator[tuple[str, BucketCheck]]:
    if address.endpoint is None:
        yield "region of", _check_region
    if end == "source":
        accounts = (address.account, backup.target.account)
        if None not in accounts and accounts[0] != accounts[1] and backup.batch is not None:
            yield "policy of", partial(_check_read_policy, backup.batch.role_arn)
    elif end == "target":
        if backup.lock is not None:
            yield "versions of", _check_versioning
            yield "Object Lock of", _check_lock
        if backup.engine == "aws_batch":
            yield "encryption of", _check_encryption
        if address.endpoint is None:
            yield "ownership in", _check_ownership
        if address.account is not None:
            yield "guard-rails of", _check_guard_rails
    elif backup.source.account is not None:
        yield "reports into", _check_report_policy


def _check_region(_backup: Backup, _address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    region = client.request("get_bucket_location").get("LocationConstraint") or "us-east-1"
    if region != client.region:
        return f"the bucket is in {region}, requests go to {client.region}", f"Give its `region`: {region}."
    return region, ""


def _check_read_policy(
    role: str, backup: Backup, address: StoreAddress, client: BucketClient
) -> tuple[str, str]:
    policy, arn = client.get_policy(), make_arn(address)
    needed = [*((action, f"{arn}/{address.prefix}x") for action in READ[:4]), (LIST[0], arn)]
    context = {"aws:PrincipalArn": role, "aws:SecureTransport": "true"}
    verdicts = {
        action: decide(Request(action, resource, role, context), policy) for action, resource in needed
    }
    refused = [action for action, verdict in verdicts.items() if verdict.decision != "allowed"]
    if refused:
        detail = f"{role} may not {', '.join(refused)}: {verdicts[refused[0]].because}"
        return detail, _format_remedy(backup, address)
    return f"lets {role} read", ""


def _check_versioning(_backup: Backup, _address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    status = client.request("get_bucket_versioning").get("Status", "off")
    if status != "Enabled":
        return f"versioning is {status.lower()}", "Turn it on: a lock applies to versions."
    return "versioning is on", ""


def _check_lock(_backup: Backup, _address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    detail = "off, and the backup declares a lock"
    try:
        response = client.request("get_object_lock_configuration")
        if response.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled":
            return "on", ""
    except BucketRefused as error:
        if not error.is_absent:
            detail = error.reason
    return detail, "Turn it on for the bucket, or remove `lock` from the backup."


def _check_encryption(_backup: Backup, _address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    try:
        configuration = client.request("get_bucket_encryption")["ServerSideEncryptionConfiguration"]
    except BucketRefused as error:
        if not error.is_absent:
            raise
        return "none by default: manifests of jobs can be read", ""
    kinds = [
        rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "")
        for rule in configuration["Rules"]
    ]
    if any(kind.startswith("aws:kms") for kind in kinds):
        return (
            "KMS by default: S3 Batch Operations reads no manifest that is encrypted with it",
            "Let the default be SSE-S3 (AES256), or use engine spark.",
        )
    return ", ".join(kinds), ""


def _check_ownership(_backup: Backup, _address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    try:
        rules = client.request("get_bucket_ownership_controls").get("OwnershipControls", {}).get("Rules", [])
    except BucketRefused as error:
        if not error.is_absent:
            raise
        rules = []
    owner = ", ".join(rule["ObjectOwnership"] for rule in rules) or "ObjectWriter"
    if owner != "BucketOwnerEnforced":
        return f"{owner}: copies may belong to their writer", "Set object ownership to BucketOwnerEnforced."
    return owner, ""


def _check_guard_rails(backup: Backup, address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    policy, arn = client.get_policy(), make_arn(address)
    principal = f"arn:aws:iam::{address.account}:role/{ANY_PRINCIPAL}"
    context = {"aws:PrincipalArn": principal, "aws:SecureTransport": "true"}
    unguarded = []
    for action in GUARDED:
        resource = arn if "Lifecycle" in action else f"{arn}/{address.prefix}x"
        if decide(Request(action, resource, principal, context), policy).decision != "denied":
            unguarded.append(action)
    if unguarded:
        return (
            f"a principal of account {address.account} that may do everything may {', '.join(unguarded)}",
            _format_remedy(backup, address),
        )
    return "versions, locks and lifecycle are protected from all principals but those named in the policy", ""


def _check_report_policy(backup: Backup, address: StoreAddress, client: BucketClient) -> tuple[str, str]:
    context = {
        "aws:SourceArn": make_arn(backup.source),
        "aws:SourceAccount": str(backup.source.account),
        "s3:x-amz-acl": "bucket-owner-full-control",
        "aws:SecureTransport": "true",
    }
    request = Request("s3:PutObject", f"{make_arn(address)}/x", INVENTORY_SERVICE, context)
    verdict = decide(request, client.get_policy())
    if verdict.decision != "allowed":
        return f"S3 may not write reports: {verdict.because}", _format_remedy(backup, address)
    return f"S3 may write reports of {backup.source.bucket}", ""


def _format_remedy(backup: Backup, address: StoreAddress) -> str:
    return (
        f"Run `lakeshare backup policies {backup.name} --runner ARN --to FOLDER` and put "
        f"bucket-{address.bucket}.json on the bucket."
    )
