"""Servers on one database queue each event once, and one of them sends the deliveries of a webhook at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from lakeshare_server.catalog import Catalog, Ledger, SharedTable
from lakeshare_server.catalog.feed import FeedEvent, read_feed
from lakeshare_server.catalog.sharing import add_table, create_recipient, create_share, editing, grant
from lakeshare_server.catalog.webhooks import (
    Outbox,
    Outcome,
    SendingLease,
    add_webhook,
    get_webhook,
    list_deliveries,
)
from tests.builders.publications import a_publication

DAY = timedelta(days=1)
LEASE = timedelta(minutes=1)


def make_body(event: FeedEvent) -> str:
    return f"{event.table.name} {event.number}"


def at_once(call: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(4) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(4)]]


def test_events_are_queued_and_leased_once(catalog: Catalog) -> None:
    with editing(catalog, "tests") as edit:
        create_share(edit, "sales")
        add_table(edit, "sales", SharedTable("lake", "orders", "lake.orders"))
        recipient = create_recipient(edit, "ann")
        grant(edit, "sales", recipient="ann")
        webhook = add_webhook(edit, "ann", "https://hooks.example", "sealed")
    for _ in range(3):
        Ledger(catalog).append([a_publication(table="lake.orders")])
    page = read_feed(catalog, recipient.id, "sales", limit=2)
    rest = read_feed(catalog, recipient.id, "sales", after=page.next, limit=2)
    assert [[event.number for event in each.events] for each in (page, rest)] == [[2, 1], [0]]
    assert [event.schema_changed for event in (*page.events, *rest.events)] == [False, False, None]

    outbox, now = Outbox(catalog, DAY, LEASE), datetime.now(UTC) + timedelta(seconds=1)
    at_once(lambda: outbox.plan(webhook.key, make_body, now))
    with catalog.reading() as session:
        queued = list_deliveries(session, get_webhook(session, webhook.id))
    assert sorted(delivery.body for delivery in queued) == ["orders 0", "orders 1", "orders 2"]

    leases = [lease for lease in at_once(lambda: outbox.claim(now)) if isinstance(lease, SendingLease)]
    [lease] = leases
    delivery = outbox.next_due(lease, now)
    assert delivery is not None
    assert delivery.body == "orders 0"

    # Another server takes the webhook over; the result of the first one does not count any more.
    later = now + 2 * LEASE
    taken = outbox.claim(later)
    assert taken is not None
    sent = Outcome(True, False, 204, None, later, later)
    outbox.record(lease, delivery, sent, later)
    assert outbox.next_due(lease, later) is None
    again = outbox.next_due(taken, later)
    assert again is not None
    assert again.event_id == delivery.event_id
    outbox.record(taken, again, sent, later)
    outbox.release(taken, later)
    with catalog.reading() as session:
        assert get_webhook(session, webhook.id).pending == 2
    outbox.purge(later + timedelta(days=31))
    with catalog.reading() as session:
        assert len(list_deliveries(session, get_webhook(session, webhook.id))) == 2
