"""Which rows a recipient may read of a table: the table's rule, and those of its grants; and what can be a rule at all.

A rule is decided by partition values or not at all: one that is not is refused when it is written, and lets nothing
through when it turns up all the same.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Any, Protocol, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from lakeshare_server.catalog import EffectiveGrant
from lakeshare_server.catalog.sharing import Change, Edit
from lakeshare_server.catalog.sharing.states import list_grants_on, list_objects
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.protocol.sql_predicate import text_after_prefix
from lakeshare_server.tables.predicates import (
    EVERYTHING,
    MAX_DEPTH,
    MIRRORED,
    And,
    Compare,
    Comparison,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Value,
)
from lakeshare_server.tables.restrictions import find_undecided_in_index
from lakeshare_server.versions import TableVersions

MAX_CACHED_RULES = 4096
MAX_SHOWN_CHARS = 40
FIELD = "rule"
# Patterns are for texts alone: a number that begins with 1 is no number from 1 up to 2.
TEXT = "string"
EXAMPLE = "Give a predicate on partition columns, like region = 'EU' or region = current_recipient('region')."
GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction (_OR conjunction)*
?conjunction: negation (_AND negation)*
?negation: _NOT negation -> negated
    | "(" disjunction ")"
    | test
?test: column OPERATOR value -> compared
    | value OPERATOR column -> mirrored
    | column _IS _NULL -> is_null
    | column _IS _NOT _NULL -> is_set
    | column _IN "(" value ("," value)* ")" -> one_of
    | column _NOT _IN "(" value ("," value)* ")" -> none_of
    | column _BETWEEN value _AND value -> between
    | column _NOT _BETWEEN value _AND value -> not_between
    | column _LIKE STRING -> like
    | column _NOT _LIKE STRING -> not_like
    | column -> is_true
    | BOOLEAN -> constant
column: NAME | QUOTED
?value: STRING -> text
    | NUMBER -> number
    | _DATE STRING -> day
    | BOOLEAN -> boolean
    | _RECIPIENT "(" STRING ")" -> property
    | _RECIPIENT "(" ")" "." _path -> path
_path: NAME ("." NAME)* | QUOTED
_OR.2: /or\b/i
_AND.2: /and\b/i
_NOT.2: /not\b/i
_IS.2: /is\b/i
_NULL.2: /null\b/i
_IN.2: /in\b/i
_BETWEEN.2: /between\b/i
_LIKE.2: /like\b/i
_DATE.2: /date(?=\s*')/i
_RECIPIENT.2: /current_recipient(?=\s*\()/i
BOOLEAN.2: /(true|false)\b/i
OPERATOR: "<=" | ">=" | "<>" | "!=" | "==" | "=" | "<" | ">"
STRING: /'([^'\\]|'')*'/
NUMBER: /[+-]?[0-9]+(\.[0-9]+)?/
QUOTED: /`([^`]|``)+`/
NAME: /[^\W\d]\w*/
%ignore /[ \t\r\n]+/
"""


