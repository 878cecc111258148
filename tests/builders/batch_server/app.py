"""The HTTP application of the test double of S3 Batch Operations, and its process."""

import asyncio
import base64
import contextlib
import datetime as dt
import logging
import re
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import Identity
from tests.builders.batch_server import requests
from tests.builders.batch_server.job import ENDED, Job, JobFolder, new_job
from tests.builders.batch_server.requests import (
    MAX_TAGS,
    OwnKeys,
    Refused,
    bad_next_token,
    bad_request,
    not_found,
    operation,
    other_request,
    out_of_order,
    problems,
    require_acceptable,
    require_signature,
    too_many_tags,
    wrong_status,
)
from tests.builders.batch_server.run import Behaviour, Endpoint, Run

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


PAGE = 1000
LISTED = dt.timedelta(days=90)
"""Jobs that ended longer ago are not listed."""


class Service:
    """All jobs of all accounts."""

    def __init__(self, jobs: dict[str, Job], folder: JobFolder, queue: Queue, region: str) -> None:
        self._jobs, self._folder, self._queue, self._region = jobs, folder, queue, region

    def create(self, account: str, body: bytes) -> dict[str, Any]:
        """CreateJob: a new job, or the one that the same token and request made before.

        Raises:
            Refused: the request is not acceptable, or its token stands for another one.
        """
        job = new_job(account, self._region, body, _now())
        require_acceptable(account, job.request)
        for known in self._jobs.values():
            if (known.account, known.token) == (account, job.token):
                if known.request != job.request:
                    raise other_request(known.id)
                return {"JobId": known.id}
        self._folder.save(job)
        self._jobs[job.id] = job
        self._queue.wake()
        return {"JobId": job.id}

    def describe(self, account: str, job_id: str) -> dict[str, Any]:
        """DescribeJob."""
        return {"Job": self._job(account, job_id).described()}

    def list(self, account: str, query: dict[str, list[str]]) -> dict[str, Any]:
        """ListJobs: the newest first, without those that ended 90 days ago."""
        asked: dict[str, Any] = {"AccountId": account}
        if "jobStatuses" in query:
            asked["JobStatuses"] = query["jobStatuses"]
        if "maxResults" in query:
            asked["MaxResults"] = _whole(query["maxResults"][0])
        _require(asked, "ListJobs")
        oldest = _now() - LISTED
        found = [
            job
            for job in sorted(self._jobs.values(), key=lambda job: (job.created_at, job.id), reverse=True)
            if job.account == account
            and (job.ended_at is None or job.ended_at > oldest)
            and job.status in asked.get("JobStatuses", (job.status,))
        ]
        if "nextToken" in query:
            found = _after(found, query["nextToken"][0])
        size = asked.get("MaxResults") or PAGE
        more = len(found) > size
        return {
            "Jobs": [job.listed() for job in found[:size]],
            "NextToken": _token(found[size - 1]) if more else None,
        }

    def update_status(
        self, account: str, job_id: str, status: str | None, reason: str | None
    ) -> dict[str, Any]:
        """UpdateJobStatus: confirm a suspended job, or cancel one that has not ended."""
        asked = {
            "AccountId": account,
            "JobId": job_id,
            "RequestedJobStatus": status,
            "StatusUpdateReason": reason,
        }
        _require({name: value for name, value in asked.items() if value is not None}, "UpdateJobStatus")
        job = self._job(account, job_id)
        if status == "Ready":
            if job.status != "Suspended":
                raise wrong_status(f"job {job.id} is {job.status}; only a Suspended one is confirmed.")
            job.become("Ready", _now())
        else:
            job.become("Cancelling", _now())
        job.status_reason = reason
        self._folder.save(job)
        self._queue.wake()
        return {"JobId": job.id, "Status": job.status, "StatusUpdateReason": reason}

    def update_priority(self, account: str, job_id: str, priority: str | None) -> dict[str, Any]:
        """UpdateJobPriority."""
        asked: dict[str, Any] = {"AccountId": account, "JobId": job_id}
        if priority is not None:
            asked["Priority"] = _whole(priority)
        _require(asked, "UpdateJobPriority")
        job = self._job(account, job_id)
        if job.status in ENDED:
            raise bad_request(f"job {job.id} is {job.status}; its priority is of no use any more.")
        job.priority = asked["Priority"]
        self._folder.save(job)
        self._queue.wake()
        return {"JobId": job.id, "Priority": job.priority}

    def tags(self, account: str, job_id: str) -> dict[str, Any]:
        """GetJobTagging."""
        job = self._job(account, job_id)
        return {"Tags": [{"Key": key, "Value": value} for key, value in job.tags.items()]}

    def put_tags(self, account: str, job_id: str, body: bytes) -> dict[str, Any]:
        """PutJobTagging: these tags, and no others."""
        asked = requests.read(body, operation("PutJobTagging").input_shape)
        if len(asked.get("Tags", ())) > MAX_TAGS:
            raise too_many_tags(len(asked["Tags"]))
        _require({**asked, "AccountId": account, "JobId": job_id}, "PutJobTagging")
        return self._set_tags(account, job_id, {tag["Key"]: tag["Value"] for tag in asked["Tags"]})

    def delete_tags(self, account: str, job_id: str) -> dict[str, Any]:
        """DeleteJobTagging."""
        return self._set_tags(account, job_id, {})

    def _set_tags(self, account: str, job_id: str, tags: dict[str, str]) -> dict[str, Any]:
        job = self._job(account, job_id)
        job.tags = tags
        self._folder.save(job)
        return {}

    def _job(self, account: str, job_id: str) -> Job:
        job = self._jobs.get(job_id)
        if job is None or job.account != account:
            raise not_found(job_id)
        return job


