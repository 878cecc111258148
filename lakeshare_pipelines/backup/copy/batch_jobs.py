"""S3 Batch Operations: manifests, requests, jobs and what their reports say; the engine is `copy/aws_batch.py`."""

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from lakeshare_pipelines.backup.config import Batch
from lakeshare_pipelines.backup.model import PLAN
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress
from lakeshare_pipelines.backup.stores.store import make_s3_client
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from botocore.model import ServiceModel, Shape

BATCH_LANES = ("small", "archived")
ROWS_A_JOB = 1_000_000
"""So that a job's manifest and report fit into memory; a job's own price is then 4 % of its copies'."""
NULL_VERSION = "null"
"""How a manifest names the null version; an empty version id fails its task."""

ROWS = pa.schema(
    [PLAN.field(name) for name in ("bucket", "key", "version_id", "size_bytes", "stored_key")]
    + [pa.field("asked_version", pa.string()), pa.field("asked_key", pa.string(), nullable=False)]
)
"""The rows of a job; `asked_key` and `asked_version` are what its manifest says."""


@dataclass(frozen=True)
class JobKind:
    """What all rows of a job share; `stored_prefix` has no slash at its end and may be empty."""

    bucket: str
    stored_prefix: str
    has_versions: bool


@dataclass
class JobRows:
    """Rows on their way into one job."""

    kind: JobKind
    table: pa.Table

    @property
    def size_bytes(self) -> int:
        """Of all objects."""
        return int(pc.sum(self.table["size_bytes"]).as_py() or 0)

    def manifest(self) -> bytes:
        """The CSV: bucket, key and, in a job with versions, version id; no header."""
        names = ["bucket", "asked_key"] + (["asked_version"] if self.kind.has_versions else [])
        lines = pc.binary_join_element_wise(*(self.table[name] for name in names), ",")
        return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


def is_for_batch(lane: str, key: str, stored_key: str) -> bool:
    """Whether a job can copy a row: small enough, and to a place that a job can name."""
    return lane in BATCH_LANES and find_stored_prefix(key, stored_key) is not None


def find_stored_prefix(key: str, stored_key: str) -> str | None:
    """The TargetKeyPrefix that brings a key to its stored key: empty for none; None where there is no such prefix."""
    if stored_key == key:
        return ""
    prefix = stored_key.removesuffix(f"/{key}")
    return prefix if prefix and prefix != stored_key else None


def divide_into_jobs(batches: Iterable[pa.RecordBatch], rows_a_job: int = ROWS_A_JOB) -> Iterator[JobRows]:
    """The rows of a plan that jobs copy, in the same jobs every time."""
    open_jobs: dict[JobKind, _Filling] = {}
    for batch in batches:
        columns = [batch[name].to_pylist() for name in (*COPIED, "is_latest", "lane")]
        for bucket, key, version_id, size_bytes, stored_key, is_latest, lane in zip(*columns, strict=True):
            if not is_for_batch(lane, key, stored_key):
                continue
            version = version_id if version_id or is_latest else NULL_VERSION
            kind = JobKind(bucket, find_stored_prefix(key, stored_key) or "", version is not None)
            filling = open_jobs.setdefault(kind, _Filling())
            filling.rows.append(
                (bucket, key, version_id, size_bytes, stored_key, version, quote(key, safe="/"))
            )
            if len(filling.rows) >= rows_a_job:
                yield JobRows(kind, filling.emptied())
    for kind, filling in open_jobs.items():
        if filling.rows:
            yield JobRows(kind, filling.emptied())


COPIED = ("bucket", "key", "version_id", "size_bytes", "stored_key")


@dataclass
class _Filling:
    rows: list[tuple[str, str, str | None, int | None, str, str | None, str]] = field(default_factory=list)

    def emptied(self) -> pa.Table:
        columns = list(zip(*self.rows, strict=True))
        self.rows = []
        arrays = [pa.array(column, ROWS.field(number).type) for number, column in enumerate(columns)]
        return pa.Table.from_arrays(arrays, schema=ROWS)


KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "list": (list, tuple),
    "map": (dict,),
    "structure": (dict,),
}


