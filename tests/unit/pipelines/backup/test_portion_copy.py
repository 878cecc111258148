"""A portion can be begun any number of times, by several at once: its rows are copied and told once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakeshare_pipelines.backup.copy.engine import CopyTask, Ledger, open_results
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.spark import PortionWork, SparkEngine, write_portions
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from tests.builders.backup_buckets import Copies, done_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"t/{number:04}.parquet" for number in range(600)]


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    source, target = (open_store(StoreAddress(url=str(tmp_path / end))) for end in ("source", "target"))
    plans = tmp_path / "plans"
    plans.mkdir()
    made = Copies(source, target, plans)
    made.put(*KEYS)
    return made


def work_of(copies: Copies, task: CopyTask, run: str = "first") -> PortionWork:
    """A run whose three portions are written."""
    work = PortionWork(task, run, LocalEngine())
    with open_results(task.plan, Ledger(copies.target, task.work_prefix).rows()) as on:
        write_portions(copies.target, work.prefix, 3, on)
    return work


def told(copies: Copies, task: CopyTask) -> list[tuple[str, str]]:
    with open_results(task.plan, Ledger(copies.target, task.work_prefix).rows()) as on:
        return sorted(on.sql("SELECT key, status FROM copies").fetchall())


def test_portions_together_are_the_plan(copies: Copies) -> None:
    work = work_of(copies, copies.task(copies.rows()))
    for number in range(3):
        work.copy(number)
    assert told(copies, work.task) == [(key, "succeeded") for key in KEYS]
    assert copies.copied() == {key: copies.content(key) for key in KEYS}


def test_two_executors_at_one_portion_do_no_harm(copies: Copies) -> None:
    work = work_of(copies, copies.task(copies.rows()))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work.copy, [0, 1, 2, 0, 1, 2]))
    assert told(copies, work.task) == [(key, "succeeded") for key in KEYS]
    assert copies.copied() == {key: copies.content(key) for key in KEYS}


def test_a_later_run_tries_only_failed_rows_again(copies: Copies) -> None:
    task = copies.task(copies.rows())
    copies.source.delete(KEYS[0])
    for run in ("first", "second"):
        work = work_of(copies, task, run)
        for number in range(3):
            work.copy(number)
        assert told(copies, task) == [(KEYS[0], "failed"), *((key, "succeeded") for key in KEYS[1:])]
        rows = [
            row["key"]
            for table in Ledger(copies.target, task.work_prefix, f"{run}/").rows()
            for row in table.to_pylist()
        ]
        assert sorted(rows) == (KEYS if run == "first" else KEYS[:1])


def test_a_day_without_changes_starts_no_spark(copies: Copies) -> None:
    task = copies.task(copies.rows(lambda _: {"lane": "held"}))

    def never() -> "SparkSession":
        raise AssertionError("Spark is opened")

    assert SparkEngine(never).copy(task, print).succeeded == 0
    assert done_of(task) == {}
