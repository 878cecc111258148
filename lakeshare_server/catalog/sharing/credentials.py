"""Operations on bearer tokens and client secrets. The secret is shown once; the catalog keeps its SHA-256."""

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar, cast, get_args
from urllib.parse import urlsplit

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.credentials import new_token, token_digest
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    ActivationRow,
    AdminKeyRow,
    FederationPolicyRow,
    RecipientRow,
    TokenRow,
)
from lakeshare_server.catalog.names import require_name
from lakeshare_server.catalog.sharing.editing import Edit, editing, require_aware, touch
from lakeshare_server.catalog.sharing.recipients import require_not_revoked
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Given,
    LinkState,
    RecipientState,
    recipient,
    recipient_row,
    told_link,
    told_policy,
    told_token,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, LinkEnded, NameTaken, NotFound

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


def put_policy(edit: Edit, recipient: str, wanted: FederationPolicy) -> FederationPolicy:
    """Give a recipient a policy, or change the one of this name.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: a value cannot be used, or the recipient gets in otherwise.
        CatalogConflict: another recipient has the same issuer, claim and subject.
    """
    _require_usable(wanted)
    row = recipient_row(edit.session, recipient)
    require_not_revoked(row)
    if row.authentication != "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, f"It gets in by {row.authentication}; add one USING OIDC.")
    _require_unambiguous(edit, row, wanted)
    policy = _policy(edit, row, wanted.name)
    before = None if policy is None else told_policy(policy).as_json()
    if policy is None:
        policy = FederationPolicyRow(
            id=str(uuid.uuid4()), recipient_key=row.key, name_key=wanted.name.lower(), created_at=edit.at
        )
        edit.session.add(policy)
    else:
        policy.updated_at = edit.at
    policy.name, policy.comment = wanted.name, wanted.comment
    policy.issuer, policy.audiences = wanted.issuer, list(wanted.audiences)
    policy.subject_claim, policy.subject = wanted.subject_claim, wanted.subject
    row.activated_at = row.activated_at or edit.at
    touch(edit, row, "Recipient", row.name)
    edit.session.flush()
    told = told_policy(policy)
    edit.changed("put_policy", row.name, before, told.as_json())
    return told


def drop_policy(edit: Edit, recipient: str, name: str) -> FederationPolicy:
    """Take a policy from a recipient.

    Raises:
        NotFound: there is no such recipient, or it has no such policy.
    """
    row = recipient_row(edit.session, recipient)
    policy = _policy(edit, row, name)
    if policy is None:
        raise NotFound("Federation policy", name)
    told = told_policy(policy)
    touch(edit, row, "Recipient", row.name)
    edit.session.delete(policy)
    edit.session.flush()
    edit.changed("drop_policy", row.name, told.as_json(), None)
    return told


def _policy(edit: Edit, row: RecipientRow, name: str) -> FederationPolicyRow | None:
    same = select(FederationPolicyRow).where(
        FederationPolicyRow.recipient_key == row.key, FederationPolicyRow.name_key == name.lower()
    )
    return edit.session.scalars(same).one_or_none()


def _require_unambiguous(edit: Edit, row: RecipientRow, wanted: FederationPolicy) -> None:
    same = (
        select(RecipientRow.name, FederationPolicyRow.audiences)
        .join(RecipientRow, RecipientRow.key == FederationPolicyRow.recipient_key)
        .where(
            FederationPolicyRow.issuer == wanted.issuer,
            FederationPolicyRow.subject_claim == wanted.subject_claim,
            FederationPolicyRow.subject == wanted.subject,
            FederationPolicyRow.recipient_key != row.key,
        )
    )
    for name, audiences in edit.session.execute(same):
        if set(audiences) & set(wanted.audiences):
            raise CatalogConflict(
                f"recipient {name} has the same issuer, {wanted.subject_claim}, subject and audience",
                "A token must be one recipient's only; give another subject or audience.",
            )


def _require_usable(wanted: FederationPolicy) -> None:
    require_name("policy", wanted.name)
    parsed = urlsplit(wanted.issuer)
    if parsed.scheme not in ("https", "http") or not parsed.hostname or parsed.query or parsed.fragment:
        raise BadRequest("issuer", wanted.issuer, "Give the issuer's URL as its tokens say it in `iss`.")
    for field, value in (("subject_claim", wanted.subject_claim), ("subject", wanted.subject)):
        if not 0 < len(value) <= 255 or not value.isprintable():
            raise BadRequest(field, value, "Give a text of 1 to 255 printable characters.")
    if not wanted.audiences or not all(0 < len(one) <= 255 for one in wanted.audiences):
        raise BadRequest(
            "audiences", list(wanted.audiences), "Name at least one audience, each of 1 to 255 characters."
        )


