"""Keys of partitions: one spelling each, the values that belong to them, and the partitions of other sets."""

import datetime as dt
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.contracts.partitioning import (
    HOUR,
    Kind,
    Partitioning,
    SecondDimension,
    has_whole_hours,
    has_written,
)
from lakeshare_pipelines.errors import ContractError, DeliveryError
from lakeshare_pipelines.ingest.delivery import require_in_time

HOURLY = Partitioning("hourly", "2024-01-01-00", "Europe/Berlin")
DAILY = Partitioning("daily", "2024-01-01", "Europe/Berlin")
WEEKLY = Partitioning("weekly", "2024-01-01")
MONTHLY = Partitioning("monthly", "2024-01-01")
STATIC = Partitioning("static", values=("eu", "us-east.1"))
DYNAMIC = Partitioning("dynamic")
CELLS = Partitioning("daily", "2024-01-01", second=SecondDimension("region", ("eu", "us", "apac")))
OPEN_CELLS = Partitioning("weekly", "2024-01-01", second=SecondDimension("region"))


@pytest.mark.parametrize(
    ("partitioning", "key", "is_key"),
    [
        (HOURLY, "2024-01-01-13", True),
        (HOURLY, "2024-01-01-13:00", False),
        (HOURLY, "2024-01-01T13", False),
        (HOURLY, "2024-01-01", False),
        (HOURLY, "2024-01-01-24", False),
        (HOURLY, "2024-01-01-1", False),
        (HOURLY, "2023-12-31-23", False),
        # Clocks are set forward: 02:00 does not exist. They are set back: 02:00 is twice.
        (HOURLY, "2024-03-31-02", False),
        (HOURLY, "2024-03-31-03", True),
        (HOURLY, "2024-10-27-02", True),
        (HOURLY, "2024-10-27-02+0100", True),
        (HOURLY, "2024-10-27-02+0200", False),
        (HOURLY, "2024-10-27-03+0100", False),
        (DAILY, "2024-02-29", True),
        (DAILY, "2023-02-29", False),
        (DAILY, "20240229", False),
        (DAILY, "2024-W09-4", False),
        (DAILY, "٢٠٢٤-02-29", False),
        (WEEKLY, "2024-01-08", True),
        (WEEKLY, "2024-01-09", False),
        (MONTHLY, "2024-02-01", True),
        (MONTHLY, "2024-02", False),
        (MONTHLY, "2024-02-02", False),
        (STATIC, "eu", True),
        (STATIC, "EU", False),
        (STATIC, "de", False),
        (DYNAMIC, "anything_1", True),
        (DYNAMIC, "all", False),
        (DYNAMIC, "a...b", False),
        (DYNAMIC, "a/b", False),
        (DYNAMIC, "_hidden", False),
        (DYNAMIC, "", False),
        (DYNAMIC, "x" * 101, False),
        (CELLS, "2024-02-29/us", True),
        (CELLS, "2024-02-29/mars", False),
        (CELLS, "2023-02-29/us", False),
        (CELLS, "2024-02-29", False),
        (CELLS, "2024-02-29/us/x", False),
        (CELLS, "2024-02-29/*", False),
        (OPEN_CELLS, "2024-01-08/mars", True),
        (OPEN_CELLS, "2024-01-09/mars", False),
        (OPEN_CELLS, "2024-01-08/", False),
        (Partitioning(), "all", True),
        (Partitioning(), "2024-01-01", False),
    ],
)
def test_a_partition_has_one_name(partitioning: Partitioning, key: str, is_key: bool) -> None:
    assert partitioning.is_key(key) is is_key


