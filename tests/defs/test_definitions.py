"""The code location loads fast and cheap, and shows the path the way its users expect it."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.wap.checks import list_checks

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return defs()


def test_the_location_loads(definitions):
    dg.Definitions.validate_loadable(definitions)


def test_loading_imports_neither_spark_nor_great_expectations_nor_what_only_landing_in_s3_needs():
    """Nor pandas, which PyArrow imports for the first scalar or list that it converts."""
    unwanted = (
        *("pyspark", "great_expectations", "pynessie", "deltalake", "pandas"),
        *("boto3", "botocore", "dagster_aws"),
    )
    code = (
        "import sys; from lakeshare_pipelines.definitions import defs; loaded = defs(); "
        f"print('s3' in loaded.resources, [m for m in {unwanted} if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "False []"


def test_no_file_of_the_layer_postpones_annotations():
    for path in (ROOT / "lakeshare_pipelines" / "defs").glob("*.py"):
        assert "from __future__ import annotations\n" not in path.read_text(), path


def test_every_check_of_every_contract_is_a_blocking_asset_check(definitions):
    graph = definitions.resolve_asset_graph()
    declared = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    expected = {
        (check.table.replace(".", "/"), check.name)
        for contract in load_contracts()
        for check in list_checks(contract)
    }
    of_usage = {("share_catalog", "silent_recipients"), ("share_catalog", "usage_spikes")}
    of_backups = {
        ("backup/lake/plan", "no_warnings"),
        ("backup/lake/copies", "all_copied"),
        ("backup/lake/tables", "accounted_for"),
        ("backup/lake/tables", "tables_are_whole"),
        ("backup/lake/tables", "tables_open"),
        ("backup/lake/point", "drill"),
        ("backup/lake/point", "recent"),
        ("backup/lake/point", "scrub"),
    }
    assert declared == expected | of_usage | of_backups
    blocking = {
        (key.asset_key.to_user_string(), key.name)
        for key in graph.asset_check_keys
        if graph.get_check_spec(key).blocking
    }
    assert blocking == expected


def test_tables_carry_group_kinds_owners_columns_and_lineage(definitions):
    graph = definitions.resolve_asset_graph()
    delays = graph.get(dg.AssetKey(["flights", "daily_delays"]))

    assert delays.group_name == "flights"
    assert {"spark", "iceberg"} <= delays.kinds
    assert delays.owners
    assert delays.description
    columns = delays.metadata["dagster/column_schema"].columns
    assert [column.name for column in columns][:3] == ["flight_date", "origin", "carrier"]
    lineage = delays.metadata["dagster/column_lineage"].deps_by_column
    assert lineage["mean_dep_delay"] == [
        dg.TableColumnDep(dg.AssetKey(["flights", "departures"]), "dep_delay")
    ]


def test_only_a_primary_key_of_one_column_makes_the_column_unique(definitions):
    seen = set()
    for contract in load_contracts():
        for table in contract.tables:
            asset = definitions.resolve_asset_graph().get(dg.AssetKey(table.name.split(".")))
            schema = asset.metadata["dagster/column_schema"]
            unique = [column.name for column in schema.columns if column.constraints.unique]
            keys = table.primary_key
            declared = [column.name for column in table.columns if column.unique]
            assert sorted(unique) == sorted({*declared, *(keys if len(keys) == 1 else ())})
            key = [f"PRIMARY KEY ({', '.join(keys)})"] if len(keys) > 1 else []
            assert (schema.constraints.other if schema.constraints else []) == key
            seen.add(len(keys) > 1)
    assert seen == {True, False}


def test_a_set_cannot_be_published_in_part(definitions):
    departures = dg.AssetKey(["flights", "departures"])
    assets = definitions.resolve_asset_graph().assets_def_for_key(departures)
    assert not assets.can_subset


def test_runs_execute_in_process(definitions):
    assert definitions.executor is dg.in_process_executor


def test_sensors_and_schedules_are_on_as_documented(definitions):
    repository = definitions.get_repository_def()
    assert {sensor.name: sensor.default_status.value for sensor in repository.sensor_defs} == {
        "landing_flights": "RUNNING",
        "landing_reference": "RUNNING",
        "share_automation": "RUNNING",
        # Of the default only: a declared backup starts its days by itself.
        "backup_lake_days": "STOPPED",
    }
    assert {schedule.name: schedule.default_status.value for schedule in repository.schedule_defs} == {
        "janitor_nightly": "RUNNING",
        "maintain_flights": "RUNNING",
        "maintain_reference": "RUNNING",
        "usage_every_morning": "RUNNING",
        "drill_lake_every_morning": "STOPPED",
        "scrub_lake_every_night": "STOPPED",
        "sweep_lake_every_night": "STOPPED",
    }
