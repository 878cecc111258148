"""A day's backup runs as assets with checks, the sensor starts what is due, and a drill that fails is seen by all."""

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.backup.config import Backup, Retention, find_backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.run import BackupRun, make_point
from lakeshare_pipelines.defs.backup import backup_definitions, backup_key, backup_maintenance
from lakeshare_pipelines.defs.wap import LakeResource, SparkResource
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.file_lock import hold_lock
from tests.builders.sets import a_contract
from tests.builders.slack import SlackStandIn, slack_stand_in

DAY = (dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)).isoformat()


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
        write_deltalake(f"{found.lake_root}/sales/{name}", pa.table({"id": range(rows)}))
    yesterday = dt.datetime.combine(dt.date.fromisoformat(DAY), dt.time(12), dt.UTC).timestamp()
    for path in Path(found.lake_root).rglob("*"):
        os.utime(path, (yesterday, yesterday))
    return found


@pytest.fixture
def backup(settings: LakeSettings) -> Backup:
    return find_backup(settings, None)


@pytest.fixture
def definitions(backup: Backup, tmp_path: Path) -> dg.Definitions:
    return definitions_of(backup, tmp_path)


def definitions_of(backup: Backup, tmp_path: Path) -> dg.Definitions:
    contract = a_contract(tmp_path / "contracts", "sales", "delta")
    return dg.Definitions.merge(
        dg.Definitions(
            resources={"lakeshare": LakeResource(spark=SparkResource())}, executor=dg.in_process_executor
        ),
        backup_definitions(backup, (contract,), is_declared=True),
        backup_maintenance(backup, is_declared=True),
    )


def make_the_day(definitions: dg.Definitions) -> dg.ExecuteInProcessResult:
    """Make yesterday's point by the job."""
    return definitions.resolve_job_def("backup_lake").execute_in_process(
        partition_key=DAY, raise_on_error=False
    )


def test_the_sensor_starts_a_due_day_once_and_its_run_makes_the_point_that_is_never_replaced(
    definitions, backup
):
    sensor = definitions.resolve_sensor_def(f"backup_{backup.name}_days")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    repository = definitions.get_repository_def()
    with dg.DagsterInstance.ephemeral() as instance:

        def requests() -> list[dg.RunRequest]:
            context = dg.build_sensor_context(instance, repository_def=repository)
            return sensor.evaluate_tick(context).run_requests

        due = requests()
        assert DAY in {request.partition_key for request in due}
        today = dt.datetime.now(dt.UTC).date().isoformat()
        assert today not in {request.partition_key for request in due}
        assert len({request.run_key for request in due}) == len(due)
        made = make_the_day(definitions)
        require_assets_with_green_checks(made, backup)
        assert DAY not in {request.partition_key for request in requests()}

    require_observed_beside_its_table(made)
    point = Points(backup).get(DAY)
    assert point.status == "verified"
    assert {proof.table.root: proof.rows for proof in point.verification.tables} == {
        "sales/orders": 3,
        "sales/lines": 5,
    }
    again = make_the_day(definitions)
    assert not again.success
    failure = again.failure_data_for_node(f"backup__{backup.name}__listing")
    assert failure is not None
    assert "a point is never replaced" in str(failure.user_failure_data)
    assert Points(backup).get(DAY) == point


def test_a_day_whose_run_failed_is_continued_by_the_sensor_after_its_wait(
    definitions, backup, settings, monkeypatch
):
    sensor = definitions.resolve_sensor_def(f"backup_{backup.name}_days")
    repository, job = definitions.get_repository_def(), definitions.resolve_job_def("backup_lake")
    with dg.DagsterInstance.ephemeral() as instance:

        def tick() -> tuple[list[dg.RunRequest], str | None]:
            found = sensor.evaluate_tick(dg.build_sensor_context(instance, repository_def=repository))
            return found.run_requests or [], found.skip_message

        def make(**tags: str) -> dg.ExecuteInProcessResult:
            return job.execute_in_process(
                partition_key=DAY, tags=tags, instance=instance, raise_on_error=False
            )

        ([first], _) = tick()
        in_its_place = Path(backup.target.url) / "_lakeshare" / backup.name / "points" / DAY / "engine"
        in_its_place.parent.mkdir(parents=True)
        in_its_place.write_text("no folder")
        failed = make()
        assert not failed.success
        assert failed.get_step_success_events()[-1].step_key == f"backup__{backup.name}__plan"
        waits = ([], f"after a failed run, {DAY} waits to be continued")

        def set_clock(hours: float) -> None:
            ended_at = instance.get_run_records(limit=1)[0].end_time + hours * 3600
            monkeypatch.setattr(
                "lakeshare_pipelines.defs.backup.time", SimpleNamespace(time=lambda: ended_at)
            )

        set_clock(0.9)
        assert tick() == waits
        in_its_place.unlink()
        set_clock(1.1)
        ([again], _) = tick()
        assert again.partition_key == first.partition_key == DAY
        assert again.run_key != first.run_key
        assert tick() == ([again], None), "Dagster starts a run for each key once"
        # Another run than the one that continues it is refused.
        other = make().failure_data_for_node(f"backup__{backup.name}__listing")
        assert f"{failed.run_id} is making it" in str(other.user_failure_data)
        set_clock(1.9)
        assert tick() == waits
        set_clock(2.1)
        ([again], _) = tick()
        assert make(**again.tags).success
    assert Points(backup).get(DAY).status == "verified"


