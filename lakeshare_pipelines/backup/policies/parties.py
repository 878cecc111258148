"""Who takes part in a backup between two accounts, and which places it is about."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.configuration import arn, destination_of
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
class Area:
    """A part of a bucket, as ARNs name it; `*` stands for the day of a layout `dated`."""

    bucket: str
    bucket_arn: str
    prefix: str

    @classmethod
    def of(cls, address: StoreAddress) -> "Area":
        """The area of an address; `{day}` in it is any day."""
        at = address.model_copy(update={"url": address.url.replace("{day}", "*")})
        return cls(at.bucket, arn(at), at.prefix)

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
class Places:
    """The buckets of a backup, and whose they are."""

    source: Area
    target: Area
    records: Area
    reports: Area | None
    source_account: str
    target_account: str
    reports_account: str | None
    is_dated: bool
    """Copies belong to one day alone, and the logs of their tables are cut at the version that is proven."""

    @classmethod
    def of(cls, backup: Backup) -> "Places":
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
        reports = destination_of(backup).address if backup.listing.kind == "s3_inventory" else None
        return cls(
            Area.of(backup.source),
            Area.of(backup.target),
            Area.of(backup.records),
            None if reports is None else Area.of(reports),
            str(backup.source.account),
            str(backup.target.account),
            None if reports is None else owner_of_reports(backup, reports),
            backup.layout == "dated",
        )

    def target_buckets(self) -> list[Area]:
        """Buckets with copies or records, each once."""
        return list({area.bucket: area for area in (self.target, self.records)}.values())

    def all_buckets(self) -> list[Area]:
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


def owner_of_reports(backup: Backup, reports: StoreAddress) -> str | None:
    """Whose the bucket is that inventory reports arrive in: told, or that of the end it belongs to."""
    if reports.bucket == backup.target.bucket:
        return backup.target.account
    return reports.account or backup.source.account
