"""Operations on bearer tokens and client secrets. The secret is shown once; the catalog keeps its SHA-256."""

import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from sqlalchemy import select

from lakeshare_server.catalog.models import RecipientRow, TokenRow
from lakeshare_server.catalog.sharing.editing import Edit, require_aware, touch
from lakeshare_server.catalog.sharing.look import recipient, recipient_row
from lakeshare_server.catalog.sharing.recipients import require_not_revoked
from lakeshare_server.catalog.sharing.states import Given, RecipientState
from lakeshare_server.catalog.sharing.told import told_token
from lakeshare_server.catalog.tokens import new_token, token_digest
from lakeshare_server.errors import BadRequest, NotFound

TokenKind = Literal["bearer", "client_secret"]
AT_ONCE = timedelta(0)

Found = TypeVar("Found")


def issue_token(
    edit: Edit, name: str, *, expires_at: datetime | None = None, kind: TokenKind | None = None
) -> Given:
    """Give a recipient one more token, or client secret; those it has stay as they are.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: it was revoked, gets in by OIDC, or the end is past or has no zone.
    """
    row = recipient_row(edit.session, name)
    return _recorded(edit, row, "issue_token", lambda: issue(edit, row, expires_at, kind))


def rotate_token(
    edit: Edit,
    name: str,
    *,
    keep_old_for: timedelta = AT_ONCE,
    expires_at: datetime | None = None,
    kind: TokenKind | None = None,
) -> Given:
    """Give a recipient a new token; the old ones end after a grace time, at once by default.

    The grace of a token can only shrink: one that ends sooner still does.

    Raises:
        NotFound, BadRequest: as `issue_token`, or the grace is negative.
    """
    row = recipient_row(edit.session, name)

    def rotated() -> Given:
        _shorten(edit, row, keep_old_for)
        return issue(edit, row, expires_at, kind)

    return _recorded(edit, row, "rotate_token", rotated)


def shorten_tokens(edit: Edit, name: str, *, existing_expire_in: timedelta) -> RecipientState:
    """Let all tokens of a recipient end within a time; none gets longer by it.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: the time is negative.
    """
    row = recipient_row(edit.session, name)
    _recorded(edit, row, "shorten_tokens", lambda: _shorten(edit, row, existing_expire_in))
    return recipient(edit.session, row.name)


def revoke_token(edit: Edit, name: str, token_id: str) -> RecipientState:
    """End one token of a recipient at once.

    Raises:
        NotFound: there is no such recipient, or it has no such token.
    """
    row = recipient_row(edit.session, name)
    own = select(TokenRow).where(TokenRow.recipient_key == row.key, TokenRow.id == token_id)
    token = edit.session.scalars(own).one_or_none()
    if token is None:
        raise NotFound("Token", token_id)

    def revoked() -> None:
        token.revoked_at = token.revoked_at or edit.at
        edit.session.flush()

    _recorded(edit, row, "revoke_token", revoked)
    return recipient(edit.session, row.name)


def issue(edit: Edit, row: RecipientRow, expires_at: datetime | None, kind: TokenKind | None) -> Given:
    """A token for a recipient's row, within an operation that tells of it.

    Raises:
        BadRequest: as `issue_token`.
    """
    require_not_revoked(row)
    require_aware("expires_at", expires_at)
    if row.authentication == "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, "It gets in with tokens of its own issuer; give it a policy.")
    secret = new_token()
    token = TokenRow(
        id=str(uuid.uuid4()),
        recipient_key=row.key,
        kind=kind or ("bearer" if row.authentication == "TOKEN" else "client_secret"),
        digest=token_digest(secret),
        created_at=edit.at,
        created_by=edit.by,
        expires_at=expires_at,
    )
    edit.session.add(token)
    row.activated_at = row.activated_at or edit.at
    edit.session.flush()
    return Given(told_token(token), secret)


def _shorten(edit: Edit, row: RecipientRow, within: timedelta) -> None:
    if within < AT_ONCE:
        raise BadRequest("keep_old_for", str(within), "Give a time of zero or more.")
    own = select(TokenRow).where(TokenRow.recipient_key == row.key, TokenRow.revoked_at.is_(None))
    end = edit.at + within
    for token in edit.session.scalars(own):
        token.superseded_at = token.superseded_at or edit.at
        token.expires_at = end if token.expires_at is None else min(token.expires_at, end)
        if within == AT_ONCE:
            token.revoked_at = edit.at
    edit.session.flush()


def _recorded(edit: Edit, row: RecipientRow, action: str, change: Callable[[], Found]) -> Found:
    before = recipient(edit.session, row.name).as_json()
    touch(edit, row, "Recipient", row.name)
    found = change()
    edit.changed(action, row.name, before, recipient(edit.session, row.name).as_json())
    return found
