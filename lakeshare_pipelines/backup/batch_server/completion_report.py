"""The completion report of a job, laid out as AWS does: `<prefix>/job-<id>/manifest.json` and CSV files of results.

Its ReportSchema names ErrorCode before HTTPStatusCode, its rows have them the other way round: so do those of AWS
(S3 user guide, "Examples: S3 Batch Operations completion reports").
"""

import csv
import datetime as dt
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from lakeshare_pipelines.backup.batch_server.asked import bucket_of
from lakeshare_pipelines.backup.batch_server.endpoint import Endpoint
from lakeshare_pipelines.backup.batch_server.job import Job
from lakeshare_pipelines.backup.batch_server.job_folder import JobFolder
from lakeshare_pipelines.backup.batch_server.rights import Rights
from lakeshare_pipelines.backup.batch_server.task import Outcome, Task

FORMAT = "Report_CSV_20180820"
SCHEMA = "Bucket, Key, VersionId, TaskStatus, ErrorCode, HTTPStatusCode, ResultMessage"


async def write_report(
    endpoint: Endpoint, folder: JobFolder, job: Job, now: dt.datetime, rights: Rights | None = None
) -> None:
    """Write the report of a job that asks for one and has run at least one task.

    Raises:
        StoreRefused: the report's bucket does not take it.
        Forbidden: the job's role may not write it.
    """
    asked = job.request["Report"]
    if not asked["Enabled"] or job.succeeded + job.failed == 0:
        return
    bucket = bucket_of(asked["Bucket"]) or ""
    prefix = "/".join(part for part in (asked.get("Prefix", "").strip("/"), f"job-{job.id}") if part)
    if rights is not None:
        rights.require("s3:PutObject", bucket, f"{prefix}/manifest.json")
    wanted = ("failed",) if asked["ReportScope"] == "FailedTasksOnly" else ("succeeded", "failed")
    results = []
    for status in wanted:
        content = _results(folder, job, status)
        if content:
            key = f"{prefix}/results/{hashlib.sha1(content).hexdigest()}.csv"  # noqa: S324
            await endpoint.put(bucket, key, content, "text/csv")
            results.append(
                {"TaskExecutionStatus": status, "Bucket": bucket, "MD5Checksum": _md5(content), "Key": key}
            )
    top = json.dumps(_top(results, now), indent=4).encode()
    await endpoint.put(bucket, f"{prefix}/manifest.json", top, "application/json")
    await endpoint.put(bucket, f"{prefix}/manifest.json.md5", _md5(top).encode(), "text/plain")


def _top(results: list[dict[str, str]], now: dt.datetime) -> dict[str, Any]:
    created = now.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"Format": FORMAT, "ReportCreationDate": created, "Results": results, "ReportSchema": SCHEMA}


def _results(folder: JobFolder, job: Job, status: str) -> bytes:
    path = folder.report(job, status)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        for task, outcome in _of_status(folder, job, status):
            rows.writerow(
                [
                    task.bucket,
                    task.key_in_manifest,
                    task.version_id or "",
                    status,
                    outcome.http_status,
                    outcome.error_code,
                    outcome.message,
                ]
            )
    content = path.read_bytes()
    path.unlink()
    return content


def _of_status(folder: JobFolder, job: Job, status: str) -> Iterator[tuple[Task, Outcome]]:
    of_number = {one.number: one for one in folder.outcomes(job) if one.succeeded == (status == "succeeded")}
    for task in folder.tasks(job):
        if task.number in of_number:
            yield task, of_number[task.number]


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()  # noqa: S324
