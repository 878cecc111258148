"""The changes that administrators make to shares, recipients, groups and grants; every surface uses them.

`with editing(catalog, by) as edit:` opens a transaction; operations take it first; `states` reads; the operations
on tokens, links and policies are in `credentials`. An operation raises NotFound for an object that does not exist,
BadRequest for a value that cannot be used, and CatalogConflict for a name that is taken, for another `revision` than
the given one, and for what a contract declares.
"""

import ipaddress
import os
import pwd
import re
import unicodedata
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit import AuditEvent, append_events
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import (
    MAX_LONG,
    ActivationRow,
    GrantRow,
    GroupGrantRow,
    GroupMemberRow,
    GroupRow,
    RecipientRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
    TokenRow,
)
from lakeshare_server.catalog.states import (
    Authentication,
    Grant,
    Group,
    JsonState,
    Kind,
    RecipientState,
    Share,
    SharedTable,
    find_group_row,
    find_object_row,
    find_recipient_row,
    find_share_row,
    get_group,
    get_recipient,
    grant_from_row,
    object_from_row,
    share_from_row,
)
from lakeshare_server.errors import BadRequest, CatalogConflict, EditedMeanwhile, NameTaken, NotFound
from lakeshare_server.text_fields import TEXT_FIELDS

LOCAL_OPERATOR = "command line"
Keeper = Literal["contracts", "files", "hand"]
NamedRow = ShareRow | RecipientRow | GroupRow
State = TypeVar("State", bound=JsonState | None)
Removed = TypeVar("Removed", bound=JsonState)


@dataclass(frozen=True)
class Change:
    """A change of one object; `before` is None if it was created, `after` if it was removed."""

    action: str
    object_name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass
class Edit:
    """An open transaction: the principal, its time, the owner of what it creates, and the changes up to now."""

    session: Session
    by: str
    at: datetime
    request_id: str
    keeper: Keeper = "hand"
    configuration: str | None = None
    changes: list[Change] = field(default_factory=list)

    def changed(self, action: str, object_name: str, before: JsonState | None, after: State) -> State:
        """Records a change for the audit log and returns `after`."""
        as_json = [None if state is None else state.as_json() for state in (before, after)]
        self.changes.append(Change(action, object_name, *as_json))
        return after

    def keep(
        self, row: Any
    ) -> None:  # of any model with `applied`, and with `declared` where contracts write
        """Marks a row as owned by the files or contracts that write it; an edit by hand takes nothing over."""
        if self.keeper == "files":
            row.applied, row.configuration = True, self.configuration
        elif self.keeper == "contracts":
            row.declared = True

    def add(self, row: Any) -> None:  # of any model, like the next two
        """Adds a row, and flushes."""
        self.session.add(row)
        self.session.flush()

    def update(self, row: Any, fields: Mapping[str, Any]) -> None:
        """Sets columns of a row, and flushes."""
        for name, value in fields.items():
            if name not in row.__table__.c:
                raise TypeError(f"{row.__tablename__} has no column {name}")
            setattr(row, name, value)
        self.session.flush()

    def alter(self, row: NamedRow, columns: Mapping[str, Any], revision: int | None) -> None:
        """Counts an edit of a row, keeps it, and sets columns; raises EditedMeanwhile for another revision."""
        touch_row(self, row, revision)
        self.keep(row)
        self.update(row, columns)

    def delete(self, action: str, object_name: str, row: Any, state: Removed) -> Removed:
        """Deletes a row, flushes, and records the change; returns `state`, the last one."""
        self.session.delete(row)
        self.session.flush()
        self.changed(action, object_name, state, None)
        return state


