"""A run of a delivery that is in force already ends without Spark, with the verdicts it was published with."""

from pathlib import Path
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs import wap
from lakeshare_pipelines.defs.wap import LakeResource, SparkResource, landing_asset, table_key, wap_set
from lakeshare_pipelines.ingest import find_delivery
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.checks import list_checks
from lakeshare_pipelines.wap.delta import table_location
from lakeshare_pipelines.wap.staged import format_partitions
from lakeshare_server.catalog import Catalog, Ledger, open_catalog
from lakeshare_server.catalog.database import database_file
from lakeshare_server.errors import Unavailable
from tests.builders.publications import a_publication
from tests.builders.sets import a_contract, a_delivery, orders

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"


class SparkStarted(Exception):
    """The run asked for Spark."""


class NoSpark(SparkResource):
    """Ends the run that asks for Spark."""

    def session(self):
        raise SparkStarted


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return LakeSettings(_env_file=None)


@pytest.fixture
def contract(tmp_path) -> SetContract:
    return a_contract(tmp_path / "contracts", "shop", "delta")


def publish(
    settings: LakeSettings,
    contract: SetContract,
    *days: str,
    failed: tuple[str, ...] = (),
    rollback_of: int | None = None,
) -> None:
    deliveries = {day: find_delivery(settings, contract, day).digest for day in days}
    ledger = Ledger(open_catalog(settings.catalog_url))
    run_id = str(uuid4())
    latest = ledger.latest(contract.tables[0].name)
    for table in contract.tables:
        write_deltalake(table_location(settings, table), pa.table({"id": [1]}), mode="append")
    ledger.append(
        [
            a_publication(
                table=table.name,
                set_name=contract.name,
                format="delta",
                delta_version=0 if latest is None else latest.version + 1,
                contract_digest=contract.digest,
                verdicts={"deliveries": deliveries, "failed_checks": list(failed)},
                run_id=run_id,
                partition=format_partitions(days),
                rollback_of=rollback_of,
            )
            for table in contract.tables
        ]
    )


def run(contract: SetContract, day: str, lake: LakeResource | None = None) -> dg.ExecuteInProcessResult:
    resources = {"lakeshare": lake or LakeResource(spark=NoSpark())}
    assets = [wap_set(contract), landing_asset(contract)]
    return dg.materialize(
        assets, selection=[assets[0]], partition_key=day, resources=resources, raise_on_error=False
    )


def has_asked_for_spark(ended: dg.ExecuteInProcessResult) -> bool:
    return "SparkStarted" in str(
        [event.event_specific_data for event in ended.all_events if event.is_failure]
    )


def test_a_delivery_in_force_is_neither_written_nor_judged_again(settings, contract):
    for day in (MONDAY, TUESDAY):
        a_delivery(settings, contract, day, orders(day))
    warned = f"{contract.tables[0].name}: serveable"
    publish(settings, contract, MONDAY, failed=(warned,))
    publish(settings, contract, TUESDAY)

    ended = run(contract, MONDAY)

    assert ended.success
    results = {
        f"{one.asset_key.to_user_string().replace('/', '.')}: {one.check_name}": one.passed
        for one in ended.get_asset_check_evaluations()
    }
    assert results == {
        f"{check.table}: {check.name}": f"{check.table}: {check.name}" != warned
        for check in list_checks(contract)
    }
    materialized = {
        event.asset_key: event.materialization.metadata for event in ended.get_asset_materialization_events()
    }
    for table in contract.tables:
        metadata = materialized[table_key(table.name)]
        assert metadata["lakeshare/publication"].value == 1
        assert "in force already" in metadata["lakeshare/unchanged"].value
    history = Ledger(open_catalog(settings.catalog_url)).history(contract.tables[0].name)
    assert [publication.version for publication in history] == [1, 0]


@pytest.mark.parametrize(
    "change", ["another delivery", "another contract", "rolled back", "verdicts cut short"]
)
def test_anything_else_is_read(settings, contract, tmp_path, change):
    a_delivery(settings, contract, MONDAY, orders(MONDAY))
    publish(settings, contract, MONDAY, failed=("…",) if change == "verdicts cut short" else ())
    if change == "another delivery":
        a_delivery(settings, contract, MONDAY, orders(MONDAY, 4))
    if change == "rolled back":
        a_delivery(settings, contract, MONDAY, orders(MONDAY, 4))
        publish(settings, contract, MONDAY)
        publish(settings, contract, MONDAY, rollback_of=0)
    if change == "another contract":
        contract = a_contract(tmp_path / "changed", "shop", "delta", **{"Orders per day.": "Totals."})

    ended = run(contract, MONDAY)

    assert not ended.success
    assert has_asked_for_spark(ended)


class RecoveringLake(LakeResource):
    """A lake whose database comes back after it was missed once, from `<file>.away`."""

    def catalog(self) -> Catalog:
        try:
            return super().catalog()
        except Unavailable:
            file = Path(database_file(self.settings().catalog_url) or "")
            file.rmdir()
            file.with_suffix(".away").rename(file)
            raise


def test_a_run_outlives_a_database_that_is_away_for_a_while(settings, contract, monkeypatch):
    a_delivery(settings, contract, MONDAY, orders(MONDAY))
    publish(settings, contract, MONDAY)
    monkeypatch.setattr(wap, "RETRY_S", 0.0)
    file = Path(database_file(settings.catalog_url) or "")
    file.rename(file.with_suffix(".away"))
    file.mkdir()  # nothing can be opened there

    ended = run(contract, MONDAY, RecoveringLake(spark=NoSpark()))

    assert ended.success
    assert any(event.is_step_up_for_retry for event in ended.all_events)
