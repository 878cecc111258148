"""The plan of `lakeshare apply`: the steps from the catalog to the files; and the export of the catalog as a file.

Files state all fields of the objects they name. An object that they do not name is removed with `--prune` only, and
only if files created it, never an object of a contract or made by hand.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import yaml
from sqlalchemy.orm import Session

from lakeshare_server.catalog import states
from lakeshare_server.catalog.declared import documents as parts
from lakeshare_server.catalog.declared.documents import OF_CONTRACTS, Origin, raise_all
from lakeshare_server.catalog.declared.files import (
    KINDS,
    CurrentObject,
    DesiredObject,
    Key,
    compared_fields,
    grant_key,
    grant_name,
    object_key,
    parents,
)
from lakeshare_server.catalog.ledger import CHECK_EVERY_S, FollowedTable, followed_tables
from lakeshare_server.catalog.sharing import NAME_HINT, Keeper, is_name, require_name
from lakeshare_server.catalog.states import Grant, Group, RecipientState, Share, SharedTable
from lakeshare_server.errors import DocumentError

Verb = Literal["create", "update", "delete"]
# The first table of a schema sets the spelling of its name; tables of another spelling are in the same schema.
UNCOMPARED = frozenset({"schema"})
# Left out of exports, and of the differences of a created or removed object.
DEFAULTS = {
    "kind": "TABLE",
    "history": True,
    "authentication": "TOKEN",
    "directory_access": False,
    "check_every_s": CHECK_EVERY_S,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field's value in the catalog and in the source; the field `kept_by` is the object's keeper."""

    field: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Step:
    """One object to create, change or remove."""

    verb: Verb
    key: Key
    name: str
    differences: tuple[Difference, ...]
    desired: DesiredObject | None = None
    current: CurrentObject | None = None

    @property
    def kind(self) -> str:
        """The kind of object, one of `KINDS`."""
        return self.key[0]


def plan_steps(
    desired: Mapping[Key, DesiredObject],
    current: Mapping[Key, CurrentObject],
    keeper: Keeper,
    removed: Collection[Key] = (),
    configuration: str | None = None,
) -> tuple[Step, ...]:
    """Plans the steps from `current` to `desired`, in an order in which they can be taken."""
    creations = [
        step
        for item in desired.values()
        for step in _plan_step(item, current.get(item.key), keeper, configuration)
    ]
    deletions = [
        Step("delete", key, item.name, tuple(_differences(item.fields, is_removed=True)), current=item)
        for key, item in ((key, current[key]) for key in removed)
    ]
    # Grants and tables are removed first: an alias may move to another table.
    deletions.sort(key=lambda step: KINDS.index(step.kind), reverse=True)
    creations.sort(key=lambda step: KINDS.index(step.kind))
    early = [step for step in deletions if step.kind in ("grant", "table")]
    late = [step for step in deletions if step.kind not in ("grant", "table")]
    return (*early, *creations, *late)


def _plan_step(
    desired: DesiredObject, current: CurrentObject | None, keeper: Keeper, configuration: str | None
) -> Iterator[Step]:
    if current is None:
        yield Step("create", desired.key, desired.name, tuple(_differences(desired.fields)), desired)
        return
    changed = [
        Difference(name, current.fields[name], value)
        for name, value in desired.fields.items()
        if name not in UNCOMPARED and current.fields[name] != value
    ]
    is_kept = current.declared if keeper == "contracts" else current.applied
    if not (desired.of_contract or is_kept):
        changed.append(Difference("kept_by", current.keeper, keeper))
    elif keeper == "files" and is_kept and current.configuration != configuration:
        changed.append(Difference("configuration", current.configuration, configuration))
    if changed:
        yield Step("update", desired.key, desired.name, tuple(changed), desired, current)


def _differences(fields: Mapping[str, object], *, is_removed: bool = False) -> Iterator[Difference]:
    for name, value in fields.items():
        if not _is_default(name, value):
            yield Difference(name, value, None) if is_removed else Difference(name, None, value)


def _is_default(name: str, value: object) -> bool:
    """Whether a field needs no mention; the name of an object is its key."""
    return name in ("name", "schema") or value in (None, {}, (), []) or value == DEFAULTS.get(name)


@dataclass(frozen=True, slots=True)
class LeftObject:
    """An object that no file names and that stays.

    `orphan`: files created it, `--prune` removes it. `needed`: as `orphan`, but objects of others depend on it.
    `by_hand`: it was created by hand in a share of the files.
    """

    why: Literal["orphan", "needed", "by_hand"]
    current: CurrentObject


