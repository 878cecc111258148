"""Recipients get in by bearer token, Basic, client credentials or an issuer's token, as long as these are in force."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import delta_sharing
import pytest
from sqlalchemy import select

from lakeshare_server.access.authentication import make_profile, write_profile_file
from lakeshare_server.catalog import states
from lakeshare_server.catalog.credentials import issue_token, revoke_token, rotate_token
from lakeshare_server.catalog.models import TokenRow
from lakeshare_server.catalog.sharing import alter_recipient, editing, revoke_recipient
from lakeshare_server.settings import ICEBERG_PATH
from tests.builders import plain_http
from tests.builders.credentials import OAUTH, OIDC, Known, a_policy, a_recipient, ask_token
from tests.builders.lake_tables import a_delta_table
from tests.builders.oidc_issuer import AnIssuer, an_issuer
from tests.builders.sharing import Provider, Running, a_provider, a_server

TABLE = "flights.lake.flights"
ROWS = 12  # as many as `a_delta_table` has


@pytest.fixture(scope="module")
def issuer() -> Iterator[AnIssuer]:
    with an_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory, issuer: AnIssuer) -> Provider:
    folder = tmp_path_factory.mktemp("authentication")
    provider = a_provider(folder, oidc_private_hosts=issuer.host, guesses_per_minute=10_000)
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    provider.share("lake.flights")
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        # Profiles name the port that the server got.
        yield running


def profile(provider: Provider, server: Running, known: Known) -> dict[str, object]:
    port = int(server.url.split(":")[2].split("/")[0])
    assert known.given is not None
    return make_profile(known.state, known.given, provider.settings.model_copy(update={"port": port}))


def rows_read_with(profile: dict[str, object], folder: Path) -> int:
    path = folder / "own.share"
    write_profile_file(path, profile)
    return len(delta_sharing.load_as_pandas(f"{path}#{TABLE}"))


def listed(server: Running, header: str | None) -> int:
    headers = {} if header is None else {"Authorization": header}
    return plain_http.get(f"{server.url}/shares", headers=headers, timeout=30).status_code


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_the_official_client_reads_with_the_profile_of_each_kind(
    provider: Provider, server: Running, tmp_path: Path
) -> None:
    by_token, by_secret = a_recipient(provider, "token"), a_recipient(provider, "secret", OAUTH)
    bearer, oauth = (profile(provider, server, known) for known in (by_token, by_secret))
    assert (bearer["shareCredentialsVersion"], oauth["shareCredentialsVersion"]) == (1, 2)
    assert oauth["type"] == "oauth_client_credentials"
    basic_profile = {
        "shareCredentialsVersion": 2,
        "type": "basic",
        "endpoint": server.url,
        "username": by_token.state.id,
        "password": by_token.secret,
    }
    for each in (bearer, oauth, basic_profile):
        assert rows_read_with(each, tmp_path) == ROWS


def test_basic_takes_the_name_or_id_of_the_recipient_and_its_token(
    provider: Provider, server: Running
) -> None:
    known, other = a_recipient(provider, "Basic"), a_recipient(provider, "other")
    client = a_recipient(provider, "client", OAUTH)
    for name in ("Basic", "bASIC", known.state.id):
        assert listed(server, basic(name, known.secret)) == 200
    for wrong in (
        basic("Basic", other.secret),
        basic("", known.secret),
        basic("Basic", ""),
        basic("Basic", known.secret + "x"),
        basic(client.state.id, client.secret),
        "Basic " + known.secret,
        "Basic !!!",
        "Basic",
        "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(),
    ):
        assert listed(server, wrong) == 401, wrong


@pytest.mark.parametrize("header", [None, "", "Bearer", "Digest x", "Negotiate abc", "bearer\tx"])
def test_without_a_credential_one_is_asked_for(server: Running, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = plain_http.get(f"{server.url}/shares", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer" in answer.json()["message"]


def test_a_client_secret_opens_nothing_but_the_token_endpoint(provider: Provider, server: Running) -> None:
    client, bearer = a_recipient(provider, "closed", OAUTH), a_recipient(provider, "bearer")
    assert listed(server, f"Bearer {client.secret}") == 401
    assert ask_token(server, Known(bearer.state, bearer.given)).status_code == 401
    answer = ask_token(server, client)
    assert listed(server, f"Bearer {answer.json()['access_token']}") == 200


def test_an_access_token_is_given_as_the_standard_says(provider: Provider, server: Running) -> None:
    client = a_recipient(provider, "standard", OAUTH)
    answer = ask_token(server, client, scope="all")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    said = answer.json()
    assert (said["token_type"], said["scope"]) == ("bearer", "all")
    assert 3590 <= said["expires_in"] <= 3600
    in_body = {"grant_type": "client_credentials", "client_id": "standard", "client_secret": client.secret}
    root = server.url.removesuffix("/delta-sharing")
    for url in (f"{server.url}/oauth/token", f"{root}{ICEBERG_PATH}/v1/oauth/tokens"):
        token = plain_http.post(url, data=in_body).json()["access_token"]
        assert listed(server, f"Bearer {token}") == 200


def test_what_is_wrong_with_a_request_for_a_token_is_said_in_the_words_of_the_standard(
    provider: Provider, server: Running
) -> None:
    client, other = a_recipient(provider, "words", OAUTH), a_recipient(provider, "else", OAUTH)
    url, own = f"{server.url}/oauth/token", (client.state.id, client.secret)
    grant = {"grant_type": "client_credentials"}
    asked: list[tuple[dict[str, Any], int, str]] = [
        ({"auth": own}, 400, "unsupported_grant_type"),
        ({"auth": own, "data": {"grant_type": "password"}}, 400, "unsupported_grant_type"),
        ({"auth": own, "content": b"\xff\xfe"}, 400, "invalid_request"),
        ({"auth": own, "content": b"grant_type=client_credentials&grant_type=x"}, 400, "invalid_request"),
        ({"auth": own, "content": b"&".join([b"a=b"] * 100)}, 400, "invalid_request"),
        ({"auth": own, "content": b"a" * 70_000}, 400, "invalid_request"),
        ({"data": grant}, 401, "invalid_client"),
        ({"auth": (client.state.id, client.secret + "x"), "data": grant}, 401, "invalid_client"),
        ({"auth": (other.state.id, client.secret), "data": grant}, 401, "invalid_client"),
        ({"headers": {"Authorization": "Basic ???"}, "data": grant}, 401, "invalid_client"),
    ]
    for request, status, error in asked:
        answer = plain_http.post(url, **request)
        assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
        assert answer.json()["error_description"]


def test_an_access_token_ends_with_its_secret_and_with_its_recipient(
    provider: Provider, server: Running
) -> None:
    client = a_recipient(provider, "ending", OAUTH)
    token = ask_token(server, client).json()["access_token"]
    with editing(provider.catalog, "tests") as edit:
        second = issue_token(edit, "ending")
    newer = ask_token(server, replace(client, given=second)).json()["access_token"]
    assert listed(server, f"Bearer {token}") == listed(server, f"Bearer {newer}") == 200
    assert client.given is not None
    with editing(provider.catalog, "tests") as edit:
        revoke_token(edit, "ending", client.given.state.id)
    assert (listed(server, f"Bearer {token}"), listed(server, f"Bearer {newer}")) == (401, 200)
    with editing(provider.catalog, "tests") as edit:
        revoke_recipient(edit, "ending")
    assert listed(server, f"Bearer {newer}") == 401


def test_an_access_token_does_not_outlive_what_it_was_given_for(provider: Provider, server: Running) -> None:
    client = a_recipient(provider, "rotating", OAUTH)
    with editing(provider.catalog, "tests") as edit:
        rotate_token(edit, "rotating", keep_old_for=timedelta(minutes=5))
    assert 0 < ask_token(server, client).json()["expires_in"] <= 300


def test_an_access_token_cannot_be_made_or_altered(provider: Provider, server: Running) -> None:
    client = a_recipient(provider, "sealed", OAUTH)
    token = ask_token(server, client).json()["access_token"]
    sealed = base64.urlsafe_b64decode(token.removeprefix("lsa.") + "==")
    assert b"until" not in sealed
    altered = [sealed[:-1] + bytes([sealed[-1] ^ 1]), b"x" * 16 + sealed[16:]]
    forged = [base64.urlsafe_b64encode(one).decode().rstrip("=") for one in altered]
    for wrong in (*forged, token + "A", token[:-4], "", "lsa."):
        assert listed(server, f"Bearer lsa.{wrong}") == 401
    assert listed(server, f"Bearer {token.removeprefix('lsa.')}") == 401


def test_nothing_of_a_recipient_is_good_after_its_end(provider: Provider, server: Running) -> None:
    token, client = a_recipient(provider, "late"), a_recipient(provider, "late-client", OAUTH)
    access = ask_token(server, client).json()["access_token"]
    headers = [f"Bearer {token.secret}", basic("late", token.secret), f"Bearer {access}"]
    assert [listed(server, header) for header in headers] == [200] * 3
    for name in ("late", "late-client"):
        with editing(provider.catalog, "tests") as edit:
            alter_recipient(edit, name, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert [listed(server, header) for header in headers] == [401] * 3
    assert ask_token(server, client).status_code == 401
    with editing(provider.catalog, "tests") as edit:
        alter_recipient(edit, "late", expires_at=None)
    assert listed(server, headers[0]) == 200


def test_a_recipient_gets_in_from_its_own_addresses_only(provider: Provider, server: Running) -> None:
    inside = a_recipient(provider, "inside", ip_allow=["127.0.0.0/8", "2001:db8::/32"])
    outside = a_recipient(provider, "outside", OAUTH, ip_allow=["192.0.2.0/24"])
    assert listed(server, f"Bearer {inside.secret}") == 200
    answer = ask_token(server, outside)
    assert answer.status_code == 403
    assert "127.0.0.1" in answer.json()["message"]


def test_tokens_of_an_issuer_are_those_of_the_recipient_whose_policy_they_fit(
    provider: Provider, server: Running, issuer: AnIssuer
) -> None:
    for name, fields in (
        ("acme", {"subject": "acme-job"}),
        ("readers", {"subject_claim": "groups", "subject": "readers", "audiences": ("lake", "lakeshare")}),
    ):
        a_recipient(provider, name, OIDC)
        a_policy(provider, name, issuer.url, **fields)
    for claims, status in (
        ({}, 200),
        ({"aud": ["other", "lakeshare"]}, 200),
        ({"aud": "lake"}, 401),
        ({"sub": "other"}, 401),
        ({"sub": "ACME-JOB"}, 401),
        ({"sub": "other", "groups": ["readers"]}, 200),
        ({"sub": "other", "groups": ["readers"], "aud": "lake"}, 200),
        ({"sub": "other", "groups": "readers"}, 200),
        ({"sub": "other", "groups": ["reader", "readers2"]}, 401),
        ({"sub": "other", "groups": {"readers": True}}, 401),
        # Of two recipients it would be by chance which one it is.
        ({"groups": ["readers"]}, 401),
        ({"iss": "https://elsewhere.example"}, 401),
    ):
        assert listed(server, f"Bearer {issuer.token(**claims)}") == status, claims


def test_an_issuer_that_no_policy_names_is_not_asked(provider: Provider, server: Running) -> None:
    with an_issuer("other") as other:
        assert listed(server, f"Bearer {other.token()}") == 401
        assert other.asked == []


def test_an_issuer_that_is_silent_is_503_and_its_recipient_comes_back_with_it(
    provider: Provider, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with an_issuer() as issuer:
        a_recipient(provider, "silent", OIDC)
        # No setting names this host, so it is not reached.
        a_policy(provider, "silent", issuer.url)
        answer = plain_http.get(f"{server.url}/shares", headers={"Authorization": f"Bearer {issuer.token()}"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert issuer.asked == []


def test_a_token_of_an_issuer_is_looked_up_once_and_ends_when_it_says(
    provider: Provider, server: Running, issuer: AnIssuer
) -> None:
    a_recipient(provider, "brief", OIDC)
    a_policy(provider, "brief", issuer.url, subject="brief-job")
    now = int(datetime.now(UTC).timestamp())
    for ended_s_ago, status in ((-600, 200), (5, 200), (61, 401)):
        token = issuer.token(sub="brief-job", exp=now - ended_s_ago)
        issuer.asked.clear()
        # The issuer's clock may be a minute ahead of ours.
        assert [listed(server, f"Bearer {token}") for _ in range(3)] == [status] * 3
        assert issuer.asked == []


def test_the_last_use_of_each_credential_is_told_with_its_address(
    provider: Provider, server: Running, issuer: AnIssuer
) -> None:
    known = a_recipient(provider, "used")
    before = datetime.now(UTC) - timedelta(seconds=1)
    assert listed(server, f"Bearer {known.secret}") == 200
    deadline = datetime.now(UTC) + timedelta(seconds=10)
    used = None
    while used is None and datetime.now(UTC) < deadline:
        with provider.catalog.reading() as session:
            (token,) = states.get_recipient(session, "used").tokens
            used = token.last_used_at
    assert used is not None
    assert before < used
    assert token.last_used_from == "127.0.0.1"


def test_secrets_are_kept_as_digests_only(provider: Provider) -> None:
    known = a_recipient(provider, "digest", OAUTH)
    with provider.catalog.reading() as session:
        kept = json.dumps(
            [[row.digest, row.id, row.kind] for row in session.scalars(select(TokenRow))], default=str
        )
    assert known.secret not in kept
