"""The plan of `lakeshare apply`: what the files want against what the catalog holds, and what is left as it is.

Files say everything about the objects they name. What they do not name is only removed when it was made by files, and
when that is asked for: what contracts declare and what was made by hand is somebody else's.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy.orm import Session

from lakeshare_server.catalog.declared.documents import Origin, raise_all
from lakeshare_server.catalog.declared.files import (
    KINDS,
    CurrentObject,
    DesiredObject,
    Key,
    followed_key,
    grant_key,
    group_key,
    parents,
    recipient_key,
    share_key,
    table_key,
)
from lakeshare_server.catalog.ledger import CHECK_EVERY_S, FollowedTable, followed_tables
from lakeshare_server.catalog.names import NAME_HINT, is_name
from lakeshare_server.catalog.sharing import states
from lakeshare_server.catalog.sharing.editing import Keeper
from lakeshare_server.catalog.sharing.states import (
    FederationPolicy,
    Grant,
    Group,
    RecipientState,
    Share,
    SharedObject,
)
from lakeshare_server.errors import DocumentError

Verb = Literal["create", "update", "delete"]
# A name's spelling belongs to whoever made the schema first; the tables of both spellings are in one.
UNCOMPARED = frozenset({"schema"})
# What nobody needs to be told of an object that is made or removed.
DEFAULTS = {
    "kind": "TABLE",
    "history": True,
    "authentication": "TOKEN",
    "directory_access": False,
    "check_every_s": CHECK_EVERY_S,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What a field is and what it is to be; `kept_by` says whose the object is from then on."""

    field: str
    before: object
    after: object


@dataclass(frozen=True, slots=True)
class Step:
    """One object to make, change or remove."""

    verb: Verb
    key: Key
    name: str
    differences: tuple[Difference, ...]
    desired: DesiredObject | None = None
    current: CurrentObject | None = None

    @property
    def kind(self) -> str:
        """What it is: a followed table, share, table of a share, recipient, group or grant."""
        return self.key[0]


def plan_steps(
    desired: Mapping[Key, DesiredObject],
    current: Mapping[Key, CurrentObject],
    keeper: Keeper,
    unwanted: Collection[Key] = (),
) -> tuple[Step, ...]:
    """The steps in the order in which they can be taken; none when the catalog holds what is wanted."""
    creations = [step for one in desired.values() for step in _step_to(one, current.get(one.key), keeper)]
    deletions = [_removal(current[key]) for key in unwanted]
    # What goes makes room first: an alias may move to another table.
    deletions.sort(key=lambda step: KINDS.index(step.kind), reverse=True)
    creations.sort(key=lambda step: KINDS.index(step.kind))
    early = [step for step in deletions if step.kind in ("grant", "table")]
    late = [step for step in deletions if step.kind not in ("grant", "table")]
    return (*early, *creations, *late)


def _step_to(desired: DesiredObject, current: CurrentObject | None, keeper: Keeper) -> Iterator[Step]:
    if current is None:
        made = tuple(Difference(name, None, value) for name, value in _non_default_fields(desired.fields))
        yield Step("create", desired.key, desired.name, made, desired)
        return
    changed = [
        Difference(name, current.fields[name], value)
        for name, value in desired.fields.items()
        if name not in UNCOMPARED and current.fields[name] != value
    ]
    if not (desired.of_contract or _is_managed_by(current, keeper)):
        changed.append(Difference("kept_by", current.keeper, keeper))
    if changed:
        yield Step("update", desired.key, desired.name, tuple(changed), desired, current)


def _is_managed_by(current: CurrentObject, keeper: Keeper) -> bool:
    return current.declared if keeper == "contracts" else current.applied


def _removal(current: CurrentObject) -> Step:
    gone = tuple(Difference(name, value, None) for name, value in _non_default_fields(current.fields))
    return Step("delete", current.key, current.name, gone, current=current)


