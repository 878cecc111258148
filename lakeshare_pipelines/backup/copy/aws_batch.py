"""The engine `aws_batch`: S3 Batch Operations jobs with manifests in the target, judged by their reports.

Another engine copies what no job can: objects above its limit, and keys that a job cannot name.
"""

import datetime as dt
import io
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.backup.config import Backup, Batch
from lakeshare_pipelines.backup.copy import engine
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, make_s3_client, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.storage import s3
from lakeshare_server.storage.s3 import S3Refused, S3Unreachable

if TYPE_CHECKING:
    import duckdb

log = logging.getLogger(__name__)

BATCH_LANES = ("small", "archived")
ROWS_A_JOB = 1_000_000
"""A job's manifest and report fit into memory; the price of a job is then 4 % of that of its copies."""
NULL_VERSION = "null"  # The null version in a manifest; an empty version id fails its task

COPIED = ("bucket", "key", "version_id", "size_bytes", "stored_key")
ROWS = pa.schema(
    [model.COPIES.field(name) for name in COPIED]
    + [pa.field("asked_version", pa.string()), pa.field("asked_key", pa.string(), nullable=False)]
)
"""The rows of a job; `asked_key` and `asked_version` are spelt as in its manifest."""


@dataclass
class JobRows:
    """The rows of a job: of one bucket and stored prefix, and all with versions or none.

    `stored_prefix` has no slash at its end and may be empty.
    """

    bucket: str
    stored_prefix: str
    has_versions: bool
    table: pa.Table

    def manifest(self) -> bytes:
        """A CSV without header: bucket, key and, in a job with versions, version id."""
        names = ["bucket", "asked_key"] + (["asked_version"] if self.has_versions else [])
        lines = pc.binary_join_element_wise(*(self.table[name] for name in names), ",")
        return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


# The TargetKeyPrefix from a key to its stored key, may be empty; null if a job cannot write that key.
STORED_PREFIX = """CASE WHEN stored_key = key THEN ''
WHEN ends_with(stored_key, '/' || key) AND len(stored_key) > len(key) + 1
THEN left(stored_key, len(stored_key) - len(key) - 1) END"""
IS_OF_JOB = f"(lane IN {BATCH_LANES} AND {STORED_PREFIX} IS NOT NULL)"
_ROWS = f"""
CREATE TEMP TABLE rows AS SELECT *,
    (row_number() OVER (PARTITION BY bucket, stored_prefix, has_versions ORDER BY key, asked_version) - 1) // $most
    AS part
FROM (SELECT *, asked_version IS NOT NULL AS has_versions FROM (
    SELECT {", ".join(COPIED)}, {STORED_PREFIX} AS stored_prefix,
        if(version_id IS NULL AND NOT is_latest, '{NULL_VERSION}', version_id) AS asked_version,
        replace(url_encode(key), '%2F', '/') AS asked_key
    FROM copies WHERE {engine.IS_LEFT} AND {IS_OF_JOB}))
"""  # noqa: S608  of constants only
_ROWS_OF_JOB = """
FROM rows WHERE (bucket, stored_prefix, has_versions, part) = (?, ?, ?, ?) ORDER BY key, asked_version
"""


def divide_into_jobs(on: "duckdb.DuckDBPyConnection", rows_a_job: int = ROWS_A_JOB) -> Iterator[JobRows]:
    """The jobs that copy what is left of view `copies`, the same every time."""
    on.execute(_ROWS, {"most": rows_a_job})
    jobs = on.sql(
        "SELECT DISTINCT bucket, stored_prefix, has_versions, part FROM rows ORDER BY ALL"
    ).fetchall()
    for bucket, prefix, has_versions, part in jobs:
        rows = on.sql(_ROWS_OF_JOB, params=[bucket, prefix, has_versions, part]).select(*ROWS.names)
        yield JobRows(bucket, prefix, has_versions, rows.to_arrow_table().cast(ROWS))


# Members of a request or response by name; boto3 has no types.
Fields = dict[str, Any]


