"""Jobs of the test double of S3 Batch Operations: states, manifest, copies at an S3 server, limits, rights, report."""

import asyncio
import csv
import datetime as dt
import hashlib
import io
import json
import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_plus

from lakeshare_pipelines.backup.async_s3 import AsyncS3, Response
from lakeshare_pipelines.backup.config import COPY_LIMIT_BYTES
from lakeshare_pipelines.backup.policies import BATCH_SERVICE, INDEX, Document, Request
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from tests.builders.policy_decisions import decide_between

log = logging.getLogger(__name__)

# S3 user guide, "Job statuses", without Pausing and Paused: jobs do not wait for each other.
TRANSITIONS: dict[str, tuple[str, ...]] = {
    "New": ("Preparing", "Cancelling"),
    "Preparing": ("Suspended", "Ready", "Failing", "Cancelling"),
    "Suspended": ("Ready", "Cancelling"),
    "Ready": ("Active", "Cancelling"),
    "Active": ("Completing", "Failing", "Cancelling"),
    "Completing": ("Complete", "Failing"),
    "Cancelling": ("Cancelled",),
    "Failing": ("Failed",),
    "Complete": (),
    "Cancelled": (),
    "Failed": (),
}
LAST = {"Completing": "Complete", "Cancelling": "Cancelled", "Failing": "Failed"}
IN_FLIGHT = 64
MAX_REASON = 256
REPORT_FORMAT = "Report_CSV_20180820"
REPORT_SCHEMA = "Bucket, Key, VersionId, TaskStatus, ErrorCode, HTTPStatusCode, ResultMessage"


class Refused(Exception):
    """An error of the service, of the store, or of a check that S3 makes and the store does not."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


@dataclass(frozen=True)
class Limits:
    """Limits of the service; those of AWS by default. A job fails if most of its first tasks failed."""

    copy_bytes: int = COPY_LIMIT_BYTES
    threshold_tasks: int = 1000


@dataclass(frozen=True)
class Task:
    """A row of a manifest; its key is URL-encoded in the manifest and in the report.

    `version_id` is None if the manifest has no versions, empty if it has an empty one.
    """

    number: int
    bucket: str
    encoded_key: str
    version_id: str | None = None

    @property
    def key(self) -> str:
        return unquote_plus(self.encoded_key)


@dataclass(frozen=True)
class Outcome:
    """The result of a task; `error_code` is empty if it succeeded."""

    task: Task
    http_status: int
    error_code: str
    message: str


class Store:
    """All buckets of an S3 endpoint."""

    def __init__(self, address: StoreAddress) -> None:
        self._first = AsyncS3(address, IN_FLIGHT)
        self._buckets: dict[str, AsyncS3] = {}

    async def request(self, method: str, bucket: str, key: str, **options: Any) -> Response:
        """Send a request; raises `Refused` for an error, `BackupError` without a response."""
        if bucket not in self._buckets:
            self._buckets[bucket] = self._first.at(bucket)
        response = await self._buckets[bucket].request(method, key, **options)
        if not response.is_success:
            raise Refused(response.status, response.code, response.message)
        return response

    async def close(self) -> None:
        await asyncio.gather(*(bucket.close() for bucket in (self._first, *self._buckets.values())))


@dataclass(frozen=True)
class Policies:
    """The documents in a folder of `lakeshare backup policies`, by kind and subject."""

    documents: dict[tuple[str, str], Document]
    accounts: dict[str, str]

    @classmethod
    def load(cls, folder: Path) -> "Policies":
        index = json.loads((folder / INDEX).read_text())
        documents = {
            (one["kind"], one["subject"]): json.loads((folder / one["name"]).read_text()) for one in index
        }
        return cls(documents, {one["subject"]: one["account"] for one in index if one["kind"] == "bucket"})

    def require(self, role: str, action: str, bucket: str, key: str) -> None:
        """Refuse unless the policies of the role and of the bucket allow an action."""
        context = {"aws:PrincipalArn": role, "aws:SecureTransport": "true"}
        resource, account = f"arn:aws:s3:::{bucket}/{key}", self.accounts.get(bucket, "")
        request = Request(action, resource, role, context)
        documents = self._find("identity", role), self._find("bucket", bucket)
        verdict = decide_between(request, account, *documents)
        if verdict.decision != "allowed":
            raise Refused(403, "AccessDenied", f"{role} may not {action} on {resource}: {verdict.because}")

    def require_job(self, job: "Job") -> None:
        """Refuse unless the jobs of the account may become the role, and the role may read the manifest."""
        role, location = job.request["RoleArn"], job.request["Manifest"]["Location"]
        request = Request("sts:AssumeRole", role, BATCH_SERVICE, {"aws:SourceAccount": job.account})
        verdict = decide_between(request, job.account, [], self._find("trust", role))
        if verdict.decision != "allowed":
            message = f"S3 Batch Operations may not become {role}: {verdict.because}"
            raise Refused(403, "AccessDenied", message)
        self.require(role, "s3:GetObject", *get_object(location["ObjectArn"]))

    def require_copy(self, role: str, task: "Task", target: str, key: str) -> None:
        """Refuse unless the role has all rights that CopyObject needs (S3 API, "Permissions")."""
        version = "Version" if task.version_id else ""
        for suffix in ("", "Tagging"):
            self.require(role, f"s3:GetObject{version}{suffix}", task.bucket, task.key)
            self.require(role, f"s3:PutObject{suffix}", target, key)

    def _find(self, kind: str, subject: str) -> list[Document]:
        return [self.documents[kind, subject]] if (kind, subject) in self.documents else []


def get_object(arn: str) -> tuple[str, str]:
    """Bucket and key of an ARN such as arn:aws:s3:::bucket/key; both empty for other ARNs, the key for a bucket's."""
    parts = arn.split(":", 5)
    bucket, _, key = parts[-1].partition("/")
    return (bucket, key) if parts[2:5] == ["s3", "", ""] else ("", "")


