"""The job calls of s3control: what each answers, and what it changes."""

import base64
import datetime as dt
from typing import Any

from lakeshare_pipelines.backup.batch_server import xml
from lakeshare_pipelines.backup.batch_server.asked import MAX_TAGS, require_acceptable
from lakeshare_pipelines.backup.batch_server.job import ENDED, Job, new_job
from lakeshare_pipelines.backup.batch_server.job_folder import JobFolder
from lakeshare_pipelines.backup.batch_server.queue import Queue
from lakeshare_pipelines.backup.batch_server.refusals import (
    bad_next_token,
    bad_request,
    not_found,
    other_request,
    too_many_tags,
    wrong_status,
)
from lakeshare_pipelines.backup.batch_server.shapes import operation, problems

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
        asked = xml.read(body, operation("PutJobTagging").input_shape)
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


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
