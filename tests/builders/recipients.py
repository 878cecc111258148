"""Recipients by a name, shares and a token, for tests that need no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.orm import Session

from lakeshare_server.catalog import Catalog, Credentials, Reader
from lakeshare_server.catalog.credentials import issue_token, rotate_token, token_digest
from lakeshare_server.catalog.models import TokenRow
from lakeshare_server.catalog.sharing import (
    LOCAL_OPERATOR,
    Edit,
    create_recipient,
    editing,
    grant,
    revoke_recipient,
)
from lakeshare_server.catalog.states import RecipientState, get_recipient, list_grants, list_recipients


@dataclass(frozen=True)
class Recipient:
    """A recipient and the names of its shares; `expires_at` is that of the newest token that is not revoked."""

    id: str
    name: str
    shares: tuple[str, ...]
    comment: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class Recipients:
    """The recipients of the catalog."""

    def __init__(self, catalog: Catalog, by: str = LOCAL_OPERATOR) -> None:
        self.catalog, self.by = catalog, by

    def add(
        self, name: str, shares: Sequence[str], expires_at: datetime | None = None, comment: str | None = None
    ) -> tuple[Recipient, str]:
        """Creates a recipient with grants on the shares; returns it with its token, which is not kept."""
        with editing(self.catalog, self.by) as edit:
            secret = _add(edit, name, shares, expires_at, comment)
            return _recipient_from_state(edit.session, get_recipient(edit.session, name)), secret

    def add_token(
        self, name: str, shares: Sequence[str], expires_at: datetime | None = None, comment: str | None = None
    ) -> str:
        """The same; returns the token only. Reading the recipient takes a quarter of the time."""
        with editing(self.catalog, self.by) as edit:
            return _add(edit, name, shares, expires_at, comment)

    def list(self) -> list[Recipient]:
        """Lists all recipients by name, revoked ones too."""
        with self.catalog.reading() as session:
            states = sorted(list_recipients(session), key=lambda state: state.name.lower())
            return [_recipient_from_state(session, state) for state in states]

    def by_token(self, token: str) -> Reader | None:
        """The recipient for which this token is valid now."""
        access = Credentials(self.catalog).by_token(token)
        return None if access is None else access.reader

    def rotate(self, name: str, expires_at: datetime | None = None) -> tuple[Recipient, str]:
        """Issues a new token; the old ones end at once."""
        with editing(self.catalog, self.by) as edit:
            secret = rotate_token(edit, name, expires_at=expires_at).secret
            return _recipient_from_state(edit.session, get_recipient(edit.session, name)), secret

    def revoke(self, name: str) -> Recipient:
        """Ends all access of a recipient at once; its name and its audit events stay."""
        with editing(self.catalog, self.by) as edit:
            return _recipient_from_state(edit.session, revoke_recipient(edit, name))


def expire_token(edit: Edit, token: str) -> None:
    """Ends a token a day ago; no operation does."""
    own = TokenRow.digest == token_digest(token)
    edit.session.execute(update(TokenRow).where(own).values(expires_at=edit.at - timedelta(days=1)))


def _add(
    edit: Edit, name: str, shares: Sequence[str], expires_at: datetime | None, comment: str | None
) -> str:
    create_recipient(edit, name, comment=comment)
    for share in {share.lower(): share for share in shares}.values():
        grant(edit, share, recipient=name)
    return issue_token(edit, name, expires_at=expires_at).secret


def _recipient_from_state(session: Session, state: RecipientState) -> Recipient:
    ends = [token.expires_at for token in state.tokens if token.revoked_at is None]
    return Recipient(
        id=state.id,
        name=state.name,
        shares=tuple(grant.share for grant in list_grants(session, recipient=state.name)),
        comment=state.comment,
        created_at=state.created_at,
        expires_at=ends[-1] if ends else None,
        revoked_at=state.revoked_at,
    )
