"""The plan of `lakeshare apply`: what the files want against what the catalog holds, and what is left as it is.

Files say everything about the objects they name. What they do not name is only removed when it was made by files, and
when that is asked for: what contracts declare and what was made by hand is somebody else's.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lakeshare_server.catalog.declared.faults import raise_all
from lakeshare_server.catalog.declared.objects import (
    Held,
    Key,
    Wanted,
    followed_key,
    group_key,
    parents,
    recipient_key,
    share_key,
)
from lakeshare_server.catalog.declared.origin import Origin
from lakeshare_server.catalog.declared.planning import Step, steps_to
from lakeshare_server.catalog.names import NAME_HINT, is_name
from lakeshare_server.errors import DocumentError


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
