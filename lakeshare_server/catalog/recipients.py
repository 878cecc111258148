"""Recipients for those who need no more than a name, shares and a token; and the recipient behind a token.

Everything else that can be done to them is in `sharing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import RecipientRow, TokenRow
from lakeshare_server.catalog.sharing import (
    create_recipient,
    editing,
    grant,
    issue_token,
    look,
    revoke_recipient,
    rotate_token,
)
from lakeshare_server.catalog.sharing.states import RecipientState
from lakeshare_server.catalog.tokens import token_digest

BY_HAND = "command line"


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
    """The recipients of the catalog, as one person edits them."""

    def __init__(self, catalog: Catalog, by: str = BY_HAND) -> None:
        self.catalog, self.by = catalog, by

    def add(
        self, name: str, shares: Sequence[str], expires_at: datetime | None = None, comment: str | None = None
    ) -> tuple[Recipient, str]:
        """Make a recipient with grants on the shares; returns it with its token, shown only here.

        Raises:
            BadRequest: the name is unusable.
            CatalogConflict: the name is taken.
            NotFound: one of the shares does not exist.
        """
        with editing(self.catalog, self.by) as edit:
            create_recipient(edit, name, comment=comment)
            for share in {share.lower(): share for share in shares}.values():
                grant(edit, share, recipient=name)
            given = issue_token(edit, name, expires_at=expires_at)
            return _recipient(edit.session, look.recipient(edit.session, name)), given.secret

    def list(self) -> list[Recipient]:
        """All recipients by name, revoked ones too."""
        with self.catalog.reading() as session:
            found = look.recipients(session)
            return [_recipient(session, one) for one in sorted(found, key=lambda one: one.name.lower())]

    def by_token(self, token: str) -> Reader | None:
        """The recipient this token is valid for right now."""
        # Looked up by a digest of 256 random bits: how long it takes tells nothing about another token.
        known = select(RecipientRow.id, RecipientRow.name, TokenRow.expires_at).join(
            TokenRow, TokenRow.recipient_key == RecipientRow.key
        )
        valid = known.where(
            TokenRow.digest == token_digest(token),
            TokenRow.kind == "bearer",
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
        with editing(self.catalog, self.by) as edit:
            given = rotate_token(edit, name, expires_at=expires_at)
            return _recipient(edit.session, look.recipient(edit.session, name)), given.secret

    def revoke(self, name: str) -> Recipient:
        """End all access of the recipient at once; its name and its audit rows stay.

        Raises:
            NotFound: no recipient of that name.
        """
        with editing(self.catalog, self.by) as edit:
            return _recipient(edit.session, revoke_recipient(edit, name))


def _recipient(session: Session, told: RecipientState) -> Recipient:
    in_force = [token for token in told.tokens if token.revoked_at is None]
    return Recipient(
        id=told.id,
        name=told.name,
        shares=tuple(one.share for one in look.grants_to(session, told.name)),
        comment=told.comment,
        created_at=told.created_at,
        expires_at=in_force[-1].expires_at if in_force else None,
        revoked_at=told.revoked_at,
    )
