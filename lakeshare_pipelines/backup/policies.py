"""IAM policies of a backup between two accounts: roles, buckets, KMS keys and guard-rails, least privilege first.

The second half is what `lakeshare doctor` checks of the buckets: settings and policies, but not policies of identities.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import get_destination, make_arn, make_statement
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.stores import CHECK_ENDPOINT, REMEDIES, S3Store, StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.storage import s3
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable

IAM_PRINCIPAL = re.compile(r"arn:[a-z-]+:iam::(?P<account>\d{12}):(role|user)/.+")
KEY = re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/.+")
ORGANISATION = re.compile(r"o-[a-z0-9]{10,32}")


@dataclass(frozen=True)
class Parties:
    """Principals and keys that the policies name, besides those that a backup declares."""

    runner: str  # ARN of the role or user that runs lakeshare, in the target's account
    break_glass: str | None = None  # ARN of the only role that may remove protection
    retention_role: str | None = None  # ARN of the role that sweeps; without it no role removes copies
    organisation: str | None = None  # Only its members may read the source
    source_key: str | None = None
    target_key: str | None = None
    inventory_key: str | None = None  # ARNs of the KMS keys that encrypt the buckets

    def require(self, backup: Backup) -> None:
        account = backup.target.account
        for option in ("runner", "break_glass", "retention_role"):
            name = getattr(self, option)
            match = None if name is None else IAM_PRINCIPAL.fullmatch(name)
            if name is not None and (match is None or match["account"] != account):
                reason = f"not a role or user of account {account}, which owns the target"
                fix = f"Give an ARN such as arn:aws:iam::{account}:role/lakeshare."
                raise BackupError(f"--{option.replace('_', '-')} {name}", reason, fix)
        for option in ("source_key", "target_key", "inventory_key"):
            name = getattr(self, option)
            if name is not None and not KEY.fullmatch(name):
                where = f"--{option.replace('_', '-')} {name}"
                raise BackupError(where, "not the ARN of a key", "Give arn:aws:kms:REGION:ACCOUNT:key/ID.")
        if self.organisation is not None and not ORGANISATION.fullmatch(self.organisation):
            raise BackupError(
                f"--organisation {self.organisation}", "not the id of an organisation", "Give o-…."
            )

    def copiers(self, backup: Backup) -> list[str]:
        """Principals that read the source: the role of jobs, and the runner."""
        return [*([backup.batch.role_arn] if backup.batch else []), self.runner]


@dataclass(frozen=True)
class PolicyBuckets:
    """The buckets of a backup, each with the account that owns it; `*` stands for the day of layout `dated`."""

    source: StoreAddress
    target: StoreAddress
    records: StoreAddress
    reports: StoreAddress | None

    @classmethod
    def of(cls, backup: Backup) -> "PolicyBuckets":
        for name, address in (("source", backup.source), ("target", backup.target)):
            if address.kind == "folder":
                reason = f"its {name} is a folder, which has no policies"
                raise BackupError(f"backup {backup.name}", reason, "Name buckets.")
            if address.account is None:
                fix = f"Give `{name}.account`, the twelve digits of the account that owns {address.bucket}."
                raise BackupError(f"backup {backup.name}", f"the account of its {name} is not declared", fix)
        reports = find_reports(backup) if backup.listing.kind == "s3_inventory" else None
        return cls(backup.source, backup.target_of("*"), backup.records, reports)

    def target_buckets(self) -> list[StoreAddress]:
        return list({address.bucket: address for address in (self.target, self.records)}.values())

    def all_buckets(self) -> list[StoreAddress]:
        addresses = (self.source, self.target, self.records, *([self.reports] if self.reports else []))
        return list({address.bucket: address for address in addresses}.values())


def find_reports(backup: Backup) -> StoreAddress:
    """The bucket of the reports, with the account that owns it."""
    reports = get_destination(backup).address
    is_in_target = reports.bucket == backup.target.bucket
    account = backup.target.account if is_in_target else reports.account or backup.source.account
    return reports.model_copy(update={"account": account})


def _objects(address: StoreAddress, suffix: str = "") -> str:
    """ARN of all objects of an address whose key continues with `suffix`."""
    return f"{make_arn(address)}/{address.prefix}{suffix}*"


Statement = dict[str, Any]
BATCH_SERVICE = "batchoperations.s3.amazonaws.com"
INVENTORY_SERVICE = "s3.amazonaws.com"

READ = (
    "s3:GetObject", "s3:GetObjectVersion", "s3:GetObjectTagging", "s3:GetObjectVersionTagging",
    "s3:GetObjectAcl", "s3:GetObjectVersionAcl", "s3:GetObjectAttributes", "s3:GetObjectVersionAttributes",
)  # fmt: skip
LIST = ("s3:ListBucket", "s3:ListBucketVersions", "s3:GetBucketLocation")
WRITE = (
    "s3:PutObject", "s3:PutObjectTagging", "s3:PutObjectVersionTagging",
    "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts",
)  # fmt: skip
LOCK = ("s3:PutObjectRetention", "s3:GetObjectRetention", "s3:PutObjectLegalHold", "s3:GetObjectLegalHold")
INSPECT = (
    "s3:GetBucketPolicy", "s3:GetBucketVersioning", "s3:GetBucketObjectLockConfiguration",
    "s3:GetBucketOwnershipControls", "s3:GetEncryptionConfiguration", "s3:GetInventoryConfiguration",
)  # fmt: skip
SUBMIT = (
    "s3:CreateJob", "s3:ListJobs", "s3:DescribeJob", "s3:UpdateJobStatus", "s3:UpdateJobPriority",
    "s3:GetJobTagging", "s3:PutJobTagging",
)  # fmt: skip
UNPROTECT = (
    "s3:BypassGovernanceRetention", "s3:PutLifecycleConfiguration", "s3:PutBucketVersioning",
    "s3:PutBucketObjectLockConfiguration", "s3:DeleteBucket", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy",
    "s3:PutBucketOwnershipControls", "s3:PutEncryptionConfiguration",
)  # fmt: skip
REMOVE = ("s3:DeleteObject", "s3:DeleteObjectVersion")
ENCRYPT = ("kms:GenerateDataKey", "kms:Decrypt", "kms:DescribeKey")
LOGS = "*_delta_log/"


Kind = Literal["trust", "identity", "bucket", "key", "account"]


@dataclass(frozen=True)
class PolicyFile:
    name: str
    kind: Kind
    account: str
    subject: str  # ARN of the role or key, name of the bucket, or the account
    purpose: str
    apply: str  # The command that applies it, for a person with rights in the account
    statements: list[Statement]

    @property
    def document(self) -> dict[str, Any]:
        """JSON, as IAM accepts it."""
        return {"Version": "2012-10-17", "Statement": self.statements}

    def format(self) -> str:
        return json.dumps(self.document, indent=2) + "\n"


def make_policy_files(backup: Backup, parties: Parties) -> tuple[PolicyFile, ...]:
    """All documents for a backup between two accounts. Raises BackupError if an end of the backup is a folder or has
    no declared account, or a name of `parties` is malformed."""
    buckets = PolicyBuckets.of(backup)
    parties.require(backup)
    account = str(buckets.target.account)
    return (
        *_make_identity_files(backup, parties, buckets),
        *_make_bucket_files(backup, parties, buckets),
        *_make_key_files(backup, parties, buckets),
        PolicyFile(
            "guard-rails.json",
            "account",
            account,
            account,
            "a service control policy for the backup account: only the break-glass role removes protection",
            "aws organizations create-policy --type SERVICE_CONTROL_POLICY --name lakeshare-guard-rails "
            "--description 'Backups stay' --content file://guard-rails.json",
            # KeepCopies names what it does not apply to: in an account that would deny deletions in all other buckets.
            [
                rail
                for rail in _make_guard_rails(backup, parties, buckets.target_buckets())
                if rail["Sid"] != "KeepCopies"
            ],
        ),
    )


def _make_identity_files(backup: Backup, parties: Parties, buckets: PolicyBuckets) -> Iterator[PolicyFile]:
    if backup.batch is not None:
        yield from _make_batch_role_files(backup, backup.batch.role_arn, parties, buckets)
    yield _make_runner_file(backup, parties, buckets)
    if parties.retention_role is None:
        return
    target, records = buckets.target, buckets.records
    removed = dict.fromkeys((_objects(target), _objects(records, OWN_PREFIX)))
    yield _make_identity_file(
        str(target.account),
        parties.retention_role,
        "retention-policy.json",
        "lakeshare-retention",
        "lets the role that sweeps remove copies whose lock has ended, and nothing of the source",
        [
            *_make_read_statements(target, "Copies"),
            _allow("RemoveUnneeded", REMOVE, *removed),
            _allow("ExtendLocks", LOCK, _objects(target)),
            _keep_records(records),
            _make_inspect_statement(buckets.target_buckets()),
        ],
    )


def _keep_records(records: StoreAddress) -> Statement:
    return _allow(
        "KeepRecords", ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), _objects(records, OWN_PREFIX)
    )


def _write_copies(backup: Backup, target: StoreAddress) -> Iterator[Statement]:
    yield _allow("WriteCopies", WRITE, _objects(target))
    if backup.lock is not None:
        yield _allow("LockCopies", LOCK, _objects(target))


def _use_keys(parties: Parties) -> Iterator[Statement]:
    if reading := [key for key in (parties.source_key, parties.inventory_key) if key]:
        yield _allow("ReadEncrypted", ("kms:Decrypt", "kms:DescribeKey"), *reading)
    if parties.target_key:
        yield _allow("WriteEncrypted", ENCRYPT, parties.target_key)


def _make_batch_role_files(
    backup: Backup, role: str, parties: Parties, buckets: PolicyBuckets
) -> Iterator[PolicyFile]:
    """The trust and the policy of the role that S3 Batch Operations copies with."""
    records, account = buckets.records, str(buckets.target.account)
    # The condition keeps jobs of other accounts out ("confused deputy").
    trust = {
        "Sid": "BatchOperationsOfThisAccount",
        "Effect": "Allow",
        "Principal": {"Service": BATCH_SERVICE},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": account}},
    }
    yield PolicyFile(
        "role-trust.json",
        "trust",
        account,
        role,
        "lets S3 Batch Operations assume the role that copies, for jobs of this account only",
        f"aws iam create-role --role-name {role.rpartition('/')[2]} "
        "--assume-role-policy-document file://role-trust.json",
        [trust],
    )
    yield _make_identity_file(
        account,
        role,
        "role-policy.json",
        "lakeshare-copy",
        "lets the role read the source, write copies and reports, and read its manifests",
        [
            *_make_read_statements(buckets.source, "Source"),
            *_write_copies(backup, buckets.target),
            # Manifests and reports of jobs are among the records of points.
            _allow("ReadManifests", ("s3:GetObject", "s3:GetObjectVersion"), _objects(records, OWN_PREFIX)),
            _allow("WriteReports", ("s3:PutObject",), _objects(records, OWN_PREFIX)),
            *_use_keys(parties),
        ],
    )


def _make_runner_file(backup: Backup, parties: Parties, buckets: PolicyBuckets) -> PolicyFile:
    source, target = buckets.source, buckets.target
    # Versions of the commits that are cut from a log stay.
    cut_logs = (
        [_allow("CutLogs", ("s3:DeleteObject",), _objects(target, LOGS))] if backup.layout == "dated" else []
    )
    reports = [buckets.reports] if buckets.reports else []
    submit_jobs = []
    if backup.batch is not None:
        pass_role = _allow("PassRole", ("iam:PassRole",), backup.batch.role_arn)
        submit_jobs = [
            _allow("SubmitJobs", SUBMIT, "*"),
            {**pass_role, "Condition": {"StringEquals": {"iam:PassedToService": BATCH_SERVICE}}},
        ]
    return _make_identity_file(
        str(target.account),
        parties.runner,
        "runner-policy.json",
        "lakeshare-runner",
        "lets lakeshare list, plan, copy what jobs cannot copy, verify, and keep the records of points",
        [
            *_make_read_statements(source, "Source"),
            _allow("ThawSource", ("s3:RestoreObject",), _objects(source)),
            *_write_copies(backup, target),
            *_make_read_statements(target, "Copies"),
            _keep_records(buckets.records),
            *cut_logs,
            _make_inspect_statement(buckets.all_buckets()),
            *(_allow("ReadReports", ("s3:GetObject",), _objects(area)) for area in reports),
            *submit_jobs,
            *_use_keys(parties),
        ],
    )


def _make_bucket_files(backup: Backup, parties: Parties, buckets: PolicyBuckets) -> Iterator[PolicyFile]:
    """The policy of each bucket: S3 takes one per bucket."""
    source, reports = buckets.source, buckets.reports
    copiers, organisation = parties.copiers(backup), parties.organisation
    # The last one counts: the records of a backup may share a bucket with reports.
    owned = (*buckets.all_buckets(), *buckets.target_buckets())
    accounts = {address.bucket: str(address.account) for address in owned}
    statements: dict[str, list[Statement]] = {bucket: [] for bucket in accounts}
    purposes: dict[str, list[str]] = {bucket: [] for bucket in statements}
    statements[source.bucket] += [
        *(_add_principals(copiers, read, organisation) for read in _make_read_statements(source, "Source")),
        _add_principals(
            [parties.runner], _allow("ThawSource", ("s3:RestoreObject",), _objects(source)), organisation
        ),
        _add_principals([parties.runner], _allow("LookAtSource", INSPECT, make_arn(source)), None),
    ]
    purposes[source.bucket].append("lets the backup account read the source")
    for area in buckets.target_buckets():
        statements[area.bucket] += [
            {**rail, "Principal": "*"} for rail in _make_guard_rails(backup, parties, [area])
        ]
        purposes[area.bucket].append("keeps copies and protection, whatever the policies of identities allow")
    if reports is not None:
        statements[reports.bucket].append(make_statement(backup))
        if reports.account != buckets.target.account:
            statements[reports.bucket] += [
                _add_principals([parties.runner], read, organisation)
                for read in _make_read_statements(reports, "Reports")
            ]
        purposes[reports.bucket].append("accepts inventory reports of the source")
    for bucket, of_bucket in statements.items():
        name = f"bucket-{bucket.replace('*', 'DAY')}.json"
        yield PolicyFile(
            name,
            "bucket",
            accounts[bucket],
            bucket,
            "; ".join(purposes[bucket]),
            f"aws s3api put-bucket-policy --bucket {bucket.replace('*', 'DAY')} --policy file://{name} "
            f"--expected-bucket-owner {accounts[bucket]}",
            of_bucket,
        )


def _make_guard_rails(backup: Backup, parties: Parties, areas: Iterable[StoreAddress]) -> Iterator[Statement]:
    """Deny to remove protection to all but the break-glass role, and to remove copies to all but it and retention."""
    break_glass = parties.break_glass or f"arn:aws:iam::{backup.target.account}:role/lakeshare-break-glass"
    sweepers = [break_glass, *([parties.retention_role] if parties.retention_role else [])]
    not_by_sweepers = {"ArnNotLike": {"aws:PrincipalArn": sweepers}}
    arns = [make_arn(area) for area in areas]
    objects = [f"{arn}/*" for arn in arns]
    # Claims of days are released, and logs are cut: versions of those stay.
    logs = [_objects(backup.target_of("*"), LOGS)] if backup.layout == "dated" else []
    deletable = [_objects(backup.records, OWN_PREFIX), *logs]
    for sid, actions, resources, condition in (
        ("KeepProtection", UNPROTECT, [*arns, *objects], {"ArnNotLike": {"aws:PrincipalArn": [break_glass]}}),
        ("KeepVersions", ("s3:DeleteObjectVersion",), objects, not_by_sweepers),
        ("KeepCopies", ("s3:DeleteObject",), deletable, not_by_sweepers),
        ("OnlyEncryptedLines", ("s3:*",), [*arns, *objects], {"Bool": {"aws:SecureTransport": "false"}}),
    ):
        element = "NotResource" if sid == "KeepCopies" else "Resource"
        statement = {"Sid": sid, "Effect": "Deny", "Action": list(actions), element: resources}
        yield {**statement, "Condition": condition}


def _make_key_files(backup: Backup, parties: Parties, buckets: PolicyBuckets) -> Iterator[PolicyFile]:
    copiers = {"AWS": parties.copiers(backup)}
    read = _allow("BackupReads", ("kms:Decrypt", "kms:DescribeKey"), "*")
    write = _allow("BackupWrites", ENCRYPT, "*")
    encrypt_reports = {
        **_allow("InventoryEncrypts", ("kms:GenerateDataKey",), "*"),
        "Principal": {"Service": INVENTORY_SERVICE},
        "Condition": {
            "StringEquals": {"aws:SourceAccount": str(buckets.source.account)},
            "ArnLike": {"aws:SourceArn": make_arn(buckets.source)},
        },
    }
    read_reports = {**_allow("BackupReads", ("kms:Decrypt",), "*"), "Principal": {"AWS": [parties.runner]}}
    for key, account, end, statements in (
        (parties.source_key, str(buckets.source.account), "source", [{**read, "Principal": copiers}]),
        (parties.target_key, str(buckets.target.account), "target", [{**write, "Principal": copiers}]),
        (
            parties.inventory_key,
            buckets.reports and buckets.reports.account,
            "inventory",
            [encrypt_reports, read_reports],
        ),
    ):
        if key and account:
            yield PolicyFile(
                f"{end}-key-statements.json",
                "key",
                account,
                key,
                f"lets the backup use the key of the {end}: add its statements to the key's policy, do not replace it",
                f"aws kms put-key-policy --key-id {key} --policy-name default --policy file://WHOLE-KEY-POLICY.json",
                statements,
            )


def _make_read_statements(area: StoreAddress, what: str) -> list[Statement]:
    """Read objects and their versions; with the right to list, a missing key answers 404 instead of 403."""
    return [_allow(f"Read{what}", READ, _objects(area)), _allow(f"List{what}", LIST, make_arn(area))]


def _make_inspect_statement(areas: Iterable[StoreAddress]) -> Statement:
    return _allow("LookAtBuckets", (*LIST, *INSPECT), *(make_arn(area) for area in areas))


def _allow(sid: str, actions: Iterable[str], *resources: str) -> Statement:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


def _add_principals(principals: list[str], statement: Statement, organisation: str | None) -> Statement:
    condition = {"Condition": {"StringEquals": {"aws:PrincipalOrgID": organisation}}} if organisation else {}
    return {**statement, "Principal": {"AWS": principals}, **condition}


def _make_identity_file(
    account: str, arn: str, name: str, policy: str, purpose: str, statements: list[Statement]
) -> PolicyFile:
    kind, _, path = arn.rpartition(":")[2].partition("/")
    command = (
        f"aws iam put-{kind}-policy --{kind}-name {path.rpartition('/')[2]} --policy-name {policy} "
        f"--policy-document file://{name}"
    )
    return PolicyFile(name, "identity", account, arn, purpose, command, statements)


INDEX = "index.json"


def write_policies(backup: Backup, files: tuple[PolicyFile, ...], folder: Path) -> list[Path]:
    """Write every document, their index and README.md; other files of the folder stay."""
    index = [
        {"name": file.name, "kind": file.kind, "account": file.account, "subject": file.subject}
        for file in files
    ]
    contents = {file.name: file.format() for file in files}
    contents |= {INDEX: json.dumps(index, indent=2) + "\n", "README.md": format_page(backup, files)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content)
    except OSError as error:
        fix = "Give another --to."
        raise BackupError(str(folder), f"the folder cannot be written: {error.strerror}", fix) from error
    return [folder / name for name in contents]


def format_page(backup: Backup, files: tuple[PolicyFile, ...]) -> str:
    """Purpose, command and statements of each document, by account, as Markdown."""
    lines = [f"# Policies of backup {backup.name}", ""]
    lines += [f"From {backup.source} (account {backup.source.account})", ""]
    lines += [f"to {backup.target} (account {backup.target.account}).", ""]
    for account in dict.fromkeys(file.account for file in files):
        lines += [f"## Account {account}", ""]
        for file in files:
            if file.account == account:
                lines += [f"### {file.name}", "", f"{file.purpose[0].upper()}{file.purpose[1:]}.", ""]
                lines += ["```", file.apply, "```", ""]
                for statement in file.statements:
                    actions = statement["Action"]
                    names = actions if isinstance(actions, str) else ", ".join(actions)
                    line = f"- {statement['Sid']}: {statement['Effect'].lower()} {names}"
                    if "ArnNotLike" in statement.get("Condition", {}):
                        line += " (except for the principals named in it)"
                    lines.append(line)
                lines.append("")
    lines += ["After each step `lakeshare doctor` reports what is still missing.", ""]
    return "\n".join(lines)


ABSENT = {
    "NoSuchBucketPolicy", "ObjectLockConfigurationNotFoundError", "OwnershipControlsNotFoundError",
    "ServerSideEncryptionConfigurationNotFoundError", "NoSuchPolicy",
}  # fmt: skip
UNSUPPORTED = {"NotImplemented", "MethodNotAllowed", "405", "501"}


REFUSALS = (S3Refused, S3Unreachable)


def find_setting(bucket: S3Store, call: str) -> dict[str, Any]:
    """The response to a call of boto3's client; empty if the bucket has no such setting, or the store no such request.
    Raises S3Refused and S3Unreachable."""
    try:
        return bucket.call(call)
    except S3Refused as error:
        if error.code in ABSENT | UNSUPPORTED:
            return {}
        raise


def get_policy(bucket: S3Store) -> list[dict[str, Any]]:
    """The bucket's policy, as one document or none."""
    response = find_setting(bucket, "get_bucket_policy")
    return [json.loads(response["Policy"])] if response else []


