"""Versions of followed tables, found in front of an edit.

What is found in storage is numbered by a write of its own, which would wait for the edit that waits for it: rules are
held against the tables' partitions within the transaction that writes them.
"""

from collections.abc import Iterable, Set

from lakeshare_server.catalog import Catalog, FollowedTables
from lakeshare_server.catalog.sharing.look import grants_on, is_followed, objects
from lakeshare_server.errors import NotFound
from lakeshare_server.versions import Versions


def find_versions_ahead(
    catalog: Catalog, versions: Versions, share: str, tables: Iterable[str], *, writes_rule: bool
) -> None:
    """Find the versions of the tables that rules will be held against: those of the share, and those to come.

    Raises:
        Unavailable: the catalog or the files of a table cannot be read now.
    """
    with catalog.reading() as session:
        try:
            is_needed = writes_rule or any(grant.rule for grant in grants_on(session, share))
            concerned = {one.table for one in objects(session, share)} | set(tables)
        except NotFound:
            # The edit may make it; if not, whoever edits is told so by the operation.
            is_needed, concerned = writes_rule, set(tables)
        followed = sorted(table for table in concerned if is_needed and is_followed(session, table))
    _find(versions, followed)


def find_all_ahead(catalog: Catalog, versions: Versions, tables: Set[str]) -> None:
    """Find the versions of those of the tables that are followed: any number of tables, in one query.

    Raises:
        Unavailable: the catalog or the files of a table cannot be read now.
    """
    _find(versions, sorted(one.table for one in FollowedTables(catalog).list() if one.table in tables))


def _find(versions: Versions, followed: Iterable[str]) -> None:
    for table in followed:
        try:
            versions.of(table).latest()
        except NotFound:
            continue
