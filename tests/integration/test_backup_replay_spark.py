"""Spark's replay of a copied log tells the same complete versions as the one in memory."""

from pathlib import Path

import pytest

from lakeshare_pipelines.backup.verify.delta import assess, make_spark_replay, replay_locally
from lakeshare_pipelines.wap.staged import Lake
from tests.builders.backup_lakes import AS_OF
from tests.builders.backup_replays import CASES, Case, copied

# Each takes Spark seconds: those that the two forms do in code of their own.
OWN = (
    "a lost file spoils exactly the versions of its interval",
    "a file that comes back has two intervals",
    "a vector is lost",
    "a checkpoint of version 2 in Parquet",
    "a commit is cut off",
    "a commit removes a file and adds it",
    "files of another table",
)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in OWN], ids=lambda case: case.name)
def test_spark_tells_what_is_told_in_memory(lake: Lake, case: Case, tmp_path: Path) -> None:
    copy = copied(case, tmp_path)
    here, there = assess(copy, AS_OF, replay_locally), assess(copy, AS_OF, make_spark_replay(lake.spark))
    assert sorted(count.version for count in there.complete) == case.complete
    assert there.complete == here.complete
    assert there.needs == here.needs
    assert there.counts == here.counts
