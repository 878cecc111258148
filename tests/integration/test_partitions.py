"""Partitions of every kind: a run replaces the rows of its own in both formats, and rows of others are found."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.contracts.model import Drift, Write
from lakeshare_pipelines.contracts.partitioning import Partitioning, SecondDimension
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import find_deliveries, find_deliveries_of_run
from lakeshare_pipelines.ingest.frame import read_delivery
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.spark.rows import filter_partitions, make_key_column
from lakeshare_pipelines.spark.session import count_cores, make_catalog_name
from lakeshare_pipelines.wap.audit import TableAudit, audit
from lakeshare_pipelines.wap.iceberg import FANOUT, get_properties
from lakeshare_pipelines.wap.stage import staging_for
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog
from tests.builders.audits import a_set, stage_rows
from tests.builders.sets import green
from tests.builders.write_modes import Change, a_set_of_modes, deliver, read_main, stage_without_reading

BERLIN = "Europe/Berlin"


@dataclass(frozen=True)
class Case:
    """A set with one table; `before` are values of its two partitions, `changed` one of the first."""

    partitioning: Partitioning
    column: Column
    transform: str
    keys: tuple[str, str]
    before: tuple[str, ...]
    changed: str

    def make_set(self, table_format: str) -> SetContract:
        transform = self.transform if table_format == "iceberg" else "identity"
        columns = (self.column, Column("id", "int"))
        table = Table("t", table_format, columns, ((self.column.name, transform),), source="t")  # type: ignore[arg-type]
        return replace(a_set(table), partitioning=self.partitioning)


MONTHS = Case(
    Partitioning("monthly", "2024-01-01"),
    Column("day", "date"),
    "month",
    ("2024-01-01", "2024-02-01"),
    ("2024-01-01", "2024-01-31", "2024-02-01", "2024-02-29"),
    "2024-01-15",
)
REGIONS = Case(
    Partitioning("static", values=("eu", "us-1")),
    Column("region", "string"),
    "identity",
    ("eu", "us-1"),
    ("eu", "us-1"),
    "eu",
)
HOURS = Case(
    # 02:00 is twice on this day.
    Partitioning("hourly", "2024-01-01-00", BERLIN),
    Column("at", "timestamp"),
    "hour",
    ("2024-10-27-02", "2024-10-27-02+0100"),
    ("2024-10-27 00:00:00", "2024-10-27 00:59:59", "2024-10-27 01:00:00"),
    "2024-10-27 00:30:00",
)
LABELLED_HOURS = Case(
    Partitioning("hourly", "2024-01-01-00"),
    Column("hour", "string"),
    "identity",
    ("2024-01-01-00", "2024-01-01-01"),
    ("2024-01-01-00", "2024-01-01-01"),
    "2024-01-01-00",
)


@pytest.mark.parametrize(
    ("case", "table_format"),
    [
        (MONTHS, "iceberg"),
        (MONTHS, "delta"),
        (REGIONS, "iceberg"),
        (HOURS, "iceberg"),
        (LABELLED_HOURS, "delta"),
    ],
    ids=["months-iceberg", "months-delta", "regions-iceberg", "hours-iceberg", "hours-delta"],
)
def test_a_run_replaces_its_partitions_and_no_others(
    lake: Lake, catalog: Catalog, case: Case, table_format: str
) -> None:
    contract = case.make_set(table_format)
    values = [(value, number) for number, value in enumerate(case.before)]
    _publish(lake, catalog, contract, case.keys, values, case)
    first = [(value, number) for value, number in values if _key(case, value) == case.keys[0]]
    changed = [(case.changed, 100)]
    _publish(lake, catalog, contract, case.keys[:1], changed, case)
    expected = sorted({*values} - {*first} | {*changed})
    assert [(str(row[0])[:19], row[1]) for row in read_main(lake, contract, "t")] == expected


CELLS = ("2024-01-01/eu", "2024-01-01/us", "2024-01-02/eu", "2024-01-02/us")


def _make_region_set(table_format: str) -> SetContract:
    columns = (Column("day", "date"), Column("region", "string"), Column("id", "int"))
    by = (("day", "identity"), ("region", "identity"))
    table = Table("t", table_format, columns, by, source="t", drift=Drift(max_shrink_fraction=0.5))  # type: ignore[arg-type]
    partitioning = Partitioning("daily", "2024-01-01", second=SecondDimension("region", ("eu", "us")))
    return replace(a_set(table), partitioning=partitioning)


def _publish_cells(lake: Lake, catalog: Catalog, contract: SetContract, run: str, **ids: int) -> None:
    """Publishes a row with an id for each cell, named as `d1_eu`."""
    cells = {f"2024-01-0{name[1]}/{name[3:]}": number for name, number in ids.items()}
    staged = stage_rows(lake, contract, partitions=tuple(cells), run_id=run, t=_make_cells_sql(cells))
    staged = replace(staged, deliveries=dict.fromkeys(cells, run))
    publish(lake, catalog, contract, staged, green(contract, staged))


def _make_cells_sql(cells: Mapping[str, int]) -> str:
    rows = ", ".join("('{}', '{}', {})".format(*key.split("/"), number) for key, number in cells.items())
    return f"SELECT cast(col1 AS date) AS day, col2 AS region, col3 AS id FROM VALUES {rows}"


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_run_replaces_exactly_its_day_and_region(lake: Lake, catalog: Catalog, table_format: str) -> None:
    contract = _make_region_set(table_format)
    _publish_cells(lake, catalog, contract, "all", d1_eu=1, d1_us=2, d2_eu=3, d2_us=4)
    _publish_cells(lake, catalog, contract, "cell", d1_us=20)
    # A backfill of a range has every day of every region.
    _publish_cells(lake, catalog, contract, "days", d1_eu=10, d2_eu=30)
    # A name that no publication had.
    second = SecondDimension("region")
    dynamic = replace(contract, partitioning=replace(contract.partitioning, second=second))
    _publish_cells(lake, catalog, dynamic, "new", d2_apac=5)
    found = sorted((f"{row[0]}/{row[1]}", row[2]) for row in read_main(lake, contract, "t"))
    assert found == [
        ("2024-01-01/eu", 10),
        ("2024-01-01/us", 20),
        ("2024-01-02/apac", 5),
        ("2024-01-02/eu", 30),
        ("2024-01-02/us", 4),
    ]
    if table_format == "delta":
        return
    # The row of another region is neither counted nor published with the cell. Spark finds it in either format.
    cells = {"2024-01-02/eu": 1, "2024-01-01/us": 2}
    staged = stage_rows(
        lake, contract, partitions=("2024-01-02/eu",), run_id="stray", t=_make_cells_sql(cells)
    )
    verdicts = {verdict.check: verdict for verdict in audit(lake, contract, staged).verdicts}
    assert verdicts["within_partitions"].observed["rows_outside"] == 1
    assert not verdicts["within_partitions"].passed


def test_delivered_rows_of_another_region_are_rejected(lake: Lake) -> None:
    contract = _make_region_set("iceberg")
    contract = replace(contract, name="regional")
    folder = Path(lake.settings.landing_root) / contract.name / "2024-01-01"
    for region in ("eu", "us", "mars"):
        (folder / region).mkdir(parents=True)
        (folder / region / "t.csv").write_text("day,region,id\n2024-01-01,eu,1\n2024-01-02,us,2\n")
        (folder / region / "_SUCCESS").touch()
    assert [found.partition for found in find_deliveries(lake.settings, contract)] == list(CELLS[:2])
    deliveries = find_deliveries_of_run(lake.settings, contract, CELLS[:2])
    found = read_delivery(lake.spark, contract, deliveries)[contract.tables[0].name].read()
    assert found.rows == 1
    assert found.rejected is not None
    reasons = {(row["file"], row["line"]): row["reason"] for row in found.rejected.collect()}
    assert reasons == {
        ("2024-01-01/eu/t.csv", 3): "day is '2024-01-02', the delivery is of 2024-01-01/eu",
        ("2024-01-01/us/t.csv", 2): "region is 'eu', the delivery is of 2024-01-01/us",
        ("2024-01-01/us/t.csv", 3): "day is '2024-01-02', the delivery is of 2024-01-01/us",
    }
    with pytest.raises(
        DeliveryError, match=r"'mars' is none of the names of region.*second\.static in"
    ) as refused:
        find_deliveries_of_run(lake.settings, contract, ["2024-01-01/mars"])
    assert contract.path.name in str(refused.value)
    with pytest.raises(DeliveryError, match="3 of the 4 partitions of its ranges"):
        find_deliveries_of_run(lake.settings, contract, CELLS[:3])


def _key(case: Case, value: str) -> str:
    if case.column.type == "string":
        return value
    at = dt.datetime.fromisoformat(value)
    return case.partitioning.find_key(
        at.replace(tzinfo=dt.UTC) if case.column.type == "timestamp" else at.date()
    )


def _publish(
    lake: Lake,
    catalog: Catalog,
    contract: SetContract,
    keys: tuple[str, ...],
    values: list[tuple[str, int]],
    case: Case,
) -> None:
    staged = stage_rows(lake, contract, partitions=keys, run_id=f"run{len(keys)}", t=_make_sql(values, case))
    staged = replace(staged, deliveries=dict.fromkeys(keys, str(values)))
    publish(lake, catalog, contract, staged, green(contract, staged))


def _make_sql(values: list[tuple[str, int]], case: Case) -> str:
    rows = ", ".join(f"('{value}', {number})" for value, number in values)
    return f"SELECT cast(col1 AS {case.column.type}) AS {case.column.name}, col2 AS id FROM VALUES {rows}"


def test_the_rows_of_a_name_are_compared_with_the_same_name_on_main(lake: Lake, catalog: Catalog) -> None:
    contract = REGIONS.make_set("delta")
    limited = replace(contract.tables[0], drift=Drift(max_shrink_fraction=0.5))
    contract = replace(contract, tables=(limited,))
    values = [("eu", number) for number in range(4)] + [("us-1", 9)]
    _publish(lake, catalog, contract, REGIONS.keys, values, REGIONS)
    staged = stage_rows(
        lake, contract, partitions=("eu",), run_id="fewer", t=_make_sql([("eu", 100)], REGIONS)
    )
    verdicts = {verdict.check: verdict for verdict in audit(lake, contract, staged).verdicts}
    assert [name for name, verdict in verdicts.items() if not verdict.passed] == ["drift"]
    assert verdicts["drift"].observed["usual_rows"] == 4
    publish(lake, catalog, contract, replace(staged, deliveries={"eu": "new"}), green(contract, staged))
    assert read_main(lake, contract, "t") == [("eu", 100), ("us-1", 9)]


def test_an_audit_counts_rows_by_partition_and_finds_strays(lake: Lake) -> None:
    contract = HOURS.make_set("iceberg")
    # The third hour is none of the run.
    rows = [*((value, 1) for value in HOURS.before), ("2024-10-27 02:00:00", 2)]
    staged = stage_rows(lake, contract, partitions=HOURS.keys, t=_make_sql(rows, HOURS))
    verdicts = {verdict.check: verdict for verdict in audit(lake, contract, staged).verdicts}
    assert verdicts["not_empty"].passed
    within = verdicts["within_partitions"]
    assert not within.passed
    assert within.observed["rows_outside"] == 1


def test_delivered_rows_of_other_partitions_are_rejected(lake: Lake, tmp_path: Path) -> None:
    contract = HOURS.make_set("iceberg")
    for key, times in zip(HOURS.keys, (("2024-10-27T00:59:59Z", ""), ("2024-10-27T00:59:59Z",)), strict=True):
        folder = Path(lake.settings.landing_root) / contract.name / key
        folder.mkdir(parents=True)
        (folder / "t.csv").write_text("at,id\n" + "".join(f"{time},1\n" for time in times))
        (folder / "_SUCCESS").touch()
    read = read_delivery(lake.spark, contract, find_deliveries_of_run(lake.settings, contract, HOURS.keys))
    found = read[contract.tables[0].name].read()
    assert found.rows == 1
    assert found.rejected is not None
    reasons = sorted(row["reason"] for row in found.rejected.collect())
    assert reasons == [
        "at is '2024-10-27 00:59:59', the delivery is of 2024-10-27-02+0100",
        "at is empty: the row belongs to no hour",
    ]


def test_spark_finds_the_same_partitions_as_python(lake: Lake) -> None:
    # From the 10th of March and the 25th of October on.
    numbers = lake.spark.range(1656, 2208).union(lake.spark.range(7152, 7488))
    hours = numbers.select((F.lit(1704067200) + F.col("id") * 3600 + 1799).cast("timestamp").alias("at"))
    days = hours.select("at", F.col("at").cast("date").alias("day")).cache()
    cases = [
        (Partitioning(kind, "2024-01-01-00" if kind == "hourly" else "2024-01-01", zone), column)
        for kind in ("hourly", "daily", "weekly", "monthly")
        for zone, column in (("UTC", "at"), (BERLIN, "at"), ("America/New_York", "at"), ("UTC", "day"))
        if kind != "hourly" or column == "at"
    ]
    types = {"at": "timestamp", "day": "date"}
    keys = [
        make_key_column(each, column, types[column]).alias(f"k{n}") for n, (each, column) in enumerate(cases)
    ]
    chosen = [_choose(partitioning) for partitioning, _ in cases]
    inside = [
        filter_partitions(each, column, types[column], chosen[n]).alias(f"in{n}")
        for n, (each, column) in enumerate(cases)
    ]
    for row in days.select("*", F.col("at").cast("long").alias("s"), *keys, *inside).collect():
        at = dt.datetime.fromtimestamp(row["s"], dt.UTC)
        for n, (partitioning, column) in enumerate(cases):
            key = partitioning.find_key(at if column == "at" else row["day"])
            assert row[f"k{n}"] == key, (partitioning, at)
            assert row[f"in{n}"] is (key in chosen[n]), (partitioning, at)


def _choose(partitioning: Partitioning) -> list[str]:
    """Keys of a few days around both changes of the clocks, with gaps."""
    times = [
        dt.datetime(2024, month, day, hour, tzinfo=dt.UTC)
        for month, day in ((3, 31), (10, 27))
        for hour in (0, 1, 5)
    ]
    return list(dict.fromkeys(map(partitioning.find_key, times)))


def test_a_task_that_writes_many_partitions_has_one_file_open(lake: Lake) -> None:
    """It would keep one of each partition in memory, which 1,000 days exceeded; sorted rows need one at a time."""
    case = replace(REGIONS, partitioning=Partitioning("static", values=tuple(f"r{n}" for n in range(40))))
    contract = case.make_set("iceberg")
    sorts = {}
    for count in (2, 40):
        keys = contract.partitioning.values[:count]
        rows = _make_sql([(key, 1) for key in keys], case)
        staged = stage_rows(lake, contract, partitions=keys, run_id=f"of{count}", t=rows)
        assert staged.tables[0].rows == count
        sorts[count] = "Sort [" in _find_plan(
            lake, "OverwriteByExpression", f"{make_catalog_name(staged.ref)}.{contract.tables[0].name}"
        )
    assert sorts == {2: False, 40: True}
    # Held rows are read by a task for each core, and not by one for every four files.
    table_audit = TableAudit(lake, staging_for(lake, contract), contract, staged, contract.tables[0], ())
    assert table_audit.verdicts([]) == []
    assert table_audit._rows.rdd.getNumPartitions() <= count_cores(lake.spark)
    appended = replace(contract, tables=(replace(contract.tables[0], name="air1.a", write=Write("append")),))
    staged = stage_rows(
        lake, appended, partitions=keys[:1], run_id="append", a=_make_sql([("r0", 1), ("r1", 1)], case)
    )
    # Its rows may be of any partitions.
    assert "Sort [" in _find_plan(lake, "AppendData", f"{make_catalog_name(staged.ref)}.air1.a")


@pytest.mark.parametrize("kind", ["lake", "jdbc_lake"])
def test_a_merge_into_many_partitions_has_one_file_open(
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    kind: str,
) -> None:
    lake = request.getfixturevalue(kind)
    contract = a_set_of_modes(tmp_path, f"of_many_{kind}", "iceberg", ("merge",))
    target, sorts = lake.table_at(contract.tables[0].name), []
    # Nessie lets publications alone change main.
    limits = (200, 200, 1) if kind == "lake" else (200, 200, 1, 1)
    for turn, limit in enumerate(limits, start=1):
        day = f"2024-01-0{turn}"
        monkeypatch.setattr("lakeshare_pipelines.wap.iceberg.MAX_MERGED_FILES", limit)
        if turn == 4:
            lake.spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ('{FANOUT}'='true')")
        changes = [Change(number, f"n{number}", float(turn), day) for number in range(3)]
        deliver(lake.settings, contract, day, changes)
        staged = stage_without_reading(lake, contract, day, changes)
        publish(lake, catalog, contract, staged, green(contract, staged))
        assert {row[2] for row in read_main(lake, contract, "merge_rows")} == {turn}
        if turn > 1:
            plan = _find_plan(lake, "ReplaceData", f"{contract.name}.merge_rows")
            sorts.append(("Sort [" in plan, get_properties(lake.spark, target).get(FANOUT)))
    # What the user set stays.
    assert sorts == [(False, None), (True, None), (False, "true")][: len(limits) - 1]


def _find_plan(lake: Lake, command: str, table: str) -> str:
    """The plan of the last command of this kind that wrote the table."""
    lake.spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    listed = lake.spark._jsparkSession.sharedState().statusStore().executionsList()
    plans = [str(listed.apply(at).physicalPlanDescription()) for at in range(listed.size())]
    return [plan for plan in plans if f"{command} IcebergWrite(" in plan and f"{table}," in plan][-1]