@dataclass(frozen=True)
class Configuration:
    """The files that declare some of the objects, by name; `take_from` is another one whose objects they may take."""

    name: str | None = None
    take_from: str | None = None

    def __post_init__(self) -> None:
        for field, name in (("--configuration", self.name), ("--take-from", self.take_from)):
            if name is not None:
                require_name(field, name)


UNNAMED = Configuration()


@dataclass(frozen=True)
class Plan:
    """The steps of `lakeshare apply`, in order, and the objects that it leaves."""

    steps: tuple[Step, ...]
    left: tuple[LeftObject, ...] = ()
    configuration: str | None = None

    @property
    def digest(self) -> str:
        """Twelve hex digits of a hash of the configuration and the steps."""
        steps = [
            (step.verb, step.key, [(each.field, each.before, each.after) for each in step.differences])
            for step in self.steps
        ]
        planned = steps if self.configuration is None else [self.configuration, steps]
        text = json.dumps(planned, default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def drifted(self) -> bool:
        """Whether the catalog differs from the files."""
        return bool(self.steps or self.left)


def plan_files(
    desired: Mapping[Key, DesiredObject],
    current: Mapping[Key, CurrentObject],
    *,
    prune: bool = False,
    scope: Configuration = UNNAMED,
) -> Plan:
    """Plans the steps from the catalog to the files of a configuration; those of others stay.

    Raises:
        DocumentError: the files name an object that does not exist, that a contract declares, that was revoked, that
            is of another configuration, or that has another revision; its `also` holds all further refusals.
    """
    own = [item for item in current.values() if item.applied and item.configuration == scope.name]
    orphans = [item for item in own if item.key not in desired]
    needed = _needed_objects(desired, current, {orphan.key for orphan in orphans})
    removed = [orphan.key for orphan in orphans if prune and orphan.key not in needed]
    steps = plan_steps(desired, current, "files", removed, scope.name)
    faults = _faults(desired, current, frozenset(removed), scope)
    raise_all([*faults, *_stale(steps, desired, current)])
    left = [
        LeftObject("needed" if orphan.key in needed else "orphan", orphan)
        for orphan in orphans
        if orphan.key not in removed
    ]
    left += [
        LeftObject("by_hand", item)
        for item in current.values()
        if item.key not in desired
        and item.keeper == "hand"
        and item.key[0] in ("table", "grant")
        and object_key("share", item.key[1]) in desired
    ]
    return Plan(steps, tuple(left), scope.name)


def _needed_objects(
    desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject], orphans: set[Key]
) -> set[Key]:
    """The orphans in which others have created an object, or which others have granted or shared."""
    stays = [item for item in current.values() if item.key not in orphans]
    needed = {parent for stay in stays for parent in parents(stay.key)}
    # Tables that files share are refused elsewhere if the files no longer follow them.
    shared = (stay for stay in stays if stay.key not in desired or desired[stay.key].of_contract)
    return (needed | set(map(_lake_table_of, shared))) & orphans


def _lake_table_of(item: DesiredObject | CurrentObject) -> Key:
    """The key of the lake's table of a shared table, if that is followed."""
    return object_key("followed", str(item.fields.get("table", "")))


def _faults(
    desired: Mapping[Key, DesiredObject],
    current: Mapping[Key, CurrentObject],
    removed: frozenset[Key],
    scope: Configuration,
) -> Iterator[DocumentError]:
    for item in desired.values():
        if item.origin is not None:
            existing = current.get(item.key)
            yield from _faults_of_object(item, existing, item.origin)
            if existing is not None and existing.configuration not in (None, scope.name, scope.take_from):
                hint = (
                    f"Take it out of the file, or give --take-from {existing.configuration} to move it here."
                )
                yield item.origin.fault(f"{existing.name} is of configuration {existing.configuration}", hint)
            missing = [key for key in _references(item) if key not in desired]
            shared = _lake_table_of(item)
            for kind, name in (key for key in (*missing, shared) if key in removed):
                hint = "Write it into a file again, or apply without --prune."
                yield item.origin.fault(f"{kind} {name} is in no file, and would be removed", hint)
            for kind, name in (key for key in missing if key in current and current[key].is_revoked):
                yield item.origin.fault(f"{kind} {name} was revoked", "Take it out of the file.")
            for kind, name in (key for key in missing if key not in current):
                hint = f"Write the {kind} into a file, or make it first."
                yield item.origin.fault(f"there is no {kind} {name}", hint)


