"""The policies of a backup in its two accounts: the role that copies, who runs lakeshare, buckets, keys, guard-rails.

One document for each place that takes one, least rights first: nobody here may change the source or remove a copy.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lakeshare_pipelines.backup.config import Backup, Batch
from lakeshare_pipelines.backup.inventory.configuration import get_destination, make_arn, make_statement
from lakeshare_pipelines.backup.points import OWN_PREFIX
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError

PERSON = re.compile(r"arn:[a-z-]+:iam::(?P<account>\d{12}):(role|user)/.+")
KEY = re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/.+")
ORGANISATION = re.compile(r"o-[a-z0-9]{10,32}")
BREAK_GLASS = "arn:aws:iam::{account}:role/lakeshare-break-glass"


@dataclass(frozen=True)
class Parties:
    """Those whom the policies name besides what a backup declares."""

    runner: str
    """ARN of the role or user that runs lakeshare, in the target's account."""
    break_glass: str | None = None
    """ARN of the role that alone may take protection away; `lakeshare-break-glass` of the account by default."""
    retention_role: str | None = None
    """ARN of the role that sweeps; without one nobody removes copies."""
    organisation: str | None = None
    """Only members of it reach the source."""
    source_key: str | None = None
    target_key: str | None = None
    inventory_key: str | None = None
    """ARNs of KMS keys, of buckets that are encrypted with one."""

    def require(self, backup: Backup) -> None:
        """Refuse names that are none.

        Raises:
            BackupError: one of them is no ARN of its kind, or of another account than the target's.
        """
        account = backup.target.account
        people = {
            "--runner": self.runner,
            "--break-glass": self.break_glass,
            "--retention-role": self.retention_role,
        }
        for option, name in people.items():
            found = None if name is None else PERSON.fullmatch(name)
            if name is not None and (found is None or found["account"] != account):
                raise BackupError(
                    f"{option} {name}",
                    f"it is no role or user of account {account}, where the target is",
                    f"Give an ARN such as arn:aws:iam::{account}:role/lakeshare.",
                )
        keys = {
            "--source-key": self.source_key, "--target-key": self.target_key, "--inventory-key": self.inventory_key
        }  # fmt: skip
        for option, name in keys.items():
            if name is not None and not KEY.fullmatch(name):
                raise BackupError(
                    f"{option} {name}", "it is no key's ARN", "Give arn:aws:kms:REGION:ACCOUNT:key/ID."
                )
        if self.organisation is not None and not ORGANISATION.fullmatch(self.organisation):
            raise BackupError(
                f"--organisation {self.organisation}", "it is no organisation's id", "Give o-…."
            )

    def copiers(self, backup: Backup) -> list[str]:
        """Who reads the source: the role of jobs, and who runs lakeshare."""
        return [*([backup.batch.role_arn] if backup.batch else []), self.runner]

    def unbound(self, backup_account: str) -> str:
        """The break-glass role."""
        return self.break_glass or BREAK_GLASS.format(account=backup_account)


@dataclass(frozen=True)
class BucketArea:
    """A part of a bucket, as ARNs name it; `*` stands for the day of a layout `dated`."""

    bucket: str
    bucket_arn: str
    prefix: str

    @classmethod
    def of(cls, address: StoreAddress) -> "BucketArea":
        """The area of an address; `{day}` in it is any day."""
        at = address.model_copy(update={"url": address.url.replace("{day}", "*")})
        return cls(at.bucket, make_arn(at), at.prefix)

    @property
    def objects(self) -> str:
        """ARN of all its objects."""
        return f"{self.bucket_arn}/{self.prefix}*"

    @property
    def logs(self) -> str:
        """ARN of the objects in the logs of its Delta tables."""
        return f"{self.bucket_arn}/{self.prefix}*_delta_log/*"

    @property
    def own(self) -> str:
        """ARN of what lakeshare keeps for itself there."""
        return f"{self.bucket_arn}/{self.prefix}{OWN_PREFIX}*"


