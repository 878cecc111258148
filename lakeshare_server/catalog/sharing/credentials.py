"""Operations on credentials of recipients and administrators: tokens, links, policies and admin keys.

A secret is returned once; the catalog keeps its SHA-256. For the errors see the package `sharing`; an operation that
issues a secret also raises BadRequest for a revoked recipient, and for one that authenticates by OIDC.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.credentials import Credentials, Reader, new_token, token_digest
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    ActivationRow,
    AdminKeyRow,
    FederationPolicyRow,
    RecipientRow,
    TokenRow,
)
from lakeshare_server.catalog.sharing.editing import (
    LOCAL_OPERATOR,
    Edit,
    editing,
    require_aware,
    require_name,
    touch_row,
)
from lakeshare_server.catalog.sharing.recipients import (
    create_recipient,
    grant,
    require_not_revoked,
    revoke_recipient,
)
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    IssuedSecret,
    JsonState,
    LinkState,
    RecipientState,
    find_recipient_row,
    get_recipient,
    link_from_row,
    list_grants,
    list_recipients,
    policy_from_row,
    state_from_row,
    token_from_row,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, LinkEnded, NameTaken, NotFound

TokenKind = Literal["bearer", "client_secret"]
IMMEDIATELY = timedelta(0)


def issue_token(
    edit: Edit, name: str, *, expires_at: datetime | None = None, kind: TokenKind | None = None
) -> IssuedSecret:
    """Issues one more token, or client secret, to a recipient; the others stay as they are."""
    row = find_recipient_row(edit.session, name)
    with _recorded(edit, row, "issue_token"):
        return _issue(edit, row, expires_at, kind)


def rotate_token(
    edit: Edit,
    name: str,
    *,
    keep_old_for: timedelta = IMMEDIATELY,
    expires_at: datetime | None = None,
    kind: TokenKind | None = None,
) -> IssuedSecret:
    """Issues a new token to a recipient; the old ones end after a grace time, at once by default.

    A token that ends before its grace time still does.
    """
    row = find_recipient_row(edit.session, name)
    with _recorded(edit, row, "rotate_token"):
        _shorten(edit, row, keep_old_for)
        return _issue(edit, row, expires_at, kind)


def shorten_tokens(edit: Edit, name: str, *, existing_expire_in: timedelta) -> RecipientState:
    """Ends all tokens of a recipient within a time; none becomes longer."""
    row = find_recipient_row(edit.session, name)
    with _recorded(edit, row, "shorten_tokens"):
        _shorten(edit, row, existing_expire_in)
    return get_recipient(edit.session, row.name)


def revoke_token(edit: Edit, name: str, token_id: str) -> RecipientState:
    """Ends one token of a recipient at once."""
    row = find_recipient_row(edit.session, name)
    own = select(TokenRow).where(TokenRow.recipient_key == row.key, TokenRow.id == token_id)
    token = edit.session.scalars(own).one_or_none()
    if token is None:
        raise NotFound("Token", token_id)
    with _recorded(edit, row, "revoke_token"):
        token.revoked_at = token.revoked_at or edit.at
        edit.session.flush()
    return get_recipient(edit.session, row.name)


def _issue(
    edit: Edit, row: RecipientRow, expires_at: datetime | None, kind: TokenKind | None
) -> IssuedSecret:
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
    row.activated_at = row.activated_at or edit.at
    edit.add(token)
    return IssuedSecret(token_from_row(token), secret)


def _shorten(edit: Edit, row: RecipientRow, within: timedelta) -> None:
    if within < IMMEDIATELY:
        raise BadRequest("keep_old_for", str(within), "Give a time of zero or more.")
    own = select(TokenRow).where(TokenRow.recipient_key == row.key, TokenRow.revoked_at.is_(None))
    end = edit.at + within
    for token in edit.session.scalars(own):
        token.superseded_at = token.superseded_at or edit.at
        token.expires_at = end if token.expires_at is None else min(token.expires_at, end)
        if within == IMMEDIATELY:
            token.revoked_at = edit.at
    edit.session.flush()


@contextmanager
def _recorded(edit: Edit, row: RecipientRow, action: str) -> Iterator[None]:
    """Counts and records the change of a recipient that its block makes."""
    before = get_recipient(edit.session, row.name)
    touch_row(edit, row)
    yield
    edit.changed(action, row.name, before, get_recipient(edit.session, row.name))


DEFAULT_LINK_LIFE = timedelta(hours=72)
MAX_LINK_LIFE = timedelta(days=365)


def create_link(
    edit: Edit,
    name: str,
    *,
    link_life: timedelta = DEFAULT_LINK_LIFE,
    token_expires_at: datetime | None = None,
) -> tuple[LinkState, str]:
    """Creates an activation link and returns it with its code; unused links of the recipient end."""
    row = find_recipient_row(edit.session, name)
    require_not_revoked(row)
    require_aware("token_expires_at", token_expires_at)
    if row.authentication == "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, "It gets in with tokens of its own issuer and needs no link.")
    if not timedelta(0) < link_life <= MAX_LINK_LIFE:
        raise BadRequest("link_life", str(link_life), f"Give a time of up to {MAX_LINK_LIFE.days} days.")
    touch_row(edit, row)
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
    edit.add(link)
    return edit.changed("invite", row.name, None, link_from_row(link, row.name)), code


def find_link(catalog: Catalog, code: str) -> tuple[LinkState, RecipientState]:
    """Returns the open link with this code, and its recipient; raises NotFound and LinkEnded."""
    with catalog.reading() as session:
        link, row = _find_by_code(session, code)
        state = link_from_row(link, row.name)
        _require_open(state, datetime.now(UTC))
        return state, get_recipient(session, row.name)


def redeem_link(
    edit: Edit, code: str, *, from_address: str | None, accepts_agreement: bool = False
) -> tuple[RecipientState, IssuedSecret]:
    """Uses a link up, and returns the recipient with a new token or client secret.

    Raises NotFound and LinkEnded, and BadRequest if the recipient has an agreement to accept.
    """
    link, row = _find_by_code(edit.session, code)
    _require_open(link_from_row(link, row.name), edit.at)
    before = get_recipient(edit.session, row.name)
    if row.agreement is not None and row.agreement_accepted_at is None:
        if not accepts_agreement:
            hint = "Read the agreement and accept it to get the profile."
            raise BadRequest("accepts_agreement", False, hint)
        row.agreement_accepted_at, row.agreement_accepted_from = edit.at, from_address
    touch_row(edit, row)
    link.used_at, link.used_from = edit.at, from_address
    issued = _issue(edit, row, link.token_expires_at, None)
    return edit.changed("redeem_link", row.name, before, get_recipient(edit.session, row.name)), issued


def _find_by_code(session: Session, code: str) -> tuple[ActivationRow, RecipientRow]:
    pair = select(ActivationRow, RecipientRow).join(
        RecipientRow, RecipientRow.key == ActivationRow.recipient_key
    )
    rows = session.execute(pair.where(ActivationRow.digest == token_digest(code))).one_or_none()
    if rows is None:
        raise NotFound("Activation link", "of this code")
    return rows


def _require_open(link: LinkState, now: datetime) -> None:
    if link.used_at is not None:
        raise LinkEnded("used", link.used_at, link.used_from)
    if link.revoked_at is not None:
        raise LinkEnded("replaced or revoked", link.revoked_at)
    if link.expires_at <= now:
        raise LinkEnded("expired", link.expires_at)


def put_policy(edit: Edit, recipient: str, new: FederationPolicy) -> FederationPolicy:
    """Adds a policy to a recipient, or replaces the policy of this name."""
    _require_usable(new)
    row = find_recipient_row(edit.session, recipient)
    require_not_revoked(row)
    if row.authentication != "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, f"It gets in by {row.authentication}; add one USING OIDC.")
    _require_unambiguous(edit, row, new)
    policy = _find_policy(edit, row, new.name)
    before = None if policy is None else policy_from_row(policy)
    if policy is None:
        policy = FederationPolicyRow(
            id=str(uuid.uuid4()), recipient_key=row.key, name_key=new.name.lower(), created_at=edit.at
        )
        edit.session.add(policy)
    else:
        policy.updated_at = edit.at
    policy.name, policy.comment = new.name, new.comment
    policy.issuer, policy.audiences = new.issuer, list(new.audiences)
    policy.subject_claim, policy.subject = new.subject_claim, new.subject
    row.activated_at = row.activated_at or edit.at
    touch_row(edit, row)
    edit.session.flush()
    return edit.changed("put_policy", row.name, before, policy_from_row(policy))


def drop_policy(edit: Edit, recipient: str, name: str) -> FederationPolicy:
    """Removes a policy of a recipient."""
    row = find_recipient_row(edit.session, recipient)
    policy = _find_policy(edit, row, name)
    if policy is None:
        raise NotFound("Federation policy", name)
    touch_row(edit, row)
    return edit.delete("drop_policy", row.name, policy, policy_from_row(policy))


def _find_policy(edit: Edit, row: RecipientRow, name: str) -> FederationPolicyRow | None:
    same = select(FederationPolicyRow).filter_by(recipient_key=row.key, name_key=name.lower())
    return edit.session.scalars(same).one_or_none()


def _require_unambiguous(edit: Edit, row: RecipientRow, policy: FederationPolicy) -> None:
    same = (
        select(RecipientRow.name, FederationPolicyRow.audiences)
        .join(RecipientRow, RecipientRow.key == FederationPolicyRow.recipient_key)
        .where(
            FederationPolicyRow.issuer == policy.issuer,
            FederationPolicyRow.subject_claim == policy.subject_claim,
            FederationPolicyRow.subject == policy.subject,
            FederationPolicyRow.recipient_key != row.key,
        )
    )
    for name, audiences in edit.session.execute(same):
        if set(audiences) & set(policy.audiences):
            raise CatalogConflict(
                f"recipient {name} has the same issuer, {policy.subject_claim}, subject and audience",
                "A token must be one recipient's only; give another subject or audience.",
            )


def _require_usable(policy: FederationPolicy) -> None:
    require_name("policy", policy.name)
    parsed = urlsplit(policy.issuer)
    if parsed.scheme not in ("https", "http") or not parsed.hostname or parsed.query or parsed.fragment:
        raise BadRequest("issuer", policy.issuer, "Give the issuer's URL as its tokens say it in `iss`.")
    for field, value in (("subject_claim", policy.subject_claim), ("subject", policy.subject)):
        if not 0 < len(value) <= 255 or not value.isprintable():
            raise BadRequest(field, value, "Give a text of 1 to 255 printable characters.")
    if not policy.audiences or not all(0 < len(audience) <= 255 for audience in policy.audiences):
        hint = "Name at least one audience, each of 1 to 255 characters."
        raise BadRequest("audiences", list(policy.audiences), hint)


Role = Literal["owner", "steward", "auditor"]
# Identifies a key for people and secret scanners that find it.
PREFIX = "lakeshare-admin-"
FIRST_KEY_NAME = "first"
FIRST_BY = "lakeshare serve"
NAME = re.compile(r"[^\x00-\x20\x7f:/]{1,200}")


@dataclass(frozen=True)
class AdminKey(JsonState):
    """An administrator's key, without the key itself."""

    id: str
    name: str
    role: Role
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Whether it gives access at that moment."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)

    def as_json(self) -> dict[str, Any]:
        """Its name, role and ends, for the audit log."""
        named = super().as_json()
        return {
            field: named[field] for field in ("name", "role", "expires_at", "revoked_at") if field in named
        }