def _faults_of_object(
    item: DesiredObject, existing: CurrentObject | None, origin: Origin
) -> Iterator[DocumentError]:
    if item.of_contract and (existing is None or not existing.declared):
        hint = "Apply the contracts first, or leave out `declared: true` to share it by this file."
        yield origin.fault(f"no contract declares {item.name}", hint)
    if existing is None:
        kind, *names = item.key
        if kind == "followed":
            names = names[0].split(".")
        # The share of a table, and the names in a grant, are of other objects.
        for name in () if kind == "grant" else names[-2:]:
            if not is_name(name):
                yield origin.fault(f"the name {name!r} cannot be used", NAME_HINT)
        return
    if item.key[0] == "table" and existing.declared and not item.of_contract:
        hint = "Take it out of the file, or say `declared: true` and only what contracts do not say."
        yield origin.fault(f"{existing.name} is declared by a contract", hint)
    if existing.is_revoked:
        hint = f"Take it out of the file, or `lakeshare recipient drop {existing.name}` and apply again."
        yield origin.fault(f"recipient {existing.name} was revoked", hint)
    before, after = existing.fields.get("location"), item.fields.get("location")
    if before != after:
        hint = f"Take another name, or `lakeshare table unfollow {existing.name}` and apply again."
        yield origin.fault(f"it is followed at {before}, and cannot be followed at {after}", hint)
    before, after = existing.fields.get("authentication"), item.fields.get("authentication")
    if before != after:
        hint = f"Say {before}, or `lakeshare recipient drop {existing.name}` and apply again."
        yield origin.fault(f"it gets in by {before}, which cannot become {after}", hint)


def _references(item: DesiredObject) -> Iterator[Key]:
    if item.key[0] == "grant":
        _, share, kind, reader = item.key
        yield object_key("share", share)
        yield object_key(kind, reader)
    members = item.fields.get("members", ())
    if isinstance(members, tuple):
        yield from (object_key("recipient", member) for member in members)


def _stale(
    steps: tuple[Step, ...], desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject]
) -> Iterator[DocumentError]:
    """Refusals of edits to objects that have changed since the file was exported."""
    touched = {key: None for step in steps for key in (step.key, *parents(step.key))}
    for item in (desired[key] for key in touched if key in desired):
        existing = current.get(item.key)
        if item.revision is None or item.origin is None:
            continue
        hint = "Export it again and repeat the change there, or leave the revision out."
        if existing is None:
            yield item.origin.fault(f"it is not there any more, at revision {item.revision} or another", hint)
        elif existing.revision != item.revision:
            edited = f"{existing.updated_by or 'another principal'} has edited it since"
            yield item.origin.fault(
                f"it is at revision {existing.revision}, not {item.revision}: {edited}", hint
            )


def read_current(session: Session) -> dict[Key, CurrentObject]:
    """Reads the objects of the catalog that files can declare."""
    recipients = states.list_recipients(session)
    # Files cannot name revoked recipients: their memberships and grants are left out.
    revoked = _revoked(recipients)
    objects = (
        *map(_recipient, recipients),
        *(_group(group, revoked) for group in states.list_groups(session)),
        *map(_followed, followed_tables(session)),
        *read_current_shares(session).values(),
        *(_grant(grant) for grant in states.list_grants(session) if grant.recipient not in revoked),
    )
    return {item.key: item for item in objects}


def _revoked(recipients: Sequence[RecipientState]) -> set[str]:
    return {recipient.name for recipient in recipients if recipient.revoked_at is not None}


def read_current_shares(session: Session) -> dict[Key, CurrentObject]:
    """Reads the shares and their tables: the objects that contracts can declare."""
    objects = (*map(_share, states.list_shares(session)), *map(_table, states.list_objects(session)))
    return {item.key: item for item in objects}


def _current(key: Key, name: str, fields: dict[str, object], state: object, **flags: Any) -> CurrentObject:
    kept = ("declared", "applied", "configuration", "revision", "updated_by", "updated_at")
    known = {flag: getattr(state, flag) for flag in kept if hasattr(state, flag)}
    return CurrentObject(key, name, fields, **(known | flags))


def _followed(table: FollowedTable) -> CurrentObject:
    fields = compared_fields(parts.FollowedPart, table, start_version=table.start_version or None)
    return _current(object_key("followed", table.table), table.table, fields, table)


