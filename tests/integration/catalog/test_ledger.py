"""The ledger numbers publications: dense for Iceberg, Delta's own for Delta, all tables of a run or none, once."""

import gc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.contracts.model import Keep, Maintenance
from lakeshare_pipelines.maintenance.expiry import find_oldest_kept
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    FollowedTables,
    IcebergIdentity,
    Ledger,
    SharedTable,
    apply_shares,
    lock_set,
)
from lakeshare_server.catalog.sharing import alter_table, editing
from lakeshare_server.errors import BadRequest, CatalogConflict
from tests.builders.publications import a_publication


@pytest.fixture
def ledger(catalog: Catalog) -> Ledger:
    return Ledger(catalog)


def test_iceberg_numbers_begin_at_zero_and_leave_no_gap(ledger: Ledger) -> None:
    numbers = [ledger.append([a_publication(snapshot_id=snapshot)])[0].version for snapshot in (9, 3, 7)]
    assert numbers == [0, 1, 2]
    assert [found.snapshot_id for found in ledger.history("lake.flights")] == [7, 3, 9]


def test_delta_numbers_are_the_versions_of_the_table(ledger: Ledger) -> None:
    for version in (4, 9):
        assert ledger.append([a_publication(format="delta", delta_version=version)])[0].version == version
    assert [found.version for found in ledger.history("lake.flights", limit=1)] == [9]


@pytest.mark.parametrize("version", [3, 4])
def test_a_delta_version_that_is_not_above_the_latest_is_refused(ledger: Ledger, version: int) -> None:
    ledger.append([a_publication(format="delta", delta_version=4)])
    with pytest.raises(CatalogConflict, match="Delta version 4"):
        ledger.append([a_publication(format="delta", delta_version=version)])


def test_a_delta_publication_without_its_version_is_refused(ledger: Ledger) -> None:
    with pytest.raises(BadRequest, match="delta_version"):
        ledger.append([a_publication(format="delta")])


def test_a_table_keeps_the_format_it_was_first_published_in(ledger: Ledger) -> None:
    ledger.append([a_publication(format="iceberg")])
    with pytest.raises(CatalogConflict, match="iceberg"):
        ledger.append([a_publication(format="delta", delta_version=1)])


def test_everything_of_a_publication_comes_back(ledger: Ledger) -> None:
    new = a_publication(
        metadata_location="/m.json",
        snapshot_id=1 << 62,
        nessie_hash="abc",
        verdicts={"rules": [{"name": "ü", "passed": True}]},
        rollback_of=7,
        audited=False,
        rows=1 << 40,
    )
    [published] = ledger.append([new])
    found = ledger.at("lake.flights", 0)
    assert found == published
    assert {name: getattr(found, name) for name in vars(new)} == vars(new)
    assert found.published_at.utcoffset() == timedelta(0)


def test_appending_a_run_again_changes_nothing(ledger: Ledger) -> None:
    once = [a_publication(run_id="r", table=table) for table in ("a.x", "a.y")]
    first = ledger.append(once)
    assert ledger.append(once) == first
    assert [len(ledger.history(table)) for table in ("a.x", "a.y")] == [1, 1]


def test_a_run_is_recorded_for_all_its_tables_or_for_none(ledger: Ledger) -> None:
    ledger.append([a_publication(table="a.delta", format="delta", delta_version=5)])
    run = [
        a_publication(table="a.new", run_id="r"),
        a_publication(table="a.delta", format="delta", delta_version=5, run_id="r"),
    ]
    with pytest.raises(CatalogConflict):
        ledger.append(run)
    assert ledger.latest("a.new") is None
    assert ledger.by_run("r") == []


def test_a_table_that_was_missed_is_added_to_the_run(ledger: Ledger) -> None:
    [first] = ledger.append([a_publication(table="a.x", run_id="r")])
    both = ledger.append([a_publication(table=table, run_id="r") for table in ("a.x", "a.y")])
    assert both[0] == first
    assert [found.table for found in ledger.by_run("r")] == ["a.x", "a.y"]


def test_publications_are_found_by_run_and_by_table(ledger: Ledger) -> None:
    ledger.append([a_publication(table=table, run_id="r1") for table in ("b.x", "a.y")])
    ledger.append([a_publication(table="b.x", run_id="r2")])
    assert [(found.table, found.version) for found in ledger.by_run("r2")] == [("b.x", 1)]
    assert {found.table for found in ledger.by_run("r1")} == {"b.x", "a.y"}
    assert ledger.tables() == ["a.y", "b.x"]
    assert ledger.latest("b.x") == ledger.at("b.x", 1)


def test_what_is_not_there_is_none_or_empty(ledger: Ledger) -> None:
    assert ledger.latest("no.table") is None
    assert ledger.at("no.table", 0) is None
    assert ledger.history("no.table") == ledger.by_run("no") == ledger.tables() == []


