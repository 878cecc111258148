"""A contract in a project's own definitions: options, several sets beside each other, and what is refused."""

import subprocess
import sys
from datetime import timedelta
from importlib import import_module

import dagster as dg
import pytest
import yaml
from dagster.components.resolved.errors import ResolutionException
from dagster.components.testing.utils import component_defs
from pydantic import ValidationError

import lakeshare_pipelines as lakeshare
from lakeshare_pipelines.components import PublishedSet
from lakeshare_pipelines.contracts import load_contract
from lakeshare_pipelines.defs.published_set import load_set
from lakeshare_pipelines.defs.wap import INPUTS_TAG
from lakeshare_pipelines.errors import ContractError, InputError, TransformError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.lineage import find_code
from lakeshare_pipelines.wap.inputs import load_transform, open_table
from lakeshare_pipelines.wap.staged import open_lake_without_spark
from lakeshare_server.catalog import Ledger, RecordedContract, open_catalog
from tests.builders.gold_sets import write_gold, write_module, write_sums
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


def test_attributes_of_the_component_are_set_on_every_table_and_step(gold):
    options = {
        "contract": str(gold),
        "owners": ["team:sales"],
        "tags": {"tier": "1"},
        "deps": ["raw/orders"],
        "automation_condition": "{{ dg.AutomationCondition.eager() }}",
        "freshness": {"fail_hours": 30, "warn_hours": 20},
        "retries": {"max_retries": 2, "delay_s": 5},
        "pool": "one_at_a_time",
        "partition_mappings": {"shop.orders": {"type": "time_window", "start_offset": -1}},
    }
    defs = component_defs(component=PublishedSet.from_attributes_dict(attributes=options))
    asset = defs.get_assets_def(lakeshare.table_key("gold.days"))
    assert asset.keys == {lakeshare.table_key(f"gold.{name}") for name in ("enriched", "days")}
    for spec in asset.specs:
        assert (spec.group_name, spec.owners) == ("gold", ["team:sales"])
        assert {"tier": "1"}.items() <= spec.tags.items()
        assert spec.automation_condition == dg.AutomationCondition.eager()
        assert spec.freshness_policy == dg.FreshnessPolicy.time_window(
            timedelta(hours=30), timedelta(hours=20)
        )
    assert dg.AssetKey(["raw", "orders"]) in asset.dependency_keys
    mapped = asset.get_partition_mapping(lakeshare.table_key("shop.orders"))
    assert mapped == dg.TimeWindowPartitionMapping(start_offset=-1)
    assert {step.pool for step in asset.node_def.node_defs} == {"one_at_a_time"}
    assert {
        (step.retry_policy.max_retries, step.retry_policy.delay) for step in asset.node_def.dependencies
    } == {(2, 5)}
    with pytest.raises(ValidationError, match="fail_hours"):
        PublishedSet.from_attributes_dict(attributes=options | {"freshness": {"fail_hours": 0}})
    mapped = {"shop.orders": {"type": "last", "start_offset": -1}}
    with pytest.raises(ResolutionException, match="are of type time_window, not of last"):
        PublishedSet.from_attributes_dict(attributes=options | {"partition_mappings": mapped})


def test_without_options_assets_have_what_the_contract_has(gold):
    document = yaml.safe_load(gold.read_text())
    document["team"] = {"name": "lake"}
    columns = document["schema"][1]["properties"]
    columns[1]["transformSourceObjects"] = ["enriched.id"]
    columns[2]["transformSourceObjects"] = ["shop.totals.orders"]
    gold.write_text(yaml.safe_dump(document, sort_keys=False))
    asset = component_defs(component=PublishedSet(contract=str(gold))).get_assets_def(
        lakeshare.table_key("gold.days")
    )

    specs = {spec.key.path[-1]: spec for spec in asset.specs}
    assert {name: spec.kinds for name, spec in specs.items()} == {
        "enriched": {"spark", "delta", "python"},
        "days": {"spark", "delta"},
    }
    for spec in specs.values():
        assert (spec.group_name, spec.owners) == ("gold", ["team:lake"])
        assert (spec.automation_condition, spec.freshness_policy) == (None, None)
    lineage = specs["days"].metadata["dagster/column_lineage"].deps_by_column
    assert lineage["n"] == [dg.TableColumnDep(lakeshare.table_key("gold.enriched"), "id")]
    assert lineage["of"] == [dg.TableColumnDep(lakeshare.table_key("shop.totals"), "orders")]
    assert {step.pool for step in asset.node_def.node_defs} == {"lakeshare_gold"}
    assert {step.retry_policy for step in asset.node_def.dependencies} == {None}

    graph = dg.Definitions.merge(
        *(lakeshare.set_definitions(gold.parent / f"{name}.yaml") for name in ("shop", "other", "gold"))
    ).resolve_asset_graph()
    days = graph.get(lakeshare.table_key("gold.enriched"))
    upstream = graph.get(lakeshare.table_key("shop.orders"))
    mapping = graph.get_partition_mapping(days.key, upstream.key)
    assert isinstance(mapping, dg.TimeWindowPartitionMapping)


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


