"""The tables of the catalog as SQLAlchemy models. Migrations make them; nothing here is SQLite-only.

Integer keys grow with every insert and never change: listings page on them.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, ForeignKey, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import JSON, TypeDecorator

# SQLite gives row ids to INTEGER only, and uses a deleted last one again unless told otherwise.
Key = BigInteger().with_variant(Integer(), "sqlite")
GROWING = {"sqlite_autoincrement": True}
# Later migrations can only alter constraints that have names.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, kept in UTC; SQLite has no time zones of its own."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base of the catalog's tables."""

    metadata = MetaData(naming_convention=NAMES)


class PublicationRow(Base):
    """One publication of one table; never updated, never deleted."""

    __tablename__ = "publications"
    __table_args__ = (
        UniqueConstraint("table_name", "version"),
        UniqueConstraint("table_name", "run_id"),
        GROWING,
    )

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    table_name: Mapped[str] = mapped_column(String(512))
    version: Mapped[int] = mapped_column(BigInteger)
    set_name: Mapped[str] = mapped_column(String(255))
    table_format: Mapped[str] = mapped_column(String(16))
    location: Mapped[str] = mapped_column(Text)
    table_id: Mapped[str] = mapped_column(String(64))
    metadata_location: Mapped[str | None] = mapped_column(Text)
    snapshot_id: Mapped[int | None] = mapped_column(BigInteger)
    delta_version: Mapped[int | None] = mapped_column(BigInteger)
    nessie_hash: Mapped[str | None] = mapped_column(String(128), index=True)
    schema_string: Mapped[str] = mapped_column(Text)
    row_count: Mapped[int] = mapped_column(BigInteger)
    file_count: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    index_digest: Mapped[str] = mapped_column(String(64))
    contract_digest: Mapped[str] = mapped_column(String(128))
    verdicts: Mapped[dict[str, Any]] = mapped_column(JSON)
    run_id: Mapped[str] = mapped_column(String(255), index=True)
    partition_key: Mapped[str] = mapped_column(String(255))
    audited: Mapped[bool]
    rollback_of: Mapped[int | None] = mapped_column(BigInteger)
    published_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SetLockRow(Base):
    """Who may publish a set right now; the fencing token outlives the holder."""

    __tablename__ = "set_locks"

    set_name: Mapped[str] = mapped_column(String(255), primary_key=True)
    token: Mapped[int] = mapped_column(BigInteger)
    owner: Mapped[str | None] = mapped_column(String(255))
    host: Mapped[str | None] = mapped_column(String(255))
    pid: Mapped[int | None] = mapped_column(BigInteger)
    process_start: Mapped[str | None] = mapped_column(String(64))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class ShareRow(Base):
    """A share. `declared` ones came from a contract and follow it; the others were made by hand."""

    __tablename__ = "shares"
    __table_args__ = GROWING

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(36), unique=True)
    name: Mapped[str] = mapped_column(String(255))
    name_key: Mapped[str] = mapped_column(String(255), unique=True)
    comment: Mapped[str | None] = mapped_column(Text)
    declared: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SchemaRow(Base):
    """A schema of a share."""

    __tablename__ = "schemas"
    __table_args__ = (UniqueConstraint("share_key", "name_key"), GROWING)

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(255))
    name_key: Mapped[str] = mapped_column(String(255))
    declared: Mapped[bool]


class SharedTableRow(Base):
    """A table of a share, pointing at a table of the ledger by name."""

    __tablename__ = "shared_tables"
    __table_args__ = (UniqueConstraint("schema_key", "name_key"), GROWING)

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(36), unique=True)
    schema_key: Mapped[int] = mapped_column(ForeignKey("schemas.key", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(255))
    name_key: Mapped[str] = mapped_column(String(255))
    lake_table: Mapped[str] = mapped_column(String(512), index=True)
    comment: Mapped[str | None] = mapped_column(Text)
    history: Mapped[bool]
    declared: Mapped[bool]


class RecipientRow(Base):
    """Somebody a share can be granted to."""

    __tablename__ = "recipients"
    __table_args__ = GROWING

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(36), unique=True)
    name: Mapped[str] = mapped_column(String(255))
    name_key: Mapped[str] = mapped_column(String(255), unique=True)
    comment: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class TokenRow(Base):
    """A bearer token of a recipient, known by its SHA-256 only."""

    __tablename__ = "tokens"
    __table_args__ = GROWING

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class GrantRow(Base):
    """A recipient may read a share."""

    __tablename__ = "grants"
    __table_args__ = (UniqueConstraint("recipient_key", "share_key"), GROWING)

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="RESTRICT"))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AuditRow(Base):
    """One request and what became of it."""

    __tablename__ = "audit_log"
    __table_args__ = GROWING

    key: Mapped[int] = mapped_column(Key, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    recipient: Mapped[str | None] = mapped_column(String(255), index=True)
    action: Mapped[str] = mapped_column(String(64))
    object_name: Mapped[str | None] = mapped_column(Text)
    status: Mapped[int]
    error_code: Mapped[str | None] = mapped_column(String(64))
    version: Mapped[int | None] = mapped_column(BigInteger)
    files: Mapped[int | None] = mapped_column(BigInteger)
    request_id: Mapped[str] = mapped_column(String(64))
    ip: Mapped[str | None] = mapped_column(String(64))
    user_agent: Mapped[str | None] = mapped_column(Text)
    elapsed_ms: Mapped[int] = mapped_column(BigInteger)
