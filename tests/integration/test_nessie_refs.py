"""Branches, contents and history are returned as they are, page by page, with errors that have a code.

A merge brings exactly what was audited onto main, in one commit, by the publisher only.
"""

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from nessie_fixtures import RunningNessie, a_running_nessie, a_table

from lakeshare_pipelines.backup.catalog_dump import dump_catalog, get_dump_folder, read_lines, read_manifest
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import Merge, Nessie
from lakeshare_server import nessie as calls
from lakeshare_server.nessie import TableContent
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import list_tables_at


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNessie]:
    with a_running_nessie(tmp_path_factory.mktemp("refs")) as running:
        yield running


def test_a_new_catalog_has_one_commit_so_that_branches_can_be_merged(nessie):
    oldest = list(nessie.writer.history("main"))[-1]
    assert (oldest.message, dict(oldest.properties)) == ("Begin", {})


def test_a_branch_is_made_at_a_hash_and_deleted_only_where_it_is_expected(nessie):
    base = nessie.main()
    name = nessie.a_branch(base)
    assert nessie.writer.reference(name).hash == base
    head = nessie.commit(name, {a_table(): 1})
    with pytest.raises(NessieError) as raised:
        nessie.writer.delete_branch(name, base)
    assert raised.value.code == "REFERENCE_CONFLICT"
    nessie.writer.delete_branch(name, head)
    with pytest.raises(NessieError) as raised:
        nessie.writer.reference(name)
    assert raised.value.code == "REFERENCE_NOT_FOUND"


def test_the_same_name_twice_is_refused(nessie):
    name = nessie.a_branch()
    with pytest.raises(NessieError) as raised:
        nessie.writer.create_branch(name, nessie.main())
    assert raised.value.code == "REFERENCE_ALREADY_EXISTS"


def test_a_janitor_sees_how_old_a_branch_is(nessie):
    name = nessie.a_branch()
    head = nessie.commit(name, {a_table(): 1})
    [branch] = nessie.writer.branches(name)
    assert (branch.name, branch.hash) == (name, head)
    assert abs(datetime.now(UTC) - branch.committed_at) < timedelta(minutes=10)


def test_branches_are_chosen_by_prefix_and_main_is_none(nessie, monkeypatch):
    monkeypatch.setattr(calls, "PAGE_SIZE", 2)
    made = sorted(nessie.writer.create_branch(f"prefix-{n}", nessie.main()).name for n in range(5))
    nessie.writer.create_branch("other-prefix-1", nessie.main())
    assert sorted(branch.name for branch in nessie.writer.branches("prefix-")) == made
    assert "main" not in [branch.name for branch in nessie.writer.branches()]
    assert nessie.writer.branches("x') || ref.name.startsWith('prefix") == []


def test_a_table_is_returned_as_it_was_at_a_hash(nessie):
    table, branch = a_table(), nessie.a_branch()
    before = nessie.writer.reference(branch).hash
    first = nessie.commit(branch, {table: 1})
    nessie.commit(branch, {table: 2})
    content = nessie.writer.content(table, f"{branch}@{first}")
    assert (content.snapshot_id, content.metadata_location) == (1, f"file:/warehouse/{table}/1.metadata.json")
    assert nessie.snapshot(table, branch) == 2
    assert nessie.writer.content(table, f"{branch}@{before}") is None
    assert nessie.writer.content(table, branch).id == content.id


def test_a_namespace_is_not_a_table(nessie):
    branch = nessie.a_branch()
    nessie.commit(branch, {a_table(): 1})
    assert nessie.writer.content("flights", branch) is None


def test_tables_are_listed_without_namespaces_at_a_ref_and_at_a_hash(nessie):
    one, two, branch = a_table(), a_table(), nessie.a_branch()
    first = nessie.commit(branch, {one: 1})
    nessie.commit(branch, {two: 1})
    assert {one, two} <= set(nessie.writer.tables(branch))
    assert two not in nessie.writer.tables(f"{branch}@{first}")
    assert "flights" not in nessie.writer.tables(branch)


