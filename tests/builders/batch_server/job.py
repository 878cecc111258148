"""Jobs of the test double of S3 Batch Operations: their states, and the folder they are kept in."""

import csv
import datetime as dt
import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import unquote_plus

from pydantic import BaseModel, ConfigDict, Field

from tests.builders.batch_server import requests
from tests.builders.batch_server.requests import operation, wrong_status

Status = Literal[
    "New", "Preparing", "Suspended", "Ready", "Active", "Pausing", "Paused",
    "Completing", "Complete", "Cancelling", "Cancelled", "Failing", "Failed",
]  # fmt: skip
TRANSITIONS: dict[Status, tuple[Status, ...]] = {
    "New": ("Preparing", "Cancelling"),
    "Preparing": ("Suspended", "Ready", "Failing", "Cancelling"),
    "Suspended": ("Ready", "Cancelling"),
    "Ready": ("Active", "Cancelling"),
    "Active": ("Pausing", "Completing", "Failing", "Cancelling"),
    "Pausing": ("Paused", "Completing", "Failing", "Cancelling"),
    "Paused": ("Active", "Cancelling"),
    "Completing": ("Complete", "Failing"),
    "Cancelling": ("Cancelled",),
    "Failing": ("Failed",),
    "Complete": (),
    "Cancelled": (),
    "Failed": (),
}
"""Which state follows which (S3 user guide, "Job statuses")."""
ENDED: tuple[Status, ...] = ("Complete", "Cancelled", "Failed")
SUSPENDED_CAUSE = "AwaitingConfirmation"


class Job(BaseModel):
    """One job; it is changed in place, and kept by a JobFolder at each step."""

    model_config = ConfigDict(validate_assignment=False)

    id: str
    account: str
    region: str
    request_xml: str
    created_at: dt.datetime
    priority: int
    status: Status = "New"
    status_reason: str | None = None
    ended_at: dt.datetime | None = None
    suspended_at: dt.datetime | None = None
    failures: list[tuple[str, str]] = Field(default_factory=list)
    """Code and reason, why the whole job failed."""
    tags: dict[str, str] = Field(default_factory=dict)
    total: int = 0
    succeeded: int = 0
    failed: int = 0
    active_s: float = 0.0

    @cached_property
    def request(self) -> dict[str, Any]:
        """The members of the CreateJob request; what they are is checked before a job is made."""
        return requests.read(self.request_xml.encode(), operation("CreateJob").input_shape)

    @property
    def operation(self) -> str:
        """Its operation's name, such as S3PutObjectCopy."""
        name: str = next(iter(self.request["Operation"]))
        return name

    @property
    def parameters(self) -> dict[str, Any]:
        """What the operation is told."""
        told: dict[str, Any] = self.request["Operation"][self.operation]
        return told

    @property
    def token(self) -> str:
        """The client's token."""
        token: str = self.request["ClientRequestToken"]
        return token

    @property
    def has_ended(self) -> bool:
        """Nothing will become of it any more."""
        return self.status in ENDED

    def become(self, status: Status, now: dt.datetime) -> None:
        """Go to another state.

        Raises:
            Refused: no way leads there from the present state.
        """
        if status not in TRANSITIONS[self.status]:
            raise wrong_status(f"job {self.id} is {self.status}; it cannot become {status}.")
        self.status = status
        if status == "Suspended":
            self.suspended_at = now
        if status in ENDED:
            self.ended_at = now

    def fail(self, code: str, reason: str, now: dt.datetime) -> None:
        """Go to Failing, with the reason (256 characters of it, as the model allows)."""
        self.become("Failing", now)
        self.failures.append((code, reason[:256]))

    def described(self) -> dict[str, Any]:
        """A JobDescriptor of the service model."""
        return {
            **self._summary(),
            "ConfirmationRequired": self.request.get("ConfirmationRequired", False),
            "JobArn": f"arn:aws:s3:{self.region}:{self.account}:job/{self.id}",
            "Manifest": self.request.get("Manifest"),
            "Operation": self.request["Operation"],
            "StatusUpdateReason": self.status_reason,
            "FailureReasons": [{"FailureCode": code, "FailureReason": why} for code, why in self.failures],
            "Report": self.request["Report"],
            "RoleArn": self.request["RoleArn"],
            "SuspendedDate": self.suspended_at,
            "SuspendedCause": SUSPENDED_CAUSE if self.suspended_at else None,
        }

    def listed(self) -> dict[str, Any]:
        """A JobListDescriptor of the service model."""
        return {**self._summary(), "Operation": self.operation}

    def _summary(self) -> dict[str, Any]:
        return {
            "JobId": self.id,
            "Description": self.request.get("Description"),
            "Priority": self.priority,
            "Status": self.status,
            "CreationTime": self.created_at,
            "TerminationDate": self.ended_at,
            "ProgressSummary": {
                "TotalNumberOfTasks": self.total,
                "NumberOfTasksSucceeded": self.succeeded,
                "NumberOfTasksFailed": self.failed,
                "Timers": {"ElapsedTimeInActiveSeconds": int(self.active_s)},
            },
        }


