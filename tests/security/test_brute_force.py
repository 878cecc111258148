"""Whoever tries tokens is slowed down and seen; whoever has one is not kept waiting by that."""

import logging
import time
from collections.abc import Iterator

import httpx
import pytest

from lakeshare_server.access import rate_limit
from lakeshare_server.catalog.credentials import rotate_token
from lakeshare_server.catalog.sharing import editing
from tests.builders.credentials import OAUTH, a_recipient, ask_token
from tests.builders.events import newest_requests
from tests.builders.sharing import Provider, Running, a_provider_of_flights, a_server

MOST = 20


@pytest.fixture(autouse=True)
def _one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not end while a test runs; there are 20 seconds left of it."""
    moment = time.time() // 60 * 60 + 40
    monkeypatch.setattr(rate_limit, "now", lambda: moment)


@pytest.fixture
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    return a_provider_of_flights(
        tmp_path_factory.mktemp("guessing"), guesses_per_minute=MOST, trusted_proxies="127.0.0.1"
    )


@pytest.fixture
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


def ask(client: httpx.Client, token: str, address: str = "192.0.2.66") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": address}
    return client.get("/shares", headers=headers)


def guess(client: httpx.Client, beginning: str, address: str = "192.0.2.66") -> list[int]:
    """The answers to twice as many wrong tokens as may be tried in a minute."""
    return [ask(client, f"{beginning}{number}", address).status_code for number in range(2 * MOST)]


def test_wrong_tokens_are_answered_a_few_times_a_minute(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    customer = a_recipient(provider, "customer")
    with a_server(provider) as server, server.client(None) as client, caplog.at_level(logging.WARNING):
        assert ask(client, customer.secret).status_code == 200
        assert guess(client, "wrong") == [401] * MOST + [429] * MOST
        refused = ask(client, "wrong again")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "20"
        assert refused.json()["errorCode"] == "REQUEST_LIMIT_EXCEEDED"
        # It is seen, with the address.
        assert "192.0.2.66 has tried more than 20 wrong tokens" in caplog.text
        # Others behind the same address are let in, those too that were never seen here.
        assert ask(client, a_recipient(provider, "new").secret).status_code == 200
        assert ask(client, "wrong once more").status_code == 429
        # Also where the catalog has changed since; nor is anybody else slowed.
        assert ask(client, customer.secret).status_code == 200
        assert ask(client, customer.secret, "192.0.2.67").status_code == 200
        assert ask(client, "wrong there", "192.0.2.67").status_code == 401
    seen = [row.error_code for row in newest_requests(provider.catalog, 200) if row.ip == "192.0.2.66"]
    assert seen.count("UNAUTHENTICATED") == MOST
    assert seen.count("REQUEST_LIMIT_EXCEEDED") == MOST + 2


def test_the_neighbours_of_an_address_of_ipv6_are_counted_with_it(server: Running) -> None:
    with server.client(None) as client:
        guess(client, "one", "2001:db8:0:1::1")
        assert ask(client, "other", "2001:db8:0:1:ffff::2").status_code == 429
        assert ask(client, "other", "2001:db8:0:2::1").status_code == 401


def test_a_client_that_repeats_its_dead_token_is_no_guesser(provider: Provider, server: Running) -> None:
    known = a_recipient(provider, "rotated")
    with editing(provider.catalog, "tests") as edit:
        new = rotate_token(edit, "rotated")
    with server.client(None) as client:
        assert {ask(client, known.secret).status_code for _ in range(4 * MOST)} == {401}
        assert ask(client, new.secret).status_code == 200


def test_secrets_of_clients_are_guessed_no_faster(provider: Provider, server: Running) -> None:
    known, holder = a_recipient(provider, "client", OAUTH), a_recipient(provider, "other", OAUTH)
    token = ask_token(server, holder).json()["access_token"]
    with server.client(None) as client:
        wrong = {"grant_type": "client_credentials", "client_id": known.state.id}
        answers = [
            client.post("/oauth/token", data={**wrong, "client_secret": f"wrong{number}"}).status_code
            for number in range(2 * MOST)
        ]
        assert answers == [401] * MOST + [429] * MOST
        assert ask_token(server, known).status_code == 200
        # One that was given a token goes on with it, though it was never sent before: nobody can guess these.
        assert ask(client, token, "127.0.0.1").status_code == 200
        assert ask(client, token + "x", "127.0.0.1").status_code == 429


def test_keys_of_administrators_are_guessed_no_faster(provider: Provider, server: Running) -> None:
    """They are counted together with tokens: whoever tries the one has tried the other."""
    shares = server.url.removesuffix("/delta-sharing") + "/api/2.1/unity-catalog/shares"
    with server.client(None) as client:
        answers = []
        for number in range(2 * MOST):
            headers = {"Authorization": f"Bearer lsk_wrong{number}", "X-Forwarded-For": "192.0.2.66"}
            answers.append(client.get(shares, headers=headers).status_code)
        assert answers == [401] * MOST + [429] * MOST
        assert ask(client, "wrong").status_code == 429
