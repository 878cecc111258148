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
    Held,
    Key,
    Wanted,
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
USUAL = {
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
    wanted: Wanted | None = None
    held: Held | None = None

    @property
    def kind(self) -> str:
        """What it is: a followed table, share, table of a share, recipient, group or grant."""
        return self.key[0]


def steps_to(
    wanted: Mapping[Key, Wanted], held: Mapping[Key, Held], keeper: Keeper, unwanted: Collection[Key] = ()
) -> tuple[Step, ...]:
    """The steps in the order in which they can be taken; none when the catalog holds what is wanted."""
    making = [step for one in wanted.values() for step in _step_to(one, held.get(one.key), keeper)]
    removing = [_removal(held[key]) for key in unwanted]
    # What goes makes room first: an alias may move to another table.
    removing.sort(key=lambda step: KINDS.index(step.kind), reverse=True)
    making.sort(key=lambda step: KINDS.index(step.kind))
    early = [step for step in removing if step.kind in ("grant", "table")]
    late = [step for step in removing if step.kind not in ("grant", "table")]
    return (*early, *making, *late)


def _step_to(wanted: Wanted, held: Held | None, keeper: Keeper) -> Iterator[Step]:
    if held is None:
        made = tuple(Difference(name, None, value) for name, value in _unusual(wanted.fields))
        yield Step("create", wanted.key, wanted.name, made, wanted)
        return
    changed = [
        Difference(name, held.fields[name], value)
        for name, value in wanted.fields.items()
        if name not in UNCOMPARED and held.fields[name] != value
    ]
    if not (wanted.of_contract or _is_kept_by(held, keeper)):
        changed.append(Difference("kept_by", held.keeper, keeper))
    if changed:
        yield Step("update", wanted.key, wanted.name, tuple(changed), wanted, held)


def _is_kept_by(held: Held, keeper: Keeper) -> bool:
    return held.declared if keeper == "contracts" else held.applied


def _removal(held: Held) -> Step:
    gone = tuple(Difference(name, value, None) for name, value in _unusual(held.fields))
    return Step("delete", held.key, held.name, gone, held=held)


def _unusual(fields: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in fields.items():
        if name not in ("name", "schema") and value not in (None, {}, ()) and value != USUAL.get(name):
            yield name, value


@dataclass(frozen=True, slots=True)
class Left:
    """An object that no file names and that stays.

    `orphan`: files made it, `--prune` removes it. `needed`: likewise, but others made something that goes with it.
    `by_hand`: it was made by hand in a share that the files keep.
    """

    why: Literal["orphan", "needed", "by_hand"]
    held: Held


@dataclass(frozen=True)
class Plan:
    """What `lakeshare apply` does, in order, and what it leaves."""

    steps: tuple[Step, ...]
    left: tuple[Left, ...] = ()

    @property
    def digest(self) -> str:
        """Twelve letters that are others when anything that is to be done is another."""
        told = json.dumps([_said(step) for step in self.steps], default=str, sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    @property
    def drifted(self) -> bool:
        """Whether the catalog is anything else than the files say."""
        return bool(self.steps or self.left)


def file_plan(wanted: Mapping[Key, Wanted], held: Mapping[Key, Held], *, prune: bool = False) -> Plan:
    """What has to be done so that the catalog holds what the files want.

    Raises:
        DocumentError: the files name what is not there, what a contract declares, what was revoked, or were written
            for another revision; its `also` holds all further refusals.
    """
    orphans = [one for one in held.values() if one.applied and one.key not in wanted]
    needed = _needed(wanted, held, {one.key for one in orphans})
    unwanted = [one.key for one in orphans if prune and one.key not in needed]
    steps = steps_to(wanted, held, "files", unwanted)
    raise_all([*_faults(wanted, held, frozenset(unwanted)), *_stale(steps, wanted, held)])
    left = [
        Left("needed" if one.key in needed else "orphan", one) for one in orphans if one.key not in unwanted
    ]
    left += [Left("by_hand", one) for one in held.values() if _is_in_kept_share(one, wanted)]
    return Plan(steps, tuple(left))


def _said(step: Step) -> list[object]:
    return [step.verb, step.key, [[one.field, one.before, one.after] for one in step.differences]]


def _needed(wanted: Mapping[Key, Wanted], held: Mapping[Key, Held], orphans: set[Key]) -> set[Key]:
    """The orphans that others have made something in, have granted, or share."""
    stays = [one for one in held.values() if one.key not in orphans]
    needed = {parent for one in stays for parent in parents(one.key)}
    # What files share is in their hands: they are refused when they do not follow it any more.
    shared = (one for one in stays if one.key not in wanted or wanted[one.key].of_contract)
    return (needed | set(map(_lake_table, shared))) & orphans


def _lake_table(one: Wanted | Held) -> Key:
    """The followed table that a table of a share would be; whether it is followed is another question."""
    return followed_key(str(one.fields.get("table", "")))


def _is_in_kept_share(one: Held, wanted: Mapping[Key, Wanted]) -> bool:
    return (
        one.key not in wanted
        and one.keeper == "hand"
        and one.key[0] in ("table", "grant")
        and share_key(one.key[1]) in wanted
    )


def _faults(
    wanted: Mapping[Key, Wanted], held: Mapping[Key, Held], unwanted: frozenset[Key]
) -> Iterator[DocumentError]:
    for one in wanted.values():
        if one.origin is not None:
            yield from _faults_of_object(one, held.get(one.key), one.origin)
            missing = [key for key in _references(one) if key not in wanted]
            shared = _lake_table(one)
            for kind, name in (key for key in (*missing, shared) if key in unwanted):
                hint = "Write it into a file again, or apply without --prune."
                yield one.origin.fault(f"{kind} {name} is in no file, and would be removed", hint)
            for kind, name in (key for key in missing if key in held and held[key].is_revoked):
                yield one.origin.fault(f"{kind} {name} was revoked", "Take it out of the file.")
            for kind, name in (key for key in missing if key not in held):
                hint = f"Write the {kind} into a file, or make it first."
                yield one.origin.fault(f"there is no {kind} {name}", hint)


def _faults_of_object(one: Wanted, there: Held | None, origin: Origin) -> Iterator[DocumentError]:
    if one.of_contract and (there is None or not there.declared):
        hint = "Apply the contracts first, or leave out `declared: true` to share it by this file."
        yield origin.fault(f"no contract declares {one.name}", hint)
    if there is None:
        for name in _new_names(one.key):
            if not is_name(name):
                yield origin.fault(f"the name {name!r} cannot be used", NAME_HINT)
        return
    if one.key[0] == "table" and there.declared and not one.of_contract:
        hint = "Take it out of the file, or say `declared: true` and only what contracts do not say."
        yield origin.fault(f"{there.name} is declared by a contract", hint)
    if there.is_revoked:
        hint = f"Take it out of the file, or `lakeshare recipient drop {there.name}` and apply again."
        yield origin.fault(f"recipient {there.name} was revoked", hint)
    before, after = there.fields.get("location"), one.fields.get("location")
    if before != after:
        hint = f"Take another name, or `lakeshare table unfollow {there.name}` and apply again."
        yield origin.fault(f"it is followed at {before}, and cannot be followed at {after}", hint)
    before, after = there.fields.get("authentication"), one.fields.get("authentication")
    if before != after:
        hint = f"Say {before}, or `lakeshare recipient drop {there.name}` and apply again."
        yield origin.fault(f"it gets in by {before}, which cannot become {after}", hint)


def _new_names(key: Key) -> tuple[str, ...]:
    """The names that come into the catalog with an object; the share of a table, and a grant, bring none."""
    kind, *names = key
    if kind == "followed":
        return tuple(names[0].split("."))
    return () if kind == "grant" else tuple(names[-2:])


def _references(one: Wanted) -> Iterator[Key]:
    if one.key[0] == "grant":
        _, share, kind, reader = one.key
        yield share_key(share)
        yield recipient_key(reader) if kind == "recipient" else group_key(reader)
    members = one.fields.get("members", ())
    if isinstance(members, tuple):
        yield from map(recipient_key, members)


def _stale(
    steps: tuple[Step, ...], wanted: Mapping[Key, Wanted], held: Mapping[Key, Held]
) -> Iterator[DocumentError]:
    """Refusals of edits to what somebody else has edited since the file was exported."""
    touched = {key: None for step in steps for key in (step.key, *parents(step.key))}
    for one in (wanted[key] for key in touched if key in wanted):
        there = held.get(one.key)
        if one.revision is None or one.origin is None or (there and there.revision == one.revision):
            continue
        hint = "Export it again and repeat the change there, or leave the revision out."
        if there is None:
            yield one.origin.fault(f"it is not there any more, at revision {one.revision} or another", hint)
        else:
            who = f"{there.updated_by or 'somebody'} has edited it since"
            yield one.origin.fault(f"it is at revision {there.revision}, not {one.revision}: {who}", hint)


def held(session: Session) -> dict[Key, Held]:
    """Every object of the catalog that a file or a contract can say something about."""
    return {one.key: one for one in _all(session)}


def held_shares(session: Session) -> dict[Key, Held]:
    """The shares and their tables: what contracts can say something about."""
    return {one.key: one for one in _shares(session)}


def _all(session: Session) -> Iterator[Held]:
    recipients = states.recipients(session)
    # Whoever was revoked reads nothing, as a member or by a grant: no file can say that it does.
    revoked = {one.name for one in recipients if one.revoked_at is not None}
    yield from map(_recipient, recipients)
    yield from (_group(one, revoked) for one in states.groups(session))
    yield from map(_followed, followed_tables(session))
    yield from _shares(session)
    yield from (_grant(one) for one in states.grants(session) if one.recipient not in revoked)


def _shares(session: Session) -> Iterator[Held]:
    yield from map(_share, states.shares(session))
    yield from map(_table, states.objects(session))


def _followed(table: FollowedTable) -> Held:
    fields: dict[str, object] = {
        "location": table.location,
        "check_every_s": table.check_every_s,
        "start_version": table.start_version or None,
    }
    return Held(followed_key(table.table), table.table, fields, applied=table.applied)


def _share(share: Share) -> Held:
    fields: dict[str, object] = {
        "name": share.name,
        "comment": share.comment,
        "display_name": share.display_name,
        "owner": share.owner,
        "properties": dict(share.properties),
    }
    return Held(
        share_key(share.name),
        share.name,
        fields,
        declared=share.declared,
        applied=share.applied,
        revision=share.revision,
        updated_by=share.updated_by,
        updated_at=share.updated_at,
    )


def _table(table: SharedObject) -> Held:
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
    return Held(
        key, table.path, fields, declared=table.declared, applied=table.applied, updated_by=table.added_by
    )


def _recipient(recipient: RecipientState) -> Held:
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
            one.name: policy_fields(one) for one in sorted(recipient.policies, key=lambda one: one.name)
        },
    }
    return Held(
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


def _group(group: Group, revoked: Collection[str]) -> Held:
    fields: dict[str, object] = {
        "name": group.name,
        "comment": group.comment,
        "members": tuple(sorted(member.lower() for member in group.members if member not in revoked)),
    }
    return Held(
        group_key(group.name),
        group.name,
        fields,
        applied=group.applied,
        revision=group.revision,
        updated_by=group.updated_by,
        updated_at=group.updated_at,
    )


def _grant(grant: Grant) -> Held:
    key = grant_key(grant.share, recipient=grant.recipient, group=grant.group)
    reader = f"recipient {grant.recipient}" if grant.recipient is not None else f"group {grant.group}"
    fields: dict[str, object] = {"starts_at": grant.starts_at, "ends_at": grant.ends_at, "rule": grant.rule}
    return Held(key, f"{grant.share} to {reader}", fields, applied=grant.applied, updated_by=grant.created_by)


SIGNS = {"create": "+", "update": "~", "delete": "-"}
WHOSE = {"hand": "whoever made it by hand", "contracts": "a contract", "files": "files"}
LONGEST = 120


def plan_lines(plan: Plan) -> Iterator[str]:
    """The plan as people read it: a sign in front of each line, a summary at the end."""
    for step in plan.steps:
        yield f"  {SIGNS[step.verb]} {step.kind} {step.name}{_remark(step)}"
        for one in step.differences:
            yield f"      {_sign(step, one)} {one.field}: {_change(step, one)}"
    for left in plan.left:
        yield f"  ? {left.held.key[0]} {left.held.name}: {_why(left)}"
    yield summary(plan)


def summary(plan: Plan) -> str:
    """`Plan 3f2a…: 2 to add, 1 to change, 0 to remove.`"""
    if not plan.steps:
        end = f"; {len(plan.left)} left as they are" if plan.left else ""
        return f"No changes: the catalog holds what the files say{end}."
    add, change, remove = _counts(plan)
    return f"Plan {plan.digest}: {add} to add, {change} to change, {remove} to remove."


def done(plan: Plan) -> str:
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
            {"kind": left.held.key[0], "name": left.held.name, "why": left.why, "keptBy": left.held.keeper}
            for left in plan.left
        ],
        "summary": dict(zip(SIGNS, _counts(plan), strict=True)),
    }


