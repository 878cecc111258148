"""Publication: what is audited green becomes one number for every table of the set; everything else, nothing."""

from collections.abc import Sequence
from uuid import uuid4

import dagster as dg
import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.resources import LakeResource, SparkResource
from lakeshare_pipelines.defs.wap import wap_set
from lakeshare_pipelines.errors import BranchMoved, NoSuchPublication, NotAudited, SnowflakeError
from lakeshare_pipelines.share.publication import publish, publish_or_replay
from lakeshare_pipelines.share.retry import retry
from lakeshare_pipelines.share.rollback import rollback
from lakeshare_pipelines.share.snowflake.shown_state import require_shown
from lakeshare_pipelines.share.snowflake.target import published
from lakeshare_pipelines.wap.branches import drop_abandoned, places
from lakeshare_pipelines.wap.delta import STAGED_FOLDER, table_location
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.replay import judged
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdicts
from lakeshare_server.catalog import Catalog, Publication
from tests.builders.main_state import main_state, rows_on_main
from tests.builders.sets import a_delivery, an_order, orders
from tests.builders.slack import slack_stand_in

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"


def staged_and_judged(lake: Lake, contract: SetContract, days: Sequence[str]) -> tuple[Staged, Verdicts]:
    staged = stage(lake, contract, days, str(uuid4()))
    return staged, judged(lake, contract, staged)


def run(lake: Lake, catalog: Catalog, contract: SetContract, *days: str) -> list[Publication]:
    staged, verdicts = staged_and_judged(lake, contract, days)
    return publish_or_replay(lake, catalog, contract, staged, verdicts)


def delete_staged(lake: Lake, contract: SetContract, staged: Staged, short_name: str, where: str) -> None:
    """Change a staged table by hand."""
    table = contract.table(short_name)
    place = f"{lake.catalog(staged.ref)}.{table.name}" if table.format == "iceberg" else None
    folder = table_location(lake.settings, table) / STAGED_FOLDER / staged.ref
    lake.spark.sql(f"DELETE FROM {place or f'delta.`{folder}`'} WHERE {where}")


def require_all_shown(lake: Lake, catalog: Catalog, contract: SetContract) -> None:
    """Engines that open the tables' own metadata find the newest publications, and nothing unpublished."""
    for table in contract.tables:
        require_shown(published(catalog, table.name), lake.settings)


def test_a_green_run_publishes_every_table_of_the_set(lake, catalog, ledger, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, 3))

    publications = run(lake, catalog, contract, MONDAY)

    assert {(p.table, p.version, p.rows) for p in publications} == {
        (f"{contract.name}.orders", 0, 3),
        (f"{contract.name}.totals", 0, 1),
    }
    assert [ledger.latest(table.name) for table in contract.tables] == publications
    assert rows_on_main(lake, contract, "orders") == sorted(
        (str(row["day"]), row["id"], row["customer"], row["email"], row["amount"])
        for row in orders(MONDAY, 3)
    )
    assert places(lake, [contract]) == []


def test_a_red_run_leaves_main_and_ledger_untouched(lake, catalog, ledger, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, 3))
    before = run(lake, catalog, contract, MONDAY)
    state = main_state(lake, contract)
    a_delivery(lake.settings, contract, TUESDAY, [an_order(TUESDAY, 7, customer="")])

    staged, verdicts = staged_and_judged(lake, contract, [TUESDAY])

    assert not verdicts.green
    with pytest.raises(NotAudited, match="customer"):
        publish(lake, catalog, contract, staged, verdicts)
    assert main_state(lake, contract) == state
    assert [ledger.latest(table.name) for table in contract.tables] == before
    assert [(place.ref, place.state) for place in places(lake, [contract])] == [(staged.ref, "red")]