def add_admin_key(
    edit: Edit, name: str, role: str, *, expires_at: datetime | None = None
) -> tuple[AdminKey, str]:
    """Creates a key; returns it with the key itself, which is not kept."""
    if not NAME.fullmatch(name):
        hint = "Use 1 to 200 characters without space, slash or colon: the audit log names people by them."
        raise BadRequest("name", name, hint)
    if role not in get_args(Role):
        raise BadRequest("role", role, f"It is one of {', '.join(get_args(Role))}.")
    require_aware("expires_at", expires_at)
    if expires_at is not None and expires_at <= edit.at:
        raise BadRequest("expires_at", expires_at.isoformat(), "Give a time that is still to come.")
    if _find_key_row(edit.session, name) is not None:
        hint = "Choose another name, like one with a date: the audit log has the old one for the old key."
        raise NameTaken(f"there is, or was, an administrator's key {name}", hint)
    key = PREFIX + new_token()
    row = AdminKeyRow(
        id=str(uuid.uuid4()),
        name=name,
        role=role,
        digest=token_digest(key),
        created_at=edit.at,
        created_by=edit.by,
        expires_at=expires_at,
    )
    edit.add(row)
    return edit.changed("add_admin_key", name, None, _admin_key_from_row(row)), key


def revoke_admin_key(edit: Edit, name: str) -> AdminKey:
    """Ends a key at once; its name stays taken."""
    row = _find_key_row(edit.session, name)
    if row is None:
        raise NotFound("Administrator's key", name)
    before = _admin_key_from_row(row)
    edit.update(row, {"revoked_at": row.revoked_at or edit.at})
    return edit.changed("revoke_admin_key", name, before, _admin_key_from_row(row))