def test_publication_times_grow_with_the_numbers(ledger: Ledger) -> None:
    for _ in range(20):
        ledger.append([a_publication()])
    times = [found.published_at for found in ledger.history("lake.flights")]
    assert times == sorted(set(times), reverse=True)


def test_whoever_lost_the_lock_appends_nothing(catalog: Catalog, ledger: Ledger) -> None:
    with lock_set(catalog, "lake", "first", 1) as lease:
        pass
    with lock_set(catalog, "lake", "second", 1), pytest.raises(CatalogConflict, match="held by second"):
        ledger.append([a_publication()], lease)
    with pytest.raises(CatalogConflict, match="held by no process"):
        ledger.append([a_publication()], lease)
    assert ledger.tables() == []


def test_the_holder_of_the_lock_appends(catalog: Catalog, ledger: Ledger) -> None:
    with lock_set(catalog, "lake", "me", 1) as lease:
        assert ledger.append([a_publication()], lease)[0].version == 0


def test_publications_are_found_by_time_and_by_number(ledger: Ledger) -> None:
    first, second, third = (
        ledger.append([a_publication(format="delta", delta_version=version)])[0] for version in (2, 5, 9)
    )
    moment = int(second.published_at.timestamp() * 1000)
    assert ledger.oldest("lake.flights") == first
    assert ledger.at_or_before("lake.flights", moment) == second
    assert ledger.at_or_before("lake.flights", moment - 1) == first
    assert ledger.at_or_after("lake.flights", moment) == second
    assert ledger.at_or_after("lake.flights", moment + 1) == third
    assert ledger.at_or_below("lake.flights", 6) == second
    assert ledger.between("lake.flights", 5, 9) == [second, third]


def test_numbers_and_times_beyond_those_of_databases_are_compared_all_the_same(
    ledger: Ledger, subtests: pytest.Subtests
) -> None:
    [only] = ledger.append([a_publication()])
    for sign, size in product((1, -1), (1 << 62, 1 << 63, 1 << 200)):
        with subtests.test(sign=sign, size=size):
            far = sign * size
            before, after = (only, None) if sign == 1 else (None, only)
            assert ledger.at("lake.flights", far) is None
            for below in (ledger.at_or_below, ledger.at_or_before):
                assert below("lake.flights", far) == before
            assert ledger.at_or_after("lake.flights", far) == after
            assert ledger.between("lake.flights", -size, size) == [only]


def found(ledger: Ledger, *snapshots: int, after: int | None, at_ms: int | None = None) -> list[int] | None:
    """Number snapshots of a followed table; returns the numbers."""
    FollowedTables(ledger.catalog).add("lake.flights", "/t", 1, iceberg=IcebergIdentity("uuid", "/t"))
    states = [
        a_publication(
            table_id="uuid", snapshot_id=snapshot, run_id=f"follow-{snapshot}-{after}", audited=False
        )
        for snapshot in snapshots
    ]
    entered = ledger.append_found("lake.flights", states, [at_ms] * len(states), after)
    return None if entered is None else [one.version for one in entered]


def test_states_that_were_found_are_numbered_after_what_their_finder_knew_and_not_otherwise(
    ledger: Ledger,
) -> None:
    assert found(ledger, 7, after=0) is None
    assert found(ledger, 7, 3, after=None) == [0, 1]
    assert found(ledger, 9, after=None) is None
    assert found(ledger, 9, after=0) is None
    assert found(ledger, 9, after=1) == [2]
    assert [one.snapshot_id for one in ledger.history("lake.flights")] == [9, 3, 7]


def test_times_of_found_states_are_theirs_but_grow_and_are_never_in_the_future(ledger: Ledger) -> None:
    past = 1_600_000_000_000
    found(ledger, 1, 2, after=None, at_ms=past)
    found(ledger, 3, after=1, at_ms=past - 5)
    found(ledger, 4, after=2, at_ms=1 << 62)
    found(ledger, 5, after=3)
    times = [int(one.published_at.timestamp() * 1000) for one in ledger.history("lake.flights")][::-1]
    assert times[:3] == [past, past + 1, past + 2]
    assert past + 2 < times[3] < times[4] <= int(datetime.now(UTC).timestamp() * 1000) + 1


def test_a_found_state_that_another_has_numbered_is_not_numbered_half(ledger: Ledger) -> None:
    """All states of a look or none: a run that is known makes the whole look a conflict."""
    found(ledger, 7, after=None)
    twice = [
        a_publication(table_id="uuid", snapshot_id=snapshot, run_id=run, audited=False)
        for snapshot, run in ((8, "follow-8-0"), (7, "follow-7-None"))
    ]
    with pytest.raises(CatalogConflict, match="refused"):
        ledger.append_found("lake.flights", twice, [None, None], 0)
    assert [one.version for one in ledger.history("lake.flights")] == [0]


