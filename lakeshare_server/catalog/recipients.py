"""Recipients for those who need no more than a name, shares and a token; and the recipient behind a token.

Everything else that can be done to them is in `sharing`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from lakeshare_server.catalog.credentials import Credentials, Reader
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.sharing import (
    create_recipient,
    editing,
    grant,
    issue_token,
    revoke_recipient,
    rotate_token,
    states,
)
from lakeshare_server.catalog.sharing.states import RecipientState

LOCAL_OPERATOR = "command line"


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


class Recipients:
    """The recipients of the catalog, as one person edits them."""

    def __init__(self, catalog: Catalog, by: str = LOCAL_OPERATOR) -> None:
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
            issued = issue_token(edit, name, expires_at=expires_at)
            return _recipient_from_state(
                edit.session, states.get_recipient(edit.session, name)
            ), issued.secret

    def list(self) -> list[Recipient]:
        """All recipients by name, revoked ones too."""
        with self.catalog.reading() as session:
            found = states.list_recipients(session)
            return [
                _recipient_from_state(session, one) for one in sorted(found, key=lambda one: one.name.lower())
            ]

    def by_token(self, token: str) -> Reader | None:
        """The recipient this token is valid for right now."""
        found = Credentials(self.catalog).by_token(token)
        return None if found is None else found.reader

    def rotate(self, name: str, expires_at: datetime | None = None) -> tuple[Recipient, str]:
        """A new token for the recipient; the old ones stop working at once.

        Raises:
            NotFound: no recipient of that name.
            BadRequest: the recipient was revoked.
        """
        with editing(self.catalog, self.by) as edit:
            issued = rotate_token(edit, name, expires_at=expires_at)
            return _recipient_from_state(
                edit.session, states.get_recipient(edit.session, name)
            ), issued.secret

    def revoke(self, name: str) -> Recipient:
        """End all access of the recipient at once; its name and its audit rows stay.

        Raises:
            NotFound: no recipient of that name.
        """
        with editing(self.catalog, self.by) as edit:
            return _recipient_from_state(edit.session, revoke_recipient(edit, name))


def _recipient_from_state(session: Session, state: RecipientState) -> Recipient:
    in_force = [token for token in state.tokens if token.revoked_at is None]
    return Recipient(
        id=state.id,
        name=state.name,
        shares=tuple(one.share for one in states.list_grants_to(session, state.name)),
        comment=state.comment,
        created_at=state.created_at,
        expires_at=in_force[-1].expires_at if in_force else None,
        revoked_at=state.revoked_at,
    )