@dataclass
class Job:
    """A job and its run; `request` has the members of CreateJob, checked before the job is made."""

    account: str
    request: dict[str, Any]
    store: Store
    limits: Limits = Limits()
    policies: Policies | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created_at: dt.datetime = field(default_factory=lambda: dt.datetime.now(dt.UTC))
    priority: int = 0
    status: str = "New"
    status_reason: str | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)
    total: int = 0
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.priority = self.request["Priority"]
        self.copy: dict[str, Any] = self.request["Operation"]["S3PutObjectCopy"]
        self._released = asyncio.Event()

    @property
    def failed(self) -> int:
        return sum(bool(outcome.error_code) for outcome in self.outcomes)

    def become(self, status: str) -> None:
        """Change the state; refuses what the present state does not allow."""
        if status not in TRANSITIONS[self.status]:
            message = f"job {self.id} is {self.status}; it cannot become {status}."
            raise Refused(400, "JobStatusException", message)
        self.status = status

    def update_status(self, status: str | None, reason: str | None) -> None:
        """UpdateJobStatus: confirm a suspended job, or cancel a job that has not ended."""
        if status == "Ready" and self.status != "Suspended":
            message = f"job {self.id} is {self.status}; only a Suspended one is confirmed."
            raise Refused(400, "JobStatusException", message)
        self.become("Ready" if status == "Ready" else "Cancelling")
        self.status_reason = reason
        self._released.set()

    def fail(self, code: str, reason: str) -> None:
        self.become("Failing")
        self.failures.append((code, reason[:MAX_REASON]))

    def describe(self) -> dict[str, Any]:
        """A JobDescriptor of the service model."""
        requested = ("Operation", "ConfirmationRequired", "Manifest", "Report", "RoleArn")
        return {
            **self.summarise(),
            **{name: self.request.get(name) for name in requested},
            "StatusUpdateReason": self.status_reason,
            "FailureReasons": [{"FailureCode": code, "FailureReason": why} for code, why in self.failures],
            "SuspendedCause": "AwaitingConfirmation" if self.status == "Suspended" else None,
        }

    def summarise(self) -> dict[str, Any]:
        """A JobListDescriptor of the service model."""
        return {
            "JobId": self.id,
            "Description": self.request.get("Description"),
            "Operation": next(iter(self.request["Operation"])),
            "Priority": self.priority,
            "Status": self.status,
            "CreationTime": self.created_at,
            "ProgressSummary": {
                "TotalNumberOfTasks": self.total,
                "NumberOfTasksSucceeded": len(self.outcomes) - self.failed,
                "NumberOfTasksFailed": self.failed,
            },
        }

    async def run(self) -> None:
        """Run the job from New to its last state."""
        try:
            tasks = await self._prepare() if self.status == "New" else []
            if self.status == "Suspended":
                await self._released.wait()
            if self.status == "Ready":
                await self._work(tasks)
            await self._end()
        except Exception as error:
            log.exception("job %s", self.id)
            self.failures.append(("InternalError", f"{type(error).__name__}: {error}"[:MAX_REASON]))
            self.status = "Failed"

    async def _prepare(self) -> list[Task]:
        self.become("Preparing")
        try:
            if self.policies is not None:
                self.policies.require_job(self)
            tasks = list(read_tasks(await self._read_manifest(), self.request["Manifest"]["Spec"]["Fields"]))
        except (Refused, BackupError) as error:
            # The job may have been cancelled meanwhile, as below.
            if self.status == "Preparing":
                self.fail(error.code if isinstance(error, Refused) else "ManifestNotReadable", str(error))
            return []
        if self.status == "Preparing":
            self.total = len(tasks)
            self.become("Suspended" if self.request.get("ConfirmationRequired") else "Ready")
        return tasks

    async def _read_manifest(self) -> str:
        location = self.request["Manifest"]["Location"]
        try:
            response = await self.store.request("GET", *get_object(location["ObjectArn"]))
        except Refused as error:
            raise Refused(400, "ManifestNotReadable", f"the manifest cannot be read: {error}") from error
        etag = response.headers.get("ETag", "").strip('"')
        if etag != location["ETag"]:
            wanted = location["ETag"]
            raise Refused(400, "ManifestChanged", f"the manifest has ETag {etag}, the job names {wanted}")
        return response.body.decode("utf-8", "replace")

    async def _work(self, tasks: list[Task]) -> None:
        self.become("Active")
        left = iter(tasks)

        async def work() -> None:
            while self.status == "Active" and (task := next(left, None)) is not None:
                self.outcomes.append(await self.run_task(task))
                run, failed = len(self.outcomes), self.failed
                if self.status == "Active" and run >= self.limits.threshold_tasks and failed > run / 2:
                    self.fail("FailureThresholdExceeded", f"{failed} of the first {run} tasks failed.")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(IN_FLIGHT, len(tasks))):
                group.create_task(work())
        if self.status == "Active":
            self.become("Completing")

    async def _end(self) -> None:
        try:
            await self._write_report()
        except (Refused, BackupError) as error:
            self.failures.append(("ReportNotWritten", f"the report cannot be written: {error}"[:MAX_REASON]))
            if self.status == "Completing":
                self.become("Failing")
        self.become(LAST[self.status])

    async def run_task(self, task: Task) -> Outcome:
        """Copy an object; an error of the store is an outcome."""
        try:
            await self._copy(task)
        except Refused as error:
            details = f"Service: Amazon S3; Status Code: {error.status}; Error Code: {error.code}"
            return Outcome(task, error.status, error.code, f"{error.message} ({details})")
        except BackupError as error:
            return Outcome(task, 503, "ServiceUnavailable", str(error))
        return Outcome(task, 200, "", "Successful")

    async def _copy(self, task: Task) -> None:
        """Copy the version in the manifest, or the current one."""
        prefix, target = self.copy.get("TargetKeyPrefix"), get_object(self.copy["TargetResource"])[0]
        key = f"{prefix}/{task.key}" if prefix else task.key
        if self.policies is not None:
            self.policies.require_copy(self.request["RoleArn"], task, target, key)
        if task.version_id == "":
            raise Refused(400, "InvalidRequest", "The version ID of the task is empty")
        query = {"versionId": task.version_id} if task.version_id else {}
        head = await self.store.request("HEAD", task.bucket, task.key, query=query)
        self._require_copyable(head.headers)
        headers = _make_copy_headers(self.copy, task)
        response = await self.store.request("PUT", target, key, headers=headers)
        if b"<ETag>" not in response.body:
            raise Refused(500, "InternalError", "The store answered a copy without an ETag")

    def _require_copyable(self, headers: Mapping[str, str]) -> None:
        limit = self.limits.copy_bytes
        if int(headers.get("Content-Length", 0)) > limit:
            message = "The specified copy source is larger than the maximum allowable size for a copy source"
            raise Refused(400, "InvalidRequest", f"{message}: {limit}")
        # Some stores ignore the header of this constraint.
        until, modified = self.copy.get("UnModifiedSinceConstraint"), headers.get("Last-Modified")
        if until is not None and modified is not None and parsedate_to_datetime(modified) > until:
            message = "At least one of the pre-conditions you specified did not hold"
            raise Refused(412, "PreconditionFailed", message)

    async def _write_report(self) -> None:
        """Write the report if one is requested and a task was run."""
        wanted = self.request["Report"]
        if not wanted["Enabled"] or not self.outcomes:
            return
        bucket = get_object(wanted["Bucket"])[0]
        prefix = "/".join(part for part in (wanted.get("Prefix", "").strip("/"), f"job-{self.id}") if part)
        if self.policies is not None:
            self.policies.require(self.request["RoleArn"], "s3:PutObject", bucket, f"{prefix}/manifest.json")
        results = []
        for status in ("failed",) if wanted["ReportScope"] == "FailedTasksOnly" else ("succeeded", "failed"):
            content = _format_results(self.outcomes, status)
            if content:
                key = f"{prefix}/results/{hashlib.sha1(content).hexdigest()}.csv"
                await self.store.request("PUT", bucket, key, body=content)
                digest = hashlib.md5(content).hexdigest()
                result = {"TaskExecutionStatus": status, "Bucket": bucket, "MD5Checksum": digest, "Key": key}
                results.append(result)
        created = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        manifest = {"Format": REPORT_FORMAT, "ReportCreationDate": created, "Results": results}
        top = json.dumps({**manifest, "ReportSchema": REPORT_SCHEMA}, indent=4).encode()
        await self.store.request("PUT", bucket, f"{prefix}/manifest.json", body=top)
        digest = hashlib.md5(top).hexdigest().encode()
        await self.store.request("PUT", bucket, f"{prefix}/manifest.json.md5", body=digest)


