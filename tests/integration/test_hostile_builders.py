"""Spark still writes and reads the hostile tables as they are recorded: a few of them in CI, all in the campaign.

The builders and the record: tests/builders/hostile.
"""

from pathlib import Path
from random import Random

import pytest

from lakeshare_pipelines.wap.staged import Lake
from tests.builders.campaign import campaign_size
from tests.builders.canonical import same_rows
from tests.builders.hostile.families import TABLES
from tests.builders.hostile.matrix import make, unpack
from tests.builders.hostile.place import HostileTable

NAMES = Random("hostile").sample(sorted(TABLES), campaign_size(in_ci=2, in_campaign=len(TABLES)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, HostileTable]:
    return unpack(tmp_path_factory.mktemp("recorded"))


@pytest.mark.campaign
@pytest.mark.parametrize("name", NAMES)
def test_spark_writes_and_reads_a_table_as_recorded(
    lake: Lake, recorded: dict[str, HostileTable], tmp_path: Path, name: str
) -> None:
    plan, wanted = TABLES[name], recorded[name]
    (tmp_path / "tables").mkdir()
    found = make(lake.spark, tmp_path, plan)
    assert found.latest == wanted.latest
    for version in plan.versions:
        same_rows(found.rows(version), wanted.rows(version), f"version {version}")
    for start, end in plan.cdf:
        changes, expected = (
            table.changes(start, end).without("_commit_timestamp") for table in (found, wanted)
        )
        same_rows(changes, expected, f"changes {start} to {end}")