@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Asia/Beirut"]
)
@pytest.mark.parametrize("kind", ["hourly", "daily", "weekly", "monthly"])
def test_windows_follow_each_other_and_have_the_times_of_their_key(kind: Kind, zone: str) -> None:
    partitioning = Partitioning(kind, "2024-01-01-00" if kind == "hourly" else "2024-01-01", zone)
    last = {"hourly": "2024-12-31-23", "weekly": "2024-12-30", "monthly": "2024-12-01"}.get(
        kind, "2024-12-31"
    )
    keys = partitioning.list_keys(str(partitioning.first), last)
    assert len(keys) == {"hourly": 8784, "daily": 366, "weekly": 53, "monthly": 12}[kind]
    assert len(set(keys)) == len(keys)
    ends = dt.datetime(2024, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)
    for key in keys:
        assert partitioning.is_key(key)
        start, end = partitioning.get_window(key)
        assert start == ends < end
        assert (
            partitioning.find_key(start) == partitioning.find_key(end - dt.timedelta(microseconds=1)) == key
        )
        ends = end
    assert partitioning.merge_windows(keys[::-1]) == [(partitioning.get_window(keys[0])[0], ends)]


def test_days_of_months_and_weeks_and_hours_of_days_when_clocks_change() -> None:
    assert [len(MONTHLY.list_days(f"2024-{month:02}-01")) for month in (1, 2, 4)] == [31, 29, 30]
    assert MONTHLY.list_days("2024-02-01")[-1] == dt.date(2024, 2, 29)
    assert WEEKLY.find_key(dt.date(2024, 3, 3)) == "2024-02-26"
    assert MONTHLY.find_key(dt.date(2024, 3, 31)) == "2024-03-01"
    assert STATIC.find_key("eu") == "eu"
    start, end = DAILY.get_window("2024-03-31")
    assert (end - start) / HOUR == 23
    start, end = DAILY.get_window("2024-10-27")
    assert (end - start) / HOUR == 25
    hours = DAILY.map_key("2024-10-27", HOURLY)
    assert hours[2:5] == ("2024-10-27-02", "2024-10-27-02+0100", "2024-10-27-03")
    assert STATIC.list_keys("eu", "us-east.1") == STATIC.values
    for first, last in (("2024-01-02", "2024-01-01"), ("2024-01-01", "2024-1-2")):
        with pytest.raises(ValueError, match=r"2024-01-0\d\.\.\.2024"):
            DAILY.list_keys(first, last)


def test_keys_are_mapped_to_the_partitions_of_another_set() -> None:
    days = Partitioning("daily", "2024-01-03")
    assert Partitioning("hourly", "2024-01-01-00").map_key("2024-02-05-23", days) == ("2024-02-05",)
    assert days.map_key("2024-02-05", MONTHLY) == ("2024-02-01",)
    assert len(MONTHLY.map_key("2024-02-01", days)) == 29
    assert WEEKLY.map_key("2024-01-29", MONTHLY) == ("2024-01-01", "2024-02-01")
    # Days before the first one of the other set are none of its partitions.
    assert MONTHLY.map_key("2024-01-01", days)[0] == "2024-01-03"
    # A day in Berlin has hours of two days in UTC.
    assert DAILY.map_key("2024-02-05", days) == ("2024-02-04", "2024-02-05")
    assert STATIC.map_key("eu", DYNAMIC) == ("eu",)
    assert DYNAMIC.map_key("asia", STATIC) == ()
    assert STATIC.map_key("eu", days) == ()
    assert not STATIC.can_map(days)
    assert not days.can_map(Partitioning())


@pytest.mark.parametrize(
    ("partitioning", "column_type", "transform", "can"),
    [
        (Partitioning("hourly"), "timestamp", "hour", True),
        (Partitioning("hourly"), "timestamp", "day", False),
        (Partitioning("hourly"), "string", "identity", True),
        (Partitioning("daily"), "timestamp", "day", True),
        (Partitioning("daily"), "timestamp", "month", False),
        (Partitioning("daily"), "string", "identity", False),
        (DAILY, "timestamp", "day", False),
        (DAILY, "timestamp", "hour", True),
        (WEEKLY, "date", "month", False),
        (WEEKLY, "date", "day", True),
        (MONTHLY, "date", "month", True),
        (STATIC, "string", "identity", True),
        (STATIC, "int", "identity", False),
    ],
)
def test_files_have_rows_of_one_partition(
    partitioning: Partitioning, column_type: str, transform: str, can: bool
) -> None:
    assert partitioning.can_divide(column_type, transform) is can