def _step_json(step: Step) -> dict[str, Any]:
    origin = step.wanted.origin if step.wanted else None
    found = step.wanted.found if step.wanted else None
    return {
        "action": step.verb,
        "kind": step.kind,
        "name": step.name,
        "fields": {
            one.field: {"before": jsonable(one.before), "after": jsonable(one.after)}
            for one in step.differences
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
    held = step.held
    if held is None and step.wanted is not None and step.wanted.found is not None:
        return f"  # {step.wanted.found.remark}"
    if step.verb != "update" or held is None or held.updated_at is None:
        return ""
    return f"  # as {held.updated_by or 'somebody'} left it {held.updated_at:%Y-%m-%d %H:%MZ}"


def _sign(step: Step, one: Difference) -> str:
    if step.verb != "update":
        return SIGNS[step.verb]
    return "+" if one.before in (None, {}, ()) else "-" if one.after in (None, {}, ()) else "~"


def _change(step: Step, one: Difference) -> str:
    if one.field == "kept_by":
        return f"{WHOSE[str(one.before)]} → {WHOSE[str(one.after)]}"
    if step.verb == "create":
        return _shown(one.after)
    if step.verb == "delete":
        return _shown(one.before)
    return f"{_shown(one.before)} → {_shown(one.after)}"


def _shown(value: object) -> str:
    if value in (None, {}, ()):
        return "none"
    text = json.dumps(jsonable(value), ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _why(left: Left) -> str:
    if left.why == "orphan":
        return "is in no file any more; --prune removes it"
    if left.why == "needed":
        return "is in no file any more, and stays: others have granted it, or made something in it"
    by = f" by {left.held.updated_by}" if left.held.updated_by else ""
    return f"was made by hand{by} in a share of the files, and stays"
