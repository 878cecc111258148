"""The landing sensor: complete deliveries are reported once, in stable order, and each new content starts one run."""

from pathlib import Path

import dagster as dg
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.defs.wap import landing_sensor
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.settings import LakeSettings

FLIGHTS = next(contract for contract in load_contracts() if contract.name == "flights")


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return LakeSettings(_env_file=None)


@pytest.fixture
def tick():
    with dg.DagsterInstance.ephemeral() as instance:

        def one():
            context = dg.build_sensor_context(instance=instance, definitions=defs())
            result = landing_sensor(FLIGHTS).evaluate_tick(context)
            for event in result.asset_events:
                instance.report_runless_asset_event(event)
            for request in result.dynamic_partitions_requests or []:
                instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
            return result

        yield one


def test_nothing_delivered_is_a_skip_with_a_reason(settings, tick):
    result = tick()
    assert not result.run_requests
    assert "none of them new" in result.skip_message


def test_new_deliveries_start_runs_in_the_order_of_their_days(settings, tick):
    for day in ("2013-01-03", "2013-01-01", "2013-01-02"):
        deliver(settings, FLIGHTS, partition=day, rows=5)

    result = tick()

    assert [request.partition_key for request in result.run_requests] == [
        "2013-01-01",
        "2013-01-02",
        "2013-01-03",
    ]
    assert len(result.asset_events) == 3


def test_the_same_delivery_again_starts_nothing_and_a_corrected_one_starts_one_run(settings, tick):
    deliver(settings, FLIGHTS, partition="2013-01-01", rows=5)
    first = tick()
    deliver(settings, FLIGHTS, partition="2013-01-01", rows=5)

    assert not tick().run_requests
    deliver(settings, FLIGHTS, partition="2013-01-01", rows=6)
    corrected = tick()
    assert [request.partition_key for request in corrected.run_requests] == ["2013-01-01"]
    assert corrected.run_requests[0].run_key != first.run_requests[0].run_key


def test_a_delivery_that_is_still_arriving_waits(settings, tick):
    folder = Path(settings.landing_root) / "flights" / "2013-01-01"
    folder.mkdir(parents=True)
    (folder / "departures.csv").write_text("year,month,day\n")

    assert not tick().run_requests
