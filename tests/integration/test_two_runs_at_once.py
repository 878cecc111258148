"""Two runs of one set at once: both days end up published, none is lost, at least one of them by replay.

The replay is audited; the first attempts are not, as nothing is at once in an audit.
"""

import time
from uuid import uuid4

from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.wap.stage import list_staging_locations, stage
from tests.builders.killed_run import Run, start_run, wait_for_exit
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_contract, a_delivery, green, orders
from tests.builders.shared_spark import SharedSpark

DAYS = ("2024-01-01", "2024-01-02")
WAIT_S = 120


def test_both_days_end_up_published(s3_lake, catalog, ledger, contract, tmp_path):
    both_days_end_up_published(s3_lake, catalog, ledger, contract, tmp_path)


def test_both_days_end_up_published_in_a_sql_catalog(jdbc_lake, catalog, ledger, tmp_path):
    contract = a_contract(tmp_path / "contracts", "twice", "iceberg")
    both_days_end_up_published(jdbc_lake, catalog, ledger, contract, tmp_path)


def both_days_end_up_published(lake, catalog, ledger, contract, tmp_path) -> None:
    for day in DAYS:
        a_delivery(lake.settings, contract, day, orders(day))
    spark, gate = SharedSpark.of(lake.spark), tmp_path / "gate"
    other = start_run(tmp_path, Run(lake.settings, contract, DAYS[1], str(uuid4()), spark, gate=gate))
    try:
        staged = stage(lake, contract, DAYS[:1], str(uuid4()))
        wait_until_both_are_staged(lake, contract, other)
        gate.touch()
        publish_or_replay(lake, catalog, contract, staged, green(contract, staged))
        assert wait_for_exit(other, WAIT_S) == 0
    finally:
        other.kill()
        other.join()

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