def operating_system_user() -> str:
    """The user of this process by the operating system, not by the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in a container whose user has no name
        return f"uid {os.getuid()}"


@contextmanager
def editing(
    catalog: Catalog,
    by: str,
    keeper: Keeper = "hand",
    *,
    configuration: str | None = None,
    request_id: str | None = None,
) -> Iterator[Edit]:
    """Opens a transaction in the name of `by`: all of its operations take effect, or none.

    `keeper` owns the objects that the operations create, files as those of their `configuration`. `request_id` connects
    its events with that request's event.

    Raises:
        BadRequest: `by` is empty or too long.
        CatalogConflict: another writer has just created an object of the same name.
        Unavailable: the database does not answer.
    """
    if not by or len(by) > 255:
        raise BadRequest("by", by, "Name who edits, in 1 to 255 characters.")
    try:
        with catalog.writing() as session:
            edit = Edit(session, by, datetime.now(UTC), request_id or uuid.uuid4().hex, keeper, configuration)
            yield edit
            session.flush()
            events = [
                AuditEvent(
                    kind="change",
                    at=edit.at,
                    principal=edit.by,
                    action=change.action,
                    object_name=change.object_name,
                    request_id=edit.request_id,
                    details={"before": change.before, "after": change.after},
                )
                for change in edit.changes
            ]
            # Last: the next writer of events waits for the end of this transaction.
            append_events(session, events)
    except IntegrityError as error:
        raise NameTaken(
            "another writer has just created or removed an object of this name", "Look again, then repeat it."
        ) from error


def touch_row(edit: Edit, row: NamedRow, expected: int | None = None) -> None:
    """Counts an edit of the row; raises EditedMeanwhile if `expected` is given and is not the row's revision."""
    if expected is not None and expected != row.revision:
        when = f" on {row.updated_at:%Y-%m-%d at %H:%M:%SZ}" if row.updated_at else ""
        raise EditedMeanwhile(
            f"{_kind(type(row)).title()} {row.name} is at revision {row.revision}, not {expected}: "
            f"{row.updated_by or 'another principal'} has edited it{when}",
            "Look at it again, then repeat the change.",
        )
    row.revision += 1
    row.updated_at, row.updated_by = edit.at, edit.by


def _create(edit: Edit, model: Any, name: str, **fields: Any) -> Any:  # of any `NamedRow`
    """Adds a share, recipient or group with these fields; raises BadRequest and NameTaken."""
    require_name(_kind(model), name)
    columns = usable(fields)
    require_free(edit, model, name)
    if "owner" in model.__table__.c:
        columns["owner"] = columns.get("owner") or edit.by
    created = {"created_at": edit.at, "created_by": edit.by, "applied": False, "revision": 1}
    updated = {"updated_at": edit.at, "updated_by": edit.by}
    named = {"id": str(uuid.uuid4()), "name": name, "name_key": name.lower()}
    row = model(**named, **created, **updated, **columns)
    edit.keep(row)
    edit.add(row)
    return row