def explain_refusal(error: S3Refused | S3Unreachable, account: str | None) -> tuple[str, str]:
    """Why a bucket of an account did not answer a request, and what to do."""
    if isinstance(error, S3Unreachable):
        return f"the request failed: {error}", CHECK_ENDPOINT
    if error.code in ABSENT:
        return "the bucket has no such setting", "Set it."
    if error.code in UNSUPPORTED:
        return f"the store does not support {error.operation}", "Check the setting by hand."
    if error.code in {"403", "AccessDenied"}:
        other = f", or the bucket does not belong to account {account}" if account else ""
        return f"{error.operation}: access is denied{other}", REMEDIES["AccessDenied"]
    name = "NoSuchBucket" if error.code == "404" else error.code
    return s3.REASONS.get(name, f"{error.operation}: {error}"), REMEDIES.get(name, CHECK_ENDPOINT)


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
    # ArnNotLike, StringNotEquals, …
    positive = re.sub(r"^(String|Arn|Numeric)Not", r"\1", base)
    is_negated = positive != base
    if positive not in POSITIVE and positive not in UNCOMPARED:
        raise UnsupportedPolicy(f"the condition operator {operator} is not supported")
    if actual is None:
        # A negated operator holds if the request has no such key; others do not.
        return base != operator or is_negated
    compare = POSITIVE.get(positive)
    if compare is None:
        raise UnsupportedPolicy(f"the condition {operator} of {key} is not supported")
    return any(compare(str(value), actual) for value in values) != is_negated


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
            reports = find_reports(backup)
        except BackupError as error:
            yield Check("inventory reports", f"{error.subject}: {error.reason}", error.fix)
        else:
            yield from _check_bucket("reports", backup, reports)


