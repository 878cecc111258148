"""To whom things are shared, until when, and how recipients prove who they are. Secrets are kept as SHA-256 only."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from lakeshare_server.catalog.models.base import (
    GROWING,
    Base,
    Edited,
    GrowingKey,
    Long,
    Name,
    PublicId,
    ShortText,
)


class RecipientRow(Edited, Base):
    """Somebody a share can be granted to.

    The revision counts the edits of the recipient, its tokens, its links and its policies.
    """

    __tablename__ = "recipients"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    name: Mapped[Name]
    name_key: Mapped[Name] = mapped_column(unique=True)
    comment: Mapped[str | None]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    owner: Mapped[Name | None]
    properties: Mapped[dict[str, Any] | None]
    authentication: Mapped[str] = mapped_column(ShortText(32), default="TOKEN")
    ip_allow: Mapped[list[str] | None]
    expires_at: Mapped[datetime | None]
    activated_at: Mapped[datetime | None]
    agreement: Mapped[str | None]
    agreement_accepted_at: Mapped[datetime | None]
    agreement_accepted_from: Mapped[str | None] = mapped_column(ShortText(64))
    applied: Mapped[bool] = mapped_column(default=False)
    limits: Mapped[dict[str, Any] | None]


class TokenRow(Base):
    """A bearer token or client secret of a recipient; `superseded_at` says since when it only has its grace time."""

    __tablename__ = "tokens"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    kind: Mapped[str] = mapped_column(ShortText(16), default="bearer")
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    expires_at: Mapped[datetime | None]
    superseded_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class TokenUseRow(Base):
    """When a token was used last. Written apart from tokens: no recipient sees it."""

    __tablename__ = "token_uses"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    token_id: Mapped[str] = mapped_column(ShortText(36), unique=True)
    last_used_at: Mapped[datetime]
    last_used_from: Mapped[str | None] = mapped_column(ShortText(64))


class AllowanceRow(Base):
    """How much of one kind a recipient, or an address, has taken in a stretch of time. No recipient sees it."""

    __tablename__ = "allowances"
    __table_args__ = (UniqueConstraint("subject", "kind"), GROWING)

    key: Mapped[GrowingKey]
    subject: Mapped[str] = mapped_column(ShortText(64))
    kind: Mapped[str] = mapped_column(ShortText(32))
    window_began_at: Mapped[datetime] = mapped_column(index=True)
    taken: Mapped[Long]


class ActivationRow(Base):
    """A link that gives a recipient its profile, once."""

    __tablename__ = "activations"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    token_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    used_from: Mapped[str | None] = mapped_column(ShortText(64))
    revoked_at: Mapped[datetime | None]


class FederationPolicyRow(Base):
    """Whose tokens of which issuer are a recipient's: OIDC federation."""

    __tablename__ = "federation_policies"
    __table_args__ = (UniqueConstraint("recipient_key", "name_key"), GROWING)

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    name: Mapped[Name]
    name_key: Mapped[Name]
    comment: Mapped[str | None]
    issuer: Mapped[str] = mapped_column(index=True)
    subject_claim: Mapped[Name]
    subject: Mapped[str]
    audiences: Mapped[list[str]]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime | None]


class GroupRow(Edited, Base):
    """Recipients that are granted shares together."""

    __tablename__ = "groups"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    name: Mapped[Name]
    name_key: Mapped[Name] = mapped_column(unique=True)
    comment: Mapped[str | None]
    created_at: Mapped[datetime]
    applied: Mapped[bool] = mapped_column(default=False)


class GroupMemberRow(Base):
    """A recipient is in a group."""

    __tablename__ = "group_members"

    group_key: Mapped[int] = mapped_column(ForeignKey("groups.key", ondelete="CASCADE"), primary_key=True)
    recipient_key: Mapped[int] = mapped_column(
        ForeignKey("recipients.key", ondelete="CASCADE"), primary_key=True, index=True
    )


class GrantTerms:
    """From when until when a share may be read, and which part of it."""

    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    starts_at: Mapped[datetime | None]
    ends_at: Mapped[datetime | None]
    rule: Mapped[str | None]
    applied: Mapped[bool] = mapped_column(default=False)


class GrantRow(GrantTerms, Base):
    """A recipient may read a share, within its time, where its rule is true."""

    __tablename__ = "grants"
    __table_args__ = (UniqueConstraint("recipient_key", "share_key"), GROWING)

    key: Mapped[GrowingKey]
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="RESTRICT"), index=True)


class GroupGrantRow(GrantTerms, Base):
    """The members of a group may read a share, within its time, where its rule is true."""

    __tablename__ = "group_grants"
    __table_args__ = (UniqueConstraint("group_key", "share_key"), GROWING)

    key: Mapped[GrowingKey]
    group_key: Mapped[int] = mapped_column(ForeignKey("groups.key", ondelete="CASCADE"))
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="RESTRICT"), index=True)


class AdminKeyRow(Base):
    """An administrator's API key; roles are owner, steward and auditor."""

    __tablename__ = "admin_keys"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    name: Mapped[Name] = mapped_column(unique=True)
    role: Mapped[str] = mapped_column(ShortText(16))
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    created_at: Mapped[datetime]
    created_by: Mapped[Name | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
