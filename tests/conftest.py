"""For all tests: many queries on few rows, so neither the driver nor Spark compiles much for any of them."""

import os

import pytest

from lakeshare_pipelines.settings import SHORT_RUNS

INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"

os.environ.setdefault("LAKESHARE_SPARK_DRIVER_OPTIONS", f"{SHORT_RUNS} {INTERPRETED}")

# It makes what others need as well, which takes minutes: begun first, nobody waits for it.
FIRST = "test_hostile_tables.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep two workers from waiting for the same thing at the same time."""
    items.sort(key=lambda item: item.path.name != FIRST)
