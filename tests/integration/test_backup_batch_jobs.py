"""Copies by S3 Batch Operations, through boto3 and the stand-in: made once, found again, judged by their reports."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lakeshare_pipelines.backup.config import Backup, Batch
from lakeshare_pipelines.backup.copy.aws_batch import Attempts, AttemptStore, AwsBatchEngine
from lakeshare_pipelines.backup.copy.engine import CopyTask, Progress
from lakeshare_pipelines.cli.backup import backup_app
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_batch import ACCOUNT, ROLE, keys_of, running_batch_server, s3control
from tests.builders.backup_buckets import Copies, buckets, done_of
from tests.integration.s3_server import REGION, S3Server

KEYS = ["t/a.parquet", "t/day=2026-11-19/b c+d.parquet", "t/%20ü.parquet", "t/a,b\"c'.parquet"]
LIMIT = 5 * 1024**2
THRESHOLD = 20


class Killed(Exception):
    """The process that copies is no more."""


@dataclass(frozen=True)
class Stand:
    """The stand-in and the S3 server below it."""

    s3: S3Server
    url: str

    def jobs(self, task: CopyTask) -> list[dict[str, Any]]:
        """The service's jobs that write into a task's target, newest first."""
        control = s3control(self.url, self.s3.admin)
        ids = [one["JobId"] for one in control.list_jobs(AccountId=ACCOUNT)["Jobs"]]
        described = [control.describe_job(AccountId=ACCOUNT, JobId=one)["Job"] for one in ids]
        arn = f"arn:aws:s3:::{task.target.bucket}"
        return [one for one in described if one["Report"]["Bucket"] == arn]

    def engine(
        self,
        copies: Copies,
        wait: Callable[[float], None] | None = None,
        rows_a_job: int = 50,
        **options_of_batch: Any,
    ) -> AwsBatchEngine:
        """An engine as a new process has it."""
        batch = Batch(account=ACCOUNT, role_arn=ROLE, endpoint=self.url, **options_of_batch)
        backup = Backup(
            name="lake",
            source=copies.source.address,
            target=copies.target.address,
            engine="aws_batch",
            batch=batch,
        )
        options: dict[str, Any] = {} if wait is None else {"wait": wait}
        return AwsBatchEngine(backup, poll_s=0.05, rows_a_job=rows_a_job, **options)


@pytest.fixture(scope="module")
def stand(s3: S3Server) -> Iterator[Stand]:
    options = ("--copy-limit-bytes", str(LIMIT), "--threshold-tasks", str(THRESHOLD))
    with running_batch_server(s3, *options) as url:
        yield Stand(s3, url)


@pytest.fixture
def copies(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    for name, value in keys_of(stand.s3.admin).items():
        monkeypatch.setenv(name, value)
    return buckets(stand.s3.client(), stand.s3.endpoint, REGION, tmp_path / "plans")


def nothing(_: Progress) -> None:
    """Ignores progress."""


def numbered(count: int) -> list[str]:
    return [f"t/{number:04}.parquet" for number in range(count)]


def test_a_plan_is_copied_by_jobs_and_what_they_cannot_beside_them(stand: Stand, copies: Copies) -> None:
    copies.put(*KEYS)
    copies.put("t/large.parquet", size_bytes=LIMIT + 1)
    copies.put("t/remade.parquet", "t/held.parquet")
    changed = {
        "t/large.parquet": {"lane": "large"},
        "t/held.parquet": {"lane": "held"},
        "t/remade.parquet": {"stored_key": "remade/2026-11-20/t/remade.parquet"},
    }
    task = copies.task(copies.rows(lambda key: changed.get(key, {})), copy_limit_bytes=LIMIT)
    told: list[Progress] = []
    record = stand.engine(copies).copy(task, told.append)
    assert {job["Status"] for job in stand.jobs(task)} == {"Complete"}
    assert {job["Operation"]["S3PutObjectCopy"]["TargetKeyPrefix"] for job in stand.jobs(task)} == {
        "objects",
        "remade/2026-11-20",
    }
    wanted = {key: copies.content(key) for key in KEYS}
    assert copies.copied() == wanted | {"t/large.parquet": copies.content("t/large.parquet", LIMIT + 1)}
    assert copies.copied("remade/2026-11-20/") == {"t/remade.parquet": copies.content("t/remade.parquet")}
    done = done_of(task)
    assert set(done) == {*KEYS, "t/large.parquet", "t/remade.parquet"}
    assert {row["status"] for row in done.values()} == {"succeeded"}
    assert (record.succeeded, record.failed, record.size_bytes) == (6, 0, 500 + LIMIT + 1)
    assert (told[-1].objects, told[-1].objects_of) == (6, 6)
    assert told[-1].size_bytes == told[-1].size_bytes_of == record.size_bytes
    for location in record.reports:
        assert copies.target.head(location.removeprefix(f"s3://{task.target.bucket}/")), location


@pytest.mark.parametrize("survives", range(6))
def test_killed_anywhere_no_job_is_made_twice(
    stand: Stand, copies: Copies, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """It dies where it would note what it did: before, between and after its two jobs are made and looked at."""
    keys = numbered(6)
    copies.put(*keys)
    task = copies.task(copies.rows())
    save, saved = AttemptStore.save, []

    def killed(kept: AttemptStore, attempts: Attempts) -> None:
        if len(saved) == survives:
            raise Killed
        saved.append(attempts)
        save(kept, attempts)

    with monkeypatch.context() as patched:
        patched.setattr(AttemptStore, "save", killed)
        try:
            stand.engine(copies, rows_a_job=4).copy(task, nothing)
        except Killed:
            assert not task.done.exists()
    record = stand.engine(copies, rows_a_job=4).copy(task, nothing)
    assert (record.succeeded, record.failed) == (6, 0)
    assert set(done_of(task)) == set(keys)
    assert len(stand.jobs(task)) == 2
    assert len(record.reports) == 2


def test_what_was_vacuumed_or_overwritten_since_is_a_failed_row(stand: Stand, copies: Copies) -> None:
    keys = numbered(12)
    copies.put(*keys)
    rows = copies.rows()
    as_of = max(row["last_modified"] for row in rows)
    copies.source.delete(keys[0])
    while (head := copies.source.head(keys[1])) is None or head.last_modified <= as_of:
        copies.source.put(keys[1], b"of the day after")
    task = copies.task(rows, as_of=as_of)
    record = stand.engine(copies).copy(task, nothing)
    done = done_of(task)
    assert (record.succeeded, record.failed) == (10, 2)
    assert (done[keys[0]]["error_code"], done[keys[0]]["http_status"]) == ("NoSuchKey", 404)
    assert (done[keys[1]]["error_code"], done[keys[1]]["http_status"]) == ("PreconditionFailed", 412)
    assert set(copies.copied()) == set(keys[2:])


def test_a_job_that_is_complete_but_copied_nothing_is_an_error(stand: Stand, copies: Copies) -> None:
    copies.put(*numbered(10), size_bytes=LIMIT + 1)
    task = copies.task(copies.rows())
    with pytest.raises(BackupError, match=r"is Complete but copied nothing: 10 InvalidRequest.*run it again"):
        stand.engine(copies).copy(task, nothing)
    assert not task.done.exists()
    copies.put(*numbered(10))
    assert stand.engine(copies).copy(task, nothing).succeeded == 10
    assert len(stand.jobs(task)) == 2


def test_after_a_job_that_failed_the_next_run_copies_what_is_missing(stand: Stand, copies: Copies) -> None:
    keys = numbered(50)
    copies.put(*keys)
    task = copies.task(copies.rows())
    for key in keys[:45]:
        copies.source.delete(key)
    with pytest.raises(BackupError, match=r"is Failed: .*NoSuchKey"):
        stand.engine(copies).copy(task, nothing)
    copies.put(*keys[:45])
    record = stand.engine(copies).copy(task, nothing)
    assert (record.succeeded, record.failed) == (50, 0)
    assert {row["status"] for row in done_of(task).values()} == {"succeeded"}
    assert len(copies.copied()) == 50
    last, first = stand.jobs(task)
    assert (first["Status"], last["Status"]) == ("Failed", "Complete")
    copied_first = first["ProgressSummary"]["NumberOfTasksSucceeded"]
    assert last["ProgressSummary"]["TotalNumberOfTasks"] == 50 - copied_first


def test_jobs_wait_to_be_confirmed_and_begin_when_they_are(stand: Stand, copies: Copies) -> None:
    copies.put(*numbered(3))
    task = copies.task(copies.rows())
    confirmed = []

    def wait(_: float) -> None:
        confirmed.append(stand.engine(copies).confirm(task))

    assert stand.engine(copies, wait, confirm=True).copy(task, nothing).succeeded == 3
    assert sum(confirmed) == 1


def test_jobs_are_shown_confirmed_and_cancelled_by_command(
    stand: Stand, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = tmp_path / "backups.yaml"
    batch = {"account": ACCOUNT, "role_arn": ROLE, "endpoint": stand.url, "confirm": True}
    ends = {
        end: store.address.model_dump(exclude_none=True)
        for end, store in (("source", copies.source), ("target", copies.target))
    }
    declared.write_text(
        yaml.safe_dump({"backups": {"lake": {**ends, "engine": "aws_batch", "batch": batch}}})
    )
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(declared))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))

    def said(*options: str) -> str:
        return CliRunner().invoke(backup_app, ["jobs", "lake", "2026-11-20", *options]).output

    assert "no jobs" in said()
    copies.put(*numbered(3))
    task = copies.task(copies.rows(), work_prefix="_lakeshare/lake/points/2026-11-20/engine/")
    while_waiting: list[str] = []

    def wait(_: float) -> None:
        while_waiting.append(said("--confirm", "--priority", "77"))

    stand.engine(copies, wait, confirm=True).copy(task, nothing)
    assert "jobs with priority 77 now: 1\njobs confirmed: 1\n" in "".join(while_waiting)
    assert "Complete: 3 of 3 objects" in said("--cancel")
    assert [job["Priority"] for job in stand.jobs(task)] == [77]


def test_cancelled_jobs_end_the_copy_and_the_next_run_makes_new_ones(stand: Stand, copies: Copies) -> None:
    copies.put(*numbered(3))
    task = copies.task(copies.rows())
    with pytest.raises(BackupError, match="is Cancelled"):
        stand.engine(copies, lambda _: stand.engine(copies).cancel(task), confirm=True).copy(task, nothing)
    assert stand.engine(copies).copy(task, nothing).succeeded == 3
    assert [job["Status"] for job in stand.jobs(task)] == ["Complete", "Cancelled"]
    assert [job.status for job in stand.engine(copies).jobs(task)] == ["Cancelled", "Complete"]


def test_another_plan_for_the_point_ends_the_jobs_of_the_former_one(stand: Stand, copies: Copies) -> None:
    copies.put(*numbered(3))
    rows = copies.rows()

    def killed(_: float) -> None:
        raise Killed

    task = copies.task(rows)
    with pytest.raises(Killed):
        stand.engine(copies, killed, confirm=True).copy(task, nothing)
    assert stand.engine(copies).set_priority(task, 99) == 1
    other = copies.task(rows[:2])
    assert stand.engine(copies).copy(other, nothing).succeeded == 2
    now, former = stand.jobs(task)
    assert (now["Status"], former["Status"], former["Priority"]) == ("Complete", "Cancelled", 99)
    assert set(copies.copied()) == set(numbered(2))


def test_who_may_not_make_jobs_is_told_what_to_allow(
    stand: Stand, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.put("t/a")
    task = copies.task(copies.rows())
    engine = stand.engine(copies)
    monkeypatch.setattr(
        "lakeshare_pipelines.backup.copy.aws_batch.make_s3_client",
        lambda address, service: _client_of_a_stranger(stand, address.endpoint, service),
    )
    with pytest.raises(BackupError, match=r"create_job in account 222222222222: the service refused"):
        engine.copy(task, nothing)


def _client_of_a_stranger(stand: Stand, endpoint: str, service: str) -> Any:
    import boto3

    stranger = stand.s3.stranger
    return boto3.client(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=stranger.access_key,
        aws_secret_access_key=stranger.secret_key,
    )