def new_job(account: str, region: str, body: bytes, now: dt.datetime) -> Job:
    """A job of a request, which may be anything yet (asked.py looks at it).

    Raises:
        Refused: the body is no CreateJobRequest.
    """
    job = Job(
        id=str(uuid.uuid4()), account=account, region=region, request_xml=body.decode("utf-8", "replace"),
        created_at=now, priority=0,
    )  # fmt: skip
    job.priority = job.request.get("Priority", 0)
    job.tags = {
        tag["Key"]: tag["Value"] for tag in job.request.get("Tags", ()) if "Key" in tag and "Value" in tag
    }
    return job


@dataclass(frozen=True)
class Task:
    """One row of a manifest; `key_in_manifest` is URL-encoded as it stands there, and so in the report."""

    number: int
    bucket: str
    key_in_manifest: str
    version_id: str | None
    """None where the manifest has no versions; empty where it should have one and has none."""

    @property
    def key(self) -> str:
        """The object's key. A plus is a space, as in every form that is URL-encoded."""
        return unquote_plus(self.key_in_manifest)


@dataclass(frozen=True)
class Outcome:
    """What became of a task; `http_status` and `message` are told of both, `error_code` of failures only."""

    number: int
    http_status: int
    error_code: str
    message: str

    @property
    def succeeded(self) -> bool:
        """It was done."""
        return not self.error_code


class JobFolder:
    """All jobs below one folder; used by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def jobs(self) -> list[Job]:
        """Every job, the oldest first."""
        found = [Job.model_validate_json(path.read_text()) for path in self.folder.glob("*/*/job.json")]
        return sorted(found, key=lambda job: (job.created_at, job.id))

    def save(self, job: Job) -> None:
        """Keep a job as it is now, whole or as it was before."""
        path = self._of(job) / "job.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(job.model_dump_json(indent=1))
        part.replace(path)

    def write_tasks(self, job: Job, tasks: Iterable[Task]) -> int:
        """Keep the tasks of a job; returns how many there are."""
        path, count = self._of(job) / "tasks.csv", 0
        part = path.with_suffix(".part")
        with part.open("w", newline="") as file:
            rows = csv.writer(file)
            for task in tasks:
                version = [] if task.version_id is None else [task.version_id]
                rows.writerow([task.bucket, task.key_in_manifest, *version])
                count += 1
        part.replace(path)
        return count

    def tasks(self, job: Job) -> Iterator[Task]:
        """The tasks of a job, in the order of its manifest."""
        with (self._of(job) / "tasks.csv").open(newline="") as file:
            for number, (bucket, key, *version) in enumerate(csv.reader(file)):
                yield Task(number, bucket, key, version[0] if version else None)

    def outcomes(self, job: Job) -> Iterator[Outcome]:
        """What became of the tasks that were run, in the order they ended."""
        path = self._of(job) / "outcomes.jsonl"
        if not path.exists():
            return
        with path.open() as file:
            for line in file:
                # A line without its end was being written when the process died: its task is run again.
                if line.endswith("\n"):
                    yield Outcome(**json.loads(line))

    def open_outcomes(self, job: Job) -> IO[str]:
        """A file to append outcomes to, after a line that was broken off is cut away."""
        path = self._of(job) / "outcomes.jsonl"
        with path.open("ab+") as file:
            file.truncate(_end_of_lines(file))
        return path.open("a", buffering=1)

    def report(self, job: Job, status: str) -> Path:
        """The file that a part of the completion report is made in."""
        return self._of(job) / f"{status}.csv"

    def _of(self, job: Job) -> Path:
        return self.folder / job.account / job.id


def line_of(outcome: Outcome) -> str:
    """An outcome as a line of `outcomes.jsonl`."""
    return json.dumps(asdict(outcome)) + "\n"


def _end_of_lines(file: IO[bytes]) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, 2)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