BucketCheck = Callable[[Backup, S3Store], tuple[str, str]]  # Returns detail and remedy


def _check_bucket(end: str, backup: Backup, address: StoreAddress) -> Iterator[Check]:
    bucket, client = address.bucket, S3Store(address)
    try:
        client.call("head_bucket")
    except REFUSALS as error:
        yield Check(f"{end} bucket {bucket}", *explain_refusal(error, address.account))
        return
    owner = f", and belongs to account {address.account}" if address.account else ""
    yield Check(f"{end} bucket {bucket}", f"answers{owner}")
    for name, check in _list_checks(end, backup, address):
        try:
            detail, remedy = check(backup, client)
        except REFUSALS as error:
            detail, remedy = explain_refusal(error, address.account)
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


def _check_region(_backup: Backup, client: S3Store) -> tuple[str, str]:
    region = client.call("get_bucket_location").get("LocationConstraint") or "us-east-1"
    own = client.client.meta.region_name
    if region != own:
        return f"the bucket is in {region}, requests go to {own}", f"Give its `region`: {region}."
    return region, ""


def _check_read_policy(role: str, backup: Backup, client: S3Store) -> tuple[str, str]:
    policy, arn = get_policy(client), make_arn(client.address)
    needed = [*((action, f"{arn}/{client.address.prefix}x") for action in READ[:4]), (LIST[0], arn)]
    context = {"aws:PrincipalArn": role, "aws:SecureTransport": "true"}
    verdicts = {
        action: decide(Request(action, resource, role, context), policy) for action, resource in needed
    }
    refused = [action for action, verdict in verdicts.items() if verdict.decision != "allowed"]
    if refused:
        detail = f"{role} may not {', '.join(refused)}: {verdicts[refused[0]].because}"
        return detail, _format_remedy(backup, client)
    return f"lets {role} read", ""


