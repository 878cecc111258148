"""Publications, who may publish, and tables whose versions are found in storage."""

from datetime import datetime
from typing import Any

from sqlalchemy import UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from lakeshare_server.catalog.models.base import GROWING, Base, GrowingKey, Long, Name, ShortText


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


class FollowedTableRow(Base):
    """A table without a pipeline of ours: its versions are found in storage. `applied` ones came from a file."""

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
    applied: Mapped[bool] = mapped_column(default=False)
