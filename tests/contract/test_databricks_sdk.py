"""The Databricks SDK for Python drives this server: shares, recipients, permissions, policies, activation, errors."""

import itertools
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import DatabricksError
from databricks.sdk.errors.platform import (
    InvalidParameterValue,
    PermissionDenied,
    ResourceAlreadyExists,
    ResourceDoesNotExist,
    Unauthenticated,
)
from databricks.sdk.service import sharing
from databricks.sdk.service.sharing import (
    AuthenticationType,
    FederationPolicy,
    IpAccessList,
    OidcFederationPolicy,
    Partition,
    PartitionValue,
    PartitionValueOp,
    PermissionsChange,
    Privilege,
    SecurablePropertiesKvPairs,
    SharedDataObject,
    SharedDataObjectDataObjectType,
    SharedDataObjectUpdate,
    SharedDataObjectUpdateAction,
)

from tests.builders.administration import Administered, an_administered_server, sdk_client
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows

ADD, REMOVE, UPDATE = (
    SharedDataObjectUpdateAction.ADD,
    SharedDataObjectUpdateAction.REMOVE,
    SharedDataObjectUpdateAction.UPDATE,
)
ENABLED = sharing.SharedDataObjectHistoryDataSharingStatus.ENABLED
DISABLED = sharing.SharedDataObjectHistoryDataSharingStatus.DISABLED
LIKE_ANY = PartitionValue("day", PartitionValueOp.LIKE, value="20%4")
TWO_VALUES = PartitionValue("day", PartitionValueOp.EQUAL, value="a", recipient_property_key="b")
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


def update(action: SharedDataObjectUpdateAction, **fields: object) -> SharedDataObjectUpdate:
    return SharedDataObjectUpdate(action=action, data_object=SharedDataObject(**fields))  # type: ignore[arg-type]


def by_token(sdk: WorkspaceClient, name: str, **fields: object) -> sharing.RecipientInfo:
    return sdk.recipients.create(name, AuthenticationType.TOKEN, **fields)  # type: ignore[arg-type]


def redeemed(sdk: WorkspaceClient, made: sharing.RecipientInfo) -> sharing.RetrieveTokenResponse:
    assert made.activation_url is not None
    return sdk.recipient_activation.retrieve_token(made.activation_url.rpartition("/")[2])


def shares_read(server: Administered, token: str | None) -> list[str] | None:
    """The shares that a token opens, None when it opens nothing."""
    answer = httpx.get(f"{server.root}/delta-sharing/shares", headers={"Authorization": f"Bearer {token}"})
    return [share["name"] for share in answer.json()["items"]] if answer.status_code == 200 else None


