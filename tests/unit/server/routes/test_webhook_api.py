"""Administrators add, list, test, rotate and remove webhooks by the API and by commands; a running server sends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.catalog import Ledger
from tests.builders.administration import PROVIDER, Administered, an_administered_server
from tests.builders.commands import Runner
from tests.builders.publications import a_publication
from tests.builders.waiting import wait_until
from tests.builders.webhook_consumer import AConsumer, a_consumer

HOOKS = "/recipients/ann/webhooks"


@pytest.fixture(scope="module")
def consumer() -> Iterator[AConsumer]:
    with a_consumer() as consumer:
        yield consumer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    folder = tmp_path_factory.mktemp("hooks")
    options: dict[str, Any] = {"webhook_interval_s": 0.05, "webhook_private_hosts": "127.0.0.1"}
    with an_administered_server(folder, **options) as server:
        server.provider.share("lake.flights")
        server.provider.recipient("ann")
        yield server


@pytest.fixture
def client(server: Administered) -> Iterator[httpx.Client]:
    with server.client("steward", PROVIDER) as client:
        yield client


def publish(server: Administered) -> None:
    Ledger(server.provider.catalog).append(
        [
            a_publication(table="lake.flights", format="delta", delta_version=1_000 + publish.count)  # type: ignore[attr-defined]
        ]
    )
    publish.count += 1  # type: ignore[attr-defined]


publish.count = 0  # type: ignore[attr-defined]


def test_a_webhook_is_added_tested_and_gets_events_while_the_server_runs(
    server: Administered, client: httpx.Client, consumer: AConsumer
) -> None:
    made = client.post(HOOKS, json={"url": consumer.url, "share": "flights", "comment": "runs"}).json()
    consumer.secrets.append(made["secret"])
    assert (made["recipient"], made["share"], made["secret"][:6]) == ("ann", "flights", "whsec_")
    hook = f"{HOOKS}/{made['id']}"

    event_id = client.post(f"{hook}/test").json()["event_id"]
    wait_until(lambda: event_id in consumer.started)
    publish(server)
    wait_until(lambda: ("flights", 1_000) in consumer.numbers())

    wait_until(lambda: client.get(HOOKS).json()["webhooks"][0]["pending"] == 0)
    [listed] = client.get(HOOKS).json()["webhooks"]
    assert ("secret" in listed, listed["dead"], listed["delivered_at"] > 0) == (False, 0, True)
    newest, test = client.get(f"{hook}/deliveries").json()["deliveries"]
    assert (newest["state"], newest["attempts"], newest["event"]["data"]["number"]) == ("delivered", 1, 1_000)
    assert test["type"] == "lakeshare.webhook.test"
    assert client.get(f"{hook}/deliveries", params={"state": "dead"}).json() == {"deliveries": []}

    rotated = client.post(f"{hook}/rotate-secret", json={"existing_secret_expire_in_seconds": 60}).json()
    assert rotated["secret"] != made["secret"]
    assert rotated["previous_secret_until"] > 0
    assert client.post(f"{hook}/resend", json={}).json() == {"resent": 0}
    # The webhook of another recipient does not exist.
    other = f"/recipients/bob/webhooks/{made['id']}"
    server.provider.recipient("bob")
    for path in (f"{other}/test", f"{other}/resend", f"{other}/rotate-secret"):
        assert client.post(path, json={}).status_code == 404
    assert client.delete(other).status_code == 404
    assert client.delete(hook).status_code == 200
    assert client.get(HOOKS).json() == {"webhooks": []}
    events = client.get("/audit-events", params={"object": "ann", "kind": "change"}).json()["events"]
    actions = {event["action"] for event in events}
    assert {"add_webhook", "rotate_webhook_secret", "test_webhook", "remove_webhook"} <= actions
    assert made["secret"][6:] not in str(events)


def test_unusable_webhooks_are_refused_and_nothing_is_added(
    client: httpx.Client, consumer: AConsumer
) -> None:
    for url in ("https://10.0.0.1/x", "http://1.1.1.1/x", "https://localhost/", "x", "https://127.0.0.1/#a"):
        refused = client.post(HOOKS, json={"url": url})
        assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE"), url
        assert url in refused.json()["message"]
    assert client.post(HOOKS, json={"url": consumer.url, "share": "none"}).status_code == 404
    assert client.post("/recipients/none/webhooks", json={"url": consumer.url}).status_code == 404
    assert (
        client.post(f"{HOOKS}/none/rotate-secret", json={"existing_secret_expire_in_seconds": -1}).status_code
        == 400
    )
    assert client.get(HOOKS).json() == {"webhooks": []}


def test_commands_do_the_same(
    server: Administered,
    consumer: AConsumer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(server.provider.settings.state_dir))
    monkeypatch.setenv("LAKESHARE_WEBHOOK_PRIVATE_HOSTS", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    run = Runner(monkeypatch, capsys)
    added = dict(line.split(": ") for line in run("webhook", "add", "ann", consumer.url).splitlines()[:2])
    consumer.secrets.append(added["secret"])
    hook = added["webhook"]

    event_id = run("webhook", "test", hook).split()[0]
    wait_until(lambda: event_id in consumer.started)
    wait_until(lambda: "delivered\t1 attempts\t204" in run("webhook", "deliveries", hook))
    assert run("webhook", "list", "ann").startswith(
        f"{hook}\tann\tall shares\t{consumer.url}\t0 pending, 0 dead"
    )
    assert run("webhook", "list") == run("webhook", "list", "ann")
    assert f'"id": "{hook}"' in run("webhook", "list", "--json")
    assert run("webhook", "deliveries", hook, "--dead") == ""
    assert "whsec_" in run("webhook", "rotate", hook)
    assert "not valid any more" in run("webhook", "rotate", hook, "--grace-hours", "0")
    assert run("webhook", "resend", hook) == "0 deliveries are queued again\n"
    assert "gets no events any more" in run("webhook", "remove", hook)
    assert run("webhook", "list") == ""
