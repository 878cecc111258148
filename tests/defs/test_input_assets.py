"""A set that is made of published tables depends on their assets, and runs where one of them has a newer number."""

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.defs.wap import INPUTS_TAG, LakeResource, inputs_sensor, table_key, wap_set
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.lineage import find_code
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.gold_sets import write_gold, write_module
from tests.builders.publications import a_publication
from tests.builders.sets import a_contract, a_delivery, orders
from tests.defs.test_unchanged_delivery import NoSpark, has_asked_for_spark

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    contracts = tmp_path / "contracts"
    a_contract(contracts, "shop", "delta")
    a_contract(contracts, "other", "delta")
    write_gold(contracts, "gold", "gold_of_defs:enrich", "shop", "other", "delta")
    write_module(tmp_path / "code", "gold_of_defs", "shop", "other")
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(contracts))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return Ledger(open_catalog(LakeSettings(_env_file=None).catalog_url))


@pytest.fixture
def gold(ledger, tmp_path):
    return next(one for one in load_contracts(tmp_path / "contracts") if one.name == "gold")


def publish(ledger, *tables, days=(MONDAY,), digest="", number=0, **evidence):
    """Publications of one run at a number, of days of deliveries."""
    verdicts = {"deliveries": dict.fromkeys(days, "d"), "failed_checks": [], **evidence}
    common = {
        "format": "delta",
        "delta_version": number,
        "contract_digest": digest,
        "partition": "...".join(days),
    }
    run = a_publication().run_id
    ledger.append(
        [
            a_publication(table=table, set_name=table.split(".")[0], run_id=run, verdicts=verdicts, **common)
            for table in tables
        ]
    )


def publish_gold(ledger, gold, days, orders, totals, others):
    """A publication of the set `gold` of these numbers of its inputs."""
    inputs = {
        "gold.enriched": {
            "shop.orders": {"version": orders, "is_whole": False},
            "other.totals": {"version": others, "is_whole": True},
        },
        "gold.days": {
            "gold.enriched": {"version": None, "is_whole": False},
            "shop.totals": {"version": totals, "is_whole": False},
        },
    }
    latest = ledger.latest("gold.days")
    for table in gold.tables:
        write_deltalake(table_location(LakeSettings(), table), pa.table({"id": [1]}), mode="append")
    publish(
        ledger,
        "gold.enriched",
        "gold.days",
        days=days,
        digest=gold.digest,
        number=0 if latest is None else latest.version + 1,
        inputs=inputs,
        code=find_code(gold),
        deliveries=dict.fromkeys(days, ""),
    )


def test_the_assets_of_a_set_depend_on_the_tables_that_it_reads(ledger, gold):
    asset = wap_set(gold)
    graph = defs().get_repository_def().asset_graph

    assert graph.get(table_key("gold.enriched")).parent_keys == {
        table_key(name) for name in ("shop.orders", "shop.totals", "other.totals")
    }
    assert dg.AssetKey(["landing", "gold"]) not in graph.get_all_asset_keys()
    assert asset.specs_by_key[table_key("gold.enriched")].kinds == {"spark", "delta", "python"}
    sensors = {sensor.name for sensor in defs().get_repository_def().sensor_defs}
    assert {"inputs_gold", "landing_shop"} <= sensors
    assert not {"landing_gold", "inputs_shop"} & sensors


def test_a_newer_number_starts_the_days_that_it_changes_once(ledger, gold):
    cursor = None

    def tick():
        nonlocal cursor
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance=instance, definitions=defs(), cursor=cursor)
            result = inputs_sensor(gold).evaluate_tick(context)
        cursor = result.cursor or cursor
        return result.skip_message or [request.partition_key for request in result.run_requests]

    publish(ledger, "shop.orders", "shop.totals", days=(MONDAY, TUESDAY))
    assert tick() == "other.totals has no publication."
    publish(ledger, "other.orders", "other.totals")
    # Tuesday waits for the other daily input.
    assert tick() == [MONDAY]
    assert "No input has a newer number" in tick()
    publish_gold(ledger, gold, [MONDAY], 0, 0, 0)
    publish(ledger, "other.orders", "other.totals", days=(TUESDAY,), number=1)
    # All of it was read on Monday, the last day.
    assert tick() == [MONDAY, TUESDAY]
    publish_gold(ledger, gold, [MONDAY, TUESDAY], 0, 0, 1)
    publish(ledger, "shop.orders", "shop.totals", number=1)
    assert tick() == [MONDAY]
    publish_gold(ledger, gold, [MONDAY], 1, 1, 1)
    publish(ledger, "other.orders", "other.totals", number=2)
    # Of what is read as a whole, only the last day follows.
    assert tick() == [TUESDAY]


def test_of_a_set_with_deliveries_the_days_run_whose_deliveries_are_still_there(ledger, tmp_path):
    derive = "      - property: derive\n"
    reading = {
        derive: f"      - {{property: inputs, value: [gold.days]}}\n{derive}",
        "{orders} G": "{orders} JOIN {days} USING (day) G",
    }
    late = a_contract(tmp_path / "contracts", "late", "delta", **reading)
    publish(ledger, "gold.days", days=(MONDAY, TUESDAY))
    read = {"late.totals": {"gold.days": {"version": 0, "is_whole": False}}}
    publish(ledger, "late.orders", "late.totals", days=(MONDAY, TUESDAY), inputs=read, code=find_code(late))
    publish(ledger, "gold.days", days=(MONDAY, TUESDAY), number=1)
    a_delivery(LakeSettings(), late, TUESDAY, orders(TUESDAY))

    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, definitions=defs())
        result = inputs_sensor(late).evaluate_tick(context)

    assert [request.partition_key for request in result.run_requests] == [TUESDAY]


def test_a_run_with_pinned_inputs_is_compared_with_them_and_refused_without_spark(ledger, gold):
    publish(ledger, "shop.orders", "shop.totals")
    publish(ledger, "other.orders", "other.totals")
    publish_gold(ledger, gold, [MONDAY], 0, 0, 0)
    asset = wap_set(gold)

    def run(pins):
        return dg.materialize(
            [
                asset,
                *(dg.AssetSpec(read, partitions_def=asset.partitions_def) for read in asset.dependency_keys),
            ],
            selection=[asset],
            partition_key=MONDAY,
            tags={INPUTS_TAG: pins},
            resources={"lakeshare": LakeResource(spark=NoSpark())},
            raise_on_error=False,
        )

    ended = run("shop.orders@0")
    assert ended.success
    [metadata] = [
        event.materialization.metadata
        for event in ended.get_asset_materialization_events()
        if event.asset_key == table_key("gold.enriched")
    ]
    assert metadata["lakeshare/inputs"].value == {"shop.orders": 0, "other.totals": 0}
    publish(ledger, "shop.orders", "shop.totals", number=1)
    assert has_asked_for_spark(run(""))
    assert run("shop.orders@0, shop.totals@0").success
    refused = run("shop.orders@5")
    assert "input shop.orders has no publication 5" in str(
        [e.event_specific_data for e in refused.all_events]
    )
