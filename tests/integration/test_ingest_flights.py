"""The real data of 2013 arrive in Spark as they stand in the files: every row, every value."""

from pathlib import Path

import pandas as pd
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo.processes import data_folder, deliver
from lakeshare_pipelines.ingest.frame import TableFrame, read_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake

FLIGHTS, REFERENCE = load_contracts()


@pytest.fixture
def landing(tmp_path: Path) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path)


@pytest.fixture(scope="module")
def reference_tables(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TableFrame]:
    landing = LakeSettings(_env_file=None, state_dir=tmp_path_factory.mktemp("landing"))
    delivered = read_delivery(lake.spark, REFERENCE, [deliver(landing, REFERENCE, partition="all")])
    return {name: table.read() for name, table in delivered.items()}


def source(name: str) -> pd.DataFrame:
    """A data file of the package, read by pandas."""
    folder = data_folder()
    assert folder is not None
    return pd.read_csv(
        folder / name, keep_default_na=False, na_values=["NA", ""], parse_dates=_dates_of(name)
    )


def _dates_of(name: str) -> list[str]:
    return ["time_hour"] if name.startswith(("flights", "weather")) else []


def same_rows(found: pd.DataFrame, wanted: pd.DataFrame, key: list[str]) -> None:
    """Compare after sorting; numbers are compared as numbers, whether pandas made them integers or floats."""
    wanted = wanted[list(found.columns)]
    if "time_hour" in wanted:
        wanted = wanted.assign(time_hour=wanted["time_hour"].dt.tz_localize(None))
    left, right = (
        frame.sort_values(key)
        .reset_index(drop=True)
        .astype(object)
        .where(lambda values: values.notna(), None)
        for frame in (found, wanted)
    )
    pd.testing.assert_frame_equal(left, right, check_dtype=False, check_datetimelike_compat=True)


def test_days_in_one_reading_equal_the_file(lake: Lake, landing: LakeSettings) -> None:
    days = [f"2013-02-{day:02}" for day in range(1, 4)]
    deliveries = [deliver(landing, FLIGHTS, partition=day) for day in days]
    table = read_delivery(lake.spark, FLIGHTS, deliveries)["flights.departures"].read()
    assert (table.rejected, table.problems) == (None, ())
    found = table.frame.toPandas()
    assert sorted(found["flight_date"].astype(str).unique()) == days
    whole = source("flights.csv.zip")
    wanted = whole[(whole.month == 2) & (whole.day <= len(days))]
    same_rows(found.drop(columns="flight_date"), wanted, ["month", "day", "carrier", "flight", "origin"])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("airlines", ["carrier"]),
        ("airports", ["faa"]),
        ("planes", ["tailnum"]),
        ("weather", ["origin", "time_hour"]),
    ],
)
def test_a_reference_table_equals_its_file(
    reference_tables: dict[str, TableFrame], name: str, key: list[str]
) -> None:
    table = reference_tables[f"reference.{name}"]
    assert (table.rejected, table.problems) == (None, ())
    same_rows(table.frame.toPandas(), source(f"{name}.csv"), key)


def test_a_spoilt_delivery_counts_its_bad_rows(lake: Lake, landing: LakeSettings) -> None:
    delivery = deliver(landing, FLIGHTS, partition="2013-01-01", rows=100, corrupt=True, nulls=["carrier"])
    table = read_delivery(lake.spark, FLIGHTS, [delivery])["flights.departures"].read()
    assert (table.rejected_rows, table.frame.count()) == (5, 95)
    assert table.rejected is not None
    assert sorted(row.line for row in table.rejected.collect()) == [2, 22, 42, 62, 82]
    assert table.frame.where("carrier IS NULL").count() == 5
