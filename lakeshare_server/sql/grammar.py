"""Reading a script by the grammar in `sharing.lark`: statements with their places, or what is wrong and where."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr
from lark.parsers.lalr_interactive_parser import InteractiveParser
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive

from lakeshare_server.sql import statements
from lakeshare_server.sql import statements as statement_types
from lakeshare_server.sql.changes import Follow, ShowFollowedTables, Unfollow
from lakeshare_server.sql.statements import (
    SourcePosition,
    SqlError,
    format_name,
    moment,
    quoted_name,
    quoted_text,
    span,
    unquote_text,
)

MAX_NUMBER = (1 << 63) - 1
DEEPEST = 64
T = TypeVar("T")


class InvalidClause(Exception):
    """A value or clause that cannot stand where it stands."""

    def __init__(self, what: str, place: SourcePosition) -> None:
        super().__init__(what)
        self.what, self.place = what, place


@dataclass(frozen=True)
class Clause:
    """A named part of a statement, whose order makes no difference."""

    name: str
    value: Any  # what the statement takes under this name
    place: SourcePosition
    spelt: str


def position_of(token: Token) -> SourcePosition:
    """Where a token stands."""
    return SourcePosition(token.line or 1, token.column or 1, len(token.split("\n", 1)[0]))


def position_at(meta: Meta) -> SourcePosition:
    """Where a part begins."""
    return SourcePosition(getattr(meta, "line", 1), getattr(meta, "column", 1))


def read_name(token: Token) -> str:
    """The name a token writes."""
    name = str(format_name(token))
    if not name.strip():
        raise InvalidClause("A name has at least one character.", position_of(token))
    return name


def read_text(token: Token | None) -> str | None:
    """The text a token writes; NULL is none."""
    return None if token is None or token.type == "NULL" else unquote_text(token)


def read_number(token: Token) -> int:
    """The whole number a token writes."""
    # Counted before it is made a number: Python refuses to read very long ones.
    if not token.isdecimal() or len(token) > 19 or int(token) > MAX_NUMBER:
        raise InvalidClause(f"Give a whole number of at most {MAX_NUMBER}.", position_of(token))
    return int(token)


def read_moment(token: Token) -> Any:
    """The moment a token writes."""
    hint = "is no time; write '2027-01-31', '2027-01-31 18:00' or '2027-01-31T18:00:00+02:00' (UTC without a zone)."
    return _read_or_refuse(moment, token, hint)


def read_span(token: Token) -> Any:
    """The span of time a token writes."""
    return _read_or_refuse(
        span, token, "is no span of time; write it like '24 hours', '7 days' or '1 day 12 hours'."
    )


def _read_or_refuse(read: Callable[[str], T], token: Token, hint: str) -> T:
    try:
        return read(unquote_text(token))
    except ValueError:
        raise InvalidClause(f"{token[:60]} {hint}", position_of(token)) from None


def collect_clauses(clauses: Sequence[Clause]) -> dict[str, Any]:
    """The values of clauses by name; each name once."""
    found: dict[str, Clause] = {}
    for clause in clauses:
        if clause.name in found:
            first = found[clause.name]
            same = first.spelt == clause.spelt
            what = (
                f"{clause.spelt} is there twice."
                if same
                else f"{first.spelt} and {clause.spelt} exclude each other."
            )
            raise InvalidClause(what, clause.place)
        found[clause.name] = clause
    return {name: clause.value for name, clause in found.items()}


def require_unique(pairs: Sequence[tuple[str, str, SourcePosition]], what: str) -> dict[str, str]:
    """Pairs as a mapping; each key once."""
    found: dict[str, str] = {}
    for key, value, place in pairs:
        if key in found:
            raise InvalidClause(f"{what} {key!r} is there twice.", place)
        found[key] = value
    return found


def make_policy(meta: Meta, fields: Sequence[tuple[str, str, SourcePosition]]) -> statement_types.Policy:
    """The federation policy that OIDC (…) describes."""
    known = ("issuer", "subject", "subject_claim", "audience", "name")
    audiences = tuple(value for key, value, _ in fields if key == "audience")
    for key, _, place in fields:
        if key not in known:
            raise InvalidClause(f"OIDC has no {key}; it takes {', '.join(known)}.", place)
    values = require_unique([field for field in fields if field[0] != "audience"], "OIDC's")
    for key in ("issuer", "subject"):
        if key not in values:
            raise InvalidClause(f"OIDC needs an issuer and a subject; {key} is missing.", position_at(meta))
    return statement_types.Policy(**values, audiences=audiences)


class Nested(tuple[str, ...]):
    """The tokens of a part of a predicate in parentheses, and how deep it is."""

    depth: int

    @classmethod
    def of(cls, meta: Meta, pieces: "Sequence[Token | Nested]") -> "Nested":
        """Parentheses around pieces; no deeper than anything that reads them can follow."""
        nested = cls(("(", *tokens_of(pieces), ")"))
        nested.depth = 1 + max((piece.depth for piece in pieces if isinstance(piece, Nested)), default=0)
        if nested.depth > DEEPEST:
            raise InvalidClause(f"Parentheses are nested deeper than {DEEPEST}.", position_at(meta))
        return nested


def tokens_of(pieces: "Sequence[Token | Nested]") -> Iterator[str]:
    """The tokens of a predicate, with those between its parentheses."""
    for piece in pieces:
        if isinstance(piece, Nested):
            yield from piece
        elif piece.type == "TEXT":
            yield quoted_text(unquote_text(piece))
        else:
            yield str(piece)


Children = list[Any]


@v_args(meta=True)
class ClauseBuilder(Transformer_NonRecursive[Token, Any]):
    """Makes clauses; the class of statements builds on it."""

    # --- words

    def name(self, _: Meta, children: Children) -> str:
        return read_name(children[0])

    def principal(self, _: Meta, children: Children) -> str:
        [word] = children
        return unquote_text(word) if isinstance(word, Token) else str(word)

    def object_path(self, _: Meta, children: Children) -> tuple[str, ...]:
        return tuple(children)

    def number(self, _: Meta, children: Children) -> int:
        return read_number(children[0])

    def moment(self, _: Meta, children: Children) -> Any:
        return read_moment(children[0])

    def pattern(self, _: Meta, children: Children) -> str:
        return unquote_text(children[0])

    def if_not_exists(self, _: Meta, __: Children) -> bool:
        return True

    def if_exists(self, _: Meta, __: Children) -> bool:
        return True

    # --- clauses

    def comment(self, meta: Meta, children: Children) -> Clause:
        return Clause("comment", read_text(children[0]), position_at(meta), "COMMENT")

    def alias(self, meta: Meta, children: Children) -> Clause:
        return Clause("alias", tuple(children), position_at(meta), "AS")

    def in_share(self, meta: Meta, children: Children) -> Clause:
        return Clause("share", children[0], position_at(meta), "IN SHARE")

    def columns(self, meta: Meta, children: Children) -> Clause:
        return Clause("columns", tuple(children), position_at(meta), "COLUMNS")

    def start_version(self, _: Meta, children: Children) -> int:
        return int(children[0])

    def with_history(self, meta: Meta, children: Children) -> Clause:
        return Clause("history", (True, children[0] if children else None), position_at(meta), "WITH HISTORY")

    def without_history(self, meta: Meta, _: Children) -> Clause:
        return Clause("history", (False, None), position_at(meta), "WITHOUT HISTORY")

    def with_change_data_feed(self, meta: Meta, children: Children) -> Clause:
        # Without a start, recipients read what is published from the moment of adding on.
        return Clause(
            "history",
            (True, children[0] if children else statement_types.Now()),
            position_at(meta),
            "WITH CHANGE DATA FEED",
        )

    def until(self, meta: Meta, children: Children) -> Clause:
        return Clause("until", children[0], position_at(meta), "UNTIL")

    def starting(self, meta: Meta, children: Children) -> Clause:
        return Clause("starts_at", children[0], position_at(meta), "FROM")

    def agreement(self, meta: Meta, children: Children) -> Clause:
        return Clause("agreement", unquote_text(children[0]), position_at(meta), "AGREEMENT")

    def ip_allow(self, meta: Meta, children: Children) -> Clause:
        return Clause("ip_allow", children[0], position_at(meta), "IP ALLOW")

    def set_properties(self, meta: Meta, children: Children) -> Clause:
        return Clause("properties", children[0], position_at(meta), "PROPERTIES")

    def using_id(self, meta: Meta, children: Children) -> Clause:
        return self._using(meta, "USING ID", metastore_id=unquote_text(children[0]))

    def using_oidc(self, meta: Meta, children: Children) -> Clause:
        return self._using(meta, "USING OIDC", authentication="OIDC_FEDERATION", policy=children[0])

    def using_client_credentials(self, meta: Meta, _: Children) -> Clause:
        return self._using(meta, "USING CLIENT CREDENTIALS", authentication="OAUTH_CLIENT_CREDENTIALS")

    def using_token(self, meta: Meta, _: Children) -> Clause:
        return self._using(meta, "USING TOKEN", authentication="TOKEN")

    def _using(self, meta: Meta, spelt: str, **fields: object) -> Clause:
        return Clause("using", fields, position_at(meta), spelt)

    # --- lists in parentheses

    def texts(self, _: Meta, children: Children) -> tuple[str, ...]:
        return tuple(unquote_text(part) for part in children)

    def key(self, _: Meta, children: Children) -> str:
        if isinstance(children[0], Token):
            return unquote_text(children[0])
        return ".".join(children)

    def property(self, meta: Meta, children: Children) -> tuple[Any, ...]:
        key, value = children
        return key, unquote_text(value), position_at(meta)

    def properties(self, _: Meta, children: Children) -> dict[str, str]:
        return require_unique(children, "The property")

    def oidc_field(self, meta: Meta, children: Children) -> tuple[Any, ...]:
        key, value = children
        return key.lower(), unquote_text(value), position_at(meta)

    def oidc(self, meta: Meta, children: Children) -> statement_types.Policy:
        return make_policy(meta, children)

    def keep_old(self, _: Meta, children: Children) -> Clause:
        return Clause("keep_old_for", read_span(children[0]), position_of(children[0]), "KEEP OLD FOR")

    def token_end(self, meta: Meta, children: Children) -> Clause:
        return Clause("until", children[0], position_at(meta), "UNTIL")

    # --- predicates

    def nested(self, meta: Meta, children: Children) -> Nested:
        return Nested.of(meta, children)

    def where(self, meta: Meta, children: Children) -> Clause:
        text = statements.join_tokens(tokens_of(children))
        if not text:
            raise InvalidClause("WHERE needs a predicate in its parentheses.", position_at(meta))
        return Clause("rule", text, position_at(meta), "WHERE")

    def partitions(self, meta: Meta, children: Children) -> Clause:
        return Clause("rule", statements.alternation(children), position_at(meta), "PARTITION")

    def group(self, _: Meta, children: Children) -> list[str]:
        return list(children)

    def equal(self, _: Meta, children: Children) -> str:
        column, value = children
        return f"{quoted_name(column)} = {value}"

    def like(self, _: Meta, children: Children) -> str:
        column, pattern = children
        return f"{quoted_name(column)} LIKE {quoted_text(unquote_text(pattern))}"

    def text_value(self, _: Meta, children: Children) -> str:
        return quoted_text(unquote_text(children[0]))

    def number_value(self, _: Meta, children: Children) -> str:
        return "".join(children).removeprefix("+")

    def truth_value(self, _: Meta, children: Children) -> str:
        return str(children[0]).upper()

    def recipient_value(self, _: Meta, children: Children) -> str:
        key = unquote_text(children[0]) if isinstance(children[0], Token) else ".".join(children)
        return f"current_recipient({quoted_text(key)})"


Altered = dict[str, Any] | Callable[[str], statement_types.Statement]


@dataclass(frozen=True)
class PlacedStatement:
    """A statement and the characters of the script it takes, from `start` to before `end`."""

    statement: statement_types.Statement
    start: int
    end: int


def _flagged(children: Children) -> tuple[bool, Children]:
    """Whether IF [NOT] EXISTS is there, and the rest."""
    return (True, children[1:]) if children[0] is True else (False, children)


@v_args(meta=True)
class StatementBuilder(ClauseBuilder):
    """Makes the statements of a script."""

    def script(self, _: Meta, children: Children) -> tuple[PlacedStatement, ...]:
        return tuple(children)

    def placed(self, meta: Meta, children: Children) -> PlacedStatement:
        return PlacedStatement(children[0], meta.start_pos, meta.end_pos)

    # --- shares

    def create_share(self, _: Meta, children: Children) -> statement_types.Statement:
        if_not_exists, (name, *clauses) = _flagged(children)
        return statement_types.CreateShare(name, if_not_exists, **collect_clauses(clauses))

    def share_clause(self, _: Meta, children: Children) -> Any:
        return children[0]

    def drop_share(self, _: Meta, children: Children) -> statement_types.Statement:
        if_exists, [name] = _flagged(children)
        return statement_types.DropShare(name, if_exists)

    def alter_share(self, _: Meta, children: Children) -> statement_types.Statement:
        name, change = children
        return statement_types.AlterShare(name, change) if isinstance(change, dict) else change(name)

    def comment_on_share(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.AlterShare(children[0], {"comment": read_text(children[1])})

    def comment_on_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.AlterRecipient(children[0], {"comment": read_text(children[1])})

    def comment_on(self, _: Meta, children: Children) -> statement_types.Statement:
        return children[0]  # type: ignore[no-any-return]  # as every callback's parts

    def view(self, _: Meta, __: Children) -> None:
        return None

    def put_table(self, meta: Meta, children: Children) -> Altered:
        return self._put("TABLE", meta, children)

    def put_view(self, meta: Meta, children: Children) -> Altered:
        return self._put("VIEW", meta, [part for part in children if part is not None])

    def put_model(self, meta: Meta, children: Children) -> Altered:
        return self._put("MODEL", meta, children)

    def _put(self, kind: statement_types.Kind, meta: Meta, children: Children) -> Altered:
        verb, (path, *clauses) = _verb(children)
        clauses_given = collect_clauses(clauses)
        history, start = clauses_given.pop("history", (True, None))
        alias = clauses_given.pop("alias", path[-2:])
        if len(alias) == 1:
            alias = (*path[-2:-1], *alias)
        if len(alias) != 2:
            what = f"{'.'.join(path)} has no schema; write schema.table, or name it AS schema.table."
            raise InvalidClause(what, position_at(meta))
        fields = {"alias": alias, "history": history, "start_version": start, **clauses_given}
        return partial(statement_types.PutObject, verb=verb, kind=kind, path=path, **fields)

    def put_schema(self, _: Meta, children: Children) -> Altered:
        verb, (path, *clauses) = _verb(children)
        return partial(statement_types.PutSchema, verb=verb, path=path, **collect_clauses(clauses))

    def remove_object(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.RemoveObject, path=children[-1])

    def remove_schema(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.RemoveSchema, path=children[0])

    def renamed(self, _: Meta, children: Children) -> Altered:
        return {"new_name": children[0]}

    def owned(self, _: Meta, children: Children) -> Altered:
        return {"owner": children[0]}

    def commented(self, _: Meta, children: Children) -> Altered:
        return {"comment": read_text(children[0])}

    def display_named(self, _: Meta, children: Children) -> Altered:
        return {"display_name": read_text(children[0])}

    def pinned(self, _: Meta, children: Children) -> Altered:
        number, *path = children
        return partial(statement_types.PinPublication, publication=number, path=path[0] if path else None)

    def unpinned(self, _: Meta, children: Children) -> Altered:
        return partial(
            statement_types.PinPublication, publication=None, path=children[0] if children else None
        )

    # --- recipients

    def create_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        if_not_exists, (name, *clauses) = _flagged(children)
        fields = collect_clauses(clauses)
        return statement_types.CreateRecipient(name, if_not_exists, **fields.pop("using", {}), **fields)

    def drop_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        if_exists, [name] = _flagged(children)
        return statement_types.DropRecipient(name, if_exists)

    def alter_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        name, change = children
        return statement_types.AlterRecipient(name, change) if isinstance(change, dict) else change(name)

    def properties_set(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.SetProperties, properties=children[0])

    def properties_unset(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.UnsetProperties, keys=tuple(dict.fromkeys(children)))

    def addresses_set(self, _: Meta, children: Children) -> Altered:
        return {"ip_allow": children[0]}

    def addresses_unset(self, _: Meta, __: Children) -> Altered:
        return {"ip_allow": None}

    def agreement_set(self, _: Meta, children: Children) -> Altered:
        return {"agreement": unquote_text(children[0])}

    def agreement_unset(self, _: Meta, __: Children) -> Altered:
        return {"agreement": None}

    def end_set(self, _: Meta, children: Children) -> Altered:
        return {"expires_at": children[0]}

    def end_unset(self, _: Meta, __: Children) -> Altered:
        return {"expires_at": None}

    def token_rotated(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.RotateToken, **collect_clauses(children))

    def token_revoked(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.RevokeToken, token_id=read_text(children[0]) if children else None)

    def invited(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.Invite, link_life=read_span(children[0]) if children else None)

    def policy_put(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.PutPolicy, policy=children[0])

    def policy_dropped(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.DropPolicy, policy=children[0])

    # --- groups

    def create_group(self, _: Meta, children: Children) -> statement_types.Statement:
        if_not_exists, (name, *comment) = _flagged(children)
        return statement_types.CreateGroup(name, if_not_exists, read_text(comment[0]) if comment else None)

    def drop_group(self, _: Meta, children: Children) -> statement_types.Statement:
        if_exists, [name] = _flagged(children)
        return statement_types.DropGroup(name, if_exists)

    def alter_group(self, _: Meta, children: Children) -> statement_types.Statement:
        name, change = children
        return statement_types.AlterGroup(name, change) if isinstance(change, dict) else change(name)

    def members_added(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.ChangeMembers, verb="ADD", recipients=tuple(children))

    def members_removed(self, _: Meta, children: Children) -> Altered:
        return partial(statement_types.ChangeMembers, verb="REMOVE", recipients=tuple(children))

    # --- who may read what

    def to_recipient(self, _: Meta, children: Children) -> statement_types.Grantee:
        return statement_types.Grantee("RECIPIENT", children[0])

    def to_group(self, _: Meta, children: Children) -> statement_types.Grantee:
        return statement_types.Grantee("GROUP", children[0])

    def grant(self, _: Meta, children: Children) -> statement_types.Statement:
        share, to, *clauses = children
        fields = collect_clauses(clauses)
        return statement_types.Grant(share, to, ends_at=fields.pop("until", None), **fields)

    def revoke(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.Revoke(*children)

    def revoke_token(self, _: Meta, children: Children) -> statement_types.Statement:
        *token_id, name = children
        return statement_types.RevokeToken(name, read_text(token_id[0]) if token_id else None)

    def revoke_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.RevokeRecipient(children[0])

    def publish(self, _: Meta, children: Children) -> statement_types.Statement:
        path, branch = children
        return statement_types.Publish(path, unquote_text(branch) if isinstance(branch, Token) else branch)

    # --- tables that are followed where they lie

    def follow(self, meta: Meta, children: Children) -> statement_types.Statement:
        location, *clauses = children
        clauses_given = collect_clauses(clauses)
        history, start = clauses_given.pop("history", (True, None))
        if len(clauses_given.get("alias", ("", ""))) != 2:
            raise InvalidClause("Name the table AS schema.table.", position_at(meta))
        return Follow(unquote_text(location), history=history, start_version=start or 0, **clauses_given)

    def unfollow(self, _: Meta, children: Children) -> statement_types.Statement:
        return Unfollow(children[0])

    # --- looking

    def show_followed_tables(self, _: Meta, children: Children) -> statement_types.Statement:
        return ShowFollowedTables(*children)

    def show_shares(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowShares(*children)

    def show_shares_in_provider(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowSharesInProvider(*children)

    def show_all_in_share(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowAllInShare(*children)

    def show_recipients(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowRecipients(*children)

    def show_groups(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowGroups(*children)

    def show_grants_on_share(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowGrantsOnShare(*children)

    def show_grants_to(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowGrantsTo(*children)

    def show_usage(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.ShowUsage(*children)

    def since(self, _: Meta, children: Children) -> Any:
        return children[0]

    def describe_share(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.DescribeShare(*children)

    def describe_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.DescribeRecipient(*children)

    def describe_group(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.DescribeGroup(*children)

    def select(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.SelectAll(*children)

    def set_recipient(self, _: Meta, children: Children) -> statement_types.Statement:
        return statement_types.SetRecipient(children[0])

    def reset_recipient(self, _: Meta, __: Children) -> statement_types.Statement:
        return statement_types.SetRecipient(None)


def _verb(children: Children) -> tuple[Literal["ADD", "ALTER"], Children]:
    """ALTER leaves its token, ADD none."""
    if isinstance(children[0], Token) and children[0].type == "ALTER":
        return "ALTER", children[1:]
    return "ADD", children


GRAMMAR = Path(__file__).with_name("sharing.lark")
END = "$END"
# How the terminals that are not keywords are called; None is not worth telling.
TERMINAL_NAMES = {
    "NAME": "a name",
    "QUOTED_NAME": None,
    "TEXT": "a text in quotes",
    "DECIMAL": "a number",
    "SIGN": None,
    "OPERATOR": "an operator",
    "SEMICOLON": "`;`",
    END: "the end",
}
MAX_LISTED = 12


@cache
def get_parser() -> Lark:
    """The parser, made once: it follows a text and gives the tree of it."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", start="script", propagate_positions=True, maybe_placeholders=False)


