"""Operations on shares and the tables in them."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from sqlalchemy import delete, select

from lakeshare_server.catalog.models import (
    MAX_LONG,
    GrantRow,
    GroupGrantRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
)
from lakeshare_server.catalog.sharing.editing import (
    UNCHANGED,
    Edit,
    Unchanged,
    changed_fields,
    changed_name,
    new_row_fields,
    require_free,
    require_name,
    require_owner,
    require_properties,
    require_rule_text,
    touch_row,
)
from lakeshare_server.catalog.sharing.states import (
    Kind,
    Share,
    SharedObject,
    find_object_row,
    find_share_row,
    object_from_row,
    share_from_row,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, NameTaken

Properties = Mapping[str, str]
# The fields of a declared table that only its contract can change.
DECLARED = frozenset({"name", "schema", "lake_table", "comment", "history", "kind"})
# Every database takes this many names in one query.
MAX_SINGLE_LOOKUPS = 500


def create_share(
    edit: Edit,
    name: str,
    *,
    comment: str | None = None,
    display_name: str | None = None,
    properties: Properties | None = None,
    owner: str | None = None,
) -> Share:
    """Creates a share; its owner is the principal that creates it, unless another is named."""
    require_name("share", name)
    require_owner(owner)
    own_properties = require_properties("properties", properties)
    require_free(edit, ShareRow, name)
    row = ShareRow(
        **new_row_fields(edit, name),
        comment=comment,
        display_name=display_name,
        properties=own_properties,
        owner=owner or edit.by,
        declared=False,
    )
    edit.keep(row)
    edit.add(row)
    return edit.changed("create_share", name, None, share_from_row(row))


def alter_share(
    edit: Edit,
    name: str,
    *,
    new_name: str | Unchanged = UNCHANGED,
    comment: str | Unchanged | None = UNCHANGED,
    display_name: str | Unchanged | None = UNCHANGED,
    properties: Properties | Unchanged | None = UNCHANGED,
    owner: str | Unchanged | None = UNCHANGED,
    revision: int | None = None,
) -> Share:
    """Changes the fields that are given; recipients find a renamed share under its new name only."""
    row = find_share_row(edit.session, name)
    before = share_from_row(row)
    fields = changed_fields(comment=comment, display_name=display_name, owner=owner)
    if properties is not UNCHANGED:
        fields["properties"] = require_properties("properties", properties)
    fields |= changed_name(edit, row, new_name)
    require_owner(fields.get("owner"))
    changed = {key for key, value in fields.items() if value != getattr(row, key)}
    if row.declared and edit.keeper != "contracts" and changed & {"name", "comment"}:
        what = f"{row.name} is declared by a contract"
        raise CatalogConflict(what, "Change the contract and apply the shares.")
    touch_row(edit, row, revision)
    edit.keep(row)
    edit.update(row, fields)
    return edit.changed("alter_share", before.name, before, share_from_row(row))


def drop_share(edit: Edit, name: str, *, revision: int | None = None) -> Share:
    """Removes a share with its tables and the grants on it."""
    row = find_share_row(edit.session, name)
    touch_row(edit, row, revision)
    if row.declared and edit.keeper != "contracts":
        what = f"{row.name} is declared by a contract"
        raise CatalogConflict(what, "Take it out of the contract and apply the shares.")
    state = share_from_row(row)
    for model in (GrantRow, GroupGrantRow):
        edit.session.execute(delete(model).where(model.share_key == row.key))
    return edit.delete("drop_share", state.name, row, state)


def add_table(edit: Edit, share: str, table: SharedObject, *, revision: int | None = None) -> SharedObject:
    """Adds a table or view of the lake to a share, before or after its first publication."""
    return add_tables(edit, share, [table], revision=revision)[0]


def add_tables(
    edit: Edit, share: str, tables: Sequence[SharedObject], *, revision: int | None = None
) -> list[SharedObject]:
    """Adds any number of tables or views to a share, with as many queries as one takes."""
    for table in tables:
        require_name("schema", table.schema)
        require_name("table", table.name)
        _require_usable(table.table, table.kind)
        _require_numbers(table.start_version, table.publication)
        require_rule_text("rule", table.rule)
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, revision)
    schemas = _find_or_create_schemas(edit, parent, [table.schema for table in tables])
    rows = [_new_row(edit, table, schemas[table.schema.lower()]) for table in tables]
    _require_all_free(edit, parent, {row.key: row for row in schemas.values()}, rows)
    edit.session.add_all(rows)
    edit.session.flush()
    states = []
    for table, row in zip(tables, rows, strict=True):
        state = object_from_row(row, schemas[table.schema.lower()].name, parent.name)
        states.append(edit.changed("add_table", state.path, None, state))
    return states


def _new_row(edit: Edit, table: SharedObject, schema: SchemaRow) -> SharedTableRow:
    given = ("name", "comment", "history", "start_version", "directory_access", "kind", "rule", "publication")
    row = SharedTableRow(
        **{name: getattr(table, name) for name in given},
        id=str(uuid.uuid4()),
        schema_key=schema.key,
        name_key=table.name.lower(),
        lake_table=table.table,
        declared=False,
        applied=False,
        added_at=edit.at,
        added_by=edit.by,
    )
    edit.keep(row)
    return row


def alter_table(
    edit: Edit,
    share: str,
    schema: str,
    name: str,
    *,
    new_schema: str | Unchanged = UNCHANGED,
    new_name: str | Unchanged = UNCHANGED,
    table: str | Unchanged = UNCHANGED,
    kind: Kind | Unchanged = UNCHANGED,
    comment: str | Unchanged | None = UNCHANGED,
    history: bool | Unchanged = UNCHANGED,
    start_version: int | Unchanged | None = UNCHANGED,
    rule: str | Unchanged | None = UNCHANGED,
    publication: int | Unchanged | None = UNCHANGED,
    directory_access: bool | Unchanged = UNCHANGED,
    revision: int | None = None,
) -> SharedObject:
    """Changes the fields that are given; the table keeps its id. `revision` is the share's.

    Directory access ends if `table` changes and `directory_access` is not given.
    """
    parent, folder, row = find_object_row(edit.session, share, schema, name)
    before = object_from_row(row, folder.name, parent.name)
    fields = changed_fields(
        name=new_name,
        lake_table=table,
        kind=kind,
        comment=comment,
        history=history,
        start_version=start_version,
        rule=rule,
        publication=publication,
        directory_access=directory_access,
    )
    _require_alterable(edit, before, row, fields, new_schema)
    touch_row(edit, parent, revision)
    if not row.declared:
        edit.keep(row)
    left, folder = folder, _move(edit, parent, folder, row, new_schema, fields)
    if fields.get("lake_table", row.lake_table) != row.lake_table:
        # The access was given for the folder of the table that the name stood for.
        fields.setdefault("directory_access", False)
    edit.update(row, fields)
    _remove_if_empty(edit, left)
    return edit.changed("alter_table", before.path, before, object_from_row(row, folder.name, parent.name))


def _move(
    edit: Edit,
    share: ShareRow,
    schema: SchemaRow,
    row: SharedTableRow,
    new_schema: str | Unchanged,
    fields: dict[str, Any],
) -> SchemaRow:
    """Moves a table to its new schema, and requires its new alias to be free; returns the schema."""
    left = schema
    if new_schema is not UNCHANGED and new_schema.lower() != schema.name_key:
        schema = _find_or_create_schemas(edit, share, [new_schema])[new_schema.lower()]
        row.schema_key = schema.key
    if "name" in fields or schema is not left:
        _require_free_name(edit, share, schema, fields.get("name", row.name), row.key)
        fields["name_key"] = fields.get("name", row.name).lower()
    return schema


def remove_table(
    edit: Edit, share: str, schema: str, name: str, *, revision: int | None = None
) -> SharedObject:
    """Removes a table from a share; the share and the grants on it stay."""
    parent, folder, row = find_object_row(edit.session, share, schema, name)
    state = object_from_row(row, folder.name, parent.name)
    touch_row(edit, parent, revision)
    if row.declared and edit.keeper != "contracts":
        what = f"{state.path} is declared by a contract"
        raise CatalogConflict(what, "Take it out of the contract and apply the shares.")
    edit.delete("remove_table", state.path, row, state)
    _remove_if_empty(edit, folder)
    return state


def _require_alterable(
    edit: Edit, before: SharedObject, row: SharedTableRow, fields: dict[str, Any], new_schema: str | Unchanged
) -> None:
    schema = before.schema if new_schema is UNCHANGED else new_schema
    if schema != before.schema:
        require_name("schema", schema)
    if fields.get("name", row.name) != row.name:
        require_name("table", fields["name"])
    _require_usable(fields.get("lake_table", row.lake_table), fields.get("kind", row.kind))
    _require_numbers(fields.get("start_version"), fields.get("publication"))
    require_rule_text("rule", fields.get("rule"))
    changed = {key for key, value in fields.items() if value != getattr(row, key)}
    if schema != before.schema:
        changed.add("schema")
    if row.declared and edit.keeper != "contracts" and changed & DECLARED:
        raise CatalogConflict(
            f"{before.path} is declared by a contract, and so is its {', '.join(sorted(changed & DECLARED))}",
            "Share the table under another name, or change the contract.",
        )


def _require_usable(table: str, kind: str) -> None:
    if not 0 < len(table) <= 512 or not table.isprintable():
        raise BadRequest("table", table, "Name a table of the ledger, like flights.departures.")
    if kind not in get_args(Kind):
        raise BadRequest("kind", kind, f"It is one of {', '.join(get_args(Kind))}.")


def _require_numbers(start_version: int | None, publication: int | None) -> None:
    for field, number in (("start_version", start_version), ("publication", publication)):
        if number is not None and not 0 <= number <= MAX_LONG:
            raise BadRequest(field, number, "Give a version of the table, 0 or more.")


def _find_or_create_schemas(edit: Edit, share: ShareRow, names: Sequence[str]) -> dict[str, SchemaRow]:
    """The schemas of a share by their names in lower case."""
    of_share = select(SchemaRow).where(SchemaRow.share_key == share.key)
    rows = {row.name_key: row for row in edit.session.scalars(of_share)}
    for name in names:
        if name.lower() not in rows:
            is_declared = edit.keeper == "contracts"
            row = SchemaRow(share_key=share.key, name=name, name_key=name.lower(), declared=is_declared)
            edit.session.add(row)
            rows[row.name_key] = row
    edit.session.flush()
    return {name.lower(): rows[name.lower()] for name in names}


def _require_all_free(
    edit: Edit, share: ShareRow, schemas: Mapping[int, SchemaRow], rows: Sequence[SharedTableRow]
) -> None:
    same = select(SharedTableRow).where(SharedTableRow.schema_key.in_(schemas))
    if len(rows) <= MAX_SINGLE_LOOKUPS:
        same = same.where(SharedTableRow.name_key.in_([row.name_key for row in rows]))
    taken = {(row.schema_key, row.name_key): row for row in edit.session.scalars(same)}
    for row in rows:
        other = taken.setdefault((row.schema_key, row.name_key), row)
        if other is not row:
            raise _name_taken(share, schemas[row.schema_key], other)


def _require_free_name(edit: Edit, share: ShareRow, schema: SchemaRow, name: str, key: int | None) -> None:
    same = select(SharedTableRow).filter_by(schema_key=schema.key, name_key=name.lower())
    taken = edit.session.scalars(same).one_or_none()
    if taken is not None and taken.key != key:
        raise _name_taken(share, schema, taken)


def _name_taken(share: ShareRow, schema: SchemaRow, taken: SharedTableRow) -> NameTaken:
    path = f"{share.name}.{schema.name}.{taken.name}"
    return NameTaken(f"{path} is shared already, as {taken.lake_table}", "Choose another alias, or alter it.")


def _remove_if_empty(edit: Edit, schema: SchemaRow) -> None:
    left = select(SharedTableRow.key).where(SharedTableRow.schema_key == schema.key).limit(1)
    if edit.session.scalars(left).one_or_none() is None:
        edit.session.delete(schema)
        edit.session.flush()
