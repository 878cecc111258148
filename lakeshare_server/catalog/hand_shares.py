"""The tables that a person shares by hand, beside those that contracts declare.

Declared tables stay as their contract says; what is made here stays when contracts are applied.
"""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.listings import TableEntry, share_entry, table_entry
from lakeshare_server.catalog.models import MAX_LONG, SchemaRow, SharedTableRow, ShareRow
from lakeshare_server.catalog.shares import (
    SharedTable,
    point_at,
    require_name,
    schema_row,
    share_row,
    table_row,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound


def share_table(
    catalog: Catalog, share: str, table: SharedTable, *, start_version: int | None = None
) -> TableEntry:
    """Share a table by hand; again under the same name changes it and keeps its id.

    Directory access ends when the name stands for another table of the lake from now on.

    Raises:
        BadRequest: a name the protocol cannot carry, or a start version that no table has.
        CatalogConflict: a contract declares a table of that name.
    """
    _require_usable(share, table, start_version)
    with catalog.writing() as session:
        parent = share_row(session, share, declared=False)
        schema = schema_row(session, parent, table.schema, declared=False)
        row = table_row(session, schema, table.name)
        if row is None:
            row = SharedTableRow(
                id=str(uuid.uuid4()), schema_key=schema.key, name_key=table.name.lower(), declared=False
            )
            session.add(row)
        elif row.declared:
            raise CatalogConflict(
                f"{parent.name}.{schema.name}.{row.name} is declared by a contract",
                "Share the table under another name, or change the contract.",
            )
        point_at(row, table.table)
        row.name, row.comment = table.name, table.comment
        row.history, row.start_version = table.history, start_version
        session.flush()
        return table_entry(row, schema.name, share_entry(parent))


def unshare_table(catalog: Catalog, share: str, schema: str, name: str) -> None:
    """End the sharing of a table that was shared by hand; its share and the grants on it stay.

    Raises:
        NotFound: there is no such shared table.
        CatalogConflict: a contract declares it.
    """
    with catalog.writing() as session:
        _, parent, row = _existing(session, share, schema, name)
        if row.declared:
            raise CatalogConflict(
                f"{share}.{schema}.{name} is declared by a contract",
                "Take it out of the contract and apply the shares.",
            )
        session.delete(row)
        session.flush()
        siblings = select(SharedTableRow.key).where(SharedTableRow.schema_key == parent.key).limit(1)
        if session.scalars(siblings).one_or_none() is None:
            session.delete(parent)


def allow_directory_access(
    catalog: Catalog, share: str, schema: str, name: str, *, allowed: bool
) -> TableEntry:
    """Say whether recipients may read everything under the prefix of a shared table, declared or not.

    Raises:
        NotFound: there is no such shared table.
    """
    with catalog.writing() as session:
        grandparent, parent, row = _existing(session, share, schema, name)
        row.directory_access = allowed
        session.flush()
        return table_entry(row, parent.name, share_entry(grandparent))


def _require_usable(share: str, table: SharedTable, start_version: int | None) -> None:
    for field, name in (("share", share), ("schema", table.schema), ("table", table.name)):
        require_name(field, name)
    if start_version is not None and not 0 <= start_version <= MAX_LONG:
        raise BadRequest("start_version", start_version, "Give a version of the table, 0 or more.")


def _existing(
    session: Session, share: str, schema: str, name: str
) -> tuple[ShareRow, SchemaRow, SharedTableRow]:
    found = session.execute(
        select(ShareRow, SchemaRow, SharedTableRow)
        .join(SchemaRow, SchemaRow.share_key == ShareRow.key)
        .join(SharedTableRow, SharedTableRow.schema_key == SchemaRow.key)
        .where(
            ShareRow.name_key == share.lower(),
            SchemaRow.name_key == schema.lower(),
            SharedTableRow.name_key == name.lower(),
        )
    ).one_or_none()
    if found is None:
        raise NotFound("[Share/Schema/Table]", f"{share}/{schema}/{name}")
    grandparent, parent, row = found
    return grandparent, parent, row