def check_request(service: str, operation: str, request: Mapping[str, Any]) -> None:
    """Refuse a request that the service would refuse by its model: names, types, enums, patterns, least and most.

    `said` is what a call of boto3 gets; its values are of the types that botocore takes.

    Raises:
        BackupError: it has faults; all of them are named, each with its path.
    """
    shape = _model(service).operation_model(operation).input_shape
    faults = [*_find_faults("", shape, request)]
    if operation == "CreateJob":
        faults += _find_job_faults(request)
    if faults:
        raise BackupError(
            f"{service}.{operation}",
            f"the request is not valid: {'; '.join(faults)}",
            "Correct the backup's `batch`, `target` or account.",
        )


@cache
def _model(service: str) -> "ServiceModel":
    import botocore.session

    return botocore.session.get_session().get_service_model(service)


def _find_faults(path: str, shape: "Shape", value: Any) -> Iterator[str]:
    """What is wrong with a value of a shape; `Any`: it is what a caller wrote."""
    name = path or shape.name
    kinds = KINDS.get(shape.type_name)
    if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
        yield f"{name} is {value!r}, not a {shape.type_name}"
        return
    yield from _find_bound_faults(name, shape, value)
    if shape.type_name == "structure":
        yield from _find_member_faults(path, shape, value)
    elif shape.type_name == "list":
        for number, one in enumerate(value):
            yield from _find_faults(f"{name}[{number}]", shape.member, one)


def _find_member_faults(path: str, shape: "Shape", value: Mapping[str, Any]) -> Iterator[str]:
    below = f"{path}." if path else ""
    for missing in sorted(set(shape.required_members) - set(value)):
        yield f"{below}{missing} is missing"
    for name, one in value.items():
        if name in shape.members:
            yield from _find_faults(f"{below}{name}", shape.members[name], one)
        else:
            yield f"{below}{name} is not known"


def _find_bound_faults(name: str, shape: "Shape", value: Any) -> Iterator[str]:
    limits = shape.metadata
    if "enum" in limits and value not in limits["enum"]:
        yield f"{name} is {value!r}, none of {', '.join(limits['enum'])}"
    if "pattern" in limits and not re.fullmatch(limits["pattern"], value):
        yield f"{name} is {value!r}, not like {limits['pattern']}"
    size = value if shape.type_name in {"integer", "long"} else _length(value)
    what = "" if size is value else " long"
    if size is not None and "min" in limits and size < limits["min"]:
        yield f"{name} is {size}{what}, at least {limits['min']}"
    if size is not None and "max" in limits and size > limits["max"]:
        yield f"{name} is {size}{what}, at most {limits['max']}"


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, str | list | tuple) else None


def _find_job_faults(request: Mapping[str, Any]) -> Iterator[str]:
    """What the service refuses and its model does not say."""
    if len(request.get("Operation", {})) != 1:
        yield "Operation needs exactly one operation"
    if ("Manifest" in request) == ("ManifestGenerator" in request):
        yield "exactly one of Manifest and ManifestGenerator is needed"
    location = request.get("Manifest", {}).get("Location", {})
    if '"' in str(location.get("ETag", "")):
        yield "Manifest.Location.ETag has quotes"
    report = request.get("Report", {})
    if report.get("Enabled") and not {"Bucket", "Format", "ReportScope"} <= set(report):
        yield "Report needs Bucket, Format and ReportScope where it is enabled"


MANIFEST_FORMAT = "S3BatchOperations_CSV_20180820"
REPORT_FORMAT = "Report_CSV_20180820"

# A request's or an answer's members by name, as boto3 takes and gives them: it ships no types.
RequestFields = dict[str, Any]


def make_copy_request(
    batch: Batch,
    target: StoreAddress,
    kind: JobKind,
    as_of: dt.datetime,
    manifest: tuple[str, str],
    report_prefix: str,
    token: str,
    description: str,
) -> RequestFields:
    """A CreateJob request that copies one manifest's objects; `manifest` is its key in the target and its ETag.

    An object that was modified after `as_of` is a failed task (UnModifiedSinceConstraint): a job knows no condition on
    ETags. No ACL is sent: in the target bucket the owner is enforced.

    Raises:
        BackupError: the service would refuse it.
    """
    operation: RequestFields = {
        "TargetResource": make_bucket_arn(batch, target.bucket),
        "MetadataDirective": "COPY",
        "UnModifiedSinceConstraint": as_of,
    }
    if kind.stored_prefix:
        operation["TargetKeyPrefix"] = kind.stored_prefix
    if batch.storage_class:
        operation["StorageClass"] = batch.storage_class
    key, etag = manifest
    request: RequestFields = {
        "AccountId": batch.account,
        "ConfirmationRequired": batch.confirm,
        "Operation": {"S3PutObjectCopy": operation},
        "Report": _make_report_request(batch, target, report_prefix),
        "ClientRequestToken": token,
        "Manifest": {
            "Spec": {
                "Format": MANIFEST_FORMAT,
                "Fields": ["Bucket", "Key", *(["VersionId"] if kind.has_versions else [])],
            },
            "Location": {"ObjectArn": f"{make_bucket_arn(batch, target.bucket)}/{key}", "ETag": etag},
        },
        "Description": description[:256],
        "Priority": batch.priority,
        "RoleArn": batch.role_arn,
    }
    check_request("s3control", "CreateJob", request)
    return request


