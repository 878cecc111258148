"""Talking SQL at a terminal: history, completion, several lines up to the `;`."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from lark.exceptions import UnexpectedInput
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.catalog.sharing import states
from lakeshare_server.settings import make_private
from lakeshare_server.sql.grammar import called, is_unfinished, parser
from lakeshare_server.sql.session import Done, SqlSession
from lakeshare_server.sql.show import SCHEMA, VIEWS, written
from lakeshare_server.sql.statements import Cell, SqlError, printable, quoted_name

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
        "SHARE": named(states.shares),
        "RECIPIENT": named(states.recipients),
        "GROUP": named(states.groups),
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


LEAVING = frozenset({"exit", "quit", r"\q", "exit;", "quit;"})
ASKING = frozenset({"help", "?", r"\h", "help;"})
HELP = """Statements end with `;`. Tab completes, Ctrl-C clears the line, Ctrl-D or `exit` leaves.
  CREATE SHARE s;  ALTER SHARE s ADD TABLE schema.table [AS a.b] [PARTITION (…)] [WITHOUT HISTORY];  DROP SHARE s;
  CREATE RECIPIENT r [COMMENT '…'] [PROPERTIES (k = 'v')] [IP ALLOW ('…')];  ALTER RECIPIENT r ROTATE TOKEN;
  GRANT SELECT ON SHARE s TO RECIPIENT r [UNTIL '2027-01-31'] [WHERE (…)];  REVOKE SELECT ON SHARE s FROM RECIPIENT r;
  SHOW SHARES;  SHOW ALL IN SHARE s;  SHOW GRANTS ON SHARE s;  DESCRIBE RECIPIENT r;  SHOW USAGE FOR RECIPIENT r;
  SET RECIPIENT r;  RESET RECIPIENT;  SELECT * FROM information_schema.shares;
All of it: docs/reference/sql.md"""

Say = Callable[[str], None]


def prompt_with_history(
    session: SqlSession, history: Path, *, keys: Input | None = None, screen: Output | None = None
) -> PromptSession[str]:
    """A prompt that completes by the session's catalog and remembers in a file; on this terminal by default."""
    make_private(history.parent)
    # What administrators do is nobody else's business.
    history.touch(mode=0o600)
    return PromptSession(
        history=FileHistory(str(history)),
        completer=SqlCompleter(names_of(session.provider.catalog)),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation=lambda width, *_: "… ".rjust(width),
        input=keys,
        output=screen,
    )


def converse(
    session: SqlSession, typed: PromptSession[str], say_answer: Callable[[Done], None], say_error: Say
) -> None:
    """Do what is typed until the end; a mistake is told and nothing ends by it."""
    while True:
        try:
            text = typed.prompt(_prompt(session)).strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.lower() in LEAVING:
            return
        if text.lower() in ASKING:
            say_error(HELP)
            continue
        try:
            for answer in session.run(text):
                say_answer(answer)
        except SqlError as error:
            say_error(str(error))


def is_whole(text: str) -> bool:
    """Whether Enter ends what is typed: at a `;` that is not within quotes, or at a word for the prompt itself."""
    written = text.strip()
    if not written or written.lower() in LEAVING | ASKING:
        return True
    return written.endswith(";") and not is_unfinished(text)


def _prompt(session: SqlSession) -> str:
    return "lakeshare> " if session.seen_as is None else f"lakeshare as {session.seen_as.recipient}> "


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_whole(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


OutputFormat = Literal["table", "csv", "json"]
NOTHING = "NULL"


def as_table(answer: Done) -> str:
    """Columns in line, and what was done or how many rows there are."""
    result = answer.result
    told = printable(result.told)
    if not result.columns:
        return told
    cells = [list(result.columns), *([_shown(cell) for cell in row] for row in result.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(result.columns))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    count = f"({len(result.rows)} row{'' if len(result.rows) == 1 else 's'})"
    return "\n".join([lines[0], rule, *lines[1:], f"{count} {told}".rstrip()])


def as_csv(answer: Done) -> str:
    """A header and the rows; nothing for statements without rows."""
    result = answer.result
    if not result.columns:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_text(cell) for cell in row] for row in result.rows)
    return text.getvalue().removesuffix("\n")


def as_json(answer: Done) -> str:
    """One object in one line: the statement, what was done, the rows as objects."""
    rows = [dict(zip(answer.result.columns, map(_plain, row), strict=True)) for row in answer.result.rows]
    told = {"statement": answer.text, "told": answer.result.told, "rows": rows}
    return json.dumps(told, ensure_ascii=False)


PRINTED: Mapping[OutputFormat, Callable[[Done], str]] = {"table": as_table, "csv": as_csv, "json": as_json}


def _plain(cell: Cell) -> str | int | bool | None:
    return written(cell) if isinstance(cell, datetime) else cell


def _text(cell: Cell) -> str | int | None:
    return str(cell).lower() if isinstance(cell, bool) else _plain(cell)


def _shown(cell: Cell) -> str:
    return NOTHING if cell is None else printable(str(_text(cell)))