def _check_versioning(_backup: Backup, client: S3Store) -> tuple[str, str]:
    status = client.call("get_bucket_versioning").get("Status", "off")
    if status != "Enabled":
        return f"versioning is {status.lower()}", "Turn it on: a lock applies to versions."
    return "versioning is on", ""


def _check_lock(_backup: Backup, client: S3Store) -> tuple[str, str]:
    detail = "off, and the backup declares a lock"
    try:
        response = find_setting(client, "get_object_lock_configuration")
        if response.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled":
            return "on", ""
    except REFUSALS as error:
        detail, _ = explain_refusal(error, client.address.account)
    return detail, "Turn it on for the bucket, or remove `lock` from the backup."


def _check_encryption(_backup: Backup, client: S3Store) -> tuple[str, str]:
    response = find_setting(client, "get_bucket_encryption")
    if not response:
        return "none by default: manifests of jobs can be read", ""
    kinds = [
        rule.get("ApplyServerSideEncryptionByDefault", {}).get("SSEAlgorithm", "")
        for rule in response["ServerSideEncryptionConfiguration"]["Rules"]
    ]
    if any(kind.startswith("aws:kms") for kind in kinds):
        return (
            "KMS by default: S3 Batch Operations reads no manifest that is encrypted with it",
            "Let the default be SSE-S3 (AES256), or use engine spark.",
        )
    return ", ".join(kinds), ""