def make_bucket_arn(batch: Batch, bucket: str) -> str:
    """A bucket's ARN, in the partition (`aws`, `aws-cn`, …) that the role is in."""
    return f"arn:{batch.role_arn.split(':')[1]}:s3:::{bucket}"


def make_control_client(batch: Batch, target: StoreAddress) -> Any:
    """boto3's client of s3control in the target's region, where jobs must be made; it ships no types."""
    client = make_s3_client(target.model_copy(update={"endpoint": batch.endpoint}), "s3control")
    if batch.endpoint:
        prefix = f"{batch.account}."

        def without_account(request: Any, **_: object) -> None:
            # boto3 puts the account before the host, whatever is configured; it stays in a header.
            request.url = request.url.replace(f"://{prefix}", "://", 1)

        client.meta.events.register("before-sign.s3-control", without_account)
    return client


def _make_report_request(batch: Batch, target: StoreAddress, prefix: str) -> RequestFields:
    owner = {"ExpectedBucketOwner": target.account} if target.account else {}
    return {
        "Bucket": make_bucket_arn(batch, target.bucket),
        "Format": REPORT_FORMAT,
        "Enabled": True,
        "Prefix": prefix,
        "ReportScope": "AllTasks",
        **owner,
    }


ENDED = ("Complete", "Failed", "Cancelled")
"""The states that a job does not leave."""
STOPPABLE_ENDINGS = ("Cancelling", "Failing", "Completing", *ENDED)


class BatchJob(BaseModel):
    """One job: what it is of, and how far it was when it was last asked. Keys are those of the target."""

    number: int
    bucket: str
    stored_prefix: str
    has_versions: bool
    objects: int
    size_bytes: int
    token: str
    manifest_key: str
    manifest_etag: str
    rows_key: str
    """Parquet of its rows, of schema ROWS."""
    report_prefix: str
    job_id: str | None = None
    """None until the service said that it has the job."""
    status: str = "Unsent"
    succeeded: int = 0
    failed: int = 0
    reasons: tuple[str, ...] = ()
    """The service's own words for a job that failed, was cancelled or waits."""

    @property
    def has_ended(self) -> bool:
        """Whether it will do nothing more."""
        return self.status in ENDED

    @property
    def may_run(self) -> bool:
        """Whether the service has it, and it had not ended when it was last asked."""
        return self.job_id is not None and not self.has_ended

    @property
    def kind(self) -> JobKind:
        """What its rows share."""
        return JobKind(self.bucket, self.stored_prefix, self.has_versions)


