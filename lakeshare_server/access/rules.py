"""Which rows a recipient may read of a table: the table's rule, and those of its grants; and what can be a rule at all.

A rule is decided by partition values or not at all: one that is not is refused when it is written, and lets nothing
through when it turns up all the same.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakeshare_server.access.rule_text import parse_rule, properties_of, with_properties
from lakeshare_server.catalog import EffectiveGrant
from lakeshare_server.catalog.sharing import Change, Edit
from lakeshare_server.catalog.sharing.look import grants_on, objects
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.tables.part_of_index import undecided_in
from lakeshare_server.tables.predicate import (
    EVERYTHING,
    And,
    Compare,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Value,
)
from lakeshare_server.versions import TableVersions

NOTHING = Constant(False)
# What every recipient has, whatever properties it was given.
OWN_NAME, OWN_ID = "lakeshare.name", "lakeshare.id"

_log = logging.getLogger(__name__)


class LakeVersions(Protocol):
    """The versions of the lake's tables."""

    def of(self, table: str) -> TableVersions:
        """The versions of one of them."""


def rule_of(table_rule: str | None, grant: EffectiveGrant) -> Predicate:
    """What is true for every row of a table that the recipient may read, in all of its grants together."""
    parts = [] if table_rule is None else [_bound(table_rule, grant)]
    if grant.rules is not None:
        allowed = tuple(_bound(text, grant) for text in grant.rules)
        parts.append(allowed[0] if len(allowed) == 1 else Or(allowed))
    parts = [part for part in parts if part != EVERYTHING]
    if not parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def require_decidable(field: str, text: str, tables: Mapping[str, TableVersions]) -> None:
    """See that the partitions of these tables, by the names they are told of under, decide a rule.

    Of a table that was never published nothing is known: what it gets is refused when it is read.

    Raises:
        BadRequest: it is no rule, or a table's partitions do not decide it; names the column.
        Unavailable: the files of a table are not known now.
    """
    rule = _stand_in(parse_rule(text, field))
    for name, versions in tables.items():
        try:
            index = versions.index(versions.latest())
        except NotFound:
            continue
        found = undecided_in(index, rule)
        if found is not None:
            raise BadRequest(
                field,
                text,
                f"{name} cannot decide it by its partitions. {found.column}: {found.reason}. Name columns that the "
                "table is partitioned by as they are, or share a view that has only the rows it is about.",
            )


def require_decidable_rules(edit: Edit, versions: LakeVersions) -> None:
    """See that what an edit wrote can be decided: new rules for the tables of their share, new tables for its rules.

    For whoever edits, as the last step in front of the end of the transaction; nothing of it stays when it raises.

    Raises:
        BadRequest: a rule is none, or a table's partitions do not decide it; names share, table and column.
        Unavailable: the files of a table are not known now.
    """
    asked = _Asked(versions)
    moves = [(place, change) for place, change in enumerate(edit.changes) if _moves(change)]
    rules_on: dict[str, list[str]] = {}
    for place, change in enumerate(edit.changes):
        told = change.after or {}
        share = _named_now(told.get("share", ""), [move for later, move in moves if later > place])
        if share is None:
            continue
        if change.action == "grant" and "rule" in told:
            for one in objects(edit.session, share):
                asked.require(f"rule of a grant on {share}", told["rule"], one.path, one.table)
        elif change.action in ("add_table", "alter_table"):
            path = f"{share}.{told['schema']}.{told['name']}"
            if share not in rules_on:
                granted = (one.rule for one in grants_on(edit.session, share))
                rules_on[share] = [rule for rule in granted if rule is not None]
            own = [told["rule"]] if "rule" in told else []
            for rule in dict.fromkeys([*own, *rules_on[share]]):
                asked.require(f"rule on {path}", rule, path, told["table"])


@dataclass
class _Asked:
    """The rules that an edit was asked about, each of one table once: it may write thousands of the same."""

    versions: LakeVersions
    decided: set[tuple[str, str]] = field(default_factory=set)

    def require(self, where: str, rule: str, path: str, lake_table: str) -> None:
        if (rule, lake_table) not in self.decided:
            require_decidable(where, rule, {path: self.versions.of(lake_table)})
            self.decided.add((rule, lake_table))


def _moves(change: Change) -> bool:
    """Whether a share has another name since, or none; of thousands of changes few are such."""
    if change.action == "alter_share" and change.before and change.after:
        return bool(change.before["name"] != change.after["name"])
    return change.action == "drop_share"


def _named_now(share: str, moves: Sequence[Change]) -> str | None:
    """The name of a share after it was renamed later in the same edit; None when it is gone."""
    for change in moves:
        if change.object_name.lower() == share.lower():
            share = str(change.after["name"]) if change.after else ""
    return share or None


def _bound(text: str, grant: EffectiveGrant) -> Predicate:
    """The rule for this recipient; nothing where it lacks a property, or nobody understands the rule any more."""
    try:
        rule = parse_rule(text)
    except BadRequest as error:
        _log.error("a rule is not understood and lets nothing through: %s", error)
        return NOTHING
    known = _known(grant)
    return with_properties(rule, known) if properties_of(rule) <= known.keys() else NOTHING


def _known(grant: EffectiveGrant) -> Mapping[str, Value]:
    given = {name: value for name, value in grant.properties.items() if isinstance(value, str | int)}
    return {**given, OWN_NAME: grant.recipient_name, OWN_ID: grant.recipient_id}


def _stand_in(rule: Predicate) -> Predicate:
    """The rule as far as it is the same for everybody: of a property only its column is to be decided."""
    match rule:
        case Not(operand):
            return Not(_stand_in(operand))
        case And(operands):
            return And(tuple(map(_stand_in, operands)))
        case Or(operands):
            return Or(tuple(map(_stand_in, operands)))
        case Compare(column) if properties_of(rule):
            return IsNull(column)
        case _:
            return rule
