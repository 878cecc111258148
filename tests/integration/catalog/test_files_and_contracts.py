"""Files, contracts and hands share one catalog: each keeps what it made, and none removes what is another's."""

from collections.abc import Callable
from typing import Any

import pytest

from lakeshare_server.catalog import Catalog, DeclaredShare, SharedTable, apply_shares, states
from lakeshare_server.catalog.declared import apply_files, plan_changes
from lakeshare_server.catalog.sharing import add_table, create_recipient, grant
from lakeshare_server.errors import BadRequest, DocumentError
from tests.builders.applied_files import by_hand, exported, paths, told


def test_pruning_takes_nothing_that_hands_or_contracts_made(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said("shares: {s: {tables: [a.x]}, t: {}}\nrecipients: {bob: {}}"), "ann")
    apply_shares(catalog, [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),))])
    by_hand(catalog, lambda edit: add_table(edit, "t", SharedTable(schema="h", name="z", table="lake.z")))
    by_hand(catalog, lambda edit: grant(edit, "t", recipient="bob"))
    plan = apply_files(catalog, said("{}"), "ann", prune=True)
    assert told(plan.steps) == [("delete", "s.a.x", ["table"])]
    assert sorted((left.why, left.current.name) for left in plan.left) == [
        ("needed", "bob"),
        ("needed", "s"),
        ("needed", "t"),
    ]
    assert paths(catalog) == ["s.c.y", "t.h.z"]


def test_files_and_contracts_leave_each_other_alone(catalog: Catalog, said: Callable[[str], Any]) -> None:
    contract = [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),))]
    apply_shares(catalog, contract)
    text = "shares: {s: {display_name: S, tables: {a.x: , c.y: {declared: true, rule: \"day > '2024'\"}}}}"
    apply_files(catalog, said(text), "ann")
    apply_shares(catalog, contract)
    assert plan_changes(catalog, said(text)).drifted is False
    with catalog.reading() as session:
        assert {one.path: one.rule for one in states.list_objects(session)} == {
            "s.c.y": "day > '2024'",
            "s.a.x": None,
        }
    with pytest.raises(BadRequest, match=r"s\.a\.x.*A file of `lakeshare apply` shares it"):
        apply_shares(catalog, [DeclaredShare("s", (SharedTable("a", "x", "lake.other"),))])
    with pytest.raises(DocumentError, match=r"s\.c\.y is declared by a contract"):
        apply_files(catalog, said("shares: {s: {tables: [c.y]}}"), "ann")
    apply_shares(catalog, [])
    assert paths(catalog) == ["s.a.x"]
    with pytest.raises(DocumentError, match=r"no contract declares s\.c\.y"):
        apply_files(catalog, said(text), "ann")
    # What a contract takes back does not come again by a file that only restricted it.
    assert paths(catalog) == ["s.a.x"]


def test_a_share_of_contracts_is_exported_when_it_was_granted(
    catalog: Catalog, other_catalog: Catalog, said: Callable[[str], Any]
) -> None:
    contract = [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),)), DeclaredShare("quiet", ())]
    apply_shares(catalog, contract)
    by_hand(catalog, lambda edit: (create_recipient(edit, "bob"), grant(edit, "s", recipient="bob")))
    text = exported(catalog)
    assert "quiet" not in text
    apply_files(other_catalog, said(text), "ann")
    apply_shares(other_catalog, contract)
    assert paths(other_catalog) == paths(catalog) == ["s.c.y"]
    assert plan_changes(other_catalog, said(text)).drifted is False


def test_a_share_that_a_group_was_granted_outlives_its_contract(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_shares(catalog, [DeclaredShare("s", (SharedTable("c", "y", "lake.y"),))])
    apply_files(catalog, said("groups: {g: {}}\ngrants: [{share: s, group: g}]"), "ann")
    apply_shares(catalog, [])
    with catalog.reading() as session:
        assert [one.name for one in states.list_shares(session)] == ["s"]