def _check_ownership(_backup: Backup, client: S3Store) -> tuple[str, str]:
    rules = (
        find_setting(client, "get_bucket_ownership_controls").get("OwnershipControls", {}).get("Rules", [])
    )
    owner = ", ".join(rule["ObjectOwnership"] for rule in rules) or "ObjectWriter"
    if owner != "BucketOwnerEnforced":
        return f"{owner}: copies may belong to their writer", "Set object ownership to BucketOwnerEnforced."
    return owner, ""


def _check_guard_rails(backup: Backup, client: S3Store) -> tuple[str, str]:
    policy, arn = get_policy(client), make_arn(client.address)
    principal = f"arn:aws:iam::{client.address.account}:role/{ANY_PRINCIPAL}"
    context = {"aws:PrincipalArn": principal, "aws:SecureTransport": "true"}
    unguarded = []
    for action in GUARDED:
        resource = arn if "Lifecycle" in action else f"{arn}/{client.address.prefix}x"
        if decide(Request(action, resource, principal, context), policy).decision != "denied":
            unguarded.append(action)
    if unguarded:
        return (
            f"a principal of account {client.address.account} that may do everything may {', '.join(unguarded)}",
            _format_remedy(backup, client),
        )
    return "versions, locks and lifecycle are protected from all principals but those named in the policy", ""


def _check_report_policy(backup: Backup, client: S3Store) -> tuple[str, str]:
    context = {
        "aws:SourceArn": make_arn(backup.source),
        "aws:SourceAccount": str(backup.source.account),
        "s3:x-amz-acl": "bucket-owner-full-control",
        "aws:SecureTransport": "true",
    }
    request = Request("s3:PutObject", f"{make_arn(client.address)}/x", INVENTORY_SERVICE, context)
    verdict = decide(request, get_policy(client))
    if verdict.decision != "allowed":
        return f"S3 may not write reports: {verdict.because}", _format_remedy(backup, client)
    return f"S3 may write reports of {backup.source.bucket}", ""


def _format_remedy(backup: Backup, client: S3Store) -> str:
    return (
        f"Run `lakeshare backup policies {backup.name} --runner ARN --to FOLDER` and put "
        f"bucket-{client.address.bucket}.json on the bucket."
    )
