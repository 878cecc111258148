"""SQL sessions: executes scripts, completes and reads typed statements, and formats results."""

import csv
import io
import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from lark.exceptions import UnexpectedInput
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from sqlalchemy.orm import Session

from lakeshare_server.access.rules import require_decidable_rules
from lakeshare_server.catalog import Catalog, Ledger, states
from lakeshare_server.catalog.sharing import Edit, editing
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, NotFound
from lakeshare_server.provider.following import Provider, prefetch_versions
from lakeshare_server.settings import make_private
from lakeshare_server.sql import grammar, statements
from lakeshare_server.sql.show import SCHEMA, VIEWS, ReadStatement, RecipientSession, RowsReadBy, format_value
from lakeshare_server.sql.statements import Cell, Result


@dataclass(frozen=True)
class StatementResult:
    """A statement's text and its result."""

    text: str
    result: Result


class SqlSession:
    """Executes statements in the name of a principal; `rows_read_by` reads rows of tables as a recipient."""

    def __init__(self, provider: Provider, principal: str, rows_read_by: RowsReadBy | None = None) -> None:
        self.provider, self.principal, self._rows_read_by = provider, principal, rows_read_by
        self.impersonated: RecipientSession | None = None

    def run(
        self, text: str, source: str | None = None, *, single_transaction: bool = False
    ) -> Iterator[StatementResult]:
        """Executes the statements of a script, in order: each in its own transaction, or all in one.

        The whole script is parsed first. `source` is the name of its file, for messages.

        Raises:
            SqlError: the script is not SQL; no statement was executed.
            StatementRefused: a statement was refused; those before it took effect, in a single transaction none.
        """
        script = grammar.parse(text, source)
        if single_transaction:
            yield from self._run_in_transaction(script, text, source)
            return
        for number, placed in enumerate(script):
            try:
                result = self._execute(placed.statement)
            except LakeshareError as error:
                position = _find_position(error, placed, text)
                raise grammar.StatementRefused(error, position, text, source, number, len(script)) from error
            yield StatementResult(text[placed.start : placed.end], result)

    def _run_in_transaction(
        self, script: tuple[grammar.PlacedStatement, ...], text: str, source: str | None
    ) -> list[StatementResult]:
        if not script:
            return []
        results: list[StatementResult] = []
        changed: list[int] = []  # the number of changes before each statement
        number = 0
        try:
            self._prefetch([placed.statement for placed in script])
            with editing(self.provider.catalog, self.principal) as edit:
                for number, placed in enumerate(script):  # noqa: B007  # the number of the refused statement
                    changed.append(len(edit.changes))
                    result = self._execute_within(edit, placed.statement)
                    results.append(StatementResult(text[placed.start : placed.end], result))
                try:
                    require_decidable_rules(edit, self.provider.versions)
                except BadRequest:
                    number = self._find_undecided(edit, changed)
                    raise
        except LakeshareError as error:
            position = _find_position(error, script[number], text)
            raise grammar.StatementRefused(error, position, text, source, 0, len(script)) from error
        return results

    def _find_undecided(self, edit: Edit, changed: list[int]) -> int:
        """The last statement with a rule after it, or in it, that partitions do not decide."""

        def is_decided_from(number: int) -> bool:
            try:
                changes = edit.changes[changed[number] :]
                require_decidable_rules(replace(edit, changes=changes), self.provider.versions)
            except BadRequest:
                return False
            return True

        return bisect_left(range(len(changed)), True, key=is_decided_from) - 1

    def _execute(self, statement: grammar.SqlStatement) -> Result:
        catalog = self.provider.catalog
        if isinstance(statement, statements.SetRecipient):
            return self._impersonate(statement.name)
        if isinstance(statement, ReadStatement):
            if self.impersonated is not None:
                return statement.read_as(self.impersonated)
            with catalog.reading() as session:
                return statement.read(session, catalog)
        self._require_provider()
        if isinstance(statement, statements.Follow | statements.Unfollow):
            return statement.run(self.provider, self.principal)
        self._prefetch([statement])
        with editing(catalog, self.principal) as edit:
            result = statement.execute(edit, self.provider)
            require_decidable_rules(edit, self.provider.versions)
            return result

    def _execute_within(self, edit: Edit, statement: grammar.SqlStatement) -> Result:
        if isinstance(statement, statements.SetRecipient):
            hint = "Recipients see what is committed: look as one outside of the transaction."
            if statement.name is None:
                raise BadRequest("RESET RECIPIENT", "RESET RECIPIENT", hint)
            raise BadRequest("SET RECIPIENT", statement.name, hint)
        self._require_provider()
        if isinstance(statement, ReadStatement):
            return statement.read(edit.session, self.provider.catalog)
        return statement.execute(edit, self.provider)

    def _impersonate(self, name: str | None) -> Result:
        if name is None:
            self.impersonated = None
            return Result(message="this is what the provider sees again")
        with self.provider.catalog.reading() as session:
            state = states.get_recipient(session, name)
        self.impersonated = RecipientSession(self.provider.catalog, state.name, state.id, self._rows_read_by)
        return Result(message=f"this is what {state.name} sees; its state is {state.state}")

    def _prefetch(self, script: Sequence[grammar.SqlStatement]) -> None:
        """Reads the versions of the followed tables that rules concern, before a transaction is open."""
        provider, concerned = self.provider, defaultdict[str, list[str]](list)
        writes_rule = False
        for statement in script:
            if isinstance(statement, statements.PutObject):
                concerned[statement.share].append(".".join(statement.path))
                writes_rule |= statement.fields["rule"] is not None
            elif isinstance(statement, statements.PutSchema):
                with suppress(BadRequest):  # the statement itself raises it
                    concerned[statement.share] += provider.tables_of(".".join(statement.path))
            elif isinstance(statement, statements.Grant):
                concerned[statement.share] += ()
                writes_rule |= "rule" in statement.terms
            elif isinstance(statement, statements.Alter) and statement.kind == "SHARE" and len(script) > 1:
                # Later statements may use the share's new name: all tables are read.
                concerned[statement.name] += ()
                writes_rule = True
        for share, tables in concerned.items():
            prefetch_versions(provider.catalog, provider.versions, share, tables, writes_rule=writes_rule)

    def _require_provider(self) -> None:
        if self.impersonated is not None:
            raise Denied(f"{self.impersonated.recipient} changes nothing. RESET RECIPIENT first.")


