"""Copies by Spark are complete, continue after executors were killed, and repeat nothing that a ledger records."""

import io
import itertools
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from lakeshare_pipelines.backup.copy import spark as spark_copies
from lakeshare_pipelines.backup.copy.engine import CopyItem, CopyTask, Ledger, Outcome, Progress, open_results
from lakeshare_pipelines.backup.copy.objects import BucketCopier
from lakeshare_pipelines.backup.copy.spark import PortionWork, SparkEngine, write_portions
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import spark_session
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.backup_batch import keys_of
from tests.builders.backup_buckets import Copies, buckets, done_of
from tests.builders.backup_processes import FORK
from tests.builders.campaign import campaign_size
from tests.builders.forks import start_process
from tests.builders.shared_spark import SharedSpark
from tests.builders.small_batches import BATCH, SlowCopies, SmallBatches
from tests.builders.waiting import wait_until
from tests.integration.s3_server import REGION, S3Server

LIMIT = 5 * 1024**2
KILLS = campaign_size(in_ci=3, in_campaign=20)
# A driver takes ten seconds to start: twenty kills take eleven minutes.
DRIVER_KILLS = campaign_size(in_ci=1, in_campaign=20)
WORKERS, IN_FLIGHT, ROWS_A_PORTION = 2, 4, 16
# Two workers with this pause before each copy copy 40 objects a second. A driver that copies lives so long at most, and
# a second more until its first copy is seen.
LIFE_S, OBJECTS_A_LIFE = campaign_size(in_ci=1, in_campaign=3), campaign_size(in_ci=80, in_campaign=160)
KEYS = ["t/a.parquet", "t/day=2026-11-19/b c+d.parquet", "t/%20ü.parquet", "t/a,b\"c'.parquet"]


