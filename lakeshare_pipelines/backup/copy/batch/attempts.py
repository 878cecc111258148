"""Everything that was submitted for a plan, recorded in the target before the service has it.

An attempt is a set of jobs for all rows that no attempt before it copied; a new one begins when the last one broke.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from lakeshare_pipelines.backup.copy.batch.jobs import BatchJob
from lakeshare_pipelines.backup.copy.batch.judgement import judged
from lakeshare_pipelines.backup.copy.batch.manifests import JobRows
from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.copy.report import MANIFESTS, Result, read_report
from lakeshare_pipelines.backup.rows import DONE
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError, ObjectMissing

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


def folder_of(task: CopyTask) -> str:
    """Where in the target the attempts of all plans of a task are."""
    return f"{task.work_prefix}batch/"


@dataclass(frozen=True)
class AttemptsOf:
    """The attempts of one task, in its target."""

    store: BackupStore
    task: CopyTask

    def all(self) -> Iterator[Attempts]:
        """Of every plan there was for the task."""
        for one in self.store.list(folder_of(self.task)):
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
        made = [self._prepared(attempts, place, one) for place, one in enumerate(jobs)]
        attempt = Attempt(number=len(attempts.attempts), jobs=made)
        attempts.attempts.append(attempt)
        self.save(attempts)
        return attempt

    def done(self, job: BatchJob) -> pa.Table:
        """What became of a job's rows, by its report; schema DONE, in the order of `rows`."""
        results = read_report(self.store, f"{job.report_prefix}/", job.job_id) if job.job_id else None
        return judged(self.rows(job), _table_of(results or iter(())))

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
        return f"{folder_of(self.task)}{plan}/jobs.json"

    def _prepared(self, attempts: Attempts, number: int, rows: JobRows) -> BatchJob:
        attempt = len(attempts.attempts)
        folder = f"{folder_of(self.task)}{attempts.plan}/{attempt}/"
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


def _table_of(results: Iterator[Result]) -> pa.Table:
    """A report's rows as columns of schema DONE, as far as a report tells them."""
    rows = list(results)
    told: dict[str, list[object]] = {
        "bucket": [one.bucket for one in rows],
        "key": [one.key for one in rows],
        "version_id": [one.version_id for one in rows],
        "status": ["succeeded" if one.is_success else "failed" for one in rows],
        "error_code": [None if one.is_success else one.error_code for one in rows],
        "http_status": [None if one.is_success else one.http_status for one in rows],
        "message": [None if one.is_success else one.message for one in rows],
    }
    return pa.table(
        [pa.array(told.get(field.name, [None] * len(rows)), field.type) for field in DONE], names=DONE.names
    )
