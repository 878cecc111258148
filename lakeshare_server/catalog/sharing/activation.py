"""Activation links: a recipient's way to its profile, once. Looking at a link does not use it up."""

import uuid
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import ActivationRow, RecipientRow
from lakeshare_server.catalog.sharing.editing import Edit, require_aware, touch
from lakeshare_server.catalog.sharing.look import recipient, recipient_row
from lakeshare_server.catalog.sharing.recipients import require_not_revoked
from lakeshare_server.catalog.sharing.states import Given, LinkState, RecipientState
from lakeshare_server.catalog.sharing.tokens import issue
from lakeshare_server.catalog.sharing.told import told_link
from lakeshare_server.catalog.tokens import new_token, token_digest
from lakeshare_server.errors import BadRequest, LinkEnded, NotFound

LINK_LIFE = timedelta(hours=72)
LONGEST_LIFE = timedelta(days=365)


def invite(
    edit: Edit, name: str, *, link_life: timedelta = LINK_LIFE, token_expires_at: datetime | None = None
) -> tuple[LinkState, str]:
    """Make a link for a recipient and tell its code, here only; links that were not used yet end.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: it was revoked, gets in by OIDC, or a time cannot be used.
    """
    row = recipient_row(edit.session, name)
    require_not_revoked(row)
    require_aware("token_expires_at", token_expires_at)
    if row.authentication == "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, "It gets in with tokens of its own issuer and needs no link.")
    if not timedelta(0) < link_life <= LONGEST_LIFE:
        raise BadRequest("link_life", str(link_life), f"Give a time of up to {LONGEST_LIFE.days} days.")
    touch(edit, row, "Recipient", row.name)
    unused = (ActivationRow.recipient_key == row.key) & ActivationRow.used_at.is_(None)
    still_open = unused & ActivationRow.revoked_at.is_(None)
    edit.session.execute(update(ActivationRow).where(still_open).values(revoked_at=edit.at))
    code = new_token()
    link = ActivationRow(
        id=str(uuid.uuid4()),
        recipient_key=row.key,
        digest=token_digest(code),
        token_expires_at=token_expires_at,
        created_at=edit.at,
        created_by=edit.by,
        expires_at=edit.at + link_life,
    )
    edit.session.add(link)
    edit.session.flush()
    told = told_link(link, row.name)
    edit.changed("invite", row.name, None, told.as_json())
    return told, code


def look_at_link(catalog: Catalog, code: str) -> tuple[LinkState, RecipientState]:
    """The link with this code and its recipient; open to be redeemed.

    Raises:
        NotFound: there is no such link.
        LinkEnded: it was used, has expired, or was replaced; says when.
    """
    with catalog.reading() as session:
        link, row = _found(session, code)
        told = told_link(link, row.name)
        _require_open(told, datetime.now(UTC))
        return told, recipient(session, row.name)


def redeem(
    edit: Edit, code: str, *, from_address: str | None, accepts_agreement: bool = False
) -> tuple[RecipientState, Given]:
    """Use a link up: the recipient with a new token, or client secret, that is shown here only.

    Raises:
        NotFound: there is no such link.
        LinkEnded: it was used, has expired, or was replaced; says when.
        BadRequest: the recipient has an agreement to accept.
    """
    link, row = _found(edit.session, code)
    _require_open(told_link(link, row.name), edit.at)
    before = recipient(edit.session, row.name)
    if row.agreement is not None and row.agreement_accepted_at is None:
        if not accepts_agreement:
            raise BadRequest(
                "accepts_agreement", False, "Read the agreement and accept it to get the profile."
            )
        row.agreement_accepted_at, row.agreement_accepted_from = edit.at, from_address
    touch(edit, row, "Recipient", row.name)
    link.used_at, link.used_from = edit.at, from_address
    given = issue(edit, row, link.token_expires_at, None)
    told = recipient(edit.session, row.name)
    edit.changed("redeem_link", row.name, before.as_json(), told.as_json())
    return told, given


def _found(session: Session, code: str) -> tuple[ActivationRow, RecipientRow]:
    # By a digest of 256 random bits, as tokens are.
    pair = select(ActivationRow, RecipientRow).join(
        RecipientRow, RecipientRow.key == ActivationRow.recipient_key
    )
    found = session.execute(pair.where(ActivationRow.digest == token_digest(code))).one_or_none()
    if found is None:
        raise NotFound("Activation link", "of this code")
    link, row = found
    return link, row


def _require_open(link: LinkState, now: datetime) -> None:
    if link.used_at is not None:
        raise LinkEnded("used", link.used_at, link.used_from)
    if link.revoked_at is not None:
        raise LinkEnded("replaced or revoked", link.revoked_at)
    if link.expires_at <= now:
        raise LinkEnded("expired", link.expires_at)
