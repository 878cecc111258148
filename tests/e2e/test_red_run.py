"""A red run, as Dagster and the command line show it: recipients notice nothing, and it can be taken up again."""

import json
import os

import dagster as dg
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.demo import reader
from lakeshare_pipelines.demo.runs import run_job
from lakeshare_pipelines.wap.lake import with_spark
from lakeshare_server.catalog import Ledger, open_catalog

pytestmark = pytest.mark.xdist_group("demo")

TABLE = "aviation.flights.departures"
FLIGHTS = next(contract for contract in load_contracts() if contract.name == "flights")
SELECT = "flights/departures,flights/daily_delays"


def materialize(demo, day):
    return demo.run(
        "dagster", "asset", "materialize", "--select", SELECT, "--partition", day,
        "-m", "lakeshare_pipelines.definitions",
    )  # fmt: skip


def run_as_the_ui_does(demo, day):
    """Run the set's job; unlike an ad-hoc materialisation it can be taken up again by its name."""
    tags = json.dumps({"dagster/partition": day})
    ran = demo.run(
        "dagster", "job", "execute", "-j", "publish_flights", "--tags", tags,
        "-m", "lakeshare_pipelines.definitions",
    )  # fmt: skip
    assert "expect_column_values_to_not_be_null__carrier" in ran.text, ran.text


def red_place(demo):
    """The name of the one staged set that is red."""
    lines = [line for line in demo.lakeshare("wap", "list").text.splitlines() if " red " in line]
    return lines[-1].split()[0]


def clear_nulls(demo, ref):
    """Repair a branch by hand, as an engineer would."""
    with with_spark(demo.settings) as lake:
        for table in FLIGHTS.tables:
            lake.spark.sql(f"DELETE FROM {lake.catalog(ref)}.{table.name} WHERE carrier IS NULL")


def latest(demo):
    return Ledger(open_catalog(demo.settings.catalog_url)).latest("flights.departures")


@pytest.fixture
def in_demo_home(demo, monkeypatch):
    for name in ("LAKESHARE_STATE_DIR", "DAGSTER_HOME"):
        monkeypatch.setenv(name, demo.environment[name])


def test_during_a_red_run_recipients_see_one_version_and_one_set_of_rows(demo, served):
    before = latest(demo)
    rows = reader.read(served, TABLE)
    assert demo.lakeshare("deliver", "flights", "--day", "2013-01-05", "--nulls", "carrier").code == 0

    with reader.watching(served, TABLE) as watch:
        ran = materialize(demo, "2013-01-05")

    assert ran.code != 0
    assert watch.looks > 10
    assert watch.versions == {before.version}
    assert latest(demo) == before
    assert reader.read(served, TABLE).equals(rows)
    assert demo.lakeshare("ci-gate", "--select", SELECT.replace(",", " or ")).code == 1


def test_a_red_set_can_be_inspected_retried_and_discarded_by_command(demo, served):
    ref = red_place(demo)

    shown = demo.lakeshare("wap", "show", ref)
    assert "FAIL  flights.departures: expect_column_values_to_not_be_null__carrier" in shown.text
    still_red = demo.lakeshare("wap", "retry", ref)
    assert still_red.code == 1, still_red.text
    clear_nulls(demo, ref)
    before = latest(demo)
    green = demo.lakeshare("wap", "retry", ref)
    assert green.code == 0, green.text
    assert latest(demo).version == before.version + 1
    assert latest(demo).partition == "2013-01-05"
    assert reader.version(served, TABLE) == before.version + 1
    assert ref not in demo.lakeshare("wap", "list").text


def test_a_red_run_is_taken_up_again_from_dagster_and_discarded(demo, in_demo_home):
    assert demo.lakeshare("deliver", "flights", "--day", "2013-01-06", "--nulls", "carrier").code == 0
    run_as_the_ui_does(demo, "2013-01-06")
    ref = red_place(demo)
    clear_nulls(demo, ref)
    before = latest(demo)

    with dg.DagsterInstance.get() as instance:
        failed = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]), limit=1)[0]
        options = dg.ReexecutionOptions.from_failure(failed.run_id, instance)
        target = dg.build_reconstructable_job(run_job.__module__, run_job.__name__, (failed.job_name,))
        again = dg.execute_job(target, instance, reexecution_options=options)

    assert again.success
    steps = {event.step_key for event in again.all_events if event.is_step_start}
    assert steps == {"flights_set.flights_audit", "flights_set.flights_publish"}
    assert latest(demo).version == before.version + 1

    assert demo.lakeshare("deliver", "flights", "--day", "2013-01-07", "--nulls", "carrier").code == 0
    assert materialize(demo, "2013-01-07").code != 0
    ref = red_place(demo)
    assert demo.lakeshare("wap", "discard", ref).code == 0
    assert ref not in demo.lakeshare("wap", "list").text
    unknown = demo.lakeshare("wap", "show", ref)
    assert unknown.code == 1
    assert "lakeshare wap list" in unknown.text
    assert os.environ["DAGSTER_HOME"] == demo.environment["DAGSTER_HOME"]