def read_admin_keys(session: Session) -> list[AdminKey]:
    """Lists all keys in the order of their creation, revoked ones too."""
    return [
        _admin_key_from_row(row) for row in session.scalars(select(AdminKeyRow).order_by(AdminKeyRow.key))
    ]


def find_admin_key(session: Session, key: str) -> AdminKey | None:
    """Returns the state of a key that is valid now."""
    # Found by a digest of 256 random bits: the time that this takes reveals nothing about another key.
    row = session.scalars(select(AdminKeyRow).where(AdminKeyRow.digest == token_digest(key))).one_or_none()
    state = None if row is None else _admin_key_from_row(row)
    return state if state is not None and state.is_valid(datetime.now(UTC)) else None


def create_first_admin_key(catalog: Catalog) -> str | None:
    """Creates the first key of a catalog, an owner's; returns None if the catalog has, or had, any key."""
    any_key = select(AdminKeyRow.key).limit(1)
    with catalog.reading() as session:
        if session.scalar(any_key) is not None:
            return None
    with editing(catalog, FIRST_BY) as edit:
        # Writers take turns: of two servers that start at once, the second finds the key of the first.
        is_first = edit.session.scalar(any_key) is None
        return add_admin_key(edit, FIRST_KEY_NAME, "owner")[1] if is_first else None


def _find_key_row(session: Session, name: str) -> AdminKeyRow | None:
    return session.scalars(select(AdminKeyRow).where(AdminKeyRow.name == name)).one_or_none()


def _admin_key_from_row(row: AdminKeyRow) -> AdminKey:
    return state_from_row(AdminKey, row)


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
    """The recipients of the catalog, for callers that need a name, shares and a token only."""

    def __init__(self, catalog: Catalog, by: str = LOCAL_OPERATOR) -> None:
        self.catalog, self.by = catalog, by

    def add(
        self, name: str, shares: Sequence[str], expires_at: datetime | None = None, comment: str | None = None
    ) -> tuple[Recipient, str]:
        """Creates a recipient with grants on the shares; returns it with its token, which is not kept."""
        with editing(self.catalog, self.by) as edit:
            create_recipient(edit, name, comment=comment)
            for share in {share.lower(): share for share in shares}.values():
                grant(edit, share, recipient=name)
            secret = issue_token(edit, name, expires_at=expires_at).secret
            return _recipient_from_state(edit.session, get_recipient(edit.session, name)), secret

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
