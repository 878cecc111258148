"""A project made by Dagster's own tool takes a set as a component: found, scaffolded, checked, materialised."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
import yaml

import lakeshare_pipelines as lakeshare
from lakeshare_pipelines.defs import published_set
from lakeshare_pipelines.defs.wap import INPUTS_TAG, LakeResource, SparkResource, table_key
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog

COMPONENT = "lakeshare_pipelines.components.PublishedSet"
OWN_ASSETS = '''\
"""Assets of the project: one writes the delivery, one reads the published table."""

import os
from pathlib import Path

import dagster as dg
import lakeshare_pipelines as lakeshare
import pandas
import pyarrow
import pyarrow.compute as pc
import pyspark.sql


@dg.asset(deps=["rows"])
def delivery() -> None:
    folder = Path(os.environ["LAKESHARE_STATE_DIR"]) / "landing" / "dgshop" / "all"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dgshop.csv").write_text("id,description\\n" + "".join(f"{n},row {n}\\n" for n in range(3)))
    (folder / "_SUCCESS").touch()


@dg.asset(deps=[lakeshare.table_key("dgshop.dgshop")])
def report(context: dg.AssetExecutionContext, lakeshare: lakeshare.LakeResource) -> dg.MaterializeResult:
    table = lakeshare.table("dgshop.dgshop", context, is_materialized=True)
    rows = table.to_arrow()
    figures = {"rows": rows.num_rows, "number": table.version, "location": table.location}
    return dg.MaterializeResult(metadata=figures)


ROWS = {"rows": lakeshare.table_input("dgshop.dgshop")}


@dg.asset(ins=ROWS)
def from_pandas(rows: pandas.DataFrame) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"sum": int(rows["id"].sum())})


@dg.asset(ins=ROWS)
def from_arrow(rows: pyarrow.Table) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"sum": pc.sum(rows["id"]).as_py()})


@dg.asset(ins=ROWS)
def from_spark(rows: pyspark.sql.DataFrame) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"sum": rows.selectExpr("sum(id)").first()[0]})
'''
OWN_RESOURCES = '''\
"""Resources of the project, with keys that a package should leave to it."""

import dagster as dg


class FramesOnly(dg.IOManager):
    def handle_output(self, context, frame):
        raise TypeError(f"not a frame: {frame!r}")

    def load_input(self, context):
        raise TypeError("no frame")


@dg.definitions
def resources():
    return dg.Definitions(resources={"io_manager": FramesOnly(), "lake": "of the project"})
'''

# Commands of dg, each once it is asked for: processes of their own load Dagster and all components again.
DG = """\
import json, sys
from dagster_dg_cli.cli import ENV_PREFIX, cli
for line in sys.stdin:
    cli(json.loads(line), auto_envvar_prefix=ENV_PREFIX, standalone_mode=False)
    print("ENDED", flush=True)
"""
TOOLS = Path(sys.executable).parent


def variables_of_tools(**more: str) -> dict[str, str]:
    """The variables of a tool of the environment, without a network or a home of Dagster."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("LAKESHARE_", "DAGSTER_"))
    }
    return environment | {"PATH": f"{TOOLS}:{os.environ['PATH']}", "VIRTUAL_ENV": str(TOOLS.parent), **more}


