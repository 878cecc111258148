"""A merge brings exactly what was audited onto main, in one commit, by the publisher only."""

import dataclasses
from collections.abc import Iterator

import pytest
from nessie_fixtures import RunningNessie, a_running_nessie, a_table

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import Merge


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNessie]:
    with a_running_nessie(tmp_path_factory.mktemp("merge")) as running:
        yield running


def merge(nessie: RunningNessie, branch: str, from_hash: str, *, role: str = "publisher", **more) -> Merge:
    client = nessie.publisher if role == "publisher" else nessie.writer
    asked = {"onto_hash": nessie.main(), "message": "Publish", "author": "tester", "properties": {}, **more}
    return client.merge(branch, from_hash, **asked)


def test_exactly_the_given_hash_arrives_even_when_the_branch_moved_on(nessie):
    table, branch = a_table(), nessie.a_branch()
    audited = nessie.commit(branch, {table: 1})
    nessie.commit(branch, {table: 2})
    assert merge(nessie, branch, audited).applied
    assert nessie.snapshot(table) == 1


def test_tables_of_several_commits_arrive_in_one_that_carries_our_metadata(nessie):
    departures, delays, branch, before = a_table(), a_table(), nessie.a_branch(), nessie.main()
    nessie.commit(branch, {departures: 1})
    nessie.commit(branch, {departures: 2})
    audited = nessie.commit(branch, {delays: 3})
    properties = {"lakeshare.set": "flights", "lakeshare.evidence": "x" * 200_000}
    merged = merge(nessie, branch, audited, message="Publish flights 2013-01-01", properties=properties)
    newest, second = nessie.writer.history("main", limit=2)
    assert newest.hash == merged.head == nessie.main()
    assert (newest.parent, second.hash) == (before, before)
    assert (newest.message, newest.properties) == ("Publish flights 2013-01-01", properties)
    assert (nessie.snapshot(departures), nessie.snapshot(delays)) == (2, 3)


def test_a_dry_run_changes_nothing(nessie):
    table, branch, before = a_table(), nessie.a_branch(), nessie.main()
    audited = nessie.commit(branch, {table: 1})
    tried = merge(nessie, branch, audited, dry_run=True)
    assert (tried.applied, nessie.main(), nessie.snapshot(table)) == (False, before, None)
    assert merge(nessie, branch, audited).applied
    assert nessie.main() != before


def test_a_dry_run_tells_of_a_conflict(nessie):
    table, branch = a_table(), nessie.a_branch()
    audited = nessie.commit(branch, {table: 1})
    nessie.commit("main", {table: 9}, role="publisher")
    with pytest.raises(NessieError) as raised:
        merge(nessie, branch, audited, dry_run=True)
    assert raised.value.code == "REFERENCE_CONFLICT"


def test_a_table_changed_on_both_sides_is_a_conflict_that_names_it(nessie):
    table, branch = a_table(), nessie.a_branch()
    audited = nessie.commit(branch, {table: 1})
    other = nessie.a_branch()
    assert merge(nessie, other, nessie.commit(other, {table: 2})).applied
    with pytest.raises(NessieError, match=table.split(".")[1]) as raised:
        merge(nessie, branch, audited)
    assert (raised.value.status, raised.value.code) == (409, "REFERENCE_CONFLICT")
    assert nessie.snapshot(table) == 2


def test_other_tables_on_a_moved_main_are_no_conflict(nessie):
    mine, others, branch, base = a_table(), a_table(), nessie.a_branch(), nessie.main()
    audited = nessie.commit(branch, {mine: 1})
    nessie.commit("main", {others: 1}, role="publisher")
    assert merge(nessie, branch, audited, onto_hash=base).applied
    assert (nessie.snapshot(mine), nessie.snapshot(others)) == (1, 1)


def test_two_branches_may_make_the_same_namespace(nessie):
    first, second = nessie.a_branch(), nessie.a_branch()
    one, two = (f"ns_{first[4:]}.one", f"ns_{first[4:]}.two")
    heads = nessie.commit(first, {one: 1}), nessie.commit(second, {two: 1})
    assert merge(nessie, first, heads[0]).applied
    assert merge(nessie, second, heads[1]).applied
    assert (nessie.snapshot(one), nessie.snapshot(two)) == (1, 1)


def test_merging_again_what_is_merged_is_not_applied(nessie):
    branch = nessie.a_branch()
    audited = nessie.commit(branch, {a_table(): 1})
    first = merge(nessie, branch, audited)
    again = merge(nessie, branch, audited)
    assert (first.applied, again.applied) == (True, False)
    assert nessie.main() == first.head == again.head


def test_a_branch_without_a_commit_merges_to_nothing(nessie):
    branch, before = nessie.a_branch(), nessie.main()
    assert not merge(nessie, branch, before).applied
    assert nessie.main() == before


def test_the_writer_is_refused_on_main(nessie):
    table, branch, before = a_table(), nessie.a_branch(), nessie.main()
    audited = nessie.commit(branch, {table: 1})
    content = nessie.writer.content(table, branch)
    for attempt in (
        lambda: merge(nessie, branch, audited, role="writer"),
        lambda: nessie.writer.put_table(table, content, "main", before, message="sneak", properties={}),
        lambda: nessie.writer.delete_branch("main", before),
    ):
        with pytest.raises(NessieError) as raised:
            attempt()
        assert raised.value.code in (
            "FORBIDDEN",
            "BAD_REQUEST",
        )  # deleting the default branch is a bad request
    assert nessie.main() == before


def test_a_table_is_put_back_to_older_content_in_a_new_commit(nessie):
    table = a_table()
    older = nessie.commit("main", {table: 1}, role="publisher")
    newer = nessie.commit("main", {table: 2}, role="publisher")
    content = nessie.publisher.content(table, f"main@{older}")
    head = nessie.publisher.put_table(
        table, content, "main", newer, message="Roll back", properties={"lakeshare.set": "flights"}
    )
    assert nessie.publisher.content(table, "main") == content
    newest = next(nessie.writer.history("main"))
    assert (newest.hash, newest.parent, newest.message) == (head, newer, "Roll back")
    assert newest.properties["lakeshare.set"] == "flights"


def test_putting_a_table_that_changed_meanwhile_is_a_conflict(nessie):
    table = a_table()
    seen = nessie.commit("main", {table: 1}, role="publisher")
    content = dataclasses.replace(nessie.publisher.content(table, "main"), snapshot_id=7)
    nessie.commit("main", {table: 2}, role="publisher")
    with pytest.raises(NessieError) as raised:
        nessie.publisher.put_table(table, content, "main", seen, message="late", properties={})
    assert raised.value.code == "REFERENCE_CONFLICT"
    assert nessie.snapshot(table) == 2
