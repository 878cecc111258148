"""A recipient that gets its tokens from an issuer of its own reads with them, by the official client."""

import json
from collections.abc import Iterator
from pathlib import Path

import delta_sharing
import pytest

from lakeshare_server.catalog.credentials import drop_policy
from lakeshare_server.catalog.sharing import editing
from tests.builders import plain_http
from tests.builders.credentials import OIDC, a_policy, a_recipient
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import Provider, Running, a_provider, a_server
from tests.integration.oidc_server import OidcServer, running_issuer

SUBJECT = "5f1c7a2e-readers"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OidcServer]:
    claims = {
        "by-subject": {"sub": SUBJECT, "aud": ["lakeshare"]},
        "by-group": {"sub": "somebody", "aud": ["lakeshare"], "groups": ["analysts", "readers"]},
    }
    with running_issuer(tmp_path_factory.mktemp("oidc"), claims) as server:
        yield server


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory, issuer: OidcServer) -> Provider:
    folder = tmp_path_factory.mktemp("federation")
    provider = a_provider(folder, oidc_private_hosts=issuer.host)
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    provider.share("lake.flights")
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


def test_the_official_client_reads_with_tokens_of_the_recipient_s_own_issuer(
    provider: Provider, server: Running, issuer: OidcServer, tmp_path: Path
) -> None:
    a_recipient(provider, "partner", OIDC)
    a_policy(provider, "partner", issuer.issuer("partner"), subject=SUBJECT)
    # Its own administrators fill in where its tokens come from; the provider never sees a secret.
    profile = {
        "shareCredentialsVersion": 2,
        "type": "oauth_client_credentials",
        "endpoint": server.url,
        "tokenEndpoint": issuer.token_endpoint("partner"),
        "clientId": "reporting",
        "clientSecret": "theirs",
        "scope": "by-subject",
    }
    path = tmp_path / "partner.share"
    path.write_text(json.dumps(profile))
    assert len(delta_sharing.load_as_pandas(f"{path}#flights.lake.flights")) == 12


@pytest.mark.parametrize(
    ("name", "realm", "audiences", "status"),
    [
        ("another-realm", "elsewhere", ("lakeshare",), 401),
        ("another-audience", "partner", ("somebody-else",), 401),
        ("by-group", "partner", ("more", "lakeshare"), 200),
    ],
)
def test_what_the_issuer_says_decides(
    provider: Provider,
    server: Running,
    issuer: OidcServer,
    name: str,
    realm: str,
    audiences: tuple[str, ...],
    status: int,
) -> None:
    a_recipient(provider, name, OIDC)
    fields = {"subject_claim": "groups", "subject": "analysts"}
    a_policy(provider, name, issuer.issuer(realm), audiences=audiences, **fields)
    token = issuer.token("partner", "by-group")
    answer = plain_http.get(f"{server.url}/shares", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == status, answer.text
    with editing(provider.catalog, "tests") as edit:
        drop_policy(edit, name, "policy")
    again = plain_http.get(f"{server.url}/shares", headers={"Authorization": f"Bearer {token}"})
    assert again.status_code == 401
