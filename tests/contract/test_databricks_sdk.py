"""The Databricks SDK for Python drives this server: shares, tables, permissions, lists, errors."""

import itertools
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

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
    IpAccessList,
    Partition,
    PartitionValue,
    PartitionValueOp,
    PermissionsChange,
    Privilege,
    SharedDataObjectDataObjectType,
    SharedDataObjectUpdate,
    SharedDataObjectUpdateAction,
)

from tests.builders.administration import (
    Administered,
    an_administered_server,
    by_token,
    redeemed,
    sdk_client,
    shares_read,
    update,
)
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
    assert shares_read(server.root, token) == [name]
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
    assert shares_read(server.root, token) == []


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
