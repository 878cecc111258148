"""What is shared by hand is listed like the rest, outlives the contracts' application, and leaves theirs alone."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    Listings,
    SharedTable,
    allow_directory_access,
    apply_shares,
    share_table,
)
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.catalog.models import ShareRow
from lakeshare_server.catalog.sharing import alter_table, editing
from lakeshare_server.errors import BadRequest, CatalogConflict, NameTaken, NotFound
from tests.builders.recipients import Recipients
from tests.builders.sharing import unshare_table

ORDERS = SharedTable("sales", "orders", "sales.orders")
DECLARED = DeclaredShare("s", (SharedTable("sales", "declared", "lake.declared"),))


def test_a_table_shared_by_hand_is_listed_with_all_that_was_said(catalog: Catalog) -> None:
    shared = share_table(
        catalog, "s", SharedTable("sales", "orders", "lake.o", comment="c", history=False), start_version=7
    )
    bob, _ = Recipients(catalog).add("bob", ["s"])
    assert Listings(catalog, bob.id).table("S", "Sales", "ORDERS").entry == shared
    assert (shared.path, shared.table, shared.comment) == ("s.sales.orders", "lake.o", "c")
    assert (shared.history, shared.start_version, shared.directory_access) == (False, 7, False)


def test_sharing_again_changes_the_table_and_keeps_its_id(catalog: Catalog) -> None:
    first = share_table(catalog, "s", replace(ORDERS, comment="kept"), start_version=3)
    again = share_table(catalog, "s", SharedTable("sales", "Orders", ORDERS.table, history=False))
    assert (again.id, again.key, again.name, again.table) == (first.id, first.key, "Orders", ORDERS.table)
    assert not again.history
    assert (again.start_version, again.comment) == (None, "kept")
    assert list_all_shared_tables(catalog) == [again]


def test_it_outlives_the_application_of_contracts(catalog: Catalog) -> None:
    apply_shares(catalog, [DECLARED])
    by_hand = share_table(catalog, "s", ORDERS)
    alone = share_table(catalog, "alone", ORDERS)
    apply_shares(catalog, [DECLARED])
    apply_shares(catalog, [])
    assert list_all_shared_tables(catalog) == [by_hand, alone]


def test_a_declared_table_is_not_changed_by_hand(catalog: Catalog) -> None:
    apply_shares(catalog, [DECLARED])
    before = list_all_shared_tables(catalog)
    with pytest.raises(CatalogConflict, match=r"s\.sales\.declared is declared by a contract"):
        share_table(catalog, "s", SharedTable("sales", "DECLARED", "lake.other"))
    with pytest.raises(CatalogConflict, match="contract"):
        unshare_table(catalog, "s", "sales", "declared")
    assert list_all_shared_tables(catalog) == before


def test_an_unshared_table_is_gone_and_its_share_stays(catalog: Catalog) -> None:
    share_table(catalog, "s", ORDERS)
    bob, _ = Recipients(catalog).add("bob", ["s"])
    unshare_table(catalog, "S", "sales", "Orders")
    assert [share.name for share in Listings(catalog, bob.id).shares(0, 10)] == ["s"]
    assert Listings(catalog, bob.id).schemas("s", 0, 10) == []
    with pytest.raises(NotFound, match="s/sales/orders"):
        unshare_table(catalog, "s", "sales", "orders")


def test_a_schema_with_other_tables_stays(catalog: Catalog) -> None:
    share_table(catalog, "s", ORDERS)
    other = share_table(catalog, "s", SharedTable("sales", "other", "lake.other"))
    unshare_table(catalog, "s", "sales", "orders")
    assert list_all_shared_tables(catalog) == [other]


def test_directory_access_is_said_per_table_and_outlives_the_application_of_contracts(
    catalog: Catalog,
) -> None:
    apply_shares(catalog, [DECLARED])
    share_table(catalog, "s", ORDERS)
    assert allow_directory_access(catalog, "s", "sales", "declared", allowed=True).directory_access
    apply_shares(catalog, [DECLARED])
    share_table(catalog, "s", ORDERS)
    assert [entry.directory_access for entry in list_all_shared_tables(catalog)] == [True, False]
    assert not allow_directory_access(catalog, "s", "sales", "declared", allowed=False).directory_access
    with pytest.raises(NotFound):
        allow_directory_access(catalog, "s", "sales", "nothing", allowed=True)


def test_a_name_that_stands_for_another_table_is_not_taken(catalog: Catalog) -> None:
    kept = share_table(catalog, "s", ORDERS)
    with pytest.raises(NameTaken, match=r"s\.sales\.orders is shared already, as sales\.orders"):
        share_table(catalog, "s", SharedTable("sales", "Orders", "hr.salaries"))
    assert list_all_shared_tables(catalog) == [kept]


def test_directory_access_ends_when_the_name_stands_for_another_table(catalog: Catalog) -> None:
    share_table(catalog, "s", ORDERS)
    allow_directory_access(catalog, "s", "sales", "orders", allowed=True)
    assert share_table(catalog, "s", SharedTable("sales", "Orders", "sales.orders")).directory_access
    for table in ("hr.salaries", "sales.orders"):
        with editing(catalog, "ann") as edit:
            assert not alter_table(edit, "s", "sales", "orders", table=table).directory_access


def test_a_share_tells_its_display_name_and_properties(catalog: Catalog) -> None:
    share_table(catalog, "s", ORDERS)
    bob, _ = Recipients(catalog).add("bob", ["s"])
    listings = Listings(catalog, bob.id)
    assert (listings.share("s").display_name, listings.share("s").properties) == (None, {})
    with catalog.writing() as session:
        session.execute(update(ShareRow).values(display_name="Sales, ü", properties={"owner": {"team": "x"}}))
    told = listings.share("s")
    assert (told.display_name, told.properties) == ("Sales, ü", {"owner": {"team": "x"}})
    entry = listings.table("s", "sales", "orders").entry
    assert (entry.share, entry.share_id) == (told.name, told.id)


def test_what_cannot_be_shared_is_refused_by_field(catalog: Catalog, subtests: pytest.Subtests) -> None:
    for field, share, table, start_version in (
        ("share", "a.b", ORDERS, None),
        ("schema", "s", SharedTable("a b", "x", "l"), None),
        ("table", "s", SharedTable("a", "", "l"), None),
        ("start_version", "s", ORDERS, -1),
        ("start_version", "s", ORDERS, 1 << 63),
    ):
        with subtests.test(share=share, table=table, start_version=start_version):
            with pytest.raises(BadRequest) as refused:
                share_table(catalog, share, table, start_version=start_version)
            assert refused.value.field == field
            assert list_all_shared_tables(catalog) == []
