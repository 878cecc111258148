"""What came of requests, and the count of writes that recipients can see."""

from datetime import datetime
from typing import Any

from sqlalchemy import Index, Integer, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from lakeshare_server.catalog.models.base import GROWING, Base, GrowingKey, Long, Name, PublicId, ShortText

ADMINISTERS = text("principal IS NOT NULL")


class AsyncQueryRow(Base):
    """A query that a recipient comes back for; `attempts` is also the fencing token of whoever works on it."""

    __tablename__ = "async_queries"
    __table_args__ = (UniqueConstraint("recipient_id", "table_id", "idempotency_key"), GROWING)

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    recipient_id: Mapped[str] = mapped_column(ShortText(36))
    table_id: Mapped[str] = mapped_column(ShortText(36))
    kind: Mapped[str] = mapped_column(ShortText(16))
    request: Mapped[str]
    idempotency_key: Mapped[Name]
    request_digest: Mapped[str] = mapped_column(ShortText(64))
    state: Mapped[str] = mapped_column(ShortText(16), index=True)
    attempts: Mapped[int]
    error_code: Mapped[str | None] = mapped_column(ShortText(64))
    error_message: Mapped[str | None]
    version: Mapped[Long | None]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class StateRow(Base):
    """One row: the generation counts the writes that can change what a recipient sees."""

    __tablename__ = "catalog_state"

    key: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    generation: Mapped[Long]


class AuditRow(Base):
    """One event: a request and what became of it, or a change by an administrator, with what was before and after.

    `recipient` names the recipient that reads; `principal` whoever administers. Keys are dense, in the order of the
    chain; events from before there was one have no hash.
    """

    __tablename__ = "audit_log"
    # Most events are of recipients: their empty principals are not worth an entry each.
    __table_args__ = (
        Index("ix_audit_log_principal", "principal", sqlite_where=ADMINISTERS, postgresql_where=ADMINISTERS),
        GROWING,
    )

    key: Mapped[GrowingKey]
    at: Mapped[datetime] = mapped_column(index=True)
    recipient: Mapped[Name | None] = mapped_column(index=True)
    action: Mapped[str] = mapped_column(ShortText(64))
    object_name: Mapped[str | None]
    status: Mapped[int]
    error_code: Mapped[str | None] = mapped_column(ShortText(64))
    version: Mapped[Long | None]
    files: Mapped[Long | None]
    request_id: Mapped[str] = mapped_column(ShortText(64))
    ip: Mapped[str | None] = mapped_column(ShortText(64))
    user_agent: Mapped[str | None]
    elapsed_ms: Mapped[Long]
    principal: Mapped[Name | None]
    details: Mapped[dict[str, Any] | None]
    kind: Mapped[str] = mapped_column(ShortText(16), default="request")
    size_bytes: Mapped[Long | None]
    rows: Mapped[Long | None]
    previous_hash: Mapped[str | None] = mapped_column(ShortText(64))
    hash: Mapped[str | None] = mapped_column(ShortText(64))


class AuditChainRow(Base):
    """Two rows: the `head`, number and hash of the newest event, and the `anchor`, of the last one that was pruned."""

    __tablename__ = "audit_chain"

    name: Mapped[str] = mapped_column(ShortText(16), primary_key=True)
    number: Mapped[Long]
    hash: Mapped[str] = mapped_column(ShortText(64))


class UsageRow(Base):
    """What a recipient asked of a version of a table on a day, by events that were pruned since."""

    __tablename__ = "usage_days"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    day: Mapped[str] = mapped_column(ShortText(10), index=True)
    recipient: Mapped[Name]
    object_name: Mapped[str | None]
    version: Mapped[Long | None]
    requests: Mapped[Long]
    queries: Mapped[Long]
    files: Mapped[Long]
    size_bytes: Mapped[Long]
    refused: Mapped[Long]


class AuditJournalRow(Base):
    """How many bytes of a process's journal of events are in the log."""

    __tablename__ = "audit_journals"

    name: Mapped[str] = mapped_column(ShortText(64), primary_key=True)
    taken: Mapped[Long]
