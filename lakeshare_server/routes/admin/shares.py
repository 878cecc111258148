"""Shares and what is in them."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from lakeshare_server.access.share_updates import update_share
from lakeshare_server.catalog.sharing import look
from lakeshare_server.catalog.sharing.shares import create_share as create
from lakeshare_server.catalog.sharing.shares import drop_share
from lakeshare_server.protocol.admin.replies import ShareInfo, Shares
from lakeshare_server.protocol.admin.requests import CreateShare, UpdateShare
from lakeshare_server.protocol.admin.telling import told_share
from lakeshare_server.routes.admin.context import LookDep, ShareDep, body, reply, takes

router = APIRouter(tags=["shares"])


@router.post("/shares", response_model=ShareInfo, openapi_extra=takes(CreateShare))
def create_share(by: ShareDep, wanted: Annotated[CreateShare, body(CreateShare)]) -> Response:
    """Make a share; its tables are added by an update."""
    fields = wanted.model_dump(include={"comment", "display_name", "properties", "owner"})
    with by.editing() as edit:
        made = create(edit, wanted.name, **fields)
    return reply(told_share(made), revision=made.revision)


@router.get("/shares", response_model=Shares)
def list_all_shares(by: LookDep) -> Response:
    """List the shares, without what is in them."""
    with by.parts.catalog.reading() as session:
        found, token = by.page("shares", lambda after, limit: look.shares(session, after, limit))
    return reply(Shares(shares=[told_share(one) for one in found], next_page_token=token))


@router.get("/shares/{share}", response_model=ShareInfo)
def look_at_share(by: LookDep, share: str, include_shared_data: Annotated[bool, Query()] = False) -> Response:
    """A share, with its tables if they are asked for."""
    with by.parts.catalog.reading() as session:
        found = look.share(session, share)
        told = told_share(found, look.objects(session, found.name) if include_shared_data else None)
    return reply(told, revision=found.revision)


@router.patch("/shares/{share}", response_model=ShareInfo, openapi_extra=takes(UpdateShare))
def alter_share(by: ShareDep, share: str, wanted: Annotated[UpdateShare, body(UpdateShare)]) -> Response:
    """Change a share, and add, alter and remove tables: all of it or nothing."""
    tables = [update.data_object for update in wanted.updates]
    writes_rule = any(table.rule or table.partitions for table in tables)
    by.find_versions_ahead(share, [table.name for table in tables], writes_rule=writes_rule)
    with by.editing() as edit:
        changed = update_share(edit, share, wanted, by.revision)
        told = told_share(changed, look.objects(edit.session, changed.name))
    return reply(told, revision=changed.revision)


@router.delete("/shares/{share}")
def delete_share(by: ShareDep, share: str) -> Response:
    """Remove a share with its tables and the grants on it."""
    with by.editing() as edit:
        drop_share(edit, share, revision=by.revision)
    return reply(None)
