"""A test double of S3 Batch Operations: the calls of s3control that backups use, over any S3 server.

`python -m tests.builders.batch_server ENDPOINT REGION` prints its URL. Names, enums, patterns and ranges of requests
are those of botocore's service model. Jobs are in memory; `batch_jobs.py` runs them.
"""

import argparse
import asyncio
import os
import re
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import botocore.session
import uvicorn
from botocore.parsers import ResponseParserError, RestXMLParser
from botocore.serialize import RestXMLSerializer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.batch_jobs import TRANSITIONS, Job, Limits, Policies, Refused, Store, get_object

NAMESPACE = "http://awss3control.amazonaws.com/doc/2018-08-20/"
CSV_FORMAT = "S3BatchOperations_CSV_20180820"
UNMODIFIED = "UnModifiedSinceConstraint"
COPY_MEMBERS = {"TargetResource", "TargetKeyPrefix", "MetadataDirective", "StorageClass", UNMODIFIED}
# Python's `re` has no classes of Unicode properties; in the model's patterns they stand in brackets only.
PROPERTIES = {r"\p{L}": r"\w", r"\p{Z}": r"\s", r"\p{N}": r"\d"}
# What clients write and read, servers read and write: botocore's own parser and serializer of shapes.
PARSER, SERIALIZER = RestXMLParser(), RestXMLSerializer()

# botocore ships no types.
Shape = Any


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequestException", message)


@cache
def operation(name: str) -> Any:
    """The model of an operation."""
    return botocore.session.get_session().get_service_model("s3control").operation_model(name)


def find_problems(shape: Shape, value: Any, path: str = "") -> Iterator[str]:
    """A sentence for each rule of the service model that a value breaks."""
    if shape.type_name == "structure":
        missing = [name for name in shape.required_members if name not in value]
        yield from (f"{path}.{name} is missing.".lstrip(".") for name in missing)
        if shape.name == "JobOperation" and len(value) != 1:
            yield f"{path} takes exactly one member; it has {', '.join(value) or 'none'}."
        for name, member in value.items():
            yield from find_problems(shape.members[name], member, f"{path}.{name}".lstrip("."))
    elif shape.type_name == "list":
        yield from _find_size_problems(shape, len(value), path, " members")
        for number, member in enumerate(value):
            yield from find_problems(shape.member, member, f"{path}[{number}]")
    elif shape.type_name == "string":
        if shape.enum and value not in shape.enum:
            yield f"{path} is {value!r}; it can be {', '.join(shape.enum)}."
        yield from _find_size_problems(shape, len(value), path, " characters")
        pattern = original = shape.metadata.get("pattern", "")
        for theirs, ours in PROPERTIES.items():
            pattern = pattern.replace(theirs, ours)
        if pattern and not re.fullmatch(pattern, value):
            yield f"{path} is {value!r}, which does not match {original}."
    elif shape.type_name in ("integer", "long"):
        yield from _find_size_problems(shape, value, path, "")


def _find_size_problems(shape: Shape, size: int, path: str, unit: str) -> Iterator[str]:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    if least is not None and size < least:
        yield f"{path} has {size}{unit}, at least {least} are needed."
    if most is not None and size > most:
        yield f"{path} has {size}{unit}, at most {most} are allowed."


def require_acceptable(account: str, request: dict[str, Any]) -> None:
    """Refuse a CreateJob request that AWS would refuse, or that this double cannot run, with all its faults."""
    shape = operation("CreateJob").input_shape
    faults = list(find_problems(shape, {**request, "AccountId": account})) or list(_find_conflicts(request))
    if faults:
        raise bad_request(" ".join(faults))