def _changed_columns(edit: Edit, row: NamedRow, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that changes of a share, recipient or group set; raises BadRequest and NameTaken."""
    columns = usable(changes)
    new_name = columns.pop("new_name", None)
    if new_name is None:
        return columns
    if new_name != row.name:
        require_name(_kind(type(row)), new_name)
    require_free(edit, type(row), new_name, row.key)
    return {**columns, "name": new_name, "name_key": new_name.lower()}


def require_free(edit: Edit, model: Any, name: str, key: int | None = None) -> None:  # of any `NamedRow`
    """Refuses with NameTaken a name that another row than the one with `key` has."""
    row = edit.session.scalars(select(model).where(model.name_key == name.lower())).one_or_none()
    if row is not None and row.key != key:
        hint = {
            ShareRow: "Choose another name; case makes no difference.",
            RecipientRow: "Choose another name. `lakeshare recipient rotate` gives the recipient a new token.",
            GroupRow: "Choose another name.",
        }[model]
        raise NameTaken(f"there is a {_kind(model)} {row.name} already", hint)


def _kind(model: type[Any]) -> str:
    return model.__name__.removesuffix("Row").lower()


NAME_PATTERN = re.compile(r"[^\x00-\x20\x7f/.]{1,255}")
# Clients put names into URLs as they are (delta-sharing 1.4 for Python): there `#` and `?` end the path, and `%` begins
# an escape.
OF_URLS = frozenset("#?%")
SURROGATE = re.compile("[\ud800-\udfff]")
STORABLE_HINT = "Leave out NUL and halves of surrogate pairs: no database keeps them."
# Control characters, white space and halves of surrogate pairs.
INVISIBLE = frozenset({"Cc", "Cs", "Zl", "Zp", "Zs"})
NAME_HINT = "Names have 1 to 255 characters and no space, slash, dot, #, ?, % or control character."
RESERVED = ("databricks.", "lakeshare.")
MAX_PROPERTY_CHARS = 4000
MAX_PROPERTIES = 100
MAX_ADDRESSES = 1000
MAX_RULE_CHARS = 8000


def is_name(name: str) -> bool:
    """Whether clients can read a share, schema, table, recipient, group or policy of this name."""
    return NAME_PATTERN.fullmatch(name) is not None and not any(
        character in OF_URLS or unicodedata.category(character) in INVISIBLE for character in name
    )


def is_storable(text: str) -> bool:
    """Whether each database keeps the text as it is: without NUL and halves of surrogate pairs."""
    return "\x00" not in text and (text.isascii() or SURROGATE.search(text) is None)


def require_storable(field: str, text: str) -> None:
    """Refuses with BadRequest a text that a database does not keep."""
    if not is_storable(text):
        raise BadRequest(field, text, STORABLE_HINT)


def require_name(field: str, name: str) -> None:
    """Refuses with BadRequest a new name that clients cannot read; names in the catalog are not checked again."""
    if not is_name(name):
        raise BadRequest(field, name, NAME_HINT)


def require_text(max_chars: int, hint: str, field: str, text: str | None) -> str | None:
    """Refuses with BadRequest a text that is blank or too long."""
    if text is not None and not 0 < len(text.strip()) <= len(text) <= max_chars:
        raise BadRequest(field, text, hint)
    return text


def require_aware(field: str, moment: datetime | None) -> datetime | None:
    """Refuses with BadRequest a time without its zone."""
    if moment is not None and moment.tzinfo is None:
        raise BadRequest(field, moment.isoformat(), "Give a time with its zone.")
    return moment


def require_choice(choices: Sequence[str], field: str, value: str) -> str:
    """Refuses with BadRequest a value that is none of the choices."""
    if value not in choices:
        raise BadRequest(field, value, f"It is one of {', '.join(choices)}.")
    return value


def require_lake_table(field: str, table: str) -> str:
    """Refuses with BadRequest a text that cannot be the name of a table in the ledger."""
    if not 0 < len(table) <= 512 or not table.isprintable():
        raise BadRequest(field, table, "Name a table of the ledger, like flights.departures.")
    return table


def require_version(field: str, version: int | None) -> int | None:
    """Refuses with BadRequest a number that no version of a table has."""
    if version is not None and not 0 <= version <= MAX_LONG:
        raise BadRequest(field, version, "Give a version of the table, 0 or more.")
    return version


def require_properties(field: str, properties: Mapping[str, str] | None) -> dict[str, str] | None:
    """The column of the properties of a share or a recipient; raises BadRequest for keys or values out of limits."""
    if len(properties or {}) > MAX_PROPERTIES:
        raise BadRequest(field, f"{len(properties or {})} properties", f"Give {MAX_PROPERTIES} at most.")
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not 0 < len(key) <= 255 or not key.isprintable():
            raise BadRequest(field, key, "Keys are texts of 1 to 255 printable characters.")
        if key.lower().startswith(RESERVED):
            hint = f"Keys that begin with {' or '.join(RESERVED)} are reserved; take another."
            raise BadRequest(field, key, hint)
        if not isinstance(value, str) or len(value) > MAX_PROPERTY_CHARS:
            hint = f"Values are texts of up to {MAX_PROPERTY_CHARS} characters."
            raise BadRequest(f"{field}.{key}", value, hint)
        require_storable(f"{field}.{key}", value)
    return dict(properties or {}) or None


def parse_networks(field: str, addresses: Sequence[str] | None) -> list[str] | None:
    """The networks in their canonical form, None for every address; raises BadRequest, also for host bits."""
    if not addresses:
        return None
    if len(addresses) > MAX_ADDRESSES:
        raise BadRequest(field, f"{len(addresses)} addresses", f"Give {MAX_ADDRESSES} at most.")
    networks = []
    for address in addresses:
        try:
            networks.append(str(ipaddress.ip_network(address.strip())))
        except (ValueError, AttributeError) as error:
            hint = "Give an address like 192.0.2.7 or a network like 192.0.2.0/24 or 2001:db8::/32."
            raise BadRequest(field, address, hint) from error
    return list(dict.fromkeys(networks))


def require_rule_text(field: str, rule: str | None) -> str | None:
    """Refuses with BadRequest a rule that is empty, too long or has control characters; its meaning is not checked."""
    printable = "" if rule is None else rule.replace("\n", " ").replace("\t", " ")
    if rule is not None and (not rule.strip() or len(rule) > MAX_RULE_CHARS or not printable.isprintable()):
        limit = f"in up to {MAX_RULE_CHARS} characters, like region = 'EU'."
        raise BadRequest(field, rule, f"Give a predicate on partition columns {limit}")
    return rule


LIMITS = ("requests_per_minute", "urls_per_day", "bytes_per_day")


def require_limits(field: str, limits: Mapping[str, int | None] | None) -> dict[str, int] | None:
    """The column of a recipient's limits, None for those of the settings; raises BadRequest for what is no limit."""
    for name, most in (limits or {}).items():
        if name not in LIMITS:
            raise BadRequest(field, name, f"Limits are {', '.join(LIMITS)}.")
        if most is not None and (
            not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_LONG
        ):
            hint = "Give a whole number of one or more, or none to take the settings'."
            raise BadRequest(f"{field}.{name}", most, hint)
    return {name: most for name, most in (limits or {}).items() if most is not None} or None


# The checks of fields by their names; each returns the value for the column.
CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "owner": partial(require_text, 255, "Name a principal in 1 to 255 characters."),
    "properties": require_properties,
    "authentication": partial(require_choice, get_args(Authentication)),
    "ip_allow": parse_networks,
    "table": require_lake_table,
    "kind": partial(require_choice, get_args(Kind)),
    "rule": require_rule_text,
    **dict.fromkeys(("expires_at", "starts_at", "ends_at"), require_aware),
    **dict.fromkeys(("start_version", "publication"), require_version),
    "limits": require_limits,
    **{text.name: text.check for texts in TEXT_FIELDS.values() for text in texts},
}