def test_samples_of_a_red_verdict_mask_personal_columns(lake, contract):
    a_delivery(
        lake.settings, contract, MONDAY, [an_order(MONDAY, 7, customer="", email="secret@example.org")]
    )

    _, verdicts = staged_and_judged(lake, contract, [MONDAY])

    shown = [row for verdict in verdicts.failed for row in verdict.samples]
    assert shown
    assert "secret" not in str(shown)


def test_publishing_a_run_twice_gives_one_publication(lake, catalog, ledger, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY))
    staged, verdicts = staged_and_judged(lake, contract, [MONDAY])

    first = publish(lake, catalog, contract, staged, verdicts)

    assert publish(lake, catalog, contract, staged, verdicts) == first
    assert [len(ledger.history(table.name)) for table in contract.tables] == [1, 1]


def test_the_same_delivery_again_changes_nothing(lake, catalog, ledger, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY))
    first = run(lake, catalog, contract, MONDAY)
    state = main_state(lake, contract)

    assert run(lake, catalog, contract, MONDAY) == first
    assert main_state(lake, contract) == state
    assert places(lake, [contract]) == []


def test_a_corrected_delivery_replaces_its_partition_only(lake, catalog, contract):
    for day in (MONDAY, TUESDAY):
        a_delivery(lake.settings, contract, day, orders(day, 3))
    run(lake, catalog, contract, MONDAY, TUESDAY)
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, 2))

    publications = run(lake, catalog, contract, MONDAY)

    assert [p.version for p in publications] == [1, 1]
    assert [row[0] for row in rows_on_main(lake, contract, "orders")] == [MONDAY] * 2 + [TUESDAY] * 3
    assert sorted(row[:2] for row in rows_on_main(lake, contract, "totals")) == [(MONDAY, 2), (TUESDAY, 3)]


def test_what_was_written_after_the_audit_is_not_published(lake, catalog, ledger, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY))
    staged, verdicts = staged_and_judged(lake, contract, [MONDAY])
    delete_staged(lake, contract, staged, "orders", "id % 2 = 0")

    with pytest.raises(BranchMoved, match=staged.ref):
        publish(lake, catalog, contract, staged, verdicts)
    assert ledger.latest(f"{contract.name}.orders") is None


def test_what_was_repaired_on_the_staging_place_is_audited_again_and_published(lake, catalog, contract):
    a_delivery(lake.settings, contract, MONDAY, [*orders(MONDAY, 2), an_order(MONDAY, 7, customer="")])
    staged, verdicts = staged_and_judged(lake, contract, [MONDAY])
    assert not verdicts.green
    delete_staged(lake, contract, staged, "orders", "customer IS NULL")

    outcome = retry(lake, catalog, [contract], staged.ref)

    assert outcome.verdicts.green
    assert [p.version for p in outcome.publications] == [0, 0]
    assert [row[1] for row in rows_on_main(lake, contract, "orders")] == [
        row["id"] for row in orders(MONDAY, 2)
    ]
    assert outcome.publications[0].rows == 2
    if contract.tables[0].format == "iceberg":
        with pytest.raises(SnowflakeError, match="lists 1 snapshots that were never published"):
            require_shown(published(catalog, contract.tables[0].name), lake.settings)


def test_a_conflict_is_answered_by_replay_and_loses_no_day(lake, catalog, ledger, contract):
    for day in (MONDAY, TUESDAY):
        a_delivery(lake.settings, contract, day, orders(day))
    monday = staged_and_judged(lake, contract, [MONDAY])
    tuesday = staged_and_judged(lake, contract, [TUESDAY])

    publish_or_replay(lake, catalog, contract, *monday)
    publish_or_replay(lake, catalog, contract, *tuesday)

    assert {row[0] for row in rows_on_main(lake, contract, "orders")} == {MONDAY, TUESDAY}
    assert [p.partition for p in ledger.history(f"{contract.name}.orders")] == [TUESDAY, MONDAY]
    assert ledger.latest(f"{contract.name}.orders").rows == 6
    assert places(lake, [contract]) == []
    require_all_shown(lake, catalog, contract)