def test_partitions_of_two_dimensions_are_ranges_and_mapped_by_each() -> None:
    cells = CELLS.list_keys("2024-01-31/us", "2024-02-01/apac")
    assert cells == ("2024-01-31/us", "2024-01-31/apac", "2024-02-01/us", "2024-02-01/apac")
    with pytest.raises(ValueError, match="no range of names"):
        OPEN_CELLS.list_keys("2024-01-08/eu", "2024-01-08/us")
    days = Partitioning("daily", "2024-01-01")
    assert CELLS.get_window("2024-02-01/us") == days.get_window("2024-02-01")
    assert CELLS.map_key("2024-02-01/us", days) == ("2024-02-01",)
    assert CELLS.map_key("2024-02-01/eu", STATIC) == ("eu",)
    assert CELLS.map_key("2024-02-01/apac", STATIC) == ()
    assert CELLS.map_key("2024-01-10/eu", OPEN_CELLS) == ("2024-01-08/eu",)
    assert OPEN_CELLS.map_key("2024-01-08/us", CELLS)[::6] == ("2024-01-08/us", "2024-01-14/us")
    assert OPEN_CELLS.map_key("2024-01-08/mars", CELLS) == ()
    assert days.map_key("2024-02-01", CELLS) == ("2024-02-01/*",)
    assert not STATIC.can_map(CELLS)
    assert has_written(["2024-02-01/*"], {"2024-02-01/eu"})
    assert not has_written(["2024-02-01/*"], {"2024-02-02/eu"})
    assert CELLS.describe() == "daily, from 2024-01-01, by region (eu, us, apac)"


def test_zones_with_half_hours_have_no_full_hours() -> None:
    assert has_whole_hours("America/New_York")
    assert not has_whole_hours("Asia/Kolkata")
    assert not has_whole_hours("Australia/Lord_Howe")


CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: visits
name: visits
version: 1.0.0
status: active
servers: [{{server: lake, type: local, path: warehouse, format: {format}}}]
schema:
  - name: t
    physicalName: visits.t
    customProperties: [{{property: source, value: t}}]
    properties:
      - name: at
        physicalType: {column}
        partitioned: true
        customProperties: [{{property: partitionTransform, value: {transform}}}]
customProperties:
  - {{property: partitioning, value: {partitioning}}}