class BatchJob(BaseModel):
    """One job and its last known state. Keys are those of the target."""

    number: int
    bucket: str
    stored_prefix: str
    has_versions: bool
    objects: int
    size_bytes: int
    token: str
    manifest_key: str
    manifest_etag: str
    rows_key: str  # Parquet file of its rows, of schema ROWS
    report_prefix: str
    job_id: str | None = None  # None until the service has confirmed the job
    status: str = "Unsent"
    succeeded: int = 0
    failed: int = 0
    reasons: tuple[str, ...] = ()  # The service's messages for a job that failed, was cancelled or waits

    @property
    def has_ended(self) -> bool:
        return self.status in {"Complete", "Failed", "Cancelled"}

    @property
    def may_run(self) -> bool:
        """Whether the service has the job, and its last known state is not final."""
        return self.job_id is not None and not self.has_ended


def make_copy_request(
    batch: Batch, target: StoreAddress, job: BatchJob, as_of: dt.datetime, description: str
) -> Fields:
    """A CreateJob request that copies the objects of a job's manifest.

    An object that was modified after `as_of` is a failed task (UnModifiedSinceConstraint): jobs have no condition on
    ETags. No ACL is sent: the target bucket enforces its owner.
    """
    # The ARN's partition (`aws`, `aws-cn`, …) is that of the role.
    bucket_arn = f"arn:{batch.role_arn.split(':')[1]}:s3:::{target.bucket}"
    operation: Fields = {"TargetResource": bucket_arn, "MetadataDirective": "COPY"}
    operation["UnModifiedSinceConstraint"] = as_of
    if job.stored_prefix:
        operation["TargetKeyPrefix"] = job.stored_prefix
    if batch.storage_class:
        operation["StorageClass"] = batch.storage_class
    report: Fields = {
        "Bucket": bucket_arn,
        "Format": engine.REPORT_FORMAT,
        "Enabled": True,
        "Prefix": job.report_prefix,
        "ReportScope": "AllTasks",
    }
    if target.account:
        report["ExpectedBucketOwner"] = target.account
    return {
        "AccountId": batch.account,
        "ConfirmationRequired": batch.confirm,
        "Operation": {"S3PutObjectCopy": operation},
        "Report": report,
        "ClientRequestToken": job.token,
        "Manifest": {
            "Spec": {
                "Format": "S3BatchOperations_CSV_20180820",
                "Fields": ["Bucket", "Key", *(["VersionId"] if job.has_versions else [])],
            },
            "Location": {"ObjectArn": f"{bucket_arn}/{job.manifest_key}", "ETag": job.manifest_etag},
        },
        "Description": f"{description}, token {job.token}"[:256],
        "Priority": batch.priority,
        "RoleArn": batch.role_arn,
    }


class _TokenUsed(BackupError):
    """The token was used before, for a different request."""


class _UnknownJob(BackupError):
    """The service has no such job."""


RUN_AGAIN = "jobs that run are found again."
REMEDIES = {
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "403"),
        "Allow these credentials s3:CreateJob, s3:DescribeJob, s3:ListJobs, s3:UpdateJobStatus and iam:PassRole: "
        "`lakeshare backup policies` writes the policies.",
    ),
    **dict.fromkeys(
        ("TooManyRequestsException", "TooManyRequests", "SlowDown"), f"Run it again later; {RUN_AGAIN}"
    ),
    "IdempotencyException": "Cancel the backup and run it again.",
}
ERRORS: Mapping[str, type[BackupError]] = {
    "IdempotencyException": _TokenUsed,
    **dict.fromkeys(("NotFoundException", "NoSuchJob", "NotFound"), _UnknownJob),
}