@dataclass
class JobService:
    """S3 Batch Operations for one backup; calls raise BackupError when it refuses or does not answer."""

    batch: Batch
    store: BackupStore
    """The target."""

    def __post_init__(self) -> None:
        self._client: Any = None

    def submit(self, job: BatchJob, as_of: dt.datetime, description: str, *, may_be_there: bool) -> str:
        """The id of a job that now is there, made once whatever happens: its token sees to that.

        With `may_be_there`, jobs that the service has are looked at first: how long it knows a token is not told.
        """
        if may_be_there and (found := self.find(job.token)):
            return found
        request = make_copy_request(
            self.batch,
            self.store.address,
            job.kind,
            as_of,
            (job.manifest_key, job.manifest_etag),
            job.report_prefix,
            job.token,
            f"{description}, token {job.token}",
        )
        try:
            return str(self._ask("create_job", request)["JobId"])
        except _TokenUsed:
            # Made with another priority or role: it is the job all the same.
            found = self.find(job.token)
            if found is None:
                raise
            return found

    def find(self, token: str) -> str | None:
        """The id of the job whose description ends with a token, of all jobs of the last 90 days."""
        for one in self._listed():
            if one.get("Description", "").endswith(f"token {token}"):
                return str(one["JobId"])
        return None

    def refresh(self, job: BatchJob) -> BatchJob:
        """The job as it is now."""
        try:
            description = self._ask("describe_job", self._of(job))["Job"]
        except _Unknown:
            # It is told of for 90 days only, and its report may well be there.
            return job.model_copy(
                update={"status": "Failed", "reasons": ("the service does not know it any more",)}
            )
        summary = description.get("ProgressSummary") or {}
        reasons = [
            f"{one.get('FailureCode', '')} {one.get('FailureReason', '')}".strip()
            for one in description.get("FailureReasons") or ()
        ]
        names = ["StatusUpdateReason", *(["SuspendedCause"] if description["Status"] == "Suspended" else [])]
        reasons += [description[name] for name in names if description.get(name)]
        return job.model_copy(
            update={
                "status": description["Status"],
                "succeeded": summary.get("NumberOfTasksSucceeded", 0),
                "failed": summary.get("NumberOfTasksFailed", 0),
                "reasons": tuple(reasons),
            }
        )

    def confirm(self, job: BatchJob) -> None:
        """Let a job begin that waits for a person."""
        self._update(job, RequestedJobStatus="Ready")

    def cancel(self, job: BatchJob, why: str) -> BatchJob:
        """End a job, unless it ends already; the job as it is then. What it copied stays."""
        now = self.refresh(job)
        if now.status not in STOPPABLE_ENDINGS:
            self._update(job, RequestedJobStatus="Cancelled", StatusUpdateReason=why[:256])
        return now

    def set_priority(self, job: BatchJob, priority: int) -> None:
        """Change how urgent a job is; higher ones go first."""
        request = {**self._of(job), "Priority": priority}
        check_request("s3control", "UpdateJobPriority", request)
        self._ask("update_job_priority", request)

    def _update(self, job: BatchJob, **changes: str) -> None:
        request = {**self._of(job), **changes}
        check_request("s3control", "UpdateJobStatus", request)
        self._ask("update_job_status", request)

    def _of(self, job: BatchJob) -> RequestFields:
        return {"AccountId": self.batch.account, "JobId": job.job_id}

    def _listed(self) -> Iterator[RequestFields]:
        page: RequestFields = {}
        while True:
            following = {"NextToken": page["NextToken"]} if page else {}
            page = self._ask("list_jobs", {"AccountId": self.batch.account, "MaxResults": 1000, **following})
            yield from page.get("Jobs") or ()
            if not page.get("NextToken"):
                return

    def _ask(self, call: str, request: RequestFields) -> RequestFields:
        with _translate_errors(f"S3 Batch Operations, {call} in account {self.batch.account}"):
            self._client = self._client or make_control_client(self.batch, self.store.address)
            response: RequestFields = getattr(self._client, call)(**request)
            return response


class _TokenUsed(BackupError):
    """A token was used before, for a request that was another in something."""


class _Unknown(BackupError):
    """The service has no such job."""


@contextmanager
def _translate_errors(subject: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

    try:
        yield
    except NoRegionError as error:
        raise BackupError(
            subject, "jobs are made in the target's region, and none is told", "Give the target's `region`."
        ) from error
    except ClientError as error:
        details = error.response.get("Error", {})
        reason = f"the service refused: {details.get('Code')}, {str(details.get('Message')).rstrip('.')}"
        if details.get("Code") in {"NotFoundException", "NoSuchJob", "NotFound"}:
            raise _Unknown(subject, reason, _remedy("")) from error
        if details.get("Code") == "IdempotencyException":
            raise _TokenUsed(subject, reason, "Cancel the backup and run it again.") from error
        raise BackupError(subject, reason, _remedy(str(details.get("Code")))) from error
    except BotoCoreError as error:
        raise BackupError(
            subject,
            f"the service cannot be asked: {str(error).rstrip('.')}",
            "Check the network, `batch.endpoint` and the credentials; run again: jobs that run are found again.",
        ) from error


def _remedy(code: str) -> str:
    if code in {"AccessDenied", "AccessDeniedException", "403"}:
        return (
            "Allow these credentials s3:CreateJob, s3:DescribeJob, s3:ListJobs, s3:UpdateJobStatus and iam:PassRole: "
            "`lakeshare backup policies` writes the policies."
        )
    if code in {"TooManyRequestsException", "TooManyRequests", "SlowDown"}:
        return "Run it again later; jobs that run are found again."
    return "Correct the backup's `batch`; jobs that run are found again."
