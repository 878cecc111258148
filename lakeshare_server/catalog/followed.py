"""Followed tables: tables without a pipeline of ours, known by where they are in storage or in a catalog.

Which versions are there is for whoever reads them; a name is published by pipelines or followed, never both.
"""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import MAX_LONG, FollowedTableRow, PublicationRow, SharedTableRow
from lakeshare_server.catalog.names import NAME_HINT, is_name
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound


@dataclass(frozen=True)
class IcebergIdentity:
    """What tells an Iceberg table from another one in its place: its UUID, and the folder it says it is in."""

    table_id: str
    location: str


@dataclass(frozen=True)
class FollowedTable:
    """A followed table; `table` is the lake name that shared tables point to.

    `iceberg` says which Iceberg table it is, None of a Delta table.
    """

    table: str
    location: str
    check_every_s: float
    start_version: int
    created_at: datetime
    iceberg: IcebergIdentity | None = None


class FollowedTables:
    """The followed tables of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def add(
        self,
        table: str,
        location: str,
        check_every_s: float,
        start_version: int = 0,
        iceberg: IcebergIdentity | None = None,
    ) -> FollowedTable:
        """Follow the table at a location; doing it again changes how often it is checked and where it starts.

        Raises:
            BadRequest: a name or number that cannot be used.
            CatalogConflict: the name is published by pipelines, or followed at another location or as another table.
        """
        _require_usable(location, check_every_s, start_version)
        try:
            with self.catalog.writing() as session:
                row = _free_row(session, table, location, iceberg)
                row.check_every_s, row.start_version = check_every_s, start_version
                session.add(row)
                session.flush()
                return _followed(row)
        except IntegrityError as error:
            raise CatalogConflict(
                f"{table} has just been followed by somebody else", "Look at it, then follow it again."
            ) from error

    def get(self, table: str) -> FollowedTable | None:
        """The followed table of this lake name."""
        with self.catalog.reading() as session:
            row = _row(session, table)
            return None if row is None else _followed(row)

    def list(self) -> list[FollowedTable]:
        """All followed tables by name."""
        with self.catalog.reading() as session:
            return followed_tables(session)

    def remove(self, table: str) -> FollowedTable:
        """Follow a table no more; what shares it stays and answers like a table that was never published.

        Directory access to it ends: the next table of this name may lie in another folder.

        Raises:
            NotFound: no table is followed under this name.
        """
        with self.catalog.writing() as session:
            row = _row(session, table)
            if row is None:
                raise NotFound("Followed table", table)
            session.delete(row)
            shared = update(SharedTableRow).where(SharedTableRow.lake_table == table)
            session.execute(shared.values(directory_access=False))
            return _followed(row)


def followed_tables(session: Session) -> list[FollowedTable]:
    """All followed tables by name."""
    rows = session.scalars(select(FollowedTableRow).order_by(FollowedTableRow.table_name))
    return [_followed(row) for row in rows]


def require_not_followed(session: Session, table: str) -> None:
    """Refuse to publish in this transaction what is followed.

    Raises:
        CatalogConflict: the table is followed.
    """
    row = _row(session, table)
    if row is not None:
        raise CatalogConflict(
            f"{table} is followed at {row.location}, so its versions are found there",
            f"Publish under another name, or end it first: lakeshare table unfollow {table}",
        )


def require_followed(session: Session, table: str, table_id: str) -> None:
    """Refuse to number in this transaction what is followed no more, or is another table by now.

    Raises:
        CatalogConflict: it is not followed as the Iceberg table with this id.
    """
    row = _row(session, table)
    if row is None or row.table_id != table_id:
        raise CatalogConflict(
            f"{table} is not followed any more as the table that was found", "Follow it again."
        )


def require_table_name(field: str, table: str) -> None:
    """Refuse a new name of a followed table that is not `schema.table`, each of them a name that clients can read.

    Raises:
        BadRequest: says what names may be.
    """
    parts = table.split(".")
    if len(parts) != 2 or not all(is_name(part) for part in parts):
        raise BadRequest(field, table, f"Give schema.table, like sales.orders. {NAME_HINT}")


def _require_usable(location: str, check_every_s: float, start_version: int) -> None:
    if not location or "\x00" in location:
        raise BadRequest("location", location, "Give the place of a Delta or Iceberg table.")
    if not (math.isfinite(check_every_s) and check_every_s >= 0):
        raise BadRequest("check_every_s", check_every_s, "Give seconds, 0 or more.")
    if not 0 <= start_version <= MAX_LONG:
        raise BadRequest("start_version", start_version, "Give a version of the table, 0 or more.")


def _free_row(
    session: Session, table: str, location: str, iceberg: IcebergIdentity | None
) -> FollowedTableRow:
    published = (
        select(PublicationRow.key).where(PublicationRow.table_name == table, PublicationRow.audited).limit(1)
    )
    if session.scalars(published).one_or_none() is not None:
        raise CatalogConflict(
            f"{table} is published by pipelines; the ledger numbers its versions",
            "Follow the table under another name.",
        )
    row = _row(session, table)
    if row is None:
        require_table_name("table", table)
        return FollowedTableRow(
            table_name=table,
            location=location,
            table_id=None if iceberg is None else iceberg.table_id,
            table_location=None if iceberg is None else iceberg.location,
            created_at=datetime.now(UTC),
        )
    if row.location != location:
        raise CatalogConflict(
            f"{table} is followed at {row.location} already",
            f"Take another name for {location}, or end it first: lakeshare table unfollow {table}",
        )
    if _identity(row) != iceberg:
        raise CatalogConflict(
            f"{location} has another table than the one that is followed as {table}",
            f"To follow this one, end it first: lakeshare table unfollow {table}",
        )
    return row


def _row(session: Session, table: str) -> FollowedTableRow | None:
    return session.scalars(select(FollowedTableRow).where(FollowedTableRow.table_name == table)).one_or_none()


def _followed(row: FollowedTableRow) -> FollowedTable:
    return FollowedTable(
        row.table_name, row.location, row.check_every_s, row.start_version, row.created_at, _identity(row)
    )


def _identity(row: FollowedTableRow) -> IcebergIdentity | None:
    if row.table_id is None or row.table_location is None:
        return None
    return IcebergIdentity(row.table_id, row.table_location)