@dataclass(frozen=True)
class PolicyBuckets:
    """The buckets of a backup, and whose they are."""

    source: BucketArea
    target: BucketArea
    records: BucketArea
    reports: BucketArea | None
    source_account: str
    target_account: str
    reports_account: str | None
    is_dated: bool
    """Copies belong to one day alone, and the logs of their tables are cut at the version that is proven."""

    @classmethod
    def of(cls, backup: Backup) -> "PolicyBuckets":
        """The places of a backup.

        Raises:
            BackupError: an end of it is a folder, or its account is not declared.
        """
        for name, address in (("source", backup.source), ("target", backup.target)):
            if address.kind == "folder":
                raise BackupError(
                    f"backup {backup.name}", f"its {name} is a folder, which has no policies", "Name buckets."
                )
            if address.account is None:
                raise BackupError(
                    f"backup {backup.name}",
                    f"the account of its {name} is not declared",
                    f"Give `{name}.account`, the twelve digits of the account that owns {address.bucket}.",
                )
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
        """Buckets with copies or records, each once."""
        return list({area.bucket: area for area in (self.target, self.records)}.values())

    def all_buckets(self) -> list[BucketArea]:
        """All buckets, each once."""
        areas = (self.source, self.target, self.records, *([self.reports] if self.reports else []))
        return list({area.bucket: area for area in areas}.values())

    def account_of(self, bucket: str) -> str:
        """Whose a bucket is."""
        return dict(self._owners())[bucket]

    def _owners(self) -> Iterator[tuple[str, str]]:
        if self.reports is not None and self.reports_account is not None:
            yield self.reports.bucket, self.reports_account
        yield self.source.bucket, self.source_account
        for area in self.target_buckets():
            yield area.bucket, self.target_account


def find_reports_account(backup: Backup, reports: StoreAddress) -> str | None:
    """Whose the bucket is that inventory reports arrive in: told, or that of the end it belongs to."""
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


def make_trust_statement(account: str) -> Statement:
    """Who may become the role of jobs; the condition keeps jobs of other accounts out ("confused deputy")."""
    return {
        "Sid": "BatchOperationsOfThisAccount",
        "Effect": "Allow",
        "Principal": {"Service": BATCH_SERVICE},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": account}},
    }


def make_read_statements(area: BucketArea, what: str = "Source") -> Iterator[Statement]:
    """Read objects and their versions; listing lets a missing key answer 404 instead of 403."""
    yield _allow(f"Read{what}", READ, area.objects)
    yield _allow(f"List{what}", LIST, area.bucket_arn)


def make_thaw_statements(area: BucketArea) -> Iterator[Statement]:
    """Bring objects back from archive classes."""
    yield _allow("ThawSource", ("s3:RestoreObject",), area.objects)


def make_write_statements(area: BucketArea, *, with_lock: bool) -> Iterator[Statement]:
    """Write copies; no ACLs, since the target's bucket belongs to its owner alone."""
    yield _allow("WriteCopies", WRITE, area.objects)
    if with_lock:
        yield _allow("LockCopies", LOCK, area.objects)


def make_manifest_statements(records: BucketArea) -> Iterator[Statement]:
    """Read manifests and write reports of jobs, both among the points' own records."""
    yield _allow("ReadManifests", ("s3:GetObject", "s3:GetObjectVersion"), records.own)
    yield _allow("WriteReports", ("s3:PutObject",), records.own)


def make_record_statements(records: BucketArea) -> Iterator[Statement]:
    """Write and remove claims, plans and points: what lakeshare keeps for itself."""
    yield _allow("KeepRecords", ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), records.own)


def make_cut_statements(places: PolicyBuckets) -> Iterator[Statement]:
    """In a layout `dated`, take commits after the proven version out of the copied logs; versions of them stay."""
    if places.is_dated:
        yield _allow("CutLogs", ("s3:DeleteObject",), places.target.logs)


def make_inspect_statements(areas: Iterable[BucketArea]) -> Iterator[Statement]:
    """What `lakeshare doctor` asks of buckets."""
    yield _allow("LookAtBuckets", (*LIST, *INSPECT), *(area.bucket_arn for area in areas))


def make_report_statements(reports: BucketArea | None) -> Iterator[Statement]:
    """Read inventory reports."""
    if reports is not None:
        yield _allow("ReadReports", ("s3:GetObject",), reports.objects)


def make_submit_statements(batch: Batch | None) -> Iterator[Statement]:
    """Make, watch and end jobs, and hand them their role and no other."""
    if batch is not None:
        yield _allow("SubmitJobs", SUBMIT, "*")
        pass_role = _allow("PassRole", ("iam:PassRole",), batch.role_arn)
        yield {**pass_role, "Condition": {"StringEquals": {"iam:PassedToService": BATCH_SERVICE}}}