def _non_default_fields(fields: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in fields.items():
        if name not in ("name", "schema") and value not in (None, {}, ()) and value != DEFAULTS.get(name):
            yield name, value


@dataclass(frozen=True, slots=True)
class LeftObject:
    """An object that no file names and that stays.

    `orphan`: files made it, `--prune` removes it. `needed`: likewise, but others made something that goes with it.
    `by_hand`: it was made by hand in a share that the files keep.
    """

    why: Literal["orphan", "needed", "by_hand"]
    current: CurrentObject


@dataclass(frozen=True)
class Plan:
    """What `lakeshare apply` does, in order, and what it leaves."""

    steps: tuple[Step, ...]
    left: tuple[LeftObject, ...] = ()

    @property
    def digest(self) -> str:
        """Twelve letters that are others when anything that is to be done is another."""
        text = json.dumps([_step_digest(step) for step in self.steps], default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def drifted(self) -> bool:
        """Whether the catalog is anything else than the files say."""
        return bool(self.steps or self.left)


def plan_files(
    desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject], *, prune: bool = False
) -> Plan:
    """What has to be done so that the catalog holds what the files want.

    Raises:
        DocumentError: the files name what is not there, what a contract declares, what was revoked, or were written
            for another revision; its `also` holds all further refusals.
    """
    orphans = [one for one in current.values() if one.applied and one.key not in desired]
    needed = _needed_objects(desired, current, {orphan.key for orphan in orphans})
    unwanted = [orphan.key for orphan in orphans if prune and orphan.key not in needed]
    steps = plan_steps(desired, current, "files", unwanted)
    raise_all([*_faults(desired, current, frozenset(unwanted)), *_stale(steps, desired, current)])
    left = [
        LeftObject("needed" if orphan.key in needed else "orphan", orphan)
        for orphan in orphans
        if orphan.key not in unwanted
    ]
    left += [LeftObject("by_hand", one) for one in current.values() if _is_in_kept_share(one, desired)]
    return Plan(steps, tuple(left))


def _step_digest(step: Step) -> list[object]:
    return [
        step.verb,
        step.key,
        [[difference.field, difference.before, difference.after] for difference in step.differences],
    ]


def _needed_objects(
    desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject], orphans: set[Key]
) -> set[Key]:
    """The orphans that others have made something in, have granted, or share."""
    stays = [one for one in current.values() if one.key not in orphans]
    needed = {parent for stay in stays for parent in parents(stay.key)}
    # What files share is in their hands: they are refused when they do not follow it any more.
    shared = (stay for stay in stays if stay.key not in desired or desired[stay.key].of_contract)
    return (needed | set(map(_lake_table_of, shared))) & orphans


def _lake_table_of(one: DesiredObject | CurrentObject) -> Key:
    """The followed table that a table of a share would be; whether it is followed is another question."""
    return followed_key(str(one.fields.get("table", "")))


def _is_in_kept_share(one: CurrentObject, desired: Mapping[Key, DesiredObject]) -> bool:
    return (
        one.key not in desired
        and one.keeper == "hand"
        and one.key[0] in ("table", "grant")
        and share_key(one.key[1]) in desired
    )


def _faults(
    desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject], unwanted: frozenset[Key]
) -> Iterator[DocumentError]:
    for one in desired.values():
        if one.origin is not None:
            yield from _faults_of_object(one, current.get(one.key), one.origin)
            missing = [key for key in _references(one) if key not in desired]
            shared = _lake_table_of(one)
            for kind, name in (key for key in (*missing, shared) if key in unwanted):
                hint = "Write it into a file again, or apply without --prune."
                yield one.origin.fault(f"{kind} {name} is in no file, and would be removed", hint)
            for kind, name in (key for key in missing if key in current and current[key].is_revoked):
                yield one.origin.fault(f"{kind} {name} was revoked", "Take it out of the file.")
            for kind, name in (key for key in missing if key not in current):
                hint = f"Write the {kind} into a file, or make it first."
                yield one.origin.fault(f"there is no {kind} {name}", hint)


def _faults_of_object(
    one: DesiredObject, existing: CurrentObject | None, origin: Origin
) -> Iterator[DocumentError]:
    if one.of_contract and (existing is None or not existing.declared):
        hint = "Apply the contracts first, or leave out `declared: true` to share it by this file."
        yield origin.fault(f"no contract declares {one.name}", hint)
    if existing is None:
        for name in _new_names(one.key):
            if not is_name(name):
                yield origin.fault(f"the name {name!r} cannot be used", NAME_HINT)
        return
    if one.key[0] == "table" and existing.declared and not one.of_contract:
        hint = "Take it out of the file, or say `declared: true` and only what contracts do not say."
        yield origin.fault(f"{existing.name} is declared by a contract", hint)
    if existing.is_revoked:
        hint = f"Take it out of the file, or `lakeshare recipient drop {existing.name}` and apply again."
        yield origin.fault(f"recipient {existing.name} was revoked", hint)
    before, after = existing.fields.get("location"), one.fields.get("location")
    if before != after:
        hint = f"Take another name, or `lakeshare table unfollow {existing.name}` and apply again."
        yield origin.fault(f"it is followed at {before}, and cannot be followed at {after}", hint)
    before, after = existing.fields.get("authentication"), one.fields.get("authentication")
    if before != after:
        hint = f"Say {before}, or `lakeshare recipient drop {existing.name}` and apply again."
        yield origin.fault(f"it gets in by {before}, which cannot become {after}", hint)


