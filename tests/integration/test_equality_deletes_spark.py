"""Spark reads of tables with equality deletes exactly the rows that are left by our vectors: Spark is the judge."""

import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.locations import local_path
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from tests.builders.campaign import campaign_size
from tests.builders.equality_tables import EqualityTable
from tests.builders.random_equality import a_random_table, deleted_rows, random_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rows_left(spark: "SparkSession", location: str) -> dict[str, set[int]]:
    """The rows of each data file that Spark reads."""
    found: dict[str, set[int]] = defaultdict(set)
    for row in spark.read.format("iceberg").load(location).select("*", "_file", "_pos").collect():
        found[local_path(row["_file"])].add(row["_pos"])
    return found


def left(table: EqualityTable, deleted: dict[str, list[int]]) -> dict[str, set[int]]:
    every = {file.path: set(range(len(file.rows))) - set(deleted.get(file.path, ())) for file in table.data}
    return {path: rows for path, rows in every.items() if rows}


@pytest.mark.campaign
def test_random_tables(lake: Lake, tmp_path: Path) -> None:
    stores = Stores(StoreSettings(_env_file=None))
    spark = lake.spark.newSession()
    for seed in range(campaign_size(in_ci=3, in_campaign=300)):
        dice = random.Random(seed)
        table = a_random_table(dice, tmp_path / str(seed))
        *_, location = random_versions(dice, table)
        assert left(table, deleted_rows(location, stores)) == rows_left(spark, location), f"seed {seed}"
