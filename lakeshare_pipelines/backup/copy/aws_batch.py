"""Copying by S3 Batch Operations: manifests into the target, jobs made once, watched, and judged by their reports.

What a job cannot do (objects over its limit, places of other names) goes through another engine beside it.
"""

import io
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.batch_jobs import (
    ROWS_A_JOB,
    BatchJob,
    JobRows,
    JobService,
    divide_into_jobs,
    is_for_batch,
)
from lakeshare_pipelines.backup.copy.engine import (
    MANIFESTS,
    CopyEngine,
    CopyTask,
    Progress,
    ReportProgress,
    ReportRow,
    compute_plan_digest,
    read_report,
)
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.model import (
    COPY_RESULTS,
    PLAN,
    CopyRecord,
    read_rows,
    select_rows_to_copy,
    write_rows,
)
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.errors import BackupError, ObjectMissing

NOT_REPORTED = "NotReported"
"""Error code of rows that a report does not tell of."""
OBJECT_ERRORS = {"NoSuchKey", "NoSuchVersion", "PreconditionFailed", "InvalidObjectState", NOT_REPORTED}
"""Failures that say nothing of the target or the role: the object went, changed, or is archived."""
FEW = 10
"""So many failures, and nothing copied at all, are no accident of some objects."""

SHOWN = 3


def join_report(rows: pa.Table, report: pa.Table) -> pa.Table:
    """A job's rows (schema ROWS) with what its report tells (columns of DONE, keys as it spells them): schema DONE."""
    index = _find_report_rows(rows, report)
    found = {name: report[name].take(index) for name in REPORT_COLUMNS}
    is_missing = pc.is_null(found["status"])
    missing = {
        "status": "failed",
        "error_code": NOT_REPORTED,
        "message": "the job's report does not tell of it",
    }
    columns = {
        name: pc.if_else(is_missing, missing[name], column) if name in missing else column
        for name, column in found.items()
    }
    for name in COPY_RESULTS.names:
        if name in rows.column_names:
            columns[name] = rows[name]
    return pa.table([columns[name] for name in COPY_RESULTS.names], schema=COPY_RESULTS)


REPORT_COLUMNS = tuple(
    name
    for name in COPY_RESULTS.names
    if name not in {"bucket", "key", "version_id", "stored_key", "size_bytes"}
)


def _find_report_rows(rows: pa.Table, report: pa.Table) -> pa.ChunkedArray:
    """For each row its place in the report, null where there is none."""
    names = _ids(report, "key", "version_id").combine_chunks()
    ways = [
        pc.index_in(_ids(rows, "asked_key", "asked_version"), value_set=names),
        pc.index_in(_ids(rows, "key", "asked_version"), value_set=names),
    ]
    return min(ways, key=lambda way: way.null_count)


