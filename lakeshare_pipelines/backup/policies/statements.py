"""The single statements: each a right that a backup uses, or a denial that keeps its copies."""

from collections.abc import Iterable, Iterator
from typing import Any

from lakeshare_pipelines.backup.declared import Backup, Batch
from lakeshare_pipelines.backup.listing.configuration import statement_of
from lakeshare_pipelines.backup.policies.parties import Area, Parties, Places

# A statement is JSON.
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
LOOK = (
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


def trust(account: str) -> Statement:
    """Who may become the role of jobs; the condition keeps jobs of other accounts out ("confused deputy")."""
    return {
        "Sid": "BatchOperationsOfThisAccount",
        "Effect": "Allow",
        "Principal": {"Service": BATCH_SERVICE},
        "Action": "sts:AssumeRole",
        "Condition": {"StringEquals": {"aws:SourceAccount": account}},
    }


def reading(area: Area, what: str = "Source") -> Iterator[Statement]:
    """Read objects and their versions; listing lets a missing key answer 404 instead of 403."""
    yield _allow(f"Read{what}", READ, area.objects)
    yield _allow(f"List{what}", LIST, area.bucket_arn)


def thawing(area: Area) -> Iterator[Statement]:
    """Bring objects back from archive classes."""
    yield _allow("ThawSource", ("s3:RestoreObject",), area.objects)


def writing(area: Area, *, with_lock: bool) -> Iterator[Statement]:
    """Write copies; no ACLs, since the target's bucket belongs to its owner alone."""
    yield _allow("WriteCopies", WRITE, area.objects)
    if with_lock:
        yield _allow("LockCopies", LOCK, area.objects)


def using_manifests(records: Area) -> Iterator[Statement]:
    """Read manifests and write reports of jobs, both among the points' own records."""
    yield _allow("ReadManifests", ("s3:GetObject", "s3:GetObjectVersion"), records.own)
    yield _allow("WriteReports", ("s3:PutObject",), records.own)


def keeping_records(records: Area) -> Iterator[Statement]:
    """Write and remove claims, plans and points: what lakeshare keeps for itself."""
    yield _allow("KeepRecords", ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"), records.own)


def cutting(places: Places) -> Iterator[Statement]:
    """In a layout `dated`, take commits after the proven version out of the copied logs; versions of them stay."""
    if places.is_dated:
        yield _allow("CutLogs", ("s3:DeleteObject",), places.target.logs)


def looking_at_buckets(areas: Iterable[Area]) -> Iterator[Statement]:
    """What `lakeshare doctor` asks of buckets."""
    yield _allow("LookAtBuckets", (*LIST, *LOOK), *(area.bucket_arn for area in areas))


def reading_reports(reports: Area | None) -> Iterator[Statement]:
    """Read inventory reports."""
    if reports is not None:
        yield _allow("ReadReports", ("s3:GetObject",), reports.objects)


def submitting(batch: Batch | None) -> Iterator[Statement]:
    """Make, watch and end jobs, and hand them their role and no other."""
    if batch is not None:
        yield _allow("SubmitJobs", SUBMIT, "*")
        pass_role = _allow("PassRole", ("iam:PassRole",), batch.role_arn)
        yield {**pass_role, "Condition": {"StringEquals": {"iam:PassedToService": BATCH_SERVICE}}}


def removing(target: Area, records: Area) -> Iterator[Statement]:
    """Remove copies and records that no point needs; a lock that has not ended refuses it all the same."""
    yield _allow("RemoveUnneeded", REMOVE, *dict.fromkeys((target.objects, records.own)))
    yield _allow("ExtendLocks", LOCK, target.objects)


def using_keys(parties: Parties) -> Iterator[Statement]:
    """Read what is encrypted with the source's key, write with the target's."""
    reading_keys = [key for key in (parties.source_key, parties.inventory_key) if key]
    if reading_keys:
        yield _allow("ReadEncrypted", ("kms:Decrypt", "kms:DescribeKey"), *reading_keys)
    if parties.target_key:
        yield _allow(
            "WriteEncrypted", ("kms:GenerateDataKey", "kms:Decrypt", "kms:DescribeKey"), parties.target_key
        )


def of_buckets(backup: Backup, parties: Parties, places: Places) -> dict[str, tuple[str, list[Statement]]]:
    """Account and statements of every bucket's one policy."""
    found: dict[str, tuple[str, list[Statement]]] = {
        area.bucket: (places.account_of(area.bucket), []) for area in places.all_buckets()
    }
    copiers = parties.copiers(backup)
    found[places.source.bucket][1].extend(
        _to(copiers, one, parties.organisation) for one in reading(places.source)
    )
    found[places.source.bucket][1].extend(
        _to([parties.runner], one, parties.organisation) for one in thawing(places.source)
    )
    found[places.source.bucket][1].append(_to([parties.runner], _look("Source", places.source), None))
    for area in places.target_buckets():
        found[area.bucket][1].extend(guard_rails(parties, places, names_principals=True, area=area))
    if places.reports is not None:
        found[places.reports.bucket][1].append(statement_of(backup))
        if places.reports_account != places.target_account:
            found[places.reports.bucket][1].extend(
                _to([parties.runner], one, parties.organisation) for one in reading(places.reports, "Reports")
            )
    return found


def guard_rails(
    parties: Parties, places: Places, *, names_principals: bool, area: Area | None = None
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


def of_keys(
    backup: Backup, parties: Parties, places: Places
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
        made = {
            **reports,
            "Principal": {"Service": INVENTORY_SERVICE},
            "Condition": {
                "StringEquals": {"aws:SourceAccount": places.source_account},
                "ArnLike": {"aws:SourceArn": places.source.bucket_arn},
            },
        }
        read = {**_allow("BackupReads", ("kms:Decrypt",), "*"), "Principal": {"AWS": [parties.runner]}}
        yield parties.inventory_key, places.reports_account, "inventory", [made, read]


def purpose_of(bucket: str, places: Places) -> str:
    """What the policy of a bucket is for."""
    purposes = []
    if bucket == places.source.bucket:
        purposes.append("lets the backup account read the source")
    if bucket in {area.bucket for area in places.target_buckets()}:
        purposes.append("keeps copies and protection, whatever identities may")
    if places.reports is not None and bucket == places.reports.bucket:
        purposes.append("takes inventory reports of the source")
    return "; ".join(purposes)


def _look(what: str, area: Area) -> Statement:
    return _allow(f"LookAt{what}", LOOK, area.bucket_arn)


def _allow(sid: str, actions: Iterable[str], *resources: str) -> Statement:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}


def _to(principals: list[str], statement: Statement, organisation: str | None) -> Statement:
    told = {**statement, "Principal": {"AWS": principals}}
    return (
        {**told, "Condition": {"StringEquals": {"aws:PrincipalOrgID": organisation}}}
        if organisation
        else told
    )