def run_dg(process: subprocess.Popen[str], *command: str) -> str:
    """What a command of dg prints in the process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{json.dumps(command)}\n")
    process.stdin.flush()
    printed = ""
    for line in process.stdout:
        if line == "ENDED\n":
            return printed
        printed += line
    raise AssertionError(f"dg has ended: {printed}")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a scaffolded component and assets of its own, which `dg check defs` accepts."""
    folder, name = tmp_path_factory.mktemp("projects"), f"project_{uuid4().hex[:8]}"
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    subprocess.run(
        [TOOLS / "create-dagster", "project", name, "--no-uv-sync"],
        cwd=folder,
        env=variables_of_tools(DAGSTER_HOME=str(folder / "home")),
        check=True,
    )
    root = folder / name
    with (root / "pyproject.toml").open("a") as file:
        file.write('\n[tool.dg.cli]\nsuppress_warnings = ["create_dagster_outdated"]\n')
    variables = {
        "DAGSTER_HOME": str(folder / "home"),
        "PYTHONPATH": str(root / "src"),
        "LAKESHARE_STATE_DIR": str(folder / "state"),
    }
    with subprocess.Popen(
        [sys.executable, "-c", DG],
        cwd=root,
        env=variables_of_tools(**variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as dg_process:
        fill_project(root, partial(run_dg, dg_process))
    assert dg_process.returncode == 0
    return root


def fill_project(root: Path, run: Callable[..., str]) -> None:
    """Scaffolds the component, and adds assets, resources and the share catalog."""
    printed = run("list", "components", "--package", "lakeshare_pipelines", "--json")
    run("scaffold", "defs", COMPONENT, "orders", "--name", "dgshop", "--table-format", "delta")
    listed = json.loads(printed)
    assert {entry["key"] for entry in listed["items"]} == {
        COMPONENT,
        COMPONENT.replace("PublishedSet", "ShareCatalog"),
    }
    defs = root / "src" / root.name / "defs"
    written = yaml.safe_load((defs / "orders" / "defs.yaml").read_text())
    assert written == {"type": COMPONENT, "attributes": {"contract": "contract.yaml"}}
    written["attributes"] |= {
        "deps": ["delivery"],
        "group_name": "sales",
        "automation_condition": "{{ dg.AutomationCondition.eager() }}",
        "freshness": {"fail_hours": 30},
        "retries": {"max_retries": 1},
    }
    (defs / "orders" / "defs.yaml").write_text(yaml.safe_dump(written))
    (defs / "catalog").mkdir()
    catalog = {
        "type": COMPONENT.replace("PublishedSet", "ShareCatalog"),
        "attributes": {"contracts": ["../*/contract.yaml"]},
    }
    (defs / "catalog" / "defs.yaml").write_text(yaml.safe_dump(catalog))
    (defs / "own_assets.py").write_text(OWN_ASSETS)
    (defs / "own_resources.py").write_text(OWN_RESOURCES)
    assert "All definitions loaded successfully" in run("check", "defs")


@pytest.fixture
def own_lake(
    lake: Lake, catalog: Catalog, settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> LakeSettings:
    """Definitions have the tests' own lake as their resource."""

    class TestsLake(LakeResource):
        def lake(self) -> Lake:
            return lake

        def catalog(self) -> Catalog:
            return catalog

    resources = {**published_set.lakeshare_resources(), "lakeshare": TestsLake(spark=SparkResource())}
    monkeypatch.setattr(published_set, "lakeshare_resources", lambda: resources)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(settings.state_dir))
    return settings


@pytest.fixture
def definitions(project: Path, own_lake: LakeSettings, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """The project's definitions."""
    monkeypatch.syspath_prepend(str(project / "src"))
    return import_module(f"{project.name}.definitions").defs()


def test_the_component_publishes_between_assets_of_the_project(definitions: dg.Definitions) -> None:
    table = table_key("dgshop.dgshop")
    node = definitions.resolve_asset_graph().get(table)
    assert (node.group_name, node.parent_keys) == (
        "sales",
        {dg.AssetKey("delivery"), dg.AssetKey(["landing", "dgshop"])},
    )
    assert node.freshness_policy is not None
    assert node.automation_condition is not None
    assert {"landing_dgshop", "default_automation_condition_sensor"} <= {
        sensor.name for sensor in definitions.get_repository_def().sensor_defs
    }
    job = definitions.resolve_implicit_global_asset_job_def()
    report = dg.AssetKey("report")

    def numbers(*selection: dg.AssetKey, instance: dg.DagsterInstance, **tags: str) -> dict[str, object]:
        ran = job.execute_in_process(instance=instance, asset_selection=list(selection), tags=tags)
        [event] = [each for each in ran.get_asset_materialization_events() if each.asset_key == selection[-1]]
        return {name: value.value for name, value in event.materialization.metadata.items()}

    with dg.DagsterInstance.ephemeral() as instance:
        read = numbers(dg.AssetKey("delivery"), table, report, instance=instance)
        figures = {"rows": 3, "number": 0, "lakeshare/input/dgshop.dgshop": 0}
        assert read == {**figures, "location": read["location"]}
        assert list(Path(str(read["location"])).rglob("*.parquet"))
        checks = definitions.resolve_asset_graph().get_check_keys_for_assets({table})
        assert len(checks) == 6
        for key in checks:
            record = instance.get_latest_asset_check_evaluation_record(key)
            assert record.event.asset_check_evaluation.passed, key
        assert numbers(report, instance=instance, **{INPUTS_TAG: "dgshop.dgshop@0"}) == read
        for asset in ("from_pandas", "from_arrow", "from_spark"):
            summed = numbers(dg.AssetKey(asset), instance=instance)
            assert summed == {"sum": 3, "lakeshare/input/dgshop.dgshop": 0}, asset


CELLS_CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: dgcells
name: dgcells
version: 1.0.0
status: active
servers: [{server: lake, type: local, path: warehouse, format: iceberg}]
schema:
  - name: sales
    physicalName: dgcells.sales
    customProperties: [{property: source, value: sales}]
    properties:
      - {name: day, logicalType: date, required: true, partitioned: true, partitionKeyPosition: 1}
      - {name: area, logicalType: string, required: true, partitioned: true, partitionKeyPosition: 2}
      - {name: id, logicalType: integer, physicalType: int, primaryKey: true}
customProperties:
  - property: partitioning
    value: {kind: daily, second: {column: area, static: [eu, us]}}
  - {property: firstPartition, value: "2024-01-01"}
"""


def test_a_backfill_by_day_and_area_and_assets_that_read_their_partitions(
    tmp_path: Path, own_lake: LakeSettings
) -> None:
    """In Dagster's keys the area is before the day."""
    path = tmp_path / "dgcells.yaml"
    path.write_text(CELLS_CONTRACT)
    for number, cell in enumerate(("01/eu", "01/us", "02/eu", "02/us")):
        folder = Path(own_lake.landing_root) / "dgcells" / f"2024-01-{cell}"
        folder.mkdir(parents=True)
        (folder / "sales.csv").write_text(f"day,area,id\n2024-01-{cell.replace('/', ',')},{number}\n")
        (folder / "_SUCCESS").touch()
    cells = lakeshare.set_definitions(path)
    table = lakeshare.table_key("dgcells.sales")
    partitions = cells.get_assets_def(table).partitions_def
    read: dict[str, list[int]] = {}

    def read_ids(name: str, rows: lakeshare.LakeshareTable) -> None:
        read[name] = sorted(rows.to_arrow()["id"].to_pylist())

    @dg.asset(ins={"rows": lakeshare.table_input("dgcells.sales")}, partitions_def=partitions)
    def cell(rows: lakeshare.LakeshareTable) -> None:
        read_ids("cell", rows)

    @dg.asset(
        ins={"rows": lakeshare.table_input("dgcells.sales")},
        partitions_def=dg.StaticPartitionsDefinition(["eu", "us"]),
    )
    def area(rows: lakeshare.LakeshareTable) -> None:
        read_ids("area", rows)

    @dg.asset(ins={"rows": lakeshare.table_input("dgcells.sales")})
    def whole(rows: lakeshare.LakeshareTable) -> None:
        read_ids("whole", rows)

    defs = dg.Definitions.merge(cells, dg.Definitions(assets=[cell, area, whole]))
    ends = ("eu|2024-01-01", "us|2024-01-02")
    backfill = dict(
        zip(("dagster/asset_partition_range_start", "dagster/asset_partition_range_end"), ends, strict=True)
    )
    with dg.DagsterInstance.ephemeral() as instance:

        def run(key: dg.AssetKey, **options: Any) -> dg.ExecuteInProcessResult:
            job = defs.resolve_implicit_job_def_def_for_assets([key])
            assert job is not None
            return job.execute_in_process(instance=instance, asset_selection=[key], **options)

        run(table, tags=backfill)
        record = instance.fetch_materializations(table, limit=10).records
        assert {each.partition_key for each in record} == {
            "eu|2024-01-01",
            "eu|2024-01-02",
            "us|2024-01-01",
            "us|2024-01-02",
        }
        run(cell.key, partition_key=dg.MultiPartitionKey({"day": "2024-01-02", "area": "eu"}))
        run(area.key, partition_key="us")
        run(whole.key)
    assert read == {"cell": [2], "area": [1, 3], "whole": [0, 1, 2, 3]}