def usable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the fields; raises BadRequest for a value that cannot be used."""
    return {name: CHECKS[name](name, value) if name in CHECKS else value for name, value in fields.items()}


# The fields of a declared table that only its contract can change.
DECLARED = frozenset({
    "name", "schema", "lake_table", "comment", "history", "kind", "retire_date", "successor",
})  # fmt: skip
COLUMNS = {"new_name": "name", "table": "lake_table"}
# Every database takes this many names in one query.
MAX_SINGLE_LOOKUPS = 500


def create_share(edit: Edit, name: str, **fields: Any) -> Share:
    """Creates a share; its owner is the principal that creates it, unless another is named."""
    row = _create(edit, ShareRow, name, declared=False, **fields)
    return edit.changed("create_share", name, None, share_from_row(row))


def alter_share(edit: Edit, name: str, *, revision: int | None = None, **changes: Any) -> Share:
    """Changes the fields that are given."""
    row = find_share_row(edit.session, name)
    before = share_from_row(row)
    columns = _changed_columns(edit, row, changes)
    if any(columns.get(key, getattr(row, key)) != getattr(row, key) for key in ("name", "comment")):
        _require_undeclared(edit, row, row.name, "Change the contract and apply the shares.")
    edit.alter(row, columns, revision)
    return edit.changed("alter_share", before.name, before, share_from_row(row))


def _require_undeclared(
    edit: Edit, row: ShareRow | SharedTableRow, name: str, remedy: str, also: str = ""
) -> None:
    if row.declared and edit.keeper != "contracts":
        raise CatalogConflict(f"{name} is declared by a contract{also}", remedy)


def drop_share(edit: Edit, name: str, *, revision: int | None = None) -> Share:
    """Removes a share with its tables and the grants on it."""
    row = find_share_row(edit.session, name)
    touch_row(edit, row, revision)
    _require_undeclared(edit, row, row.name, "Take it out of the contract and apply the shares.")
    state = share_from_row(row)
    for model in (GrantRow, GroupGrantRow):
        edit.session.execute(delete(model).where(model.share_key == row.key))
    return edit.delete("drop_share", state.name, row, state)


def add_table(edit: Edit, share: str, table: SharedTable, *, revision: int | None = None) -> SharedTable:
    """Adds a table or view of the lake to a share, before or after its first publication."""
    return add_tables(edit, share, [table], revision=revision)[0]


def add_tables(
    edit: Edit, share: str, tables: Sequence[SharedTable], *, revision: int | None = None
) -> list[SharedTable]:
    """Adds any number of tables or views to a share, with as many queries as one takes."""
    for table in tables:
        require_name("schema", table.schema)
        require_name("table", table.name)
        usable(vars(table))
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, revision)
    schemas = _find_or_create_schemas(edit, parent, [table.schema for table in tables])
    rows = [_new_row(edit, table, schemas[table.schema.lower()]) for table in tables]
    _require_all_free(edit, parent, {row.key: row for row in schemas.values()}, rows)
    edit.session.add_all(rows)
    edit.session.flush()
    states = []
    for table, row in zip(tables, rows, strict=True):
        state = object_from_row(row, schemas[table.schema.lower()].name, parent)
        states.append(edit.changed("add_table", state.path, None, state))
    return states


def _new_row(edit: Edit, table: SharedTable, schema: SchemaRow) -> SharedTableRow:
    given = "name comment history start_version directory_access kind rule publication retire_date successor"
    row = SharedTableRow(
        **{name: getattr(table, name) for name in given.split()},
        id=str(uuid.uuid4()),
        schema_key=schema.key,
        name_key=table.name.lower(),
        lake_table=table.table,
        declared=False,
        applied=False,
        added_at=edit.at,
        added_by=edit.by,
        retire_noticed_at=None if table.retire_date is None else edit.at,
    )
    edit.keep(row)
    return row


def alter_table(
    edit: Edit, share: str, schema: str, name: str, *, revision: int | None = None, **changes: Any
) -> SharedTable:
    """Changes the fields that are given; the table keeps its id. `revision` is the share's.

    Directory access ends if `table` changes and `directory_access` is not given.
    """
    parent, folder, row = find_object_row(edit.session, share, schema, name)
    before = object_from_row(row, folder.name, parent)
    fields = {COLUMNS.get(field, field): value for field, value in usable(changes).items()}
    new_schema = fields.pop("new_schema", folder.name)
    _require_alterable(edit, before, row, fields, new_schema)
    touch_row(edit, parent, revision)
    if not row.declared:
        edit.keep(row)
    left, folder = folder, _move(edit, parent, folder, row, new_schema, fields)
    if fields.get("lake_table", row.lake_table) != row.lake_table:
        # The access was given for the folder of the table that the name stood for.
        fields.setdefault("directory_access", False)
    if fields.get("retire_date", row.retire_date) != row.retire_date:
        fields["retire_noticed_at"] = None if fields["retire_date"] is None else edit.at
    edit.update(row, fields)
    _remove_if_empty(edit, left)
    return edit.changed("alter_table", before.path, before, object_from_row(row, folder.name, parent))


def _move(
    edit: Edit,
    share: ShareRow,
    schema: SchemaRow,
    row: SharedTableRow,
    new_schema: str,
    fields: dict[str, Any],
) -> SchemaRow:
    """Moves a table to its new schema, and requires its new alias to be free; returns the schema."""
    left = schema
    if new_schema.lower() != schema.name_key:
        schema = _find_or_create_schemas(edit, share, [new_schema])[new_schema.lower()]
    if "name" in fields or schema is not left:
        # Before the row moves: the query would flush it.
        _require_free_name(edit, share, schema, fields.get("name", row.name), row.key)
        fields["name_key"] = fields.get("name", row.name).lower()
    row.schema_key = schema.key
    return schema


def remove_table(
    edit: Edit, share: str, schema: str, name: str, *, revision: int | None = None
) -> SharedTable:
    """Removes a table from a share; the share and the grants on it stay."""
    parent, folder, row = find_object_row(edit.session, share, schema, name)
    state = object_from_row(row, folder.name, parent)
    touch_row(edit, parent, revision)
    _require_undeclared(edit, row, state.path, "Take it out of the contract and apply the shares.")
    edit.delete("remove_table", state.path, row, state)
    _remove_if_empty(edit, folder)
    return state


def _require_alterable(
    edit: Edit, before: SharedTable, row: SharedTableRow, fields: dict[str, Any], schema: str
) -> None:
    if schema != before.schema:
        require_name("schema", schema)
    if fields.get("name", row.name) != row.name:
        require_name("table", fields["name"])
    changed = {key for key, value in fields.items() if value != getattr(row, key)}
    if schema != before.schema:
        changed.add("schema")
    if changed & DECLARED:
        also = f", and so is its {', '.join(sorted(changed & DECLARED))}"
        remedy = "Share the table under another name, or change the contract."
        _require_undeclared(edit, row, before.path, remedy, also)


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
            raise name_taken(share, schemas[row.schema_key], other)


def _require_free_name(edit: Edit, share: ShareRow, schema: SchemaRow, name: str, key: int | None) -> None:
    same = select(SharedTableRow).filter_by(schema_key=schema.key, name_key=name.lower())
    taken = edit.session.scalars(same).one_or_none()
    if taken is not None and taken.key != key:
        raise name_taken(share, schema, taken)


def name_taken(share: ShareRow, schema: SchemaRow, taken: SharedTableRow) -> NameTaken:
    path = f"{share.name}.{schema.name}.{taken.name}"
    return NameTaken(f"{path} is shared already, as {taken.lake_table}", "Choose another alias, or alter it.")


def _remove_if_empty(edit: Edit, schema: SchemaRow) -> None:
    left = select(SharedTableRow.key).where(SharedTableRow.schema_key == schema.key).limit(1)
    if edit.session.scalars(left).one_or_none() is None:
        edit.session.delete(schema)
        edit.session.flush()


def create_recipient(
    edit: Edit, name: str, *, authentication: Authentication = "TOKEN", **fields: Any
) -> RecipientState:
    """Creates a recipient without access: issue a token, create a link or put a federation policy next."""
    _create(edit, RecipientRow, name, authentication=authentication, **fields)
    return edit.changed("create_recipient", name, None, get_recipient(edit.session, name))


def alter_recipient(edit: Edit, name: str, *, revision: int | None = None, **changes: Any) -> RecipientState:
    """Changes the fields that are given."""
    row, before = find_recipient_row(edit.session, name), get_recipient(edit.session, name)
    columns = _changed_columns(edit, row, changes)
    if columns.get("agreement", row.agreement) != row.agreement:
        columns |= {"agreement_accepted_at": None, "agreement_accepted_from": None}
    edit.alter(row, columns, revision)
    return edit.changed("alter_recipient", before.name, before, get_recipient(edit.session, row.name))


def revoke_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """Ends all access of a recipient for good; its name and its audit events stay."""
    row = find_recipient_row(edit.session, name)
    before = get_recipient(edit.session, name)
    touch_row(edit, row, revision)
    row.revoked_at = row.revoked_at or edit.at
    for model in (TokenRow, ActivationRow):
        unrevoked = (model.recipient_key == row.key) & model.revoked_at.is_(None)
        edit.session.execute(update(model).where(unrevoked).values(revoked_at=edit.at))
    edit.session.flush()
    return edit.changed("revoke_recipient", before.name, before, get_recipient(edit.session, name))


def drop_recipient(edit: Edit, name: str, *, revision: int | None = None) -> RecipientState:
    """Removes a recipient with its tokens, links, policies and grants; its name can be used again."""
    row, state = find_recipient_row(edit.session, name), get_recipient(edit.session, name)
    touch_row(edit, row, revision)
    return edit.delete("drop_recipient", row.name, row, state)


def require_not_revoked(row: RecipientRow) -> None:
    """Refuses with BadRequest to give anything to a revoked recipient."""
    if row.revoked_at is not None:
        raise BadRequest("recipient", row.name, "It was revoked; add it under another name.")


def create_group(edit: Edit, name: str, *, comment: str | None = None, members: Sequence[str] = ()) -> Group:
    """Creates a group of recipients."""
    _add_members(edit, _create(edit, GroupRow, name, comment=comment), members)
    return edit.changed("create_group", name, None, get_group(edit.session, name))


def alter_group(
    edit: Edit,
    name: str,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    revision: int | None = None,
    **changes: Any,
) -> Group:
    """Changes the fields that are given; adding a member twice, or removing a non-member, changes nothing."""
    row, before = find_group_row(edit.session, name), get_group(edit.session, name)
    edit.alter(row, _changed_columns(edit, row, changes), revision)
    removed = [find_recipient_row(edit.session, member).key for member in remove]
    own = (GroupMemberRow.group_key == row.key) & GroupMemberRow.recipient_key.in_(removed)
    edit.session.execute(delete(GroupMemberRow).where(own))
    _add_members(edit, row, add)
    return edit.changed("alter_group", before.name, before, get_group(edit.session, row.name))


def drop_group(edit: Edit, name: str, *, revision: int | None = None) -> Group:
    """Removes a group with its grants; its members keep their own."""
    row, state = find_group_row(edit.session, name), get_group(edit.session, name)
    touch_row(edit, row, revision)
    return edit.delete("drop_group", row.name, row, state)


def _add_members(edit: Edit, row: GroupRow, members: Sequence[str]) -> None:
    known = select(GroupMemberRow.recipient_key).where(GroupMemberRow.group_key == row.key)
    keys = {find_recipient_row(edit.session, member).key for member in members}
    new_keys = sorted(keys - set(edit.session.scalars(known)))
    edit.session.add_all(GroupMemberRow(group_key=row.key, recipient_key=key) for key in new_keys)
    edit.session.flush()


def grant(
    edit: Edit,
    share: str,
    *,
    recipient: str | None = None,
    group: str | None = None,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    rule: str | None = None,
    revision: int | None = None,
) -> Grant:
    """Grants a share to a recipient or to the members of a group, or replaces the terms of the existing grant.

    `revision` is the share's. Exactly one of `recipient` and `group` is given.
    """
    terms = usable({"starts_at": starts_at, "ends_at": ends_at, "rule": rule})
    if starts_at is not None and ends_at is not None and ends_at <= starts_at:
        hint = f"It ends after it starts, at {starts_at.isoformat()}."
        raise BadRequest("ends_at", ends_at.isoformat(), hint)
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, revision)
    row, new_row = _find_grant(edit, parent.key, recipient, group)
    before = None if row is None else grant_from_row(row, parent.name, row.reader.name)
    if row is None:
        row = new_row(created_at=edit.at, created_by=edit.by, applied=False)
        edit.session.add(row)
    if recipient is not None:
        require_not_revoked(find_recipient_row(edit.session, recipient))
    edit.keep(row)
    edit.update(row, terms)
    return edit.changed("grant", parent.name, before, grant_from_row(row, parent.name, row.reader.name))


def revoke(
    edit: Edit,
    share: str,
    *,
    recipient: str | None = None,
    group: str | None = None,
    revision: int | None = None,
) -> Grant:
    """Removes the grant of a share to a recipient or to a group; `revision` is the share's."""
    parent = find_share_row(edit.session, share)
    touch_row(edit, parent, revision)
    row, _ = _find_grant(edit, parent.key, recipient, group)
    if row is None:
        raise NotFound("Grant", f"{parent.name} to {recipient or group}")
    return edit.delete("revoke", parent.name, row, grant_from_row(row, parent.name, row.reader.name))


