"""A portion can be begun any number of times, by several at once: its rows are copied and told once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.copy.spark import (
    Portions,
    PortionWork,
    SparkEngine,
    load_or_make_portions,
    read_done_rows,
)
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


def work_of(copies: Copies, task: CopyTask) -> PortionWork:
    return PortionWork(task, load_or_make_portions(copies.target, "work/spark/", task.plan, 8), LocalEngine())


def told(copies: Copies, portions: Portions) -> list[tuple[str, str]]:
    rows = (row for table in read_done_rows(copies.target, portions) for row in table.to_pylist())
    return sorted((row["key"], row["status"]) for row in rows)


def test_portions_together_are_the_plan(copies: Copies) -> None:
    work = work_of(copies, copies.task(copies.rows()))
    assert work.portions.count == 3
    records = [work.copy(number) for number in range(work.portions.count)]
    assert sum(record.succeeded for record in records) == len(KEYS)
    assert told(copies, work.portions) == [(key, "succeeded") for key in KEYS]
    assert copies.copied() == {key: copies.content(key) for key in KEYS}


def test_two_executors_at_one_portion_do_no_harm(copies: Copies) -> None:
    work = work_of(copies, copies.task(copies.rows()))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work.copy, [0, 1, 2, 0, 1, 2]))
    assert told(copies, work.portions) == [(key, "succeeded") for key in KEYS]
    assert copies.copied() == {key: copies.content(key) for key in KEYS}


def test_a_portion_that_is_copied_is_left_alone_and_failed_rows_are_tried_again(copies: Copies) -> None:
    work = work_of(copies, copies.task(copies.rows()))
    copies.source.delete(KEYS[0])
    first = [work.copy(number) for number in range(3)]
    (lacking,) = [number for number, record in enumerate(first) if record.failed]
    before = {one.key: one.last_modified for one in copies.target.list("objects/")}
    again = [work.copy(number) for number in range(3)]
    assert [number for number in range(3) if again[number] != first[number]] == [lacking]
    assert {one.key: one.last_modified for one in copies.target.list("objects/")} == before
    assert told(copies, work.portions) == [(KEYS[0], "failed"), *((key, "succeeded") for key in KEYS[1:])]


def test_a_day_without_changes_starts_no_spark(copies: Copies) -> None:
    task = copies.task(copies.rows(lambda _: {"lane": "held"}))

    def never() -> "SparkSession":
        raise AssertionError("Spark is opened")

    assert SparkEngine(never).copy(task, print).succeeded == 0
    assert done_of(task) == {}


def test_how_many_portions_there_are_does_not_change(copies: Copies) -> None:
    task = copies.task(copies.rows())
    made = load_or_make_portions(copies.target, "work/spark/", task.plan, 8)
    assert load_or_make_portions(copies.target, "work/spark/", task.plan, 1) == made