def _new_names(key: Key) -> tuple[str, ...]:
    """The names that come into the catalog with an object; the share of a table, and a grant, bring none."""
    kind, *names = key
    if kind == "followed":
        return tuple(names[0].split("."))
    return () if kind == "grant" else tuple(names[-2:])


def _references(one: DesiredObject) -> Iterator[Key]:
    if one.key[0] == "grant":
        _, share, kind, reader = one.key
        yield share_key(share)
        yield recipient_key(reader) if kind == "recipient" else group_key(reader)
    members = one.fields.get("members", ())
    if isinstance(members, tuple):
        yield from map(recipient_key, members)


def _stale(
    steps: tuple[Step, ...], desired: Mapping[Key, DesiredObject], current: Mapping[Key, CurrentObject]
) -> Iterator[DocumentError]:
    """Refusals of edits to what somebody else has edited since the file was exported."""
    touched = {key: None for step in steps for key in (step.key, *parents(step.key))}
    for one in (desired[key] for key in touched if key in desired):
        existing = current.get(one.key)
        if one.revision is None or one.origin is None or (existing and existing.revision == one.revision):
            continue
        hint = "Export it again and repeat the change there, or leave the revision out."
        if existing is None:
            yield one.origin.fault(f"it is not there any more, at revision {one.revision} or another", hint)
        else:
            who = f"{existing.updated_by or 'somebody'} has edited it since"
            yield one.origin.fault(f"it is at revision {existing.revision}, not {one.revision}: {who}", hint)


def read_current(session: Session) -> dict[Key, CurrentObject]:
    """Every object of the catalog that a file or a contract can say something about."""
    return {one.key: one for one in _all(session)}


def read_current_shares(session: Session) -> dict[Key, CurrentObject]:
    """The shares and their tables: what contracts can say something about."""
    return {share.key: share for share in _shares(session)}


def _all(session: Session) -> Iterator[CurrentObject]:
    recipients = states.list_recipients(session)
    # Whoever was revoked reads nothing, as a member or by a grant: no file can say that it does.
    revoked = {recipient.name for recipient in recipients if recipient.revoked_at is not None}
    yield from map(_recipient, recipients)
    yield from (_group(group, revoked) for group in states.list_groups(session))
    yield from map(_followed, followed_tables(session))
    yield from _shares(session)
    yield from (_grant(grant) for grant in states.list_grants(session) if grant.recipient not in revoked)


def _shares(session: Session) -> Iterator[CurrentObject]:
    yield from map(_share, states.list_shares(session))
    yield from map(_table, states.list_objects(session))


def _followed(table: FollowedTable) -> CurrentObject:
    fields: dict[str, object] = {
        "location": table.location,
        "check_every_s": table.check_every_s,
        "start_version": table.start_version or None,
    }
    return CurrentObject(followed_key(table.table), table.table, fields, applied=table.applied)


def _share(share: Share) -> CurrentObject:
    fields: dict[str, object] = {
        "name": share.name,
        "comment": share.comment,
        "display_name": share.display_name,
        "owner": share.owner,
        "properties": dict(share.properties),
    }
    return CurrentObject(
        share_key(share.name),
        share.name,
        fields,
        declared=share.declared,
        applied=share.applied,
        revision=share.revision,
        updated_by=share.updated_by,
        updated_at=share.updated_at,
    )


def _table(table: SharedObject) -> CurrentObject:
    fields: dict[str, object] = {
        "schema": table.schema,
        "name": table.name,
        "table": table.table,
        "kind": table.kind,
        "comment": table.comment,
        "history": table.history,
        "start_version": table.start_version,
        "rule": table.rule,
        "publication": table.publication,
        "directory_access": table.directory_access,
    }
    key = table_key(table.share, table.schema, table.name)
    return CurrentObject(
        key, table.path, fields, declared=table.declared, applied=table.applied, updated_by=table.added_by
    )


