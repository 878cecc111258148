"""Keys of administrators, and who is asking."""

from typing import Annotated

from fastapi import APIRouter, Response

from lakeshare_server.catalog.admin_keys import add_admin_key, admin_keys, revoke_admin_key
from lakeshare_server.protocol.admin.fields import from_ms
from lakeshare_server.protocol.admin.replies import AdminKeyInfo, AdminKeys, Myself
from lakeshare_server.protocol.admin.requests import CreateAdminKey
from lakeshare_server.protocol.admin.telling import told_key
from lakeshare_server.routes.admin.context import LookDep, OwnerDep, body, reply, takes

router = APIRouter(tags=["administrators"])
# Where clients of Databricks ask whether their key is good.
me = APIRouter(tags=["administrators"])


@router.post("/admin-keys", response_model=AdminKeyInfo, openapi_extra=takes(CreateAdminKey))
def create_admin_key(by: OwnerDep, wanted: Annotated[CreateAdminKey, body(CreateAdminKey)]) -> Response:
    """Make a key; the reply has it, here only."""
    with by.editing() as edit:
        made, secret = add_admin_key(
            edit, wanted.name, wanted.role, expires_at=from_ms(wanted.expiration_time)
        )
    return reply(told_key(made, secret))


@router.get("/admin-keys", response_model=AdminKeys)
def list_admin_keys(by: OwnerDep) -> Response:
    """List all keys, revoked ones too."""
    with by.parts.catalog.reading() as session:
        found = admin_keys(session)
    return reply(AdminKeys(keys=[told_key(one) for one in found]))


@router.delete("/admin-keys/{key}", response_model=AdminKeyInfo)
def delete_admin_key(by: OwnerDep, key: str) -> Response:
    """End a key at once; its name stays taken."""
    with by.editing() as edit:
        ended = revoke_admin_key(edit, key)
    return reply(told_key(ended))


@me.get("/Me", response_model=Myself)
def look_at_myself(by: LookDep) -> Response:
    """Who is asking, and in which role."""
    told = Myself(
        id=by.by.name, userName=by.by.name, displayName=f"{by.by.name} ({by.by.role})", role=by.by.role
    )
    return reply(told)
