"""Reading a script by the grammar in `sharing.lark`: statements with their places, or what is wrong and where."""

from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.lexer import PatternStr
from lark.parsers.lalr_interactive_parser import InteractiveParser

from lakeshare_server.sql.errors import Place, SqlError
from lakeshare_server.sql.reading import Unusable, place_of
from lakeshare_server.sql.statement_building import Placed, StatementBuilder

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
