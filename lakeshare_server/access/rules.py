"""Row rules of tables and grants: their reading by the grammar in `rules.lark`, and their combination for a recipient.

Partition values decide every rule: other rules are refused when they are written, and match no rows when they are read.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any, Protocol, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args

from lakeshare_server.catalog import EffectiveGrant
from lakeshare_server.catalog.sharing import Change, Edit
from lakeshare_server.catalog.states import list_grants, list_objects
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.tables.predicates import (
    EVERYTHING,
    MAX_DEPTH,
    MIRRORED,
    NOTHING,
    And,
    Compare,
    Comparison,
    Constant,
    IsNull,
    Not,
    Or,
    Predicate,
    Value,
    begins_with,
    list_leaves,
    operands_of,
    replace_leaves,
)
from lakeshare_server.tables.restrictions import find_undecided_in_index
from lakeshare_server.versions import TableVersions

MAX_CACHED_RULES = 4096
MAX_SHOWN_CHARS = 40
FIELD = "rule"
TEXT = "string"  # the type of LIKE's comparisons
EXAMPLE = "Give a predicate on partition columns, like region = 'EU' or region = current_recipient('region')."


class RecipientProperty(str):
    """A placeholder in a rule for a property of its reader; the text is the property's name."""

    __slots__ = ()


def parse_rule(text: str, field: str = FIELD) -> Predicate:
    """A rule's predicate, with `RecipientProperty` placeholders. Raises BadRequest with the error's position."""
    try:
        return _parse(text)
    except UnexpectedInput as error:
        is_at_end = isinstance(error, UnexpectedToken) and error.token.type == "$END"
        position = len(text) if is_at_end else error.pos_in_stream or 0
        rest = text[position : position + MAX_SHOWN_CHARS]
        what = (
            f"From character {position + 1} on, `{rest}`, it cannot be read."
            if rest
            else "Its end is missing."
        )
        raise BadRequest(field, text, f"{what} {EXAMPLE}") from error
    except ValueError as error:
        raise BadRequest(field, text, f"{error}. {EXAMPLE}") from error


def find_properties(rule: Predicate) -> set[str]:
    values = (leaf.value for leaf in list_leaves(rule) if isinstance(leaf, Compare))
    return {str(value) for value in values if isinstance(value, RecipientProperty)}


def bind_properties(rule: Predicate, properties: Mapping[str, Value]) -> Predicate:
    def bind(leaf: Predicate) -> Predicate:
        match leaf:
            case Compare(column, operator, RecipientProperty() as name, kind):
                return Compare(column, operator, properties[str(name)], kind)
            case _:
                return leaf

    return replace_leaves(rule, bind)


@v_args(inline=True)
class _RuleTransformer(Transformer[Token, Any]):
    def disjunction(self, *operands: Predicate) -> Predicate:
        return _require_bounded(Or(operands))

    def conjunction(self, *operands: Predicate) -> Predicate:
        return _require_bounded(And(operands))

    def negated(self, _not: Token, operand: Predicate) -> Predicate:
        return operand.operand if isinstance(operand, Not) else _require_bounded(Not(operand))

    def compared(self, column: str, operator: Token, value: Value) -> Predicate:
        return _comparison(column, str(operator), value)

    def mirrored(self, value: Value, operator: Token, column: str) -> Predicate:
        known = _OPERATORS.get(str(operator))
        return _comparison(column, str(operator) if known is None else MIRRORED[known], value)

    def is_true(self, column: str) -> Predicate:
        return Compare((column,), "=", True, None)

    def is_null(self, column: str, negation: Token | None) -> Predicate:
        return _negate(negation, IsNull((column,)))

    def one_of(self, column: str, negation: Token | None, *values: Value) -> Predicate:
        return _negate(negation, Or(tuple(_comparison(column, "=", value) for value in values)))

    def between(self, column: str, negation: Token | None, low: Value, high: Value) -> Predicate:
        return _negate(negation, And((_comparison(column, ">=", low), _comparison(column, "<=", high))))

    def like(self, column: str, negation: Token | None, pattern: Token) -> Predicate:
        text = self.text(pattern)
        prefix = text.removesuffix("%")
        if "%" in prefix or "_" in prefix:
            raise ValueError("LIKE takes a beginning alone, like 'EU%'")
        if prefix == text:
            return _negate(negation, Compare((column,), "=", text, TEXT))
        return _negate(negation, begins_with((column,), prefix, TEXT))

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


def _negate(negation: Token | None, predicate: Predicate) -> Predicate:
    return predicate if negation is None else Not(predicate)


def _comparison(column: str, operator: str, value: Value) -> Predicate:
    if operator in ("<>", "!="):
        return Not(Compare((column,), "=", value, None))
    return Compare((column,), _OPERATORS[operator], value, None)


def _unquoted(name: Token) -> str:
    return str(name)[1:-1].replace("``", "`") if name.type == "QUOTED" else str(name)


def _require_bounded(rule: Predicate) -> Predicate:
    if _depth(rule) > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    return rule


