"""Where jobs are kept: a folder of this host, one folder a job, so that a restart loses none and repeats little.

`job.json` is the job, `tasks.csv` its manifest with encoded keys, `outcomes.jsonl` one line for each task that was run.
"""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from lakeshare_pipelines.backup.batch_server.job import Job
from lakeshare_pipelines.backup.batch_server.task import Outcome, Task


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