def _find_conflicts(request: dict[str, Any]) -> Iterator[str]:
    """What AWS refuses and its model does not say, and what this double does not run."""
    [(name, copy)] = request["Operation"].items()
    if name != "S3PutObjectCopy":
        yield f"Operation {name} is not run by this double; S3PutObjectCopy is."
    else:
        unknown = set(copy) - COPY_MEMBERS
        yield from (f"Operation.{name}.{member} is not run by this double." for member in sorted(unknown))
        if not _is_bucket(copy.get("TargetResource", "")):
            yield f"Operation.{name}.TargetResource is the ARN of a bucket, arn:aws:s3:::bucket."
    if "Manifest" not in request:
        yield "CreateJob takes a Manifest; a ManifestGenerator is not run by this double."
    else:
        spec, location = request["Manifest"]["Spec"], request["Manifest"]["Location"]
        if spec["Format"] != CSV_FORMAT:
            yield f"Manifest.Spec.Format can be {CSV_FORMAT} in this double."
        if not {"Bucket", "Key"} <= set(spec.get("Fields", [])):
            yield "Manifest.Spec.Fields has to name Bucket and Key."
        if not all(get_object(location["ObjectArn"])):
            yield "Manifest.Location.ObjectArn is the ARN of an object, arn:aws:s3:::bucket/key."
        if '"' in location["ETag"]:
            yield "Manifest.Location.ETag has quotes; give it without."
    report = request["Report"]
    if report["Enabled"]:
        missing = [name for name in ("Bucket", "Format", "ReportScope") if name not in report]
        yield from (f"Report.{name} is missing, and Report.Enabled is true." for name in missing)
        if "Bucket" in report and not _is_bucket(report["Bucket"]):
            yield "Report.Bucket is the ARN of a bucket, arn:aws:s3:::bucket."


def _is_bucket(arn: str) -> bool:
    return bool(get_object(arn)[0]) and "/" not in arn


def read(body: bytes, shape: Shape) -> dict[str, Any]:
    """The members in a request's body, by the names of the model; refuses a body that is no XML of this shape."""
    wanted = f"{{{NAMESPACE}}}{shape.serialization.get('name', shape.name)}"
    try:
        root = ET.fromstring(body)
        members: dict[str, Any] = PARSER._parse_shape(shape, root)
    except (ET.ParseError, ResponseParserError, ValueError) as error:
        raise bad_request(f"the body is no XML of this shape: {error}.") from error
    if root.tag != wanted:
        raise bad_request(f"the body is a {root.tag}, not a {wanted}.")
    return members


def write(shape: Shape, value: dict[str, Any]) -> bytes:
    """A result as XML."""
    root = ET.Element("root")
    SERIALIZER._serialize(shape, _drop_missing(value), root, shape.name)
    root[0].set("xmlns", NAMESPACE)
    return bytes(ET.tostring(root[0], encoding="utf-8", xml_declaration=True))


def write_refusal(refused: Refused) -> bytes:
    """An error as XML."""
    root = ET.Element("ErrorResponse")
    error = ET.SubElement(root, "Error")
    ET.SubElement(error, "Code").text = refused.code
    ET.SubElement(error, "Message").text = refused.message
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _drop_missing(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _drop_missing(member) for name, member in value.items() if member is not None}


