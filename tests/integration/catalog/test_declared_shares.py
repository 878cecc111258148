"""Applying declared shares makes the catalog say the same, keeps ids, and touches nothing that is not its own."""

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    Listings,
    ShareDiff,
    SharedTable,
    allow_directory_access,
    apply_shares,
)
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.catalog.models import SharedTableRow, ShareRow
from lakeshare_server.errors import BadRequest
from tests.builders.recipients import Recipients


def a_share(name: str, *tables: str, **options: object) -> DeclaredShare:
    """`schema.name=lake.table` entries."""
    parts = [entry.partition("=") for entry in tables]
    return DeclaredShare(
        name, tuple(SharedTable(*at.split("."), lake or f"lake.{at}", **options) for at, _, lake in parts)
    )


def ids(catalog: Catalog) -> dict[str, str]:
    return {entry.path: entry.id for entry in list_all_shared_tables(catalog)}


def test_the_difference_is_reported_by_name(catalog: Catalog) -> None:
    first = apply_shares(catalog, [a_share("s", "a.x", "a.y", "b.z")])
    assert first == ShareDiff(added=("s.a.x", "s.a.y", "s.b.z"), removed=(), changed=(), unchanged=())
    second = apply_shares(catalog, [a_share("s", "a.x", "a.y=lake.other", "b.new")])
    assert second == ShareDiff(
        added=("s.b.new",), removed=("s.b.z",), changed=("s.a.y",), unchanged=("s.a.x",)
    )


def test_applying_twice_changes_nothing_and_keeps_ids(catalog: Catalog) -> None:
    declared = [a_share("s", "a.x", "a.y"), a_share("t", "a.x")]
    apply_shares(catalog, declared)
    before = ids(catalog)
    diff = apply_shares(catalog, declared)
    assert diff.unchanged == ("s.a.x", "s.a.y", "t.a.x")
    assert diff.added + diff.removed + diff.changed == ()
    assert ids(catalog) == before


def test_a_changed_table_keeps_its_id(catalog: Catalog) -> None:
    apply_shares(catalog, [a_share("s", "a.x")])
    before = ids(catalog)
    apply_shares(catalog, [a_share("s", "a.x=lake.other", comment="c", history=False)])
    assert ids(catalog) == before
    [entry] = list_all_shared_tables(catalog)
    assert (entry.table, entry.comment, entry.history) == ("lake.other", "c", False)


def test_directory_access_ends_when_the_name_stands_for_another_table_and_is_reported(
    catalog: Catalog,
) -> None:
    apply_shares(catalog, [a_share("s", "a.x", "a.y")])
    for name in ("x", "y"):
        allow_directory_access(catalog, "s", "a", name, allowed=True)
    diff = apply_shares(catalog, [a_share("s", "a.x=hr.salaries", "a.y", comment="c")])
    assert (diff.changed, diff.closed) == (("s.a.x", "s.a.y"), ("s.a.x",))
    assert [entry.directory_access for entry in list_all_shared_tables(catalog)] == [False, True]


def test_a_share_that_somebody_was_granted_is_emptied_but_stays(catalog: Catalog) -> None:
    apply_shares(catalog, [a_share("s", "a.x"), a_share("t", "a.x")])
    recipient, _ = Recipients(catalog).add("bob", ["s"])
    apply_shares(catalog, [])
    assert list_all_shared_tables(catalog) == []
    assert [share.name for share in Listings(catalog, recipient.id).shares(0, 10)] == ["s"]
    with catalog.reading() as session:
        assert list(session.scalars(select(ShareRow.name))) == ["s"]


def test_what_was_made_by_hand_is_left_alone(catalog: Catalog) -> None:
    apply_shares(catalog, [a_share("s", "a.x", "a.by_hand")])
    with catalog.writing() as session:
        row = session.scalars(select(SharedTableRow).where(SharedTableRow.name == "by_hand")).one()
        row.declared = False
    assert apply_shares(catalog, []).removed == ("s.a.x",)
    assert list(ids(catalog)) == ["s.a.by_hand"]
    with pytest.raises(BadRequest, match=r"s\.a\.by_hand.*by hand"):
        apply_shares(catalog, [a_share("s", "a.new", "a.by_hand=lake.other")])
    assert list(ids(catalog)) == ["s.a.by_hand"]