def _require(asked: dict[str, Any], name: str) -> None:
    if found := list(problems(operation(name).input_shape, asked)):
        raise bad_request(" ".join(found))


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise bad_request(f"{text!r} is no whole number.") from error


def _token(job: Job) -> str:
    return base64.b64encode(job.id.encode()).decode()


def _after(jobs: list[Job], token: str) -> list[Job]:
    ids = {_token(job): place for place, job in enumerate(jobs)}
    if token not in ids:
        raise bad_next_token(token)
    return jobs[ids[token] + 1 :]


PREFIX = "/v20180820/jobs"
DEFAULT_REGION = "us-east-1"
FOR_MANIFESTS = 8
"""Requests in flight beside those of tasks: manifests and reports do not wait for a job of millions."""
ACCOUNT = re.compile(r"\d{12}")
Call = Callable[[Service, str, Request, bytes], dict[str, Any]]


def batch_app(folder: Path, address: StoreAddress, behaviour: Behaviour, keys: OwnKeys) -> Starlette:
    """The service: jobs kept in `folder`, run at the endpoint of `address` (its bucket is not looked at).

    With `keys`, requests have to be signed with them; with None everybody who reaches the port is served.
    """

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        kept = JobFolder(folder)
        jobs = {job.id: job for job in kept.jobs()}
        endpoint = Endpoint(address, behaviour.in_flight * behaviour.jobs_at_once + FOR_MANIFESTS)
        queue = Queue(jobs, kept, endpoint, behaviour)
        app.state.service = Service(jobs, kept, queue, address.region or DEFAULT_REGION)
        app.state.serving = serving = asyncio.create_task(queue.serve())
        try:
            yield
        finally:
            serving.cancel()
            await asyncio.wait([serving])
            await endpoint.close()

    return Starlette(routes=[_route(*one, keys) for one in ROUTES], lifespan=life)


