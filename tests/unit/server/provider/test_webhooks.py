"""Each publication that a recipient may read reaches its webhooks exactly once by its id, whatever fails in between."""

import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.catalog import Ledger, SharedTable
from lakeshare_server.catalog.database import database_file
from lakeshare_server.catalog.sharing import (
    add_table,
    alter_table,
    create_share,
    editing,
    grant,
    revoke,
    revoke_recipient,
)
from lakeshare_server.catalog.webhooks import (
    Webhook,
    get_webhook,
    list_deliveries,
    remove_webhook,
    resend_deliveries,
)
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.provider.webhooks import WebhookDispatcher, WebhookRegistry, sign_event
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.lake_tables import a_delta_table
from tests.builders.publications import a_publication
from tests.builders.sharing import Provider, a_provider
from tests.builders.waiting import wait_until
from tests.builders.webhook_consumer import AConsumer, a_consumer

KEY = b"k" * 32


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def move(self, **time: float) -> None:
        self.now += timedelta(**time)


@pytest.fixture
def consumer() -> Iterator[AConsumer]:
    with a_consumer() as consumer:
        yield consumer


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    """Shares `lake.orders` in `sales`, and has a recipient `ann` of it."""
    made = a_provider(
        tmp_path, signing_key=KEY.decode(), webhook_private_hosts="127.0.0.1", webhook_answer_s=5
    )
    with editing(made.catalog, "tests") as edit:
        create_share(edit, "sales")
        add_table(edit, "sales", SharedTable("lake", "orders", "lake.orders"))
    made.recipient("ann", ("sales",))
    yield made
    made.catalog.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def dispatch(provider: Provider, clock: Clock) -> Iterator[Callable[..., WebhookDispatcher]]:
    """Makes dispatchers, like those of several servers, which are stopped at the end."""
    with ExitStack() as stack:

        def make(**settings: Any) -> WebhookDispatcher:
            changed = provider.settings.model_copy(update=settings)
            versions = Versions(provider.catalog, changed, Stores(changed))
            made = WebhookDispatcher(provider.catalog, versions, changed, KEY, now=clock, draw=lambda: 0.5)
            stack.callback(made.stop)
            return made

        yield make


def publish(provider: Provider, table: str = "lake.orders", times: int = 1, **fields: Any) -> None:
    for _ in range(times):
        Ledger(provider.catalog).append([a_publication(table=table, **fields)])


def hook(provider: Provider, consumer: AConsumer, recipient: str = "ann", **options: Any) -> Webhook:
    registry = WebhookRegistry(provider.settings, KEY)
    registry.require_url(consumer.url)
    with editing(provider.catalog, "tests") as edit:
        webhook, secret = registry.add(edit, recipient, options.pop("url", consumer.url), **options)
    consumer.secrets.append(secret)
    return webhook


def drain(dispatcher: WebhookDispatcher) -> None:
    """Wait for the attempts in progress, and for the look at followed tables."""
    looking = dispatcher._looking
    wait(dispatcher._sending if looking is None else {*dispatcher._sending, looking}, 30)


def run(dispatcher: WebhookDispatcher, turns: int = 2) -> None:
    for _ in range(turns):
        dispatcher.turn()
        drain(dispatcher)


def state_of(provider: Provider, webhook: Webhook) -> Webhook:
    with provider.catalog.reading() as session:
        return get_webhook(session, webhook.id)


def test_a_publication_is_sent_once_as_a_signed_cloud_event(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher]
) -> None:
    publish(provider)
    webhook = hook(provider, consumer)
    dispatcher = dispatch()
    run(dispatcher)
    assert consumer.requests == []  # published before the webhook was added

    publish(provider, rows=12345678, size_bytes=2)
    run(dispatcher, 3)

    [request] = consumer.requests
    event = request["event"]
    assert (request["content-type"], request["is_signed_by"]) == (
        "application/cloudevents+json; charset=utf-8",
        consumer.secrets,
    )
    assert consumer.paths == ["/hook?key=1"]
    assert (event["specversion"], event["type"], event["subject"]) == (
        "1.0",
        "lakeshare.table.published",
        "sales.lake.orders",
    )
    assert event["source"].endswith("/delta-sharing/shares/sales")
    assert {name: event["data"][name] for name in ("number", "schemaChanged", "rows")} == {
        "number": 1,
        "schemaChanged": False,
        "rows": 12345678,
    }
    assert state_of(provider, webhook).pending == 0


