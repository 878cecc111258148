"""Recipients, their bearer tokens and what they were granted.

A token is shown once, when it is made; the catalog keeps its SHA-256.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import GrantRow, RecipientRow, ShareRow, TokenRow
from lakeshare_server.catalog.shares import NAME
from lakeshare_server.catalog.tokens import new_token, token_digest
from lakeshare_server.errors import BadRequest, NotFound


@dataclass(frozen=True)
class Recipient:
    """Somebody who may read shares; `expires_at` is that of the token in force."""

    id: str
    name: str
    shares: tuple[str, ...]
    comment: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True)
class Reader:
    """The recipient behind a valid token, and when that ends: as much as every request needs."""

    id: str
    name: str
    expires_at: datetime | None = field(default=None, compare=False)

    def is_valid(self) -> bool:
        """Whether its token, found valid before, has not ended since."""
        return self.expires_at is None or self.expires_at > datetime.now(UTC)


class Recipients:
    """The recipients of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def add(
        self, name: str, shares: Sequence[str], expires_at: datetime | None = None, comment: str | None = None
    ) -> tuple[Recipient, str]:
        """Make a recipient with grants on the shares; returns it with its token, shown only here.

        Raises:
            BadRequest: the name is taken or unusable.
            NotFound: one of the shares does not exist.
        """
        if not NAME.fullmatch(name):
            raise BadRequest("recipient", name, "Use 1 to 255 characters without space, slash or dot.")
        with self.catalog.writing() as session:
            if _row(session, name) is not None:
                hint = "The name is taken. `lakeshare recipient rotate` gives the recipient a new token."
                raise BadRequest("recipient", name, hint)
            row = RecipientRow(
                id=str(uuid.uuid4()),
                name=name,
                name_key=name.lower(),
                comment=comment,
                created_at=datetime.now(UTC),
            )
            session.add(row)
            session.flush()
            _grant(session, row, shares)
            token = _issue(session, row, expires_at)
            return _recipient(session, row), token

    def list(self) -> list[Recipient]:
        """All recipients by name, revoked ones too."""
        with self.catalog.reading() as session:
            rows = session.scalars(select(RecipientRow).order_by(RecipientRow.name_key))
            return [_recipient(session, row) for row in rows]

    def by_token(self, token: str) -> Reader | None:
        """The recipient this token is valid for right now."""
        # Looked up by a digest of 256 random bits: how long it takes tells nothing about another token.
        known = select(RecipientRow.id, RecipientRow.name, TokenRow.expires_at).join(
            TokenRow, TokenRow.recipient_key == RecipientRow.key
        )
        valid = known.where(
            TokenRow.digest == token_digest(token),
            TokenRow.expires_at.is_(None) | (TokenRow.expires_at > datetime.now(UTC)),
            TokenRow.revoked_at.is_(None),
            RecipientRow.revoked_at.is_(None),
        )
        with self.catalog.reading() as session:
            found = session.execute(valid).one_or_none()
        return None if found is None else Reader(*found)

    def rotate(self, name: str, expires_at: datetime | None = None) -> tuple[Recipient, str]:
        """A new token for the recipient; the old ones stop working at once.

        Raises:
            NotFound: no recipient of that name.
            BadRequest: the recipient was revoked.
        """
        with self.catalog.writing() as session:
            row = _existing(session, name)
            if row.revoked_at is not None:
                raise BadRequest("recipient", name, "It was revoked; add it under another name.")
            _revoke_tokens(session, row)
            token = _issue(session, row, expires_at)
            return _recipient(session, row), token

    def revoke(self, name: str) -> Recipient:
        """End all access of the recipient at once; its name and its audit rows stay.

        Raises:
            NotFound: no recipient of that name.
        """
        with self.catalog.writing() as session:
            row = _existing(session, name)
            row.revoked_at = row.revoked_at or datetime.now(UTC)
            _revoke_tokens(session, row)
            return _recipient(session, row)


def _row(session: Session, name: str) -> RecipientRow | None:
    return session.scalars(select(RecipientRow).where(RecipientRow.name_key == name.lower())).one_or_none()


def _existing(session: Session, name: str) -> RecipientRow:
    row = _row(session, name)
    if row is None:
        raise NotFound("Recipient", name)
    return row


def _grant(session: Session, recipient: RecipientRow, shares: Sequence[str]) -> None:
    for name in dict.fromkeys(share.lower() for share in shares):
        share = session.scalars(select(ShareRow).where(ShareRow.name_key == name)).one_or_none()
        if share is None:
            raise NotFound("Share", name)
        now = datetime.now(UTC)
        session.add(GrantRow(recipient_key=recipient.key, share_key=share.key, created_at=now))
    session.flush()


def _issue(session: Session, recipient: RecipientRow, expires_at: datetime | None) -> str:
    if expires_at is not None and expires_at.tzinfo is None:
        raise BadRequest("expires_at", expires_at.isoformat(), "Give a time with its zone.")
    token = new_token()
    session.add(
        TokenRow(
            recipient_key=recipient.key,
            id=str(uuid.uuid4()),
            digest=token_digest(token),
            created_at=datetime.now(UTC),
            expires_at=expires_at,
        )
    )
    session.flush()
    return token


def _revoke_tokens(session: Session, recipient: RecipientRow) -> None:
    valid = (TokenRow.recipient_key == recipient.key) & TokenRow.revoked_at.is_(None)
    session.execute(update(TokenRow).where(valid).values(revoked_at=datetime.now(UTC)))


def _recipient(session: Session, row: RecipientRow) -> Recipient:
    granted = select(ShareRow.name).join(GrantRow, GrantRow.share_key == ShareRow.key)
    shares = session.scalars(granted.where(GrantRow.recipient_key == row.key).order_by(ShareRow.key))
    in_force = (TokenRow.recipient_key == row.key) & TokenRow.revoked_at.is_(None)
    token = session.scalars(
        select(TokenRow).where(in_force).order_by(TokenRow.key.desc()).limit(1)
    ).one_or_none()
    return Recipient(
        id=row.id,
        name=row.name,
        shares=tuple(shares),
        comment=row.comment,
        created_at=row.created_at,
        expires_at=token.expires_at if token else None,
        revoked_at=row.revoked_at,
    )
