"""IAM policies of a backup between two accounts: roles, buckets, KMS keys and guard-rails, least privilege first."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory.configuration import get_destination, make_arn, make_statement
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError

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
        for field in ("runner", "break_glass", "retention_role"):
            name = getattr(self, field)
            match = None if name is None else IAM_PRINCIPAL.fullmatch(name)
            if name is not None and (match is None or match["account"] != account):
                reason = f"not a role or user of account {account}, which owns the target"
                fix = f"Give an ARN such as arn:aws:iam::{account}:role/lakeshare."
                raise BackupError(f"--{field.replace('_', '-')} {name}", reason, fix)
        for field in ("source_key", "target_key", "inventory_key"):
            name = getattr(self, field)
            if name is not None and not KEY.fullmatch(name):
                option = f"--{field.replace('_', '-')} {name}"
                raise BackupError(option, "not the ARN of a key", "Give arn:aws:kms:REGION:ACCOUNT:key/ID.")
        if self.organisation is not None and not ORGANISATION.fullmatch(self.organisation):
            raise BackupError(
                f"--organisation {self.organisation}", "not the id of an organisation", "Give o-…."
            )

    def copiers(self, backup: Backup) -> list[str]:
        """Principals that read the source: the role of jobs, and the runner."""
        return [*([backup.batch.role_arn] if backup.batch else []), self.runner]


@dataclass(frozen=True)
class BucketArea:
    """A prefix of a bucket, in ARNs; `*` stands for the day of layout `dated`."""

    bucket: str
    bucket_arn: str
    prefix: str

    @classmethod
    def of(cls, address: StoreAddress) -> "BucketArea":
        of_any_day = address.model_copy(update={"url": address.url.replace("{day}", "*")})
        return cls(of_any_day.bucket, make_arn(of_any_day), of_any_day.prefix)

    def objects(self, suffix: str = "") -> str:
        """ARN of all its objects whose key continues with `suffix`."""
        return f"{self.bucket_arn}/{self.prefix}{suffix}*"


@dataclass(frozen=True)
class PolicyBuckets:
    source: BucketArea
    target: BucketArea
    records: BucketArea
    reports: BucketArea | None
    source_account: str
    target_account: str
    reports_account: str | None
    is_dated: bool  # Each day has its own copies, and logs are cut at the verified version

    @classmethod
    def of(cls, backup: Backup) -> "PolicyBuckets":
        for name, address in (("source", backup.source), ("target", backup.target)):
            if address.kind == "folder":
                reason = f"its {name} is a folder, which has no policies"
                raise BackupError(f"backup {backup.name}", reason, "Name buckets.")
            if address.account is None:
                fix = f"Give `{name}.account`, the twelve digits of the account that owns {address.bucket}."
                raise BackupError(f"backup {backup.name}", f"the account of its {name} is not declared", fix)
        reports = get_destination(backup).address if backup.listing.kind == "s3_inventory" else None
        return cls(
            BucketArea.of(backup.source),
            BucketArea.of(backup.target),
            BucketArea.of(backup.records),
            None if reports is None else BucketArea.of(reports),
            str(backup.source.account),
            str(backup.target.account),
            None if reports is None else find_reports_account(backup, reports),
            backup.layout == "dated",
        )

    def target_buckets(self) -> list[BucketArea]:
        return list({area.bucket: area for area in (self.target, self.records)}.values())

    def all_buckets(self) -> list[BucketArea]:
        areas = (self.source, self.target, self.records, *([self.reports] if self.reports else []))
        return list({area.bucket: area for area in areas}.values())


def find_reports_account(backup: Backup, reports: StoreAddress) -> str | None:
    if reports.bucket == backup.target.bucket:
        return backup.target.account
    return reports.account or backup.source.account


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


def make_policy_files(backup: Backup, parties: Parties) -> tuple[PolicyFile, ...]:
    """All documents for a backup between two accounts. Raises BackupError if an end of the backup is a folder or has
    no declared account, or a name of `parties` is malformed."""
    buckets = PolicyBuckets.of(backup)
    parties.require(backup)
    return (
        *_make_identity_files(backup, parties, buckets),
        *_make_bucket_files(backup, parties, buckets),
        *_make_key_files(backup, parties, buckets),
        PolicyFile(
            "guard-rails.json",
            "account",
            buckets.target_account,
            buckets.target_account,
            "a service control policy for the backup account: only the break-glass role removes protection",
            "aws organizations create-policy --type SERVICE_CONTROL_POLICY --name lakeshare-guard-rails "
            "--description 'Backups stay' --content file://guard-rails.json",
            # KeepCopies names what it does not apply to: in an account that would deny deletions in all other buckets.
            [
                rail
                for rail in _make_guard_rails(parties, buckets, buckets.target_buckets())
                if rail["Sid"] != "KeepCopies"
            ],
        ),
    )


def _make_identity_files(backup: Backup, parties: Parties, buckets: PolicyBuckets) -> Iterator[PolicyFile]:
    source, target, records, account = buckets.source, buckets.target, buckets.records, buckets.target_account
    read_source = _make_read_statements(source, "Source")
    read_copies = _make_read_statements(target, "Copies")
    keep_records = _allow(
        "KeepRecords", ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), records.objects(OWN_PREFIX)
    )
    write_copies = [_allow("WriteCopies", WRITE, target.objects())]
    if backup.lock is not None:
        write_copies.append(_allow("LockCopies", LOCK, target.objects()))
    use_keys = []
    if reading_keys := [key for key in (parties.source_key, parties.inventory_key) if key]:
        use_keys.append(_allow("ReadEncrypted", ("kms:Decrypt", "kms:DescribeKey"), *reading_keys))
    if parties.target_key:
        use_keys.append(_allow("WriteEncrypted", ENCRYPT, parties.target_key))
    submit_jobs = []
    if backup.batch is not None:
        role = backup.batch.role_arn
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
        # Manifests and reports of jobs are among the records of points.
        manifests = [
            _allow("ReadManifests", ("s3:GetObject", "s3:GetObjectVersion"), records.objects(OWN_PREFIX)),
            _allow("WriteReports", ("s3:PutObject",), records.objects(OWN_PREFIX)),
        ]
        yield _make_identity_file(
            account,
            role,
            "role-policy.json",
            "lakeshare-copy",
            "lets the role read the source, write copies and reports, and read its manifests",
            [*read_source, *write_copies, *manifests, *use_keys],
        )
        pass_role = _allow("PassRole", ("iam:PassRole",), role)
        submit_jobs = [
            _allow("SubmitJobs", SUBMIT, "*"),
            {**pass_role, "Condition": {"StringEquals": {"iam:PassedToService": BATCH_SERVICE}}},
        ]
    # Versions of the commits that are cut from a log stay.
    cut_logs = [_allow("CutLogs", ("s3:DeleteObject",), target.objects(LOGS))] if buckets.is_dated else []
    reports = [buckets.reports] if buckets.reports else []
    yield _make_identity_file(
        account,
        parties.runner,
        "runner-policy.json",
        "lakeshare-runner",
        "lets lakeshare list, plan, copy what jobs cannot copy, verify, and keep the records of points",
        [
            *read_source,
            _allow("ThawSource", ("s3:RestoreObject",), source.objects()),
            *write_copies,
            *read_copies,
            keep_records,
            *cut_logs,
            _make_inspect_statement(buckets.all_buckets()),
            *(_allow("ReadReports", ("s3:GetObject",), area.objects()) for area in reports),
            *submit_jobs,
            *use_keys,
        ],
    )
    if parties.retention_role is not None:
        removed = dict.fromkeys((target.objects(), records.objects(OWN_PREFIX)))
        yield _make_identity_file(
            account,
            parties.retention_role,
            "retention-policy.json",
            "lakeshare-retention",
            "lets the role that sweeps remove copies whose lock has ended, and nothing of the source",
            [
                *read_copies,
                _allow("RemoveUnneeded", REMOVE, *removed),
                _allow("ExtendLocks", LOCK, target.objects()),
                keep_records,
                _make_inspect_statement(buckets.target_buckets()),
            ],
        )


def _make_bucket_files(backup: Backup, parties: Parties, buckets: PolicyBuckets) -> Iterator[PolicyFile]:
    """The policy of each bucket: S3 takes one per bucket."""
    source, reports = buckets.source, buckets.reports
    copiers, organisation = parties.copiers(backup), parties.organisation
    accounts = {reports.bucket: buckets.reports_account} if reports is not None else {}
    accounts[source.bucket] = buckets.source_account
    accounts |= {area.bucket: buckets.target_account for area in buckets.target_buckets()}
    statements: dict[str, list[Statement]] = {area.bucket: [] for area in buckets.all_buckets()}
    purposes: dict[str, list[str]] = {bucket: [] for bucket in statements}
    statements[source.bucket] += [
        *(_add_principals(copiers, read, organisation) for read in _make_read_statements(source, "Source")),
        _add_principals(
            [parties.runner], _allow("ThawSource", ("s3:RestoreObject",), source.objects()), organisation
        ),
        _add_principals([parties.runner], _allow("LookAtSource", INSPECT, source.bucket_arn), None),
    ]
    purposes[source.bucket].append("lets the backup account read the source")
    for area in buckets.target_buckets():
        statements[area.bucket] += [
            {**rail, "Principal": "*"} for rail in _make_guard_rails(parties, buckets, [area])
        ]
        purposes[area.bucket].append("keeps copies and protection, whatever the policies of identities allow")
    if reports is not None:
        statements[reports.bucket].append(make_statement(backup))
        if buckets.reports_account != buckets.target_account:
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
            str(accounts[bucket]),
            bucket,
            "; ".join(purposes[bucket]),
            f"aws s3api put-bucket-policy --bucket {bucket.replace('*', 'DAY')} --policy file://{name} "
            f"--expected-bucket-owner {accounts[bucket]}",
            of_bucket,
        )


def _make_guard_rails(
    parties: Parties, buckets: PolicyBuckets, areas: Iterable[BucketArea]
) -> Iterator[Statement]:
    """Deny to remove protection to all but the break-glass role, and to remove copies to all but it and retention."""
    break_glass = parties.break_glass or f"arn:aws:iam::{buckets.target_account}:role/lakeshare-break-glass"
    sweepers = [break_glass, *([parties.retention_role] if parties.retention_role else [])]
    not_by_sweepers = {"ArnNotLike": {"aws:PrincipalArn": sweepers}}
    arns = [area.bucket_arn for area in areas]
    objects = [f"{arn}/*" for arn in arns]
    # Claims of days are released, and logs are cut: versions of those stay.
    deletable = [
        buckets.records.objects(OWN_PREFIX), *([buckets.target.objects(LOGS)] if buckets.is_dated else [])
    ]  # fmt: skip
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
            "StringEquals": {"aws:SourceAccount": buckets.source_account},
            "ArnLike": {"aws:SourceArn": buckets.source.bucket_arn},
        },
    }
    read_reports = {**_allow("BackupReads", ("kms:Decrypt",), "*"), "Principal": {"AWS": [parties.runner]}}
    for key, account, end, statements in (
        (parties.source_key, buckets.source_account, "source", [{**read, "Principal": copiers}]),
        (parties.target_key, buckets.target_account, "target", [{**write, "Principal": copiers}]),
        (parties.inventory_key, buckets.reports_account, "inventory", [encrypt_reports, read_reports]),
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


def _make_read_statements(area: BucketArea, what: str) -> list[Statement]:
    """Read objects and their versions; with the right to list, a missing key answers 404 instead of 403."""
    return [_allow(f"Read{what}", READ, area.objects()), _allow(f"List{what}", LIST, area.bucket_arn)]


def _make_inspect_statement(areas: Iterable[BucketArea]) -> Statement:
    return _allow("LookAtBuckets", (*LIST, *INSPECT), *(area.bucket_arn for area in areas))


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
    contents = {file.name: format_policy(file) for file in files}
    contents |= {INDEX: json.dumps(index, indent=2) + "\n", "README.md": format_page(backup, files)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content)
    except OSError as error:
        fix = "Give another --to."
        raise BackupError(str(folder), f"the folder cannot be written: {error.strerror}", fix) from error
    return [folder / name for name in contents]


def format_policy(file: PolicyFile) -> str:
    return json.dumps(file.document, indent=2) + "\n"


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
                for statement in file.document["Statement"]:
                    actions = statement["Action"]
                    names = actions if isinstance(actions, str) else ", ".join(actions)
                    line = f"- {statement['Sid']}: {statement['Effect'].lower()} {names}"
                    if "ArnNotLike" in statement.get("Condition", {}):
                        line += " (except for the principals named in it)"
                    lines.append(line)
                lines.append("")
    lines += ["After each step `lakeshare doctor` reports what is still missing.", ""]
    return "\n".join(lines)
