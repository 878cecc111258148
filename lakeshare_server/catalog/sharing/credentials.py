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
from lakeshare_server.catalog.sharing.editing import Edit, editing, require_aware, touch_row
from lakeshare_server.catalog.sharing.recipients import require_not_revoked
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    IssuedSecret,
    LinkState,
    RecipientState,
    find_recipient_row,
    get_recipient,
    link_from_row,
    policy_from_row,
    token_from_row,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, LinkEnded, NameTaken, NotFound

TokenKind = Literal["bearer", "client_secret"]
IMMEDIATELY = timedelta(0)

Found = TypeVar("Found")


def issue_token(
    edit: Edit, name: str, *, expires_at: datetime | None = None, kind: TokenKind | None = None
) -> IssuedSecret:
    """Give a recipient one more token, or client secret; those it has stay as they are.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: it was revoked, gets in by OIDC, or the end is past or has no zone.
    """
    row = find_recipient_row(edit.session, name)
    return _record_change(edit, row, "issue_token", lambda: issue_for_row(edit, row, expires_at, kind))


def rotate_token(
    edit: Edit,
    name: str,
    *,
    keep_old_for: timedelta = IMMEDIATELY,
    expires_at: datetime | None = None,
    kind: TokenKind | None = None,
) -> IssuedSecret:
    """Give a recipient a new token; the old ones end after a grace time, at once by default.

    The grace of a token can only shrink: one that ends sooner still does.

    Raises:
        NotFound, BadRequest: as `issue_token`, or the grace is negative.
    """
    row = find_recipient_row(edit.session, name)

    def rotated() -> IssuedSecret:
        _shorten(edit, row, keep_old_for)
        return issue_for_row(edit, row, expires_at, kind)

    return _record_change(edit, row, "rotate_token", rotated)


def shorten_tokens(edit: Edit, name: str, *, existing_expire_in: timedelta) -> RecipientState:
    """Let all tokens of a recipient end within a time; none gets longer by it.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: the time is negative.
    """
    row = find_recipient_row(edit.session, name)
    _record_change(edit, row, "shorten_tokens", lambda: _shorten(edit, row, existing_expire_in))
    return get_recipient(edit.session, row.name)


def revoke_token(edit: Edit, name: str, token_id: str) -> RecipientState:
    """End one token of a recipient at once.

    Raises:
        NotFound: there is no such recipient, or it has no such token.
    """
    row = find_recipient_row(edit.session, name)
    own = select(TokenRow).where(TokenRow.recipient_key == row.key, TokenRow.id == token_id)
    token = edit.session.scalars(own).one_or_none()
    if token is None:
        raise NotFound("Token", token_id)

    def revoked() -> None:
        token.revoked_at = token.revoked_at or edit.at
        edit.session.flush()

    _record_change(edit, row, "revoke_token", revoked)
    return get_recipient(edit.session, row.name)


def issue_for_row(
    edit: Edit, row: RecipientRow, expires_at: datetime | None, kind: TokenKind | None
) -> IssuedSecret:
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


def _record_change(edit: Edit, row: RecipientRow, action: str, change: Callable[[], Found]) -> Found:
    before = get_recipient(edit.session, row.name).as_json()
    touch_row(edit, row, "Recipient", row.name)
    found = change()
    edit.changed(action, row.name, before, get_recipient(edit.session, row.name).as_json())
    return found


DEFAULT_LINK_LIFE = timedelta(hours=72)
MAX_LINK_LIFE = timedelta(days=365)


def create_link(
    edit: Edit,
    name: str,
    *,
    link_life: timedelta = DEFAULT_LINK_LIFE,
    token_expires_at: datetime | None = None,
) -> tuple[LinkState, str]:
    """Make a link for a recipient and tell its code, here only; links that were not used yet end.

    Raises:
        NotFound: there is no such recipient.
        BadRequest: it was revoked, gets in by OIDC, or a time cannot be used.
    """
    row = find_recipient_row(edit.session, name)
    require_not_revoked(row)
    require_aware("token_expires_at", token_expires_at)
    if row.authentication == "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, "It gets in with tokens of its own issuer and needs no link.")
    if not timedelta(0) < link_life <= MAX_LINK_LIFE:
        raise BadRequest("link_life", str(link_life), f"Give a time of up to {MAX_LINK_LIFE.days} days.")
    touch_row(edit, row, "Recipient", row.name)
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
    state = link_from_row(link, row.name)
    edit.changed("invite", row.name, None, state.as_json())
    return state, code


def find_link(catalog: Catalog, code: str) -> tuple[LinkState, RecipientState]:
    """The link with this code and its recipient; open to be redeemed.

    Raises:
        NotFound: there is no such link.
        LinkEnded: it was used, has expired, or was replaced; says when.
    """
    with catalog.reading() as session:
        link, row = _find_by_code(session, code)
        state = link_from_row(link, row.name)
        _require_open(state, datetime.now(UTC))
        return state, get_recipient(session, row.name)


