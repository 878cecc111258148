"""Parses scripts by the grammar in `sharing.lark`: statements with their positions, or an error with its position."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive

from lakeshare_server.catalog.states import FederationPolicy, Kind
from lakeshare_server.errors import LakeshareError, NotFound
from lakeshare_server.sql import show, statements
from lakeshare_server.sql.statements import ObjectKind, Statement
from lakeshare_server.text_fields import TEXT_FIELDS

MAX_NUMBER = (1 << 63) - 1
MAX_DEPTH = 64
T = TypeVar("T")
Children = list[Any]
SqlStatement = statements.ChangeStatement | show.ReadStatement | statements.SetRecipient


MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?))?\s*(Z|[+-]\d\d:?\d\d)?", re.I
)
SPAN = re.compile(r"(\d{1,9})\s*(second|minute|hour|day|week)s?", re.I)
PLAIN = re.compile(r"[^\W\d]\w*")
# Names that are keywords where a name can stand, also in a predicate.
QUOTED = frozenset((
    "IF", "TABLE", "VIEW", "MATERIALIZED", "SCHEMA", "CURRENT_RECIPIENT", "DATE", "TIMESTAMP", "SELECT",
    "AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE", "CASE", "CAST", "EXISTS",
))  # fmt: skip
BETWEEN_SPANS = re.compile(r"[\s,]*")


def format_name(written: str) -> str:
    """A name without its back-quotes."""
    return written[1:-1].replace("``", "`") if written.startswith("`") else written


def unquote_text(written: str) -> str:
    """A text without its quotes, doubled quotes made single; backslashes have no meaning."""
    quote = written[0]
    return written[1:-1].replace(quote * 2, quote)


def quoted_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """A name as SQL writes it, in back-quotes where it needs them."""
    is_plain = PLAIN.fullmatch(name) and name.upper() not in QUOTED
    return name if is_plain else "`" + name.replace("`", "``") + "`"


def moment(text: str) -> datetime:
    """Parses a time; raises ValueError."""
    match = MOMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    day, time, zone = match.groups()
    at = datetime.fromisoformat(f"{day}T{time or '00:00'}{(zone or 'Z').upper()}")
    try:
        return at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def span(text: str) -> timedelta:
    """Parses a duration like `24 hours` or `1 day 12 hours`; raises ValueError."""
    parts = SPAN.findall(text)
    if not parts or not BETWEEN_SPANS.fullmatch(SPAN.sub("", text)):
        raise ValueError(text)
    try:
        return sum((timedelta(**{f"{unit.lower()}s": int(count)}) for count, unit in parts), timedelta())
    except OverflowError as error:
        raise ValueError(text) from error


KEYWORDS = frozenset(["AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "TRUE", "FALSE"])
GLUED_BEFORE = frozenset(",).")
GLUED_AFTER = frozenset("(.")
SIGNS = frozenset("+-")


def alternation(groups: Iterable[Sequence[str]]) -> str:
    """PARTITION groups as one predicate: tests of a group are joined by AND, groups by OR."""
    texts = [" AND ".join(tests) for tests in groups]
    return texts[0] if len(texts) == 1 else " OR ".join(f"({text})" for text in texts)


def join_tokens(tokens: Iterable[str]) -> str:
    """The tokens of a predicate with one space where one is needed, keywords in capitals."""
    written: list[str] = []
    for token in tokens:
        word = token.upper() if token.upper() in KEYWORDS else token
        if written and not _is_glued(written[-1], word):
            written.append(" ")
        written.append(word)
    return "".join(written)


def _is_glued(before: str, after: str) -> bool:
    if after in GLUED_BEFORE or before in GLUED_AFTER:
        return True
    # Rules have no arithmetic: a sign belongs to the number after it.
    if before in SIGNS:
        return after[0].isdigit()
    return after == "(" and PLAIN.fullmatch(before) is not None and before not in KEYWORDS


MAX_LINE_CHARS = 110


@dataclass(frozen=True)
class SourcePosition:
    """A position in a text, counted from 1, and a number of characters."""

    line: int
    column: int
    length: int = 1


class SqlError(LakeshareError):
    """The text cannot be parsed; the message has the line, the column and a caret."""

    def __init__(self, what: str, place: SourcePosition, text: str, source: str | None = None) -> None:
        at = f"{place.line}:{place.column}"
        where = f"{source}:{at}" if source else f"line {place.line}, column {place.column}"
        super().__init__(f"{where}: {escape_unprintable(what)}\n{mark_position(text, place)}")
        self.what, self.place, self.source = what, place, source


class StatementRefused(SqlError):
    """A statement was refused: the cause, and how many statements of its script took effect."""

    def __init__(
        self,
        cause: LakeshareError,
        place: SourcePosition,
        text: str,
        source: str | None,
        took: int,
        total: int,
    ) -> None:
        # The catalog's own text is for recipients, and refers them to their provider.
        what = f"{cause.kind} {cause.name} does not exist." if isinstance(cause, NotFound) else str(cause)
        super().__init__(what, place, text, source)
        self.cause, self.took, self.total = cause, took, total

    @property
    def effect(self) -> str:
        """A sentence about the statements of the script that took effect."""
        if self.took == 0:
            return "Nothing of it took effect."
        first = "The first statement" if self.took == 1 else f"The first {self.took} statements"
        return f"{first} of {self.total} took effect; this one and what follows did not."


def escape_unprintable(text: str) -> str:
    """A text on one line, without control characters for a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def mark_position(text: str, place: SourcePosition) -> str:
    """The line of the text with carets below the position; of long lines the part around it."""
    lines = text.split("\n")
    line = lines[place.line - 1].rstrip("\r") if place.line <= len(lines) else ""
    before = place.column - 1
    start = max(0, before - MAX_LINE_CHARS // 2) if len(line) > MAX_LINE_CHARS else 0
    # Each character stays one character: an escape would move the caret.
    shown = "".join(char if char.isprintable() else " " for char in line[start : start + MAX_LINE_CHARS])
    room = max(1, len(shown) - (before - start))
    return f"  {shown}\n  {' ' * (before - start)}{'^' * min(max(1, place.length), room)}"


class InvalidClause(Exception):
    """A value or clause that cannot be used at its position."""

    def __init__(self, problem: str, position: SourcePosition) -> None:
        super().__init__(problem)
        self.problem, self.position = problem, position


@dataclass(frozen=True)
class Clause:
    """A named part of a statement; clauses can be in any order."""

    name: str
    value: Any  # of the statement's field with this name
    position: SourcePosition
    keywords: str


@dataclass(frozen=True)
class PlacedStatement:
    """A statement and its characters in the script, from `start` to before `end`."""

    statement: SqlStatement
    start: int
    end: int


class Nested(tuple[str, ...]):
    """The tokens of a part of a predicate in parentheses, and its depth."""

    depth: int


def position_of(token: Token) -> SourcePosition:
    return SourcePosition(token.line or 1, token.column or 1, len(token.split("\n", 1)[0]))


def position_at(meta: Meta) -> SourcePosition:
    return SourcePosition(getattr(meta, "line", 1), getattr(meta, "column", 1))


def read_value(part: Any) -> Any:  # of any kind
    """A text without its quotes, None for NULL; other parts are values already."""
    if not isinstance(part, Token):
        return part
    return None if part.type == "NULL" else unquote_text(part)


def read_span(token: Token) -> Any:
    hint = "is no span of time; write it like '24 hours', '7 days' or '1 day 12 hours'."
    return _read_or_refuse(span, token, hint)


def _read_or_refuse(read: Callable[[str], T], token: Token, hint: str) -> T:
    try:
        return read(unquote_text(token))
    except ValueError:
        raise InvalidClause(f"{token[:60]} {hint}", position_of(token)) from None


def collect_clauses(clauses: Sequence[Clause]) -> dict[str, Any]:
    """The values of clauses by name; refuses a second clause of a name."""
    by_name: dict[str, Clause] = {}
    for clause in clauses:
        first = by_name.setdefault(clause.name, clause)
        if first is not clause:
            problem = f"{first.keywords} and {clause.keywords} exclude each other."
            if first.keywords == clause.keywords:
                problem = f"{clause.keywords} is there twice."
            raise InvalidClause(problem, clause.position)
    return {name: clause.value for name, clause in by_name.items()}


def require_unique(pairs: Sequence[tuple[str, T, SourcePosition]], what: str) -> dict[str, T]:
    """Pairs as a mapping; refuses a second pair of a key."""
    values: dict[str, T] = {}
    for key, value, position in pairs:
        if key in values:
            raise InvalidClause(f"{what} {key!r} is there twice.", position)
        values[key] = value
    return values


def tokens_of(pieces: Sequence[Token | Nested]) -> Iterator[str]:
    """The tokens of a predicate, with those in parentheses."""
    for piece in pieces:
        if isinstance(piece, Nested):
            yield from piece
        elif piece.type == "TEXT":
            yield quoted_text(unquote_text(piece))
        else:
            yield str(piece)


def first(children: Children) -> Any:  # of any kind
    """The value of the first part; None without parts."""
    return read_value(children[0]) if children else None


def _dotted(children: Children) -> str:
    return ".".join(map(read_value, children))


# Rules whose result is a value of their parts.
VALUES: Mapping[str, Callable[[Children], Any]] = {
    "since": first,
    "start_version": first,
    "object_path": tuple,
    "group": tuple,
    "principal": first,
    "pattern": first,
    "if_not_exists": lambda _: True,
    "if_exists": lambda _: True,
    "texts": lambda children: tuple(map(unquote_text, children)),
    "key": _dotted,
    "properties": lambda children: require_unique(children, "The property"),
    "limits": lambda children: require_unique(children, "The limit"),
    "equal": lambda children: f"{quoted_name(children[0])} = {children[1]}",
    "like": lambda children: f"{quoted_name(children[0])} LIKE {quoted_text(unquote_text(children[1]))}",
    "text_value": lambda children: quoted_text(unquote_text(children[0])),
    "number_value": lambda children: "".join(children).removeprefix("+"),
    "truth_value": lambda children: str(children[0]).upper(),
    "recipient_value": lambda children: f"current_recipient({quoted_text(_dotted(children))})",
    "script": tuple,
    "span": lambda children: read_span(children[0]),
    "to_recipient": lambda children: statements.Grantee("RECIPIENT", children[0]),
    "to_group": lambda children: statements.Grantee("GROUP", children[0]),
}
# Clauses: the field that they set, their keywords, and the reader of their parts. Rules like `clause_ip_allow` are not
# here: their names are the field and the keywords.
CLAUSES: Mapping[str, tuple[str, str, Callable[[Children], Any]]] = {
    "alias": ("alias", "AS", tuple),
    "in_share": ("share", "IN SHARE", first),
    "columns": ("columns", "COLUMNS", tuple),
    "with_history": ("history", "WITH HISTORY", lambda children: (True, first(children))),
    "without_history": ("history", "WITHOUT HISTORY", lambda _: (False, None)),
    # Without a start, recipients read the versions from the latest publication on.
    "with_change_data_feed": (
        "history",
        "WITH CHANGE DATA FEED",
        lambda children: (True, children[0] if children else statements.Now()),
    ),
    "partitions": ("rule", "PARTITION", alternation),
    "until": ("expires_at", "UNTIL", first),
    "starting": ("starts_at", "FROM", first),
    "recipient_properties": ("properties", "PROPERTIES", first),
    "keep_old": ("keep_old_for", "KEEP OLD FOR", first),
    "using_id": ("using", "USING ID", lambda children: {"metastore_id": first(children)}),
    "using_oidc": (
        "using",
        "USING OIDC",
        lambda children: {"authentication": "OIDC_FEDERATION", "policy": children[0]},
    ),
    "using_client_credentials": (
        "using",
        "USING CLIENT CREDENTIALS",
        lambda _: {"authentication": "OAUTH_CLIENT_CREDENTIALS"},
    ),
    "using_token": ("using", "USING TOKEN", lambda _: {"authentication": "TOKEN"}),
}


def _unset_entries(kind: statements.Entries, name: str, *keys: str) -> Statement:
    return statements.UnsetEntries(kind, name, tuple(dict.fromkeys(keys)))


# Statements whose fields are the values of their parts, in order; most of their rules have the names of the classes.
STATEMENTS: Mapping[str, Callable[..., Statement]] = {
    **{
        re.sub(r"(?<!^)(?=[A-Z])", "_", statement.__name__).lower(): statement
        for kind in (statements.ChangeStatement, show.ReadStatement, statements.SetRecipient)
        for statement in kind.__subclasses__() or [kind]
    },
    "unpin_publication": lambda share, *path: statements.PinPublication(share, None, *path),
    **{f"set_{kind}": partial(statements.SetEntries, kind) for kind in ("properties", "limits")},
    **{f"unset_{kind}": partial(_unset_entries, kind) for kind in ("properties", "limits")},
    "rotate_token": lambda name, *clauses: statements.RotateToken(name, **collect_clauses(clauses)),
    "revoke_token_of": lambda *parts: statements.RevokeToken(parts[-1], *parts[:-1]),
    "add_members": lambda name, *recipients: statements.ChangeMembers(name, "ADD", recipients),
    "remove_members": lambda name, *recipients: statements.ChangeMembers(name, "REMOVE", recipients),
}


def _flagged(children: Children) -> tuple[bool, Children]:
    """Whether IF [NOT] EXISTS is there, and the other parts."""
    return (True, children[1:]) if children[0] is True else (False, children)


@v_args(meta=True)
class StatementBuilder(Transformer_NonRecursive[Token, Any]):
    """Builds the statements of a script; the tables above have the rules that need no method."""

    def __default__(self, rule: str, children: Children, meta: Meta) -> Any:
        if rule in VALUES:
            return VALUES[rule](children)
        if rule in CLAUSES:
            name, keywords, read = CLAUSES[rule]
            return Clause(name, read(children), position_at(meta), keywords)
        if rule in STATEMENTS:
            return STATEMENTS[rule](*map(read_value, children))
        verb, _, word = rule.partition("_")
        if verb == "field":
            return {word: first(children)}
        if verb == "clause":
            return Clause(word, first(children), position_at(meta), word.upper().replace("_", " "))
        return getattr(self, f"_{verb}")(word.upper(), children)

    # --- rules of a verb and a kind of object

    def _create(self, kind: Literal["SHARE", "GROUP"], children: Children) -> Statement:
        if_not_exists, (name, *clauses) = _flagged(children)
        return statements.Create(kind, name, if_not_exists, collect_clauses(clauses))

    def _alter(self, kind: ObjectKind, children: Children) -> Statement:
        return statements.Alter(kind, *children)

    def _drop(self, kind: ObjectKind, children: Children) -> Statement:
        if_exists, [name] = _flagged(children)
        return statements.Drop(kind, name, if_exists)

    def _list(self, kind: ObjectKind, children: Children) -> Statement:
        return show.Show(kind, *children)

    def _describe(self, kind: ObjectKind, children: Children) -> Statement:
        return show.Describe(kind, *children)

    def placed(self, meta: Meta, children: Children) -> PlacedStatement:
        return PlacedStatement(children[0], meta.start_pos, meta.end_pos)

    # --- values

    def name(self, _: Meta, children: Children) -> str:
        name = str(format_name(children[0]))
        if not name.strip():
            raise InvalidClause("A name has at least one character.", position_of(children[0]))
        return name

    def number(self, _: Meta, children: Children) -> int:
        [token] = children
        # The length first: Python refuses to convert very long texts.
        if not token.isdecimal() or len(token) > 19 or int(token) > MAX_NUMBER:
            raise InvalidClause(f"Give a whole number of at most {MAX_NUMBER}.", position_of(token))
        return int(token)

    def moment(self, _: Meta, children: Children) -> Any:
        hint = (
            "is no time; write '2027-01-31', '2027-01-31 18:00' or '2027-01-31T18:00:00+02:00' "
            "(UTC without a zone)."
        )
        return _read_or_refuse(moment, children[0], hint)

    def property(self, meta: Meta, children: Children) -> tuple[Any, ...]:
        key, value = children
        return key, unquote_text(value), position_at(meta)

    def limit(self, meta: Meta, children: Children) -> tuple[Any, ...]:
        name, number = children
        return name.lower(), number, position_at(meta)

    def oidc_field(self, meta: Meta, children: Children) -> tuple[Any, ...]:
        key, value = children
        return key.lower(), unquote_text(value), position_at(meta)

    def oidc(self, meta: Meta, children: Children) -> FederationPolicy:
        known = ("issuer", "subject", "subject_claim", "audience", "name")
        audiences = tuple(value for key, value, _ in children if key == "audience")
        for key, _, position in children:
            if key not in known:
                raise InvalidClause(f"OIDC has no {key}; it takes {', '.join(known)}.", position)
        values = require_unique([field for field in children if field[0] != "audience"], "OIDC's")
        for key in ("issuer", "subject"):
            if key not in values:
                problem = f"OIDC needs an issuer and a subject; {key} is missing."
                raise InvalidClause(problem, position_at(meta))
        fields: dict[str, Any] = {"name": "default", "subject_claim": "sub", **values}
        return FederationPolicy(audiences=audiences, **fields)

    # --- predicates

    def nested(self, meta: Meta, children: Children) -> Nested:
        nested = Nested(("(", *tokens_of(children), ")"))
        nested.depth = 1 + max((piece.depth for piece in children if isinstance(piece, Nested)), default=0)
        # Deeper predicates would exceed the recursion limits of their readers.
        if nested.depth > MAX_DEPTH:
            raise InvalidClause(f"Parentheses are nested deeper than {MAX_DEPTH}.", position_at(meta))
        return nested

    def where(self, meta: Meta, children: Children) -> Clause:
        text = join_tokens(tokens_of(children))
        if not text:
            raise InvalidClause("WHERE needs a predicate in its parentheses.", position_at(meta))
        return Clause("rule", text, position_at(meta), "WHERE")

    # --- statements

    def create_recipient(self, _: Meta, children: Children) -> Statement:
        if_not_exists, (name, *clauses) = _flagged(children)
        fields = collect_clauses(clauses)
        fields |= fields.pop("using", {})
        policy, metastore_id = fields.pop("policy", None), fields.pop("metastore_id", None)
        return statements.CreateRecipient(name, if_not_exists, fields, policy, metastore_id)

    def put_table(self, _: Meta, children: Children) -> Statement:
        return _put("TABLE", children)

    def put_view(self, _: Meta, children: Children) -> Statement:
        return _put("VIEW", children)

    def put_schema(self, _: Meta, children: Children) -> Statement:
        share, verb, path, *clauses = children
        return statements.PutSchema(share, verb.type, path, **collect_clauses(clauses))

    def grant(self, _: Meta, children: Children) -> Statement:
        share, grantee, *clauses = children
        terms = collect_clauses(clauses)
        if "expires_at" in terms:
            terms["ends_at"] = terms.pop("expires_at")
        return statements.Grant(share, grantee, terms)

    def follow(self, meta: Meta, children: Children) -> Statement:
        location, *clauses = children
        fields = collect_clauses(clauses)
        history, start = fields.pop("history", (True, None))
        if len(fields.get("alias", ("", ""))) != 2:
            raise InvalidClause("Name the table AS schema.table.", position_at(meta))
        return statements.Follow(unquote_text(location), history=history, start_version=start or 0, **fields)


def _put(kind: Kind, children: Children) -> Statement:
    share, verb, path, *clauses = children
    fields = collect_clauses(clauses)
    history, start = fields.pop("history", (True, None))
    alias = fields.pop("alias", path[-2:])
    if len(alias) == 1:
        alias = (*path[-2:-1], *alias)
    if len(alias) != 2:
        problem = f"{'.'.join(path)} has no schema; write schema.table, or name it AS schema.table."
        raise InvalidClause(problem, SourcePosition(verb.line, verb.column))
    columns = fields.pop("columns", ())
    given = {
        "kind": kind,
        "history": history,
        "start_version": start,
        "comment": None,
        "rule": None,
        **fields,
    }
    return statements.PutObject(share, verb.type, path, alias, given, columns)


GRAMMAR = Path(__file__).with_name("sharing.lark")
END = "$END"
QUOTES = "'\"`"
# Names in messages of the terminals that are not keywords; None leaves a terminal out.
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
    """The parser, built once; the texts of shares and recipients extend its grammar."""
    grammar = "\n".join([GRAMMAR.read_text(encoding="utf-8"), *_text_rules()])
    return Lark(grammar, parser="lalr", start="script", propagate_positions=True, maybe_placeholders=False)


def _text_rules() -> Iterator[str]:
    """Rules by which CREATE takes a text of an object, and ALTER … SET and UNSET change it."""
    for owner, texts in TEXT_FIELDS.items():
        for text in texts:
            keywords = " ".join(f'"{word}"i' for word in text.keywords)
            yield f"%extend {owner}_clause: {keywords} TEXT -> clause_{text.name}"
            yield f'%extend {owner}_field: "SET"i {keywords} (TEXT | NULL) -> field_{text.name}'
            yield f'                      | "UNSET"i {keywords} -> field_{text.name}'


def parse(text: str, source: str | None = None) -> tuple[PlacedStatement, ...]:
    """The statements of a script, in order; `source` is the name of its file, for messages. Raises SqlError."""
    try:
        tree = get_parser().parse(text)
    except UnexpectedInput as error:
        problem, position = _explain_error(error, text)
        raise SqlError(problem, position, text, source) from None
    try:
        return tuple(StatementBuilder().transform(tree))
    except (InvalidClause, VisitError) as error:
        # lark wraps the errors of methods, but not those of `__default__`.
        cause = error.orig_exc if isinstance(error, VisitError) else error
        if not isinstance(cause, InvalidClause):
            raise
        raise SqlError(cause.problem, cause.position, text, source) from None


def is_unfinished(text: str) -> bool:
    """Whether the text is the valid beginning of a script."""
    try:
        get_parser().parse(text)
    except UnexpectedToken as error:
        return error.token.type == END or text.startswith("/*", error.token.start_pos)
    except UnexpectedCharacters as error:
        return text[error.pos_in_stream or 0] in QUOTES
    return False


def terminal_name(terminal: str) -> str | None:
    """A terminal's name in messages; None leaves it out."""
    if terminal in TERMINAL_NAMES:
        return TERMINAL_NAMES[terminal]
    pattern = get_parser().get_terminal(terminal).pattern
    if not isinstance(pattern, PatternStr):
        return terminal
    return pattern.value if pattern.value.isalpha() else f"`{pattern.value}`"


def _explain_error(error: UnexpectedInput, text: str) -> tuple[str, SourcePosition]:
    if not isinstance(error, UnexpectedToken):
        character = text[error.pos_in_stream or 0]
        problem = f"{character!r} means nothing here."
        if character in QUOTES:
            problem = "What begins here with a quote does not end. A quote inside a text is doubled."
        return problem, SourcePosition(error.line, error.column)
    if text.startswith("/*", error.token.start_pos):
        return "The comment that begins here does not end.", position_of(error.token)
    parser = error.interactive_parser
    terminals = (error.accepts or error.expected) if parser is None else parser.accepts()  # type: ignore[no-untyped-call]  # lark has no types for it
    names = {name for name in map(terminal_name, terminals) if name is not None}
    expected = sorted(names, key=lambda name: (not name.isupper(), name))
    if error.token.type == END:
        lines = text.rstrip().split("\n")
        position = SourcePosition(len(lines), len(lines[-1]) + 1)
        return f"The statement ends too early; expected {_listed(expected)}.", position
    return _describe_unexpected(error.token, expected), position_of(error.token)


def _describe_unexpected(token: Token, expected: list[str]) -> str:
    shown = token if len(token) <= 40 else f"{token[:40]}…"
    close = get_close_matches(token.upper(), [name for name in expected if name.isupper()], 1)
    suggestion = f" Did you mean {close[0]}?" if close else ""
    is_keyword = "a name" in expected and token.isidentifier()
    quoting = " A name that is a keyword here goes in back-quotes." if is_keyword else ""
    return f"{shown} was not expected here; expected {_listed(expected)}.{suggestion}{quoting}"


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= MAX_LISTED else [*names[:MAX_LISTED], "…"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