def make_remove_statements(target: BucketArea, records: BucketArea) -> Iterator[Statement]:
    """Remove copies and records that no point needs; a lock that has not ended refuses it all the same."""
    yield _allow("RemoveUnneeded", REMOVE, *dict.fromkeys((target.objects, records.own)))
    yield _allow("ExtendLocks", LOCK, target.objects)


def make_key_use_statements(parties: Parties) -> Iterator[Statement]:
    """Read what is encrypted with the source's key, write with the target's."""
    reading_keys = [key for key in (parties.source_key, parties.inventory_key) if key]
    if reading_keys:
        yield _allow("ReadEncrypted", ("kms:Decrypt", "kms:DescribeKey"), *reading_keys)
    if parties.target_key:
        yield _allow(
            "WriteEncrypted", ("kms:GenerateDataKey", "kms:Decrypt", "kms:DescribeKey"), parties.target_key
        )


def make_bucket_policies(
    backup: Backup, parties: Parties, places: PolicyBuckets
) -> dict[str, tuple[str, list[Statement]]]:
    """Account and statements of every bucket's one policy."""
    found: dict[str, tuple[str, list[Statement]]] = {
        area.bucket: (places.account_of(area.bucket), []) for area in places.all_buckets()
    }
    copiers = parties.copiers(backup)
    found[places.source.bucket][1].extend(
        _add_principals(copiers, one, parties.organisation) for one in make_read_statements(places.source)
    )
    found[places.source.bucket][1].extend(
        _add_principals([parties.runner], one, parties.organisation)
        for one in make_thaw_statements(places.source)
    )
    found[places.source.bucket][1].append(
        _add_principals([parties.runner], _make_inspect_statement("Source", places.source), None)
    )
    for area in places.target_buckets():
        found[area.bucket][1].extend(make_guard_rails(parties, places, names_principals=True, area=area))
    if places.reports is not None:
        found[places.reports.bucket][1].append(make_statement(backup))
        if places.reports_account != places.target_account:
            found[places.reports.bucket][1].extend(
                _add_principals([parties.runner], one, parties.organisation)
                for one in make_read_statements(places.reports, "Reports")
            )
    return found


def make_guard_rails(
    parties: Parties, places: PolicyBuckets, *, names_principals: bool, area: BucketArea | None = None
) -> Iterator[Statement]:
    """What nobody may do to the target but the break-glass role; removing copies is retention's as well."""
    areas = [area] if area is not None else places.target_buckets()
    unbound = parties.unbound(places.target_account)
    sweepers = [unbound, *([parties.retention_role] if parties.retention_role else [])]
    buckets = [one.bucket_arn for one in areas]
    objects = [f"{arn}/*" for arn in buckets]
    # Claims of days are given up again, and logs cut: versions of those stay.
    loose = [places.records.own, *([places.target.logs] if places.is_dated else [])]
    denials = (
        ("KeepProtection", UNPROTECT, [*buckets, *objects], {"ArnNotLike": {"aws:PrincipalArn": [unbound]}}),
        (
            "KeepVersions",
            ("s3:DeleteObjectVersion",),
            objects,
            {"ArnNotLike": {"aws:PrincipalArn": sweepers}},
        ),
        ("KeepCopies", ("s3:DeleteObject",), loose, {"ArnNotLike": {"aws:PrincipalArn": sweepers}}),
        ("OnlyEncryptedLines", ("s3:*",), [*buckets, *objects], {"Bool": {"aws:SecureTransport": "false"}}),
    )
    for sid, actions, resources, condition in denials:
        where = "NotResource" if sid == "KeepCopies" else "Resource"
        statement: Statement = {"Sid": sid, "Effect": "Deny", "Action": list(actions), where: resources}
        if names_principals:
            yield {**statement, "Principal": "*", "Condition": condition}
        elif where == "Resource":
            # Of an account it would be about all its other buckets.
            yield {**statement, "Condition": condition}