def _find_position(
    error: LakeshareError, placed: grammar.PlacedStatement, text: str
) -> grammar.SourcePosition:
    """The position of the refused value in the statement, or of its first word."""
    written = text[placed.start : placed.end]
    value = getattr(error, "name", None) if isinstance(error, NotFound) else getattr(error, "value", None)
    pattern = rf"(?<!\w){re.escape(str(value))}(?!\w)" if value not in (None, "") else r"\A\w+"
    match = re.search(pattern, written, re.IGNORECASE) or re.match(r"\w+", written)
    at, length = placed.start + (match.start() if match else 0), len(match.group()) if match else 1
    line_start = text.rfind("\n", 0, at) + 1
    return grammar.SourcePosition(text.count("\n", 0, at) + 1, at - line_start + 1, length)


WORD = re.compile(r"[\w.`]*\Z")

# The names that can follow a keyword, by the keyword's terminal.
Names = Mapping[str, Callable[[], Iterable[str]]]


def read_names(catalog: Catalog) -> Names:
    """The names in a catalog, read on each use."""

    def named(read: Callable[[Session], Iterable[Any]]) -> Callable[[], list[str]]:
        def names() -> list[str]:
            with catalog.reading() as session:
                return [grammar.quoted_name(item.name) for item in read(session)]

        return names

    def tables() -> list[str]:
        return [".".join(map(grammar.quoted_name, table.split("."))) for table in Ledger(catalog).tables()]

    return {
        "SHARE": named(states.list_shares),
        "RECIPIENT": named(states.list_recipients),
        "GROUP": named(states.list_groups),
        **dict.fromkeys(("TABLE", "VIEW", "ADD", "ALTER"), tables),
        "FROM": lambda: [f"{SCHEMA}.{view}" for view in VIEWS],
    }


def complete_word(text: str, names: Names) -> tuple[str, list[str]]:
    """The unfinished word at the end of a text, and its completions."""
    match = WORD.search(text)
    word = match.group() if match else ""
    parser = grammar.get_parser().parse_interactive(text[: len(text) - len(word)])
    try:
        tokens = list(parser.exhaust_lexer())
    except UnexpectedInput:
        return word, []
    accepted = parser.accepts()  # type: ignore[no-untyped-call]  # lark has no types for it
    keywords = sorted(filter(str.isupper, filter(None, map(grammar.terminal_name, accepted))))
    before = tokens[-1].type if tokens else ""
    known = names[before]() if before in names and "NAME" in accepted else ()
    candidates = (*known, *keywords)
    return word, [text for text in candidates if text.lower().startswith(word.lower()) and text != word]