Role = Literal["owner", "steward", "auditor"]
# Whoever finds a key where none should be, a person or a scanner, knows what it is.
PREFIX = "lakeshare-admin-"
FIRST = "first"
FIRST_BY = "lakeshare serve"
NAME = re.compile(r"[^\x00-\x20\x7f:/]{1,200}")


@dataclass(frozen=True)
class AdminKey:
    """A key, without the key itself."""

    id: str
    name: str
    role: Role
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None

    def is_valid(self, now: datetime) -> bool:
        """Whether it opens anything at that moment."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def add_admin_key(
    edit: Edit, name: str, role: str, *, expires_at: datetime | None = None
) -> tuple[AdminKey, str]:
    """Make a key; returns it with the key itself, told only here.

    Raises:
        BadRequest: the name, the role or the end cannot be used.
        NameTaken: a key has, or had, this name.
    """
    if not NAME.fullmatch(name):
        hint = "Use 1 to 200 characters without space, slash or colon: the audit log tells people by them."
        raise BadRequest("name", name, hint)
    if role not in get_args(Role):
        raise BadRequest("role", role, f"It is one of {', '.join(get_args(Role))}.")
    require_aware("expires_at", expires_at)
    if expires_at is not None and expires_at <= edit.at:
        raise BadRequest("expires_at", expires_at.isoformat(), "Give a time that is still to come.")
    if _row(edit.session, name) is not None:
        hint = "Choose another name, like one with a date: the audit log knows whom by the old one."
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
    edit.session.add(row)
    edit.session.flush()
    edit.changed("add_admin_key", name, None, _told(row))
    return _key(row), key


def revoke_admin_key(edit: Edit, name: str) -> AdminKey:
    """End a key at once; its name stays taken.

    Raises:
        NotFound: there is no such key.
    """
    row = _row(edit.session, name)
    if row is None:
        raise NotFound("Administrator's key", name)
    before = _told(row)
    row.revoked_at = row.revoked_at or edit.at
    edit.session.flush()
    edit.changed("revoke_admin_key", name, before, _told(row))
    return _key(row)


def admin_keys(session: Session) -> list[AdminKey]:
    """All keys in the order they were made, revoked ones too."""
    return [_key(row) for row in session.scalars(select(AdminKeyRow).order_by(AdminKeyRow.key))]


def admin_key_of(session: Session, key: str) -> AdminKey | None:
    """What is kept of a key, if it is one that is valid now."""
    # Looked up by a digest of 256 random bits: how long it takes tells nothing about another key.
    row = session.scalars(select(AdminKeyRow).where(AdminKeyRow.digest == token_digest(key))).one_or_none()
    found = None if row is None else _key(row)
    return found if found is not None and found.is_valid(datetime.now(UTC)) else None


def first_admin_key(catalog: Catalog) -> str | None:
    """The first key of a catalog, an owner's; None when it ever had one: nobody is let in a second time.

    Raises:
        Unavailable: the database does not answer.
    """
    with catalog.reading() as session:
        if _has_any(session):
            return None
    with editing(catalog, FIRST_BY) as edit:
        # Writers take turns: of two servers that start at once, the second sees the first one's key.
        return None if _has_any(edit.session) else add_admin_key(edit, FIRST, "owner")[1]


def _has_any(session: Session) -> bool:
    return session.scalars(select(AdminKeyRow.key).limit(1)).one_or_none() is not None


def _row(session: Session, name: str) -> AdminKeyRow | None:
    return session.scalars(select(AdminKeyRow).where(AdminKeyRow.name == name)).one_or_none()


def _key(row: AdminKeyRow) -> AdminKey:
    return AdminKey(
        id=row.id,
        name=row.name,
        role=cast(Role, row.role),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


def _told(row: AdminKeyRow) -> dict[str, Any]:
    ends = {
        name: moment.isoformat()
        for name, moment in (("expires_at", row.expires_at), ("revoked_at", row.revoked_at))
        if moment is not None
    }
    return {"name": row.name, "role": row.role, **ends}
