"""A table that a contract sends to Snowflake is an asset behind its publication; without an account there is none."""

import json
from pathlib import Path

import dagster as dg
import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.defs.share import snowflake_tables
from lakeshare_pipelines.defs.wap import LakeResource, SparkResource, table_key, wap_set
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.publications import a_publication
from tests.builders.s3_objects import s3_with
from tests.builders.sets import a_contract
from tests.builders.snowflake import Exchange, answered, login_refused, replayed

MORE = """\
  - property: snowflake
    value:
      - {database: LAKE, schema: SHOP, tables: [{table: orders, name: all_orders}]}
"""
KEY = dg.AssetKey(["snowflake", "LAKE", "SHOP", "all_orders"])
METADATA = "s3://lake/orders/metadata/1.metadata.json"
NAME = '"LAKE"."SHOP"."ALL_ORDERS"'


@pytest.fixture
def contract(tmp_path: Path) -> SetContract:
    return a_contract(tmp_path / "contracts", "shop", "iceberg", MORE)


@pytest.fixture
def configured(contract: SetContract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {
        "STATE_DIR": str(tmp_path / "state"),
        "CONTRACTS_DIR": str(contract.path.parent),
        "SNOWFLAKE_ACCOUNT": "acme-lake",
        "SNOWFLAKE_USER": "LOADER",
        "SNOWFLAKE_PASSWORD": "pass-word",
        "SNOWFLAKE_EXTERNAL_VOLUME": "lake",
        "SNOWFLAKE_ICEBERG_INTEGRATION": "lake_files",
        "S3_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"LAKESHARE_{name}", value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return monkeypatch


def test_the_asset_is_there_behind_its_table_only_where_an_account_is_set(configured):
    node = defs().resolve_asset_graph().get(KEY)
    assert node.parent_keys == {dg.AssetKey(["shop", "orders"])}
    assert (node.group_name, node.kinds, node.owners) == ("share", {"snowflake"}, ["team:lake"])

    configured.setenv("LAKESHARE_SNOWFLAKE_ACCOUNT", "")
    keys = defs().resolve_asset_graph().get_all_asset_keys()
    assert KEY not in keys
    assert dg.AssetKey(["shop", "orders"]) in keys


def test_one_published_day_of_many_sets_it_going_once(configured, contract):
    [table] = snowflake_tables([contract], LakeSettings())
    definitions = dg.Definitions(
        assets=[wap_set(contract), table], resources={"lakeshare": LakeResource(spark=SparkResource())}
    )
    instance = dg.DagsterInstance.ephemeral()

    def tick(cursor=None):
        return dg.evaluate_automation_conditions(
            definitions, instance, dg.AssetSelection.assets(KEY), cursor=cursor
        )

    first = tick()
    assert first.total_requested == 0
    for name in ("orders", "totals"):
        instance.report_runless_asset_event(
            dg.AssetMaterialization(table_key(f"shop.{name}"), partition="2024-01-02")
        )
    second = tick(first.cursor)
    assert second.get_requested_partitions(KEY) == {None}
    assert tick(second.cursor).total_requested == 0


def exchanges() -> list[Exchange]:
    done = answered("status", "Statement executed successfully.", "q-1")
    path = "'orders/metadata/1.metadata.json'"
    told = json.dumps({"metadataLocation": METADATA, "status": "success"})
    return [
        Exchange(
            f"CREATE ICEBERG TABLE IF NOT EXISTS {NAME}\n  EXTERNAL_VOLUME = 'LAKE'\n  CATALOG = 'LAKE_FILES'\n"
            f"  METADATA_FILE_PATH = {path}",
            done,
        ),
        Exchange(f"ALTER ICEBERG TABLE {NAME} REFRESH {path}", done),
        Exchange(f"SELECT SYSTEM$GET_ICEBERG_TABLE_INFORMATION('{NAME}')", answered("SHOWN", told, "q-3")),
    ]


def run(contract: SetContract, **options) -> dg.ExecuteInProcessResult:
    resources = {"lakeshare": LakeResource(spark=SparkResource())}
    return dg.materialize(snowflake_tables([contract], LakeSettings()), resources=resources, **options)


def test_a_run_shows_the_newest_publication_and_says_which_by_which_queries(configured, contract):
    Ledger(open_catalog(LakeSettings().catalog_url)).append(
        [a_publication(table="shop.orders", metadata_location=METADATA, snapshot_id=1, rows=77)]
    )
    store = {"lake/orders/metadata/1.metadata.json": b'{"current-snapshot-id": 1}'}
    with s3_with(store) as s3, replayed(exchanges()) as snowflake:
        configured.setenv("LAKESHARE_S3_ENDPOINT", s3.endpoint)
        configured.setenv("LAKESHARE_SNOWFLAKE_URL", snowflake.url)
        ended = run(contract)
    assert snowflake.replayed_whole()
    [event] = ended.get_asset_materialization_events()
    metadata = {name: held.value for name, held in event.materialization.metadata.items()}
    assert metadata["lakeshare/publication"] == 0
    assert metadata["dagster/row_count"] == 77
    assert metadata["dagster/uri"] == METADATA
    assert metadata["dagster/table_name"] == NAME
    assert metadata["snowflake/query_ids"] == ["q-1", "q-1", "q-3"]


def test_what_snowflake_refuses_fails_the_asset_with_the_remedy_and_no_secret(configured, contract):
    Ledger(open_catalog(LakeSettings().catalog_url)).append(
        [a_publication(table="shop.orders", metadata_location=METADATA, snapshot_id=1)]
    )
    store = {"lake/orders/metadata/1.metadata.json": b'{"current-snapshot-id": 1}'}
    with s3_with(store) as s3, replayed([], login_refused()) as snowflake:
        configured.setenv("LAKESHARE_S3_ENDPOINT", s3.endpoint)
        configured.setenv("LAKESHARE_SNOWFLAKE_URL", snowflake.url)
        ended = run(contract, raise_on_error=False)
    [failure] = [event for event in ended.all_events if event.is_step_failure]
    told = failure.step_failure_data
    assert "the login of LOADER was refused" in told.user_failure_data.description
    assert "_PRIVATE_KEY_FILE" in told.user_failure_data.description
    assert "pass-word" not in str(told)


def test_a_table_that_was_never_published_fails_by_its_name(configured, contract):
    ended = run(contract, raise_on_error=False)
    [failure] = [event for event in ended.all_events if event.is_step_failure]
    assert "shop.orders" in failure.step_failure_data.user_failure_data.description
