"""Applies files (`lakeshare apply`) or contracts to the catalog, all or nothing.

Also shares single tables by hand. Ids stay the same over every application.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import groupby
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakeshare_server.catalog import credentials, sharing, states
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.declared.documents import explain_error
from lakeshare_server.catalog.declared.files import CurrentObject, DesiredObject, Key, object_key, parents
from lakeshare_server.catalog.declared.plan import (
    UNNAMED,
    Configuration,
    Plan,
    Step,
    plan_files,
    plan_steps,
    read_current,
    read_current_shares,
)
from lakeshare_server.catalog.ledger import alter_followed, follow_table, unfollow_table
from lakeshare_server.catalog.models import SharedTableRow, ShareRow
from lakeshare_server.catalog.sharing import LOCAL_OPERATOR, Edit, editing, require_name
from lakeshare_server.catalog.states import FederationPolicy, SharedTable, find_object_row
from lakeshare_server.errors import BadRequest, CatalogConflict, NotFound
from lakeshare_server.lazy import gc_disabled

RENAMED = {"name": "new_name"}
Policies = Mapping[str, Mapping[str, Any]]
NOT_ARGUMENTS = frozenset({"kept_by", "configuration", "schema", "policies", "members", "authentication"})


def apply_steps(edit: Edit, steps: Iterable[Step]) -> None:
    """Takes the steps in their order; an operation's refusal of an object of a file is raised as DocumentError."""
    # Tables of one share are added together: one by one, 20,000 of them take minutes.
    for (kind, verb, share), group in groupby(steps, lambda step: (step.kind, step.verb, step.key[1])):
        batch = list(group)
        if (kind, verb) == ("table", "create"):
            with _located_in_file(batch):
                sharing.add_tables(edit, share, [SharedTable(**_fields_of(step)) for step in batch])
            continue
        for step in batch:
            with _located_in_file([step]):
                OPERATIONS[kind, verb](edit, step)


@contextmanager
def _located_in_file(batch: Sequence[Step]) -> Iterator[None]:
    """Turns the refusal of an object into a DocumentError with the object's position in its file."""
    try:
        yield
    except (BadRequest, NotFound, CatalogConflict) as error:
        cause = _find_cause(error, [step.desired for step in batch if step.desired is not None])
        if cause is None or cause.origin is None:
            raise
        raise cause.origin.fault(*explain_error(error)) from error


def _find_cause(
    error: BadRequest | NotFound | CatalogConflict, desired: Sequence[DesiredObject]
) -> DesiredObject | None:
    """The object with the refused value, else the one with the longest name in the error, else the first."""
    where = (error.field if isinstance(error, BadRequest) else str(error)).lower()

    def relevance(candidate: DesiredObject) -> tuple[bool, int]:
        has_value = isinstance(error, BadRequest) and error.value in candidate.fields.values()
        return has_value, len(candidate.name) if candidate.name.lower() in where else 0

    return max(desired, key=relevance, default=None)


def _fields_of(step: Step) -> dict[str, Any]:
    """The fields of the desired object: the arguments of the operation that creates it."""
    return {} if step.desired is None else dict(step.desired.fields)


def _changed_fields(step: Step) -> dict[str, Any]:
    """The changed fields, as arguments of the operation that alters the object."""
    return {
        RENAMED.get(difference.field, difference.field): difference.after
        for difference in step.differences
        if difference.field not in NOT_ARGUMENTS
    }


def _follow(edit: Edit, step: Step) -> None:
    if step.desired is None or step.desired.found is None:
        # Only locations of tables that the first plan found unfollowed were read.
        raise CatalogConflict(f"{step.name} has just been unfollowed", "Apply the files again.")
    fields = _fields_of(step)
    start_version = fields.pop("start_version") or 0
    follow_table(edit, step.name, **fields, start_version=start_version, iceberg=step.desired.found.iceberg)


def _alter_followed(edit: Edit, step: Step) -> None:
    fields = _fields_of(step)
    alter_followed(edit, step.name, fields["check_every_s"], fields["start_version"] or 0)


def _alter_table(edit: Edit, step: Step) -> None:
    changed, fields = _changed_fields(step), _fields_of(step)
    if "table" in changed and "directory_access" in fields:
        # Without it, the change of the table would end the access.
        changed["directory_access"] = fields["directory_access"]
    _, share, schema, name = step.key
    sharing.alter_table(edit, share, schema, name, **changed)


def _create_named(edit: Edit, step: Step) -> None:
    fields = _fields_of(step)
    policies = fields.pop("policies", {})
    sharing.NAMED[step.kind].create(edit, **fields)
    _put_policies(edit, step.name, {}, policies)