def make_key_policies(
    backup: Backup, parties: Parties, places: PolicyBuckets
) -> Iterator[tuple[str, str, str, list[Statement]]]:
    """Key, account, whose it is, and statements to add to the key's own policy."""
    people = {"AWS": parties.copiers(backup)}
    if parties.source_key:
        use = _allow("BackupReads", ("kms:Decrypt", "kms:DescribeKey"), "*")
        yield parties.source_key, places.source_account, "source", [{**use, "Principal": people}]
    if parties.target_key:
        use = _allow("BackupWrites", ("kms:GenerateDataKey", "kms:Decrypt", "kms:DescribeKey"), "*")
        yield parties.target_key, places.target_account, "target", [{**use, "Principal": people}]
    if parties.inventory_key and places.reports_account:
        reports = _allow("InventoryEncrypts", ("kms:GenerateDataKey",), "*")
        for_inventory = {
            **reports,
            "Principal": {"Service": INVENTORY_SERVICE},
            "Condition": {
                "StringEquals": {"aws:SourceAccount": places.source_account},
                "ArnLike": {"aws:SourceArn": places.source.bucket_arn},
            },
        }
        read = {**_allow("BackupReads", ("kms:Decrypt",), "*"), "Principal": {"AWS": [parties.runner]}}
        yield parties.inventory_key, places.reports_account, "inventory", [for_inventory, read]


def describe_purpose(bucket: str, places: PolicyBuckets) -> str:
    """What the policy of a bucket is for."""
    purposes = []
    if bucket == places.source.bucket:
        purposes.append("lets the backup account read the source")
    if bucket in {area.bucket for area in places.target_buckets()}:
        purposes.append("keeps copies and protection, whatever identities may")
    if places.reports is not None and bucket == places.reports.bucket:
        purposes.append("takes inventory reports of the source")
    return "; ".join(purposes)


def _make_inspect_statement(what: str, area: BucketArea) -> Statement:
    return _allow(f"LookAt{what}", INSPECT, area.bucket_arn)


def _allow(sid: str, actions: Iterable[str], *resources: str) -> Statement:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


def _add_principals(principals: list[str], statement: Statement, organisation: str | None) -> Statement:
    allowed = {**statement, "Principal": {"AWS": principals}}
    return (
        {**allowed, "Condition": {"StringEquals": {"aws:PrincipalOrgID": organisation}}}
        if organisation
        else allowed
    )


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


def make_policy_files(backup: Backup, parties: Parties) -> tuple[PolicyFile, ...]:
    """All documents for a backup between two accounts.

    Raises:
        BackupError: the backup is not between buckets whose accounts are declared, or lacks a name of someone.
    """
    places = PolicyBuckets.of(backup)
    parties.require(backup)
    return (
        *_make_role_files(backup, parties, places),
        *_make_runner_files(backup, parties, places),
        *_make_retention_files(parties, places),
        *_make_bucket_files(backup, parties, places),
        *_make_key_files(backup, parties, places),
        _make_account_file(parties, places),
    )


def _make_role_files(backup: Backup, parties: Parties, places: PolicyBuckets) -> Iterator[PolicyFile]:
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
        _document(make_trust_statement(account)),
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
            *make_read_statements(places.source),
            *make_write_statements(places.target, with_lock=backup.lock is not None),
            *make_manifest_statements(places.records),
            *make_key_use_statements(parties),
        ),
    )


def _make_runner_files(backup: Backup, parties: Parties, places: PolicyBuckets) -> Iterator[PolicyFile]:
    yield PolicyFile(
        "runner-policy.json",
        "identity",
        places.target_account,
        parties.runner,
        "lets whoever runs lakeshare list, plan, copy what jobs cannot, verify and keep the points' records",
        _format_put_command(parties.runner, "lakeshare-runner", "runner-policy.json"),
        _document(
            *make_read_statements(places.source),
            *make_thaw_statements(places.source),
            *make_write_statements(places.target, with_lock=backup.lock is not None),
            *make_read_statements(places.target, "Copies"),
            *make_record_statements(places.records),
            *make_cut_statements(places),
            *make_inspect_statements(places.all_buckets()),
            *make_report_statements(places.reports),
            *make_submit_statements(backup.batch),
            *make_key_use_statements(parties),
        ),
    )