def test_the_sdk_finds_its_host_and_tells_who_it_is(
    server: Administered, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert server.sdk("steward").current_user.me().user_name == "steward"
    assert not caplog.records


def test_a_share_is_made_changed_and_removed(sdk: WorkspaceClient, name: str) -> None:
    made = sdk.shares.create(name, comment="first")
    assert (made.name, made.comment, made.owner, made.created_by) == (name, "first", "owner", "owner")
    assert made.created_at is not None
    assert datetime.fromtimestamp(made.created_at / 1000, UTC) > datetime.now(UTC) - timedelta(minutes=5)
    changed = sdk.shares.update(name, comment="second", owner="somebody", new_name=f"{name}_new")
    assert (changed.name, changed.comment, changed.owner) == (f"{name}_new", "second", "somebody")
    assert sdk.shares.get(f"{name}_new").as_dict() == changed.as_dict()
    sdk.shares.delete(f"{name}_new")
    with pytest.raises(ResourceDoesNotExist, match=f"Share '{name}_new' does not exist"):
        sdk.shares.get(f"{name}_new")


def test_tables_are_added_altered_and_removed(sdk: WorkspaceClient, name: str) -> None:
    sdk.shares.create(name)
    sdk.shares.update(
        name,
        updates=[
            update(ADD, name="lake.flights", comment="all of them"),
            update(
                ADD,
                name="lake.flights",
                shared_as="eu.flights",
                history_data_sharing_status=ENABLED,
                start_version=0,
                data_object_type=SharedDataObjectDataObjectType.VIEW,
            ),
        ],
    )
    plain, other = sdk.shares.get(name, include_shared_data=True).objects or []
    assert (plain.name, plain.shared_as, plain.comment) == ("lake.flights", "lake.flights", "all of them")
    assert (plain.history_data_sharing_status, plain.cdf_enabled) == (DISABLED, False)
    assert (other.shared_as, other.history_data_sharing_status, other.start_version) == (
        "eu.flights",
        ENABLED,
        0,
    )
    assert other.data_object_type is SharedDataObjectDataObjectType.VIEW
    assert plain.added_by == "owner"
    assert not sdk.shares.get(name).objects
    changes = [
        update(UPDATE, name="lake.flights", shared_as="eu.flights", comment="Europe's"),
        update(REMOVE, name="lake.flights", shared_as="lake.flights"),
    ]
    [left] = sdk.shares.update(name, updates=changes).objects or []
    assert (left.shared_as, left.comment, left.history_data_sharing_status) == (
        "eu.flights",
        "Europe's",
        ENABLED,
    )
    [renamed] = (
        sdk.shares.update(name, updates=[update(UPDATE, name="lake.flights", shared_as="eu.all")]).objects
        or []
    )
    assert (renamed.shared_as, renamed.comment) == ("eu.all", "Europe's")


def test_history_begins_with_the_version_of_today_if_no_other_is_named(
    server: Administered, sdk: WorkspaceClient, name: str, tmp_path: Path
) -> None:
    table = a_delta_table(tmp_path / "table")
    server.provider.publish_delta("lake.published", table)
    append_delta(table, some_rows(1))
    server.provider.publish_delta("lake.published", table)
    server.provider.follow("lake.followed", table)
    sdk.shares.create(name)

    def started(action: SharedDataObjectUpdateAction, **fields: object) -> int | None:
        [found] = sdk.shares.update(name, updates=[update(action, **fields)]).objects or []
        return found.start_version

    assert started(ADD, name="lake.published") is None
    assert started(UPDATE, name="lake.published", history_data_sharing_status=ENABLED) == 1
    assert started(UPDATE, name="lake.published", start_version=0) == 0
    assert started(UPDATE, name="lake.published", cdf_enabled=True) == 0
    with pytest.raises(InvalidParameterValue, match="start_version"):
        started(ADD, name="lake.followed", history_data_sharing_status=ENABLED)


def test_partitions_come_back_as_they_were_given(sdk: WorkspaceClient, name: str) -> None:
    partitions = [
        Partition(
            [
                PartitionValue("day", PartitionValueOp.EQUAL, value="it's '1'"),
                PartitionValue("x y`z", PartitionValueOp.EQUAL),
            ]
        ),
        Partition([PartitionValue("day", PartitionValueOp.EQUAL, recipient_property_key="region.days")]),
        Partition([PartitionValue("day", PartitionValueOp.EQUAL, value="2024') OR (1 = 1")]),
        Partition([PartitionValue("day", PartitionValueOp.LIKE, value="2024-%")]),
    ]
    sdk.shares.create(name)
    # Of a table that is not published yet nothing is known that could decide otherwise.
    sdk.shares.update(name, updates=[update(ADD, name="lake.planned", partitions=partitions)])
    [found] = sdk.shares.get(name, include_shared_data=True).objects or []
    assert [one.as_dict() for one in found.partitions or []] == [one.as_dict() for one in partitions]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (update(ADD, name="lake.flights", shared_as="lake.flights"), "shared already"),
        (update(ADD, name="alone"), "shared_as"),
        (update(ADD, name="lake.other", shared_as="nodot"), "shared_as"),
        (update(ADD, name="lake.other", shared_as="a.b.c"), "table"),
        (update(REMOVE, name="lake.other"), "lake.other"),
        (update(UPDATE, name="lake.other", comment="x"), "lake.other"),
        (update(REMOVE, name="lake.flights", shared_as="lake.another"), "lake.flights"),
        (
            update(ADD, name="lake.other", data_object_type=SharedDataObjectDataObjectType.MODEL),
            "data_object_type",
        ),
        (update(ADD, name="lake.other", start_version=-1), "start_version"),
        (update(ADD, name="lake.other", partitions=[Partition([])]), "partitions"),
        (update(ADD, name="lake.other", partitions=[Partition([LIKE_ANY])]), "LIKE takes"),
        (update(ADD, name="lake.other", partitions=[Partition([TWO_VALUES])]), "not both"),
    ],
)
def test_one_update_that_cannot_be_done_undoes_the_others(
    sdk: WorkspaceClient, name: str, bad: SharedDataObjectUpdate, said: str
) -> None:
    sdk.shares.create(name, comment="before")
    before = sdk.shares.update(name, updates=[update(ADD, name="lake.flights")]).as_dict()
    good = update(ADD, name="lake.more")
    with pytest.raises(DatabricksError, match=said):
        sdk.shares.update(name, comment="after", updates=[good, bad])
    assert sdk.shares.get(name, include_shared_data=True).as_dict() == before


