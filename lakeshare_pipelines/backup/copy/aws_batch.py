"""Copying by S3 Batch Operations: manifests into the target, jobs made once, watched, and judged by their reports.

What a job cannot do (objects over its limit, places of other names) goes through another engine beside it.
"""

import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.copy.batch.attempts import Attempt, Attempts, AttemptsOf
from lakeshare_pipelines.backup.copy.batch.jobs import BatchJob, JobService
from lakeshare_pipelines.backup.copy.batch.judgement import failures, why_broken
from lakeshare_pipelines.backup.copy.batch.manifests import ROWS_A_JOB, is_for_batch, jobs_of
from lakeshare_pipelines.backup.copy.engine import CopyEngine, CopyTask, Progress, Tell
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.plan_digest import plan_digest
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.records import CopyRecord
from lakeshare_pipelines.backup.rows import DONE, PLAN, read_rows, to_copy, write_rows
from lakeshare_pipelines.backup.stores import open_store
from lakeshare_pipelines.errors import BackupError

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

    def copy(self, task: CopyTask, tell: Tell) -> CopyRecord:
        """See CopyEngine. Jobs of an earlier process are found again; after an error that a job broke, the next call
        makes new jobs of what is missing.

        Raises:
            BackupError: the service refuses, a job failed or was cancelled, or its many tasks copied nothing.
        """
        began = time.monotonic()
        kept = AttemptsOf(open_store(task.target), task)
        attempts = kept.load(plan_digest(read_rows(task.plan)))
        if not attempts.attempts:
            # The plan may have been made anew: jobs of a former one copy what nobody wants.
            self._cancel(kept, f"another plan for backup {self._backup.name}")
        attempt = self._submitted(kept, attempts)
        told = _Told(tell, attempt, began)
        others = self._copy_others(task, told)
        self._watch(kept, attempts, told.by_jobs)
        self._require_whole(kept, attempts)
        return self._finished(kept, attempts, others, began)

    def cancel(self, task: CopyTask) -> None:
        """Cancel all jobs of a task that have not ended; what is copied stays, the next `copy` makes new jobs."""
        self._cancel(AttemptsOf(open_store(task.target), task), f"backup {self._backup.name} was cancelled")
        self._beside.cancel(_others_of(task))

    def jobs(self, task: CopyTask) -> list[BatchJob]:
        """All jobs of a task as they are now, oldest first."""
        kept = AttemptsOf(open_store(task.target), task)
        service = JobService(self._batch, kept.store)
        known = [job for plan in kept.all() for attempt in plan.attempts for job in attempt.jobs]
        return [service.look(job) if job.may_run else job for job in known]

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

    def _submitted(self, kept: AttemptsOf, attempts: Attempts) -> Attempt:
        """The attempt to go on with, all its jobs made: the last one, or another after it when that broke."""
        last = attempts.attempts[-1] if attempts.attempts else None
        is_new = last is None or last.broken is not None
        if last is None:
            last = kept.prepare(attempts, jobs_of(read_rows(kept.task.plan), self._rows_a_job))
        elif last.broken:
            # Cancelled jobs take a while to end, and tell only then what they copied.
            self._watch(kept, attempts, lambda: None)
            last = kept.prepare(attempts, kept.left_of(last))
        service = JobService(self._batch, kept.store)
        for place, job in enumerate(last.jobs):
            if job.job_id is None:
                text = f"lakeshare backup {self._backup.name}: {job.objects} objects, attempt {last.number}"
                job_id = service.submit(job, kept.task.as_of, text, may_be_there=not is_new)
                last.jobs[place] = job.model_copy(update={"job_id": job_id, "status": "New"})
                kept.save(attempts)
        return last

    def _copy_others(self, task: CopyTask, told: "_Told") -> CopyRecord | None:
        """Copy what no job can; None where there is nothing of the kind."""
        others = _others_of(task)
        shutil.rmtree(others.plan.parent, ignore_errors=True)
        others.plan.parent.mkdir(parents=True)
        if not write_rows(others.plan, PLAN, _not_for_batch(read_rows(task.plan))):
            return None
        return self._beside.copy(others, told.by_others)

    def _watch(self, kept: AttemptsOf, attempts: Attempts, say: Callable[[], None]) -> None:
        """Look at the last attempt's jobs until all that were made have ended; `say` is called after each look."""
        service, attempt = JobService(self._batch, kept.store), attempts.attempts[-1]
        while True:
            before = [job.status for job in attempt.jobs]
            attempt.jobs = [service.look(job) if job.may_run else job for job in attempt.jobs]
            now = [job.status for job in attempt.jobs]
            if now != before:
                kept.save(attempts)
                _log_waiting(attempt.jobs, before)
            say()
            if not any(job.may_run for job in attempt.jobs):
                return
            self._wait(self._poll_s)

    def _require_whole(self, kept: AttemptsOf, attempts: Attempts) -> None:
        attempt = attempts.attempts[-1]
        for job in attempt.jobs:
            done = kept.done(job)
            failed = failures(done)
            broken = why_broken(job, failed, done.num_rows - failed.total())
            if broken:
                attempt.broken = broken
                kept.save(attempts)
                raise BackupError(
                    f"backup {self._backup.name}, {job.objects} objects of {job.bucket}",
                    broken,
                    "Put right what they tell of and run it again: new jobs copy what is missing.",
                )

    def _finished(
        self, kept: AttemptsOf, attempts: Attempts, others: CopyRecord | None, began: float
    ) -> CopyRecord:
        counts: Counter[str] = Counter()
        beside = read_rows(_others_of(kept.task).done) if others else iter(())
        write_rows(kept.task.done, DONE, _counted(chain(_done_by_jobs(kept, attempts), beside), counts))
        keys = [kept.report_key(job) for attempt in attempts.attempts for job in attempt.jobs]
        return CopyRecord(
            engine=self.name,
            succeeded=counts["succeeded"],
            failed=counts["failed"],
            size_bytes=counts["size_bytes"],
            seconds=time.monotonic() - began,
            reports=(
                *(kept.task.target.location(key) for key in keys if key),
                *(others.reports if others else ()),
            ),
            capabilities=others.capabilities if others else {},
        )

    def _cancel(self, kept: AttemptsOf, why: str) -> None:
        service = JobService(self._batch, kept.store)
        for attempts in kept.all():
            last = attempts.attempts[-1]
            if all(job.has_ended for job in last.jobs):
                continue
            for place, job in enumerate(last.jobs):
                # Without an id: it was made, or not, by a process that died before it could note it.
                job_id = job.job_id or service.find(job.token)
                if job_id and not job.has_ended:
                    last.jobs[place] = service.cancel(job.model_copy(update={"job_id": job_id}), why)
            last.broken = last.broken or why
            kept.save(attempts)


