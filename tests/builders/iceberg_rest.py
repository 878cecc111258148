"""The Iceberg REST door of a running server, as PyIceberg and as plain HTTP see it."""

from typing import Any

import httpx

from tests.builders.lake_tables import IcebergState, IcebergTable
from tests.builders.sharing import Running

TABLE = "/v1/shares/flights/namespaces/lake/tables/flights"
SECRET_BRANCH, SECRET_TAG = "wap-secret", "secret-tag"


def door_url(server: Running) -> str:
    """The base URL that profiles name."""
    return str(httpx.URL(server.url).join("/iceberg"))


def door(server: Running, token: str | None) -> httpx.Client:
    """A plain HTTP client of the door."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx.Client(verify=False, base_url=door_url(server), headers=headers, timeout=30)


def rest_catalog(server: Running, token: str, share: str = "flights", **options: str) -> Any:
    """PyIceberg's own client."""
    from pyiceberg.catalog.rest import RestCatalog

    return RestCatalog("door", uri=door_url(server), token=token, warehouse=share, **options)


def leave_secrets(made: IcebergTable) -> set[str]:
    """An unpublished snapshot on a branch, a tag on it, and properties; returns all that nobody is to be told."""
    from tests.builders.lake_tables import some_rows

    table = made.table
    with table.manage_snapshots() as manage:
        manage.create_branch(table.current_snapshot().snapshot_id, SECRET_BRANCH)
    table.append(
        some_rows(days=1),
        branch=SECRET_BRANCH,
        snapshot_properties={"wap.id": "secret-wap", "owner": "secret-job"},
    )
    unpublished = table.metadata.refs[SECRET_BRANCH].snapshot_id
    with table.manage_snapshots() as manage:
        manage.create_tag(unpublished, SECRET_TAG)
    with table.transaction() as change:
        change.set_properties({"write.data.path": "s3://secret-bucket/data", "owner": "secret-owner"})
    snapshot = table.snapshot_by_id(unpublished)
    return {str(unpublished), "secret", snapshot.manifest_list, table.metadata_location}


def state_of(made: IcebergTable) -> IcebergState:
    """The main branch's snapshot in the newest metadata file, which lists all the others."""
    return IcebergState(made.table.metadata_location, made.table.metadata.refs["main"].snapshot_id)


def told_values(part: Any) -> set[str]:
    """Every key and value in an answer, as text."""
    if isinstance(part, dict):
        return {text for key, value in part.items() for text in {str(key)} | told_values(value)}
    if isinstance(part, list):
        return {text for value in part for text in told_values(value)}
    return {str(part)}