def test_more_than_a_hundred_updates_are_refused(sdk: WorkspaceClient, name: str) -> None:
    sdk.shares.create(name)
    many = [update(ADD, name=f"lake.t{number}") for number in range(101)]
    with pytest.raises(InvalidParameterValue, match="updates"):
        sdk.shares.update(name, updates=many)
    assert len(sdk.shares.update(name, updates=many[:100]).objects or []) == 100


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
    assert shares_read(server, profile.bearer_token) == [name]
    for again in (sdk.recipient_activation.retrieve_token, sdk.recipient_activation.get_activation_url_info):
        with pytest.raises(ResourceDoesNotExist, match=r"The link was used on .* from 127\.0\.0\.1"):
            again(code)
    found = sdk.recipients.get("reader")
    assert (found.activated, found.activation_url, len(found.tokens or [])) == (True, None, 1)
    assert profile.bearer_token not in str(found.as_dict())
    sdk.recipients.delete("reader")
    assert shares_read(server, profile.bearer_token) is None


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
    assert made.properties_kvpairs.properties == {
        "region": "EU",
        "quote": 'it\'s "x"',
    }
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
    assert shares_read(server, first.bearer_token) == shares_read(server, second.bearer_token) == []
    third = redeemed(sdk, sdk.recipients.rotate_token(name, 0))
    assert [shares_read(server, one.bearer_token) for one in (first, second, third)] == [None, None, []]
    with pytest.raises(InvalidParameterValue, match="existing_token_expire_in_seconds"):
        sdk.recipients.rotate_token(name, -1)
    assert shares_read(server, third.bearer_token) == []