class RecipientProperty(str):
    """Stands in a rule for what a property of its reader says; the text is the property's name."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"current_recipient({str(self)!r})"


def parse_rule(text: str, field: str = FIELD) -> Predicate:
    """The predicate of a rule, with `RecipientProperty` for what its reader's properties will say.

    Raises:
        BadRequest: it is none; says where.
    """
    try:
        return _parse(text)
    except UnexpectedInput as error:
        is_at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        place = len(text) if is_at_end else error.pos_in_stream or 0
        rest = text[place : place + MAX_SHOWN_CHARS]
        what = (
            f"From character {place + 1} on, `{rest}`, it cannot be read." if rest else "Its end is missing."
        )
        raise BadRequest(field, text, f"{what} {EXAMPLE}") from error
    except ValueError as error:
        raise BadRequest(field, text, f"{error}. {EXAMPLE}") from error


def find_properties(rule: Predicate) -> set[str]:
    """The properties of its reader that a rule speaks of."""
    match rule:
        case Not(operand):
            return find_properties(operand)
        case And(operands) | Or(operands):
            return {name for operand in operands for name in find_properties(operand)}
        case Compare(value=RecipientProperty() as name):
            return {str(name)}
        case _:
            return set()


def bind_properties(rule: Predicate, properties: Mapping[str, Value]) -> Predicate:
    """The rule for one reader, who has all properties that it speaks of."""
    match rule:
        case Not(operand):
            return Not(bind_properties(operand, properties))
        case And(operands):
            return And(tuple(bind_properties(operand, properties) for operand in operands))
        case Or(operands):
            return Or(tuple(bind_properties(operand, properties) for operand in operands))
        case Compare(column, operator, RecipientProperty() as name, kind):
            return Compare(column, operator, properties[str(name)], kind)
        case _:
            return rule


@v_args(inline=True)
class _Reading(Transformer[Token, Any]):
    """From the grammar's parts to a predicate, from the inside out: of any depth without recursion."""

    def disjunction(self, *operands: Predicate) -> Predicate:
        return _require_bounded(Or(operands))

    def conjunction(self, *operands: Predicate) -> Predicate:
        return _require_bounded(And(operands))

    def negated(self, operand: Predicate) -> Predicate:
        # Twice is not at all, of true, false and null alike.
        return operand.operand if isinstance(operand, Not) else _require_bounded(Not(operand))

    def compared(self, column: str, operator: Token, value: Value) -> Predicate:
        return _comparison(column, str(operator), value)

    def mirrored(self, value: Value, operator: Token, column: str) -> Predicate:
        return _comparison(column, _mirror_operator(str(operator)), value)

    def is_true(self, column: str) -> Predicate:
        return Compare((column,), "=", True, None)

    def is_null(self, column: str) -> Predicate:
        return IsNull((column,))

    def is_set(self, column: str) -> Predicate:
        return Not(IsNull((column,)))

    def one_of(self, column: str, *values: Value) -> Predicate:
        return Or(tuple(_comparison(column, "=", value) for value in values))

    def none_of(self, column: str, *values: Value) -> Predicate:
        return Not(self.one_of(column, *values))

    def between(self, column: str, low: Value, high: Value) -> Predicate:
        return And((_comparison(column, ">=", low), _comparison(column, "<=", high)))

    def not_between(self, column: str, low: Value, high: Value) -> Predicate:
        return Not(self.between(column, low, high))

    def like(self, column: str, pattern: Token) -> Predicate:
        text = self.text(pattern)
        prefix = text.removesuffix("%")
        if "%" in prefix or "_" in prefix:
            raise ValueError("LIKE takes a beginning alone, like 'EU%'")
        if prefix == text:
            return Compare((column,), "=", text, TEXT)
        after = text_after_prefix(prefix)
        low = Compare((column,), ">=", prefix, TEXT)
        return low if after is None else And((low, Compare((column,), "<", after, TEXT)))

    def not_like(self, column: str, pattern: Token) -> Predicate:
        return Not(self.like(column, pattern))

    def constant(self, value: Token) -> Predicate:
        return Constant(self.boolean(value))

    def column(self, name: Token) -> str:
        return _unquoted(name)

    def text(self, token: Token) -> str:
        return str(token)[1:-1].replace("''", "'")

    def number(self, token: Token) -> Value:
        return Decimal(token) if "." in token else int(token)

    def day(self, token: Token) -> Value:
        try:
            return date.fromisoformat(self.text(token))
        except ValueError as error:
            raise ValueError(f"DATE {token} is no day") from error

    def boolean(self, token: Token) -> bool:
        return token.lower() == "true"

    def property(self, token: Token) -> RecipientProperty:
        return RecipientProperty(self.text(token))

    def path(self, *path: Token) -> RecipientProperty:
        return RecipientProperty(".".join(map(_unquoted, path)))


def _comparison(column: str, operator: str, value: Value) -> Predicate:
    if operator in ("<>", "!="):
        return Not(Compare((column,), "=", value, None))
    return Compare((column,), _OPERATORS[operator], value, None)


def _mirror_operator(operator: str) -> str:
    found = _OPERATORS.get(operator)
    return operator if found is None else MIRRORED[found]


def _unquoted(name: Token) -> str:
    return str(name)[1:-1].replace("``", "`") if name.type == "QUOTED" else str(name)


def _require_bounded(rule: Predicate) -> Predicate:
    if _depth(rule) > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return rule


def _depth(rule: Predicate) -> int:
    # Every part was bounded before: this goes no deeper than one level more.
    match rule:
        case Not(operand):
            return 1 + _depth(operand)
        case And(operands) | Or(operands):
            return 1 + max(map(_depth, operands))
        case _:
            return 1


