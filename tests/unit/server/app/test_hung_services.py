"""A store, catalog or issuer that hangs delays only requests that need it, and these no longer than a deadline."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.sharing import editing
from tests.builders.held_requests import held_requests, silent_service
from tests.builders.lake_tables import a_delta_table
from tests.builders.server_process import a_process
from tests.builders.sharing import FLIGHTS, Provider, a_provider
from tests.builders.waiting import wait_until

SHARE = "/shares/flights/schemas/lake/tables"
ANSWER_S = 2
REQUEST_S = 12
ROUNDS = 20
HELD = 200
NOISE_S = 0.02


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    """A healthy followed table and a published one on the local disk, and a followed one in a store that hangs."""
    provider = a_provider(tmp_path)
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "published"))
    provider.follow("lake.followed", a_delta_table(tmp_path / "followed"))
    provider.follow("lake.hung", "s3://hung/table")
    provider.share("lake.flights", "lake.followed", "lake.hung")
    return provider


@pytest.fixture
def store() -> Iterator[str]:
    with silent_service() as url:
        yield url


def environment(store: str) -> dict[str, str]:
    return {
        "LAKESHARE_S3_ENDPOINT": store,
        "LAKESHARE_S3_REGION": "eu-north-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "LAKESHARE_OUTSIDE_ANSWER_S": str(ANSWER_S),
        "LAKESHARE_REQUEST_WAIT_S": str(REQUEST_S),
    }


def healthy_requests(client: httpx.Client) -> list[Callable[[], httpx.Response]]:
    return [
        lambda: client.get(f"{FLIGHTS}/version"),
        lambda: client.get(f"{SHARE}/followed/version"),
        lambda: client.post(f"{SHARE}/followed/query", json={}),
        lambda: client.get("/shares/flights/all-tables"),
    ]


def p99_s(client: httpx.Client, rounds: int = ROUNDS) -> float:
    """The 99th percentile over healthy requests of each kind."""
    taken = []
    for _ in range(rounds):
        for request in healthy_requests(client):
            began = time.perf_counter()
            assert request().status_code == 200
            taken.append(time.perf_counter() - began)
    return sorted(taken)[int(len(taken) * 0.99)]


def undisturbed_p99_s(client: httpx.Client) -> float:
    """The best of three: other programs of the machine disturb one or two of them, a fault of the server all."""
    return min(p99_s(client) for _ in range(3))


def test_a_hung_store_delays_no_request_for_other_tables(provider: Provider, store: str) -> None:
    token = provider.recipient()
    hung = [
        ("GET", f"{SHARE}/hung/version"),
        ("POST", f"{SHARE}/hung/query"),
        ("GET", f"{SHARE}/hung/metadata"),
    ]
    with a_process(provider, environment=environment(store)) as (_, url):
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(verify=False, base_url=url, headers=headers, timeout=60) as client:
            p99_s(client, 5)
            idle = p99_s(client)
            with held_requests(url, hung, token, HELD) as held:
                wait_until(lambda: held.in_flight == HELD)
                # While the first requests wait for the store, and after its circuit breaker has opened.
                waiting = undisturbed_p99_s(client)
                wait_until(lambda: held.statuses[503] >= HELD)
                refusing = undisturbed_p99_s(client)
                began = time.monotonic()
                assert client.get(f"{SHARE}/hung/version").status_code == 503
                assert time.monotonic() - began < ANSWER_S + 1
            assert set(held.statuses) == {503}
            assert held.longest_s < REQUEST_S + 1
            idle = max(idle, p99_s(client))
            assert waiting <= 2 * idle + NOISE_S, (waiting, refusing, idle)
            assert refusing <= 2 * idle + NOISE_S, (waiting, refusing, idle)
        with httpx.Client(base_url=url.removesuffix(provider.settings.endpoint), timeout=60) as console:
            with editing(provider.catalog, "tests") as edit:
                _, key = add_admin_key(edit, "ann", "auditor")
            console.post("/console/sign-in", data={"key": key})
            page = console.get("/console/shares/flights/rule", params={"rule": "day = '2013-01-01'"})
            assert page.text.count('<span class="pill bad">refused</span>') == 1
            assert page.text.count(" of ") >= 4