def test_permissions_are_granted_told_and_revoked(
    server: Administered, sdk: WorkspaceClient, name: str
) -> None:
    token = redeemed(sdk, by_token(sdk, name)).bearer_token
    by_token(sdk, f"{name}_other")
    sdk.shares.create(name)
    changes = [PermissionsChange(principal=one, add=["SELECT"]) for one in (name, f"{name}_other")]
    told = sdk.shares.update_permissions(name, changes=changes * 2)
    assert [one.principal for one in told.privilege_assignments or []] == [name, f"{name}_other"]
    [granted] = sdk.recipients.share_permissions(name).permissions_out or []
    assert granted.share_name == name
    assert (granted.privilege_assignments or [])[0].privileges == [Privilege.SELECT]
    assert shares_read(server, token) == [name]
    gone = [PermissionsChange(principal=name, remove=["SELECT"])]
    assert (
        sdk.shares.update_permissions(
            name, changes=gone * 2, omit_permissions_list=True
        ).privilege_assignments
        == []
    )
    assert [one.principal for one in sdk.shares.share_permissions(name).privilege_assignments or []] == [
        f"{name}_other"
    ]
    assert shares_read(server, token) == []


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (PermissionsChange(principal="nobody", add=["SELECT"]), ResourceDoesNotExist, "nobody"),
        (PermissionsChange(principal="nobody", remove=["SELECT"]), ResourceDoesNotExist, "nobody"),
        (PermissionsChange(principal="group:nobody", add=["SELECT"]), ResourceDoesNotExist, "nobody"),
        (PermissionsChange(principal="known", add=["MODIFY"]), InvalidParameterValue, "changes.1.add.0"),
        (
            PermissionsChange(principal="known", add=["SELECT"], remove=["SELECT"]),
            InvalidParameterValue,
            "not both",
        ),
        (PermissionsChange(add=["SELECT"]), InvalidParameterValue, "principal"),
    ],
)
def test_one_bad_permission_undoes_the_others(
    sdk: WorkspaceClient, name: str, change: PermissionsChange, error: type[DatabricksError], said: str
) -> None:
    sdk.shares.create(name)
    if not any(one.name == "known" for one in sdk.recipients.list()):
        by_token(sdk, "known")
    good = PermissionsChange(principal="known", add=["SELECT"])
    with pytest.raises(error, match=said):
        sdk.shares.update_permissions(name, changes=[good, change])
    assert sdk.shares.share_permissions(name).privilege_assignments == []


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


def test_lists_come_page_by_page_with_nothing_twice(server: Administered, sdk: WorkspaceClient) -> None:
    for number in range(5):
        sdk.shares.create(f"paged{number}")
        by_token(sdk, f"paged{number}")
    for read in (sdk.shares.list_shares, sdk.recipients.list):
        whole = [one.name for one in read()]
        assert len(set(whole)) == len(whole) >= 5
        assert [one.name for one in read(max_results=2)] == whole
        with pytest.raises(InvalidParameterValue, match="max_results"):
            list(read(max_results=-1))
        with pytest.raises(InvalidParameterValue, match="page_token"):
            list(read(page_token="made up"))
    with server.client() as client:
        first = client.get("/shares", params={"max_results": 2}).json()
        assert len(first["shares"]) == 2
        foreign = client.get("/recipients", params={"page_token": first["next_page_token"]})
        assert foreign.status_code == 400


def test_refusals_are_the_exceptions_of_the_sdk(
    server: Administered, sdk: WorkspaceClient, name: str
) -> None:
    sdk.shares.create(name)
    by_token(sdk, name)
    with pytest.raises(ResourceAlreadyExists, match=name):
        sdk.shares.create(name.upper())
    with pytest.raises(ResourceAlreadyExists, match=name):
        by_token(sdk, name)
    with pytest.raises(InvalidParameterValue, match="share"):
        sdk.shares.create("no spaces")
    with pytest.raises(InvalidParameterValue, match="authentication_type: 'DATABRICKS'"):
        sdk.recipients.create("other", AuthenticationType.DATABRICKS)
    with pytest.raises(InvalidParameterValue, match="ip_allow"):
        by_token(sdk, "other", ip_access_list=IpAccessList(["300.0.0.0/8"]))
    for call in (sdk.recipients.get, sdk.recipients.delete, sdk.shares.delete, sdk.shares.share_permissions):
        with pytest.raises(ResourceDoesNotExist):
            call("absent")
    with pytest.raises(PermissionDenied, match="auditor"):
        server.sdk("auditor").shares.create("denied")
    with pytest.raises(Unauthenticated):
        sdk_client(server.root, "lakeshare-admin-no").shares.create("denied")
    assert "other" not in {one.name for one in sdk.recipients.list()}