def _share(share: Share) -> CurrentObject:
    fields = compared_fields(parts.SharePart, share, {"name": share.name})
    return _current(object_key("share", share.name), share.name, fields, share)


def _table(table: SharedTable) -> CurrentObject:
    fields = compared_fields(parts.TablePart, table, {"schema": table.schema, "name": table.name})
    fields |= {"retire_date": table.retire_date, "successor": table.successor}
    key = object_key("table", table.share, table.schema, table.name)
    return _current(key, table.path, fields, table, updated_by=table.added_by)


def _recipient(recipient: RecipientState) -> CurrentObject:
    policies = {policy.name: parts.PolicyPart.of(policy) for policy in recipient.policies}
    fields = compared_fields(parts.RecipientPart, recipient, {"name": recipient.name}, policies=policies)
    key, is_revoked = object_key("recipient", recipient.name), recipient.revoked_at is not None
    return _current(key, recipient.name, fields, recipient, is_revoked=is_revoked)


def _group(group: Group, revoked: Collection[str]) -> CurrentObject:
    members = [member for member in group.members if member not in revoked]
    fields = compared_fields(parts.GroupPart, group, {"name": group.name}, members=members)
    return _current(object_key("group", group.name), group.name, fields, group)


def _grant(grant: Grant) -> CurrentObject:
    fields = compared_fields(parts.GrantPart, grant)
    return _current(grant_key(grant), grant_name(grant), fields, grant, updated_by=grant.created_by)


HEAD = """\
# What this catalog shares with whom; `lakeshare apply -f FILE` makes a catalog hold it. It has no secrets: recipients
# get their profiles by `lakeshare recipient rotate`.
"""


class _Dumper(yaml.CSafeDumper):
    """Writes a text of several lines as a block."""


def _text(dumper: "_Dumper", text: str) -> yaml.ScalarNode:
    # A block cannot have lines that end with blanks.
    is_block = "\n" in text and not any(line != line.rstrip() for line in text.split("\n"))
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if is_block else None)


_Dumper.add_representer(str, _text)