_OPERATORS: Mapping[str, Comparison] = {
    "=": "=", "==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip
_PARSER = Lark(GRAMMAR, parser="lalr", transformer=_Reading())


@lru_cache(MAX_CACHED_RULES)
def _parse(text: str) -> Predicate:
    # With a transformer, the parser gives what that made, not the tree that it is typed as.
    return cast("Predicate", _PARSER.parse(text))


NOTHING = Constant(False)
# What every recipient has, whatever properties it was given.
OWN_NAME, OWN_ID = "lakeshare.name", "lakeshare.id"

_log = logging.getLogger(__name__)


class LakeVersions(Protocol):
    """The versions of the lake's tables."""

    def of(self, table: str) -> TableVersions:
        """The versions of one of them."""


def combine_rules(table_rule: str | None, grant: EffectiveGrant) -> Predicate:
    """What is true for every row of a table that the recipient may read, in all of its grants together."""
    parts = [] if table_rule is None else [_bind(table_rule, grant)]
    if grant.rules is not None:
        allowed = tuple(_bind(text, grant) for text in grant.rules)
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
    rule = _without_properties(parse_rule(text, field))
    for name, versions in tables.items():
        try:
            index = versions.index(versions.latest())
        except NotFound:
            continue
        found = find_undecided_in_index(index, rule)
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
    checks = _RuleChecks(versions)
    moves = [(place, change) for place, change in enumerate(edit.changes) if _list_moves(change)]
    rules_on: dict[str, list[str]] = {}
    for place, change in enumerate(edit.changes):
        fields = change.after or {}
        share = _current_share_name(fields.get("share", ""), [move for later, move in moves if later > place])
        if share is None:
            continue
        if change.action == "grant" and "rule" in fields:
            for one in list_objects(edit.session, share):
                checks.require(f"rule of a grant on {share}", fields["rule"], one.path, one.table)
        elif change.action in ("add_table", "alter_table"):
            path = f"{share}.{fields['schema']}.{fields['name']}"
            if share not in rules_on:
                granted = (one.rule for one in list_grants_on(edit.session, share))
                rules_on[share] = [rule for rule in granted if rule is not None]
            own = [fields["rule"]] if "rule" in fields else []
            for rule in dict.fromkeys([*own, *rules_on[share]]):
                checks.require(f"rule on {path}", rule, path, fields["table"])


@dataclass
class _RuleChecks:
    """The rules that an edit was asked about, each of one table once: it may write thousands of the same."""

    versions: LakeVersions
    decided: set[tuple[str, str]] = field(default_factory=set)

    def require(self, where: str, rule: str, path: str, lake_table: str) -> None:
        if (rule, lake_table) not in self.decided:
            require_decidable(where, rule, {path: self.versions.of(lake_table)})
            self.decided.add((rule, lake_table))


def _list_moves(change: Change) -> bool:
    """Whether a share has another name since, or none; of thousands of changes few are such."""
    if change.action == "alter_share" and change.before and change.after:
        return bool(change.before["name"] != change.after["name"])
    return change.action == "drop_share"


def _current_share_name(share: str, moves: Sequence[Change]) -> str | None:
    """The name of a share after it was renamed later in the same edit; None when it is gone."""
    for change in moves:
        if change.object_name.lower() == share.lower():
            share = str(change.after["name"]) if change.after else ""
    return share or None


def _bind(text: str, grant: EffectiveGrant) -> Predicate:
    """The rule for this recipient; nothing where it lacks a property, or nobody understands the rule any more."""
    try:
        rule = parse_rule(text)
    except BadRequest as error:
        _log.error("a rule is not understood and lets nothing through: %s", error)
        return NOTHING
    known = _known_properties(grant)
    return bind_properties(rule, known) if find_properties(rule) <= known.keys() else NOTHING


def _known_properties(grant: EffectiveGrant) -> Mapping[str, Value]:
    properties = {name: value for name, value in grant.properties.items() if isinstance(value, str | int)}
    return {**properties, OWN_NAME: grant.recipient_name, OWN_ID: grant.recipient_id}


def _without_properties(rule: Predicate) -> Predicate:
    """The rule as far as it is the same for everybody: of a property only its column is to be decided."""
    match rule:
        case Not(operand):
            return Not(_without_properties(operand))
        case And(operands):
            return And(tuple(map(_without_properties, operands)))
        case Or(operands):
            return Or(tuple(map(_without_properties, operands)))
        case Compare(column) if find_properties(rule):
            return IsNull(column)
        case _:
            return rule