@dataclass
class _Told:
    """How far jobs and the engine beside them are, as one."""

    tell: Tell
    attempt: Attempt
    began: float
    others: Progress | None = None

    def by_others(self, progress: Progress) -> None:
        self.others = progress
        self.by_jobs()

    def by_jobs(self) -> None:
        """A job tells objects only: its bytes are told in proportion."""
        jobs, others = self.attempt.jobs, self.others
        all_bytes = sum(job.size_bytes for job in jobs)
        done_bytes = sum(job.size_bytes * (job.succeeded + job.failed) // job.objects for job in jobs)
        self.tell(
            Progress(
                objects=sum(job.succeeded + job.failed for job in jobs) + (others.objects if others else 0),
                objects_of=sum(job.objects for job in jobs) + (others.objects_of if others else 0),
                size_bytes=done_bytes + (others.size_bytes if others else 0),
                size_bytes_of=all_bytes + (others.size_bytes_of if others else 0),
                failed=sum(job.failed for job in jobs) + (others.failed if others else 0),
                seconds=time.monotonic() - self.began,
            )
        )


def _others_of(task: CopyTask) -> CopyTask:
    """The part of a task that is copied beside its jobs."""
    folder = task.done.with_name(f"{task.done.name}-beside-jobs")
    return replace(
        task, plan=folder / "plan", done=folder / "done", work_prefix=f"{task.work_prefix}beside-jobs/"
    )


def _not_for_batch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in to_copy(batches):
        columns = (batch[name].to_pylist() for name in ("lane", "key", "stored_key"))
        kept = [not is_for_batch(*values) for values in zip(*columns, strict=True)]
        if any(kept):
            yield batch.filter(pa.array(kept))


def _done_by_jobs(kept: AttemptsOf, attempts: Attempts) -> Iterator[pa.RecordBatch]:
    """What became of every row: as the last attempt tells, or as the one that copied it."""
    for attempt in attempts.attempts:
        is_last = attempt is attempts.attempts[-1]
        for job in attempt.jobs:
            done = kept.done(job)
            yield from (done if is_last else done.filter(pc.field("status") == "succeeded")).to_batches()


def _counted(batches: Iterable[pa.RecordBatch], counts: "Counter[str]") -> Iterator[pa.RecordBatch]:
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