"""


def load(
    folder: Path, partitioning: str, column: str = "string", transform: str = "identity", first: str = ""
) -> SetContract:
    text = CONTRACT.format(format="iceberg", partitioning=partitioning, column=column, transform=transform)
    if first:
        text += f'  - {{property: firstPartition, value: "{first}"}}\n'
    path = folder / "visits.yaml"
    path.write_text(text)
    return load_contract(path)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            ("{kind: daily, timeZone: Europe/Berlyn}", "date", "day", "2024-01-01"),
            "timeZone 'Europe/Berlyn' is not known. Did you mean 'Europe/Berlin'?",
        ),
        (
            ("{kind: hourly, timeZone: Asia/Kolkata}", "timestamp", "hour", "2024-01-01-00"),
            "'Asia/Kolkata' has hours that begin within hours of UTC",
        ),
        (
            ("{kind: daily, timeZone: Europe/Berlin}", "timestamp", "day", "2024-01-01"),
            "Give the column partitionTransform: hour",
        ),
        (("{static: [eu, EU]}",), "static has 'eu' 2 times"),
        (("{static: [all]}",), "static cannot have 'all'"),
        (("{static: [a/b]}",), "static cannot have 'a/b'"),
        (("{static: [eu], kind: daily}",), "it has both kind and static"),
        (("{static: [eu], timeZone: Europe/Berlin}",), "static partitions have no timeZone"),
        (("{kind: dynamic, latenessHours: 4}",), "dynamic partitions have no latenessHours"),
        (("{kind: daily, second: {static: [eu]}}", "date", "day", "2024-01-01"), "second.column"),
        (("{kind: daily, second: {column: region}}", "date", "day", "2024-01-01"), "either static or kind"),
        (("{static: [eu], second: {column: region, kind: dynamic}}",), "static partitions have no second"),
        (
            ("{kind: daily, second: {column: region, static: [eu, eu/x]}}", "date", "day", "2024-01-01"),
            "static cannot have 'eu/x'",
        ),
        (
            ("{kind: daily, second: {column: region, static: [eu]}}", "date", "day", "2024-01-01"),
            "the set is divided by region, but t is not partitioned by it second",
        ),
        (
            ("weekly", "date", "day", "2024-01-02"),
            "firstPartition cannot be '2024-01-02'. Give the Monday of a week",
        ),
        (("monthly", "date", "month"), "a monthly set needs firstPartition"),
        (("dynamic", "string", "identity", "2024-01-01"), "firstPartition cannot be '2024-01-01'"),
        (("dynamic", "int"), "Mark a column of type string as partitioned"),
        (("static", "string"), "cannot be 'static'"),
        (("{kind: daily, endOffset: -1}", "date", "day", "2024-01-01"), "endOffset: cannot be -1"),
    ],
)
def test_faults_of_partitioning_have_a_remedy(tmp_path: Path, given: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ContractError) as caught:
        load(tmp_path, *given)
    assert problem in str(caught.value)


def test_a_set_of_two_dimensions_has_a_first_day(tmp_path: Path) -> None:
    second = "{kind: daily, second: {column: region, static: [eu, us]}}"
    path = tmp_path / "visits.yaml"
    text = CONTRACT.format(format="iceberg", partitioning=second, column="date", transform="day")
    region = "      - {name: region, logicalType: string, partitioned: true, partitionKeyPosition: 2}\n"
    last = text.index("customProperties:\n  - {property: partitioning")
    path.write_text(
        f'{text[:last]}{region}{text[last:]}  - {{property: firstPartition, value: "2024-01-01"}}\n'
    )
    contract = load_contract(path)
    expected = Partitioning("daily", "2024-01-01", second=SecondDimension("region", ("eu", "us")))
    assert contract.partitioning == expected
    assert contract.is_partition("2024-01-01/eu")
    assert not contract.is_partition("2023-12-31/eu")
    path.write_text(path.read_text().replace('"2024-01-01"', '"2024-01-01/eu"'))
    with pytest.raises(ContractError, match="cannot be '2024-01-01/eu'"):
        load_contract(path)


def test_a_delivery_after_the_lateness_window_is_refused(tmp_path: Path) -> None:
    given = "{kind: hourly, timeZone: America/New_York, latenessHours: 6, endOffset: 2}"
    contract = load(tmp_path, given, "timestamp", "hour", "2024-01-01-00")
    assert contract.partitioning == Partitioning("hourly", "2024-01-01-00", "America/New_York", 2, 6)
    # 13:00 to 14:00 in New York is 18:00 to 19:00 UTC.
    now = dt.datetime(2024, 1, 2, 0, 59, tzinfo=dt.UTC)
    require_in_time(contract, ["2024-01-01-13"], now)
    with pytest.raises(DeliveryError) as caught:
        require_in_time(contract, ["2024-01-01-14", "2024-01-01-13"], now + dt.timedelta(minutes=1))
    assert "ended at 2024-01-01 19:00 UTC" in str(caught.value)
    assert "Raise latenessHours" in str(caught.value)
    assert "lakeshare/late: allow" in str(caught.value)
    with pytest.raises(
        DeliveryError, match=r"is no partition of set visits\. Give an hour from 2024-01-01-00 on"
    ):
        require_in_time(contract, ["2024-01-01-13:00"], now)
    always = load(tmp_path, "hourly", "timestamp", "hour", "2024-01-01-00")
    require_in_time(always, ["2024-01-01-00"], dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