def _recipient(recipient: RecipientState) -> CurrentObject:
    fields: dict[str, object] = {
        "name": recipient.name,
        "comment": recipient.comment,
        "owner": recipient.owner,
        "authentication": recipient.authentication,
        "properties": dict(recipient.properties),
        "ip_allow": recipient.ip_allow,
        "expires_at": recipient.expires_at,
        "agreement": recipient.agreement,
        "policies": {
            policy.name: policy_fields(policy)
            for policy in sorted(recipient.policies, key=lambda one: one.name)
        },
    }
    return CurrentObject(
        recipient_key(recipient.name),
        recipient.name,
        fields,
        applied=recipient.applied,
        revision=recipient.revision,
        updated_by=recipient.updated_by,
        updated_at=recipient.updated_at,
        is_revoked=recipient.revoked_at is not None,
    )


def policy_fields(policy: FederationPolicy) -> dict[str, object]:
    """What a file says of a policy."""
    return {
        "issuer": policy.issuer,
        "subject": policy.subject,
        "subject_claim": policy.subject_claim,
        "audiences": list(policy.audiences),
        "comment": policy.comment,
    }


def _group(group: Group, revoked: Collection[str]) -> CurrentObject:
    fields: dict[str, object] = {
        "name": group.name,
        "comment": group.comment,
        "members": tuple(sorted(member.lower() for member in group.members if member not in revoked)),
    }
    return CurrentObject(
        group_key(group.name),
        group.name,
        fields,
        applied=group.applied,
        revision=group.revision,
        updated_by=group.updated_by,
        updated_at=group.updated_at,
    )


def _grant(grant: Grant) -> CurrentObject:
    key = grant_key(grant.share, recipient=grant.recipient, group=grant.group)
    reader = f"recipient {grant.recipient}" if grant.recipient is not None else f"group {grant.group}"
    fields: dict[str, object] = {"starts_at": grant.starts_at, "ends_at": grant.ends_at, "rule": grant.rule}
    return CurrentObject(
        key, f"{grant.share} to {reader}", fields, applied=grant.applied, updated_by=grant.created_by
    )


SIGNS = {"create": "+", "update": "~", "delete": "-"}
KEEPERS = {"hand": "whoever made it by hand", "contracts": "a contract", "files": "files"}
MAX_VALUE_CHARS = 120


def format_plan(plan: Plan) -> Iterator[str]:
    """The plan as people read it: a sign in front of each line, a summary at the end."""
    for step in plan.steps:
        yield f"  {SIGNS[step.verb]} {step.kind} {step.name}{_remark(step)}"
        for difference in step.differences:
            yield f"      {_sign(step, difference)} {difference.field}: {_change(step, difference)}"
    for left in plan.left:
        yield f"  ? {left.current.key[0]} {left.current.name}: {_why(left)}"
    yield format_summary(plan)


def format_summary(plan: Plan) -> str:
    """`Plan 3f2a…: 2 to add, 1 to change, 0 to remove.`"""
    if not plan.steps:
        end = f"; {len(plan.left)} left as they are" if plan.left else ""
        return f"No changes: the catalog holds what the files say{end}."
    add, change, remove = _counts(plan)
    return f"Plan {plan.digest}: {add} to add, {change} to change, {remove} to remove."


def format_applied(plan: Plan) -> str:
    """`Applied: 2 added, 1 changed, 0 removed.`"""
    add, change, remove = _counts(plan)
    return f"Applied: {add} added, {change} changed, {remove} removed."


def _counts(plan: Plan) -> tuple[int, ...]:
    return tuple(sum(step.verb == verb for step in plan.steps) for verb in SIGNS)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan for programs."""
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
    """A value of a field with times as text in UTC."""
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
    return f"  # as {current.updated_by or 'somebody'} left it {current.updated_at:%Y-%m-%d %H:%MZ}"


def _sign(step: Step, one: Difference) -> str:
    if step.verb != "update":
        return SIGNS[step.verb]
    return "+" if one.before in (None, {}, ()) else "-" if one.after in (None, {}, ()) else "~"


def _change(step: Step, one: Difference) -> str:
    if one.field == "kept_by":
        return f"{KEEPERS[str(one.before)]} → {KEEPERS[str(one.after)]}"
    if step.verb == "create":
        return _shown(one.after)
    if step.verb == "delete":
        return _shown(one.before)
    return f"{_shown(one.before)} → {_shown(one.after)}"


def _shown(value: object) -> str:
    if value in (None, {}, ()):
        return "none"
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


def _why(left: LeftObject) -> str:
    if left.why == "orphan":
        return "is in no file any more; --prune removes it"
    if left.why == "needed":
        return "is in no file any more, and stays: others have granted it, or made something in it"
    by = f" by {left.current.updated_by}" if left.current.updated_by else ""
    return f"was made by hand{by} in a share of the files, and stays"
