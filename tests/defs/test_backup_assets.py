"""A day's backup runs as assets with checks, the sensor starts what is due, and a drill that fails is seen by all."""

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.backup.declared import Backup, backup_named
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.defs.backup import backup_definitions, backup_key
from lakeshare_pipelines.defs.backup_upkeep import backup_upkeep
from lakeshare_pipelines.defs.resources import LakeResource, SparkResource
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.sets import a_contract
from tests.builders.slack import SlackStandIn, slack_stand_in

TODAY = dt.datetime.now(dt.UTC).date()
DAY = (TODAY - dt.timedelta(days=1)).isoformat()


@pytest.fixture
def slack() -> Iterator[SlackStandIn]:
    with slack_stand_in() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slack: SlackStandIn) -> LakeSettings:
    """A warehouse with two Delta tables that were written yesterday."""
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_SLACK_TOKEN", "xoxb-test")
    monkeypatch.setenv("LAKESHARE_SLACK_BASE_URL", slack.url)
    found = LakeSettings(_env_file=None)
    for name, rows in (("orders", 3), ("lines", 5)):
        write_deltalake(str(found.warehouse / "sales" / name), pa.table({"id": range(rows)}))
    yesterday = dt.datetime.combine(dt.date.fromisoformat(DAY), dt.time(12), dt.UTC).timestamp()
    for path in found.warehouse.rglob("*"):
        os.utime(path, (yesterday, yesterday))
    return found


@pytest.fixture
def backup(settings: LakeSettings) -> Backup:
    return backup_named(settings, None)


@pytest.fixture
def definitions(backup: Backup, tmp_path: Path) -> dg.Definitions:
    contract = a_contract(tmp_path / "contracts", "sales", "delta")
    return dg.Definitions.merge(
        dg.Definitions(
            resources={"lake": LakeResource(spark=SparkResource())}, executor=dg.in_process_executor
        ),
        backup_definitions(backup, (contract,), is_declared=True),
        backup_upkeep(backup, is_declared=True),
    )


@pytest.fixture
def made(definitions: dg.Definitions) -> dg.ExecuteInProcessResult:
    """Yesterday's point, made by the job."""
    return definitions.resolve_job_def("backup_lake").execute_in_process(partition_key=DAY)


def test_a_day_is_made_as_assets_with_green_checks_and_its_point_is_in_the_target(made, backup):
    assert made.success
    done = [event.asset_key for event in made.get_asset_materialization_events()]
    steps = ("listing", "plan", "copies", "tables", "point")
    assert done == [backup_key(backup, step) for step in steps]
    judged = {check.check_name: check.passed for check in made.get_asset_check_evaluations()}
    assert judged == dict.fromkeys(
        ("no_warnings", "all_copied", "accounted_for", "tables_are_whole", "tables_open"), True
    )
    point = Points(backup).get(DAY)
    assert point.status == "verified"
    assert {proof.table.root: proof.rows for proof in point.verification.tables} == {
        "sales/orders": 3,
        "sales/lines": 5,
    }


def test_beside_a_table_stands_the_point_that_protects_it(made):
    [observed] = [
        event.asset_observation_data.asset_observation
        for event in made.all_events
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
    ]
    assert observed.asset_key == dg.AssetKey(["sales", "orders"])
    assert observed.metadata["lakeshare/backup/lake"].value == DAY
    assert observed.metadata["status"].value == "verified"
    assert observed.metadata["rows"].value == 3


def test_a_day_that_has_its_point_is_refused_and_stays_as_it_was(made, definitions, backup):
    was = Points(backup).get(DAY)
    again = definitions.resolve_job_def("backup_lake").execute_in_process(
        partition_key=DAY, raise_on_error=False
    )
    assert not again.success
    failure = again.failure_data_for_node(f"backup__{backup.name}__listing")
    assert failure is not None
    assert "a point is never replaced" in str(failure.user_failure_data)
    assert Points(backup).get(DAY) == was


def test_the_sensor_starts_the_days_that_are_due_and_no_day_twice(definitions, backup, settings):
    sensor = definitions.resolve_sensor_def(f"backup_{backup.name}_days")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    repository = definitions.get_repository_def()
    with dg.instance_for_test() as instance:
        asked = sensor.evaluate_tick(
            dg.build_sensor_context(instance, repository_def=repository)
        ).run_requests
        assert DAY in {request.partition_key for request in asked}
        assert TODAY.isoformat() not in {request.partition_key for request in asked}
        assert len({request.run_key for request in asked}) == len(asked)
        definitions.resolve_job_def("backup_lake").execute_in_process(partition_key=DAY)
        later = sensor.evaluate_tick(
            dg.build_sensor_context(instance, repository_def=repository)
        ).run_requests
    assert DAY not in {request.partition_key for request in later}


def test_a_drill_runs_on_its_schedule_and_passes(made, definitions, backup):
    schedule = definitions.resolve_schedule_def(f"drill_{backup.name}_every_morning")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    with dg.instance_for_test() as instance:
        tick = schedule.evaluate_tick(dg.build_schedule_context(instance, dt.datetime.now(dt.UTC)))
    assert len(tick.run_requests or ()) == 1
    assert schedule.job_name == f"drill_{backup.name}"
    ran = definitions.resolve_job_def(schedule.job_name).execute_in_process()
    judged = {check.check_name: check for check in ran.get_asset_check_evaluations()}
    assert all(check.passed for check in judged.values()), judged
    assert judged["drill"].metadata["lakeshare/rto_s"].value > 0


def test_a_backup_without_a_recent_point_is_told_of(definitions, backup, slack):
    ran = definitions.resolve_job_def(f"drill_{backup.name}").execute_in_process(raise_on_error=False)
    judged = {check.check_name: check.passed for check in ran.get_asset_check_evaluations()}
    assert judged == {"drill": False, "recent": False}
    assert any("there is none" in message["text"] for message in slack.messages)


def test_a_drill_fails_visibly_when_a_copied_file_is_corrupted_behind_its_back(
    made, definitions, backup, slack
):
    for path in Path(backup.target.url).rglob("*.parquet"):
        if "_lakeshare" not in path.parts:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
    ran = definitions.resolve_job_def(f"drill_{backup.name}").execute_in_process(raise_on_error=False)
    judged = {check.check_name: check for check in ran.get_asset_check_evaluations()}
    check = judged["drill"]
    assert not check.passed
    assert check.severity is dg.AssetCheckSeverity.ERROR
    assert ".parquet" in (check.description or "")
    assert any(f"Drill of backup {backup.name}" in message["text"] for message in slack.messages)
    scrub = definitions.resolve_schedule_def(f"scrub_{backup.name}_every_night")
    assert scrub.default_status is dg.DefaultScheduleStatus.RUNNING
    ran = definitions.resolve_job_def(scrub.job_name).execute_in_process(
        run_config={"ops": {f"backup__{backup.name}__point_scrub": {"config": {"everything": True}}}},
        raise_on_error=False,
    )
    (check,) = ran.get_asset_check_evaluations()
    assert check.passed, check.description
    assert "copied again from" in (check.description or "")
    assert any(f"Scrub of backup {backup.name}" in message["text"] for message in slack.messages)
