"""A lake name is published by pipelines or followed at one location, never both; what was followed is found again."""

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import (
    Catalog,
    FollowedTables,
    IcebergIdentity,
    Ledger,
    SharedTable,
    allow_directory_access,
    share_table,
)
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound
from tests.builders.publications import a_publication


@pytest.fixture
def followed(catalog: Catalog) -> FollowedTables:
    return FollowedTables(catalog)


def test_what_was_followed_is_found_again(followed: FollowedTables) -> None:
    added = followed.add("sales.orders", "s3://bucket/a b/ü%20", 2.5, start_version=1 << 40)
    followed.add("a.b", "/data", 0)
    assert (added.location, added.check_every_s, added.start_version) == (
        "s3://bucket/a b/ü%20",
        2.5,
        1 << 40,
    )
    assert followed.get("sales.orders") == added
    assert [found.table for found in followed.list()] == ["a.b", "sales.orders"]
    assert followed.get("sales.other") is None


def test_following_and_its_end_are_in_the_audit_log(catalog: Catalog, followed: FollowedTables) -> None:
    followed.add("sales.orders", "/data", 2, by="ann")
    followed.add("sales.orders", "/data", 2, by="ann")
    followed.add("sales.orders", "/data", 3, by="ben")
    followed.remove("sales.orders", "eve")
    with catalog.reading() as session:
        events = session.scalars(select(AuditRow).order_by(AuditRow.key)).all()
        assert [(event.action, event.principal, event.object_name) for event in events] == [
            ("follow_table", "ann", "sales.orders"),
            ("alter_followed_table", "ben", "sales.orders"),
            ("unfollow_table", "eve", "sales.orders"),
        ]
        assert events[1].details["before"] == events[0].details["after"]
        assert events[1].details["after"]["check_every_s"] == "3.0"


def test_following_again_changes_the_check_and_the_start_only(followed: FollowedTables) -> None:
    first = followed.add("sales.orders", "/data", 2)
    again = followed.add("sales.orders", "/data", 30, start_version=4)
    assert (again.check_every_s, again.start_version, again.created_at) == (30, 4, first.created_at)
    assert followed.list() == [again]


def test_one_name_has_one_location(followed: FollowedTables) -> None:
    followed.add("sales.orders", "/data", 2)
    with pytest.raises(CatalogConflict, match=r"sales\.orders is followed at /data already.*unfollow"):
        followed.add("sales.orders", "/elsewhere", 2)
    followed.remove("sales.orders")
    assert followed.add("sales.orders", "/elsewhere", 2).location == "/elsewhere"


def test_what_pipelines_publish_is_not_followed(catalog: Catalog, followed: FollowedTables) -> None:
    Ledger(catalog).append([a_publication(table="sales.orders")])
    with pytest.raises(CatalogConflict, match=r"sales\.orders is published by pipelines.*another name"):
        followed.add("sales.orders", "/data", 2)
    assert followed.list() == []


def test_what_is_followed_is_not_published(catalog: Catalog, followed: FollowedTables) -> None:
    followed.add("sales.orders", "/data", 2)
    run = [a_publication(table=table, run_id="r") for table in ("sales.other", "sales.orders")]
    with pytest.raises(CatalogConflict, match=r"sales\.orders is followed at /data.*unfollow sales\.orders"):
        Ledger(catalog).append(run)
    assert Ledger(catalog).tables() == []


def test_an_iceberg_table_is_followed_as_the_one_it_was(followed: FollowedTables) -> None:
    one, other = (IcebergIdentity(table_id, "s3://lake/orders") for table_id in ("a", "b"))
    added = followed.add("sales.orders", "iceberg:prod/sales.orders", 2, iceberg=one)
    assert added.iceberg == one
    assert followed.add("sales.orders", "iceberg:prod/sales.orders", 9, iceberg=one).check_every_s == 9
    for found in (other, None):
        with pytest.raises(CatalogConflict, match=r"another table than the one.*unfollow sales\.orders"):
            followed.add("sales.orders", "iceberg:prod/sales.orders", 2, iceberg=found)
    followed.remove("sales.orders")
    assert followed.add("sales.orders", "iceberg:prod/sales.orders", 2, iceberg=other).iceberg == other


def test_a_removed_table_is_followed_no_more(followed: FollowedTables) -> None:
    added = followed.add("sales.orders", "/data", 2)
    assert followed.remove("sales.orders") == added
    assert followed.list() == []
    with pytest.raises(NotFound, match=r"sales\.orders"):
        followed.remove("sales.orders")


def test_directory_access_ends_with_the_table_it_was_allowed_for(
    catalog: Catalog, followed: FollowedTables
) -> None:
    followed.add("sales.orders", "/data", 2)
    followed.add("sales.other", "/other", 2)
    for name in ("orders", "other"):
        share_table(catalog, "s", SharedTable("sales", name, f"sales.{name}"))
        allow_directory_access(catalog, "s", "sales", name, allowed=True)
    followed.remove("sales.orders")
    followed.add("sales.orders", "/elsewhere", 2)
    share_table(catalog, "s", SharedTable("sales", "orders", "sales.orders"))
    assert [entry.directory_access for entry in list_all_shared_tables(catalog)] == [False, True]


def test_what_cannot_be_used_is_refused_by_field(followed: FollowedTables, subtests: pytest.Subtests) -> None:
    usable = {"table": "sales.orders", "location": "/data", "check_every_s": 1.0, "start_version": 0}
    for field, value in (
        ("table", "orders"),
        ("table", "a.b.c"),
        ("table", "sales."),
        ("table", "sales.my orders"),
        ("location", ""),
        ("location", "/a\x00b"),
        ("check_every_s", -1),
        ("check_every_s", float("nan")),
        ("start_version", -1),
        ("start_version", 1 << 63),
    ):
        with subtests.test(field=field, value=value):
            with pytest.raises(BadRequest) as refused:
                followed.add(**{**usable, field: value})
            assert refused.value.field == field
