"""What the columns of the catalog's tables are made of."""

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from sqlalchemy import BigInteger, DateTime, Integer, MetaData, String, Text
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
    type_annotation_map: ClassVar = {
        datetime: UtcDateTime,
        str: AnyText,
        dict[str, Any]: JSON(none_as_null=True),
        list[str]: JSON(none_as_null=True),
    }


class Edited:
    """Columns of what administrators edit: the revision grows with each edit, so that the second of two is told."""

    revision: Mapped[Long] = mapped_column(default=1)
    created_by: Mapped[Name | None]
    updated_at: Mapped[datetime | None]
    updated_by: Mapped[Name | None]