def _alter_named(edit: Edit, step: Step) -> None:
    changed = _changed_fields(step)
    parts = {each.field: (each.before, each.after) for each in step.differences}
    if "members" in parts:
        before, after = (set(cast(Collection[str], members)) for members in parts["members"])
        changed |= {"add": sorted(after - before), "remove": sorted(before - after)}
    sharing.NAMED[step.kind].alter(edit, step.key[1], **changed)
    if "policies" in parts:
        _put_policies(
            edit, changed.get("new_name", step.name), *cast(tuple[Policies, Policies], parts["policies"])
        )


def _put_policies(edit: Edit, recipient: str, before: Policies, after: Policies) -> None:
    for name in before.keys() - after.keys():
        credentials.drop_policy(edit, recipient, name)
    for name, fields in after.items():
        if before.get(name) != fields:
            fields = {**fields, "audiences": tuple(fields["audiences"])}
            credentials.put_policy(edit, recipient, FederationPolicy(name=name, **fields))


def _put_grant(edit: Edit, step: Step) -> None:
    sharing.grant(edit, step.key[1], **_reader(step), **_fields_of(step))


def _reader(step: Step) -> dict[str, Any]:
    _, _, kind, name = step.key
    return {kind: name}


OPERATIONS: dict[tuple[str, str], Callable[[Edit, Step], object]] = {
    ("followed", "create"): _follow,
    ("followed", "update"): _alter_followed,
    ("followed", "delete"): lambda edit, step: unfollow_table(edit, step.name),
    **{(kind, "create"): _create_named for kind in sharing.NAMED},
    **{(kind, "update"): _alter_named for kind in sharing.NAMED},
    **{
        (kind, "delete"): lambda edit, step: sharing.NAMED[step.kind].drop(edit, step.key[1])
        for kind in sharing.NAMED
    },
    ("table", "update"): _alter_table,
    ("table", "delete"): lambda edit, step: sharing.remove_table(edit, *step.key[1:]),
    ("grant", "create"): _put_grant,
    ("grant", "update"): _put_grant,
    ("grant", "delete"): lambda edit, step: sharing.revoke(edit, step.key[1], **_reader(step)),
}


def plan_changes(
    catalog: Catalog,
    desired: Mapping[Key, DesiredObject],
    *,
    prune: bool = False,
    scope: Configuration = UNNAMED,
) -> Plan:
    """Plans the application of the files; raises DocumentError."""
    with gc_disabled(), catalog.reading() as session:
        return plan_files(desired, read_current(session), prune=prune, scope=scope)


class _RollBack(Exception):
    """Ends the transaction of a dry run."""


def apply_files(
    catalog: Catalog,
    desired: Mapping[Key, DesiredObject],
    principal: str,
    *,
    prune: bool = False,
    scope: Configuration = UNNAMED,
    digest: str | None = None,
    check: Callable[[Edit], None] = lambda _: None,
    dry_run: bool = False,
) -> Plan:
    """Applies the files to the catalog in one transaction; idempotent. Returns the plan that was carried out.

    The transaction of a dry run is rolled back.

    Raises:
        DocumentError: the files cannot be applied, or `check` refuses the result.
        CatalogConflict: `digest` is given and is not that of the plan: files or catalog have changed since.
    """
    if digest is None:
        # Without changes no writer has to wait.
        plan = plan_changes(catalog, desired, prune=prune, scope=scope)
        if not plan.steps:
            return plan
    editor = editing(catalog, principal, keeper="files", configuration=scope.name)
    with suppress(_RollBack), editor as edit:
        plan = plan_files(desired, read_current(edit.session), prune=prune, scope=scope)
        if digest not in (None, plan.digest):
            raise CatalogConflict(
                f"what is to be done is not plan {digest} any more, but {plan.digest}: files or catalog have changed",
                "Look at the plan again, then apply it.",
            )
        apply_steps(edit, plan.steps)
        with _located_in_file(plan.steps):
            check(edit)
        if dry_run:
            raise _RollBack
    return plan


CONTRACTS = "contracts"
DECLARED_FIELDS = ("schema", "name", "table", "comment", "history", "kind", "retire_date", "successor")
OTHER_REMEDIES = {
    "hand": "It was shared by hand; remove it there, or declare another name.",
    "files": "A file of `lakeshare apply` shares it; take it out of there, or declare another name.",
}


@dataclass(frozen=True)
class DeclaredShare:
    """A share as contracts declare it."""

    name: str
    tables: tuple[SharedTable, ...]
    description: str | None = None