def _make_retention_files(parties: Parties, places: PolicyBuckets) -> Iterator[PolicyFile]:
    if parties.retention_role is None:
        return
    yield PolicyFile(
        "retention-policy.json",
        "identity",
        places.target_account,
        parties.retention_role,
        "lets the role that sweeps remove copies whose lock has ended, and nothing of the source",
        _format_put_command(parties.retention_role, "lakeshare-retention", "retention-policy.json"),
        _document(
            *make_read_statements(places.target, "Copies"),
            *make_remove_statements(places.target, places.records),
            *make_record_statements(places.records),
            *make_inspect_statements(places.target_buckets()),
        ),
    )


def _make_bucket_files(backup: Backup, parties: Parties, places: PolicyBuckets) -> Iterator[PolicyFile]:
    for bucket, (account, found) in make_bucket_policies(backup, parties, places).items():
        name = f"bucket-{bucket.replace('*', 'DAY')}.json"
        yield PolicyFile(
            name,
            "bucket",
            account,
            bucket,
            describe_purpose(bucket, places),
            f"aws s3api put-bucket-policy --bucket {bucket.replace('*', 'DAY')} --policy file://{name} "
            f"--expected-bucket-owner {account}",
            _document(*found),
        )


def _make_key_files(backup: Backup, parties: Parties, places: PolicyBuckets) -> Iterator[PolicyFile]:
    for key, account, which, found in make_key_policies(backup, parties, places):
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


def _make_account_file(parties: Parties, places: PolicyBuckets) -> PolicyFile:
    return PolicyFile(
        "guard-rails.json",
        "account",
        places.target_account,
        places.target_account,
        "a service control policy for the backup account: nobody but the break-glass role removes protection",
        "aws organizations create-policy --type SERVICE_CONTROL_POLICY --name lakeshare-guard-rails "
        "--description 'Backups stay' --content file://guard-rails.json",
        _document(*make_guard_rails(parties, places, names_principals=False)),
    )


def _format_put_command(arn: str, policy: str, name: str) -> str:
    kind, _, short = arn.rpartition(":")[2].partition("/")
    return (
        f"aws iam put-{kind}-policy --{kind}-name {short.rpartition('/')[2]} --policy-name {policy} "
        f"--policy-document file://{name}"
    )


def _document(*found: Statement) -> dict[str, Any]:
    return {"Version": VERSION, "Statement": list(found)}


PAGE = "README.md"
INDEX = "index.json"


def write_policies(backup: Backup, files: tuple[PolicyFile, ...], folder: Path) -> list[Path]:
    """Write every document, the index of them, and the page; files of other names in the folder stay.

    Raises:
        BackupError: the folder cannot be written.
    """
    contents = {file.name: format_policy(file) for file in files}
    index = [
        {"name": file.name, "kind": file.kind, "account": file.account, "subject": file.subject}
        for file in files
    ]
    contents[INDEX] = json.dumps(index, indent=2) + "\n"
    contents[PAGE] = format_page(backup, files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content)
    except OSError as error:
        raise BackupError(
            str(folder), f"it cannot be written: {error.strerror}", "Give another --to."
        ) from error
    return [folder / name for name in contents]


def format_policy(one: PolicyFile) -> str:
    """A document as its file has it."""
    return json.dumps(one.document, indent=2) + "\n"


def format_page(backup: Backup, files: tuple[PolicyFile, ...]) -> str:
    """What the documents are for, account by account, as Markdown."""
    lines = [f"# Policies of backup {backup.name}", ""]
    lines += [f"From {backup.source} (account {backup.source.account})", ""]
    lines += [f"to {backup.target} (account {backup.target.account}).", ""]
    for account in dict.fromkeys(file.account for file in files):
        lines += [f"## Account {account}", ""]
        for file in files:
            if file.account == account:
                lines += [f"### {file.name}", "", f"{file.purpose[0].upper()}{file.purpose[1:]}.", ""]
                lines += ["```", file.apply, "```", "", *_format_statements(file), ""]
    lines += ["After each step `lakeshare doctor` says what is still missing.", ""]
    return "\n".join(lines)


def _format_statements(one: PolicyFile) -> list[str]:
    rows = []
    for statement in one.document["Statement"]:
        actions = statement.get("Action", [])
        names = ", ".join([actions] if isinstance(actions, str) else actions)
        unless = " (but for who is named in it)" if "ArnNotLike" in statement.get("Condition", {}) else ""
        rows.append(f"- {statement['Sid']}: {statement['Effect'].lower()} {names}{unless}")
    return rows
