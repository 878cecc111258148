"""Shares as contracts declare them, and making the catalog say the same, the way `lakeshare apply` does for files.

Ids stay what they are over every application. What files or hands made, recipients and grants are never touched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.declared.apply import apply_steps
from lakeshare_server.catalog.declared.files import (
    CurrentObject,
    DesiredObject,
    Key,
    parents,
    share_key,
    table_key,
)
from lakeshare_server.catalog.declared.plan import Step, plan_steps, read_current_shares
from lakeshare_server.catalog.listings import TableEntry, share_entry_from_row, table_entry_from_row
from lakeshare_server.catalog.models import ShareRow
from lakeshare_server.catalog.names import require_name
from lakeshare_server.catalog.recipients import LOCAL_OPERATOR
from lakeshare_server.catalog.sharing import (
    Edit,
    SharedObject,
    add_table,
    alter_table,
    create_share,
    editing,
    remove_table,
    states,
)
from lakeshare_server.catalog.sharing.states import Kind, find_object_row
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound

CONTRACTS = "contracts"
OTHER_REMEDIES = {
    "hand": "It was shared by hand; remove it there, or declare another name.",
    "files": "A file of `lakeshare apply` shares it; take it out of there, or declare another name.",
}


@dataclass(frozen=True)
class SharedTable:
    """A table in a share: `schema.name` to recipients, `table` in the ledger."""

    schema: str
    name: str
    table: str
    comment: str | None = None
    history: bool = True  # recipients may read earlier publications by number
    kind: Kind = "TABLE"
    rule: str | None = None  # which partitions are read; None leaves it to whoever sets one by hand


@dataclass(frozen=True)
class DeclaredShare:
    """A share as contracts declare it."""

    name: str
    tables: tuple[SharedTable, ...]
    description: str | None = None


@dataclass(frozen=True)
class ShareDiff:
    """What an application changed, as `share.schema.table` names."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    closed: tuple[str, ...] = ()  # those of the changed whose directory access has ended


def apply_shares(catalog: Catalog, declared: Sequence[DeclaredShare]) -> ShareDiff:
    """Make the declared shares the declared part of the catalog, in one transaction; twice changes nothing.

    Raises:
        BadRequest: a name the protocol cannot carry, or the same name twice, or one that others have shared.
    """
    _require_no_name_twice(declared)
    with catalog.reading() as session:
        diff, steps = _difference(session, declared)
    _require_readable_names(steps)
    if steps:
        with editing(catalog, CONTRACTS, keeper="contracts") as edit:
            diff, steps = _difference(edit.session, declared)
            apply_steps(edit, steps)
    return diff


def _require_readable_names(steps: Sequence[Step]) -> None:
    """Judge the names that come into the catalog; the share of a table has a step of its own when it is new."""
    for step in steps:
        if step.verb == "create":
            fields = ("share",) if step.kind == "share" else ("schema", "table")
            for field, name in zip(fields, step.key[-len(fields) :], strict=True):
                require_name(field, name)


def _require_no_name_twice(declared: Sequence[DeclaredShare]) -> None:
    seen: set[str] = set()
    for field_name, inside, name in _list_names(declared):
        path = "/".join((*inside, name))
        if path.lower() in seen:
            raise BadRequest(
                field_name, path, "The name is declared twice; case makes no difference to recipients."
            )
        seen.add(path.lower())


def _list_names(declared: Sequence[DeclaredShare]) -> Iterator[tuple[str, tuple[str, ...], str]]:
    for share in declared:
        yield "share", (), share.name
        for schema in {table.schema.lower(): table.schema for table in share.tables}.values():
            yield "schema", (share.name,), schema
        for table in share.tables:
            yield "table", (share.name, table.schema), table.name


def _difference(session: Session, declared: Sequence[DeclaredShare]) -> tuple[ShareDiff, tuple[Step, ...]]:
    current = read_current_shares(session)
    desired = {one.key: one for one in _list_desired(declared)}
    for one in list(desired.values()):
        other = current.get(one.key)
        if other is not None and not other.declared:
            if one.key[0] == "table":
                raise BadRequest("table", other.name, OTHER_REMEDIES[other.keeper])
            # A share that others made takes declared tables in, and stays theirs.
            del desired[one.key]
    steps = plan_steps(desired, current, "contracts", _list_unwanted(session, desired, current))
    return _share_diff(desired, steps), steps