def test_what_is_followed_no_more_gets_no_numbers(ledger: Ledger) -> None:
    """A worker may be looking at a table while somebody ends its following and publishes under its name."""
    assert found(ledger, 7, after=None) == [0]
    FollowedTables(ledger.catalog).remove("lake.flights")
    late = a_publication(table_id="uuid", snapshot_id=8, run_id="follow-8-0", audited=False)
    with pytest.raises(CatalogConflict, match="not followed any more"):
        ledger.append_found("lake.flights", [late], [None], 0)
    FollowedTables(ledger.catalog).add("lake.flights", "/t", 1, iceberg=IcebergIdentity("other", "/t"))
    with pytest.raises(CatalogConflict, match="not followed any more"):
        ledger.append_found("lake.flights", [late], [None], 0)
    assert [one.version for one in ledger.history("lake.flights")] == [0]


def test_what_numbers_pin_and_whose_they_are_is_told(ledger: Ledger) -> None:
    for table_id, snapshot in (("a", 1), ("a", 2), ("b", 3)):
        ledger.append([a_publication(table_id=table_id, snapshot_id=snapshot, run_id=f"r{snapshot}")])
    told = ledger.numbered_snapshots("lake.flights")
    assert [(one.version, one.table_id, one.snapshot_id, one.run_id) for one in told] == [
        (0, "a", 1, "r1"),
        (1, "a", 2, "r2"),
        (2, "b", 3, "r3"),
    ]
    assert [ledger.first_of("lake.flights", table_id) for table_id in ("a", "b", "c")] == [3, 2, 3]
    assert ledger.first_of("lake.other", "a") == 0


def test_expired_publications_stay_in_the_ledger_and_are_not_readable(catalog):
    ledger, readable = Ledger(catalog), Ledger(catalog, readable_only=True)
    for _ in range(4):
        ledger.append([a_publication()])
    with lock_set(catalog, "lake", "a test", 0) as lease:
        ledger.expire("lake.flights", 2, lease)
        with pytest.raises(BadRequest, match="3"):
            ledger.expire("lake.flights", 4, lease)
    assert [row.version for row in ledger.history("lake.flights")] == [3, 2, 1, 0]
    assert [row.version for row in readable.history("lake.flights")] == [3, 2]
    assert (readable.at("lake.flights", 1), readable.oldest("lake.flights").version) == (None, 2)
    assert readable.before("lake.flights", 2).version == 1
    assert ledger.oldest_readable("lake.flights") == 2
    assert ledger.oldest_readable("lake.flights", datetime.now(UTC) - timedelta(minutes=1)) == 0
    assert ledger.oldest_readable("lake.other") == 0
    with pytest.raises(CatalogConflict):
        ledger.expire("lake.flights", 3, lease)


KEPT = {
    "nothing declared": (Maintenance(), 0),
    "the newest two, with the maintenance between them": (Maintenance(keep=Keep(2)), 3),
    "only the newest": (Maintenance(keep=Keep(1)), 5),
    "days that cover all": (Maintenance(keep=Keep(days=1)), 0),
    "either of both": (Maintenance(keep=Keep(1, days=1)), 0),
    "more than there are": (Maintenance(keep=Keep(99)), 0),
}


@pytest.mark.parametrize(("maintenance", "oldest"), KEPT.values(), ids=KEPT)
def test_a_contract_says_which_numbers_are_kept(catalog, maintenance, oldest):
    ledger = Ledger(catalog)
    for number in range(6):
        # Number 4 has the rows of number 3.
        ledger.append([a_publication(maintenance_of=3 if number == 4 else None)])
    table = Table("lake.flights", "iceberg", (), maintenance=maintenance)
    assert find_oldest_kept(ledger, table, datetime.now(UTC)) == oldest
    assert find_oldest_kept(ledger, replace(table, name="lake.other"), datetime.now(UTC)) is None


def test_a_number_that_a_share_serves_is_kept(catalog):
    ledger = Ledger(catalog)
    for _ in range(4):
        ledger.append([a_publication()])
    table = Table("lake.flights", "iceberg", (), maintenance=Maintenance(keep=Keep(1)))
    shared = SharedTable("lake", "flights", "lake.flights")
    apply_shares(catalog, [DeclaredShare("flights", (shared,))])
    with editing(catalog, "a test") as edit:
        alter_table(edit, "flights", "lake", "flights", publication=1)
    assert find_oldest_kept(ledger, table, datetime.now(UTC)) == 1


def test_a_search_that_ends_early_leaves_no_cursor_open(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg warns when a cursor of the database is collected before it was closed, and warnings fail tests."""
    monkeypatch.setattr("lakeshare_server.catalog.ledger.ROWS_AT_ONCE", 2)
    for snapshot in range(3):
        [publication] = ledger.append([a_publication(snapshot_id=snapshot)])
    found = ledger.of_partitions(publication.table, [publication.partition])
    assert next(found) == publication
    del found
    gc.collect(1)  # all that is so young: the objects of all modules would take seconds