def _depth(rule: Predicate) -> int:
    # The parts were checked before, so the recursion is bounded.
    return 1 + max(map(_depth, operands_of(rule)), default=0)


_OPERATORS: Mapping[str, Comparison] = {
    "=": "=", "==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">=",
}  # fmt: skip


@cache
def _build_parser() -> Lark:
    return Lark.open("rules.lark", rel_to=__file__, parser="lalr", transformer=_RuleTransformer())


@lru_cache(MAX_CACHED_RULES)
def _parse(text: str) -> Predicate:
    # With a transformer, the parser returns the transformer's result, not a tree.
    return cast("Predicate", _build_parser().parse(text))


OWN_NAME, OWN_ID = "lakeshare.name", "lakeshare.id"

_log = logging.getLogger(__name__)


class LakeVersions(Protocol):
    def of(self, table: str) -> TableVersions: ...


def combine_rules(table_rule: str | None, grant: EffectiveGrant) -> Predicate:
    """The predicate of the rows that the recipient may read, from the table's rule and all its grants."""
    parts = [] if table_rule is None else [_bind(table_rule, grant)]
    if grant.rules is not None:
        allowed = tuple(_bind(text, grant) for text in grant.rules)
        parts.append(allowed[0] if len(allowed) == 1 else Or(allowed))
    parts = [part for part in parts if part != EVERYTHING]
    if not parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def require_decidable(field: str, text: str, tables: Mapping[str, TableVersions]) -> None:
    """Checks that partitions of published tables, by shown name, decide a rule. Raises BadRequest or Unavailable."""

    def unbind(leaf: Predicate) -> Predicate:
        # The property's value differs per reader; only the column has to be decidable.
        return IsNull(leaf.column) if isinstance(leaf, Compare) and find_properties(leaf) else leaf

    rule = replace_leaves(parse_rule(text, field), unbind)
    for name, versions in tables.items():
        try:
            index = versions.index(versions.latest()).written()
        except NotFound:
            continue
        undecided = find_undecided_in_index(index, rule)
        if undecided is not None:
            raise BadRequest(
                field,
                text,
                f"{name} cannot decide it by its partitions. {undecided.column}: {undecided.reason}. Name columns that "
                "the table is partitioned by as they are, or share a view that has only the rows it is about.",
            )


def require_decidable_rules(edit: Edit, versions: LakeVersions) -> None:
    """Checks new rules and new tables of an edit, as its last step. Raises BadRequest or Unavailable."""
    decided: set[tuple[str, str]] = set()

    def require(field: str, rule: str, path: str, lake_table: str) -> None:
        # Each rule is checked once per table: an edit may write thousands of equal rules.
        if (rule, lake_table) not in decided:
            require_decidable(field, rule, {path: versions.of(lake_table)})
            decided.add((rule, lake_table))

    moves = [
        (number, change)
        for number, change in enumerate(edit.changes)
        if change.action == "drop_share"
        or (
            change.action == "alter_share"
            and change.before
            and change.after
            and change.before["name"] != change.after["name"]
        )
    ]
    rules_on: dict[str, list[str]] = {}
    for number, change in enumerate(edit.changes):
        fields = change.after or {}
        share = _current_share_name(
            fields.get("share", ""), [move for later, move in moves if later > number]
        )
        if share is None:
            continue
        if change.action == "grant" and "rule" in fields:
            for shared in list_objects(edit.session, share):
                require(f"rule of a grant on {share}", fields["rule"], shared.path, shared.table)
        elif change.action in ("add_table", "alter_table"):
            path = f"{share}.{fields['schema']}.{fields['name']}"
            if share not in rules_on:
                granted = (grant.rule for grant in list_grants(edit.session, share=share))
                rules_on[share] = [rule for rule in granted if rule is not None]
            own = [fields["rule"]] if "rule" in fields else []
            for rule in dict.fromkeys([*own, *rules_on[share]]):
                require(f"rule on {path}", rule, path, fields["table"])


def _current_share_name(share: str, moves: Sequence[Change]) -> str | None:
    for change in moves:
        if change.object_name.lower() == share.lower():
            share = str(change.after["name"]) if change.after else ""
    return share or None


def _bind(text: str, grant: EffectiveGrant) -> Predicate:
    """The rule for one recipient; it matches nothing if the recipient lacks a property or the rule is invalid."""
    try:
        rule = parse_rule(text)
    except BadRequest as error:
        _log.error("a rule is not understood and lets nothing through: %s", error)
        return NOTHING
    known = known_properties(grant.recipient_name, grant.recipient_id, grant.properties)
    return bind_properties(rule, known) if find_properties(rule) <= known.keys() else NOTHING


def known_properties(name: str, recipient_id: str, properties: Mapping[str, Any]) -> dict[str, Value]:
    """The values that rules may name of a recipient."""
    usable = {key: value for key, value in properties.items() if isinstance(value, str | int)}
    return {**usable, OWN_NAME: name, OWN_ID: recipient_id}
