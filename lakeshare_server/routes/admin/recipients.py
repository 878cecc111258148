"""Recipients, and the links by which they come to their profiles."""

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Response

from lakeshare_server.catalog.sharing import (
    Edit,
    RecipientState,
    drop_recipient,
    invite,
    look,
    shorten_tokens,
)
from lakeshare_server.catalog.sharing import alter_recipient as alter
from lakeshare_server.catalog.sharing import create_recipient as create
from lakeshare_server.catalog.sharing import revoke_recipient as revoke
from lakeshare_server.catalog.sharing import revoke_token as end_token
from lakeshare_server.protocol.admin.fields import from_ms
from lakeshare_server.protocol.admin.replies import RecipientInfo, Recipients
from lakeshare_server.protocol.admin.requests import CreateRecipient, RotateToken, UpdateRecipient
from lakeshare_server.protocol.admin.telling import told_recipient
from lakeshare_server.routes.admin.context import AdminRequest, LookDep, ShareDep, body, reply, takes

router = APIRouter(tags=["recipients"])
# What the Databricks API does not have.
own = APIRouter(tags=["recipients"])


@router.post("/recipients", response_model=RecipientInfo, openapi_extra=takes(CreateRecipient))
def create_recipient(by: ShareDep, wanted: Annotated[CreateRecipient, body(CreateRecipient)]) -> Response:
    """Make a recipient; the reply has its activation link, here only. One of OIDC federation needs none."""
    with by.editing() as edit:
        made = create(
            edit,
            wanted.name,
            comment=wanted.comment,
            owner=wanted.owner,
            properties=_properties(wanted),
            authentication=wanted.authentication_type,
            ip_allow=_addresses(wanted),
            expires_at=from_ms(wanted.expiration_time),
            agreement=wanted.agreement,
        )
        if wanted.authentication_type == "OIDC_FEDERATION":
            return reply(told_recipient(made), revision=made.revision)
        return _invited(by, edit, made.name, made.expires_at)


@router.get("/recipients", response_model=Recipients)
def list_recipients(by: LookDep) -> Response:
    """List the recipients, revoked ones too."""
    with by.parts.catalog.reading() as session:
        found, token = by.page("recipients", lambda after, limit: look.recipients(session, after, limit))
    return reply(Recipients(recipients=[told_recipient(one) for one in found], next_page_token=token))


@router.get("/recipients/{recipient}", response_model=RecipientInfo)
def look_at_recipient(by: LookDep, recipient: str) -> Response:
    """A recipient with its tokens and links, but for their secrets."""
    with by.parts.catalog.reading() as session:
        found = look.recipient(session, recipient)
    return reply(told_recipient(found), revision=found.revision)


@router.patch("/recipients/{recipient}", response_model=RecipientInfo, openapi_extra=takes(UpdateRecipient))
def alter_recipient(
    by: ShareDep, recipient: str, wanted: Annotated[UpdateRecipient, body(UpdateRecipient)]
) -> Response:
    """Change a recipient; its tokens and grants stay."""
    with by.editing() as edit:
        changed = alter(edit, recipient, **_changes(wanted), revision=by.revision)
    return reply(told_recipient(changed), revision=changed.revision)


@router.delete("/recipients/{recipient}")
def delete_recipient(by: ShareDep, recipient: str) -> Response:
    """Remove a recipient with its tokens and grants."""
    with by.editing() as edit:
        drop_recipient(edit, recipient, revision=by.revision)
    return reply(None)


@router.post(
    "/recipients/{recipient}/rotate-token", response_model=RecipientInfo, openapi_extra=takes(RotateToken)
)
def rotate_token(by: ShareDep, recipient: str, wanted: Annotated[RotateToken, body(RotateToken)]) -> Response:
    """Let the tokens that are out end, none later than it would, and tell a new activation link, here only."""
    grace = timedelta(seconds=wanted.existing_token_expire_in_seconds)
    with by.editing() as edit:
        found = shorten_tokens(edit, recipient, existing_expire_in=grace)
        return _invited(by, edit, found.name, found.expires_at)


@own.post("/recipients/{recipient}/revoke", response_model=RecipientInfo)
def revoke_recipient(by: ShareDep, recipient: str) -> Response:
    """End all access of a recipient for good; its name and what the audit log says of it stay."""
    with by.editing() as edit:
        ended = revoke(edit, recipient, revision=by.revision)
    return reply(told_recipient(ended), revision=ended.revision)


@own.delete("/recipients/{recipient}/tokens/{token}", response_model=RecipientInfo)
def revoke_token(by: ShareDep, recipient: str, token: str) -> Response:
    """End one token of a recipient at once."""
    with by.editing() as edit:
        changed = end_token(edit, recipient, token)
    return reply(told_recipient(changed), revision=changed.revision)


def _invited(by: AdminRequest, edit: Edit, name: str, token_expires_at: datetime | None) -> Response:
    link, code = invite(edit, name, token_expires_at=token_expires_at)
    told: RecipientState = look.recipient(edit.session, name)
    urls = {link.id: by.parts.settings.activation_url(code)}
    return reply(told_recipient(told, urls), revision=told.revision)


def _changes(wanted: UpdateRecipient) -> dict[str, Any]:
    """What was sent, in the words of the operation; null empties a field, but for the name."""
    fields = {name: getattr(wanted, name) for name in ("comment", "owner", "agreement") if wanted.has(name)}
    if wanted.new_name is not None:
        fields["new_name"] = wanted.new_name
    if wanted.has("expiration_time"):
        fields["expires_at"] = from_ms(wanted.expiration_time)
    if wanted.has("ip_access_list"):
        fields["ip_allow"] = _addresses(wanted)
    if wanted.has("properties_kvpairs"):
        fields["properties"] = _properties(wanted)
    return fields


def _properties(wanted: CreateRecipient | UpdateRecipient) -> dict[str, str] | None:
    return None if wanted.properties_kvpairs is None else wanted.properties_kvpairs.properties


def _addresses(wanted: CreateRecipient | UpdateRecipient) -> list[str] | None:
    return None if wanted.ip_access_list is None else wanted.ip_access_list.allowed_ip_addresses