def _list_desired(declared: Sequence[DeclaredShare]) -> Iterator[DesiredObject]:
    for share in declared:
        said: dict[str, object] = {"name": share.name, "comment": share.description}
        yield DesiredObject(share_key(share.name), share.name, said)
        for table in share.tables:
            fields: dict[str, object] = {
                "schema": table.schema,
                "name": table.name,
                "table": table.table,
                "kind": table.kind,
                "comment": table.comment,
                "history": table.history,
            }
            if table.rule is not None:
                fields["rule"] = table.rule
            key = table_key(share.name, table.schema, table.name)
            yield DesiredObject(key, f"{share.name}.{table.schema}.{table.name}", fields)


def _list_unwanted(
    session: Session, desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject]
) -> list[Key]:
    removed = [one for one in current.values() if one.declared and one.key not in desired]
    tables = [one.key for one in removed if one.key[0] == "table"]
    shares = [one.key for one in removed if one.key[0] == "share" and not one.applied]
    if not shares:
        return tables
    # A share that somebody was granted stays, empty: dropping it would drop the grant.
    used = {parent for key in current.keys() - set(tables) for parent in parents(key)}
    used |= {share_key(grant.share) for grant in states.list_grants(session)}
    return [*tables, *(key for key in shares if key not in used)]


def _share_diff(desired: Mapping[Key, DesiredObject], steps: Sequence[Step]) -> ShareDiff:
    tables = [step for step in steps if step.kind == "table"]
    touched = {step.key for step in tables}
    return ShareDiff(
        added=tuple(step.name for step in tables if step.verb == "create"),
        removed=tuple(step.name for step in tables if step.verb == "delete"),
        changed=tuple(step.name for step in tables if step.verb == "update"),
        unchanged=tuple(
            one.name for one in desired.values() if one.key[0] == "table" and one.key not in touched
        ),
        closed=tuple(step.name for step in tables if _ends_directory_access(step)),
    )


def _ends_directory_access(step: Step) -> bool:
    """Whoever allowed it looked at what lies in the folder of the table that the name stood for."""
    is_another = any(difference.field == "table" for difference in step.differences)
    return (
        step.current is not None
        and step.verb == "update"
        and is_another
        and bool(step.current.fields["directory_access"])
    )


def share_table(
    catalog: Catalog,
    share: str,
    table: SharedTable,
    *,
    start_version: int | None = None,
    by: str = LOCAL_OPERATOR,
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
        shared = SharedObject(
            schema=table.schema,
            name=table.name,
            table=table.table,
            comment=table.comment,
            history=table.history,
            start_version=start_version,
        )
        try:
            *_, row = find_object_row(edit.session, share, table.schema, table.name)
        except NotFound:
            add_table(edit, share, shared)
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
                new_name=shared.name,
                table=shared.table,
                comment=shared.comment,
                history=shared.history,
                start_version=shared.start_version,
            )
        return _entry(edit, share, table.schema, table.name)


def unshare_table(catalog: Catalog, share: str, schema: str, name: str, *, by: str = LOCAL_OPERATOR) -> None:
    """End the sharing of a table that was shared by hand; its share and the grants on it stay.

    Raises:
        NotFound: there is no such shared table.
        CatalogConflict: a contract declares it.
    """
    with editing(catalog, by) as edit:
        remove_table(edit, share, schema, name)


def allow_directory_access(
    catalog: Catalog, share: str, schema: str, name: str, *, allowed: bool, by: str = LOCAL_OPERATOR
) -> TableEntry:
    """Say whether recipients may read everything under the prefix of a shared table, declared or not.

    Raises:
        NotFound: there is no such shared table.
    """
    with editing(catalog, by) as edit:
        alter_table(edit, share, schema, name, directory_access=allowed)
        return _entry(edit, share, schema, name)


def _entry(edit: Edit, share: str, schema: str, name: str) -> TableEntry:
    grandparent, parent, row = find_object_row(edit.session, share, schema, name)
    return table_entry_from_row(row, parent.name, share_entry_from_row(grandparent))
