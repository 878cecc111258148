"""Old events can be removed: what stays is verified as before, what went is told of, and its usage is kept."""

from datetime import date, timedelta

import pytest

from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.audit import (
    events_after,
    group_usage,
    maintenance,
    parse_receipt,
    prune,
    read_last_seen,
    read_usage,
    verify,
)
from lakeshare_server.catalog.audit.maintenance import Usage
from lakeshare_server.errors import BadRequest
from tests.builders.events import NOON, an_event, append, tamper

DAY = NOON.date()


def requests(catalog: Catalog) -> list[Usage]:
    return read_usage(catalog, DAY, DAY + timedelta(days=1))


def test_what_is_left_after_a_pruning_is_sound(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "AT_ONCE", 4)
    append(catalog, [an_event(number) for number in range(20)])
    receipt = parse_receipt(str(verify(catalog).head))
    before = requests(catalog)
    pruned = prune(catalog, NOON + timedelta(minutes=10), "ann")
    assert (pruned.events, pruned.through) == (10, 10)
    events = list(events_after(catalog, 0))
    assert [event.event.files for event in events][:10] == list(range(10, 20))
    told = [(one.event.principal, one.event.action, one.event.details) for one in events[10:]]
    assert [(principal, action, (said or {})["through"]) for principal, action, said in told] == [
        ("ann", "prune_audit_log", through) for through in (4, 8, 10)
    ]
    found = verify(catalog, receipt)
    assert (found.is_sound, found.anchor.number, found.events) == (True, 10, 13)
    assert requests(catalog) == before
    with pytest.raises(BadRequest, match="pruned"):
        verify(catalog, parse_receipt("3:" + "0" * 64))
    assert prune(catalog, NOON + timedelta(minutes=10), "ann").events == 0


def test_more_can_be_pruned_later_and_all_at_last(catalog: Catalog) -> None:
    append(catalog, [an_event(number) for number in range(6)])
    for minutes in (2, 4, 60):
        prune(catalog, NOON + timedelta(minutes=minutes), "ann")
        assert verify(catalog).is_sound
    assert [event.event.action for event in events_after(catalog, 0)] == ["prune_audit_log"] * 3
    tamper(catalog, "DELETE FROM audit_log WHERE key = 9")
    assert {one.kind for one in verify(catalog).findings} == {"removed"}


def test_only_what_has_passed_is_pruned(catalog: Catalog) -> None:
    append(catalog, [an_event(0)])
    with pytest.raises(BadRequest, match="zone"):
        prune(catalog, NOON.replace(tzinfo=None), "ann")
    with pytest.raises(BadRequest, match="passed"):
        prune(catalog, NOON + timedelta(days=36_500), "ann")
    assert verify(catalog).events == 1


def test_usage_is_counted_by_day_recipient_table_and_version(catalog: Catalog) -> None:
    append(
        catalog,
        [
            an_event(0, files=None, version=3),
            an_event(0, kind="end", files=5, size_bytes=100, version=3),
            an_event(1, files=2, size_bytes=10, version=4, action="plan_scan"),
            an_event(2, action="table_version", files=None, version=4),
            an_event(3, status=404, error_code="RESOURCE_DOES_NOT_EXIST", version=None, files=None),
            an_event(60 * 12, files=1, size_bytes=1, version=4),
            an_event(4, recipient="eve", object_name=None, action="list_shares", version=None, files=None),
            an_event(5, action="read_file", object_name="/data/a.parquet", version=None, files=None),
            an_event(6, recipient=None, status=401, version=None, files=None),
            an_event(6, principal="ann", version=3),
            an_event(7, kind="change", recipient=None, principal="ann", action="create_share", files=None),
        ],
    )
    found = read_usage(catalog, DAY, DAY + timedelta(days=1))
    told = [
        (one.day, one.recipient, one.table, one.version, one.requests, one.queries, one.files, one.size_bytes)
        for one in found
    ]
    orders, next_day = "sales.lake.orders", DAY + timedelta(days=1)
    assert sorted(told, key=str) == sorted(
        [
            (DAY, "bob", orders, None, 0, 0, 0, 0),
            (DAY, "bob", orders, 3, 1, 1, 5, 100),
            (DAY, "bob", orders, 4, 2, 1, 2, 10),
            (next_day, "bob", orders, 4, 1, 1, 1, 1),
            (DAY, "eve", None, None, 1, 0, 0, 0),
        ],
        key=str,
    )
    assert sum(one.refused for one in found) == 1
    bob, eve = group_usage(found, ["recipient"])
    assert (bob["recipient"], bob["queries"], bob["files"], bob["versions"]) == ("bob", 3, 8, 2)
    assert (eve["recipient"], eve["queries"], eve["requests"]) == ("eve", 0, 1)
    assert [one["day"] for one in group_usage(read_usage(catalog, DAY, DAY, table=orders), ["day"])] == [DAY]
    assert read_usage(catalog, DAY, DAY, recipient="nobody") == []
    assert read_usage(catalog, date(2020, 1, 1), date(2020, 1, 2)) == []
    assert read_last_seen(catalog) == {
        "bob": NOON + timedelta(minutes=720),
        "eve": NOON + timedelta(minutes=4),
    }
    # What is pruned in the middle of a day is counted once.
    prune(catalog, NOON + timedelta(minutes=2), "ann")
    assert read_usage(catalog, DAY, DAY + timedelta(days=1)) == found
