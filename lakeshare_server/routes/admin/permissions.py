"""Who may read a share, and what a recipient may read."""

from typing import Annotated

from fastapi import APIRouter, Response

from lakeshare_server.access.permission_changes import change_permissions
from lakeshare_server.catalog.sharing import look
from lakeshare_server.protocol.admin.replies import RecipientPermissions, SharePermissions
from lakeshare_server.protocol.admin.requests import UpdatePermissions
from lakeshare_server.protocol.admin.telling import told_assignment, told_permissions
from lakeshare_server.routes.admin.context import LookDep, ShareDep, body, reply, takes

router = APIRouter(tags=["permissions"])


@router.get("/shares/{share}/permissions", response_model=SharePermissions)
def list_permissions(by: LookDep, share: str) -> Response:
    """Who may read a share: recipients, and groups as `group:NAME`."""
    with by.parts.catalog.reading() as session:
        found = look.share(session, share)
        granted = [told_assignment(grant) for grant in look.grants_on(session, share)]
    return reply(SharePermissions(privilege_assignments=granted), revision=found.revision)


@router.patch(
    "/shares/{share}/permissions", response_model=SharePermissions, openapi_extra=takes(UpdatePermissions)
)
def alter_permissions(
    by: ShareDep, share: str, wanted: Annotated[UpdatePermissions, body(UpdatePermissions)]
) -> Response:
    """Grant and revoke: all of it or nothing."""
    by.find_versions_ahead(share, writes_rule=any(change.rule for change in wanted.changes))
    with by.editing() as edit:
        revision = change_permissions(edit, share, wanted.changes, by.revision)
        granted = [] if wanted.omit_permissions_list else look.grants_on(edit.session, share)
    told = [told_assignment(grant) for grant in granted]
    return reply(SharePermissions(privilege_assignments=told), revision=revision)


@router.get("/recipients/{recipient}/share-permissions", response_model=RecipientPermissions)
def list_share_permissions(by: LookDep, recipient: str) -> Response:
    """What a recipient may read, by itself or as a member of a group."""
    with by.parts.catalog.reading() as session:
        granted = look.grants_to(session, recipient)
    return reply(RecipientPermissions(permissions_out=told_permissions(granted)))
