"""The tables that a person shares by hand, beside those that contracts declare, each in one step.

Declared tables stay as their contract says; what is made here stays when contracts are applied.
"""

from sqlalchemy import select

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.listings import TableEntry, share_entry, table_entry
from lakeshare_server.catalog.models import ShareRow
from lakeshare_server.catalog.recipients import BY_HAND
from lakeshare_server.catalog.shares import SharedTable
from lakeshare_server.catalog.sharing import (
    Edit,
    SharedObject,
    add_table,
    alter_table,
    create_share,
    editing,
    remove_table,
)
from lakeshare_server.catalog.sharing.look import object_row
from lakeshare_server.errors import CatalogConflict, NotFound


def share_table(
    catalog: Catalog,
    share: str,
    table: SharedTable,
    *,
    start_version: int | None = None,
    by: str = BY_HAND,
) -> TableEntry:
    """Share a table by hand, in a share that is made when it is not there; again it changes it and keeps its id.

    Directory access ends when the name stands for another table of the lake from now on.

    Raises:
        BadRequest: a name the protocol cannot carry, or a start version that no table has.
        CatalogConflict: a contract declares a table of that name.
    """
    with editing(catalog, by) as edit:
        taken = select(ShareRow.key).where(ShareRow.name_key == share.lower())
        if edit.session.scalars(taken).one_or_none() is None:
            create_share(edit, share)
        wanted = SharedObject(
            schema=table.schema,
            name=table.name,
            table=table.table,
            comment=table.comment,
            history=table.history,
            start_version=start_version,
        )
        try:
            *_, row = object_row(edit.session, share, table.schema, table.name)
        except NotFound:
            add_table(edit, share, wanted)
        else:
            if row.declared:
                raise CatalogConflict(
                    f"{share}.{table.schema}.{row.name} is declared by a contract",
                    "Share the table under another name, or change the contract.",
                )
            alter_table(
                edit,
                share,
                table.schema,
                table.name,
                new_name=wanted.name,
                table=wanted.table,
                comment=wanted.comment,
                history=wanted.history,
                start_version=wanted.start_version,
            )
        return _entry(edit, share, table.schema, table.name)


def unshare_table(catalog: Catalog, share: str, schema: str, name: str, *, by: str = BY_HAND) -> None:
    """End the sharing of a table that was shared by hand; its share and the grants on it stay.

    Raises:
        NotFound: there is no such shared table.
        CatalogConflict: a contract declares it.
    """
    with editing(catalog, by) as edit:
        remove_table(edit, share, schema, name)


def allow_directory_access(
    catalog: Catalog, share: str, schema: str, name: str, *, allowed: bool, by: str = BY_HAND
) -> TableEntry:
    """Say whether recipients may read everything under the prefix of a shared table, declared or not.

    Raises:
        NotFound: there is no such shared table.
    """
    with editing(catalog, by) as edit:
        alter_table(edit, share, schema, name, directory_access=allowed)
        return _entry(edit, share, schema, name)


def _entry(edit: Edit, share: str, schema: str, name: str) -> TableEntry:
    grandparent, parent, row = object_row(edit.session, share, schema, name)
    return table_entry(row, parent.name, share_entry(grandparent))
