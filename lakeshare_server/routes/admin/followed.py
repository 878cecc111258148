"""Followed tables, which the Databricks API does not have: they are read by the server, so an owner follows them."""

from typing import Annotated

from fastapi import APIRouter, Response

from lakeshare_server.access.following import Following, FollowRequest
from lakeshare_server.access.serveability import TableServeability
from lakeshare_server.catalog import FollowedTables, followed
from lakeshare_server.protocol.admin.replies import FollowedTableInfo, FollowedTablesReply, FollowReport
from lakeshare_server.protocol.admin.requests import FollowTables
from lakeshare_server.protocol.admin.telling import told_followed_table
from lakeshare_server.routes.admin.context import LookDep, OwnerDep, body, reply, takes
from lakeshare_server.routes.context import Parts
from lakeshare_server.stores import Stores

router = APIRouter(tags=["followed tables"])


@router.post("/followed-tables", response_model=FollowReport, openapi_extra=takes(FollowTables))
def follow_tables(by: OwnerDep, wanted: Annotated[FollowTables, body(FollowTables)]) -> Response:
    """Follow and share tables where they lie; the reply has a result for each, refusals among them."""
    following = _following(by.parts)
    usual = FollowRequest(
        share=wanted.share,
        check_every_s=wanted.check_every_s,
        start_version=wanted.start_version,
        history=wanted.history,
    )
    given = [(one.location, one.name) for one in wanted.tables]
    requests = following.requests(given, usual, wanted.table_schema)
    results = [one.as_json() for one in following.follow_all(requests, by.by.name)]
    return reply(FollowReport.model_validate({"results": results}))


@router.get("/followed-tables", response_model=FollowedTablesReply)
def list_followed_tables(by: LookDep) -> Response:
    """List the followed tables by name."""
    found = FollowedTables(by.parts.catalog).list()
    return reply(FollowedTablesReply(tables=[told_followed_table(one) for one in found]))


@router.delete("/followed-tables/{table}", response_model=FollowedTableInfo)
def unfollow_table(by: OwnerDep, table: str) -> Response:
    """Follow a table no more: what shares it has no versions any more; the table itself is not touched."""
    with by.editing() as edit:
        found = followed.unfollow_table(edit, table)
    return reply(told_followed_table(found))


def _following(parts: Parts) -> Following:
    serveability = TableServeability(parts.iceberg_tables, parts.signers, parts.settings)
    return Following(parts.catalog, parts.settings, Stores(parts.settings), parts.versions, serveability)