class SqlCompleter(Completer):
    """Completes by the grammar and the catalog."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        word, candidates = complete_word(document.text_before_cursor, self.names)
        for candidate in candidates:
            yield Completion(candidate, start_position=-len(word))


LEAVING = frozenset({"exit", "quit", r"\q", "exit;", "quit;"})
ASKING_FOR_HELP = frozenset({"help", "?", r"\h", "help;"})
HELP = """Statements end with `;`. Tab completes, Ctrl-C clears the line, Ctrl-D or `exit` leaves.
  CREATE SHARE s;  ALTER SHARE s ADD TABLE schema.table [AS a.b] [PARTITION (…)] [WITHOUT HISTORY];  DROP SHARE s;
  CREATE RECIPIENT r [COMMENT '…'] [PROPERTIES (k = 'v')] [IP ALLOW ('…')];  ALTER RECIPIENT r ROTATE TOKEN;
  GRANT SELECT ON SHARE s TO RECIPIENT r [UNTIL '2027-01-31'] [WHERE (…)];  REVOKE SELECT ON SHARE s FROM RECIPIENT r;
  SHOW SHARES;  SHOW ALL IN SHARE s;  SHOW GRANTS ON SHARE s;  DESCRIBE RECIPIENT r;  SHOW USAGE FOR RECIPIENT r;
  SET RECIPIENT r;  RESET RECIPIENT;  SELECT * FROM information_schema.shares;
All of it: docs/reference/sql.md"""


def prompt_with_history(
    session: SqlSession, history: Path, *, keys: Input | None = None, screen: Output | None = None
) -> PromptSession[str]:
    """A prompt with completion by the session's catalog and a history file; on this terminal by default."""
    make_private(history.parent)
    history.touch(mode=0o600)
    return PromptSession(
        history=FileHistory(str(history)),
        completer=SqlCompleter(read_names(session.provider.catalog)),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_key_bindings(),
        prompt_continuation=lambda width, *_: "… ".rjust(width),
        input=keys,
        output=screen,
    )


def run_prompt(
    session: SqlSession,
    typed: PromptSession[str],
    print_result: Callable[[StatementResult], None],
    print_error: Callable[[str], None],
) -> None:
    """Executes typed statements until the end of the input; prints errors and continues."""
    while True:
        name = "" if session.impersonated is None else f" as {session.impersonated.recipient}"
        try:
            text = typed.prompt(f"lakeshare{name}> ").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.lower() in LEAVING:
            return
        if text.lower() in ASKING_FOR_HELP:
            print_error(HELP)
            continue
        try:
            for result in session.run(text):
                print_result(result)
        except grammar.SqlError as error:
            print_error(str(error))


def is_complete(text: str) -> bool:
    """Whether Enter submits the text: at a `;` outside of quotes, or a word for the prompt itself."""
    written = text.strip()
    if not written or written.lower() in LEAVING | ASKING_FOR_HELP:
        return True
    return written.endswith(";") and not grammar.is_unfinished(text)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return bindings


OutputFormat = Literal["table", "csv", "json"]
NULL_TEXT = "NULL"


def format_table(executed: StatementResult) -> str:
    """Aligned columns, and the message or the number of rows."""
    result = executed.result
    message = grammar.escape_unprintable(result.message)
    if not result.columns:
        return message
    cells = [list(result.columns), *([_format_cell(cell) for cell in row] for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    count = f"({len(result.rows)} row{'' if len(result.rows) == 1 else 's'})"
    return "\n".join([lines[0], rule, *lines[1:], f"{count} {message}".rstrip()])


def format_csv(executed: StatementResult) -> str:
    """A header and the rows; nothing for statements without rows."""
    result = executed.result
    if not result.columns:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_text(cell) for cell in row] for row in result.rows)
    return text.getvalue().removesuffix("\n")


def format_json(executed: StatementResult) -> str:
    """One object on one line: the statement, the message, and the rows as objects."""
    result = executed.result
    rows = [dict(zip(result.columns, map(_plain_value, row), strict=True)) for row in result.rows]
    return json.dumps(
        {"statement": executed.text, "message": result.message, "rows": rows}, ensure_ascii=False
    )


PRINTED: Mapping[OutputFormat, Callable[[StatementResult], str]] = {
    "table": format_table,
    "csv": format_csv,
    "json": format_json,
}


def _plain_value(cell: Cell) -> str | int | bool | None:
    return format_value(cell) if isinstance(cell, datetime) else cell


def _text(cell: Cell) -> str | int | None:
    return str(cell).lower() if isinstance(cell, bool) else _plain_value(cell)


def _format_cell(cell: Cell) -> str:
    return NULL_TEXT if cell is None else grammar.escape_unprintable(str(_text(cell)))