CODE = """
import functools
import lakeshare_pipelines as lakeshare


@lakeshare.transform(table="enriched")
def enrich(inputs: lakeshare.Inputs):
    return inputs.table("shop.orders")


@lakeshare.transform
def enriched(inputs):
    return None


@lakeshare.transform(table="enrichd")
def misspelt(inputs):
    return None


@lakeshare.transform
def days(inputs):
    return None


@lakeshare.transform(table="enriched")
def take_two(inputs, more):
    return None


@lakeshare.transform(table="enriched")
async def wait(inputs):
    return None


def without_a_table(inputs):
    return None


def make_local():
    return lambda inputs: None


LOCAL, PARTIAL = make_local(), functools.partial(enrich)
"""


@pytest.fixture
def coded(gold, tmp_path, monkeypatch):
    """The contract of the gold set without its transform, and a module with functions for it."""
    document = yaml.safe_load(gold.read_text())
    del document["schema"][0]["customProperties"][0]
    gold.write_text(yaml.safe_dump(document, sort_keys=False))
    (tmp_path / "code" / "transforms_of_project.py").write_text(CODE)
    # The module of an earlier test is another file.
    monkeypatch.delitem(sys.modules, "transforms_of_project", raising=False)
    return gold, import_module("transforms_of_project")


def test_functions_in_code_make_tables(coded):
    contract, code = coded
    asset = lakeshare.published_set(contract, transforms=[code.enrich])
    specs = {spec.key: spec for spec in asset.specs}
    assert specs[lakeshare.table_key("gold.enriched")].kinds == {"spark", "delta", "python"}

    loaded = load_set(contract, transforms={"gold.enriched": code.enrich})
    assert loaded.table("enriched").transform == "transforms_of_project:enrich"
    assert load_transform(loaded, loaded.table("enriched")).function is code.enrich
    assert find_code(loaded).keys() == {"gold.enriched"}
    other = load_set(contract, transforms=[code.enriched])
    assert len({loaded.digest, other.digest, load_set(contract, transforms=[code.enrich]).digest}) == 2
    both = dg.Definitions.merge(
        lakeshare.set_definitions(contract, transforms=[code.enrich]),
        lakeshare.catalog_definitions(
            [contract.parent / f"{name}.yaml" for name in ("shop", "other", "gold")]
        ),
    )
    dg.Definitions.validate_loadable(both)
    # Sets that read its tables need no functions.
    write_sums(contract.parent, "sums", "gold", "delta")
    assert [read.table for read in load_set(contract.parent / "sums.yaml").inputs] == ["gold.days"]


@pytest.mark.parametrize(
    ("select", "messages"),
    [
        (lambda code: [], ["table enriched has neither source nor derive", "transforms of published_set"]),
        (lambda code: [code.misspelt], ["transforms_of_project:misspelt", "Did you mean 'enriched'?"]),
        (
            lambda code: [code.enrich, code.days],
            [
                "schema[1].customProperties",
                "has derive, and the transform transforms_of_project:days",
                "Remove",
            ],
        ),
        (lambda code: [code.enrich, code.enriched], ["enriched.transform: ", "is a second one", "Keep one"]),
        (
            lambda code: {"enriched": code.enrich, "gold.enriched": code.enriched},
            ["has two transforms in code", "Keep one"],
        ),
        (
            lambda code: [code.take_two],
            ["argument: 'more'", "transforms_of_project.py, line", "Define it as"],
        ),
        (lambda code: [code.wait], ["is a coroutine", "transforms_of_project.py, line", "plain function"]),
        (
            lambda code: [code.without_a_table],
            ["without_a_table names no table", "@lakeshare_pipelines.transform"],
        ),
        (lambda code: {"enriched": code.LOCAL}, ["cannot be imported by its name", "at the top of a module"]),
        (lambda code: {"enriched": code.PARTIAL}, ["is no function", "(inputs: Inputs) -> DataFrame"]),
    ],
)
def test_functions_that_do_not_fit_the_contract_are_refused(coded, select, messages):
    contract, code = coded
    with pytest.raises((ContractError, TransformError)) as refused:
        lakeshare.published_set(contract, transforms=select(code))
    for message in (str(contract), *messages):
        assert message in str(refused.value)


def test_functions_are_given_with_the_file_of_the_contract(coded):
    contract, code = coded
    loaded = load_set(contract, transforms=[code.enrich])
    with pytest.raises(ContractError, match="Give the contract's file"):
        lakeshare.published_set(loaded, transforms=[code.enrich])


def publish_orders(ledger):
    """Writes two publications of `shop.orders` into the ledger."""
    for number in range(2):
        options = {"table": "shop.orders", "set_name": "shop", "format": "delta", "delta_version": number}
        ledger.append([a_publication(**options, run_id=f"{number}" * 32)])


