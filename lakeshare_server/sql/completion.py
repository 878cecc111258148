"""What can follow a text: keywords by the grammar, names by the catalog."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from lark.exceptions import UnexpectedInput
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.catalog.sharing import look
from lakeshare_server.sql.grammar import called, parser
from lakeshare_server.sql.information_schema import SCHEMA, VIEWS
from lakeshare_server.sql.words import quoted_name

WORD = re.compile(r"[\w.`]*\Z")

# The names that can follow a keyword, by what the grammar calls it.
Names = Mapping[str, Callable[[], Iterable[str]]]


def names_of(catalog: Catalog) -> Names:
    """The names in a catalog, looked up when they are asked for."""

    def named(read: Callable[..., Iterable[object]]) -> Callable[[], list[str]]:
        def names() -> list[str]:
            with catalog.reading() as session:
                return [quoted_name(str(getattr(one, "name", ""))) for one in read(session)]

        return names

    def tables() -> list[str]:
        return [".".join(map(quoted_name, table.split("."))) for table in Ledger(catalog).tables()]

    return {
        "SHARE": named(look.shares),
        "RECIPIENT": named(look.recipients),
        "GROUP": named(look.groups),
        **dict.fromkeys(("TABLE", "VIEW", "ADD", "ALTER"), tables),
        "FROM": lambda: [f"{SCHEMA}.{view}" for view in VIEWS],
    }


def following(text: str, names: Names) -> tuple[str, list[str]]:
    """The word that is being written at the end of a text, and what it can become."""
    match = WORD.search(text)
    word = match.group() if match else ""
    follower = parser().parse_interactive(text[: len(text) - len(word)])
    try:
        tokens = list(follower.exhaust_lexer())
    except UnexpectedInput:
        return word, []
    accepted = follower.accepts()  # type: ignore[no-untyped-call]  # lark says nothing
    keywords = sorted(filter(str.isupper, filter(None, map(called, accepted))))
    before = tokens[-1].type if tokens else ""
    known = names[before]() if before in names and "NAME" in accepted else ()
    return word, [one for one in (*known, *keywords) if one.lower().startswith(word.lower()) and one != word]


class SqlCompleter(Completer):
    """Completes by the grammar and the catalog."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """What the word before the cursor can become."""
        word, candidates = following(document.text_before_cursor, self.names)
        for candidate in candidates:
            yield Completion(candidate, start_position=-len(word))
