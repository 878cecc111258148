"""What is shared, under which names."""

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


class ShareRow(Edited, Base):
    """A share. `declared` ones came from a contract, `applied` ones from a file; the others were made by hand.

    The revision counts the edits of the share and of everything in it.
    """

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
    properties: Mapped[dict[str, Any] | None]
    owner: Mapped[Name | None]
    applied: Mapped[bool] = mapped_column(default=False)


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
    """A table or view of a share, pointing at a table of the ledger by name.

    `rule` restricts every recipient of the share; `publication` is the number that is served instead of the latest.
    """

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
    kind: Mapped[str] = mapped_column(ShortText(16), default="TABLE")
    rule: Mapped[str | None]
    publication: Mapped[Long | None]
    applied: Mapped[bool] = mapped_column(default=False)
    added_at: Mapped[datetime | None]
    added_by: Mapped[Name | None]
