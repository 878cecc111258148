"""What has to be done so that the catalog holds what is wanted. Pure: nothing is read or written here."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lakeshare_server.catalog.declared.objects import KINDS, Held, Key, Wanted
from lakeshare_server.catalog.followed import CHECK_EVERY_S
from lakeshare_server.catalog.sharing.editing import Keeper

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