def require_assets_with_green_checks(made: dg.ExecuteInProcessResult, backup: Backup) -> None:
    assert made.success
    done = [event.asset_key for event in made.get_asset_materialization_events()]
    steps = ("listing", "plan", "copies", "tables", "point")
    assert done == [backup_key(backup, step) for step in steps]
    judged = {check.check_name: check.passed for check in made.get_asset_check_evaluations()}
    assert judged == dict.fromkeys(
        ("no_warnings", "all_copied", "accounted_for", "tables_are_whole", "tables_open"), True
    )


def require_observed_beside_its_table(made: dg.ExecuteInProcessResult) -> None:
    [observed] = [
        event.asset_observation_data.asset_observation
        for event in made.all_events
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
    ]
    assert observed.asset_key == dg.AssetKey(["sales", "orders"])
    assert observed.metadata["lakeshare/backup/lake"].value == DAY
    assert observed.metadata["status"].value == "verified"
    assert observed.metadata["rows"].value == 3


def test_a_backup_without_a_recent_point_is_told_of(definitions, backup, slack):
    ran = definitions.resolve_job_def(f"drill_{backup.name}").execute_in_process(raise_on_error=False)
    judged = {check.check_name: check.passed for check in ran.get_asset_check_evaluations()}
    assert judged == {"drill": False, "recent": False}
    assert any("there is none" in message["text"] for message in slack.messages)


def test_a_drill_runs_on_its_schedule_and_fails_visibly_when_a_copied_file_was_corrupted(
    definitions, backup, slack
):
    assert make_the_day(definitions).success
    schedule = definitions.resolve_schedule_def(f"drill_{backup.name}_every_morning")
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        tick = schedule.evaluate_tick(dg.build_schedule_context(instance, dt.datetime.now(dt.UTC)))
    assert len(tick.run_requests or ()) == 1
    assert schedule.job_name == f"drill_{backup.name}"
    ran = definitions.resolve_job_def(schedule.job_name).execute_in_process()
    judged = {check.check_name: check for check in ran.get_asset_check_evaluations()}
    assert all(check.passed for check in judged.values()), judged
    assert judged["drill"].metadata["lakeshare/rto_s"].value > 0

    for path in Path(backup.target.url).rglob("*.parquet"):
        if "_lakeshare" not in path.parts:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 0xFF
            path.write_bytes(content)
    ran = definitions.resolve_job_def(schedule.job_name).execute_in_process(raise_on_error=False)
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


def test_a_sweep_reports_what_it_would_remove_and_then_removes_it(settings, backup, tmp_path):
    strict = backup.model_copy(update={"retention": Retention(daily=1, weekly=0, monthly=0, yearly=0)})
    points, old = Points(strict), dt.date.fromisoformat(DAY) - dt.timedelta(days=1)
    earlier = dt.datetime.combine(old, dt.time(), dt.UTC).timestamp() - 60
    for path in Path(settings.lake_root).rglob("*"):
        os.utime(path, (earlier, earlier))
    of_day = BackupRun(settings, strict, DAY, "test")
    refused = pytest.raises(BackupError, match="another process on this host is making it")
    with hold_lock(of_day.workspace.folder / "run.lock", wait_s=0), refused:
        make_point(of_day, dt.datetime.now(dt.UTC), print, print)
    for day in (old.isoformat(), DAY):
        make_point(BackupRun(settings, strict, day, "test"), dt.datetime.now(dt.UTC), print, print)
    sweep = definitions_of(strict, tmp_path).resolve_job_def(f"sweep_{strict.name}")

    def run(**config: bool) -> str:
        ops = {"ops": {f"sweep_points_{strict.name}": {"config": config}}}
        with dg.DagsterInstance.ephemeral() as instance:
            ran = sweep.execute_in_process(run_config=ops, instance=instance)
            return "\n".join(entry.user_message for entry in instance.all_logs(ran.run_id))

    assert f"would remove points {old}" in run(dry_run=True)
    assert points.days() == [old.isoformat(), DAY]
    assert f"removed points {old}" in run()
    assert points.days() == [DAY]
    assert "removed points none; 0 copies, 0 bytes" in run()