def read_tasks(text: str, fields: list[str]) -> Iterator[Task]:
    """The tasks of a CSV manifest, all of one bucket; refuses a manifest without rows or with others."""
    places = [fields.index(name) for name in ("Bucket", "Key", "VersionId") if name in fields]
    first = None
    rows = (row for row in csv.reader(io.StringIO(text, newline="")) if row)
    for number, row in enumerate(rows):
        where = f"the manifest, row {number + 1}"
        if len(row) != len(fields):
            reason = f"{where}: {len(row)} columns, {len(fields)} are declared"
            raise Refused(400, "InvalidManifestContent", reason)
        bucket, key, *version = (row[place] for place in places)
        first = first or bucket
        if bucket != first:
            reason = f"row {number + 1} is of bucket {bucket}, rows before it are of {first}"
            raise Refused(400, "InvalidManifestContent", reason)
        yield Task(number, bucket, key, *version)
    if first is None:
        raise Refused(400, "InvalidManifestContent", "the manifest has no rows")


def _make_copy_headers(copy: Mapping[str, Any], task: Task) -> dict[str, str]:
    version = f"?versionId={quote(task.version_id, safe='')}" if task.version_id else ""
    headers = {
        "x-amz-copy-source": f"/{task.bucket}/{quote(task.key, safe='/~')}{version}",
        "x-amz-metadata-directive": copy.get("MetadataDirective"),
        "x-amz-storage-class": copy.get("StorageClass"),
    }
    if (until := copy.get("UnModifiedSinceConstraint")) is not None:
        moment = format_datetime(until.astimezone(dt.UTC), usegmt=True)
        headers["x-amz-copy-source-if-unmodified-since"] = moment
    return {name: value for name, value in headers.items() if value is not None}


def _format_results(outcomes: list[Outcome], status: str) -> bytes:
    """The rows of a report: AWS writes the HTTP status before the error code, whatever the schema."""
    file = io.StringIO(newline="")
    rows = csv.writer(file, lineterminator="\n")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.task.number):
        if bool(outcome.error_code) == (status == "failed"):
            task = outcome.task
            result = (status, outcome.http_status, outcome.error_code, outcome.message)
            rows.writerow([task.bucket, task.encoded_key, task.version_id or "", *result])
    return file.getvalue().encode()
