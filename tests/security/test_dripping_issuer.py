"""An OIDC issuer that sends a byte now and then delays nobody but its own tokens, and those not for long."""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from lakeshare_server.access import oidc, rate_limit
from tests.builders import plain_http
from tests.builders.credentials import OIDC, a_policy, a_recipient
from tests.builders.held_requests import held_requests
from tests.builders.oidc_issuer import AnIssuer, an_issuer
from tests.builders.sharing import FLIGHTS, Provider, a_provider_of_flights, a_server
from tests.builders.waiting import wait_until

# Longer than any of these tests runs.
LONG_S = 60.0
HELD = 60
DRIP_S = 1.0
MOST = 20


@pytest.fixture
def issuer() -> Iterator[AnIssuer]:
    with an_issuer() as issuer:
        yield issuer


@pytest.fixture
def provider(tmp_path: Path, issuer: AnIssuer) -> Provider:
    provider = a_provider_of_flights(
        tmp_path,
        oidc_private_hosts=issuer.host,
        guesses_per_minute=10_000,
        trusted_proxies="127.0.0.1",
        outside_answer_s=LONG_S,
    )
    a_recipient(provider, "acme", OIDC)
    a_policy(provider, "acme", issuer.url)
    return provider


def test_a_dripping_issuer_delays_no_other_recipient_and_its_own_tokens_not_for_long(
    provider: Provider, issuer: AnIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The one fetch of the keys lasts until all requests of the test have their responses.
    monkeypatch.setattr(oidc, "TOTAL_S", LONG_S)
    known = provider.recipient("known")
    issuer.drip_s = DRIP_S
    with a_server(provider) as server, server.client(known) as client:
        with held_requests(server.url, [("GET", "/shares")], issuer.token(), HELD) as held:
            wait_until(lambda: bool(held.statuses))
            for _ in range(20):
                assert client.get(f"{FLIGHTS}/version").status_code == 200
                # A recipient that this server sees for the first time needs a thread, too.
                fresh = provider.recipient(f"fresh-{time.monotonic_ns()}")
                assert client.get("/shares", headers={"Authorization": f"Bearer {fresh}"}).status_code == 200
            # All but the few who wait a moment for the keys are refused at once.
            wait_until(lambda: held.statuses[503] >= HELD)
            assert set(held.statuses) == {503}
            # One fetch at a time, and it is still under way.
            assert (len(issuer.asked), issuer.at_once) == (1, 1)
        assert not any(issuer.host in body or "realm" in body for body in held.bodies)


def test_tokens_pass_as_soon_as_the_issuer_answers_again(
    provider: Provider, issuer: AnIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc, "PAUSE_S", 0.1)
    issuer.drip_s = DRIP_S
    with a_server(provider) as server, server.client(issuer.token()) as client:
        assert client.get("/shares").status_code == 503
        issuer.drip_s = 0.0

        def is_let_in() -> bool:
            return client.get("/shares").status_code == 200

        wait_until(is_let_in)
        # What is known goes on through the next outage: the keys are kept.
        issuer.drip_s = DRIP_S
        monkeypatch.setattr(oidc, "KEEP_S", 0.0)
        new = {"Authorization": f"Bearer {issuer.token(jti='new')}"}
        assert client.get("/shares", headers=new).status_code == 200
        # The request did not wait for the new fetch: that one is still under way.
        wait_until(lambda: issuer.at_once == 1)


def test_tokens_that_could_not_be_verified_count_as_guesses(
    tmp_path: Path, issuer: AnIssuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    moment = time.time() // 60 * 60 + 40
    monkeypatch.setattr(rate_limit, "now", lambda: moment)
    provider = a_provider_of_flights(
        tmp_path, oidc_private_hosts=issuer.host, guesses_per_minute=MOST, trusted_proxies="127.0.0.1"
    )
    a_recipient(provider, "acme", OIDC)
    a_policy(provider, "acme", issuer.url)
    issuer.is_silent = True

    def ask(client: httpx.Client, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}", "X-Forwarded-For": "192.0.2.66"}
        return client.get("/shares", headers=headers).status_code

    good = issuer.token()
    with a_server(provider) as server, server.client(None) as client, caplog.at_level(logging.WARNING):
        # A client that repeats its own token through an outage is no guesser.
        assert [ask(client, good) for _ in range(2 * MOST)] == [503] * 2 * MOST
        assert issuer.url in caplog.text
        answers = [ask(client, issuer.token(jti=str(number))) for number in range(2 * MOST)]
        assert answers == [503] * (MOST - 1) + [429] * (MOST + 1)
        assert "192.0.2.66 has tried more than 20 wrong tokens" in caplog.text
        # Good tokens pass all the same, those of other kinds at once, this one when its issuer is back.
        assert ask(client, provider.recipient("new")) == 200
        issuer.is_silent = False
        monkeypatch.setattr(oidc, "PAUSE_S", 0.0)
        assert ask(client, good) == 200


@pytest.mark.parametrize("path", ["/delta-sharing/shares", "/api/2.1/unity-catalog/shares"])
def test_an_issuer_that_does_not_answer_is_named_to_nobody_who_asks(
    tmp_path: Path, issuer: AnIssuer, path: str
) -> None:
    """Anybody can put the issuer into a token; its addresses may be those of a private network."""
    provider = a_provider_of_flights(
        tmp_path,
        oidc_private_hosts=issuer.host,
        admin_oidc_issuer=issuer.url,
        admin_oidc_audiences="lakeshare",
    )
    a_recipient(provider, "acme", OIDC)
    a_policy(provider, "acme", issuer.url)
    issuer.is_silent = True
    with a_server(provider) as server:
        url = server.url.replace("/delta-sharing", path)
        answer = plain_http.get(url, headers={"Authorization": f"Bearer {issuer.token()}"})
    assert answer.status_code == 503
    assert "the issuer of the token does not answer" in answer.text
    assert issuer.host not in answer.text
    assert "realm" not in answer.text
    assert int(answer.headers["retry-after"]) > 0


def test_requests_at_once_for_a_healthy_issuer_are_all_let_in(provider: Provider, issuer: AnIssuer) -> None:
    tokens = [issuer.token(jti=str(number)) for number in range(12)]
    ready = threading.Barrier(len(tokens))
    with a_server(provider) as server, ThreadPoolExecutor(len(tokens)) as pool:

        def ask(token: str) -> int:
            with server.client(token) as client:
                ready.wait()
                return client.get("/shares").status_code

        assert list(pool.map(ask, tokens)) == [200] * len(tokens)
    assert issuer.most_at_once == 1