def test_history_is_paged_newest_first_and_stops_at_the_limit(nessie, monkeypatch):
    monkeypatch.setattr(calls, "PAGE_SIZE", 2)
    table, branch = a_table(), nessie.a_branch()
    hashes = [nessie.commit(branch, {table: n}) for n in range(5)]
    commits = list(nessie.writer.history(branch))
    assert [commit.hash for commit in commits[:5]] == hashes[::-1]
    assert [commit.parent for commit in commits[:4]] == hashes[-2::-1]
    assert [commit.hash for commit in nessie.writer.history(branch, limit=3)] == hashes[:1:-1]
    assert next(nessie.writer.history(f"{branch}@{hashes[1]}")).hash == hashes[1]
    assert all(newer.committed_at >= older.committed_at for newer, older in pairwise(commits))


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.reference("nowhere"),
        lambda client: client.content("flights.t", "nowhere"),
        lambda client: client.tables("nowhere"),
        lambda client: list(client.history("nowhere")),
        lambda client: client.create_branch("somewhere", "0" * 64),
    ],
)
def test_an_unknown_ref_has_its_code(nessie, ask):
    with pytest.raises(NessieError) as raised:
        ask(nessie.writer)
    assert (raised.value.status, raised.value.code) == (404, "REFERENCE_NOT_FOUND")


@pytest.mark.parametrize("token", [None, "not.a.token"])
def test_a_client_without_a_token_of_ours_is_refused(nessie, token):
    stranger = Nessie(nessie.endpoint.uri, token)
    for ask in (lambda: stranger.reference("main"), lambda: next(stranger.history("main"))):
        with pytest.raises(NessieError) as raised:
            ask()
        assert (raised.value.status, raised.value.code) == (401, "UNAUTHENTICATED")


def test_the_environment_of_other_nessie_tools_changes_nothing(nessie, monkeypatch):
    monkeypatch.setenv("NESSIE_ENDPOINT", "http://other.invalid/api/v1")
    monkeypatch.setenv("NESSIE_AUTH_TYPE", "none")
    assert nessie.writer.reference("main").hash == nessie.main()


def test_the_tables_of_a_namespace_on_a_branch_are_found_page_by_page(nessie, monkeypatch, tmp_path):
    """`lakeshare table follow 'nessie:CATALOG/NAMESPACE.*@BRANCH'`."""
    monkeypatch.setattr(calls, "PAGE_SIZE", 2)
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__GIT__URI", nessie.endpoint.uri)
    monkeypatch.setenv("PYICEBERG_CATALOG__GIT__TOKEN", nessie.endpoint.writer_token)
    branch, settings = nessie.a_branch(), ServerSettings(_env_file=None)
    nessie.commit(branch, {f"many.t{number}": 1 for number in range(5)} | {"other.t": 1})
    found = list_tables_at(f"nessie:git/many.*@{branch}", Stores(settings), settings)
    assert found == [f"nessie:git/many.t{number}@{branch}" for number in range(5)]


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


def test_a_dump_of_the_catalog_has_all_tables_of_main_and_its_log(nessie: RunningNessie, tmp_path: Path):
    source, target = (StoreAddress(url=str(tmp_path / name)) for name in ("lake", "copies"))
    points, day = Points(Backup(name="lake", source=source, target=target)), "2026-11-20"
    orders, items = a_table(), a_table()
    nessie.commit("main", {orders: 1}, role="publisher")
    head = nessie.commit("main", {orders: 2, items: 7}, role="publisher")
    record = dump_catalog(nessie.settings, points.backup, points, day)
    nessie.commit("main", {orders: 3}, role="publisher")
    at_head = f"main@{head}"
    expected = {name: nessie.writer.content(name, at_head) for name in nessie.writer.tables(at_head)}
    assert {orders, items} <= set(expected)
    assert record.nessie_hash == head
    dumped = read_manifest(points, day).nessie
    assert dumped is not None
    assert (dumped.hash, dumped.tables) == (head, len(expected))
    records = (json.loads(line) for line in read_lines(points, day, dumped.state))
    assert {record.pop("table"): TableContent(**record) for record in records} == expected
    folder = get_dump_folder(points, day)
    lines = [line for file in dumped.log for line in points.store.read(folder + file.name).splitlines()]
    commits = [json.loads(line) for line in lines]
    assert commits[0]["commitMeta"]["hash"] == head
    put = {".".join(one["key"]["elements"]) for one in commits[0]["operations"] if one["type"] == "PUT"}
    assert put == {orders, items}