@dataclass(frozen=True)
class RetiredTable:
    """A table of the lake that stays where contracts shared it until the end of `date` in UTC, with a notice.

    `successor` is the table of the lake to read instead.
    """

    table: str
    date: date
    successor: str | None = None


@dataclass(frozen=True)
class ShareDiff:
    """The changes of an application, as `share.schema.table` names."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    closed: tuple[str, ...] = ()  # the changed tables whose directory access has ended


def apply_shares(
    catalog: Catalog,
    declared: Sequence[DeclaredShare],
    retired: Sequence[RetiredTable] = (),
    today: date | None = None,
) -> ShareDiff:
    """Makes the declared shares the declared part of the catalog, in one transaction; idempotent.

    Tables that are `retired` stay where they are shared until their date; `today` is by default the day in UTC.

    Raises BadRequest for a name that clients cannot read, that is declared twice, that others have shared, or that is
    of a retired table until its date.
    """
    kept = _list_kept(retired, today)
    diff, steps = _plan_shares(catalog, declared, kept)
    if steps:
        with editing(catalog, CONTRACTS, keeper="contracts") as edit:
            diff, steps = _difference(edit.session, declared, kept)
            apply_steps(edit, steps)
    return diff


def diff_shares(
    catalog: Catalog,
    declared: Sequence[DeclaredShare],
    retired: Sequence[RetiredTable] = (),
    today: date | None = None,
) -> ShareDiff:
    """What `apply_shares` would change; raises as it does."""
    return _plan_shares(catalog, declared, _list_kept(retired, today))[0]


def _list_kept(retired: Sequence[RetiredTable], today: date | None) -> dict[str, RetiredTable]:
    today = today or datetime.now(UTC).date()
    return {each.table: each for each in retired if each.date >= today}


def _plan_shares(
    catalog: Catalog, declared: Sequence[DeclaredShare], kept: Mapping[str, RetiredTable]
) -> tuple[ShareDiff, tuple[Step, ...]]:
    _require_unique_names(declared)
    with catalog.reading() as session:
        diff, steps = _difference(session, declared, kept)
    for step in steps:
        # A new share has a step of its own: its tables' steps need no check of the share's name.
        if step.verb == "create":
            fields = ("share",) if step.kind == "share" else ("schema", "table")
            for field, name in zip(fields, step.key[-len(fields) :], strict=True):
                require_name(field, name)
    return diff, steps


def _require_unique_names(declared: Sequence[DeclaredShare]) -> None:
    seen: set[str] = set()

    def require_unique(field: str, path: str) -> None:
        if path.lower() in seen:
            raise BadRequest(
                field, path, "The name is declared twice; case makes no difference to recipients."
            )
        seen.add(path.lower())

    for share in declared:
        require_unique("share", share.name)
        for schema in {table.schema.lower(): table.schema for table in share.tables}.values():
            require_unique("schema", f"{share.name}/{schema}")
        for table in share.tables:
            require_unique("table", f"{share.name}/{table.schema}/{table.name}")


def _difference(
    session: Session, declared: Sequence[DeclaredShare], retired: Mapping[str, RetiredTable]
) -> tuple[ShareDiff, tuple[Step, ...]]:
    current = read_current_shares(session)
    desired = {item.key: item for item in _list_desired(declared)}
    for item in list(_list_retired(declared, retired, current, desired)):
        desired.setdefault(item.key, item)
    for key in list(desired):
        other = current.get(key)
        if other is not None and not other.declared:
            if key[0] == "table":
                raise BadRequest("table", other.name, OTHER_REMEDIES[other.keeper])
            # A share of files, or made by hand, takes declared tables in and keeps its keeper.
            del desired[key]
    steps = plan_steps(desired, current, "contracts", _list_removed(session, desired, current))
    tables = [step for step in steps if step.kind == "table"]
    touched = {step.key for step in tables}
    diff = ShareDiff(
        added=tuple(step.name for step in tables if step.verb == "create"),
        removed=tuple(step.name for step in tables if step.verb == "delete"),
        changed=tuple(step.name for step in tables if step.verb == "update"),
        unchanged=tuple(
            item.name for item in desired.values() if item.key[0] == "table" and item.key not in touched
        ),
        closed=tuple(step.name for step in tables if _ends_directory_access(step)),
    )
    return diff, steps


def _list_desired(declared: Sequence[DeclaredShare]) -> Iterator[DesiredObject]:
    for share in declared:
        declared_fields = {"name": share.name, "comment": share.description}
        yield DesiredObject(object_key("share", share.name), share.name, declared_fields)
        for table in share.tables:
            fields = {name: getattr(table, name) for name in DECLARED_FIELDS}
            if table.rule is not None:
                fields["rule"] = table.rule
            key = object_key("table", share.name, table.schema, table.name)
            yield DesiredObject(key, f"{share.name}.{table.schema}.{table.name}", fields)


def _list_retired(
    declared: Sequence[DeclaredShare],
    retired: Mapping[str, RetiredTable],
    current: Mapping[Key, CurrentObject],
    desired: Mapping[Key, DesiredObject],
) -> Iterator[DesiredObject]:
    """The shared tables that stay until their date, and their shares; raises BadRequest if a name is taken."""
    aliases = {
        (share.name.lower(), table.table): f"{table.schema}.{table.name}"
        for share in declared
        for table in share.tables
    }
    for item in current.values():
        end = retired.get(str(item.fields.get("table"))) if item.key[0] == "table" and item.declared else None
        if end is None:
            continue
        taken = desired.get(item.key)
        if taken is not None and taken.fields["table"] != end.table:
            hint = f"It stands for {end.table} until {end.date}; share {taken.fields['table']} under another name."
            raise BadRequest("table", item.name, hint)
        share = current[object_key("share", item.key[1])]
        yield DesiredObject(share.key, share.name, {name: share.fields[name] for name in ("name", "comment")})
        fields = {name: item.fields[name] for name in DECLARED_FIELDS}
        fields["retire_date"] = end.date.isoformat()
        fields["successor"] = aliases.get((item.key[1], end.successor or ""))
        yield DesiredObject(item.key, item.name, fields)


def _list_removed(
    session: Session, desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject]
) -> list[Key]:
    removed = [item for item in current.values() if item.declared and item.key not in desired]
    tables = [item.key for item in removed if item.key[0] == "table"]
    shares = [item.key for item in removed if item.key[0] == "share" and not item.applied]
    if not shares:
        return tables
    # A granted share stays, empty: dropping it would drop the grant.
    used = {parent for key in current.keys() - set(tables) for parent in parents(key)}
    used |= {object_key("share", grant.share) for grant in states.list_grants(session)}
    return [*tables, *(key for key in shares if key not in used)]


def _ends_directory_access(step: Step) -> bool:
    """Whether a name with directory access gets another table: the access was given for the first table's folder."""
    return (
        step.verb == "update"
        and step.current is not None
        and any(difference.field == "table" for difference in step.differences)
        and bool(step.current.fields["directory_access"])
    )


