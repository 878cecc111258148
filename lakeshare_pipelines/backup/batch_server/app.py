"""The HTTP service: routes of s3control's REST-XML protocol, translated and nothing more."""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeshare_pipelines.backup.batch_server import xml
from lakeshare_pipelines.backup.batch_server.authentication import OwnKeys, require_signature
from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint
from lakeshare_pipelines.backup.batch_server.job_folder import JobFolder
from lakeshare_pipelines.backup.batch_server.queue import Queue
from lakeshare_pipelines.backup.batch_server.refusals import Refused, bad_request, out_of_order
from lakeshare_pipelines.backup.batch_server.run import Behaviour
from lakeshare_pipelines.backup.batch_server.service import Service
from lakeshare_pipelines.backup.batch_server.shapes import operation
from lakeshare_pipelines.backup.stores import StoreAddress

PREFIX = "/v20180820/jobs"
DEFAULT_REGION = "us-east-1"
FOR_MANIFESTS = 8
"""Requests in flight beside those of tasks: manifests and reports do not wait for a job of millions."""
ACCOUNT = re.compile(r"\d{12}")
Call = Callable[[Service, str, Request, bytes], dict[str, Any]]


def batch_app(folder: Path, address: StoreAddress, behaviour: Behaviour, keys: OwnKeys | None) -> Starlette:
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


def _route(method: str, path: str, name: str, call: Call, keys: OwnKeys | None) -> Route:
    async def answer(request: Request) -> Response:
        request_id = uuid.uuid4().hex.upper()
        try:
            body = await _body(request)
            if keys is not None:
                require_signature(await keys.now(), request, body)
            _require_order(request.app.state.serving)
            result = call(request.app.state.service, _account(request), request, body)
        except Refused as refused:
            document, status = xml.write_refusal(refused, request_id), refused.status
        else:
            document, status = xml.write(operation(name).output_shape, result), 200
        headers = {"x-amz-request-id": request_id}
        return Response(document, status, headers, media_type="application/xml")

    return Route(PREFIX + path, answer, methods=[method])


async def _body(request: Request) -> bytes:
    """All of a body, as long as it has the size of one."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > xml.MAX_BODY_BYTES:
            raise bad_request(f"the body has more than {xml.MAX_BODY_BYTES} bytes.")
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