def _find_grant(
    edit: Edit, share_key: int, recipient: str | None, group: str | None
) -> tuple[Any, Callable[..., Any]]:  # rows of grants to recipients, or to groups
    """The row of a grant, if it exists, and the maker of a new one."""
    model: Any
    if recipient is not None and group is None:
        model, reader = GrantRow, {"recipient_key": find_recipient_row(edit.session, recipient).key}
    elif group is not None and recipient is None:
        model, reader = GroupGrantRow, {"group_key": find_group_row(edit.session, group).key}
    else:
        raise BadRequest("recipient,group", f"{recipient}, {group}", "Name one recipient or one group.")
    own = {"share_key": share_key, **reader}
    return edit.session.scalars(select(model).filter_by(**own)).one_or_none(), partial(model, **own)


@dataclass(frozen=True)
class NamedOperations:
    """The operations on one kind of object with a name and a revision; `find` returns its row, or raises NotFound."""

    find: Callable[[Session, str], NamedRow]
    create: Callable[..., Any]
    alter: Callable[..., Any]
    drop: Callable[..., Any]


NAMED: Mapping[str, NamedOperations] = {
    "share": NamedOperations(find_share_row, create_share, alter_share, drop_share),
    "recipient": NamedOperations(find_recipient_row, create_recipient, alter_recipient, drop_recipient),
    "group": NamedOperations(find_group_row, create_group, alter_group, drop_group),
}