def share_table(
    catalog: Catalog,
    share: str,
    table: SharedTable,
    *,
    start_version: int | None = None,
    by: str = LOCAL_OPERATOR,
) -> SharedTable:
    """Shares a table by hand, or changes one, which keeps id and comment; creates the share if it does not exist.

    Raises:
        BadRequest: a name that clients cannot read, or a start version that no table has.
        CatalogConflict: a contract declares a table of that name, or the name stands for another table.
    """
    with editing(catalog, by) as edit:
        row = require_shareable(edit.session, share, table)
        if _is_new_share(edit.session, share):
            sharing.create_share(edit, share)
        if row is None:
            return sharing.add_table(edit, share, replace(table, start_version=start_version))
        fields: dict[str, Any] = {"history": table.history, "start_version": start_version}
        return sharing.alter_table(edit, share, table.schema, table.name, new_name=table.name, **fields)


def require_shareable(session: Session, share: str, table: SharedTable) -> SharedTableRow | None:
    """The row of a shared table that `share_table` would change; None if it would add the table.

    Raises:
        BadRequest: the share would be new, and has a name that clients cannot read.
        CatalogConflict: a contract declares a table of that name, or the name stands for another table.
    """
    try:
        parent, schema, row = find_object_row(session, share, table.schema, table.name)
    except NotFound:
        if _is_new_share(session, share):
            require_name("share", share)
        return None
    if row.declared:
        raise CatalogConflict(
            f"{share}.{table.schema}.{row.name} is declared by a contract",
            "Share the table under another name, or change the contract.",
        )
    if row.lake_table != table.table:
        # Its recipients would read another table without a word.
        raise sharing.name_taken(parent, schema, row)
    return row


def _is_new_share(session: Session, name: str) -> bool:
    return session.scalar(select(ShareRow.key).where(ShareRow.name_key == name.lower())) is None


def allow_directory_access(
    catalog: Catalog, share: str, schema: str, name: str, *, allowed: bool, by: str = LOCAL_OPERATOR
) -> SharedTable:
    """Sets whether recipients can read everything under the prefix of a shared table; raises NotFound."""
    with editing(catalog, by) as edit:
        return sharing.alter_table(edit, share, schema, name, directory_access=allowed)
