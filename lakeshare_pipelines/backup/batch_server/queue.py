"""Which jobs run: those of the highest priority, as many as there are places; others wait, or make place."""

import asyncio
import datetime as dt
import logging
from collections.abc import Coroutine, Iterable
from typing import Any

from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint
from lakeshare_pipelines.backup.batch_server.job import Job
from lakeshare_pipelines.backup.batch_server.job_folder import JobFolder
from lakeshare_pipelines.backup.batch_server.run import Behaviour, Run

log = logging.getLogger(__name__)


class Queue:
    """Takes every job from each state on to the next, until it is cancelled; all on one event loop."""

    def __init__(
        self, jobs: dict[str, Job], folder: JobFolder, endpoint: Endpoint, behaviour: Behaviour
    ) -> None:
        self._jobs, self._folder, self._endpoint, self._behaviour = jobs, folder, endpoint, behaviour
        self._changed = asyncio.Event()
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._working: set[str] = set()

    def wake(self) -> None:
        """Look at all jobs again: one is new, or was changed."""
        self._changed.set()

    async def serve(self) -> None:
        """Serve all jobs, also those that another process left; ends by cancellation only."""
        for job in self._jobs.values():
            # Nobody works at it: it waits for a place again.
            if job.status == "Active":
                job.become("Pausing", _now())
            if job.status == "Pausing":
                job.become("Paused", _now())
        try:
            while True:
                self._changed.clear()
                self._look()
                await self._changed.wait()
        finally:
            for step in self._steps.values():
                step.cancel()
            await asyncio.gather(*self._steps.values(), return_exceptions=True)

    def _look(self) -> None:
        idle = [job for job in self._jobs.values() if job.id not in self._steps]
        for job in idle:
            run = Run(job, self._folder, self._endpoint, self._behaviour)
            if job.status in ("New", "Preparing"):
                self._begin(job, run.prepare())
            elif job.status in ("Completing", "Cancelling", "Failing"):
                self._begin(job, run.end())
        waiting = _by_priority(job for job in idle if job.status in ("Ready", "Paused"))
        for job in waiting[: max(0, self._behaviour.jobs_at_once - len(self._working))]:
            job.become("Active", _now())
            self._folder.save(job)
            self._working.add(job.id)
            self._begin(job, Run(job, self._folder, self._endpoint, self._behaviour).work())
        self._make_place(_by_priority(job for job in waiting if job.status in ("Ready", "Paused")))

    def _make_place(self, waiting: list[Job]) -> None:
        """Pause as many jobs as others of higher priority are waiting for."""
        active = _by_priority(self._jobs[name] for name in self._working)
        leaving = sum(job.status != "Active" for job in active)
        for first in waiting[leaving:]:
            last = next((job for job in reversed(active) if job.status == "Active"), None)
            if last is None or last.priority >= first.priority:
                return
            last.become("Pausing", _now())
            self._folder.save(last)

    def _begin(self, job: Job, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(step)
        self._steps[job.id] = task
        task.add_done_callback(lambda ended: self._ended(job, ended))

    def _ended(self, job: Job, step: asyncio.Task[None]) -> None:
        del self._steps[job.id]
        self._working.discard(job.id)
        if step.cancelled():
            return
        # Others go on, whatever became of this one.
        self.wake()
        if (error := step.exception()) is not None:
            # A defect, or a full disk: the job must not look alive.
            log.error("job %s: %s", job.id, error, exc_info=error)
            job.failures.append(("InternalError", f"{type(error).__name__}: {error}"[:256]))
            job.status, job.ended_at = "Failed", _now()
            self._folder.save(job)


def _by_priority(jobs: Iterable[Job]) -> list[Job]:
    """The highest priority first, the older one of two."""
    return sorted(jobs, key=lambda job: (-job.priority, job.created_at, job.id))


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
