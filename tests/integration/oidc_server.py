"""A real OIDC issuer (mock-oauth2-server) on a free loopback port: it has a realm for every name, and signs for it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import ensure_pinned, find_java, parse_lock
from tests.integration.processes import free_ports, running

LOCK = Path(__file__).with_name("oidc.lock.toml")
MAIN = "no.nav.security.mock.oauth2.StandaloneMockOAuth2ServerKt"
# It starts once and does little: compiling much would take longer.
OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class OidcServer:
    """Where it is, and how tokens are got."""

    host: str

    def issuer(self, realm: str) -> str:
        """The issuer's URL, as its tokens say it."""
        return f"http://{self.host}/{realm}"

    def token_endpoint(self, realm: str) -> str:
        """Where clients get tokens."""
        return f"{self.issuer(realm)}/token"

    def token(self, realm: str, scope: str) -> str:
        """An access token for a client, by its credentials."""
        asked = {"grant_type": "client_credentials", "scope": scope}
        answer = httpx.post(self.token_endpoint(realm), data=asked, auth=("reporting", "any"), timeout=30)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])


@contextmanager
def running_issuer(folder: Path, claims: dict[str, dict[str, Any]]) -> Iterator[OidcServer]:
    """The issuer until the end of the block; tokens have the claims of the scope that is asked for."""
    settings = LakeSettings()
    jars = ensure_pinned(settings, list(parse_lock(LOCK.read_text()).values()))
    (port,) = free_ports(1)
    mappings = [{"requestParam": "scope", "match": scope, "claims": said} for scope, said in claims.items()]
    config = {
        "interactiveLogin": False,
        "tokenCallbacks": [{"issuerId": "partner", "tokenExpiry": 600, "requestMappings": mappings}],
    }
    environment = {
        **os.environ,
        "SERVER_HOSTNAME": "127.0.0.1",
        "SERVER_PORT": str(port),
        "JSON_CONFIG": json.dumps(config),
    }
    java = find_java("nessie", settings)
    command = [str(java.binary), *OPTIONS, "-cp", os.pathsep.join(map(str, jars.values())), MAIN]
    server = OidcServer(f"127.0.0.1:{port}")

    def ready() -> None:
        httpx.get(f"{server.issuer('partner')}/.well-known/openid-configuration").raise_for_status()

    with running(command, folder / "oidc.log", ready, not_yet=httpx.HTTPError, env=environment):
        yield server