def redeem_link(
    edit: Edit, code: str, *, from_address: str | None, accepts_agreement: bool = False
) -> tuple[RecipientState, IssuedSecret]:
    """Use a link up: the recipient with a new token, or client secret, that is shown here only.

    Raises:
        NotFound: there is no such link.
        LinkEnded: it was used, has expired, or was replaced; says when.
        BadRequest: the recipient has an agreement to accept.
    """
    link, row = _find_by_code(edit.session, code)
    _require_open(link_from_row(link, row.name), edit.at)
    before = get_recipient(edit.session, row.name)
    if row.agreement is not None and row.agreement_accepted_at is None:
        if not accepts_agreement:
            raise BadRequest(
                "accepts_agreement", False, "Read the agreement and accept it to get the profile."
            )
        row.agreement_accepted_at, row.agreement_accepted_from = edit.at, from_address
    touch_row(edit, row, "Recipient", row.name)
    link.used_at, link.used_from = edit.at, from_address
    issued = issue_for_row(edit, row, link.token_expires_at, None)
    state = get_recipient(edit.session, row.name)
    edit.changed("redeem_link", row.name, before.as_json(), state.as_json())
    return state, issued


def _find_by_code(session: Session, code: str) -> tuple[ActivationRow, RecipientRow]:
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
    row = find_recipient_row(edit.session, recipient)
    require_not_revoked(row)
    if row.authentication != "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, f"It gets in by {row.authentication}; add one USING OIDC.")
    _require_unambiguous(edit, row, wanted)
    policy = _policy(edit, row, wanted.name)
    before = None if policy is None else policy_from_row(policy).as_json()
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
    touch_row(edit, row, "Recipient", row.name)
    edit.session.flush()
    state = policy_from_row(policy)
    edit.changed("put_policy", row.name, before, state.as_json())
    return state


def drop_policy(edit: Edit, recipient: str, name: str) -> FederationPolicy:
    """Take a policy from a recipient.

    Raises:
        NotFound: there is no such recipient, or it has no such policy.
    """
    row = find_recipient_row(edit.session, recipient)
    policy = _policy(edit, row, name)
    if policy is None:
        raise NotFound("Federation policy", name)
    state = policy_from_row(policy)
    touch_row(edit, row, "Recipient", row.name)
    edit.session.delete(policy)
    edit.session.flush()
    edit.changed("drop_policy", row.name, state.as_json(), None)
    return state


def _policy(edit: Edit, row: RecipientRow, name: str) -> FederationPolicyRow | None:
    same = select(FederationPolicyRow).where(
        FederationPolicyRow.recipient_key == row.key, FederationPolicyRow.name_key == name.lower()
    )
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
        raise BadRequest(
            "audiences", list(policy.audiences), "Name at least one audience, each of 1 to 255 characters."
        )


Role = Literal["owner", "steward", "auditor"]
# Whoever finds a key where none should be, a person or a scanner, knows what it is.
PREFIX = "lakeshare-admin-"
FIRST_KEY_NAME = "first"
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
    edit.changed("add_admin_key", name, None, _key_details(row))
    return _admin_key_from_row(row), key


def revoke_admin_key(edit: Edit, name: str) -> AdminKey:
    """End a key at once; its name stays taken.

    Raises:
        NotFound: there is no such key.
    """
    row = _row(edit.session, name)
    if row is None:
        raise NotFound("Administrator's key", name)
    before = _key_details(row)
    row.revoked_at = row.revoked_at or edit.at
    edit.session.flush()
    edit.changed("revoke_admin_key", name, before, _key_details(row))
    return _admin_key_from_row(row)


def read_admin_keys(session: Session) -> list[AdminKey]:
    """All keys in the order they were made, revoked ones too."""
    return [
        _admin_key_from_row(row) for row in session.scalars(select(AdminKeyRow).order_by(AdminKeyRow.key))
    ]


def find_admin_key(session: Session, key: str) -> AdminKey | None:
    """What is kept of a key, if it is one that is valid now."""
    # Looked up by a digest of 256 random bits: how long it takes tells nothing about another key.
    row = session.scalars(select(AdminKeyRow).where(AdminKeyRow.digest == token_digest(key))).one_or_none()
    found = None if row is None else _admin_key_from_row(row)
    return found if found is not None and found.is_valid(datetime.now(UTC)) else None


def create_first_admin_key(catalog: Catalog) -> str | None:
    """The first key of a catalog, an owner's; None when it ever had one: nobody is let in a second time.

    Raises:
        Unavailable: the database does not answer.
    """
    with catalog.reading() as session:
        if _has_any(session):
            return None
    with editing(catalog, FIRST_BY) as edit:
        # Writers take turns: of two servers that start at once, the second sees the first one's key.
        return None if _has_any(edit.session) else add_admin_key(edit, FIRST_KEY_NAME, "owner")[1]


def _has_any(session: Session) -> bool:
    return session.scalars(select(AdminKeyRow.key).limit(1)).one_or_none() is not None


def _row(session: Session, name: str) -> AdminKeyRow | None:
    return session.scalars(select(AdminKeyRow).where(AdminKeyRow.name == name)).one_or_none()


def _admin_key_from_row(row: AdminKeyRow) -> AdminKey:
    return AdminKey(
        id=row.id,
        name=row.name,
        role=cast(Role, row.role),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )


def _key_details(row: AdminKeyRow) -> dict[str, Any]:
    ends = {
        name: moment.isoformat()
        for name, moment in (("expires_at", row.expires_at), ("revoked_at", row.revoked_at))
        if moment is not None
    }
    return {"name": row.name, "role": row.role, **ends}