def test_a_table_is_opened_at_its_newest_or_a_readable_number(contracts):
    settings = LakeSettings(_env_file=None)
    ledger, lake = Ledger(open_catalog(settings.catalog_url)), open_lake_without_spark(settings)
    with pytest.raises(InputError, match=r"shop\.orders has no publication"):
        open_table(lake, ledger, "shop.orders")
    publish_orders(ledger)

    opened = open_table(lake, ledger, "shop.orders")
    assert (opened.name, opened.version, open_table(lake, ledger, "shop.orders", 0).version) == (
        "shop.orders",
        1,
        0,
    )
    with pytest.raises(InputError, match="has no publication 7"):
        open_table(lake, ledger, "shop.orders", 7)


def test_partitions_are_read_of_a_table_whose_published_contract_has_them(contracts):
    settings = LakeSettings(_env_file=None)
    ledger, lake = Ledger(open_catalog(settings.catalog_url)), open_lake_without_spark(settings)
    publish_orders(ledger)
    with pytest.raises(
        InputError, match=r"shop\.orders has no partitions that can be read alone\. Read all rows"
    ):
        open_table(lake, ledger, "shop.orders", partitions=["2024-01-01"])

    contract = load_contract(contracts / "shop.yaml")
    merged = contract.text.replace(
        "{property: source, value: orders}",
        "{property: source, value: orders}\n      - {property: write, value: {mode: merge}}",
    ).replace("- property: derive", "- {property: write, value: {mode: replace}}\n      - property: derive")
    for number, digest, text in ((2, "daily", contract.text), (3, "merged", merged)):
        ledger.record_contract(RecordedContract(digest, "shop", contract.version, text))
        options = {"table": "shop.orders", "set_name": "shop", "format": "delta", "contract_digest": digest}
        ledger.append([a_publication(**options, delta_version=number, run_id=digest)])

    opened = open_table(lake, ledger, "shop.orders", 2, partitions=["2024-01-01", "2024-01-03"])
    assert opened.partitions == ("2024-01-01", "2024-01-03")
    with pytest.raises(InputError, match=r"has no partition '2023-12-31'\. Give a day from 2024-01-01 on"):
        open_table(lake, ledger, "shop.orders", 2, partitions=["2023-12-31"])
    with pytest.raises(InputError, match="has no partitions that can be read alone"):
        open_table(lake, ledger, "shop.orders", 3, partitions=["2024-01-01"])


ORDERS = lakeshare.table_input("shop.orders")


@dg.asset(ins={"orders": ORDERS})
def newest(orders: lakeshare.LakeshareTable) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"number": orders.version})


@dg.asset(ins={"orders": lakeshare.table_input("shop.orders", version=0)})
def first(orders: lakeshare.LakeshareTable) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"number": orders.version})


@dg.asset(ins={"orders": lakeshare.table_input("shop.orders", version=7)})
def absent(orders: lakeshare.LakeshareTable) -> None:
    raise AssertionError("the number does not exist")


@dg.asset(ins={"orders": ORDERS})
def counted(orders: int) -> None:
    raise AssertionError("a table is no number")


@dg.asset(ins={"orders": lakeshare.table_input("shop.orders", partition_mapping=dg.LastPartitionMapping())})
def of_last_day(orders: lakeshare.LakeshareTable) -> None:
    assert orders.version == 1


def test_assets_take_tables_as_parameters_at_numbers_that_are_recorded(contracts):
    own = [newest, first, absent, counted, of_last_day]
    defs = dg.Definitions.merge(
        lakeshare.set_definitions(contracts / "shop.yaml"), dg.Definitions(assets=own)
    )
    dg.Definitions.validate_loadable(defs)
    job = defs.resolve_implicit_global_asset_job_def()
    publish_orders(Ledger(open_catalog(LakeSettings(_env_file=None).catalog_url)))

    def read(asset, **tags):
        with dg.DagsterInstance.ephemeral() as instance:
            ran = job.execute_in_process(instance=instance, asset_selection=[asset.key], tags=tags)
        [event] = ran.get_asset_materialization_events()
        [loaded] = [each for each in ran.all_node_events if each.event_type_value == "LOADED_INPUT"]
        recorded = {name: value.value for name, value in event.materialization.metadata.items()}
        return recorded, {name: each.value for name, each in loaded.event_specific_data.metadata.items()}

    number = "lakeshare/input/shop.orders"
    assert read(newest)[0] == {"number": 1, number: 1}
    assert read(newest, **{INPUTS_TAG: "shop.orders@0"})[0] == {"number": 0, number: 0}
    assert read(first)[0] == {"number": 0, number: 0}
    assert read(of_last_day) == ({number: 1}, {number: 1})
    with pytest.raises(InputError, match="has no publication 7"):
        read(absent)
    with pytest.raises(
        InputError, match=r"parameter orders of counted: .*read as Int\. Annotate .* pyarrow\.Table"
    ):
        read(counted)
