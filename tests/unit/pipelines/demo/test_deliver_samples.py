"""`deliver` puts real flights into landing: whole, cut, or spoilt on purpose, and the same again when asked again."""

import csv
import gzip
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo.processes import CORRUPT_EVERY, NULL_EVERY, deliver
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import Delivery, find_deliveries
from lakeshare_pipelines.settings import LakeSettings

FLIGHTS, REFERENCE = load_contracts()
FIRST_DAY_ROWS = 842


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path)


def rows_of(delivery: Delivery, table: str = "departures") -> list[dict[str, str]]:
    with gzip.open(Path(delivery.location) / f"{table}.csv.gz", "rt", newline="") as file:
        return list(csv.DictReader(file))


def test_a_day_of_flights_is_delivered_whole(settings: LakeSettings) -> None:
    delivery = deliver(settings, FLIGHTS, partition="2013-01-01")
    rows = rows_of(delivery)
    assert delivery.complete
    assert len(rows) == FIRST_DAY_ROWS
    assert {(row["year"], row["month"], row["day"]) for row in rows} == {("2013", "1", "1")}
    assert rows[0]["tailnum"] == "N14228"


def test_the_reference_tables_are_delivered_together(settings: LakeSettings) -> None:
    delivery = deliver(settings, REFERENCE, partition="all")
    counts = {table: len(rows_of(delivery, table)) for table in ("airlines", "airports", "planes", "weather")}
    assert counts == {"airlines": 16, "airports": 1458, "planes": 3322, "weather": 26115}


def test_the_same_delivery_again_is_the_same_content_and_another_replaces_it(settings: LakeSettings) -> None:
    first = deliver(settings, FLIGHTS, partition="2013-01-01")
    again = deliver(settings, FLIGHTS, partition="2013-01-01")
    other = deliver(settings, FLIGHTS, partition="2013-01-01", rows=5)
    assert first.digest == again.digest != other.digest
    assert [found.digest for found in find_deliveries(settings, FLIGHTS)] == [other.digest]
    assert [entry.name for entry in (Path(settings.landing_root) / "flights").iterdir()] == ["2013-01-01"]


def test_rows_keeps_the_first_rows_of_each_table(settings: LakeSettings) -> None:
    assert len(rows_of(deliver(settings, FLIGHTS, partition="2013-01-02", rows=7))) == 7
    small = deliver(settings, REFERENCE, partition="all", rows=20)
    assert (len(rows_of(small, "airlines")), len(rows_of(small, "planes"))) == (16, 20)
    assert rows_of(deliver(settings, FLIGHTS, partition="2013-01-02", rows=0)) == []


def test_nulls_empties_every_tenth_value_of_a_column(settings: LakeSettings) -> None:
    rows = rows_of(deliver(settings, FLIGHTS, partition="2013-01-01", rows=25, nulls=["carrier"]))
    assert [number for number, row in enumerate(rows) if row["carrier"] == "NA"] == [
        0,
        NULL_EVERY,
        2 * NULL_EVERY,
    ]


def test_corrupt_spoils_every_twentieth_row_in_two_ways(settings: LakeSettings) -> None:
    rows = rows_of(deliver(settings, FLIGHTS, partition="2013-01-01", rows=41, corrupt=True))
    assert rows[0]["year"] == "?"
    assert rows[CORRUPT_EVERY]["time_hour"] is None
    assert sum(row["year"] == "?" or row["time_hour"] is None for row in rows) == 3


@pytest.mark.parametrize(
    ("partition", "asked", "reason"),
    [
        ("2014-06-01", {}, r"there are no flights on 2014-06-01.*2013-01-01 to 2013-12-31"),
        ("yesterday", {}, "'yesterday' is no partition"),
        ("2013-01-01", {"nulls": ["carier"]}, "no column 'carier'.*'carrier'"),
    ],
)
def test_what_cannot_be_delivered_is_refused_with_a_remedy(
    settings: LakeSettings, partition: str, asked: dict[str, object], reason: str
) -> None:
    with pytest.raises(DeliveryError, match=reason):
        deliver(settings, FLIGHTS, partition=partition, **asked)  # type: ignore[arg-type]  # options vary by case
    assert find_deliveries(settings, FLIGHTS) == []
