"""What the role of a job may, by the policies that `lakeshare backup policies` wrote into a folder.

As at AWS between two accounts, the role's own policy and that of the bucket both have to allow a request. Keys are left
out: whether a store encrypts, it does not tell.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_pipelines.backup.batch_server.asked import bucket_of
from lakeshare_pipelines.backup.batch_server.task import Task
from lakeshare_pipelines.backup.policies import BATCH_SERVICE, INDEX
from lakeshare_pipelines.backup.policy_checks import Document, Request, decide
from lakeshare_pipelines.errors import BackupError


class Forbidden(Exception):
    """The policies do not allow it: who may not do what, and by which side."""


@dataclass(frozen=True)
class Policies:
    """The documents of a folder, by kind and subject, with the account of each bucket."""

    documents: dict[tuple[str, str], Document]
    accounts: dict[str, str]

    @classmethod
    def load(cls, folder: Path) -> "Policies":
        """Read a folder of policies.

        Raises:
            BackupError: it has no index, or a file that cannot be read.
        """
        try:
            index = json.loads((folder / INDEX).read_text())
            documents = {
                (one["kind"], one["subject"]): json.loads((folder / one["name"]).read_text()) for one in index
            }
            accounts = {one["subject"]: one["account"] for one in index if one["kind"] == "bucket"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BackupError(
                str(folder),
                f"its policies cannot be read: {error!r}",
                "Write them with `lakeshare backup policies`.",
            ) from error
        return cls(documents, accounts)

    def of(self, role: str) -> "Rights":
        """What a role may."""
        return Rights(self, role)


@dataclass(frozen=True)
class Rights:
    """What one role may."""

    policies: Policies
    role: str

    def require_role(self, account: str) -> None:
        """Refuse a role that jobs of an account cannot become.

        Raises:
            Forbidden: its trust policy does not let them.
        """
        request = Request("sts:AssumeRole", self.role, BATCH_SERVICE, account, {"aws:SourceAccount": account})
        verdict = decide(request, [], self._said("trust", self.role))
        if not verdict.is_allowed:
            raise Forbidden(f"S3 Batch Operations may not become {self.role}: {verdict.because}")

    def require(self, action: str, bucket: str, key: str) -> None:
        """Refuse an action on an object that the role may not do.

        Raises:
            Forbidden: its own policy or that of the bucket does not allow it.
        """
        resource, account = f"arn:aws:s3:::{bucket}/{key}", self.policies.accounts.get(bucket, "")
        context = {"aws:PrincipalArn": self.role, "aws:SecureTransport": "true"}
        verdict = decide(
            Request(action, resource, self.role, account, context),
            self._said("identity", self.role),
            self._said("bucket", bucket),
        )
        if not verdict.is_allowed:
            raise Forbidden(f"{self.role} may not {action} on {resource}: {verdict.because}")

    def require_task(self, name: str, told: dict[str, Any], task: Task) -> None:
        """Refuse an operation on an object that needs more than the role may.

        Raises:
            Forbidden: of the first right that is missing.
        """
        for needed in needed_by(name, told, task):
            self.require(*needed)

    def _said(self, kind: str, subject: str) -> list[Document]:
        found = self.policies.documents.get((kind, subject))
        return [] if found is None else [found]


def needed_by(name: str, told: dict[str, Any], task: Task) -> Iterator[tuple[str, str, str]]:
    """Action, bucket and key of everything that an operation does with one object (S3 API, "Permissions" of each)."""
    version = "Version" if task.version_id else ""
    if name == "S3PutObjectCopy":
        prefix, target = told.get("TargetKeyPrefix"), bucket_of(told["TargetResource"]) or ""
        key = f"{prefix}/{task.key}" if prefix else task.key
        yield f"s3:GetObject{version}", task.bucket, task.key
        yield f"s3:GetObject{version}Tagging", task.bucket, task.key
        yield "s3:PutObject", target, key
        yield "s3:PutObjectTagging", target, key
        if "ObjectLockMode" in told:
            yield "s3:PutObjectRetention", target, key
    elif name == "S3PutObjectRetention":
        yield "s3:PutObjectRetention", task.bucket, task.key
        if told.get("BypassGovernanceRetention"):
            yield "s3:BypassGovernanceRetention", task.bucket, task.key
    elif name == "S3InitiateRestoreObject":
        yield "s3:RestoreObject", task.bucket, task.key
    else:
        yield f"s3:GetObject{version}", task.bucket, task.key