def test_a_consumer_that_was_down_for_an_hour_gets_each_number_once(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    webhook = hook(provider, consumer)
    consumer.is_down = True
    dispatcher = dispatch()
    attempts = []
    for minute in range(60):
        publish(provider, times=minute % 20 == 0)
        run(dispatcher)
        clock.move(minutes=1)
        attempts.append(len(consumer.paths))
    state = state_of(provider, webhook)
    assert (state.pending, state.failures > 5, consumer.started) == (3, True, {})
    # They become rarer.
    assert attempts[9] > attempts[-1] - attempts[-11]

    consumer.is_down = False
    clock.move(minutes=6)
    run(dispatcher, 4)

    assert sorted(consumer.numbers()) == [("orders", 0), ("orders", 1), ("orders", 2)]
    assert len(consumer.requests) == 3
    assert state_of(provider, webhook).failures == 0


def test_events_of_the_time_without_a_server_are_sent_later(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    hook(provider, consumer)
    run(dispatch())
    publish(provider, times=3)
    clock.move(hours=30)

    run(dispatch())

    assert consumer.numbers() == [("orders", 0), ("orders", 1), ("orders", 2)]


def test_several_servers_send_each_delivery_once_and_a_crash_leads_to_a_retry(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    hook(provider, consumer)
    publish(provider, times=4)
    first, second = dispatch(), dispatch()
    consumer.held = threading.Event()
    for _ in range(3):
        first.turn()
        second.turn()
    wait_until(lambda: len(consumer.paths) == 1)
    # The first server gets no response, and its lease ends: another one sends the same event.
    clock.move(minutes=2)
    second.turn()
    wait_until(lambda: len(consumer.paths) == 2)
    consumer.held.set()
    consumer.held = None
    drain(first)
    drain(second)
    run(first)
    run(second)

    sent = [request["webhook-id"] for request in consumer.requests]
    assert consumer.numbers() == [("orders", number) for number in range(4)]
    assert (len(sent), len(set(sent))) == (5, 4)


def test_a_slow_consumer_delays_no_other(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher]
) -> None:
    with a_consumer() as slow:
        slow.held = threading.Event()
        hook(provider, slow)
        hook(provider, consumer)
        dispatcher = dispatch(webhook_senders=2)
        publish(provider, times=3)
        dispatcher.turn()
        wait_until(lambda: len(consumer.started) == 3)
        assert (len(slow.paths), slow.started) == (1, {})
        slow.held.set()
        drain(dispatcher)


def test_an_event_that_is_refused_does_not_hold_the_others_up_and_becomes_a_dead_letter(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    webhook = hook(provider, consumer)
    dispatcher = dispatch(webhook_retry_hours=1)
    publish(provider, times=2)
    consumer.statuses = [400]
    run(dispatcher)
    assert consumer.numbers() == [("orders", 1)]
    consumer.statuses = [302] * 40
    for _ in range(16):
        clock.move(minutes=5)
        run(dispatcher)

    with provider.catalog.reading() as session:
        [dead] = list_deliveries(session, get_webhook(session, webhook.id), "dead")
    assert (dead.last_status, dead.last_error) == (302, "it answered 302: redirects are not followed")
    assert dead.finished_at is not None
    assert {path for path in consumer.paths if "hook" not in path} == set()
    consumer.statuses = []
    clock.move(hours=10)
    run(dispatcher)
    assert consumer.numbers() == [("orders", 1)]

    with editing(provider.catalog, "tests") as edit:
        with pytest.raises(NotFound):
            resend_deliveries(edit, webhook.id, ["unknown"], timedelta(hours=1))
        assert resend_deliveries(edit, webhook.id, [dead.event_id], timedelta(hours=1)) == 1
    run(dispatcher)
    assert consumer.numbers() == [("orders", 1), ("orders", 0)]


def test_a_recipient_is_sent_what_it_may_read_when_it_is_sent(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    with editing(provider.catalog, "tests") as edit:
        create_share(edit, "other")
        for name in ("hidden", "lines"):
            add_table(edit, "other", SharedTable("lake", name, f"lake.{name}"))
        add_table(edit, "sales", SharedTable("lake", "newest", "lake.newest", history=False))
        add_table(edit, "sales", SharedTable("lake", "pinned", "lake.pinned", publication=0))
    hook(provider, consumer)
    only = hook(provider, consumer, share="sales", url=consumer.url + "&only")
    dispatcher = dispatch()
    for table in ("newest", "pinned"):
        publish(provider, f"lake.{table}", 2, rows=7)
    publish(provider, "lake.hidden")
    run(dispatcher)
    expected = [("newest", 1), ("pinned", 0)]
    assert sorted(consumer.numbers()) == expected
    assert len(consumer.requests) == 4  # one of each webhook

    with editing(provider.catalog, "tests") as edit:
        grant(edit, "other", recipient="ann", rule="day = '2024-01-01'")
    publish(provider, "lake.lines", rows=7)
    run(dispatcher)
    assert sorted(consumer.numbers()) == [("lines", 0), *expected]
    [(lines, path)] = [
        (request["event"]["data"], path)
        for request, path in zip(consumer.requests, consumer.paths, strict=True)
        if request["event"]["data"]["table"] == "lines"
    ]
    assert ("rows" in lines, path) == (False, "/hook?key=1")

    consumer.is_down = True
    publish(provider, "lake.lines")
    publish(provider)
    run(dispatcher)
    with editing(provider.catalog, "tests") as edit:
        revoke(edit, "other", recipient="ann")
    consumer.is_down = False
    clock.move(minutes=5)
    run(dispatcher)
    assert sorted(consumer.numbers()) == [("lines", 0), *expected[:1], ("orders", 0), *expected[1:]]
    with editing(provider.catalog, "tests") as edit:
        revoke_recipient(edit, "ann")
    publish(provider)
    run(dispatcher)
    assert ("orders", 1) not in consumer.numbers()
    assert state_of(provider, only).pending == 0


def test_a_notice_of_a_table_that_is_to_retire_is_sent_once(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    hook(provider, consumer)
    dispatcher = dispatch()
    for day in ("2030-01-30", "2030-01-31"):
        with editing(provider.catalog, "tests") as edit:
            alter_table(edit, "sales", "lake", "orders", retire_date=day)
        run(dispatcher)
        clock.move(days=40)
        publish(provider, "lake.unshared")
        run(dispatcher)
    events = [request["event"] for request in consumer.requests]
    assert [(event["type"], event["data"]["retireDate"]) for event in events] == [
        ("lakeshare.table.retiring", "2030-01-30"),
        ("lakeshare.table.retiring", "2030-01-31"),
    ]


def test_new_versions_of_followed_tables_are_found_without_a_request(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], tmp_path: Path
) -> None:
    hook(provider, consumer)
    provider.follow("lake.found", a_delta_table(tmp_path / "found"))
    with editing(provider.catalog, "tests") as edit:
        add_table(edit, "sales", SharedTable("lake", "found", "lake.found"))

    provider.follow("lake.ungranted", a_delta_table(tmp_path / "ungranted"))

    run(dispatch())

    assert [table for table, _ in consumer.numbers()] == ["found"]
    # Stores of tables that no webhook is for are not asked.
    assert Ledger(provider.catalog).tables() == ["lake.found"]


def test_secrets_are_sealed_in_the_database_and_rotate_with_a_grace_time(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    webhook = hook(provider, consumer)
    registry, dispatcher = WebhookRegistry(provider.settings, KEY), dispatch()
    with editing(provider.catalog, "tests") as edit:
        rotated, secret = registry.rotate(edit, webhook.id, timedelta(hours=1))
    consumer.secrets.append(secret)
    assert rotated.previous_secret_until is not None
    publish(provider)
    run(dispatcher)
    clock.move(hours=2)
    publish(provider)
    run(dispatcher)
    assert [request["is_signed_by"] for request in consumer.requests] == [consumer.secrets, [secret]]

    file = database_file(provider.settings.catalog_url)
    with closing(sqlite3.connect(str(file))) as database:
        dump = "\n".join(database.iterdump())
    for known in consumer.secrets:
        assert known not in dump
        assert known.removeprefix("whsec_") not in dump
    for wrong in (timedelta(days=-1), timedelta(days=31)):
        with editing(provider.catalog, "tests") as edit, pytest.raises(BadRequest, match="keep_old_for"):
            registry.rotate(edit, webhook.id, wrong)


def test_a_secret_that_another_key_has_sealed_is_named_until_it_is_rotated(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    webhook = hook(provider, consumer)
    changed = b"x" * 32
    versions = Versions(provider.catalog, provider.settings, Stores(provider.settings))
    dispatcher = WebhookDispatcher(provider.catalog, versions, provider.settings, changed, now=clock)
    publish(provider)
    run(dispatcher)
    with provider.catalog.reading() as session:
        [waiting] = list_deliveries(session, get_webhook(session, webhook.id), "pending")
    assert "Rotate the secret" in str(waiting.last_error)
    assert consumer.requests == []
    with editing(provider.catalog, "tests") as edit:
        _, secret = WebhookRegistry(provider.settings, changed).rotate(edit, webhook.id, timedelta(hours=1))
    consumer.secrets = [secret]
    clock.move(hours=1)
    run(dispatcher)
    dispatcher.stop()
    assert [request["is_signed_by"] for request in consumer.requests] == [[secret]]


@pytest.mark.parametrize("secret", ["whsec_!", "whsec_é", "whsec_abc"])
def test_a_secret_that_is_none_is_refused_without_it(secret: str) -> None:
    with pytest.raises(BadRequest, match="whsec_ on") as refused:
        sign_event(secret, "id", 0, b"")
    assert secret not in str(refused.value)


def test_signatures_are_those_of_standard_webhooks() -> None:
    # The example of the specification's libraries.
    signature = sign_event(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


REFUSED = [
    "https://127.0.0.1/x",
    "https://10.1.2.3/x",
    "https://169.254.169.254/latest",
    "https://[::1]/x",
    "https://[fe80::1]/x",
    "https://[::ffff:10.0.0.1]/x",
    "https://[64:ff9b::7f00:1]/x",
    "https://[2002:7f00:1::]/x",
    "https://224.0.0.1/x",
    "https://0.0.0.0/x",
    "https://localhost/x",
    "https://2130706433/x",
    "http://1.1.1.1/x",
    "ftp://1.1.1.1/x",
    "https://user:secret@1.1.1.1/x",
    "https://1.1.1.1/x#y",
    "https://1.1.1.1/a b",
    "https://1.1.1.1/a\x01b",
    "https://1.1.1.1:99999/",
    "https://[1.1.1.1/",
    "https://",
    "nonsense",
]


def test_a_webhook_to_a_private_address_is_refused_unless_it_is_allowed(provider: Provider) -> None:
    strict = WebhookRegistry(provider.settings.model_copy(update={"webhook_private_hosts": ""}), KEY)
    for url in REFUSED:
        with pytest.raises(BadRequest, match="url"):
            strict.require_url(url)
    strict.require_url("https://1.1.1.1/hook")
    allowed = provider.settings.model_copy(update={"webhook_private_hosts": "10.1.2.3 localhost:8443"})
    WebhookRegistry(allowed, KEY).require_url("http://10.1.2.3/x")
    WebhookRegistry(allowed, KEY).require_url("https://localhost:8443/x")
    with pytest.raises(BadRequest):
        WebhookRegistry(allowed, KEY).require_url("https://localhost/x")


def test_a_name_that_resolves_to_a_private_address_later_is_not_connected_to(
    provider: Provider,
    consumer: AConsumer,
    dispatch: Callable[..., WebhookDispatcher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = consumer.server_address[1]
    addresses = ["1.1.1.1"]
    resolve = socket.getaddrinfo

    def answer(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve(addresses[0] if host == "hooks.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    strict = provider.settings.model_copy(update={"webhook_private_hosts": ""})
    url = f"https://hooks.example:{port}/hook"
    WebhookRegistry(strict, KEY).require_url(url)
    webhook = hook(provider, consumer, url=url)
    addresses[0] = "127.0.0.1"
    publish(provider)

    run(dispatch(webhook_private_hosts=""))

    assert (consumer.paths, state_of(provider, webhook).last_error) == (
        [],
        "ValueError: it is in a private network",
    )


def test_a_test_event_shows_that_the_webhook_works_and_removal_ends_all(
    provider: Provider, consumer: AConsumer, dispatch: Callable[..., WebhookDispatcher], clock: Clock
) -> None:
    webhook = hook(provider, consumer)
    dispatcher = dispatch()
    with editing(provider.catalog, "tests") as edit:
        event_id = WebhookRegistry(provider.settings, KEY).test(edit, webhook.id)
    clock.move(seconds=10)
    run(dispatcher)
    assert consumer.started[event_id]["type"] == "lakeshare.webhook.test"
    publish(provider)
    with editing(provider.catalog, "tests") as edit:
        remove_webhook(edit, webhook.id, "Ann")
    run(dispatcher)
    assert list(consumer.started) == [event_id]
    with editing(provider.catalog, "tests") as edit, pytest.raises(NotFound):
        remove_webhook(edit, webhook.id)
