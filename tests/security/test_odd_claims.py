"""A validly signed token may hold anything: it lets its holder in or is refused, and is never a fault of the server."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builders.campaign import campaign_size
from tests.builders.credentials import OIDC, a_policy, a_recipient
from tests.builders.oidc_issuer import AnIssuer, an_issuer
from tests.builders.sharing import Provider, Running, a_provider_of_flights, a_server

# More than any run of all tests takes: this is the time of collection.
SOON = int(time.time()) + 86_400
ODD: list[Any] = [
    10**18,
    10**400,
    -(10**18),
    253_402_300_799,  # the last second of the year 9999
    1e300,
    math.inf,
    math.nan,
    "soon",
    str(10**18),
    True,
    None,
    [],
    [10**18],
    {},
    {"a": 1},
]


@pytest.fixture(scope="module")
def issuer() -> Iterator[AnIssuer]:
    with an_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def provider(issuer: AnIssuer, tmp_path_factory: pytest.TempPathFactory) -> Provider:
    options = {"oidc_private_hosts": issuer.host, "guesses_per_minute": 1_000_000}
    provider = a_provider_of_flights(
        tmp_path_factory.mktemp("claims"),
        admin_oidc_issuer=issuer.url,
        admin_oidc_audiences="lakeshare",
        **options,
    )
    a_recipient(provider, "acme", OIDC)
    a_policy(provider, "acme", issuer.url)
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, timeout=30) as client:
        yield client


def statuses(client: httpx.Client, server: Running, token: str) -> tuple[int, int]:
    """What a recipient and an administrator get with the token."""
    headers = {"Authorization": f"Bearer {token}"}
    admin = server.url.replace("/delta-sharing", "/api/2.1/unity-catalog/shares")
    urls = f"{server.url}/shares", admin
    one, two = (client.get(url, headers=headers).status_code for url in urls)
    return one, two


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat", "sub", "aud", "iss", "jti", "roles"])
def test_a_claim_of_any_value_lets_in_or_is_refused(
    client: httpx.Client, server: Running, issuer: AnIssuer, claim: str
) -> None:
    assert statuses(client, server, issuer.token(exp=SOON))[0] == 200
    for value in ODD:
        found = statuses(client, server, issuer.token(**{"exp": SOON, claim: value}))
        assert found[0] in (200, 401), (claim, value, found)
        assert found[1] in (401, 403, 404), (claim, value, found)


def test_an_end_that_no_calendar_has_is_refused(
    client: httpx.Client, server: Running, issuer: AnIssuer
) -> None:
    for exp in (10**18, 253_402_300_799):
        answer = client.get(
            f"{server.url}/shares", headers={"Authorization": f"Bearer {issuer.token(exp=exp)}"}
        )
        assert answer.status_code == 401
        assert answer.json()["errorCode"] == "UNAUTHENTICATED"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
CLAIMS = st.dictionaries(
    st.sampled_from(["exp", "nbf", "iat", "sub", "aud", "iss", "jti", "roles"]), JSON, max_size=3
)


@pytest.mark.campaign
def test_tokens_of_any_claims_never_fail_the_server(
    client: httpx.Client, server: Running, issuer: AnIssuer
) -> None:
    @settings(max_examples=campaign_size(in_ci=40, in_campaign=2000), deadline=None)
    @given(CLAIMS)
    @example({"exp": 10**18})
    def check(claims: dict[str, Any]) -> None:
        found = statuses(client, server, issuer.token(**{"exp": SOON, **claims}))
        assert max(found) < 500, json.dumps(claims)

    check()


def test_keys_of_other_types_beside_good_ones_are_passed_over(tmp_path: Path) -> None:
    with an_issuer() as issuer:
        [good] = issuer.published
        odd = [
            {"kty": "RSA", "n": 5, "e": []},
            {"kty": "RSA"},
            {"kty": "EC", "crv": {}, "x": 1, "y": None},
            {"kty": "OKP", "crv": "Ed25519", "x": 7},
            {"kty": ["RSA"]},
            {"kty": "RSA", "n": "", "e": ""},
            # Keys that could be used, but for a name that cannot be looked up or an algorithm that is no text.
            {**good, "kid": ["first"]},
            {**good, "kid": {"first": 1}},
            {**good, "kid": 1},
            {**good, "kid": "other", "alg": ["RS256"]},
        ]
        issuer.published = [*odd, good]
        provider = a_provider_of_flights(tmp_path, oidc_private_hosts=issuer.host)
        a_recipient(provider, "acme", OIDC)
        a_policy(provider, "acme", issuer.url)
        with a_server(provider) as server, server.client(issuer.token()) as client:
            assert client.get("/shares").status_code == 200
