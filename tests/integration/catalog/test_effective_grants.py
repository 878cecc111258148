"""What a recipient may read at a moment: its own grants and those of its groups, whose time has come and not gone."""

from datetime import UTC, datetime, timedelta

import pytest

from lakeshare_server.catalog import Catalog, EffectiveGrant, GenerationCache, Listings
from lakeshare_server.catalog.sharing import (
    add_table,
    alter_group,
    alter_recipient,
    create_group,
    create_share,
    editing,
    grant,
    revoke,
)
from lakeshare_server.catalog.states import SharedTable
from lakeshare_server.errors import NotFound
from tests.builders.recipients import Recipients

HOUR = timedelta(hours=1)


@pytest.fixture
def bob(catalog: Catalog) -> Listings:
    """A recipient in a group, without a grant; two shares with a table each."""
    with editing(catalog, "tests") as edit:
        for share in ("s", "other"):
            create_share(edit, share)
            add_table(edit, share, SharedTable(schema="a", name="x", table="lake.x"))
    recipient = Recipients(catalog).add("bob", [])[0]
    Recipients(catalog).add("eve", [])
    with editing(catalog, "tests") as edit:
        create_group(edit, "g", members=["bob"])
    return Listings(catalog, recipient.id)


def effective(bob: Listings, share: str = "s") -> EffectiveGrant | None:
    """What listings and tables agree on."""
    listed = share in [one.name for one in bob.shares(0, 10)]
    try:
        found = bob.table(share, "a", "x").grant
    except NotFound:
        assert not listed
        for look in (
            lambda: bob.share(share),
            lambda: bob.schemas(share, 0, 9),
            lambda: bob.tables(share, None, 0, 9),
        ):
            with pytest.raises(NotFound):
                look()
        return None
    assert listed
    assert bob.share(share).name == share
    assert [one.name for one in bob.tables(share, "a", 0, 9)] == ["x"]
    return found


def granted(catalog: Catalog, share: str = "s", **terms: object) -> None:
    with editing(catalog, "tests") as edit:
        grant(edit, share, **({"recipient": "bob"} | terms if "group" not in terms else terms))


def test_own_grants_count_within_their_time(catalog: Catalog, bob: Listings) -> None:
    now = datetime.now(UTC)
    assert effective(bob) is None
    for starts_at, ends_at, is_there, until in (
        (None, None, True, None),
        (None, now + HOUR, True, now + HOUR),
        (now - HOUR, None, True, None),
        (now + HOUR, None, False, None),
        (now - 2 * HOUR, now - HOUR, False, None),
        (now + HOUR, now + 2 * HOUR, False, None),
        (now - HOUR, now + HOUR, True, now + HOUR),
    ):
        granted(catalog, starts_at=starts_at, ends_at=ends_at)
        found = effective(bob)
        assert (found is not None) == is_there, (starts_at, ends_at)
        assert found is None or found.valid_until == until
        assert found is None or (found.is_over(), found.rules) == (False, None)
    assert effective(bob, "other") is None


def test_times_of_any_zone_are_the_same_moment(catalog: Catalog, bob: Listings) -> None:
    from datetime import timezone

    ends_at = datetime.now(timezone(timedelta(hours=-11))) + HOUR
    granted(catalog, ends_at=ends_at)
    found = effective(bob)
    assert found is not None
    assert found.valid_until == ends_at


def test_groups_count_for_their_members_and_only_for_them(catalog: Catalog, bob: Listings) -> None:
    granted(catalog, group="g", rule="day = '1'")
    found = effective(bob)
    assert found is not None
    assert found.rules == ("day = '1'",)
    eve = Recipients(catalog).list()[1]
    assert Listings(catalog, eve.id).shares(0, 10) == []
    with editing(catalog, "tests") as edit:
        alter_group(edit, "g", remove=["bob"], add=["eve"])
    assert effective(bob) is None
    assert [one.name for one in Listings(catalog, eve.id).shares(0, 10)] == ["s"]


def test_a_share_granted_twice_takes_one_place_of_a_page(catalog: Catalog, bob: Listings) -> None:
    with editing(catalog, "tests") as edit:
        create_share(edit, "third")
        for share in ("other", "s", "third"):
            grant(edit, share, recipient="bob")
            grant(edit, share, group="g")
    first = bob.shares(0, 2)
    assert [one.name for one in first] == ["s", "other"]
    assert [one.name for one in bob.shares(first[-1].key, 2)] == ["third"]


def test_rules_of_all_grants_in_force_add_up(catalog: Catalog, bob: Listings) -> None:
    now = datetime.now(UTC)
    granted(catalog, rule="day = '1'", ends_at=now + 2 * HOUR)
    granted(catalog, group="g", rule="day = '2'", starts_at=now + HOUR)
    found = effective(bob)
    assert found is not None
    # The rule to come does not count yet, but what was looked up ends with its beginning.
    assert (found.rules, found.valid_until) == (("day = '1'",), now + HOUR)
    granted(catalog, group="g", rule="day = '2'")
    found = effective(bob)
    assert found is not None
    assert (found.rules, found.valid_until) == (("day = '1'", "day = '2'"), now + 2 * HOUR)
    granted(catalog, group="g")
    found = effective(bob)
    assert found is not None
    assert found.rules is None
    with editing(catalog, "tests") as edit:
        revoke(edit, "s", group="g")
    found = effective(bob)
    assert found is not None
    assert found.rules == ("day = '1'",)


def test_a_grant_tells_whose_it_is(catalog: Catalog, bob: Listings) -> None:
    granted(catalog)
    found = effective(bob)
    assert found is not None
    assert (found.recipient_id, found.recipient_name, dict(found.properties)) == (bob.recipient_id, "bob", {})
    with editing(catalog, "tests") as edit:
        alter_recipient(edit, "bob", properties={"area": "eu"})
    found = effective(bob)
    assert found is not None
    assert found.properties == {"area": "eu"}


def test_a_cache_holds_nothing_that_is_over(catalog: Catalog) -> None:
    ends: dict[str, datetime] = {}
    cache = GenerationCache[str](catalog, is_over=lambda value: ends[value] <= datetime.now(UTC))
    ends |= {"old": datetime.now(UTC) + HOUR, "new": datetime.now(UTC) + HOUR}
    assert cache.get("k", lambda: "old") == cache.get("k", lambda: "new") == cache.peek("k") == "old"
    ends["old"] = datetime.now(UTC)
    assert cache.peek("k") is None
    assert cache.get("k", lambda: "new") == cache.peek("k") == "new"