def parse(text: str, source: str | None = None) -> tuple[PlacedStatement, ...]:
    """The statements of a script, in order; `source` is the name of its file.

    Raises:
        SqlError: the text is not SQL that lakeshare knows, and where it ceases to be.
    """
    try:
        tree = get_parser().parse(text)
    except UnexpectedInput as error:
        what, place = _explain_error(error, text)
        raise SqlError(what, place, text, source) from None
    try:
        return tuple(StatementBuilder().transform(tree))
    except VisitError as error:
        if not isinstance(error.orig_exc, InvalidClause):
            raise
        raise SqlError(error.orig_exc.what, error.orig_exc.place, text, source) from None


def is_unfinished(text: str) -> bool:
    """Whether the text is right as far as it goes, and only ends too early."""
    try:
        get_parser().parse(text)
    except UnexpectedToken as error:
        return error.token.type == END or text.startswith("/*", error.token.start_pos)
    except UnexpectedCharacters as error:
        return _opens_text(text, error.pos_in_stream or 0)
    return False


def terminal_name(terminal: str) -> str | None:
    """How a message names a terminal; None when it is not worth telling."""
    if terminal in TERMINAL_NAMES:
        return TERMINAL_NAMES[terminal]
    pattern = get_parser().get_terminal(terminal).pattern
    if not isinstance(pattern, PatternStr):
        return terminal
    return pattern.value if pattern.value.isalpha() else f"`{pattern.value}`"


