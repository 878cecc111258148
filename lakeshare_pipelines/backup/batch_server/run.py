"""One job at work: its manifest read into tasks, the tasks run side by side, the end and the report of it."""

import asyncio
import datetime as dt
import time
from dataclasses import dataclass

from lakeshare_pipelines.backup.batch_server.asked import object_of
from lakeshare_pipelines.backup.batch_server.completion_report import write_report
from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint, StoreRefused
from lakeshare_pipelines.backup.batch_server.job import Job, Status
from lakeshare_pipelines.backup.batch_server.job_folder import JobFolder, line_of
from lakeshare_pipelines.backup.batch_server.manifest import BadManifest, tasks_of
from lakeshare_pipelines.backup.batch_server.operations import outcome_of
from lakeshare_pipelines.backup.batch_server.rights import Forbidden, Policies
from lakeshare_pipelines.backup.batch_server.task import Outcome, Task
from lakeshare_pipelines.backup.config import COPY_LIMIT_BYTES
from lakeshare_pipelines.errors import BackupError

THRESHOLD_CODE = "FailureThresholdExceeded"


@dataclass(frozen=True)
class Behaviour:
    """How the stand-in behaves; AWS's own figures by default."""

    copy_limit_bytes: int = COPY_LIMIT_BYTES
    threshold_tasks: int = 1000
    """A job is judged by its failures once it has run so many tasks, …"""
    threshold_share: float = 0.5
    """… and fails when more than this share of them failed."""
    in_flight: int = 64
    """Tasks of one job at a time."""
    jobs_at_once: int = 4
    state_delay_s: float = 0.0
    """How long a job stays at least in each state that it leaves by itself."""
    policies: Policies | None = None
    """Judge every task by these; None: whatever the stand-in's own identity may."""


class Run:
    """What a job does, from New to its end; where it stands is in the job alone, so that anybody can go on."""

    def __init__(self, job: Job, folder: JobFolder, endpoint: Endpoint, behaviour: Behaviour) -> None:
        self.job, self._folder, self._endpoint, self._behaviour = job, folder, endpoint, behaviour
        policies = behaviour.policies
        self._rights = None if policies is None else policies.of(job.request["RoleArn"])

    async def prepare(self) -> None:
        """New → Preparing → Ready, or Suspended when it is to be confirmed, or Failed."""
        job = self.job
        await self._stay()
        if job.status == "New":
            self._become("Preparing")
        await self._stay()
        try:
            self._require_rights()
            tasks = [task async for task in tasks_of(self._endpoint, job.request["Manifest"])]
        except (BadManifest, Forbidden, BackupError) as error:
            if job.status == "Preparing":
                job.fail(_code_of(error), str(error), _now())
                self._folder.save(job)
            return
        # It may have been cancelled meanwhile.
        if job.status == "Preparing":
            job.total = self._folder.write_tasks(job, tasks)
            self._become("Suspended" if job.request.get("ConfirmationRequired", False) else "Ready")

    def _require_rights(self) -> None:
        if self._rights is not None:
            location = self.job.request["Manifest"]["Location"]
            version = "Version" if "ObjectVersionId" in location else ""
            self._rights.require_role(self.job.account)
            self._rights.require(f"s3:GetObject{version}", *(object_of(location["ObjectArn"]) or ("", "")))

    async def work(self) -> None:
        """Active, until all tasks are run, or the job is paused, cancelled or fails."""
        job, started, before = self.job, time.monotonic(), self.job.active_s
        done = self._recall()
        tasks = (task for task in self._folder.tasks(job) if task.number not in done)
        with self._folder.open_outcomes(job) as outcomes:

            async def one_after_another() -> None:
                while job.status == "Active" and (task := next(tasks, None)) is not None:
                    outcome = await self._outcome(task)
                    outcomes.write(line_of(outcome))
                    self._count(outcome)
                    job.active_s = before + time.monotonic() - started
                    self._judge()

            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._behaviour.in_flight, job.total)):
                    group.create_task(one_after_another())
        if job.status == "Active" or (job.status == "Pausing" and job.succeeded + job.failed == job.total):
            self._become("Completing")
        elif job.status == "Pausing":
            await self._stay()
            if job.status == "Pausing":
                self._become("Paused")

    async def end(self) -> None:
        """Completing, Cancelling or Failing: the report, then the last state."""
        job = self.job
        self._recall()
        await self._stay()
        try:
            await write_report(self._endpoint, self._folder, job, _now(), self._rights)
        except (StoreRefused, Forbidden, BackupError) as error:
            reason = f"the report cannot be written: {error}"
            if job.status == "Completing":
                job.fail("ReportNotWritten", reason, _now())
            else:
                job.failures.append(("ReportNotWritten", reason[:256]))
        if job.status == "Completing":
            self._become("Complete")
        elif job.status == "Cancelling":
            self._become("Cancelled")
        else:
            self._become("Failed")

    async def _outcome(self, task: Task) -> Outcome:
        return await outcome_of(
            self.job.operation,
            self.job.parameters,
            self._endpoint,
            self._behaviour.copy_limit_bytes,
            task,
            self._rights,
        )

    def _recall(self) -> set[int]:
        """Count what was run before, by this process or one before it; the numbers of those tasks."""
        self.job.succeeded = self.job.failed = 0
        done = set()
        for outcome in self._folder.outcomes(self.job):
            self._count(outcome)
            done.add(outcome.number)
        return done

    def _count(self, outcome: Outcome) -> None:
        self.job.succeeded += outcome.succeeded
        self.job.failed += not outcome.succeeded

    def _judge(self) -> None:
        job, run = self.job, self.job.succeeded + self.job.failed
        enough = run >= self._behaviour.threshold_tasks
        if (
            enough
            and job.failed > run * self._behaviour.threshold_share
            and job.status in ("Active", "Pausing")
        ):
            reason = f"{job.failed} of the first {run} tasks failed. The completion report tells why"
            job.fail(THRESHOLD_CODE, reason, _now())
            self._folder.save(job)

    def _become(self, status: Status) -> None:
        self.job.become(status, _now())
        self._folder.save(self.job)

    async def _stay(self) -> None:
        await asyncio.sleep(self._behaviour.state_delay_s)


def _code_of(error: Exception) -> str:
    if isinstance(error, BadManifest):
        return error.code
    return "AccessDenied" if isinstance(error, Forbidden) else "ManifestNotReadable"


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
