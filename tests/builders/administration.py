"""A running server with administrators of every role, and their clients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from databricks.sdk import WorkspaceClient
from databricks.sdk.core import Config
from databricks.sdk.service.sharing import (
    AuthenticationType,
    RecipientInfo,
    RetrieveTokenResponse,
    SharedDataObject,
    SharedDataObjectUpdate,
    SharedDataObjectUpdateAction,
)

from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.sharing import editing
from tests.builders import plain_http
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import Provider, a_provider, a_server

ROLES = ("owner", "steward", "auditor")
UNITY = "/api/2.1/unity-catalog"
PROVIDER = "/api/2.1/opensharing/provider"


@dataclass(frozen=True)
class Administered:
    """A server with the published table `lake.flights`, and a key of each role."""

    provider: Provider
    root: str
    keys: Mapping[str, str]

    def client(self, role: str | None = "owner", prefix: str = UNITY) -> httpx.Client:
        """A plain HTTP client below a prefix, with the key of a role."""
        headers = {} if role is None else {"Authorization": f"Bearer {self.keys[role]}"}
        return httpx.Client(verify=False, base_url=self.root + prefix, headers=headers, timeout=30)

    def sdk(self, role: str = "owner") -> WorkspaceClient:
        """The Databricks SDK's client with the key of a role."""
        return sdk_client(self.root, self.keys[role])


def sdk_client(root: str, key: str) -> WorkspaceClient:
    """The Databricks SDK's client of a server, which does not repeat for minutes what fails."""
    return WorkspaceClient(
        config=Config(host=root, token=key, auth_type="pat", retry_timeout_seconds=5, http_timeout_seconds=30)
    )


@contextmanager
def an_administered_server(folder: Path, **settings: Any) -> Iterator[Administered]:
    """Such a server until the end of the block."""
    # Tests try more wrong keys than anybody may.
    provider = a_provider(folder, **{"guesses_per_minute": 100_000, **settings})
    provider.publish_delta("lake.flights", a_delta_table(folder / "table"))
    with editing(provider.catalog, "tests") as edit:
        keys = {role: add_admin_key(edit, role, role)[1] for role in ROLES}
    with a_server(provider) as running:
        yield Administered(provider, running.url.removesuffix(provider.settings.endpoint), keys)


def update(action: SharedDataObjectUpdateAction, **fields: Any) -> SharedDataObjectUpdate:
    """An update of what is in a share."""
    return SharedDataObjectUpdate(action=action, data_object=SharedDataObject(**fields))


def by_token(sdk: WorkspaceClient, name: str, **fields: Any) -> RecipientInfo:
    """A recipient with an activation link."""
    return sdk.recipients.create(name, AuthenticationType.TOKEN, **fields)


def redeemed(sdk: WorkspaceClient, made: RecipientInfo) -> RetrieveTokenResponse:
    """The profile behind the link that was just made."""
    assert made.activation_url is not None
    return sdk.recipient_activation.retrieve_token(made.activation_url.rpartition("/")[2])


def shares_read(root: str, token: str | None) -> list[str] | None:
    """The shares that a token opens, None when it opens nothing."""
    answer = plain_http.get(
        f"{root}/delta-sharing/shares", headers={"Authorization": f"Bearer {token}"}, timeout=30
    )
    return [share["name"] for share in answer.json()["items"]] if answer.status_code == 200 else None