class Service:
    """The calls, on all jobs of all accounts."""

    def __init__(self, address: StoreAddress, limits: Limits, policies: Policies | None) -> None:
        self._store = Store(address)
        self._limits, self._policies = limits, policies
        self._jobs: dict[str, Job] = {}
        self._runs: list[asyncio.Task[None]] = []

    async def close(self) -> None:
        for run in self._runs:
            run.cancel()
        await asyncio.gather(*self._runs, return_exceptions=True)
        await self._store.close()

    def create_job(self, account: str, request: Request, body: bytes) -> dict[str, Any]:
        """A new job, or the one that the same token and request made before."""
        members = read(body, operation("CreateJob").input_shape)
        require_acceptable(account, members)
        for job in self._jobs.values():
            if (job.account, job.request["ClientRequestToken"]) == (account, members["ClientRequestToken"]):
                if job.request != members:
                    message = f"this ClientRequestToken made job {job.id} from another request."
                    raise Refused(400, "IdempotencyException", message)
                return {"JobId": job.id}
        job = Job(account, members, self._store, self._limits, self._policies)
        self._jobs[job.id] = job
        self._runs.append(asyncio.create_task(job.run()))
        return {"JobId": job.id}

    def list_jobs(self, account: str, request: Request, body: bytes) -> dict[str, Any]:
        """The newest first, in pages; a token is the number of jobs before its page."""
        size, token = (request.query_params.get(name) for name in ("maxResults", "nextToken"))
        jobs = [job for job in reversed(self._jobs.values()) if job.account == account]
        if token is not None and not (token.isdigit() and int(token) < len(jobs)):
            raise Refused(400, "InvalidNextTokenException", f"no page of jobs is called {token!r}.")
        start = int(token or 0)
        end = start + int(size or 1000)
        listed = [job.summarise() for job in jobs[start:end]]
        return {"Jobs": listed, "NextToken": str(end) if end < len(jobs) else None}

    def describe_job(self, account: str, request: Request, body: bytes) -> dict[str, Any]:
        return {"Job": self._find(account, request).describe()}

    def update_job_status(self, account: str, request: Request, body: bytes) -> dict[str, Any]:
        """Confirm a suspended job, or cancel one that has not ended."""
        job, query = self._find(account, request), request.query_params
        job.update_status(query.get("requestedJobStatus"), query.get("statusUpdateReason"))
        return {"JobId": job.id, "Status": job.status, "StatusUpdateReason": job.status_reason}

    def update_job_priority(self, account: str, request: Request, body: bytes) -> dict[str, Any]:
        job = self._find(account, request)
        if not TRANSITIONS[job.status]:
            raise bad_request(f"job {job.id} is {job.status}; its priority has no effect.")
        job.priority = int(request.query_params["priority"])
        return {"JobId": job.id, "Priority": job.priority}

    def _find(self, account: str, request: Request) -> Job:
        job = self._jobs.get(request.path_params["id"])
        if job is None or job.account != account:
            raise Refused(404, "NotFoundException", f"the account has no job {request.path_params['id']}.")
        return job


Call = Callable[[Service, str, Request, bytes], dict[str, Any]]
ROUTES: tuple[tuple[str, str, str, Call], ...] = (
    ("POST", "", "CreateJob", Service.create_job),
    ("GET", "", "ListJobs", Service.list_jobs),
    ("GET", "/{id}", "DescribeJob", Service.describe_job),
    ("POST", "/{id}/status", "UpdateJobStatus", Service.update_job_status),
    ("POST", "/{id}/priority", "UpdateJobPriority", Service.update_job_priority),
)


def get_account(request: Request, access_key: str) -> str:
    """The account in a request; refuses other access keys. Signatures are not verified."""
    if f"Credential={access_key}/" not in request.headers.get("authorization", ""):
        raise Refused(403, "AccessDenied", "the access key of the request is not known.")
    return request.headers.get("x-amz-account-id", "")


def make_app(service: Service, access_key: str) -> Starlette:
    def make_route(method: str, path: str, name: str, call: Call) -> Route:
        async def respond(request: Request) -> Response:
            body = await request.body()
            try:
                result = call(service, get_account(request, access_key), request, body)
            except Refused as refused:
                document, status = write_refusal(refused), refused.status
            else:
                document, status = write(operation(name).output_shape, result), 200
            return Response(document, status, media_type="application/xml")

        return Route(f"/v20180820/jobs{path}", respond, methods=[method])

    return Starlette(routes=[make_route(*route) for route in ROUTES])


async def serve(address: StoreAddress, limits: Limits, policies: Policies | None) -> None:
    """Serve at a free port of 127.0.0.1 until SIGTERM; prints the URL."""
    service = Service(address, limits, policies)
    app = make_app(service, os.environ["AWS_ACCESS_KEY_ID"])
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=10)
    # The socket listens already: requests wait in its backlog until the server has started.
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    try:
        await uvicorn.Server(config).serve([listening])
    finally:
        await service.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("endpoint", help="URL of the S3 server whose objects jobs copy")
    parser.add_argument("region")
    parser.add_argument("--copy-limit-bytes", type=int, default=Limits.copy_bytes)
    parser.add_argument("--threshold-tasks", type=int, default=Limits.threshold_tasks)
    parser.add_argument("--policies", type=Path, help="folder of policies that every task is checked against")
    options = parser.parse_args()
    # Jobs name their buckets.
    store = StoreAddress(url="s3://jobs", endpoint=options.endpoint, region=options.region)
    bounds = Limits(options.copy_limit_bytes, options.threshold_tasks)
    asyncio.run(serve(store, bounds, options.policies and Policies.load(options.policies)))