def test_a_replay_that_turns_red_is_kept_and_told(lake, catalog, ledger, contract, monkeypatch):
    for day in (MONDAY, TUESDAY):
        a_delivery(lake.settings, contract, day, orders(day))
    monday = staged_and_judged(lake, contract, [MONDAY])
    staged, verdicts = staged_and_judged(lake, contract, [TUESDAY])
    published = publish_or_replay(lake, catalog, contract, *monday)
    a_delivery(lake.settings, contract, TUESDAY, [an_order(TUESDAY, 7, customer="")])

    with slack_stand_in() as slack:
        monkeypatch.setenv("LAKESHARE_SLACK_TOKEN", "xoxb-1")
        monkeypatch.setenv("LAKESHARE_SLACK_BASE_URL", slack.url)
        with pytest.raises(dg.Failure, match="after a replay") as refusal:
            publish_in_dagster(lake, catalog, contract, staged, verdicts)

    ((replayed, state),) = [(place.ref, place.state) for place in places(lake, [contract])]
    assert (replayed, state) == (f"{staged.ref}-r1", "red")
    assert not refusal.value.allow_retries
    assert refusal.value.metadata["lakeshare/staged_at"].value == replayed
    (message,) = slack.messages
    assert replayed in message["text"]
    assert "customer" in message["text"]
    assert [ledger.latest(table.name) for table in contract.tables] == published


def publish_in_dagster(
    lake: Lake, catalog: Catalog, contract: SetContract, staged: Staged, verdicts: Verdicts
) -> None:
    """The set's publish op, as a run calls it, on the tests' own lake."""

    class TestsLake(LakeResource):
        def lake(self) -> Lake:
            return lake

        def catalog(self) -> Catalog:
            return catalog

    judgement = {"staged": staged.as_record(), "verdicts": verdicts.as_record()}
    publish_op = next(op for op in wap_set(contract).node_def.node_defs if op.name.endswith("_publish"))
    with dg.build_op_context(resources={"lake": TestsLake(spark=SparkResource())}) as context:
        list(publish_op(context, judgement))


def test_a_rollback_is_a_new_number_that_shows_old_rows(lake, catalog, ledger, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, 3))
    run(lake, catalog, contract, MONDAY)
    old = rows_on_main(lake, contract, "orders")
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, 1))
    run(lake, catalog, contract, MONDAY)
    table = contract.tables[0]

    back = rollback(lake, catalog, contract, table, 0)

    assert (back.version, back.rows, back.rollback_of) == (2, 3, 0)
    assert rows_on_main(lake, contract, "orders") == old
    # Running it again, because the first answer was lost, changes nothing, by either number of that state.
    assert rollback(lake, catalog, contract, table, 0) == back
    assert rollback(lake, catalog, contract, table, back.version) == back
    assert [p.version for p in ledger.history(table.name)] == [2, 1, 0]
    require_all_shown(lake, catalog, contract)
    with pytest.raises(NoSuchPublication, match="99"):
        rollback(lake, catalog, contract, table, 99)
    # What was rolled back is not in force any more: delivering it again publishes it again.
    again = run(lake, catalog, contract, MONDAY)
    assert again[0].version == 3
    require_all_shown(lake, catalog, contract)


def test_the_janitor_drops_what_nobody_came_back_to_and_nothing_else(lake, catalog, contract):
    a_delivery(lake.settings, contract, MONDAY, orders(MONDAY, 3))
    run(lake, catalog, contract, MONDAY)
    state = main_state(lake, contract)
    a_delivery(lake.settings, contract, TUESDAY, orders(TUESDAY, 3))
    abandoned = stage(lake, contract, [TUESDAY], str(uuid4()))

    dropped = drop_abandoned(lake, [contract])

    assert [place.ref for place in dropped] == [abandoned.ref]
    assert places(lake, [contract]) == []
    assert main_state(lake, contract) == state
    assert len(rows_on_main(lake, contract, "orders")) == 3
