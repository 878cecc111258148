"""Followed tables: tables without a pipeline of ours, known by where they are in storage or in a catalog.

Which versions are there is for whoever reads them; a name is published by pipelines or followed, never both.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import MAX_LONG, FollowedTableRow, PublicationRow, SharedTableRow
from lakeshare_server.catalog.names import NAME_HINT, is_name
from lakeshare_server.catalog.recipients import BY_HAND
from lakeshare_server.catalog.sharing.editing import Edit, editing
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound

# How often a followed table is looked at unless something else is said, in seconds.
CHECK_EVERY_S = 10.0
IN_CATALOGS = ("iceberg:", "nessie:")


@dataclass(frozen=True)
class IcebergIdentity:
    """What tells an Iceberg table from another one in its place: its UUID, and the folder it says it is in."""

    table_id: str
    location: str


@dataclass(frozen=True)
class FollowedTable:
    """A followed table; `table` is the lake name that shared tables point to.

    `iceberg` says which Iceberg table it is, None of a Delta table. `applied` ones came from a file.
    """

    table: str
    location: str
    check_every_s: float
    start_version: int
    created_at: datetime
    iceberg: IcebergIdentity | None = None
    applied: bool = False

    def as_json(self) -> dict[str, Any]:
        """The table for the audit log."""
        return {
            "table": self.table,
            "location": self.location,
            "format": "delta" if self.iceberg is None else "iceberg",
            "check_every_s": self.check_every_s,
            "start_version": self.start_version,
            "applied": self.applied,
        }


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
        by: str = BY_HAND,
    ) -> FollowedTable:
        """Follow the table at a location, in a transaction of its own; see `follow_table`."""
        with editing(self.catalog, by) as edit:
            return follow_table(edit, table, location, check_every_s, start_version, iceberg)

    def get(self, table: str) -> FollowedTable | None:
        """The followed table of this lake name."""
        with self.catalog.reading() as session:
            row = _row(session, table)
            return None if row is None else _followed(row)

    def list(self) -> list[FollowedTable]:
        """All followed tables by name."""
        with self.catalog.reading() as session:
            return followed_tables(session)

    def remove(self, table: str, by: str = BY_HAND) -> FollowedTable:
        """Stop following a table, in a transaction of its own; see `unfollow_table`."""
        with editing(self.catalog, by) as edit:
            return unfollow_table(edit, table)


def follow_table(
    edit: Edit,
    table: str,
    location: str,
    check_every_s: float,
    start_version: int = 0,
    iceberg: IcebergIdentity | None = None,
) -> FollowedTable:
    """Follow the table at a location; again it changes how often it is checked and where it starts.

    Raises:
        BadRequest: a name or number that cannot be used.
        CatalogConflict: the name is published by pipelines, or followed at another location or as another table.
    """
    _require_usable(location, check_every_s, start_version)
    row = _free_row(edit, table, location, iceberg)
    return _set(edit, row, check_every_s, start_version)


def alter_followed(edit: Edit, table: str, check_every_s: float, start_version: int) -> FollowedTable:
    """Change how often a followed table is checked and where it starts.

    Raises:
        NotFound: no table is followed under this name.
        BadRequest: a number cannot be used.
    """
    row = _known_row(edit.session, table)
    _require_usable(row.location, check_every_s, start_version)
    return _set(edit, row, check_every_s, start_version)


def unfollow_table(edit: Edit, table: str) -> FollowedTable:
    """Follow a table no more; what shares it stays and answers like a table that was never published.

    Directory access to it ends: the next table of this name may lie in another folder.

    Raises:
        NotFound: no table is followed under this name.
    """
    row = _known_row(edit.session, table)
    edit.session.delete(row)
    shared = update(SharedTableRow).where(SharedTableRow.lake_table == table)
    edit.session.execute(shared.values(directory_access=False))
    found = _followed(row)
    edit.changed("unfollow_table", table, found.as_json(), None)
    return found


def is_many(location: str) -> bool:
    """Whether a location has a star for the table: it stands for all tables of a folder or a namespace."""
    if location.startswith(IN_CATALOGS):
        return location.partition("@")[0].endswith(".*")
    return location.endswith("/*")


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


def _set(edit: Edit, row: FollowedTableRow, check_every_s: float, start_version: int) -> FollowedTable:
    before = _followed(row) if row in edit.session else None
    row.check_every_s, row.start_version = float(check_every_s), start_version
    edit.keep(row)
    edit.session.add(row)
    edit.session.flush()
    after = _followed(row)
    if before is None:
        edit.changed("follow_table", row.table_name, None, after.as_json())
    elif before != after:
        edit.changed("alter_followed_table", row.table_name, before.as_json(), after.as_json())
    return after


def _free_row(edit: Edit, table: str, location: str, iceberg: IcebergIdentity | None) -> FollowedTableRow:
    published = select(PublicationRow.key).where(PublicationRow.table_name == table, PublicationRow.audited)
    if edit.session.scalars(published.limit(1)).one_or_none() is not None:
        raise CatalogConflict(
            f"{table} is published by pipelines; the ledger numbers its versions",
            "Follow the table under another name.",
        )
    row = _row(edit.session, table)
    if row is None:
        require_table_name("table", table)
        _require_format(edit.session, table, "delta" if iceberg is None else "iceberg")
        return FollowedTableRow(
            table_name=table,
            location=location,
            table_id=None if iceberg is None else iceberg.table_id,
            table_location=None if iceberg is None else iceberg.location,
            created_at=edit.at,
            applied=False,
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


def _require_format(session: Session, table: str, table_format: str) -> None:
    """Refuse a table of another format than the one whose versions are numbered under its name."""
    numbered = select(PublicationRow.table_format).where(PublicationRow.table_name == table)
    known = session.scalars(numbered.order_by(PublicationRow.version.desc()).limit(1)).one_or_none()
    if known not in (None, table_format):
        raise CatalogConflict(
            f"{table} has versions in the format {known}, and the table to follow is in the format {table_format}",
            "Follow it under another name: numbers are given once.",
        )


def _known_row(session: Session, table: str) -> FollowedTableRow:
    row = _row(session, table)
    if row is None:
        raise NotFound("Followed table", table)
    return row


def _row(session: Session, table: str) -> FollowedTableRow | None:
    return session.scalars(select(FollowedTableRow).where(FollowedTableRow.table_name == table)).one_or_none()


def _followed(row: FollowedTableRow) -> FollowedTable:
    return FollowedTable(
        row.table_name,
        row.location,
        row.check_every_s,
        row.start_version,
        row.created_at,
        _identity(row),
        row.applied,
    )


def _identity(row: FollowedTableRow) -> IcebergIdentity | None:
    if row.table_id is None or row.table_location is None:
        return None
    return IcebergIdentity(row.table_id, row.table_location)
