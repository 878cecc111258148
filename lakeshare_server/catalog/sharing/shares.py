"""Operations on shares."""

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
from lakeshare_server.catalog.names import require_name, require_owner, require_properties, require_rule_text
from lakeshare_server.catalog.sharing.editing import UNCHANGED, Edit, Unchanged, changed_fields, touch_row
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


def create_share(
    edit: Edit,
    name: str,
    *,
    comment: str | None = None,
    display_name: str | None = None,
    properties: Properties | None = None,
    owner: str | None = None,
) -> Share:
    """Make a share; its owner is whoever makes it, if no other is named.

    Raises:
        BadRequest: the name, the owner or a property cannot be used.
        CatalogConflict: the name is taken.
    """
    require_name("share", name)
    require_owner(owner)
    require_properties("properties", properties)
    _require_free(edit, name, None)
    row = ShareRow(
        id=str(uuid.uuid4()),
        name=name,
        name_key=name.lower(),
        comment=comment,
        display_name=display_name,
        properties=dict(properties or {}) or None,
        owner=owner or edit.by,
        declared=False,
        applied=False,
        created_at=edit.at,
        created_by=edit.by,
        revision=1,
    )
    edit.keep(row)
    edit.session.add(row)
    touch_row(edit, row, "Share", name, is_new=True)
    edit.session.flush()
    state = share_from_row(row)
    edit.changed("create_share", name, None, state.as_json())
    return state


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
    """Change what is given; recipients find a renamed share under its new name only.

    Raises:
        NotFound: there is no such share.
        BadRequest: a value cannot be used.
        CatalogConflict: the new name is taken, the revision is another, or a contract declares the name or comment.
    """
    row = find_share_row(edit.session, name)
    before = share_from_row(row)
    fields = changed_fields(comment=comment, display_name=display_name, owner=owner)
    if properties is not UNCHANGED:
        require_properties("properties", properties)
        fields["properties"] = dict(properties or {}) or None
    if new_name is not UNCHANGED:
        if new_name != row.name:
            require_name("share", new_name)
        _require_free(edit, new_name, row.key)
        fields |= {"name": new_name, "name_key": new_name.lower()}
    require_owner(fields.get("owner"))
    is_contracts = row.declared and edit.keeper != "contracts"
    if is_contracts and (
        {"name", "comment"} & {key for key, value in fields.items() if value != getattr(row, key)}
    ):
        raise CatalogConflict(
            f"{row.name} is declared by a contract", "Change the contract and apply the shares."
        )
    touch_row(edit, row, "Share", row.name, revision)
    edit.keep(row)
    for key, value in fields.items():
        setattr(row, key, value)
    edit.session.flush()
    state = share_from_row(row)
    edit.changed("alter_share", before.name, before.as_json(), state.as_json())
    return state


def drop_share(edit: Edit, name: str, *, revision: int | None = None) -> Share:
    """Remove a share with its tables and the grants on it.

    Raises:
        NotFound: there is no such share.
        CatalogConflict: the revision is another, or a contract declares tables in it.
    """
    row = find_share_row(edit.session, name)
    touch_row(edit, row, "Share", row.name, revision)
    if row.declared and edit.keeper != "contracts":
        raise CatalogConflict(
            f"{row.name} is declared by a contract", "Take it out of the contract and apply the shares."
        )
    state = share_from_row(row)
    for model in (GrantRow, GroupGrantRow):
        edit.session.execute(delete(model).where(model.share_key == row.key))
    edit.session.delete(row)
    edit.session.flush()
    edit.changed("drop_share", state.name, state.as_json(), None)
    return state


def _require_free(edit: Edit, name: str, key: int | None) -> None:
    taken = edit.session.scalars(select(ShareRow).where(ShareRow.name_key == name.lower())).one_or_none()
    if taken is not None and taken.key != key:
        raise NameTaken(
            f"there is a share {taken.name} already", "Choose another name; case makes no difference."
        )


DECLARED = frozenset({"name", "schema", "lake_table", "comment", "history", "kind"})

# So many names fit into one question on every database.
MAX_SINGLE_LOOKUPS = 500


def add_table(edit: Edit, share: str, wanted: SharedObject, *, revision: int | None = None) -> SharedObject:
    """Add a table or view of the lake to a share; it need not be published yet.

    Raises:
        NotFound: there is no such share.
        BadRequest: a value cannot be used.
        CatalogConflict: the share has a table of this alias, or the share's revision is another.
    """
    return add_tables(edit, share, [wanted], revision=revision)[0]