@dataclass
class JobService:
    """S3 Batch Operations for one backup; methods raise BackupError when it refuses or does not answer."""

    batch: Batch
    store: BackupStore  # The target

    @cached_property
    def _client(self) -> Any:
        """boto3's client of s3control in the target's region, where jobs must be made; it has no types."""
        address = self.store.address.model_copy(update={"endpoint": self.batch.endpoint})
        client = make_s3_client(address, "s3control")
        if self.batch.endpoint:

            def remove_account(request: Any, **_: object) -> None:
                # boto3 always adds the account to the host name; the account is also in a header.
                request.url = request.url.replace(f"://{self.batch.account}.", "://", 1)

            client.meta.events.register("before-sign.s3-control", remove_account)
        return client

    def submit(self, job: BatchJob, as_of: dt.datetime, description: str, *, may_exist: bool) -> str:
        """Make a job exactly once, by its token; returns its id. With `may_exist`, the existing jobs are searched
        first: how long the service keeps a token is not documented."""
        if may_exist and (job_id := self.find(job.token)):
            return job_id
        request = make_copy_request(self.batch, self.store.address, job, as_of, description)
        try:
            return str(self._call("create_job", request)["JobId"])
        except _TokenUsed:
            # The job exists, with another priority or role.
            if job_id := self.find(job.token):
                return job_id
            raise

    def find(self, token: str) -> str | None:
        """The id of the job whose description ends with a token, among the jobs of the last 90 days."""
        request: Fields = {"AccountId": self.batch.account, "MaxResults": 1000}
        while True:
            page = self._call("list_jobs", request)
            for job in page.get("Jobs") or ():
                if job.get("Description", "").endswith(f"token {token}"):
                    return str(job["JobId"])
            if not page.get("NextToken"):
                return None
            request["NextToken"] = page["NextToken"]

    def refresh(self, job: BatchJob) -> BatchJob:
        try:
            description = self._call("describe_job", self._identify(job))["Job"]
        except _UnknownJob:
            # The service keeps a job for 90 days; the report may exist.
            reasons = ["the service no longer has the job"]
            return job.model_copy(update={"status": "Failed", "reasons": tuple(reasons)})
        summary = description.get("ProgressSummary") or {}
        reasons = [
            f"{reason.get('FailureCode', '')} {reason.get('FailureReason', '')}".strip()
            for reason in description.get("FailureReasons") or ()
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
        self._call("update_job_status", {**self._identify(job), "RequestedJobStatus": "Ready"})

    def cancel(self, job: BatchJob, reason: str) -> BatchJob:
        """Cancel a job unless it is ending; returns its state before. Finished copies stay."""
        current = self.refresh(job)
        if not current.has_ended and current.status not in {"Cancelling", "Failing", "Completing"}:
            changes = {"RequestedJobStatus": "Cancelled", "StatusUpdateReason": reason[:256]}
            self._call("update_job_status", self._identify(job) | changes)
        return current

    def set_priority(self, job: BatchJob, priority: int) -> None:
        self._call("update_job_priority", {**self._identify(job), "Priority": priority})

    def _identify(self, job: BatchJob) -> Fields:
        return {"AccountId": self.batch.account, "JobId": job.job_id}

    def _call(self, method: str, request: Fields) -> Fields:
        subject = f"S3 Batch Operations, {method} in account {self.batch.account}"
        try:
            with s3.translate_errors():
                response: Fields = getattr(self._client, method)(**request)
        except S3Refused as error:
            reason = f"the service refused: {error.code}, {error.message.rstrip('.')}"
            fix = REMEDIES.get(error.code, f"Correct the backup's `batch`; {RUN_AGAIN}")
            raise ERRORS.get(error.code, BackupError)(subject, reason, fix) from error
        except S3Unreachable as error:
            if error.kind == "NoRegionError":
                reason = "jobs are made in the target's region, and none is declared"
                raise BackupError(subject, reason, "Give the target's `region`.") from error
            reason = f"the service cannot be reached: {error}"
            fix = f"Check the network, `batch.endpoint` and the credentials; run again: {RUN_AGAIN}"
            raise BackupError(subject, reason, fix) from error
        return response


NOT_REPORTED = "NotReported"  # Error code of rows that are missing in the report
OBJECT_ERRORS = {"NoSuchKey", "NoSuchVersion", "PreconditionFailed", "InvalidObjectState", NOT_REPORTED}
FEW = 10  # From so many failures on, without any success, the cause is not the objects
MAX_NAMED = 3


def join_report(rows: pa.Table, report: pa.Table) -> pa.Table:
    """A job's rows (schema ROWS) with their results in its report (schema RESULTS): schema RESULTS without ETags."""
    names = _join_ids(report, "key", "version_id").combine_chunks()
    # Reports spell keys like the manifest, or decoded.
    matches = [pc.index_in(_join_ids(rows, key, "asked_version"), names) for key in ("asked_key", "key")]
    index = min(matches, key=lambda match: match.null_count)
    columns = {name: report[name].take(index) for name in model.RESULT_COLUMNS}
    is_missing = pc.is_null(columns["status"])
    message = "the job's report does not contain it"
    missing = {"status": "failed", "error_code": NOT_REPORTED, "message": message}
    columns |= {name: pc.if_else(is_missing, value, columns[name]) for name, value in missing.items()}
    return model.conform(pa.table(columns | {name: rows[name] for name in COPIED}), engine.RESULTS)


def _join_ids(table: pa.Table, key: str, version: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table[key], pc.fill_null(table[version], ""), "\0")


def count_failures(done: pa.Table) -> Counter[str]:
    codes = done.filter(pc.field("status") == "failed")["error_code"]
    return Counter(pc.fill_null(codes, "unknown").to_pylist())


def explain_broken_job(job: BatchJob, failed: Mapping[str, int], succeeded: int) -> str | None:
    """Why the results of a job that has ended are not accepted; None if they are, including failed rows. A Complete
    job is not accepted if it copied nothing for reasons other than its objects."""
    most = ", ".join(f"{count} {code}" for code, count in Counter(failed).most_common(MAX_NAMED))
    reasons = "; ".join([*job.reasons, *([most] if most else [])])
    if job.status != "Complete":
        return f"job {job.job_id} is {job.status}: {reasons or 'the service gave no reason'}"
    refused = sum(count for code, count in failed.items() if code not in OBJECT_ERRORS)
    if succeeded == 0 and refused >= FEW:
        return f"job {job.job_id} is Complete but copied nothing: {most}"
    return None


class Attempt(BaseModel):
    number: int
    jobs: list[BatchJob]
    broken: str | None = None


class Attempts(BaseModel):
    plan: str  # Digest of the plan's rows
    attempts: list[Attempt] = []


@dataclass(frozen=True)
class AttemptStore:
    store: BackupStore
    task: engine.CopyTask

    @property
    def _folder(self) -> str:
        return f"{self.task.work_prefix}batch/"

    def all(self) -> Iterator[Attempts]:
        for file in self.store.list(self._folder):
            if file.key.endswith("/jobs.json"):
                yield Attempts.model_validate_json(self.store.read(file.key))

    def load(self, plan: str) -> Attempts:
        try:
            return Attempts.model_validate_json(self.store.read(f"{self._folder}{plan}/jobs.json"))
        except ObjectMissing:
            return Attempts(plan=plan)

    def save(self, attempts: Attempts) -> None:
        content = attempts.model_dump_json(indent=1).encode()
        self.store.put(f"{self._folder}{attempts.plan}/jobs.json", content)

    def prepare(self, attempts: Attempts, jobs: Iterable[JobRows]) -> Attempt:
        """Write a new attempt's manifests, then record it. Raises BackupError if the target encrypts by KMS."""
        prepared = [self._prepare_job(attempts, number, rows) for number, rows in enumerate(jobs)]
        attempt = Attempt(number=len(attempts.attempts), jobs=prepared)
        attempts.attempts.append(attempt)
        self.save(attempts)
        return attempt

    def done(self, job: BatchJob) -> pa.Table:
        """The results of a job's rows, by its report; schema RESULTS, in the order of `rows`."""
        key = self.find_report(job)
        report = engine.read_results(self.store, key) if key else engine.RESULTS.empty_table()
        return join_report(self.rows(job), report)

    def rows(self, job: BatchJob) -> pa.Table:
        return pq.read_table(io.BytesIO(self.store.read(job.rows_key)))

    def record(self, attempt: Attempt) -> None:
        """Write the results of an attempt's jobs into the ledger."""
        ledger = engine.Ledger(self.store, self.task.work_prefix)
        done = (self.done(job) for job in attempt.jobs)
        with engine.open_results(self.task.plan, done, engine.NAMES) as on:
            rows = on.sql("FROM copies WHERE status IS NOT NULL").select(*engine.RESULTS.names)
            for group in model.group_batches(rows.to_arrow_reader(model.ROWS_A_BATCH), model.ROWS_A_FILE):
                ledger.put(pa.Table.from_batches(group).cast(engine.RESULTS))

    def find_report(self, job: BatchJob) -> str | None:
        return engine.find_report(self.store, f"{job.report_prefix}/", job.job_id) if job.job_id else None

    def _prepare_job(self, attempts: Attempts, number: int, rows: JobRows) -> BatchJob:
        attempt = len(attempts.attempts)
        folder = f"{self._folder}{attempts.plan}/{attempt}/"
        manifest_key, rows_key = f"{folder}manifest-{number:05}.csv", f"{folder}rows-{number:05}.parquet"
        content = io.BytesIO()
        pq.write_table(rows.table, content, compression="zstd")
        self.store.put(rows_key, content.getvalue())
        self.store.put(manifest_key, rows.manifest())
        head = self.store.head(manifest_key)
        if head is None:
            raise ObjectMissing(self.store.address.location(manifest_key))
        if (head.encryption or "").startswith("aws:kms"):
            reason = "the bucket encrypts it with KMS, and S3 Batch Operations reads no such manifest"
            fix = "Let the target's default encryption be SSE-S3, or use engine spark."
            raise BackupError(self.store.address.location(manifest_key), reason, fix)
        return BatchJob(
            number=number,
            bucket=rows.bucket,
            stored_prefix=rows.stored_prefix,
            has_versions=rows.has_versions,
            objects=rows.table.num_rows,
            size_bytes=pc.sum(rows.table["size_bytes"]).as_py() or 0,
            token=f"{self.task.token(attempt)}-{attempts.plan[:8]}-{number}",
            manifest_key=manifest_key,
            manifest_etag=head.etag,
            rows_key=rows_key,
            report_prefix=f"{folder}reports",
        )


POLL_S = 15.0


class AwsBatchEngine(engine.CopyEngine):
    """The engine `aws_batch` of one backup; its whole state is in the target, so that any process can continue.
    `wait` is called between two polls of the jobs."""

    name = "aws_batch"

    def __init__(
        self,
        backup: Backup,
        *,
        poll_s: float = POLL_S,
        rows_a_job: int = ROWS_A_JOB,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if backup.batch is None:
            raise BackupError(f"backup {backup.name}", "engine aws_batch needs `batch`", "Declare it.")
        self._backup, self._batch = backup, backup.batch
        self._poll_s, self._rows_a_job, self._wait = poll_s, rows_a_job, wait

    def transfer(self, copying: engine.Copying) -> Mapping[str, bool]:
        """Continues the jobs of an earlier process, after a broken job (BackupError) with new ones."""
        store, counter = AttemptStore(copying.ledger.store, copying.task), copying.counter
        attempts = store.load(engine.compute_plan_digest(model.read_rows(copying.task.plan)))
        if not attempts.attempts:
            # The plan may have been made again: the copies of an earlier plan's jobs are not needed.
            self._cancel(store, f"another plan for backup {self._backup.name}")
        attempt = self._submit(store, attempts, copying.on)

        def report_jobs() -> None:
            done = [(job, job.succeeded + job.failed) for job in attempt.jobs]
            size_bytes = sum(job.size_bytes * objects // job.objects for job, objects in done)
            failed = sum(job.failed for job in attempt.jobs)
            counter.others = (sum(objects for _, objects in done), size_bytes, failed)
            counter.report_progress()

        # It copies what no job can.
        capabilities = LocalEngine().transfer(copying, f"NOT {IS_OF_JOB}")
        self._watch(store, attempts, report_jobs)
        store.record(attempt)
        self._require_accepted(store, attempts)
        return capabilities

    def write_reports(self, task: engine.CopyTask, store: BackupStore) -> list[str]:
        """The reports of all jobs, and one of what they did not copy."""
        jobs = AttemptStore(store, task)
        attempts = jobs.load(engine.compute_plan_digest(model.read_rows(task.plan))).attempts
        keys = [jobs.find_report(job) for attempt in attempts for job in attempt.jobs]
        reports = [task.target.location(key) for key in keys if key]
        with model.open_database() as on:
            model.view_rows(on, "done", task.done)
            others = on.sql(f"FROM done WHERE NOT {IS_OF_JOB}").to_arrow_table()
        if others.num_rows:
            reports.append(engine.write_report(store, task.work_prefix, task.token(), others.to_batches()))
        return reports

    def cancel(self, task: engine.CopyTask) -> None:
        """Cancel the unfinished jobs of a task; finished copies stay, the next `copy` makes new jobs."""
        self._cancel(AttemptStore(open_store(task.target), task), f"backup {self._backup.name} was cancelled")
        super().cancel(task)

    def jobs(self, task: engine.CopyTask) -> list[BatchJob]:
        store = AttemptStore(open_store(task.target), task)
        service = JobService(self._batch, store.store)
        known = [job for plan in store.all() for attempt in plan.attempts for job in attempt.jobs]
        return [service.refresh(job) if job.may_run else job for job in known]

    def confirm(self, task: engine.CopyTask) -> int:
        service = JobService(self._batch, open_store(task.target))
        waiting = [job for job in self.jobs(task) if job.status == "Suspended"]
        for job in waiting:
            service.confirm(job)
        return len(waiting)

    def set_priority(self, task: engine.CopyTask, priority: int) -> int:
        service = JobService(self._batch, open_store(task.target))
        unfinished = [job for job in self.jobs(task) if job.may_run]
        for job in unfinished:
            service.set_priority(job, priority)
        return len(unfinished)

    def _submit(self, store: AttemptStore, attempts: Attempts, on: "duckdb.DuckDBPyConnection") -> Attempt:
        """The attempt to continue, with all its jobs made: the last one, or a new one if that is broken."""
        last = attempts.attempts[-1] if attempts.attempts else None
        is_new = last is None or last.broken is not None
        if last is None:
            last = store.prepare(attempts, divide_into_jobs(on, self._rows_a_job))
        elif last.broken:
            # Cancelled jobs take a while to end, and write their reports only then.
            self._watch(store, attempts, lambda: None)
            store.record(last)
            ledger = engine.Ledger(store.store, store.task.work_prefix)
            with engine.open_results(store.task.plan, ledger.rows()) as left:
                last = store.prepare(attempts, divide_into_jobs(left, self._rows_a_job))
        service = JobService(self._batch, store.store)
        for place, job in enumerate(last.jobs):
            if job.job_id is None:
                text = f"lakeshare backup {self._backup.name}: {job.objects} objects, attempt {last.number}"
                job_id = service.submit(job, store.task.as_of, text, may_exist=not is_new)
                last.jobs[place] = job.model_copy(update={"job_id": job_id, "status": "New"})
                store.save(attempts)
        return last

    def _watch(self, store: AttemptStore, attempts: Attempts, report_state: Callable[[], None]) -> None:
        service, attempt = JobService(self._batch, store.store), attempts.attempts[-1]
        while True:
            before = [job.status for job in attempt.jobs]
            attempt.jobs = [service.refresh(job) if job.may_run else job for job in attempt.jobs]
            if [job.status for job in attempt.jobs] != before:
                store.save(attempts)
                for job, status in zip(attempt.jobs, before, strict=True):
                    if job.status == "Suspended" != status:
                        text = "job %s of %d objects waits to be confirmed: `lakeshare backup jobs NAME DAY --confirm`"
                        log.warning(text, job.job_id, job.objects)
            report_state()
            if not any(job.may_run for job in attempt.jobs):
                return
            self._wait(self._poll_s)

    def _require_accepted(self, store: AttemptStore, attempts: Attempts) -> None:
        attempt = attempts.attempts[-1]
        for job in attempt.jobs:
            done = store.done(job)
            failed = count_failures(done)
            attempt.broken = explain_broken_job(job, failed, done.num_rows - failed.total())
            if attempt.broken:
                store.save(attempts)
                raise BackupError(
                    f"backup {self._backup.name}, {job.objects} objects of {job.bucket}",
                    attempt.broken,
                    "Remove the cause and run it again: new jobs copy what is missing.",
                )

    def _cancel(self, store: AttemptStore, reason: str) -> None:
        service = JobService(self._batch, store.store)
        for attempts in store.all():
            last = attempts.attempts[-1]
            if all(job.has_ended for job in last.jobs):
                continue
            for place, job in enumerate(last.jobs):
                # A process may have died after it made the job and before it recorded the id.
                job_id = job.job_id or service.find(job.token)
                if job_id and not job.has_ended:
                    last.jobs[place] = service.cancel(job.model_copy(update={"job_id": job_id}), reason)
            last.broken = last.broken or reason
            store.save(attempts)