def list_expected(parser: InteractiveParser | None, otherwise: Iterable[str]) -> list[str]:
    """What may stand at a place, keywords first, in the words of a message."""
    terminals = otherwise if parser is None else parser.accepts()  # type: ignore[no-untyped-call]  # lark says nothing
    words = {word for word in map(terminal_name, terminals) if word is not None}
    return sorted(words, key=lambda word: (not word.isupper(), word))


def _explain_error(error: UnexpectedInput, text: str) -> tuple[str, SourcePosition]:
    if isinstance(error, UnexpectedToken):
        if text.startswith("/*", error.token.start_pos):
            return "The comment that begins here does not end.", position_of(error.token)
        expected = list_expected(error.interactive_parser, error.accepts or error.expected)
        if error.token.type == END:
            return f"The statement ends too early; expected {_listed(expected)}.", _end_of(text)
        return _unexpected(error.token, expected), position_of(error.token)
    place = SourcePosition(error.line, error.column)
    if _opens_text(text, error.pos_in_stream or 0):
        return "What begins here with a quote does not end. A quote inside a text is doubled.", place
    character = text[error.pos_in_stream or 0 : (error.pos_in_stream or 0) + 1]
    return f"{character!r} means nothing here.", place


def _unexpected(token: Token, expected: list[str]) -> str:
    shown = token if len(token) <= 40 else f"{token[:40]}…"
    close = get_close_matches(token.upper(), [word for word in expected if word.isupper()], 1)
    meant = f" Did you mean {close[0]}?" if close else ""
    # Words that are keywords where they stand, and were meant as names.
    quoting = " A name that is a keyword here goes in back-quotes." if _could_be_name(token, expected) else ""
    return f"{shown} was not expected here; expected {_listed(expected)}.{meant}{quoting}"


def _could_be_name(token: Token, expected: list[str]) -> bool:
    return "a name" in expected and token.isidentifier()


def _listed(words: list[str]) -> str:
    shown_words = words if len(words) <= MAX_LISTED else [*words[:MAX_LISTED], "…"]
    return shown_words[0] if len(shown_words) == 1 else f"{', '.join(shown_words[:-1])} or {shown_words[-1]}"


def _opens_text(text: str, position: int) -> bool:
    return text[position : position + 1] in ("'", '"', "`")


def _end_of(text: str) -> SourcePosition:
    """Behind the last character that is not space."""
    before = text.rstrip().split("\n")
    return SourcePosition(len(before), len(before[-1]) + 1)