def add_tables(
    edit: Edit, share: str, wanted: Sequence[SharedObject], *, revision: int | None = None
) -> list[SharedObject]:
    """Add any number of tables or views to a share, with as many queries as one takes.

    Raises:
        NotFound, BadRequest, CatalogConflict: as `add_table`.
    """
    for one in wanted:
        require_name("schema", one.schema)
        require_name("table", one.name)
        _require_usable(one.table, one.kind)
        _require_numbers(one.start_version, one.publication)
        require_rule_text("rule", one.rule)
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, "Share", parent.name, revision)
    schemas = _schemas(edit, parent, [one.schema for one in wanted])
    rows = [_new_row(edit, one, schemas[one.schema.lower()]) for one in wanted]
    _require_all_free(edit, parent, {row.key: row for row in schemas.values()}, rows)
    edit.session.add_all(rows)
    edit.session.flush()
    states = []
    for one, row in zip(wanted, rows, strict=True):
        states.append(object_from_row(row, schemas[one.schema.lower()].name, parent.name))
        edit.changed("add_table", states[-1].path, None, states[-1].as_json())
    return states


def _new_row(edit: Edit, wanted: SharedObject, schema: SchemaRow) -> SharedTableRow:
    row = SharedTableRow(
        id=str(uuid.uuid4()),
        schema_key=schema.key,
        name=wanted.name,
        name_key=wanted.name.lower(),
        lake_table=wanted.table,
        comment=wanted.comment,
        history=wanted.history,
        start_version=wanted.start_version,
        directory_access=wanted.directory_access,
        kind=wanted.kind,
        rule=wanted.rule,
        publication=wanted.publication,
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
    """Change what is given; the table keeps its id. Directory access ends when the name stands for another table.

    Raises:
        NotFound: there is no such shared table.
        BadRequest: a value cannot be used.
        CatalogConflict: the new alias is taken, the share's revision is another, or a contract declares the field.
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
    touch_row(edit, parent, "Share", parent.name, revision)
    if not row.declared:
        edit.keep(row)
    left, folder = folder, _move(edit, parent, folder, row, new_schema, fields)
    _set(edit, row, fields)
    _remove_if_empty(edit, left)
    state = object_from_row(row, folder.name, parent.name)
    edit.changed("alter_table", before.path, before.as_json(), state.as_json())
    return state


def _set(edit: Edit, row: SharedTableRow, fields: dict[str, Any]) -> None:
    if fields.get("lake_table", row.lake_table) != row.lake_table and "directory_access" not in fields:
        # Whoever allowed it looked at what lies in the folder of the table it stood for.
        row.directory_access = False
    for key, value in fields.items():
        setattr(row, key, value)
    edit.session.flush()


def _move(
    edit: Edit,
    share: ShareRow,
    schema: SchemaRow,
    row: SharedTableRow,
    new_schema: str | Unchanged,
    fields: dict[str, Any],
) -> SchemaRow:
    """The schema that a table is in under its new alias, which nothing else in the share has."""
    left = schema
    if new_schema is not UNCHANGED and new_schema.lower() != schema.name_key:
        schema = _schemas(edit, share, [new_schema])[new_schema.lower()]
        row.schema_key = schema.key
    if "name" in fields or schema is not left:
        _require_free_name(edit, share, schema, fields.get("name", row.name), row.key)
        fields["name_key"] = fields.get("name", row.name).lower()
    return schema


def remove_table(
    edit: Edit, share: str, schema: str, name: str, *, revision: int | None = None
) -> SharedObject:
    """Share a table no more; the share and the grants on it stay.

    Raises:
        NotFound: there is no such shared table.
        CatalogConflict: a contract declares it, or the share's revision is another.
    """
    parent, folder, row = find_object_row(edit.session, share, schema, name)
    state = object_from_row(row, folder.name, parent.name)
    touch_row(edit, parent, "Share", parent.name, revision)
    if row.declared and edit.keeper != "contracts":
        raise CatalogConflict(
            f"{state.path} is declared by a contract", "Take it out of the contract and apply the shares."
        )
    edit.session.delete(row)
    edit.session.flush()
    _remove_if_empty(edit, folder)
    edit.changed("remove_table", state.path, state.as_json(), None)
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


def _schemas(edit: Edit, share: ShareRow, names: Sequence[str]) -> dict[str, SchemaRow]:
    """The schemas of these names, by lower case; made where they are not there."""
    of_share = select(SchemaRow).where(SchemaRow.share_key == share.key)
    found = {row.name_key: row for row in edit.session.scalars(of_share)}
    for name in names:
        if name.lower() not in found:
            is_declared = edit.keeper == "contracts"
            row = SchemaRow(share_key=share.key, name=name, name_key=name.lower(), declared=is_declared)
            edit.session.add(row)
            found[row.name_key] = row
    edit.session.flush()
    return {name.lower(): found[name.lower()] for name in names}


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
    same = select(SharedTableRow).where(
        SharedTableRow.schema_key == schema.key, SharedTableRow.name_key == name.lower()
    )
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
