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
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.changes import Follow, ShowFollowedTables, Unfollow
from lakeshare_server.sql.statements import (
    Place,
    SqlError,
    moment,
    plain_name,
    plain_text,
    quoted_name,
    quoted_text,
    span,
)

MAX_NUMBER = (1 << 63) - 1
DEEPEST = 64
T = TypeVar("T")


class Unusable(Exception):
    """A value or clause that cannot stand where it stands."""

    def __init__(self, what: str, place: Place) -> None:
        super().__init__(what)
        self.what, self.place = what, place


@dataclass(frozen=True)
class Clause:
    """A named part of a statement, whose order makes no difference."""

    name: str
    value: Any  # what the statement takes under this name
    place: Place
    spelt: str


def place_of(token: Token) -> Place:
    """Where a token stands."""
    return Place(token.line or 1, token.column or 1, len(token.split("\n", 1)[0]))


def place_at(meta: Meta) -> Place:
    """Where a part begins."""
    return Place(getattr(meta, "line", 1), getattr(meta, "column", 1))


def name_in(token: Token) -> str:
    """The name a token writes."""
    name = str(plain_name(token))
    if not name.strip():
        raise Unusable("A name has at least one character.", place_of(token))
    return name


def text_in(token: Token | None) -> str | None:
    """The text a token writes; NULL is none."""
    return None if token is None or token.type == "NULL" else plain_text(token)


def number_in(token: Token) -> int:
    """The whole number a token writes."""
    # Counted before it is made a number: Python refuses to read very long ones.
    if not token.isdecimal() or len(token) > 19 or int(token) > MAX_NUMBER:
        raise Unusable(f"Give a whole number of at most {MAX_NUMBER}.", place_of(token))
    return int(token)


def moment_in(token: Token) -> Any:
    """The moment a token writes."""
    hint = "is no time; write '2027-01-31', '2027-01-31 18:00' or '2027-01-31T18:00:00+02:00' (UTC without a zone)."
    return _tried(moment, token, hint)


def span_in(token: Token) -> Any:
    """The span of time a token writes."""
    return _tried(span, token, "is no span of time; write it like '24 hours', '7 days' or '1 day 12 hours'.")


def _tried(read: Callable[[str], T], token: Token, hint: str) -> T:
    try:
        return read(plain_text(token))
    except ValueError:
        raise Unusable(f"{token[:60]} {hint}", place_of(token)) from None


def gathered(clauses: Sequence[Clause]) -> dict[str, Any]:
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
            raise Unusable(what, clause.place)
        found[clause.name] = clause
    return {name: clause.value for name, clause in found.items()}


def unique(pairs: Sequence[tuple[str, str, Place]], what: str) -> dict[str, str]:
    """Pairs as a mapping; each key once."""
    found: dict[str, str] = {}
    for key, value, place in pairs:
        if key in found:
            raise Unusable(f"{what} {key!r} is there twice.", place)
        found[key] = value
    return found


def policy_of(meta: Meta, fields: Sequence[tuple[str, str, Place]]) -> said.Policy:
    """The federation policy that OIDC (…) describes."""
    known = ("issuer", "subject", "subject_claim", "audience", "name")
    audiences = tuple(value for key, value, _ in fields if key == "audience")
    for key, _, place in fields:
        if key not in known:
            raise Unusable(f"OIDC has no {key}; it takes {', '.join(known)}.", place)
    given = unique([field for field in fields if field[0] != "audience"], "OIDC's")
    for key in ("issuer", "subject"):
        if key not in given:
            raise Unusable(f"OIDC needs an issuer and a subject; {key} is missing.", place_at(meta))
    return said.Policy(**given, audiences=audiences)