def _ids(table: pa.Table, key: str, version: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(table[key], pc.fill_null(table[version], ""), "\0")


def count_failures(done: pa.Table) -> Counter[str]:
    """How often each error code is among the rows."""
    codes = done.filter(pc.field("status") == "failed")["error_code"]
    return Counter(pc.fill_null(codes, "unknown").to_pylist())


def explain_broken_job(job: BatchJob, failed: Mapping[str, int], succeeded: int) -> str | None:
    """Why a job that has ended is not to be accepted; None where its rows, failed ones too, are a result.

    That it is Complete is not asked: a job that copied nothing for reasons that are not its objects' was refused.
    """
    most = ", ".join(f"{count} {code}" for code, count in Counter(failed).most_common(SHOWN))
    reasons = "; ".join([*job.reasons, *([most] if most else [])])
    if job.status != "Complete":
        return f"job {job.job_id} is {job.status}: {reasons or 'the service gave no reason'}"
    refused = sum(count for code, count in failed.items() if code not in OBJECT_ERRORS)
    if succeeded == 0 and refused >= FEW:
        return f"job {job.job_id} is Complete but copied nothing: {most}"
    return None


KMS = "aws:kms"


class Attempt(BaseModel):
    """All jobs of one attempt; `broken` says why another is needed."""

    number: int
    jobs: list[BatchJob]
    broken: str | None = None


class Attempts(BaseModel):
    """The attempts of one plan, oldest first."""

    plan: str
    """Digest of the plan's rows."""
    attempts: list[Attempt] = []


def get_attempts_folder(task: CopyTask) -> str:
    """Where in the target the attempts of all plans of a task are."""
    return f"{task.work_prefix}batch/"


@dataclass(frozen=True)
class AttemptStore:
    """The attempts of one task, in its target."""

    store: BackupStore
    task: CopyTask

    def all(self) -> Iterator[Attempts]:
        """Of every plan there was for the task."""
        for one in self.store.list(get_attempts_folder(self.task)):
            if one.key.endswith("/jobs.json"):
                yield Attempts.model_validate_json(self.store.read(one.key))

    def load(self, plan: str) -> Attempts:
        """Of the plan with a digest; none yet, when nothing is recorded."""
        try:
            return Attempts.model_validate_json(self.store.read(self._key(plan)))
        except ObjectMissing:
            return Attempts(plan=plan)

    def save(self, attempts: Attempts) -> None:
        """Keep the record, whole."""
        self.store.put(self._key(attempts.plan), attempts.model_dump_json(indent=1).encode())

    def prepare(self, attempts: Attempts, jobs: Iterable[JobRows]) -> Attempt:
        """A new attempt: manifests and rows of its jobs are written, then it is recorded; nothing is submitted.

        Raises:
            BackupError: the target encrypts with KMS by default: the service reads no such manifest.
        """
        prepared = [self._prepared(attempts, place, one) for place, one in enumerate(jobs)]
        attempt = Attempt(number=len(attempts.attempts), jobs=prepared)
        attempts.attempts.append(attempt)
        self.save(attempts)
        return attempt

    def done(self, job: BatchJob) -> pa.Table:
        """What became of a job's rows, by its report; schema DONE, in the order of `rows`."""
        results = read_report(self.store, f"{job.report_prefix}/", job.job_id) if job.job_id else None
        return join_report(self.rows(job), _make_results_table(results or iter(())))

    def rows(self, job: BatchJob) -> pa.Table:
        """The rows of a job."""
        return pq.read_table(io.BytesIO(self.store.read(job.rows_key)))

    def left_of(self, attempt: Attempt) -> Iterator[JobRows]:
        """The rows of an attempt that it did not copy, for another one."""
        for job in attempt.jobs:
            rows = self.rows(job).filter(pc.not_equal(self.done(job)["status"], "succeeded"))
            if rows.num_rows:
                yield JobRows(job.kind, rows)

    def report_key(self, job: BatchJob) -> str | None:
        """The key of a job's report, under either name that AWS's documents give it; None when there is none."""
        for name in MANIFESTS:
            key = f"{job.report_prefix}/job-{job.job_id}/{name}"
            if job.job_id and self.store.head(key):
                return key
        return None

    def _key(self, plan: str) -> str:
        return f"{get_attempts_folder(self.task)}{plan}/jobs.json"

    def _prepared(self, attempts: Attempts, number: int, rows: JobRows) -> BatchJob:
        attempt = len(attempts.attempts)
        folder = f"{get_attempts_folder(self.task)}{attempts.plan}/{attempt}/"
        manifest_key, rows_key = f"{folder}manifest-{number:05}.csv", f"{folder}rows-{number:05}.parquet"
        content = io.BytesIO()
        pq.write_table(rows.table, content, compression="zstd")
        self.store.put(rows_key, content.getvalue())
        self.store.put(manifest_key, rows.manifest())
        head = self.store.head(manifest_key)
        if head is None:
            raise ObjectMissing(self.store.address.location(manifest_key))
        if (head.encryption or "").startswith(KMS):
            raise BackupError(
                self.store.address.location(manifest_key),
                "the bucket encrypts it with KMS, and S3 Batch Operations reads no such manifest",
                "Let the target's default encryption be SSE-S3, or use engine spark.",
            )
        return BatchJob(
            number=number,
            bucket=rows.kind.bucket,
            stored_prefix=rows.kind.stored_prefix,
            has_versions=rows.kind.has_versions,
            objects=rows.table.num_rows,
            size_bytes=rows.size_bytes,
            token=f"{self.task.token(attempt)}-{attempts.plan[:8]}-{number}",
            manifest_key=manifest_key,
            manifest_etag=head.etag,
            rows_key=rows_key,
            report_prefix=f"{folder}reports",
        )


def _make_results_table(results: Iterator[ReportRow]) -> pa.Table:
    """A report's rows as columns of schema DONE, as far as a report tells them."""
    rows = list(results)
    columns: dict[str, list[object]] = {
        "bucket": [row.bucket for row in rows],
        "key": [row.key for row in rows],
        "version_id": [row.version_id for row in rows],
        "status": ["succeeded" if row.is_success else "failed" for row in rows],
        "error_code": [None if row.is_success else row.error_code for row in rows],
        "http_status": [None if row.is_success else row.http_status for row in rows],
        "message": [None if row.is_success else row.message for row in rows],
    }
    return pa.table(
        [pa.array(columns.get(field.name, [None] * len(rows)), field.type) for field in COPY_RESULTS],
        names=COPY_RESULTS.names,
    )


log = logging.getLogger(__name__)

POLL_S = 15.0


class AwsBatchEngine:
    """The engine `aws_batch` of one backup; all it knows of a task is in the target, so any process goes on with it.

    `beside` copies what no job can; `wait` is called between two looks at the jobs.
    """

    name = "aws_batch"

    def __init__(
        self,
        backup: Backup,
        *,
        poll_s: float = POLL_S,
        rows_a_job: int = ROWS_A_JOB,
        beside: CopyEngine | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if backup.batch is None:
            raise BackupError(f"backup {backup.name}", "engine aws_batch needs `batch`", "Declare it.")
        self._backup, self._batch = backup, backup.batch
        self._poll_s, self._rows_a_job, self._wait = poll_s, rows_a_job, wait
        self._beside: CopyEngine = beside or LocalEngine()

    def copy(self, task: CopyTask, report_progress: ReportProgress) -> CopyRecord:
        """See CopyEngine. Jobs of an earlier process are found again; after an error that a job broke, the next call
        makes new jobs of what is missing.

        Raises:
            BackupError: the service refuses, a job failed or was cancelled, or its many tasks copied nothing.
        """
        began = time.monotonic()
        store = AttemptStore(open_store(task.target), task)
        attempts = store.load(compute_plan_digest(read_rows(task.plan)))
        if not attempts.attempts:
            # The plan may have been made anew: jobs of a former one copy what nobody wants.
            self._cancel(store, f"another plan for backup {self._backup.name}")
        attempt = self._submitted(store, attempts)
        progress = _JobProgress(report_progress, attempt, began)
        others = self._copy_others(task, progress)
        self._watch(store, attempts, progress.report_jobs)
        self._require_whole(store, attempts)
        return self._finished(store, attempts, others, began)

    def cancel(self, task: CopyTask) -> None:
        """Cancel all jobs of a task that have not ended; what is copied stays, the next `copy` makes new jobs."""
        self._cancel(AttemptStore(open_store(task.target), task), f"backup {self._backup.name} was cancelled")
        self._beside.cancel(_make_task_of_others(task))

    def jobs(self, task: CopyTask) -> list[BatchJob]:
        """All jobs of a task as they are now, oldest first."""
        store = AttemptStore(open_store(task.target), task)
        service = JobService(self._batch, store.store)
        known = [job for plan in store.all() for attempt in plan.attempts for job in attempt.jobs]
        return [service.refresh(job) if job.may_run else job for job in known]

    def confirm(self, task: CopyTask) -> int:
        """Let the jobs of a task begin that wait for a person; returns how many did."""
        service = JobService(self._batch, open_store(task.target))
        waiting = [job for job in self.jobs(task) if job.status == "Suspended"]
        for job in waiting:
            service.confirm(job)
        return len(waiting)

    def set_priority(self, task: CopyTask, priority: int) -> int:
        """Change how urgent the unfinished jobs of a task are; returns how many were changed."""
        service = JobService(self._batch, open_store(task.target))
        unfinished = [job for job in self.jobs(task) if job.may_run]
        for job in unfinished:
            service.set_priority(job, priority)
        return len(unfinished)

    def _submitted(self, store: AttemptStore, attempts: Attempts) -> Attempt:
        """The attempt to go on with, all its jobs made: the last one, or another after it when that broke."""
        last = attempts.attempts[-1] if attempts.attempts else None
        is_new = last is None or last.broken is not None
        if last is None:
            last = store.prepare(attempts, divide_into_jobs(read_rows(store.task.plan), self._rows_a_job))
        elif last.broken:
            # Cancelled jobs take a while to end, and tell only then what they copied.
            self._watch(store, attempts, lambda: None)
            last = store.prepare(attempts, store.left_of(last))
        service = JobService(self._batch, store.store)
        for place, job in enumerate(last.jobs):
            if job.job_id is None:
                text = f"lakeshare backup {self._backup.name}: {job.objects} objects, attempt {last.number}"
                job_id = service.submit(job, store.task.as_of, text, may_be_there=not is_new)
                last.jobs[place] = job.model_copy(update={"job_id": job_id, "status": "New"})
                store.save(attempts)
        return last

    def _copy_others(self, task: CopyTask, job_progress: "_JobProgress") -> CopyRecord | None:
        """Copy what no job can; None where there is nothing of the kind."""
        others = _make_task_of_others(task)
        shutil.rmtree(others.plan.parent, ignore_errors=True)
        others.plan.parent.mkdir(parents=True)
        if not write_rows(others.plan, PLAN, _select_others(read_rows(task.plan))):
            return None
        return self._beside.copy(others, job_progress.report_others)

    def _watch(self, store: AttemptStore, attempts: Attempts, report_state: Callable[[], None]) -> None:
        """Look at the last attempt's jobs until all that were made have ended; `say` is called after each look."""
        service, attempt = JobService(self._batch, store.store), attempts.attempts[-1]
        while True:
            before = [job.status for job in attempt.jobs]
            attempt.jobs = [service.refresh(job) if job.may_run else job for job in attempt.jobs]
            now = [job.status for job in attempt.jobs]
            if now != before:
                store.save(attempts)
                _log_waiting(attempt.jobs, before)
            report_state()
            if not any(job.may_run for job in attempt.jobs):
                return
            self._wait(self._poll_s)

    def _require_whole(self, store: AttemptStore, attempts: Attempts) -> None:
        attempt = attempts.attempts[-1]
        for job in attempt.jobs:
            done = store.done(job)
            failed = count_failures(done)
            broken = explain_broken_job(job, failed, done.num_rows - failed.total())
            if broken:
                attempt.broken = broken
                store.save(attempts)
                raise BackupError(
                    f"backup {self._backup.name}, {job.objects} objects of {job.bucket}",
                    broken,
                    "Put right what they tell of and run it again: new jobs copy what is missing.",
                )

    def _finished(
        self, store: AttemptStore, attempts: Attempts, others: CopyRecord | None, began: float
    ) -> CopyRecord:
        counts: Counter[str] = Counter()
        beside = read_rows(_make_task_of_others(store.task).done) if others else iter(())
        write_rows(
            store.task.done,
            COPY_RESULTS,
            _count_rows(chain(_read_done_rows(store, attempts), beside), counts),
        )
        keys = [store.report_key(job) for attempt in attempts.attempts for job in attempt.jobs]
        return CopyRecord(
            engine=self.name,
            succeeded=counts["succeeded"],
            failed=counts["failed"],
            size_bytes=counts["size_bytes"],
            seconds=time.monotonic() - began,
            reports=(
                *(store.task.target.location(key) for key in keys if key),
                *(others.reports if others else ()),
            ),
            capabilities=others.capabilities if others else {},
        )

    def _cancel(self, store: AttemptStore, why: str) -> None:
        service = JobService(self._batch, store.store)
        for attempts in store.all():
            last = attempts.attempts[-1]
            if all(job.has_ended for job in last.jobs):
                continue
            for place, job in enumerate(last.jobs):
                # Without an id: it was made, or not, by a process that died before it could note it.
                job_id = job.job_id or service.find(job.token)
                if job_id and not job.has_ended:
                    last.jobs[place] = service.cancel(job.model_copy(update={"job_id": job_id}), why)
            last.broken = last.broken or why
            store.save(attempts)


@dataclass
class _JobProgress:
    """How far jobs and the engine beside them are, as one."""

    report_progress: ReportProgress
    attempt: Attempt
    began: float
    others: Progress | None = None

    def report_others(self, progress: Progress) -> None:
        self.others = progress
        self.report_jobs()

    def report_jobs(self) -> None:
        """A job tells objects only: its bytes are told in proportion."""
        jobs, others = self.attempt.jobs, self.others
        all_bytes = sum(job.size_bytes for job in jobs)
        done_bytes = sum(job.size_bytes * (job.succeeded + job.failed) // job.objects for job in jobs)
        self.report_progress(
            Progress(
                objects=sum(job.succeeded + job.failed for job in jobs) + (others.objects if others else 0),
                objects_of=sum(job.objects for job in jobs) + (others.objects_of if others else 0),
                size_bytes=done_bytes + (others.size_bytes if others else 0),
                size_bytes_of=all_bytes + (others.size_bytes_of if others else 0),
                failed=sum(job.failed for job in jobs) + (others.failed if others else 0),
                seconds=time.monotonic() - self.began,
            )
        )


def _make_task_of_others(task: CopyTask) -> CopyTask:
    """The part of a task that is copied beside its jobs."""
    folder = task.done.with_name(f"{task.done.name}-beside-jobs")
    return replace(
        task, plan=folder / "plan", done=folder / "done", work_prefix=f"{task.work_prefix}beside-jobs/"
    )


def _select_others(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in select_rows_to_copy(batches):
        columns = (batch[name].to_pylist() for name in ("lane", "key", "stored_key"))
        is_selected = [not is_for_batch(*values) for values in zip(*columns, strict=True)]
        if any(is_selected):
            yield batch.filter(pa.array(is_selected))


def _read_done_rows(store: AttemptStore, attempts: Attempts) -> Iterator[pa.RecordBatch]:
    """What became of every row: as the last attempt tells, or as the one that copied it."""
    for attempt in attempts.attempts:
        is_last = attempt is attempts.attempts[-1]
        for job in attempt.jobs:
            done = store.done(job)
            yield from (done if is_last else done.filter(pc.field("status") == "succeeded")).to_batches()


def _count_rows(batches: Iterable[pa.RecordBatch], counts: "Counter[str]") -> Iterator[pa.RecordBatch]:
    for batch in batches:
        copied = batch.filter(pc.field("status") == "succeeded")
        counts["succeeded"] += copied.num_rows
        counts["failed"] += batch.num_rows - copied.num_rows
        counts["size_bytes"] += pc.sum(copied["size_bytes"]).as_py() or 0
        yield batch


def _log_waiting(jobs: Sequence[BatchJob], before: Sequence[str]) -> None:
    for job, status in zip(jobs, before, strict=True):
        if job.status == "Suspended" != status:
            log.warning(
                "job %s of %d objects waits to be confirmed: `lakeshare backup jobs NAME DAY --confirm`",
                job.job_id,
                job.objects,
            )
