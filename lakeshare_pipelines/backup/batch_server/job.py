"""A job: what was asked, where it is among the thirteen states, how far it got."""

import datetime as dt
import uuid
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lakeshare_pipelines.backup.batch_server import xml
from lakeshare_pipelines.backup.batch_server.refusals import wrong_status
from lakeshare_pipelines.backup.batch_server.shapes import operation

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
        return xml.read(self.request_xml.encode(), operation("CreateJob").input_shape)

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
