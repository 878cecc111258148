"""Operations on recipients themselves; what they get in with is in `tokens`, `activation` and `federation`."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import get_args

from sqlalchemy import select, update

from lakeshare_server.catalog.models import ActivationRow, RecipientRow, TokenRow
from lakeshare_server.catalog.names import networks, require_name, require_owner, require_properties
from lakeshare_server.catalog.sharing.editing import KEEP, Edit, Keep, given, require_aware, touch
from lakeshare_server.catalog.sharing.look import recipient, recipient_row
from lakeshare_server.catalog.sharing.states import Authentication, RecipientState
from lakeshare_server.errors import BadRequest, NameTaken

LONGEST_AGREEMENT = 100_000


def create_recipient(
    edit: Edit,
    name: str,
    *,
    comment: str | None = None,
    owner: str | None = None,
    properties: Mapping[str, str] | None = None,
    authentication: Authentication = "TOKEN",
    ip_allow: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    agreement: str | None = None,
) -> RecipientState:
    """Make a recipient, which gets in nowhere yet: a token, a link or a federation policy comes next.

    Raises:
        BadRequest: a value cannot be used.
        CatalogConflict: the name is taken.
    """
    require_name("recipient", name)
    require_owner(owner)
    require_properties("properties", properties)
    require_aware("expires_at", expires_at)
    _require_agreement(agreement)
    _require_authentication(authentication)
    _require_free(edit, name, None)
    row = RecipientRow(
        id=str(uuid.uuid4()),
        name=name,
        name_key=name.lower(),
        comment=comment,
        owner=owner or edit.by,
        properties=dict(properties or {}) or None,
        authentication=authentication,
        ip_allow=networks("ip_allow", ip_allow),
        expires_at=expires_at,
        agreement=agreement,
        applied=False,
        created_at=edit.at,
        created_by=edit.by,
        revision=1,
    )
    edit.keep(row)
    edit.session.add(row)
    touch(edit, row, "Recipient", name, is_new=True)
    edit.session.flush()
    told = recipient(edit.session, name)
    edit.changed("create_recipient", name, None, told.as_json())
    return told


def alter_recipient(
    edit: Edit,
    name: str,
    *,
    new_name: str | Keep = KEEP,
    comment: str | Keep | None = KEEP,
    owner: str | Keep | None = KEEP,
    properties: Mapping[str, str] | Keep | None = KEEP,
    ip_allow: Sequence[str] | Keep | None = KEEP,
    expires_at: datetime | Keep | None = KEEP,
    agreement: str | Keep | None = KEEP,
    revision: int | None = None,
) -> RecipientState:
    """Change what is given; tokens and grants stay. Another agreement has to be accepted with the next link.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: a value cannot be used.
        CatalogConflict: the new name is taken, or the revision is another.
    """
    row = recipient_row(edit.session, name)
    before = recipient(edit.session, name)
    fields = given(comment=comment, owner=owner, expires_at=expires_at, agreement=agreement)
    require_owner(fields.get("owner"))
    require_aware("expires_at", fields.get("expires_at"))
    _require_agreement(fields.get("agreement"))
    if properties is not KEEP:
        require_properties("properties", properties)
        fields["properties"] = dict(properties or {}) or None
    if ip_allow is not KEEP:
        fields["ip_allow"] = networks("ip_allow", ip_allow)
    if new_name is not KEEP:
        if new_name != row.name:
            require_name("recipient", new_name)
        _require_free(edit, new_name, row.key)
        fields |= {"name": new_name, "name_key": new_name.lower()}
    if fields.get("agreement", row.agreement) != row.agreement:
        fields |= {"agreement_accepted_at": None, "agreement_accepted_from": None}
    touch(edit, row, "Recipient", row.name, revision)
    edit.keep(row)
    for key, value in fields.items():
        setattr(row, key, value)
    edit.session.flush()
    told = recipient(edit.session, row.name)
    edit.changed("alter_recipient", before.name, before.as_json(), told.as_json())
    return told


def revoke_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """End all access of a recipient for good; its name and what the audit log says of it stay.

    Raises:
        NotFound: there is no such recipient.
        CatalogConflict: the revision is another.
    """
    row = recipient_row(edit.session, name)
    before = recipient(edit.session, name)
    touch(edit, row, "Recipient", row.name, revision)
    row.revoked_at = row.revoked_at or edit.at
    for model in (TokenRow, ActivationRow):
        open_ones = (model.recipient_key == row.key) & model.revoked_at.is_(None)
        edit.session.execute(update(model).where(open_ones).values(revoked_at=edit.at))
    edit.session.flush()
    told = recipient(edit.session, name)
    edit.changed("revoke_recipient", told.name, before.as_json(), told.as_json())
    return told


def drop_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """Remove a recipient with its tokens, links, policies and grants; its name can be used again.

    Raises:
        NotFound: there is no such recipient.
        CatalogConflict: the revision is another.
    """
    row = recipient_row(edit.session, name)
    told = recipient(edit.session, name)
    touch(edit, row, "Recipient", row.name, revision)
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("drop_recipient", told.name, told.as_json(), None)
    return told


def require_not_revoked(row: RecipientRow) -> None:
    """Refuse to give anything to a recipient that was revoked.

    Raises:
        BadRequest: it was.
    """
    if row.revoked_at is not None:
        raise BadRequest("recipient", row.name, "It was revoked; add it under another name.")


def _require_free(edit: Edit, name: str, key: int | None) -> None:
    taken = edit.session.scalars(
        select(RecipientRow).where(RecipientRow.name_key == name.lower())
    ).one_or_none()
    if taken is not None and taken.key != key:
        raise NameTaken(
            f"there is a recipient {taken.name} already",
            "Choose another name. `lakeshare recipient rotate` gives the recipient a new token.",
        )


def _require_authentication(authentication: str) -> None:
    known = get_args(Authentication)
    if authentication not in known:
        raise BadRequest("authentication", authentication, f"It is one of {', '.join(known)}.")


def _require_agreement(agreement: str | None) -> None:
    if agreement is not None and not 0 < len(agreement.strip()) <= len(agreement) <= LONGEST_AGREEMENT:
        raise BadRequest("agreement", agreement, f"Give a text of 1 to {LONGEST_AGREEMENT} characters.")
