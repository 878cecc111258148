"""A contract in a project's own definitions: options, several sets beside each other, and what is refused."""

import subprocess
import sys
from datetime import timedelta

import dagster as dg
import pytest

import lakeshare_pipelines as lakeshare
from lakeshare_pipelines.contracts import load_contract
from lakeshare_pipelines.defs.published_set import load_set
from lakeshare_pipelines.errors import ContractError, InputError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.inputs import open_table
from lakeshare_pipelines.wap.staged import open_lake_without_spark
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.gold_sets import write_gold, write_module
from tests.builders.publications import a_publication
from tests.builders.sets import a_contract


@pytest.fixture
def contracts(tmp_path, monkeypatch):
    folder = tmp_path / "contracts"
    a_contract(folder, "shop", "delta")
    a_contract(folder, "other", "iceberg")
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    return folder


@pytest.fixture
def gold(contracts, tmp_path, monkeypatch):
    write_gold(contracts, "gold", "gold_of_project:enrich", "shop", "other", "delta")
    write_module(tmp_path / "code", "gold_of_project", "shop", "other")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    return contracts / "gold.yaml"


def test_the_package_imports_neither_dagster_nor_spark():
    code = (
        "import sys, lakeshare_pipelines as lakeshare; "
        "print([name for name in ('dagster', 'pyspark') if name in sys.modules], hasattr(lakeshare, 'publish'))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "[] False"
    assert all(hasattr(lakeshare, name) for name in lakeshare.__all__)


def test_options_are_set_on_every_table_and_step(contracts):
    freshness, eager = dg.FreshnessPolicy.time_window(timedelta(hours=30)), dg.AutomationCondition.eager()
    asset = lakeshare.published_set(
        contracts / "shop.yaml",
        deps=["delivery", dg.AssetDep(["crm", "orders"], partition_mapping=dg.LastPartitionMapping())],
        group_name="sales",
        owners=["team:sales"],
        tags={"tier": "1"},
        automation_condition=eager,
        freshness_policy=freshness,
        retry_policy=dg.RetryPolicy(max_retries=2),
        pool="one_at_a_time",
    )

    assert len(asset.keys) == 2
    for spec in asset.specs:
        assert (spec.group_name, spec.owners, spec.automation_condition) == ("sales", ["team:sales"], eager)
        assert spec.freshness_policy == freshness
        assert {"tier": "1", "domain": "tests"}.items() <= spec.tags.items()
        assert spec.kinds == {"spark", "delta"}
        assert {"dagster/column_schema", "dagster/column_lineage"} <= spec.metadata.keys()
    assert asset.dependency_keys == {
        dg.AssetKey(name) for name in (["delivery"], ["crm", "orders"], ["landing", "shop"])
    }
    assert isinstance(asset.get_partition_mapping(dg.AssetKey(["crm", "orders"])), dg.LastPartitionMapping)
    assert {step.pool for step in asset.node_def.node_defs} == {"one_at_a_time"}
    steps = asset.node_def.dependencies
    assert [step.retry_policy.max_retries for step in steps] == [2, 2, 2]


def test_several_sets_are_merged_with_a_project_that_has_a_lake_and_an_executor_of_its_own(contracts):
    files = [contracts / "shop.yaml", contracts / "other.yaml"]
    own = dg.Definitions(
        resources={"lake": "a house at a lake", "s3": "a client"}, executor=dg.multiprocess_executor
    )
    merged = dg.Definitions.merge(
        own,
        lakeshare.set_definitions(str(files[0])),
        lakeshare.set_definitions(load_contract(files[1]), has_sensors=False, has_maintenance=False),
        lakeshare.catalog_definitions(files),
    )

    dg.Definitions.validate_loadable(merged)
    repository = merged.get_repository_def()
    sensors = {sensor.name: sensor for sensor in repository.sensor_defs}
    assert sensors.keys() == {"landing_shop", "default_automation_condition_sensor"}
    assert [target.job_name for target in sensors["landing_shop"].targets] == ["publish_shop"]
    assert [schedule.name for schedule in repository.schedule_defs] == ["janitor_nightly", "maintain_shop"]
    for name in ("publish_shop", "publish_other", "maintain_shop"):
        assert repository.get_job(name).executor_def is dg.in_process_executor
    shared = repository.asset_graph.get(dg.AssetKey("share_catalog")).parent_keys
    assert {key.path[0] for key in shared} == {"shop", "other"}


def test_a_set_reads_the_contracts_beside_it_or_those_that_are_named(gold, tmp_path):
    (gold.parent / "defs.yaml").write_text("type: lakeshare_pipelines.components.PublishedSet\n")
    latest = dg.LastPartitionMapping()
    key = lakeshare.table_key("other.totals")
    asset = lakeshare.published_set(gold, deps=[dg.AssetDep(key, partition_mapping=latest)])
    assert asset.get_partition_mapping(key) == latest
    assert len(asset.dependency_keys) == 3
    days = {read.table: read.column for read in load_set(gold).inputs}
    assert days["shop.orders"] == "day"

    alone = tmp_path / "alone" / "contract.yaml"
    alone.parent.mkdir()
    gold.rename(alone)
    with pytest.raises(ContractError, match="no contract has the table"):
        load_set(alone)
    files = [gold.parent / "shop.yaml", str(gold.parent / "other.yaml")]
    assert {read.table: read.column for read in load_set(alone, files).inputs} == days
    with pytest.raises(ContractError, match=r"absent\.yaml"):
        lakeshare.published_set(tmp_path / "absent.yaml")


def test_a_table_is_opened_at_its_newest_or_a_readable_number(contracts):
    settings = LakeSettings(_env_file=None)
    ledger, lake = Ledger(open_catalog(settings.catalog_url)), open_lake_without_spark(settings)
    with pytest.raises(InputError, match=r"shop\.orders has no publication"):
        open_table(lake, ledger, "shop.orders")
    for number in range(2):
        run_id = f"{number}" * 32
        ledger.append(
            [
                a_publication(
                    table="shop.orders", set_name="shop", format="delta", delta_version=number, run_id=run_id
                )
            ]
        )

    opened = open_table(lake, ledger, "shop.orders")
    assert (opened.name, opened.version, open_table(lake, ledger, "shop.orders", 0).version) == (
        "shop.orders",
        1,
        0,
    )
    with pytest.raises(InputError, match="has no publication 7"):
        open_table(lake, ledger, "shop.orders", 7)
