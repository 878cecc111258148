"""Credentials of recipients and administrators: tokens, links, policies and admin keys; their issue and their look-up.

A secret is returned once; the catalog keeps its SHA-256. An operation of an edit raises as those of `sharing`; one that
issues a secret also raises BadRequest for a revoked recipient, and for one that authenticates by OIDC. `access` checks
addresses and limits; requests are counted and the last use of tokens is recorded here.
"""

import hashlib
import re
import secrets
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Select, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    ActivationRow,
    AdminKeyRow,
    AllowanceRow,
    EndedSessionRow,
    FederationPolicyRow,
    RecipientRow,
    TokenRow,
    TokenUseRow,
)
from lakeshare_server.catalog.sharing import (
    Edit,
    editing,
    require_aware,
    require_choice,
    require_name,
    require_not_revoked,
    require_storable,
    touch_row,
)
from lakeshare_server.catalog.states import (
    FederationPolicy,
    IssuedSecret,
    JsonState,
    LinkState,
    RecipientState,
    find_recipient_row,
    get_recipient,
    link_from_row,
    policy_from_row,
    state_from_row,
    token_from_row,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, LinkEnded, NameTaken, NotFound
from lakeshare_server.locations import is_web_address

TOKEN_BYTES = 32


def new_token() -> str:
    """A new URL-safe bearer token of 256 random bits."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_digest(token: str) -> str:
    """The SHA-256 of a token in hex, which the catalog stores."""
    return hashlib.sha256(token.encode()).hexdigest()


Network = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Reader:
    """The recipient of a valid token, and the token's end."""

    id: str
    name: str
    expires_at: datetime | None = field(default=None, compare=False)

    def is_valid(self) -> bool:
        """Whether its token, which was valid, has not ended since."""
        return self.expires_at is None or self.expires_at > datetime.now(UTC)


@dataclass(frozen=True)
class Access:
    """An authenticated recipient: its credential, allowed networks and limits."""

    reader: Reader
    credential_id: str
    networks: tuple[Network, ...] | None = None
    limits: dict[str, int] = field(default_factory=dict)

    def is_valid(self) -> bool:
        """Whether its credential, which was valid, has not ended since."""
        return self.reader.is_valid()

    def until(self, end: datetime) -> "Access":
        """The same access until `end` at the latest."""
        own = self.reader.expires_at
        return replace(self, reader=replace(self.reader, expires_at=end if own is None else min(own, end)))


class Credentials:
    """The credentials of the catalog that are in force."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def by_token(self, token: str) -> Access | None:
        """The recipient whose bearer token this is."""
        # Found by a digest of 256 random bits: the time that this takes reveals nothing about another token.
        return self._one((TokenRow.digest == token_digest(token)) & (TokenRow.kind == "bearer"))

    def by_named_token(self, name: str, token: str) -> Access | None:
        """The recipient with this name or id, whose bearer token this is."""
        return _require_name_of(self.by_token(token), name)

    def by_client_secret(self, client_id: str, secret: str) -> Access | None:
        """The recipient with this name or id, whose client secret this is."""
        own = (TokenRow.digest == token_digest(secret)) & (TokenRow.kind == "client_secret")
        return _require_name_of(self._one(own), client_id)

    def by_client_secret_id(self, credential_id: str) -> Access | None:
        """The recipient whose client secret has this id, which access tokens refer to."""
        return self._one((TokenRow.id == credential_id) & (TokenRow.kind == "client_secret"))

    def holder(self, recipient_id: str, credential_id: str | None) -> Reader | None:
        """The recipient with this id, if it and the credential are still in force; None for any credential."""
        with self.catalog.reading() as session:
            if credential_id is None:
                own = RecipientRow.id == recipient_id
                row = session.scalars(select(RecipientRow).where(own, *_recipient_in_force())).one_or_none()
                return None if row is None else Reader(row.id, row.name, row.expires_at)
            own_token = (TokenRow.id == credential_id) & (RecipientRow.id == recipient_id)
            rows = session.execute(_valid_token(own_token)).one_or_none()
            if rows is not None:
                return _access(rows[0], rows[1].id, rows[1].expires_at).reader
            own_policy = (FederationPolicyRow.id == credential_id) & (RecipientRow.id == recipient_id)
            rows = session.execute(_in_force(FederationPolicyRow, own_policy)).one_or_none()
            return None if rows is None else _access(rows[0], rows[1].id, None).reader

    def policies(self, issuer: str) -> Sequence[tuple[Access, FederationPolicy]]:
        """The recipients with policies for tokens of an issuer, and each of these policies."""
        with self.catalog.reading() as session:
            rows = session.execute(_in_force(FederationPolicyRow, FederationPolicyRow.issuer == issuer))
            return [(_access(recipient, row.id, None), policy_from_row(row)) for recipient, row in rows]

    def _one(self, condition: ColumnElement[bool]) -> Access | None:
        with self.catalog.reading() as session:
            rows = session.execute(_valid_token(condition)).one_or_none()
            return None if rows is None else _access(rows[0], rows[1].id, rows[1].expires_at)


def _valid_token(condition: ColumnElement[bool]) -> Select[Any]:
    return _in_force(TokenRow, condition).where(
        TokenRow.revoked_at.is_(None), _has_not_ended(TokenRow.expires_at)
    )


def _in_force(model: Any, condition: ColumnElement[bool]) -> Select[Any]:
    return (
        select(RecipientRow, model)
        .join(model, model.recipient_key == RecipientRow.key)
        .where(condition, *_recipient_in_force())
    )


def _recipient_in_force() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return RecipientRow.revoked_at.is_(None), _has_not_ended(RecipientRow.expires_at)


def _has_not_ended(column: Any) -> ColumnElement[bool]:
    return or_(column.is_(None), column > datetime.now(UTC))


def _access(recipient: RecipientRow, credential_id: str, expires_at: datetime | None) -> Access:
    ends = [end for end in (expires_at, recipient.expires_at) if end is not None]
    return Access(
        Reader(recipient.id, recipient.name, min(ends, default=None)),
        credential_id,
        None if recipient.ip_allow is None else tuple(map(ip_network, recipient.ip_allow)),
        dict(recipient.limits or {}),
    )


def _require_name_of(access: Access | None, name: str) -> Access | None:
    if access is None or name.lower() not in (access.reader.id, access.reader.name.lower()):
        return None
    return access


WINDOWS_KEPT_FOR = timedelta(days=2)


class Allowances:
    """Permits that recipients and addresses have taken, counted in windows of time."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def take(
        self, subject: str, kind: str, window_began_at: datetime, most: int, wanted: int, overdrawn: int = 0
    ) -> int:
        """Counts `overdrawn` permits, takes up to `wanted` of those left of `most`, and returns their number."""
        with self.catalog.writing(seen=False) as session:
            row = self._row(session, subject, kind, window_began_at)
            if row.window_began_at < window_began_at:
                row.window_began_at, row.taken = window_began_at, 0
            granted = max(0, min(wanted, most - row.taken - overdrawn))
            row.taken += overdrawn + granted
            return granted

    def _row(self, session: Session, subject: str, kind: str, window_began_at: datetime) -> AllowanceRow:
        own = (AllowanceRow.subject == subject) & (AllowanceRow.kind == kind)
        row = session.scalars(select(AllowanceRow).where(own).with_for_update()).one_or_none()
        if row is not None:
            return row
        expired = AllowanceRow.window_began_at < datetime.now(UTC) - WINDOWS_KEPT_FOR
        session.execute(delete(AllowanceRow).where(expired))
        # Another worker may insert the same row at the same time.
        values = {"subject": subject, "kind": kind, "window_began_at": window_began_at, "taken": 0}
        session.execute(insert_statement(session, AllowanceRow, values).on_conflict_do_nothing())
        return session.scalars(select(AllowanceRow).where(own).with_for_update()).one()


