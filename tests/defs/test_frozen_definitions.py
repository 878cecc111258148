"""Keys and names of the Dagster layer stay as their snapshots: run history, schedules and alerts refer to them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml

from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.snapshots import check_snapshot

BACKUPS = {
    "backups": {
        "nightly": {"source": {"url": "/data"}, "target": {"url": "/copies"}},
        "offsite": {"source": {"url": "/data"}, "target": {"url": "/away"}, "engine": "spark"},
    }
}
CONTRACT = {
    "apiVersion": "v3.1.0",
    "kind": "DataContract",
    "id": "orders",
    "name": "shop",
    "version": "1.0.0",
    "status": "active",
    "servers": [{"server": "lake", "type": "local", "format": "delta"}],
    "schema": [
        {
            "name": "orders",
            "customProperties": [{"property": "source", "value": "orders"}],
            "properties": [
                {"name": "id", "logicalType": "integer", "physicalType": "int", "primaryKey": True},
                {"name": "region", "logicalType": "string", "partitioned": True, "required": True},
            ],
        },
        {
            "name": "eu",
            "physicalType": "view",
            "customProperties": [
                {"property": "view", "value": {"of": "orders", "columns": ["id"], "where": "region = 'eu'"}}
            ],
        },
    ],
    "customProperties": [
        {"property": "shares", "value": [{"share": "shop", "schema": "sales", "tables": ["orders"]}]},
        {"property": "snowflake", "value": [{"database": "LAKE", "schema": "SALES", "tables": ["orders"]}]},
    ],
}


@pytest.fixture(autouse=True)
def empty_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LakeSettings.model_fields:
        monkeypatch.delenv(f"LAKESHARE_{name.upper()}", raising=False)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_definitions_of_the_sets_that_ship_with_the_package() -> None:
    check_snapshot("dagster/shipped.txt", "\n".join(lines_of(defs())))


def test_definitions_of_declared_backups_a_landing_bucket_and_snowflake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "shop.yaml").write_text(yaml.safe_dump(CONTRACT))
    (tmp_path / "backups.yaml").write_text(yaml.safe_dump(BACKUPS))
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(contracts))
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(tmp_path / "backups.yaml"))
    monkeypatch.setenv("LAKESHARE_LANDING_S3", "s3://landing/in")
    monkeypatch.setenv("LAKESHARE_SNOWFLAKE_ACCOUNT", "org-account")
    check_snapshot("dagster/configured.txt", "\n".join(lines_of(defs())))


def lines_of(definitions: dg.Definitions) -> Iterator[str]:
    """Assets, checks, jobs, sensors, schedules and resources, by kind and name."""
    yield from assets(definitions)
    yield from checks(definitions)
    repository = definitions.get_repository_def()
    for job in sorted(repository.get_all_jobs(), key=lambda one: one.name):
        # Dagster names the job of all assets itself, and so what is in it.
        steps = [] if job.name.startswith("__") else sorted(node.name for node in job.nodes)
        yield f"job {job.name} of {', '.join(steps) or 'all assets'}"
    for sensor in sorted(repository.sensor_defs, key=lambda one: one.name):
        targets = sorted(target.job_name for target in sensor.targets) if sensor.targets else []
        yield (
            f"sensor {sensor.name}: {sensor.sensor_type.value}, {sensor.default_status.value}, "
            f"every {sensor.minimum_interval_seconds} s, starts {', '.join(targets) or 'nothing by name'}"
        )
    for schedule in sorted(repository.schedule_defs, key=lambda one: one.name):
        yield (
            f"schedule {schedule.name}: {schedule.cron_schedule} {schedule.execution_timezone}, "
            f"{schedule.default_status.value}, starts {schedule.job_name}"
        )
    for name in sorted(repository.get_top_level_resources()):
        yield f"resource {name}"


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def assets(definitions: dg.Definitions) -> Iterator[str]:
    graph = definitions.resolve_asset_graph()
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        yield f"asset {key.to_user_string()}"
        yield f"  group {node.group_name}, kinds {listed(node.kinds)}, owners {listed(node.owners)}"
        yield f"  after {listed(parent.to_user_string() for parent in node.parent_keys)}"
        partitions = node.partitions_def
        yield f"  partitions {type(partitions).__name__ if partitions else 'none'}"
        if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
            yield f"  {partitions.cron_schedule} from {partitions.start:%Y-%m-%d}, {partitions.timezone}"
        yield f"  metadata {listed(node.metadata)}; tags {dict(sorted(node.tags.items()))}"
        if node.is_executable:
            node_def = definitions.resolve_assets_def(key).node_def
            steps = sorted(node_def.iterate_op_defs(), key=lambda one: one.name)
            yield f"  computed by {node_def.name}: {', '.join(step_line(step) for step in steps)}"


def step_line(step: dg.OpDefinition) -> str:
    config = step.config_schema.config_type if step.config_schema else None
    fields = sorted(getattr(config, "fields", None) or ())
    facts = [f"pool {step.pool}"] if step.pool else []
    facts += [f"configured by {', '.join(fields)}"] if fields else []
    return f"{step.name} ({'; '.join(facts)})" if facts else step.name


def checks(definitions: dg.Definitions) -> Iterator[str]:
    graph = definitions.resolve_asset_graph()
    for key in sorted(graph.asset_check_keys, key=lambda one: (one.asset_key.to_user_string(), one.name)):
        blocks = "blocking" if graph.get_check_spec(key).blocking else "not blocking"
        yield f"check {key.asset_key.to_user_string()} {key.name}: {blocks}"
