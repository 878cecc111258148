"""Files make the catalog hold the tables they follow, in one transaction with everything else."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import (
    Catalog,
    FollowedTables,
    IcebergIdentity,
    Ledger,
    SharedTable,
    share_table,
)
from lakeshare_server.catalog.declared import Plan, apply_files, plan_changes
from lakeshare_server.catalog.declared.files import FoundTable, object_key
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.errors import DocumentError
from tests.builders.applied_files import exported, paths, told
from tests.builders.publications import a_publication
from tests.builders.sharing import unshare_table

TEXT = """
followed:
  sales.orders: s3://lake/orders
  sales.items: {location: "iceberg:prod/sales.items", check_every_s: 2.5, start_version: 3}
shares:
  partners: {tables: [sales.orders, sales.items]}
"""


def events(catalog: Catalog) -> list[tuple[str, str | None, str | None]]:
    with catalog.reading() as session:
        found = session.execute(
            select(AuditRow.action, AuditRow.principal, AuditRow.object_name).order_by(AuditRow.key)
        )
        return [tuple(event) for event in found]


def names(catalog: Catalog) -> list[str]:
    return [one.table for one in FollowedTables(catalog).list()]


def test_files_follow_and_share_in_one_transaction_and_twice_changes_nothing(
    catalog: Catalog, other_catalog: Catalog, said: Callable[[str], Any]
) -> None:
    identity = IcebergIdentity("uuid", "s3://lake/items")
    wanted = dict(said(TEXT))
    key = object_key("followed", "sales.items")
    wanted[key] = replace(wanted[key], found=FoundTable(identity, "read"))
    assert len(apply_files(catalog, wanted, "ann", dry_run=True).steps) == 5
    assert (names(catalog), events(catalog)) == ([], [])
    apply_files(catalog, wanted, "ann")
    [items, orders] = FollowedTables(catalog).list()
    assert (items.location, items.check_every_s, items.start_version, items.iceberg, items.applied) == (
        "iceberg:prod/sales.items",
        2.5,
        3,
        identity,
        True,
    )
    assert (orders.location, orders.check_every_s, orders.start_version, orders.iceberg) == (
        "s3://lake/orders",
        10.0,
        0,
        None,
    )
    assert events(catalog) == [
        ("follow_table", "ann", "sales.orders"),
        ("follow_table", "ann", "sales.items"),
        ("create_share", "ann", "partners"),
        ("add_table", "ann", "partners.sales.orders"),
        ("add_table", "ann", "partners.sales.items"),
    ]
    generation = catalog.generation()
    assert plan_changes(catalog, said(TEXT)) == Plan(())
    assert apply_files(catalog, said(TEXT), "ann").steps == ()
    assert catalog.generation() == generation
    text = exported(catalog)
    assert plan_changes(catalog, said(text)).drifted is False
    apply_files(other_catalog, said(text), "ann")
    assert exported(other_catalog) == text


def test_a_refusal_of_one_table_leaves_no_other_followed(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    Ledger(catalog).append([a_publication(table="sales.items")])
    for way in (apply_files, partial(apply_files, dry_run=True)):
        with pytest.raises(
            DocumentError,
            match=r'shares\.yaml:4: followed\["sales\.items"\]: sales\.items is published by pipelines',
        ):
            way(catalog, said(TEXT), "ann")
    assert (names(catalog), paths(catalog), events(catalog)) == ([], [], [])


def test_a_name_of_another_format_is_refused(catalog: Catalog, said: Callable[[str], Any]) -> None:
    found = a_publication(table="sales.orders", audited=False)
    assert found.format == "iceberg"
    Ledger(catalog).append([found])
    with pytest.raises(DocumentError, match=r"has versions in the format iceberg.*under another name"):
        apply_files(catalog, said(TEXT), "ann")


def test_what_was_changed_by_hand_is_shown_and_taken_back(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    followed = FollowedTables(catalog)
    followed.add("sales.orders", "s3://lake/orders", 10.0)
    assert told(apply_files(catalog, said(TEXT), "ann").steps)[0] == ("update", "sales.orders", ["kept_by"])
    before = exported(catalog)
    followed.add("sales.orders", "s3://lake/orders", 60, start_version=7)
    assert told(plan_changes(catalog, said(TEXT)).steps) == [
        ("update", "sales.orders", ["check_every_s", "start_version"])
    ]
    apply_files(catalog, said(TEXT), "ann")
    assert exported(catalog) == before
    followed.remove("sales.items")
    [step] = apply_files(catalog, said(TEXT), "ann").steps
    assert (step.verb, step.name) == ("create", "sales.items")
    assert exported(catalog) == before
    assert [event[:2] for event in events(catalog) if event[2] == "sales.items"] == [
        ("follow_table", "ann"),
        ("unfollow_table", "command line"),
        ("follow_table", "ann"),
    ]


def test_a_table_that_was_unfollowed_after_the_plan_is_not_followed_unread(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    apply_files(catalog, said(TEXT), "ann")
    unread = {key: replace(one, found=None) for key, one in said(TEXT).items()}
    assert plan_changes(catalog, unread).steps == ()
    FollowedTables(catalog).remove("sales.orders")
    with pytest.raises(DocumentError, match=r"sales\.orders has just been unfollowed.*again"):
        apply_files(catalog, unread, "ann")
    assert names(catalog) == ["sales.items"]


def test_another_location_is_refused(catalog: Catalog, said: Callable[[str], Any]) -> None:
    apply_files(catalog, said(TEXT), "ann")
    with pytest.raises(
        DocumentError,
        match=r'yaml:3: followed\["sales\.orders"\]: it is followed at s3://lake/orders, and cannot be followed at '
        r"s3://lake/other\. Take another name, or `lakeshare table unfollow sales\.orders`",
    ):
        apply_files(catalog, said(TEXT.replace("lake/orders", "lake/other")), "ann")


def test_pruning_ends_what_files_followed_and_nothing_that_others_share(
    catalog: Catalog, said: Callable[[str], Any]
) -> None:
    FollowedTables(catalog).add("by.hand", "/data", 1)
    apply_files(catalog, said(TEXT), "ann")
    share_table(catalog, "mine", SharedTable("own", "items", "sales.items"))
    less = "followed: {}\nshares: {partners: {}}"
    kept = apply_files(catalog, said(less), "ann")
    assert (kept.steps, len(kept.left)) == ((), 4)
    plan = apply_files(catalog, said(less), "ann", prune=True)
    assert [(step.verb, step.kind, step.name) for step in plan.steps] == [
        ("delete", "table", "partners.sales.orders"),
        ("delete", "table", "partners.sales.items"),
        ("delete", "followed", "sales.orders"),
    ]
    assert [(left.why, left.current.name) for left in plan.left] == [("needed", "sales.items")]
    assert names(catalog) == ["by.hand", "sales.items"]
    unshare_table(catalog, "mine", "own", "items")
    text = "shares: {partners: {tables: {a.b: sales.items}}}"
    with pytest.raises(DocumentError, match=r"followed sales\.items is in no file, and would be removed"):
        apply_files(catalog, said(text), "ann", prune=True)


@pytest.mark.parametrize("name", ["my.or#ders", "sal?es.orders"])
def test_names_that_clients_cannot_read_are_refused(
    catalog: Catalog, said: Callable[[str], Any], name: str
) -> None:
    with pytest.raises(DocumentError, match="cannot be"):
        plan_changes(catalog, said(f"followed: {{'{name}': /data}}"))
