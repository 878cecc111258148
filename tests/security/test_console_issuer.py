"""Sign-in to the console by the administrators' issuer: an answer needs state, nonce and verifier of its sign-in."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from lakeshare_server.errors import BadRequest
from tests.builders.administration import Administered, an_administered_server
from tests.builders.oidc_issuer import AnIssuer, an_issuer


@pytest.fixture(scope="module")
def issuer() -> Iterator[AnIssuer]:
    with an_issuer("console") as issuer:
        yield issuer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, issuer: AnIssuer) -> Iterator[Administered]:
    settings = {
        "admin_oidc_issuer": issuer.url,
        "admin_oidc_audiences": "lakeshare-admin",
        "admin_oidc_name_claim": "email",
        "console_oidc_client_id": "the-console",
        "oidc_private_hosts": issuer.host,
    }
    with an_administered_server(tmp_path_factory.mktemp("issuer"), **settings) as running:
        yield running


def begin(server: Administered, issuer: AnIssuer, next_path: str = "") -> tuple[httpx.Client, dict[str, str]]:
    """A browser that the console has sent to the issuer, and the query it was sent with."""
    client = httpx.Client(base_url=f"{server.root}/console", timeout=30)
    moved = client.get("/sign-in/issuer", params={"next": next_path})
    location = urlsplit(moved.headers["location"])
    assert location._replace(query="").geturl() == f"{issuer.url}/authorize"
    return client, dict(parse_qsl(location.query))


def answer(issuer: AnIssuer, query: dict[str, str], **changed: Any) -> dict[str, str]:
    """The issuer's answer to a person who may sign in, but for changed claims."""
    claims = {
        "aud": "the-console",
        "nonce": query["nonce"],
        "email": "ann@example.com",
        "roles": ["lakeshare-steward"],
        **changed,
    }
    issuer.codes["the-code"] = query["code_challenge"], claims
    return {"code": "the-code", "state": query["state"]}


def test_a_steward_signs_in_by_the_issuer(server: Administered, issuer: AnIssuer) -> None:
    client, query = begin(server, issuer, "/console/recipients?q=a")
    assert query["redirect_uri"] == f"{server.root}/console/sign-in/callback"
    assert (query["response_type"], query["scope"], query["code_challenge_method"]) == (
        "code",
        "openid",
        "S256",
    )
    moved = client.get("/sign-in/callback", params=answer(issuer, query))
    assert (moved.status_code, moved.headers["location"]) == (303, "/console/recipients?q=a")
    page = client.get("/recipients").text
    assert "oidc:ann@example.com" in page
    assert "steward" in page


@pytest.mark.parametrize(
    ("claims", "fields", "status"),
    [
        ({"nonce": "of another"}, {}, 401),
        ({"aud": "lakeshare-admin"}, {}, 401),
        ({"exp": 1}, {}, 401),
        ({"email": None}, {}, 401),
        ({"roles": ["reader"]}, {}, 403),
        ({}, {"state": "of another"}, 401),
        ({}, {"code": "unknown"}, 401),
        ({}, {"code": None, "error": "access_denied"}, 401),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_other_answers_begin_no_session(
    server: Administered, issuer: AnIssuer, claims: dict[str, Any], fields: dict[str, Any], status: int
) -> None:
    client, query = begin(server, issuer)
    sent = {**answer(issuer, query, **claims), **fields}
    refused = client.get(
        "/sign-in/callback", params={name: value for name, value in sent.items() if value is not None}
    )
    assert refused.status_code == status, refused.text
    assert 'role="alert"' in refused.text
    assert client.get("/recipients").status_code == 303


def test_an_answer_belongs_to_the_browser_that_began(server: Administered, issuer: AnIssuer) -> None:
    _, query = begin(server, issuer)
    other, _ = begin(server, issuer)
    assert other.get("/sign-in/callback", params=answer(issuer, query)).status_code == 401
    stranger = httpx.Client(base_url=f"{server.root}/console", timeout=30)
    assert stranger.get("/sign-in/callback", params=answer(issuer, query)).status_code == 401


def test_a_verifier_that_was_not_committed_to_is_refused(server: Administered, issuer: AnIssuer) -> None:
    client, query = begin(server, issuer)
    stolen = answer(issuer, {**query, "code_challenge": "of another"})
    assert client.get("/sign-in/callback", params=stolen).status_code == 401


def test_the_issuer_is_needed_and_may_be_down(server: Administered, issuer: AnIssuer, tmp_path: Any) -> None:
    client, query = begin(server, issuer)
    issuer.is_silent = True
    try:
        assert client.get("/sign-in/callback", params=answer(issuer, query)).status_code == 503
        assert client.get("/sign-in/issuer").status_code == 503
        with_key = client.post("/sign-in", data={"key": server.keys["owner"]})
        assert with_key.status_code == 303
    finally:
        issuer.is_silent = False
    with (
        pytest.raises(BadRequest, match="LAKESHARE_ADMIN_OIDC_ISSUER"),
        an_administered_server(tmp_path, console_oidc_client_id="the-console"),
    ):
        pass
