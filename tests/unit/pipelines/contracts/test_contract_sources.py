"""Sources of contracts other than landing: what they describe, what is refused, and the schedule they start by."""

import dagster as dg
import pytest

from lakeshare_pipelines.contracts.difference import compare_contracts
from lakeshare_pipelines.contracts.model import describe
from lakeshare_pipelines.definitions import defs
from lakeshare_pipelines.defs.published_set import set_definitions
from lakeshare_pipelines.defs.wap import wap_set
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import list_session_jars
from tests.builders.source_sets import EVENTS, a_source_set, a_table

URL = "jdbc:postgresql://db/shop"
LANDED = a_table("landed", "landed")
REFUSED = {
    "two kinds": (
        a_table("t", {"table": "/a", "jdbc": {"url": URL, "table": "t"}}),
        "this one has table and jdbc",
    ),
    "no kind": (a_table("t", {}), "this one has nothing. Give one of landing"),
    "neither table nor query": (a_table("t", {"jdbc": {"url": URL}}), "a table or a query, neither is given"),
    "table and query": (
        a_table("t", {"jdbc": {"url": URL, "table": "t", "query": "select 1"}}),
        "a table or a query, both is given",
    ),
    "partitions without a column": (
        a_table("t", {"jdbc": {"url": URL, "table": "t", "partitions": 4}}),
        "by partitionBy and partitions above 1. Give both",
    ),
    "a lag without a column": (
        a_table("t", {"jdbc": {"url": URL, "table": "t", "lagS": 4}}),
        "has lagS and reads all",
    ),
    "a password": (
        a_table("t", {"jdbc": {"url": f"{URL}?ssl=true&Password=x", "table": "t"}}),
        "url has the password",
    ),
    "an account": (
        a_table("t", {"jdbc": {"url": "jdbc:postgresql://me:x@db/shop", "table": "t"}}),
        "url has user or password before @",
    ),
    "another database": (
        a_table("t", {"jdbc": {"url": "jdbc:mysql://db/shop", "table": "t"}}),
        "jdbc.url: cannot be",
    ),
    "an incremental column of a replaced table": (
        a_table("t", {"jdbc": {"url": URL, "table": "t", "incremental": "n"}}),
        "read incrementally and replaced by each run. Give write: merge or append",
    ),
    "all rows appended again": (
        a_table("t", {"table": "/a"}, EVENTS, "append"),
        "would append all rows of the source",
    ),
    "landing beside": (
        LANDED + a_table("t", {"table": "/a"}),
        "has files in landing and other sources. Put landed",
    ),
    "an asset of landing": (
        a_table("t", {"landing": "t", "asset": "raw/t"}),
        "written by no other asset. Remove it",
    ),
    "an unknown field": (
        a_table("t", {"files": {"path": "/a", "format": "orc", "option": {}}}),
        "Did you mean 'options'",
    ),
}


@pytest.mark.parametrize(("tables", "message"), REFUSED.values(), ids=REFUSED)
def test_a_source_that_cannot_be_read_is_refused(tables, message, tmp_path):
    with pytest.raises(ContractError) as refused:
        a_source_set(tmp_path, "shop", tables)
    assert message in str(refused.value)


def test_daily_sets_and_schedules_of_delivered_sets_are_refused(tmp_path):
    daily = {"partitioning": "daily", "firstPartition": "2024-01-01"}
    with pytest.raises(ContractError, match=r"is not daily\. Give partitioning: none"):
        a_source_set(tmp_path, "shop", a_table("t", {"table": "/a"}), **daily)
    with pytest.raises(ContractError, match="schedule is for sets with sources other than landing"):
        a_source_set(tmp_path, "shop", LANDED, schedule="* * * * *")


def test_a_changed_source_is_a_minor_change(tmp_path):
    sources = [{"table": "/theirs/orders"}, {"share": {"profile": "THEIRS", "table": "a.b.c"}}]
    old, new = (a_source_set(tmp_path / str(n), "shop", a_table("t", each)) for n, each in enumerate(sources))
    [change] = compare_contracts(old, new)
    assert (change.what, change.level) == ("read from shared table a.b.c, or in another way", "minor")


def test_a_set_with_sources_has_a_schedule_and_the_driver(tmp_path):
    settings = LakeSettings(
        _env_file=None, state_dir=tmp_path / "state", contracts_dir=tmp_path / "contracts"
    )
    assert a_source_set(settings.contracts_dir, "plain", LANDED).schedule is None
    assert "postgresql" not in list_session_jars(settings)

    tables = (
        a_table("t", {"jdbc": {"url": f"{URL}?ssl=true", "table": "t"}}),
        a_table("same", {"landing": "x"}),
    )
    written = a_table("u", {"table": "/theirs/orders", "asset": "raw/orders"})
    contract = a_source_set(settings.contracts_dir, "shop", tables[0], written, schedule="*/15 * * * *")
    assert dg.AssetKey(["raw", "orders"]) in wap_set(contract).dependency_keys
    assert "postgresql" in list_session_jars(settings)
    assert not contract.takes_deliveries
    assert "read from t of postgresql://db/shop)" in describe(contract)
    assert a_source_set(tmp_path, "same", tables[1]).tables[0].source == "x"


def test_a_code_location_and_a_project_load_with_the_schedule_of_a_set(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_CONTRACTS_DIR", str(tmp_path))
    contract = a_source_set(tmp_path, "shop", a_table("t", {"table": "/a"}), schedule="*/15 * * * *")
    for definitions in (defs(), set_definitions(contract)):
        schedule = definitions.resolve_schedule_def("read_shop")
        assert (schedule.cron_schedule, schedule.job_name) == ("*/15 * * * *", "publish_shop")
        assert definitions.resolve_job_def("publish_shop").nodes
