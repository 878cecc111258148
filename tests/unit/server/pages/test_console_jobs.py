"""Jobs of the console: one at a time for each set, bounded in time and output, and honest about how they ended."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_server.errors import CatalogConflict, NotFound, Unavailable
from lakeshare_server.pages.console import jobs as module
from lakeshare_server.pages.console.jobs import OUTPUT_BYTES, Job, Jobs
from lakeshare_server.pages.console.pipelines import Command
from tests.builders.waiting import wait_until

SLEEP = "import time; print('begun'); time.sleep(60)"
# A server that starts a job, and is killed.
SERVER = """
import os, signal, sys, time
from pathlib import Path
from lakeshare_server.pages.console.jobs import Jobs
from lakeshare_server.pages.console.pipelines import Command
command = Command("x", [sys.executable, "-c", sys.argv[2]], {})
jobs = Jobs(Path(sys.argv[1]), 60)
job = jobs.start(command, action="retry", object_name="x", set_name="orders", principal="ann")
while not jobs.read_output(job.id):
    time.sleep(0.01)
print(job.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path / "jobs", 60)
    yield made
    made.close()


def start(jobs: Jobs, code: str, set_name: str = "orders") -> Job:
    command = Command("python", [sys.executable, "-S", "-c", code], {"GIVEN": "as given"})
    return jobs.start(command, action="retry", object_name="x", set_name=set_name, principal="ann")


def ended(jobs: Jobs, job: Job) -> Job:
    wait_until(lambda: not jobs.get(job.id).is_running)
    return jobs.get(job.id)


def test_a_job_ends_with_its_output_and_its_exit_code(jobs: Jobs, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    good = start(jobs, wait + "print(os.environ['GIVEN'], '\\x1b[31m')")
    assert (good.state, good.principal, good.ended_at) == ("running", "ann", None)
    gate.touch()
    bad = start(jobs, "import sys; sys.exit('refused: é')", "other")
    assert (ended(jobs, good).state, ended(jobs, good).exit_code) == ("succeeded", 0)
    assert jobs.read_output(good.id) == "as given [31m\n"
    assert (ended(jobs, bad).state, ended(jobs, bad).exit_code) == ("failed", 1)
    assert jobs.read_output(bad.id) == "refused: é\n"
    assert {job.id for job in jobs.list_newest(10)} == {good.id, bad.id}
    for name in ("20260101T000000-00000000", "../jobs", good.id + "/.."):
        with pytest.raises(NotFound):
            jobs.get(name)


def test_a_long_output_keeps_its_end(jobs: Jobs) -> None:
    job = ended(jobs, start(jobs, "for n in range(60_000): print(f'line {n:06}')"))
    output = jobs.read_output(job.id)
    assert len(output) == OUTPUT_BYTES
    assert output.endswith("line 059999\n")
    [file] = (path for path in jobs._folder.rglob("output.txt"))
    assert file.stat().st_size <= 3 * OUTPUT_BYTES


def test_a_set_has_one_job_at_a_time_also_from_other_workers(jobs: Jobs) -> None:
    first = start(jobs, SLEEP)
    other_worker = Jobs(jobs._folder, 60)
    with pytest.raises(CatalogConflict, match="a job of set orders is running"):
        start(other_worker, SLEEP)
    with pytest.raises(CatalogConflict), other_worker.hold_set("orders"):
        pass
    assert other_worker.get(first.id).is_running
    assert start(other_worker, SLEEP, "a/set of another name").is_running
    jobs.close()
    assert (jobs.get(first.id).state, jobs.get(first.id).exit_code) == ("interrupted", -signal.SIGTERM)
    assert ended(other_worker, start(other_worker, "")).state == "succeeded"
    other_worker.close()


def test_a_job_that_takes_too_long_is_ended_even_if_it_ignores_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "END_S", 0.1)
    monkeypatch.setattr(module, "POLL_MS", 20)
    jobs = Jobs(tmp_path / "jobs", 0.4)
    job = start(jobs, f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}")
    assert (ended(jobs, job).state, jobs.get(job.id).exit_code) == ("overdue", -signal.SIGKILL)
    jobs.close()
    with pytest.raises(Unavailable, match="stopping"):
        start(jobs, SLEEP)


def test_a_job_of_a_killed_server_runs_until_its_end_and_is_then_interrupted(tmp_path: Path) -> None:
    # One write: the server may be killed between that of a text and that of its end.
    begun = "sys.stdout.write('begun\\n'); sys.stdout.flush()"
    code = f"import sys; {begun}; sys.stdin.read(); import time; time.sleep(0.5)"
    killed = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path / "jobs"), code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    jobs = Jobs(tmp_path / "jobs", 60)
    job = jobs.get(killed.stdout.strip())
    assert ended(jobs, job).state == "interrupted"
    assert jobs.get(job.id).exit_code is None
    assert jobs.read_output(job.id) == "begun\n"
    assert ended(jobs, start(jobs, "")).state == "succeeded"


def test_old_jobs_are_removed_and_one_that_another_worker_removes_hinders_no_list(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (ended(jobs, start(jobs, "print('done')", f"set {number}")) for number in range(2))
    old = "20260101T000000-00000001"
    (tmp_path / "jobs" / first.id).rename(tmp_path / "jobs" / old)
    ids = jobs._list_ids()
    monkeypatch.setattr(jobs, "_list_ids", lambda: [*ids, "20260101T000000-00000000"])
    assert [job.id for job in jobs.list_newest(9)] == [second.id, old]
    monkeypatch.setattr(module, "KEPT", 2)
    running = start(jobs, SLEEP, "running")
    monkeypatch.undo()
    monkeypatch.setattr(module, "KEPT", 2)
    again = start(jobs, SLEEP, "set 0")
    assert {job.id for job in jobs.list_newest(9)} >= {running.id, again.id}
    assert not (tmp_path / "jobs" / old).exists()


def test_a_job_that_is_refused_because_the_server_stops_leaves_no_job(jobs: Jobs) -> None:
    jobs.close()
    with pytest.raises(Unavailable, match="the server is stopping"):
        start(jobs, "print('done')")
    assert jobs.list_newest(9) == []


def test_a_command_that_cannot_start_leaves_no_job(jobs: Jobs, tmp_path: Path) -> None:
    command = Command("none", [str(tmp_path / "none")], {})
    with pytest.raises(Unavailable, match="the job cannot start: No such file or directory"):
        jobs.start(command, action="retry", object_name="x", set_name="orders", principal="ann")
    assert jobs.list_newest(9) == []
    assert ended(jobs, start(jobs, "print('done')")).state == "succeeded"


def test_a_job_ends_with_its_process_also_if_another_keeps_its_output(jobs: Jobs) -> None:
    code = "import subprocess; print('begun', flush=True); subprocess.Popen(['sleep', '2'])"
    job = ended(jobs, start(jobs, code))
    assert (job.state, jobs.read_output(job.id)) == ("succeeded", "begun\n")