class Nested(tuple[str, ...]):
    """The tokens of a part of a predicate in parentheses, and how deep it is."""

    depth: int

    @classmethod
    def of(cls, meta: Meta, pieces: "Sequence[Token | Nested]") -> "Nested":
        """Parentheses around pieces; no deeper than anything that reads them can follow."""
        nested = cls(("(", *tokens_of(pieces), ")"))
        nested.depth = 1 + max((piece.depth for piece in pieces if isinstance(piece, Nested)), default=0)
        if nested.depth > DEEPEST:
            raise Unusable(f"Parentheses are nested deeper than {DEEPEST}.", place_at(meta))
        return nested


def tokens_of(pieces: "Sequence[Token | Nested]") -> Iterator[str]:
    """The tokens of a predicate, with those between its parentheses."""
    for piece in pieces:
        if isinstance(piece, Nested):
            yield from piece
        elif piece.type == "TEXT":
            yield quoted_text(plain_text(piece))
        else:
            yield str(piece)


Parts = list[Any]


@v_args(meta=True)
class ClauseBuilder(Transformer_NonRecursive[Token, Any]):
    """Makes clauses; the class of statements builds on it."""

    # --- words

    def name(self, _: Meta, parts: Parts) -> str:
        return name_in(parts[0])

    def principal(self, _: Meta, parts: Parts) -> str:
        [word] = parts
        return plain_text(word) if isinstance(word, Token) else str(word)

    def object_path(self, _: Meta, parts: Parts) -> tuple[str, ...]:
        return tuple(parts)

    def number(self, _: Meta, parts: Parts) -> int:
        return number_in(parts[0])

    def moment(self, _: Meta, parts: Parts) -> Any:
        return moment_in(parts[0])

    def pattern(self, _: Meta, parts: Parts) -> str:
        return plain_text(parts[0])

    def if_not_exists(self, _: Meta, __: Parts) -> bool:
        return True

    def if_exists(self, _: Meta, __: Parts) -> bool:
        return True

    # --- clauses

    def comment(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("comment", text_in(parts[0]), place_at(meta), "COMMENT")

    def alias(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("alias", tuple(parts), place_at(meta), "AS")

    def in_share(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("share", parts[0], place_at(meta), "IN SHARE")

    def columns(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("columns", tuple(parts), place_at(meta), "COLUMNS")

    def start_version(self, _: Meta, parts: Parts) -> int:
        return int(parts[0])

    def with_history(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("history", (True, parts[0] if parts else None), place_at(meta), "WITH HISTORY")

    def without_history(self, meta: Meta, _: Parts) -> Clause:
        return Clause("history", (False, None), place_at(meta), "WITHOUT HISTORY")

    def with_change_data_feed(self, meta: Meta, parts: Parts) -> Clause:
        # Without a start, recipients read what is published from the moment of adding on.
        return Clause(
            "history", (True, parts[0] if parts else said.Now()), place_at(meta), "WITH CHANGE DATA FEED"
        )

    def until(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("until", parts[0], place_at(meta), "UNTIL")

    def starting(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("starts_at", parts[0], place_at(meta), "FROM")

    def agreement(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("agreement", plain_text(parts[0]), place_at(meta), "AGREEMENT")

    def ip_allow(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("ip_allow", parts[0], place_at(meta), "IP ALLOW")

    def set_properties(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("properties", parts[0], place_at(meta), "PROPERTIES")

    def using_id(self, meta: Meta, parts: Parts) -> Clause:
        return self._using(meta, "USING ID", metastore_id=plain_text(parts[0]))

    def using_oidc(self, meta: Meta, parts: Parts) -> Clause:
        return self._using(meta, "USING OIDC", authentication="OIDC_FEDERATION", policy=parts[0])

    def using_client_credentials(self, meta: Meta, _: Parts) -> Clause:
        return self._using(meta, "USING CLIENT CREDENTIALS", authentication="OAUTH_CLIENT_CREDENTIALS")

    def using_token(self, meta: Meta, _: Parts) -> Clause:
        return self._using(meta, "USING TOKEN", authentication="TOKEN")

    def _using(self, meta: Meta, spelt: str, **fields: object) -> Clause:
        return Clause("using", fields, place_at(meta), spelt)

    # --- lists in parentheses

    def texts(self, _: Meta, parts: Parts) -> tuple[str, ...]:
        return tuple(plain_text(part) for part in parts)

    def key(self, _: Meta, parts: Parts) -> str:
        if isinstance(parts[0], Token):
            return plain_text(parts[0])
        return ".".join(parts)

    def property(self, meta: Meta, parts: Parts) -> tuple[Any, ...]:
        key, value = parts
        return key, plain_text(value), place_at(meta)

    def properties(self, _: Meta, parts: Parts) -> dict[str, str]:
        return unique(parts, "The property")

    def oidc_field(self, meta: Meta, parts: Parts) -> tuple[Any, ...]:
        key, value = parts
        return key.lower(), plain_text(value), place_at(meta)

    def oidc(self, meta: Meta, parts: Parts) -> said.Policy:
        return policy_of(meta, parts)

    def keep_old(self, _: Meta, parts: Parts) -> Clause:
        return Clause("keep_old_for", span_in(parts[0]), place_of(parts[0]), "KEEP OLD FOR")

    def token_end(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("until", parts[0], place_at(meta), "UNTIL")

    # --- predicates

    def nested(self, meta: Meta, parts: Parts) -> Nested:
        return Nested.of(meta, parts)

    def where(self, meta: Meta, parts: Parts) -> Clause:
        text = statements.spelt(tokens_of(parts))
        if not text:
            raise Unusable("WHERE needs a predicate in its parentheses.", place_at(meta))
        return Clause("rule", text, place_at(meta), "WHERE")

    def partitions(self, meta: Meta, parts: Parts) -> Clause:
        return Clause("rule", statements.any_of(parts), place_at(meta), "PARTITION")

    def group(self, _: Meta, parts: Parts) -> list[str]:
        return list(parts)

    def equal(self, _: Meta, parts: Parts) -> str:
        column, value = parts
        return f"{quoted_name(column)} = {value}"

    def like(self, _: Meta, parts: Parts) -> str:
        column, pattern = parts
        return f"{quoted_name(column)} LIKE {quoted_text(plain_text(pattern))}"

    def text_value(self, _: Meta, parts: Parts) -> str:
        return quoted_text(plain_text(parts[0]))

    def number_value(self, _: Meta, parts: Parts) -> str:
        return "".join(parts).removeprefix("+")

    def truth_value(self, _: Meta, parts: Parts) -> str:
        return str(parts[0]).upper()

    def recipient_value(self, _: Meta, parts: Parts) -> str:
        key = plain_text(parts[0]) if isinstance(parts[0], Token) else ".".join(parts)
        return f"current_recipient({quoted_text(key)})"


Altered = dict[str, Any] | Callable[[str], said.Statement]


@dataclass(frozen=True)
class Placed:
    """A statement and the characters of the script it takes, from `start` to before `end`."""

    statement: said.Statement
    start: int
    end: int


def _flagged(parts: Parts) -> tuple[bool, Parts]:
    """Whether IF [NOT] EXISTS is there, and the rest."""
    return (True, parts[1:]) if parts[0] is True else (False, parts)


@v_args(meta=True)
class StatementBuilder(ClauseBuilder):
    """Makes the statements of a script."""

    def script(self, _: Meta, parts: Parts) -> tuple[Placed, ...]:
        return tuple(parts)

    def placed(self, meta: Meta, parts: Parts) -> Placed:
        return Placed(parts[0], meta.start_pos, meta.end_pos)

    # --- shares

    def create_share(self, _: Meta, parts: Parts) -> said.Statement:
        if_not_exists, (name, *clauses) = _flagged(parts)
        return said.CreateShare(name, if_not_exists, **gathered(clauses))

    def share_clause(self, _: Meta, parts: Parts) -> Any:
        return parts[0]

    def drop_share(self, _: Meta, parts: Parts) -> said.Statement:
        if_exists, [name] = _flagged(parts)
        return said.DropShare(name, if_exists)

    def alter_share(self, _: Meta, parts: Parts) -> said.Statement:
        name, change = parts
        return said.AlterShare(name, change) if isinstance(change, dict) else change(name)

    def comment_on_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.AlterShare(parts[0], {"comment": text_in(parts[1])})

    def comment_on_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.AlterRecipient(parts[0], {"comment": text_in(parts[1])})

    def comment_on(self, _: Meta, parts: Parts) -> said.Statement:
        return parts[0]  # type: ignore[no-any-return]  # as every callback's parts

    def view(self, _: Meta, __: Parts) -> None:
        return None

    def put_table(self, meta: Meta, parts: Parts) -> Altered:
        return self._put("TABLE", meta, parts)

    def put_view(self, meta: Meta, parts: Parts) -> Altered:
        return self._put("VIEW", meta, [part for part in parts if part is not None])

    def put_model(self, meta: Meta, parts: Parts) -> Altered:
        return self._put("MODEL", meta, parts)

    def _put(self, kind: said.Kind, meta: Meta, parts: Parts) -> Altered:
        verb, (path, *clauses) = _verb(parts)
        given = gathered(clauses)
        history, start = given.pop("history", (True, None))
        alias = given.pop("alias", path[-2:])
        if len(alias) == 1:
            alias = (*path[-2:-1], *alias)
        if len(alias) != 2:
            what = f"{'.'.join(path)} has no schema; write schema.table, or name it AS schema.table."
            raise Unusable(what, place_at(meta))
        fields = {"alias": alias, "history": history, "start_version": start, **given}
        return partial(said.PutObject, verb=verb, kind=kind, path=path, **fields)

    def put_schema(self, _: Meta, parts: Parts) -> Altered:
        verb, (path, *clauses) = _verb(parts)
        return partial(said.PutSchema, verb=verb, path=path, **gathered(clauses))

    def remove_object(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RemoveObject, path=parts[-1])

    def remove_schema(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RemoveSchema, path=parts[0])

    def renamed(self, _: Meta, parts: Parts) -> Altered:
        return {"new_name": parts[0]}

    def owned(self, _: Meta, parts: Parts) -> Altered:
        return {"owner": parts[0]}

    def commented(self, _: Meta, parts: Parts) -> Altered:
        return {"comment": text_in(parts[0])}

    def display_named(self, _: Meta, parts: Parts) -> Altered:
        return {"display_name": text_in(parts[0])}

    def pinned(self, _: Meta, parts: Parts) -> Altered:
        number, *path = parts
        return partial(said.PinPublication, publication=number, path=path[0] if path else None)

    def unpinned(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.PinPublication, publication=None, path=parts[0] if parts else None)

    # --- recipients

    def create_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        if_not_exists, (name, *clauses) = _flagged(parts)
        fields = gathered(clauses)
        return said.CreateRecipient(name, if_not_exists, **fields.pop("using", {}), **fields)

    def drop_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        if_exists, [name] = _flagged(parts)
        return said.DropRecipient(name, if_exists)

    def alter_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        name, change = parts
        return said.AlterRecipient(name, change) if isinstance(change, dict) else change(name)

    def properties_set(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.SetProperties, properties=parts[0])

    def properties_unset(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.UnsetProperties, keys=tuple(dict.fromkeys(parts)))

    def addresses_set(self, _: Meta, parts: Parts) -> Altered:
        return {"ip_allow": parts[0]}

    def addresses_unset(self, _: Meta, __: Parts) -> Altered:
        return {"ip_allow": None}

    def agreement_set(self, _: Meta, parts: Parts) -> Altered:
        return {"agreement": plain_text(parts[0])}

    def agreement_unset(self, _: Meta, __: Parts) -> Altered:
        return {"agreement": None}

    def end_set(self, _: Meta, parts: Parts) -> Altered:
        return {"expires_at": parts[0]}

    def end_unset(self, _: Meta, __: Parts) -> Altered:
        return {"expires_at": None}

    def token_rotated(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RotateToken, **gathered(parts))

    def token_revoked(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.RevokeToken, token_id=text_in(parts[0]) if parts else None)

    def invited(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.Invite, link_life=span_in(parts[0]) if parts else None)

    def policy_put(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.PutPolicy, policy=parts[0])

    def policy_dropped(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.DropPolicy, policy=parts[0])

    # --- groups

    def create_group(self, _: Meta, parts: Parts) -> said.Statement:
        if_not_exists, (name, *comment) = _flagged(parts)
        return said.CreateGroup(name, if_not_exists, text_in(comment[0]) if comment else None)

    def drop_group(self, _: Meta, parts: Parts) -> said.Statement:
        if_exists, [name] = _flagged(parts)
        return said.DropGroup(name, if_exists)

    def alter_group(self, _: Meta, parts: Parts) -> said.Statement:
        name, change = parts
        return said.AlterGroup(name, change) if isinstance(change, dict) else change(name)

    def members_added(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.ChangeMembers, verb="ADD", recipients=tuple(parts))

    def members_removed(self, _: Meta, parts: Parts) -> Altered:
        return partial(said.ChangeMembers, verb="REMOVE", recipients=tuple(parts))

    # --- who may read what

    def to_recipient(self, _: Meta, parts: Parts) -> said.Grantee:
        return said.Grantee("RECIPIENT", parts[0])

    def to_group(self, _: Meta, parts: Parts) -> said.Grantee:
        return said.Grantee("GROUP", parts[0])

    def grant(self, _: Meta, parts: Parts) -> said.Statement:
        share, to, *clauses = parts
        fields = gathered(clauses)
        return said.Grant(share, to, ends_at=fields.pop("until", None), **fields)

    def revoke(self, _: Meta, parts: Parts) -> said.Statement:
        return said.Revoke(*parts)

    def revoke_token(self, _: Meta, parts: Parts) -> said.Statement:
        *token_id, name = parts
        return said.RevokeToken(name, text_in(token_id[0]) if token_id else None)

    def revoke_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.RevokeRecipient(parts[0])

    def publish(self, _: Meta, parts: Parts) -> said.Statement:
        path, branch = parts
        return said.Publish(path, plain_text(branch) if isinstance(branch, Token) else branch)

    # --- tables that are followed where they lie

    def follow(self, meta: Meta, parts: Parts) -> said.Statement:
        location, *clauses = parts
        given = gathered(clauses)
        history, start = given.pop("history", (True, None))
        if len(given.get("alias", ("", ""))) != 2:
            raise Unusable("Name the table AS schema.table.", place_at(meta))
        return Follow(plain_text(location), history=history, start_version=start or 0, **given)

    def unfollow(self, _: Meta, parts: Parts) -> said.Statement:
        return Unfollow(parts[0])

    # --- looking

    def show_followed_tables(self, _: Meta, parts: Parts) -> said.Statement:
        return ShowFollowedTables(*parts)

    def show_shares(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowShares(*parts)

    def show_shares_in_provider(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowSharesInProvider(*parts)

    def show_all_in_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowAllInShare(*parts)

    def show_recipients(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowRecipients(*parts)

    def show_groups(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowGroups(*parts)

    def show_grants_on_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowGrantsOnShare(*parts)

    def show_grants_to(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowGrantsTo(*parts)

    def show_usage(self, _: Meta, parts: Parts) -> said.Statement:
        return said.ShowUsage(*parts)

    def since(self, _: Meta, parts: Parts) -> Any:
        return parts[0]

    def describe_share(self, _: Meta, parts: Parts) -> said.Statement:
        return said.DescribeShare(*parts)

    def describe_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.DescribeRecipient(*parts)

    def describe_group(self, _: Meta, parts: Parts) -> said.Statement:
        return said.DescribeGroup(*parts)

    def select(self, _: Meta, parts: Parts) -> said.Statement:
        return said.SelectAll(*parts)

    def set_recipient(self, _: Meta, parts: Parts) -> said.Statement:
        return said.SetRecipient(parts[0])

    def reset_recipient(self, _: Meta, __: Parts) -> said.Statement:
        return said.SetRecipient(None)


def _verb(parts: Parts) -> tuple[Literal["ADD", "ALTER"], Parts]:
    """ALTER leaves its token, ADD none."""
    if isinstance(parts[0], Token) and parts[0].type == "ALTER":
        return "ALTER", parts[1:]
    return "ADD", parts


GRAMMAR = Path(__file__).with_name("sharing.lark")
END = "$END"
# How the terminals that are not keywords are called; None is not worth telling.
CALLED = {
    "NAME": "a name",
    "QUOTED_NAME": None,
    "TEXT": "a text in quotes",
    "DECIMAL": "a number",
    "SIGN": None,
    "OPERATOR": "an operator",
    "SEMICOLON": "`;`",
    END: "the end",
}
MOST_TOLD = 12


@cache
def parser() -> Lark:
    """The parser, made once: it follows a text and gives the tree of it."""
    grammar = GRAMMAR.read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", start="script", propagate_positions=True, maybe_placeholders=False)


def parse(text: str, source: str | None = None) -> tuple[Placed, ...]:
    """The statements of a script, in order; `source` is the name of its file.

    Raises:
        SqlError: the text is not SQL that lakeshare knows, and where it ceases to be.
    """
    try:
        tree = parser().parse(text)
    except UnexpectedInput as error:
        what, place = _told(error, text)
        raise SqlError(what, place, text, source) from None
    try:
        return tuple(StatementBuilder().transform(tree))
    except VisitError as error:
        if not isinstance(error.orig_exc, Unusable):
            raise
        raise SqlError(error.orig_exc.what, error.orig_exc.place, text, source) from None


def is_unfinished(text: str) -> bool:
    """Whether the text is right as far as it goes, and only ends too early."""
    try:
        parser().parse(text)
    except UnexpectedToken as error:
        return error.token.type == END or text.startswith("/*", error.token.start_pos)
    except UnexpectedCharacters as error:
        return _opens_text(text, error.pos_in_stream or 0)
    return False


def called(terminal: str) -> str | None:
    """How a message names a terminal; None when it is not worth telling."""
    if terminal in CALLED:
        return CALLED[terminal]
    pattern = parser().get_terminal(terminal).pattern
    if not isinstance(pattern, PatternStr):
        return terminal
    return pattern.value if pattern.value.isalpha() else f"`{pattern.value}`"


def expected_after(parser: InteractiveParser | None, otherwise: Iterable[str]) -> list[str]:
    """What may stand at a place, keywords first, in the words of a message."""
    terminals = otherwise if parser is None else parser.accepts()  # type: ignore[no-untyped-call]  # lark says nothing
    words = {word for word in map(called, terminals) if word is not None}
    return sorted(words, key=lambda word: (not word.isupper(), word))


def _told(error: UnexpectedInput, text: str) -> tuple[str, Place]:
    if isinstance(error, UnexpectedToken):
        if text.startswith("/*", error.token.start_pos):
            return "The comment that begins here does not end.", place_of(error.token)
        expected = expected_after(error.interactive_parser, error.accepts or error.expected)
        if error.token.type == END:
            return f"The statement ends too early; expected {_listed(expected)}.", _end_of(text)
        return _unexpected(error.token, expected), place_of(error.token)
    place = Place(error.line, error.column)
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
    told = words if len(words) <= MOST_TOLD else [*words[:MOST_TOLD], "…"]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} or {told[-1]}"


def _opens_text(text: str, position: int) -> bool:
    return text[position : position + 1] in ("'", '"', "`")


def _end_of(text: str) -> Place:
    """Behind the last character that is not space."""
    before = text.rstrip().split("\n")
    return Place(len(before), len(before[-1]) + 1)
