"""The Databricks SDK for Python drives this server: recipients, their links and tokens, federation policies."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors.platform import InvalidParameterValue, ResourceAlreadyExists, ResourceDoesNotExist
from databricks.sdk.service.sharing import (
    AuthenticationType,
    FederationPolicy,
    IpAccessList,
    OidcFederationPolicy,
    PermissionsChange,
    SecurablePropertiesKvPairs,
    SharedDataObjectUpdateAction,
)

from tests.builders.administration import (
    Administered,
    an_administered_server,
    by_token,
    redeemed,
    shares_read,
    update,
)

ADD = SharedDataObjectUpdateAction.ADD
YEAR_MS = 365 * 86_400_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture(scope="module")
def sdk(server: Administered) -> WorkspaceClient:
    return server.sdk()


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that nothing else in this server has."""
    return f"name{next(_numbers)}"


def test_a_recipient_is_invited_activated_and_reads(
    server: Administered, sdk: WorkspaceClient, name: str
) -> None:
    sdk.shares.create(name)
    sdk.shares.update(name, updates=[update(ADD, name="lake.flights")])
    sdk.shares.update_permissions(
        name, changes=[PermissionsChange(principal=by_token(sdk, "reader").name, add=["SELECT"])]
    )
    made = sdk.recipients.rotate_token("reader", 0)
    assert (made.activated, made.activation_url) == (False, (made.tokens or [])[0].activation_url)
    code = (made.activation_url or "").rpartition("/")[2]
    sdk.recipient_activation.get_activation_url_info(code)
    sdk.recipient_activation.get_activation_url_info(made.activation_url or "")
    profile = redeemed(sdk, made)
    assert (profile.share_credentials_version, profile.endpoint) == (1, f"{server.root}/delta-sharing")
    assert shares_read(server.root, profile.bearer_token) == [name]
    for again in (sdk.recipient_activation.retrieve_token, sdk.recipient_activation.get_activation_url_info):
        with pytest.raises(ResourceDoesNotExist, match=r"The link was used on .* from 127\.0\.0\.1"):
            again(code)
    found = sdk.recipients.get("reader")
    assert (found.activated, found.activation_url, len(found.tokens or [])) == (True, None, 1)
    assert profile.bearer_token not in str(found.as_dict())
    sdk.recipients.delete("reader")
    assert shares_read(server.root, profile.bearer_token) is None


def test_a_recipient_keeps_what_it_was_given(sdk: WorkspaceClient, name: str) -> None:
    ends = int(datetime.now(UTC).timestamp() * 1000) + YEAR_MS
    made = by_token(
        sdk,
        name,
        comment="of the north",
        owner="somebody",
        expiration_time=ends,
        ip_access_list=IpAccessList(["10.0.0.0/8", "192.0.2.7"]),
        properties_kvpairs=SecurablePropertiesKvPairs({"region": "EU", "quote": 'it\'s "x"'}),
    )
    assert (made.comment, made.owner, made.expiration_time) == ("of the north", "somebody", ends)
    assert made.ip_access_list
    assert made.ip_access_list.allowed_ip_addresses == ["10.0.0.0/8", "192.0.2.7/32"]
    assert made.properties_kvpairs
    assert made.properties_kvpairs.properties == {"region": "EU", "quote": 'it\'s "x"'}
    sdk.recipients.update(
        name, new_name=f"{name}_new", properties_kvpairs=SecurablePropertiesKvPairs({"region": "US"})
    )
    changed = sdk.recipients.update(f"{name}_new", comment="moved", ip_access_list=IpAccessList([]))
    assert (changed.comment, changed.owner, changed.ip_access_list) == ("moved", "somebody", None)
    assert changed.properties_kvpairs
    assert changed.properties_kvpairs.properties == {"region": "US"}
    assert sdk.recipients.get(f"{name}_new").as_dict() == changed.as_dict()


def test_rotation_shortens_the_tokens_that_are_out(
    server: Administered, sdk: WorkspaceClient, name: str
) -> None:
    first = redeemed(sdk, by_token(sdk, name))
    kept = sdk.recipients.rotate_token(name, 3600)
    old, waiting = kept.tokens or []
    assert old.expiration_time
    assert abs(old.expiration_time / 1000 - datetime.now(UTC).timestamp() - 3600) < 60
    assert waiting.activation_url == kept.activation_url
    # A grace time can only shrink.
    longer = sdk.recipients.rotate_token(name, 7200)
    assert (longer.tokens or [])[0].expiration_time == old.expiration_time
    second = redeemed(sdk, longer)
    assert shares_read(server.root, first.bearer_token) == shares_read(server.root, second.bearer_token) == []
    third = redeemed(sdk, sdk.recipients.rotate_token(name, 0))
    assert [shares_read(server.root, one.bearer_token) for one in (first, second, third)] == [None, None, []]
    with pytest.raises(InvalidParameterValue, match="existing_token_expire_in_seconds"):
        sdk.recipients.rotate_token(name, -1)
    assert shares_read(server.root, third.bearer_token) == []


def test_federation_policies_are_made_listed_and_removed(sdk: WorkspaceClient, name: str) -> None:
    made = sdk.recipients.create(name, AuthenticationType.OIDC_FEDERATION)
    assert (made.activation_url, made.authentication_type) == (None, AuthenticationType.OIDC_FEDERATION)
    said = OidcFederationPolicy("https://login.example.com/realm", "sub", f"{name}-job", ["lakeshare"])
    policies = sdk.recipient_federation_policies
    policy = policies.create(name, FederationPolicy(name="jobs", comment="at night", oidc_policy=said))
    assert policy.oidc_policy == said
    assert policy.create_time
    assert datetime.fromisoformat(policy.create_time).tzinfo
    assert [one.as_dict() for one in policies.list(name)] == [policy.as_dict()]
    assert policies.get_federation_policy(name, "jobs").as_dict() == policy.as_dict()
    with pytest.raises(ResourceAlreadyExists):
        policies.create(name, FederationPolicy(name="jobs", oidc_policy=said))
    policies.delete(name, "jobs")
    assert list(policies.list(name)) == []
    with pytest.raises(ResourceDoesNotExist, match="jobs"):
        policies.get_federation_policy(name, "jobs")


def test_a_policy_is_altered_but_keeps_its_name(
    server: Administered, sdk: WorkspaceClient, name: str
) -> None:
    sdk.recipients.create(name, AuthenticationType.OIDC_FEDERATION)
    said = {"issuer": "https://i.example", "subject_claim": "sub", "subject": name, "audiences": ["a"]}
    # Newer SDKs have this call too.
    with server.client(prefix=f"/api/2.0/data-sharing/recipients/{name}") as client:
        path = "/federation-policies"
        client.post(path, json={"name": "p", "oidc_policy": said})
        changed = client.patch(f"{path}/p", json={"name": "p", "oidc_policy": {**said, "subject": "other"}})
        assert changed.json()["oidc_policy"]["subject"] == "other"
        assert client.patch(f"{path}/p", json={"name": "q", "oidc_policy": said}).status_code == 400
        assert client.patch(f"{path}/q", json={"name": "q", "oidc_policy": said}).status_code == 404
        assert (
            client.post(path, json={"name": "q", "oidc_policy": {**said, "issuer": "no"}}).status_code == 400
        )
    assert [one.name for one in sdk.recipient_federation_policies.list(name)] == ["p"]