@pytest.fixture
def copies(s3: S3Server, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Stores whose keys the driver and the executors find as ever, in their environments."""
    for name, value in keys_of(s3.admin).items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(lake.spark.sparkContext.environment, name, value)
    in_small_steps(monkeypatch, SmallBatches)
    return buckets(s3.client(), s3.endpoint, REGION, tmp_path / "plans")


def in_small_steps(monkeypatch: pytest.MonkeyPatch, engine_of_executors: type[SmallBatches]) -> None:
    """Few objects make many portions and many batches of a ledger."""
    monkeypatch.setattr(spark_copies, "LocalEngine", engine_of_executors)
    monkeypatch.setattr(spark_copies, "MIN_ROWS", ROWS_A_PORTION)


def nothing(_: Progress) -> None:
    """Ignores progress."""


def engine(lake: Lake) -> SparkEngine:
    return SparkEngine(lambda: lake.spark, poll_s=0.05)


def numbered(count: int) -> list[str]:
    return [f"t/{number:05}.parquet" for number in range(count)]


def told_as_copied(copies: Copies, task: CopyTask) -> set[str]:
    """The keys that ledgers record as copied."""
    found: set[str] = set()
    for one in copies.target.list(task.work_prefix):
        if "/ledger/" in one.key and one.size_bytes:
            rows = pq.read_table(io.BytesIO(copies.target.read(one.key)))
            found.update(row["stored_key"] for row in rows.to_pylist() if row["status"] == "succeeded")
    return found


def times_copied(copies: Copies) -> Counter[str]:
    """How often each key of `numbered` was written: the target keeps every version.

    Listed by hundreds, for SeaweedFS 4.48 loses versions between the pages of a listing.
    """
    hundreds = {one.key[: len("t/000")] for one in copies.source.list("t/")}
    return Counter(one.key for start in hundreds for one in copies.target.versions(f"objects/{start}"))


def many_to_copy(copies: Copies, count: int) -> tuple[list[str], CopyTask]:
    """Objects, and a target that keeps every version, so that copies can be counted."""
    copies.target.client.put_bucket_versioning(  # type: ignore[attr-defined]  # an S3Store
        Bucket=copies.target.address.bucket, VersioningConfiguration={"Status": "Enabled"}
    )
    keys = numbered(count)
    copies.put(*keys)
    return keys, copies.task(copies.rows(), in_flight=IN_FLIGHT)


def require_settled(copies: Copies, task: CopyTask, settled: Counter[str]) -> Counter[str]:
    """What ledgers told of is not copied again; returns how often each object was copied that they tell of now."""
    times = times_copied(copies)
    assert Counter({key: times[key] for key in settled}) == settled
    return Counter({key: times[key] for key in told_as_copied(copies, task)})


def copied_again(times: Counter[str]) -> int:
    """How many copies were of what had been copied."""
    return times.total() - len(times)


def an_executor(work: PortionWork, number: int, life: int | None) -> None:
    """What a process of Spark does with a portion; it is killed after so many copies, before it tells of the last."""
    copy, copied = BucketCopier.copy, itertools.count(1)

    async def mortal_copy(copier: BucketCopier, wanted: CopyItem) -> Outcome:
        outcome = await copy(copier, wanted)
        if next(copied) == life:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BucketCopier, "copy", mortal_copy)
        work.copy(number)


def a_run(settings: LakeSettings, task: CopyTask) -> None:
    """A process with a driver of its own that copies a task; the test kills it."""
    with spark_session(settings) as spark, pytest.MonkeyPatch.context() as patched:
        in_small_steps(patched, SlowCopies)
        SparkEngine(lambda: spark, workers=WORKERS).copy(task, nothing)


def end_run(run: BaseProcess) -> None:
    """Kill a run with its JVM and all processes of that, as the end of their machine would."""
    below = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    end_workers(below)
    # Not by psutil, which would take the exit code of a child.
    run.join()


def end_workers(workers: list[psutil.Process]) -> int:
    """Kill some of the executors' Python processes; how many were killed."""
    for one in workers:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(workers)
    return len(workers)


def python_workers(lake: Lake) -> list[psutil.Process]:
    """The executors' Python processes that copy in these stores, without the daemon that forks them."""
    driver = SharedSpark.of(lake.spark).pid
    found = [one for one in psutil.Process(driver).children(recursive=True) if _is_python_of_test(one)]
    return [one for one in found if _is_python_of_test(one.parent())]


def _is_python_of_test(process: psutil.Process | None) -> bool:
    """Whether it has the keys of this test's stores: tests of other workers copy by the same driver."""
    try:
        return (
            process is not None
            and "pyspark.daemon" in " ".join(process.cmdline())
            and process.environ().get("AWS_ACCESS_KEY_ID") == os.environ["AWS_ACCESS_KEY_ID"]
        )
    except psutil.NoSuchProcess:
        return False


def test_a_plan_is_copied_whole_large_objects_by_parts(lake: Lake, copies: Copies) -> None:
    copies.put(*KEYS, *numbered(60))
    copies.put("t/large.parquet", size_bytes=2 * LIMIT + 1)
    copies.put("t/held.parquet")
    lanes = {"t/large.parquet": {"lane": "large"}, "t/held.parquet": {"lane": "held"}}
    task = copies.task(copies.rows(lambda key: lanes.get(key, {})), copy_limit_bytes=LIMIT)
    told: list[Progress] = []
    record = engine(lake).copy(task, told.append)
    wanted = {key: copies.content(key) for key in (*KEYS, *numbered(60))}
    wanted["t/large.parquet"] = copies.content("t/large.parquet", 2 * LIMIT + 1)
    assert copies.copied() == wanted
    done = done_of(task)
    assert set(done) == set(wanted)
    assert {row["status"] for row in done.values()} == {"succeeded"}
    assert all(row["stored_etag"] for row in done.values())
    size_bytes = sum(len(content) for content in wanted.values())
    assert (record.succeeded, record.failed, record.size_bytes) == (65, 0, size_bytes)
    assert (told[-1].objects, told[-1].objects_of, told[-1].size_bytes) == (65, 65, size_bytes)
    assert record.reports
    for location in record.reports:
        assert copies.target.head(location.removeprefix(f"s3://{task.target.bucket}/")), location


def test_what_was_vacuumed_or_overwritten_since_is_a_failed_row(lake: Lake, copies: Copies) -> None:
    keys = numbered(20)
    copies.put(*keys)
    task = copies.task(copies.rows())
    copies.source.delete(keys[0])
    copies.source.put(keys[1], b"of the day after")
    record = engine(lake).copy(task, nothing)
    done = done_of(task)
    assert (record.succeeded, record.failed) == (18, 2)
    assert (done[keys[0]]["error_code"], done[keys[0]]["http_status"]) == ("NoSuchKey", 404)
    assert (done[keys[1]]["error_code"], done[keys[1]]["http_status"]) == ("PreconditionFailed", 412)
    assert set(copies.copied()) == set(keys[2:])


@pytest.mark.campaign
def test_an_executor_killed_at_random_points_loses_nothing_and_repeats_no_settled_copy(
    copies: Copies,
) -> None:
    """A process that does what an executor does, killed after a random number of copies, again and again."""
    keys, task = many_to_copy(copies, 30 * KILLS)
    work, count = PortionWork(task, "run", SmallBatches()), 3
    with open_results(task.plan, ()) as on:
        write_portions(copies.target, work.prefix, count, on)
    chance, kills, kills_with_ledger = random.Random(7), 0, 0
    settled: Counter[str] = Counter()
    for number in itertools.cycle(range(count)):
        if told_as_copied(copies, task) == {f"objects/{key}" for key in keys}:
            break
        life = chance.randrange(1, 40) if kills < KILLS else None
        executor = FORK.Process(target=an_executor, args=(work, number, life))
        executor.start()
        executor.join()
        if executor.exitcode == -signal.SIGKILL:
            kills += 1
            kills_with_ledger += any(Ledger(copies.target, task.work_prefix, f"run/{number}/").rows())
        settled = require_settled(copies, task, settled)
    assert kills == KILLS
    assert kills_with_ledger > 0
    assert copies.copied() == {key: copies.content(key) for key in keys}
    with open_results(task.plan, Ledger(copies.target, task.work_prefix).rows()) as on:
        told = on.sql("SELECT key, status FROM copies").fetchall()
    assert sorted(told) == [(key, "succeeded") for key in keys]


def test_spark_goes_on_after_its_executors_are_killed(
    lake: Lake, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_steps(monkeypatch, SlowCopies)
    keys, task = many_to_copy(copies, 160)
    killed: list[int] = []
    settled: Counter[str] = Counter()
    told_first: list[int] = []

    def kill(told: Progress) -> None:
        told_first.append(told.objects)
        if len(killed) < 2 and told.objects > told_first[0]:
            killed.append(end_workers(python_workers(lake)[:1]))

    while not task.done.exists():
        told_first.clear()
        with suppress(BackupError):
            engine(lake).copy(task, kill)
        # A task that Spark gives up may go on for a while.
        end_workers(python_workers(lake))
        settled = require_settled(copies, task, settled)
    assert killed == [1, 1]
    assert set(done_of(task)) == set(keys)
    assert copies.copied() == {key: copies.content(key) for key in keys}


@pytest.mark.campaign
@pytest.mark.timeout(120 + 60 * DRIVER_KILLS)
def test_a_run_goes_on_after_its_driver_is_killed(lake: Lake, copies: Copies) -> None:
    keys, task = many_to_copy(copies, OBJECTS_A_LIFE * (DRIVER_KILLS + 1))
    chance = random.Random(11)
    settled: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for kill in range(DRIVER_KILLS + 1):
        if kill == DRIVER_KILLS:
            SparkEngine(lambda: lake.spark, workers=WORKERS, poll_s=0.05).copy(task, nothing)
        else:
            # A driver of its own: in a fork of this process, PySpark would continue the driver of this one.
            run = start_process(a_run, lake.settings, task)
            # Every look lists all objects, while the driver starts for a long time.
            wait_until(lambda times=times: times_copied(copies).total() > times.total(), look_s=1)
            run.join(chance.uniform(0, LIFE_S))
            assert run.is_alive(), "it ended before it was killed"
            end_run(run)
            assert run.exitcode == -signal.SIGKILL
        settled, before = require_settled(copies, task, settled), times
        times = times_copied(copies)
        assert copied_again(times) - copied_again(before) <= WORKERS * (BATCH + IN_FLIGHT)
    assert set(done_of(task)) == set(keys)
    assert copies.copied() == {key: copies.content(key) for key in keys}


def test_a_target_that_is_not_there_is_told(lake: Lake, copies: Copies) -> None:
    copies.put("t/a")
    task = copies.task(copies.rows())
    copies.target.client.delete_bucket(Bucket=task.target.bucket)  # type: ignore[attr-defined]  # an S3Store
    with pytest.raises(BackupError, match=task.target.bucket):
        engine(lake).copy(task, nothing)
    assert not task.done.exists()


def test_a_cancelled_copy_ends_and_the_next_run_goes_on(
    lake: Lake, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = numbered(100)
    copies.put(*keys)
    task, running = copies.task(copies.rows(), in_flight=2), engine(lake)

    def cancel(told: Progress) -> None:
        if told.objects:
            running.cancel(task)

    with monkeypatch.context() as slowly:
        in_small_steps(slowly, SlowCopies)
        with pytest.raises(BackupError):
            running.copy(task, cancel)
    assert not task.done.exists()
    assert 0 < len(copies.copied()) < len(keys)
    assert engine(lake).copy(task, nothing).succeeded == len(keys)
    assert set(copies.copied()) == set(keys)
