"""Groups of recipients, which the Databricks API does not have: they are granted shares as `group:NAME`."""

from typing import Annotated

from fastapi import APIRouter, Response

from lakeshare_server.catalog.sharing import KEEP, drop_group, look
from lakeshare_server.catalog.sharing import alter_group as alter
from lakeshare_server.catalog.sharing import create_group as create
from lakeshare_server.protocol.admin.replies import GroupInfo, Groups
from lakeshare_server.protocol.admin.requests import CreateGroup, UpdateGroup
from lakeshare_server.protocol.admin.telling import told_group
from lakeshare_server.routes.admin.context import LookDep, ShareDep, body, reply, takes

router = APIRouter(tags=["groups"])


@router.post("/groups", response_model=GroupInfo, openapi_extra=takes(CreateGroup))
def create_group(by: ShareDep, wanted: Annotated[CreateGroup, body(CreateGroup)]) -> Response:
    """Make a group of recipients."""
    with by.editing() as edit:
        made = create(edit, wanted.name, comment=wanted.comment, members=wanted.members)
    return reply(told_group(made), revision=made.revision)


@router.get("/groups", response_model=Groups)
def list_groups(by: LookDep) -> Response:
    """List the groups with their members."""
    with by.parts.catalog.reading() as session:
        found = look.groups(session)
    return reply(Groups(groups=[told_group(one) for one in found]))


@router.get("/groups/{group}", response_model=GroupInfo)
def look_at_group(by: LookDep, group: str) -> Response:
    """A group with its members."""
    with by.parts.catalog.reading() as session:
        found = look.group(session, group)
    return reply(told_group(found), revision=found.revision)


@router.patch("/groups/{group}", response_model=GroupInfo, openapi_extra=takes(UpdateGroup))
def alter_group(by: ShareDep, group: str, wanted: Annotated[UpdateGroup, body(UpdateGroup)]) -> Response:
    """Change a group: its name, its comment, its members."""
    with by.editing() as edit:
        changed = alter(
            edit,
            group,
            new_name=wanted.new_name or KEEP,
            comment=wanted.comment if wanted.has("comment") else KEEP,
            add=wanted.add_members,
            remove=wanted.remove_members,
            revision=by.revision,
        )
    return reply(told_group(changed), revision=changed.revision)


@router.delete("/groups/{group}")
def delete_group(by: ShareDep, group: str) -> Response:
    """Remove a group with its grants; its members keep their own."""
    with by.editing() as edit:
        drop_group(edit, group, revision=by.revision)
    return reply(None)