def export(session: Session, *, revisions: bool = False) -> str:
    """The catalog as YAML; with `revisions`, applying an edited export cannot overwrite another edit."""
    shares, recipients = states.list_shares(session), states.list_recipients(session)
    groups, revoked = states.list_groups(session), _revoked(recipients)
    grants = [grant for grant in states.list_grants(session) if grant.recipient not in revoked]
    followed = {table.table: _set_fields(_followed(table)) for table in followed_tables(session)}
    document: dict[str, Any] = {
        "version": 1,
        "followed": {
            name: fields if len(fields) > 1 else fields["location"] for name, fields in followed.items()
        },
        "shares": _export_shares(session, shares, {grant.share for grant in grants}),
        "recipients": {
            state.name: _set_fields(
                _recipient(state),
                policies={
                    policy.name: _without_defaults(parts.PolicyPart.of(policy).model_dump())
                    for policy in state.policies
                },
            )
            for state in recipients
            if state.name not in revoked
        },
        "groups": {
            group.name: _set_fields(
                _group(group, revoked), members=[name for name in group.members if name not in revoked]
            )
            for group in groups
        },
        "grants": [
            _without_defaults(
                {"share": grant.share, "recipient": grant.recipient, "group": grant.group}
                | _set_fields(_grant(grant))
            )
            for grant in grants
        ],
    }
    if revisions:
        for kind, objects in (("shares", shares), ("recipients", recipients), ("groups", groups)):
            for state in objects:
                if state.name in document[kind]:
                    document[kind][state.name]["revision"] = state.revision
    left_out = [state.name for state in recipients if state.name in revoked]
    remark = f"# Revoked, and left out: {', '.join(left_out)}\n" if left_out else ""
    sections = {name: value for name, value in document.items() if value}
    return HEAD + remark + yaml.dump(sections, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _export_shares(session: Session, shares: Sequence[Share], granted: set[str]) -> dict[str, dict[str, Any]]:
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for table in states.list_objects(session):
        fields, path = _set_fields(_table(table)), table.alias
        if table.declared:
            own = {name: value for name, value in fields.items() if name not in OF_CONTRACTS}
            fields = {"declared": True, **own} if own else {}
        elif table.table == path:
            del fields["table"]
        if fields or not table.declared:
            tables.setdefault(table.share, {})[path] = fields
    exported = {}
    for share in shares:
        is_default_owner = share.declared and share.owner == share.created_by
        owner = None if is_default_owner else share.owner
        fields = _set_fields(_share(share), owner=owner, tables=tables.get(share.name, {}))
        if not share.declared or share.name in granted or fields:
            exported[share.name] = fields
    return exported


def _set_fields(item: CurrentObject, **others: object) -> dict[str, Any]:
    """The fields of an object that its file has to state."""
    return _without_defaults({**item.fields, **others})


def _without_defaults(fields: Mapping[str, object]) -> dict[str, Any]:
    return {name: jsonable(value) for name, value in fields.items() if not _is_default(name, value)}


SIGNS = {"create": "+", "update": "~", "delete": "-"}
KEEPERS = {"hand": "an edit by hand", "contracts": "a contract", "files": "files"}
MAX_VALUE_CHARS = 120


def format_plan(plan: Plan) -> Iterator[str]:
    """The plan as text: one line per step with its sign, its differences, and a summary at the end."""
    for step in plan.steps:
        yield f"  {SIGNS[step.verb]} {step.kind} {step.name}{_remark(step)}"
        for difference in step.differences:
            yield f"      {_sign(step, difference)} {difference.field}: {_change(step, difference)}"
    for left in plan.left:
        yield f"  ? {left.current.key[0]} {left.current.name}: {_reason(left)}"
    if plan.steps:
        add, change, remove = _counts(plan)
        yield f"Plan {plan.digest}: {add} to add, {change} to change, {remove} to remove."
    else:
        end = f"; {len(plan.left)} left as they are" if plan.left else ""
        yield f"No changes: the catalog holds what the files say{end}."


def format_applied(plan: Plan) -> str:
    """`Applied: 2 added, 1 changed, 0 removed.`"""
    add, change, remove = _counts(plan)
    return f"Applied: {add} added, {change} changed, {remove} removed."


def _counts(plan: Plan) -> tuple[int, ...]:
    return tuple(sum(step.verb == verb for step in plan.steps) for verb in SIGNS)


def plan_json(plan: Plan) -> dict[str, Any]:
    return {
        "digest": plan.digest,
        "changes": [_step_json(step) for step in plan.steps],
        "left": [
            {
                "kind": left.current.key[0],
                "name": left.current.name,
                "why": left.why,
                "keptBy": left.current.keeper,
            }
            for left in plan.left
        ],
        "summary": dict(zip(SIGNS, _counts(plan), strict=True)),
    }


def _step_json(step: Step) -> dict[str, Any]:
    origin = step.desired.origin if step.desired else None
    found = step.desired.found if step.desired else None
    return {
        "action": step.verb,
        "kind": step.kind,
        "name": step.name,
        "fields": {
            difference.field: {"before": jsonable(difference.before), "after": jsonable(difference.after)}
            for difference in step.differences
        },
        **({} if found is None else {"remark": found.remark}),
        **({} if origin is None else {"file": str(origin.file.path), "line": origin.line}),
    }


def jsonable(value: object) -> Any:
    """A field's value with times as text in UTC."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {key: jsonable(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [jsonable(inner) for inner in value]
    return value


def _remark(step: Step) -> str:
    current = step.current
    if current is None and step.desired is not None and step.desired.found is not None:
        return f"  # {step.desired.found.remark}"
    if step.verb != "update" or current is None or current.updated_at is None:
        return ""
    return f"  # as {current.updated_by or 'another principal'} left it {current.updated_at:%Y-%m-%d %H:%MZ}"


def _sign(step: Step, difference: Difference) -> str:
    if step.verb != "update":
        return SIGNS[step.verb]
    return "+" if difference.before in (None, {}, ()) else "-" if difference.after in (None, {}, ()) else "~"


def _change(step: Step, difference: Difference) -> str:
    before, after = _format_value(difference.before), _format_value(difference.after)
    if difference.field == "kept_by":
        before, after = KEEPERS[str(difference.before)], KEEPERS[str(difference.after)]
    return {"create": after, "delete": before, "update": f"{before} → {after}"}[step.verb]


def _format_value(value: object) -> str:
    if value in (None, {}, ()):
        return "none"
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def _reason(left: LeftObject) -> str:
    if left.why == "orphan":
        return "is in no file any more; --prune removes it"
    if left.why == "needed":
        return "is in no file any more, and stays: others have granted it, or made something in it"
    by = f" by {left.current.updated_by}" if left.current.updated_by else ""
    return f"was made by hand{by} in a share of the files, and stays"
