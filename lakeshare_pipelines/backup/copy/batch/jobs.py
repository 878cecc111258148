"""The jobs of one task: recorded in the target before they are made, found again after a restart, watched, ended.

What their reports say is judged beside this file; a job's state proves nothing about its copies.
"""

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from lakeshare_pipelines.backup.copy.batch.manifests import JobKind
from lakeshare_pipelines.backup.copy.batch.requests import Said, control_client, copy_job
from lakeshare_pipelines.backup.copy.batch.service_model import check_request
from lakeshare_pipelines.backup.declared import Batch
from lakeshare_pipelines.backup.stores import BackupStore
from lakeshare_pipelines.errors import BackupError

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
        request = copy_job(
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

    def look(self, job: BatchJob) -> BatchJob:
        """The job as it is now."""
        try:
            said = self._ask("describe_job", self._of(job))["Job"]
        except _Unknown:
            # It is told of for 90 days only, and its report may well be there.
            return job.model_copy(
                update={"status": "Failed", "reasons": ("the service does not know it any more",)}
            )
        summary = said.get("ProgressSummary") or {}
        reasons = [
            f"{one.get('FailureCode', '')} {one.get('FailureReason', '')}".strip()
            for one in said.get("FailureReasons") or ()
        ]
        told = ["StatusUpdateReason", *(["SuspendedCause"] if said["Status"] == "Suspended" else [])]
        reasons += [said[name] for name in told if said.get(name)]
        return job.model_copy(
            update={
                "status": said["Status"],
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
        now = self.look(job)
        if now.status not in STOPPABLE_ENDINGS:
            self._update(job, RequestedJobStatus="Cancelled", StatusUpdateReason=why[:256])
        return now

    def set_priority(self, job: BatchJob, priority: int) -> None:
        """Change how urgent a job is; higher ones go first."""
        request = {**self._of(job), "Priority": priority}
        check_request("s3control", "UpdateJobPriority", request)
        self._ask("update_job_priority", request)

    def _update(self, job: BatchJob, **said: str) -> None:
        request = {**self._of(job), **said}
        check_request("s3control", "UpdateJobStatus", request)
        self._ask("update_job_status", request)

    def _of(self, job: BatchJob) -> Said:
        return {"AccountId": self.batch.account, "JobId": job.job_id}

    def _listed(self) -> Iterator[Said]:
        page: Said = {}
        while True:
            following = {"NextToken": page["NextToken"]} if page else {}
            page = self._ask("list_jobs", {"AccountId": self.batch.account, "MaxResults": 1000, **following})
            yield from page.get("Jobs") or ()
            if not page.get("NextToken"):
                return

    def _ask(self, call: str, said: Said) -> Said:
        with _explained(f"S3 Batch Operations, {call} in account {self.batch.account}"):
            self._client = self._client or control_client(self.batch, self.store.address)
            answer: Said = getattr(self._client, call)(**said)
            return answer


class _TokenUsed(BackupError):
    """A token was used before, for a request that was another in something."""


class _Unknown(BackupError):
    """The service has no such job."""


@contextmanager
def _explained(subject: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

    try:
        yield
    except NoRegionError as error:
        raise BackupError(
            subject, "jobs are made in the target's region, and none is told", "Give the target's `region`."
        ) from error
    except ClientError as error:
        told = error.response.get("Error", {})
        reason = f"the service refused: {told.get('Code')}, {str(told.get('Message')).rstrip('.')}"
        if told.get("Code") in {"NotFoundException", "NoSuchJob", "NotFound"}:
            raise _Unknown(subject, reason, _remedy("")) from error
        if told.get("Code") == "IdempotencyException":
            raise _TokenUsed(subject, reason, "Cancel the backup and run it again.") from error
        raise BackupError(subject, reason, _remedy(str(told.get("Code")))) from error
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