def insert_statement(session: Session, model: Any, values: Any) -> Any:
    """An insert with ON CONFLICT in the dialect of the database."""
    make = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return make(model).values(values)


MAX_ADDRESS_CHARS = 64
ACCURACY = timedelta(minutes=1)
MAX_PENDING_USES = 50_000


class TokenUses:
    """Records uses of credentials to the minute, in memory until `write`; safe from any thread."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._noted: dict[str, tuple[datetime, str | None]] = {}
        self._unwritten: dict[str, tuple[datetime, str | None]] = {}
        self._turn = threading.Lock()

    def record(self, credential_id: str, address: str | None) -> None:
        """Records that a token, client secret or policy was used now."""
        now = datetime.now(UTC)
        last = self._noted.get(credential_id)
        if last is not None and now - last[0] < ACCURACY and last[1] == address:
            return
        with self._turn:
            if len(self._noted) >= MAX_PENDING_USES:
                self._noted.clear()
            self._noted[credential_id] = self._unwritten[credential_id] = now, address

    def write(self) -> None:
        """Writes the uses since the last call; after an error, as Unavailable, they are kept for the next call."""
        with self._turn:
            noted, self._unwritten = self._unwritten, {}
        if not noted:
            return
        try:
            self._write(noted)
        except BaseException:
            with self._turn:
                self._unwritten = noted | self._unwritten
            raise

    def _write(self, noted: dict[str, tuple[datetime, str | None]]) -> None:
        # Sorted: two workers that write the same rows in one order cannot deadlock.
        rows = [
            {
                "token_id": token_id,
                "last_used_at": at,
                "last_used_from": address and address[:MAX_ADDRESS_CHARS],
            }
            for token_id, (at, address) in sorted(noted.items())
        ]
        with self.catalog.writing(seen=False) as session:
            put = insert_statement(session, TokenUseRow, rows)
            newer = {name: put.excluded[name] for name in ("last_used_at", "last_used_from")}
            session.execute(
                put.on_conflict_do_update(
                    index_elements=["token_id"],
                    set_=newer,
                    where=TokenUseRow.last_used_at < put.excluded.last_used_at,
                )
            )


IMMEDIATELY = timedelta(0)


def issue_token(edit: Edit, name: str, *, expires_at: datetime | None = None) -> IssuedSecret:
    """Issues one more token, or client secret, to a recipient; the others stay as they are."""
    row = find_recipient_row(edit.session, name)
    with _recorded(edit, row, "issue_token"):
        return _issue(edit, row, expires_at)


def rotate_token(
    edit: Edit, name: str, *, keep_old_for: timedelta = IMMEDIATELY, expires_at: datetime | None = None
) -> IssuedSecret:
    """Issues a new token to a recipient; the old ones end after a grace time, at once by default.

    A token that ends before its grace time still does.
    """
    row = find_recipient_row(edit.session, name)
    with _recorded(edit, row, "rotate_token"):
        _shorten(edit, row, keep_old_for)
        return _issue(edit, row, expires_at)


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


def _issue(edit: Edit, row: RecipientRow, expires_at: datetime | None) -> IssuedSecret:
    _require_usable_token(edit, row, "expires_at", expires_at)
    secret = new_token()
    token = TokenRow(
        id=str(uuid.uuid4()),
        recipient_key=row.key,
        kind="bearer" if row.authentication == "TOKEN" else "client_secret",
        digest=token_digest(secret),
        created_at=edit.at,
        created_by=edit.by,
        expires_at=expires_at,
    )
    row.activated_at = row.activated_at or edit.at
    edit.add(token)
    return IssuedSecret(token_from_row(token), secret)


def _require_usable_token(edit: Edit, row: RecipientRow, field: str, ends_at: datetime | None) -> None:
    """Refuses with BadRequest a token that could not be used, now or at all."""
    require_not_revoked(row)
    if row.authentication == "OIDC_FEDERATION":
        raise BadRequest("recipient", row.name, "It gets in with tokens of its own issuer; give it a policy.")
    _require_to_come(edit, "expires_at", row.expires_at, f"The access of {row.name} ends then: extend it.")
    _require_to_come(edit, field, ends_at)


def _require_to_come(
    edit: Edit, field: str, moment: datetime | None, hint: str = "Give a time that is still to come."
) -> None:
    if (end := require_aware(field, moment)) is not None and end <= edit.at:
        raise BadRequest(field, end.isoformat(), hint)


def _shorten(edit: Edit, row: RecipientRow, within: timedelta) -> None:
    if within < IMMEDIATELY:
        raise BadRequest("keep_old_for", str(within), "Give a time of zero or more.")
    own = select(TokenRow).where(TokenRow.recipient_key == row.key, TokenRow.revoked_at.is_(None))
    try:
        end = edit.at + within
    except OverflowError as error:
        raise BadRequest(
            "keep_old_for", str(within), "Give a shorter time: years are from 1 to 9999."
        ) from error
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
    """Creates a link that ends no later than its token, and returns it with its code; unused links end."""
    row = find_recipient_row(edit.session, name)
    _require_usable_token(edit, row, "token_expires_at", token_expires_at)
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
        expires_at=min(filter(None, (edit.at + link_life, token_expires_at))),
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
    issued = _issue(edit, row, link.token_expires_at)
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
    if not is_web_address(policy.issuer) or {"?", "#"} & set(policy.issuer):
        raise BadRequest("issuer", policy.issuer, "Give the issuer's URL as its tokens say it in `iss`.")
    for claim, value in (("subject_claim", policy.subject_claim), ("subject", policy.subject)):
        if not 0 < len(value) <= 255 or not value.isprintable():
            raise BadRequest(claim, value, "Give a text of 1 to 255 printable characters.")
    if not policy.audiences or not all(0 < len(audience) <= 255 for audience in policy.audiences):
        hint = "Name at least one audience, each of 1 to 255 characters."
        raise BadRequest("audiences", list(policy.audiences), hint)
    for audience in policy.audiences:
        require_storable("audiences", audience)


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
    require_choice(get_args(Role), "role", role)
    _require_to_come(edit, "expires_at", expires_at)
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


def get_admin_key(session: Session, name: str) -> AdminKey | None:
    """Returns the key of a name, also one that has ended."""
    row = _find_key_row(session, name)
    return None if row is None else _admin_key_from_row(row)


def end_console_session(catalog: Catalog, session_id: str, expires_at: datetime) -> None:
    """Ends a session of the console, whose cookie expires at that time; ending it again does nothing."""
    with catalog.writing(seen=False) as session:
        session.execute(delete(EndedSessionRow).where(EndedSessionRow.expires_at < datetime.now(UTC)))
        session.merge(EndedSessionRow(id=session_id, expires_at=expires_at))


def has_console_session_ended(session: Session, session_id: str) -> bool:
    return session.get(EndedSessionRow, session_id) is not None


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
