"""Two runs of one set at once: both days end up published, none is lost, at least one of them by replay.

With Nessie the runs are on two hosts, which share a store, PostgreSQL, Nessie and the landing folder, but no state
folder. The replay is audited; the first attempts are not, as nothing is at once in an audit.
"""

import time
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.wap.stage import list_staging_locations
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Ledger, open_catalog
from tests.builders.killed_run import Run, start_run, wait_for_exit
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading
from tests.builders.shared_spark import SharedSpark
from tests.integration.postgres_server import PostgresServer

DAYS = ("2024-01-01", "2024-01-02")
WAIT_S = 120


@pytest.fixture
def settings_of_hosts(s3_lake: Lake, postgres: PostgresServer, tmp_path: Path) -> list[LakeSettings]:
    nessie, database = s3_lake.endpoint, postgres.new_database()
    tokens = [SecretStr(token or "") for token in (nessie.writer_token, nessie.publisher_token)]
    shared = {"nessie_uri": nessie.uri, "nessie_token": tokens[0], "nessie_publisher_token": tokens[1]}
    shared |= {"database_url": database, "landing": str(tmp_path / "landing")}
    return [
        s3_lake.settings.model_copy(update={**shared, "state_dir": tmp_path / name})
        for name in ("host 1", "host 2")
    ]


def test_both_days_end_up_published_by_two_hosts(s3_lake, settings_of_hosts, contract, tmp_path):
    here, there = settings_of_hosts
    lake = Lake(here, lambda: s3_lake.spark)
    both_days_end_up_published(lake, there, open_catalog(here.catalog_url), contract, tmp_path)


def test_both_days_end_up_published_in_a_sql_catalog(jdbc_lake, catalog, tmp_path):
    contract = a_contract(tmp_path / "contracts", "twice", "iceberg")
    both_days_end_up_published(jdbc_lake, jdbc_lake.settings, catalog, contract, tmp_path)


def both_days_end_up_published(lake, settings_there, catalog, contract, tmp_path) -> None:
    for day in DAYS:
        a_delivery(lake.settings, contract, day, orders(day))
    spark, gate = SharedSpark.for_runs(lake), tmp_path / "gate"
    other = start_run(tmp_path, Run(settings_there, contract, DAYS[1], str(uuid4()), spark, gate=gate))
    try:
        staged = staged_without_reading(lake, contract, DAYS[0], orders(DAYS[0]))
        wait_until_both_are_staged(lake, contract, other)
        gate.touch()
        publish_or_replay(lake, catalog, contract, staged, green(contract, staged))
        assert wait_for_exit(other, WAIT_S) == 0
    finally:
        other.kill()
        other.join()

    ledger = Ledger(catalog)
    published = ledger.history(f"{contract.name}.orders")
    assert {publication.partition for publication in published} == set(DAYS)
    assert len(published) == 2
    assert max(publication.verdicts["attempt"] for publication in published) >= 1
    assert [row[0] for row in rows_on_main(lake, contract, "orders")] == [DAYS[0]] * 3 + [DAYS[1]] * 3
    assert list_staging_locations(lake, [contract]) == []


def wait_until_both_are_staged(lake, contract, other) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(list_staging_locations(lake, [contract])) < 2:
        assert other.exitcode is None, "the other run ended before it staged anything"
        assert time.monotonic() < deadline
        time.sleep(0.2)
