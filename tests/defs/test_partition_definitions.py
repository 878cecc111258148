"""Dagster has the partitions of a contract by the same keys; deliveries add dynamic ones, late ones start nothing."""

import datetime as dt
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.contracts.model import Input
from lakeshare_pipelines.contracts.partitioning import Kind, Partitioning, SecondDimension
from lakeshare_pipelines.defs.wap import (
    LakeResource,
    SparkResource,
    add_dynamic_partitions,
    get_partitions_of_run,
    landing_asset,
    landing_sensor,
    make_partition_key,
    make_partitions,
    publish_job,
    wap_set,
)
from lakeshare_pipelines.demo.processes import RANGE_END, RANGE_START
from lakeshare_pipelines.settings import LakeSettings

FLIGHTS, _ = load_contracts()
NOW = dt.datetime(2025, 1, 1, 7, tzinfo=dt.UTC)


def a_set(partitioning: Partitioning) -> SetContract:
    return replace(FLIGHTS, partitioning=partitioning)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("hourly", "2024-03-01-00", "2024-11-30-23"),
        ("daily", "2024-01-01", "2024-12-31"),
        ("weekly", "2024-01-01", "2024-12-23"),
        ("monthly", "2024-01-01", "2024-12-01"),
    ],
)
def test_dagster_has_the_same_keys_and_windows(kind: Kind, first: str, last: str, zone: str) -> None:
    partitioning = Partitioning(kind, first, zone)
    own = partitioning.list_keys(first, last)
    partitions = make_partitions(a_set(partitioning))
    assert isinstance(partitions, dg.TimeWindowPartitionsDefinition)
    assert tuple(partitions.get_partition_keys_in_range(dg.PartitionKeyRange(first, last))) == own
    for key in own[:: max(1, len(own) // 50)]:
        window = partitions.time_window_for_partition_key(key)
        assert (window.start, window.end) == partitioning.get_window(key)
    later = make_partitions(a_set(replace(partitioning, end_offset=2)))
    assert later is not None
    before, after = (len(each.get_partition_keys(current_time=NOW)) for each in (partitions, later))
    assert after == before + 2


def test_static_and_dynamic_partitions() -> None:
    assert make_partitions(a_set(Partitioning())) is None
    static = make_partitions(a_set(Partitioning("static", values=("eu", "us"))))
    assert isinstance(static, dg.StaticPartitionsDefinition)
    assert static.get_partition_keys() == ["eu", "us"]
    dynamic = a_set(Partitioning("dynamic"))
    with dg.DagsterInstance.ephemeral() as instance:
        add_dynamic_partitions(instance, dynamic, ["eu"])
        add_dynamic_partitions(instance, a_set(Partitioning("daily", "2024-01-01")), ["2024-01-01"])
        assert instance.get_dynamic_partitions("partitions_flights") == ["eu"]


@pytest.mark.parametrize("values", [("eu", "us", "apac"), None], ids=["static", "dynamic"])
def test_two_dimensions_have_the_keys_of_both(values: tuple[str, ...] | None) -> None:
    # In Dagster keys of dimensions are in the order of their names: `area` is before `day`.
    cells = Partitioning("daily", "2024-01-01", second=SecondDimension("area", values))
    contract = a_set(cells)
    found: list[tuple[str, ...]] = []

    @dg.asset(partitions_def=make_partitions(contract))
    def cell(context: dg.AssetExecutionContext) -> None:
        found.append(get_partitions_of_run(context.op_execution_context, contract))

    with dg.DagsterInstance.ephemeral() as instance:
        add_dynamic_partitions(instance, contract, ["2024-01-31/eu", "2024-01-31/us", "2024-02-01/apac"])
        key = make_partition_key(contract, "2024-01-31/us")
        assert key == "us|2024-01-31"
        assert dg.materialize([cell], instance=instance, partition_key=key).success
        ends = [make_partition_key(contract, key) for key in ("2024-01-31/us", "2024-02-01/us")]
        tags = dict(zip((RANGE_START, RANGE_END), ends, strict=True))
        assert dg.materialize([cell], instance=instance, tags=tags).success
        if values is None:
            assert set(instance.get_dynamic_partitions("partitions_flights")) == {"eu", "us", "apac"}
    assert found == [("2024-01-31/us",), ("2024-01-31/us", "2024-02-01/us")]


@pytest.mark.parametrize("kind", ["hourly", "daily", "weekly", "monthly"])
def test_sets_of_other_periods_follow_each_other(kind: Kind) -> None:
    partitioning = Partitioning(kind, "2024-01-08-00" if kind == "hourly" else "2024-01-08")
    if kind == "monthly":
        partitioning = replace(partitioning, first="2024-02-01")
    days = Partitioning("daily", "2024-01-03")
    read = Input("flights.departures", "flight_date", "date", days)
    columns = tuple(replace(column, lineage=()) for column in FLIGHTS.tables[1].columns)
    delays = replace(
        FLIGHTS.tables[1],
        name="sums.t",
        columns=columns,
        depends_on=(),
        inputs=(read,),
        rules=(),
        references=(),
    )
    sums = replace(a_set(partitioning), name="sums", tables=(delays,), shares=())
    made = wap_set(sums)
    definitions = dg.Definitions(
        assets=[wap_set(a_set(days)), made, landing_asset(a_set(days))],
        resources={"lakeshare": LakeResource(spark=SparkResource())},
    )
    dg.Definitions.validate_loadable(definitions)
    graph = definitions.get_repository_def().asset_graph
    ours, theirs = dg.AssetKey(["sums", "t"]), dg.AssetKey(["flights", "departures"])
    assert graph.get(ours).parent_keys == {theirs}
    assert isinstance(graph.get_partition_mapping(ours, theirs), dg.TimeWindowPartitionMapping)


def test_the_sensor_adds_dynamic_partitions_and_starts_no_late_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    landing = Path(LakeSettings(_env_file=None).landing_root) / "flights"

    def tick(partitioning: Partitioning, key: str) -> Any:
        contract, folder = a_set(partitioning), landing / key
        folder.mkdir(parents=True)
        (folder / "departures.csv").write_text("a\n1\n")
        (folder / "_SUCCESS").touch()
        with dg.DagsterInstance.local_temp() as instance:
            sensor = landing_sensor(contract)
            definitions = dg.Definitions(
                assets=[landing_asset(contract), wap_set(contract)],
                jobs=[publish_job(contract)],
                sensors=[sensor],
                resources={"lakeshare": LakeResource(spark=SparkResource())},
            )
            found = sensor.evaluate_tick(
                dg.build_sensor_context(definitions=definitions, instance_ref=instance.get_ref())
            )
        shutil.rmtree(folder)
        return found

    found = tick(Partitioning("dynamic"), "eu")
    added = {
        request.partitions_def_name: request.partition_keys for request in found.dynamic_partitions_requests
    }
    assert added["partitions_flights"] == ["eu"]
    assert [request.partition_key for request in found.run_requests] == ["eu"]
    hourly = Partitioning("hourly", "2024-01-01-00")
    assert [request.partition_key for request in tick(hourly, "2024-01-01-13").run_requests] == [
        "2024-01-01-13"
    ]
    assert not tick(replace(hourly, lateness_hours=24), "2024-01-01-13").run_requests
    assert not tick(hourly, "2024-01-01-13:00").run_requests
    assert not tick(hourly, "2999-01-01-00").run_requests
    cells = Partitioning("daily", "2024-01-01", second=SecondDimension("region"))
    found = tick(cells, "2024-01-01/mars")
    added = {
        request.partitions_def_name: request.partition_keys for request in found.dynamic_partitions_requests
    }
    assert added["partitions_flights"] == ["mars"]
    assert [request.partition_key for request in found.run_requests] == ["2024-01-01|mars"]
    assert not tick(cells, "2999-01-01/mars").run_requests
    static = replace(cells, second=SecondDimension("region", ("eu",)))
    assert not tick(static, "2024-01-01/mars").run_requests
    assert "'mars' is none of the names of region" in caplog.text
    assert "second.static in flights" in caplog.text