def _route(method: str, path: str, name: str, call: Call, keys: OwnKeys) -> Route:
    async def answer(request: Request) -> Response:
        request_id = uuid.uuid4().hex.upper()
        try:
            body = await _body(request)
            require_signature(await keys.now(), request, body)
            _require_order(request.app.state.serving)
            result = call(request.app.state.service, _account(request), request, body)
        except Refused as refused:
            document, status = requests.write_refusal(refused, request_id), refused.status
        else:
            document, status = requests.write(operation(name).output_shape, result), 200
        headers = {"x-amz-request-id": request_id}
        return Response(document, status, headers, media_type="application/xml")

    return Route(PREFIX + path, answer, methods=[method])


async def _body(request: Request) -> bytes:
    """All of a body, as long as it has the size of one."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > requests.MAX_BODY_BYTES:
            raise bad_request(f"the body has more than {requests.MAX_BODY_BYTES} bytes.")
    return body


def _require_order(serving: asyncio.Task[None]) -> None:
    """Take no jobs that nobody would run: a full disk ends the queue."""
    if serving.done() and not serving.cancelled():
        raise out_of_order(str(serving.exception()))


def _account(request: Request) -> str:
    """The account that a request is of: told by a header, by the first label of the host, or by both alike."""
    told = request.headers.get("x-amz-account-id")
    label = request.headers.get("host", "").partition(".")[0]
    in_host = label if ACCOUNT.fullmatch(label) else None
    account = told or in_host
    if account is None or not ACCOUNT.fullmatch(account):
        raise bad_request(
            "AccountId is twelve digits, in the header x-amz-account-id or in front of the host."
        )
    if told and in_host and told != in_host:
        raise bad_request(f"the header says account {told}, the host says {in_host}.")
    return account


def _query(request: Request) -> dict[str, list[str]]:
    return parse_qs(request.url.query, keep_blank_values=True)


def _one(request: Request, name: str) -> str | None:
    return _query(request).get(name, [None])[0]


def _id(request: Request) -> str:
    job_id: str = request.path_params["id"]
    return job_id


ROUTES: tuple[tuple[str, str, str, Call], ...] = (
    ("POST", "", "CreateJob", lambda jobs, account, _, body: jobs.create(account, body)),
    ("GET", "", "ListJobs", lambda jobs, account, request, _: jobs.list(account, _query(request))),
    ("GET", "/{id}", "DescribeJob", lambda jobs, account, request, _: jobs.describe(account, _id(request))),
    (
        "POST",
        "/{id}/status",
        "UpdateJobStatus",
        lambda jobs, account, request, _: jobs.update_status(
            account, _id(request), _one(request, "requestedJobStatus"), _one(request, "statusUpdateReason")
        ),
    ),
    (
        "POST",
        "/{id}/priority",
        "UpdateJobPriority",
        lambda jobs, account, request, _: jobs.update_priority(
            account, _id(request), _one(request, "priority")
        ),
    ),
    (
        "GET",
        "/{id}/tagging",
        "GetJobTagging",
        lambda jobs, account, request, _: jobs.tags(account, _id(request)),
    ),
    (
        "PUT",
        "/{id}/tagging",
        "PutJobTagging",
        lambda jobs, account, request, body: jobs.put_tags(account, _id(request), body),
    ),
    (
        "DELETE",
        "/{id}/tagging",
        "DeleteJobTagging",
        lambda jobs, account, request, _: jobs.delete_tags(account, _id(request)),
    ),
)


STOP_S = 10


def serve(
    folder: Path, address: StoreAddress, behaviour: Behaviour, ready: Callable[[str], None], keys: OwnKeys
) -> None:
    """Serve at a free port of 127.0.0.1 until SIGTERM or SIGINT; `ready` gets the URL once requests are taken."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready(url)

    config = uvicorn.Config(
        batch_app(folder, address, behaviour, keys),
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=STOP_S,
    )
    with listening:
        Server(config).run([listening])


def own_keys(address: StoreAddress) -> OwnKeys:
    """The keys that requests are to be signed with.

    Raises:
        BackupError: there are none.
    """
    keys = OwnKeys(Identity(address))
    asyncio.run(keys.now())
    return keys
