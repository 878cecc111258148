"""The tables of the catalog as SQLAlchemy models. Migrations make them; nothing here is SQLite-only.

Integer keys grow with every insert and never change: listings page on them.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import BigInteger, DateTime, ForeignKey, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import JSON, TypeDecorator


class AnyText(TypeDecorator[str]):
    """Text of any origin: what not every database takes, NUL and half a surrogate pair, becomes U+FFFD."""

    impl: type[String] = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\x00" not in value):
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")


class ShortText(AnyText):
    """The same, of limited length."""

    impl = String
    cache_ok = True


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


# SQLite gives row ids to INTEGER only, and uses a deleted last one again unless told otherwise.
Key = BigInteger().with_variant(Integer(), "sqlite")
GROWING = {"sqlite_autoincrement": True}
GrowingKey = Annotated[int, mapped_column(Key, primary_key=True, autoincrement=True)]
PublicId = Annotated[str, mapped_column(ShortText(36), unique=True)]
Long = Annotated[int, mapped_column(BigInteger)]
Name = Annotated[str, mapped_column(ShortText(255))]
MAX_LONG = (1 << 63) - 1
# Later migrations can only alter constraints that have names.
NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of the catalog's tables."""

    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map: ClassVar = {datetime: UtcDateTime, str: AnyText, dict[str, Any]: JSON}


class PublicationRow(Base):
    """One publication of one table; never updated, never deleted."""

    __tablename__ = "publications"
    __table_args__ = (
        UniqueConstraint("table_name", "version"),
        UniqueConstraint("table_name", "run_id"),
        GROWING,
    )

    key: Mapped[GrowingKey]
    table_name: Mapped[str] = mapped_column(ShortText(512))
    version: Mapped[Long]
    set_name: Mapped[Name]
    table_format: Mapped[str] = mapped_column(ShortText(16))
    location: Mapped[str]
    table_id: Mapped[str] = mapped_column(ShortText(64))
    metadata_location: Mapped[str | None]
    snapshot_id: Mapped[Long | None]
    schema_id: Mapped[Long | None]
    delta_version: Mapped[Long | None]
    nessie_hash: Mapped[str | None] = mapped_column(ShortText(128), index=True)
    schema_string: Mapped[str]
    row_count: Mapped[Long]
    file_count: Mapped[Long]
    size_bytes: Mapped[Long]
    index_digest: Mapped[str] = mapped_column(ShortText(64))
    contract_digest: Mapped[str] = mapped_column(ShortText(128))
    verdicts: Mapped[dict[str, Any]]
    run_id: Mapped[Name] = mapped_column(index=True)
    partition_key: Mapped[Name]
    audited: Mapped[bool]
    rollback_of: Mapped[Long | None]
    published_at: Mapped[datetime]
    changes_digest: Mapped[str | None] = mapped_column(ShortText(64))


class SetLockRow(Base):
    """Who may publish a set right now; the fencing token outlives the holder."""

    __tablename__ = "set_locks"

    set_name: Mapped[Name] = mapped_column(primary_key=True)
    token: Mapped[Long]
    owner: Mapped[Name | None]
    host: Mapped[Name | None]
    pid: Mapped[Long | None]
    process_start: Mapped[str | None] = mapped_column(ShortText(64))
    expires_at: Mapped[datetime | None]


class ShareRow(Base):
    """A share. `declared` ones came from a contract and follow it; the others were made by hand."""

    __tablename__ = "shares"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    name: Mapped[Name]
    name_key: Mapped[Name] = mapped_column(unique=True)
    comment: Mapped[str | None]
    declared: Mapped[bool]
    created_at: Mapped[datetime]
    display_name: Mapped[Name | None]
    properties: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))


class SchemaRow(Base):
    """A schema of a share."""

    __tablename__ = "schemas"
    __table_args__ = (UniqueConstraint("share_key", "name_key"), GROWING)

    key: Mapped[GrowingKey]
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="CASCADE"))
    name: Mapped[Name]
    name_key: Mapped[Name]
    declared: Mapped[bool]


class SharedTableRow(Base):
    """A table of a share, pointing at a table of the ledger by name."""

    __tablename__ = "shared_tables"
    __table_args__ = (UniqueConstraint("schema_key", "name_key"), GROWING)

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    schema_key: Mapped[int] = mapped_column(ForeignKey("schemas.key", ondelete="CASCADE"))
    name: Mapped[Name]
    name_key: Mapped[Name]
    lake_table: Mapped[str] = mapped_column(ShortText(512), index=True)
    comment: Mapped[str | None]
    history: Mapped[bool]
    declared: Mapped[bool]
    start_version: Mapped[Long | None]
    directory_access: Mapped[bool] = mapped_column(default=False)


class FollowedTableRow(Base):
    """A table without a pipeline of ours: its versions are found in storage. Always made by hand."""

    __tablename__ = "followed_tables"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    table_name: Mapped[str] = mapped_column(ShortText(512), unique=True)
    location: Mapped[str]
    check_every_s: Mapped[float]
    start_version: Mapped[Long]
    table_id: Mapped[str | None] = mapped_column(ShortText(64))
    table_location: Mapped[str | None]
    created_at: Mapped[datetime]


class RecipientRow(Base):
    """Somebody a share can be granted to."""

    __tablename__ = "recipients"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    id: Mapped[PublicId]
    name: Mapped[Name]
    name_key: Mapped[Name] = mapped_column(unique=True)
    comment: Mapped[str | None]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class TokenRow(Base):
    """A bearer token of a recipient, known by its SHA-256 only."""

    __tablename__ = "tokens"
    __table_args__ = GROWING

    key: Mapped[GrowingKey]
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    digest: Mapped[str] = mapped_column(ShortText(64), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class GrantRow(Base):
    """A recipient may read a share."""

    __tablename__ = "grants"
    __table_args__ = (UniqueConstraint("recipient_key", "share_key"), GROWING)

    key: Mapped[GrowingKey]
    recipient_key: Mapped[int] = mapped_column(ForeignKey("recipients.key", ondelete="CASCADE"))
    share_key: Mapped[int] = mapped_column(ForeignKey("shares.key", ondelete="RESTRICT"))
    created_at: Mapped[datetime]


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
    """One request and what became of it."""

    __tablename__ = "audit_log"
    __table_args__ = GROWING

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
