"""What the provider sees of shares, recipients and grants: read from the catalog, told by every surface alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

Kind = Literal["TABLE", "VIEW"]
Authentication = Literal["TOKEN", "OAUTH_CLIENT_CREDENTIALS", "OIDC_FEDERATION"]
LifeCycle = Literal["invited", "activated", "rotating", "expired", "revoked"]


class Told:
    """Something that can be told as JSON."""

    def as_json(self) -> dict[str, Any]:
        """Its fields, those without a value left out; times in ISO 8601."""
        told = {one.name: _json(getattr(self, one.name)) for one in fields(self)}  # type: ignore[arg-type]  # of dataclasses
        return {name: value for name, value in told.items() if value not in (None, [], {})}


def _json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Told):
        return value.as_json()
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, kw_only=True)
class Share(Told):
    """A share; its revision counts the edits of everything in it."""

    key: int
    id: str
    name: str
    comment: str | None
    display_name: str | None
    properties: Mapping[str, str]
    owner: str | None
    created_at: datetime
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    revision: int
    declared: bool
    applied: bool


@dataclass(frozen=True, kw_only=True)
class SharedObject(Told):
    """A table or view as a share names it; the fields behind `directory_access` are read, never given."""

    schema: str
    name: str
    table: str
    kind: Kind = "TABLE"
    comment: str | None = None
    history: bool = True
    start_version: int | None = None
    rule: str | None = None
    publication: int | None = None
    directory_access: bool = False
    share: str = ""
    id: str = ""
    added_at: datetime | None = None
    added_by: str | None = None
    declared: bool = False
    applied: bool = False

    @property
    def path(self) -> str:
        """`share.schema.table`, as recipients write it."""
        return f"{self.share}.{self.schema}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Grant(Told):
    """A recipient, or the members of a group, may read a share."""

    share: str
    recipient: str | None = None
    group: str | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = None
    created_at: datetime
    created_by: str | None = None
    applied: bool = False


@dataclass(frozen=True, kw_only=True)
class TokenState(Told):
    """A bearer token or client secret, without the secret."""

    id: str
    kind: str
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    superseded_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None = None
    last_used_from: str | None = None

    def is_valid(self, now: datetime) -> bool:
        """Whether it opens anything at that moment."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


@dataclass(frozen=True, kw_only=True)
class LinkState(Told):
    """An activation link, without its code."""

    id: str
    recipient: str
    created_at: datetime
    created_by: str | None
    expires_at: datetime
    token_expires_at: datetime | None
    used_at: datetime | None
    used_from: str | None
    revoked_at: datetime | None

    def is_open(self, now: datetime) -> bool:
        """Whether it can be redeemed at that moment."""
        return self.used_at is None and self.revoked_at is None and self.expires_at > now


@dataclass(frozen=True, kw_only=True)
class FederationPolicy(Told):
    """Whose tokens of an issuer are a recipient's."""

    name: str
    issuer: str
    subject_claim: str
    subject: str
    audiences: tuple[str, ...]
    comment: str | None = None
    id: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class RecipientState(Told):
    """A recipient with everything by which it gets in."""

    key: int
    id: str
    name: str
    state: LifeCycle
    comment: str | None
    owner: str | None
    properties: Mapping[str, str]
    authentication: Authentication
    ip_allow: tuple[str, ...]
    expires_at: datetime | None
    activated_at: datetime | None
    agreement: str | None
    agreement_accepted_at: datetime | None
    agreement_accepted_from: str | None
    created_at: datetime
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    revoked_at: datetime | None
    revision: int
    applied: bool
    tokens: tuple[TokenState, ...] = ()
    links: tuple[LinkState, ...] = ()
    policies: tuple[FederationPolicy, ...] = ()
    groups: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Group(Told):
    """Recipients that are granted shares together."""

    key: int
    id: str
    name: str
    comment: str | None
    members: tuple[str, ...]
    created_at: datetime
    created_by: str | None
    updated_at: datetime | None
    updated_by: str | None
    revision: int
    applied: bool


@dataclass(frozen=True)
class Given:
    """A secret that is shown once, beside what is kept of it."""

    state: TokenState
    secret: str = field(repr=False)
