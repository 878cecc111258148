"""Looks up credentials in force: bearer tokens, client secrets, and policies for tokens of other issuers.

`access` checks addresses and limits. Also counts requests and records the last use of tokens.
"""

import hashlib
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    AllowanceRow,
    FederationPolicyRow,
    RecipientRow,
    TokenRow,
    TokenUseRow,
)

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


@dataclass(frozen=True)
class Policy:
    """The claims of an issuer's tokens that identify a recipient."""

    access: Access
    issuer: str
    subject_claim: str
    subject: str
    audiences: tuple[str, ...]


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

    def policies(self, issuer: str) -> Sequence[Policy]:
        """The policies for tokens of an issuer."""
        with self.catalog.reading() as session:
            rows = session.execute(_in_force(FederationPolicyRow, FederationPolicyRow.issuer == issuer))
            policies = []
            for recipient, row in rows:
                claims = issuer, row.subject_claim, row.subject, tuple(row.audiences)
                policies.append(Policy(_access(recipient, row.id, None), *claims))
            return policies

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
