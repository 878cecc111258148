"""A session: takes scripts, does their statements in order, and knows as whom it looks."""

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
from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.catalog.sharing import Edit, editing, states
from lakeshare_server.errors import BadRequest, Denied, LakeshareError, NotFound
from lakeshare_server.provider.following import prefetch_versions
from lakeshare_server.settings import make_private
from lakeshare_server.sql import changes, show
from lakeshare_server.sql import statements as statement_types
from lakeshare_server.sql.changes import Provider
from lakeshare_server.sql.grammar import PlacedStatement, get_parser, is_unfinished, parse, terminal_name
from lakeshare_server.sql.show import SCHEMA, VIEWS, RecipientSession, RowsReadBy, format_value
from lakeshare_server.sql.statements import (
    Cell,
    Result,
    SourcePosition,
    SqlError,
    StatementRefused,
    escape_unprintable,
    make_message,
    quoted_name,
)


@dataclass(frozen=True)
class StatementResult:
    """A statement that was done, as it was written, and what it answered."""

    text: str
    result: Result


class SqlSession:
    """Statements in the name of a principal; `rows_read_by` reads tables for whoever sees as a recipient."""

    def __init__(self, provider: Provider, principal: str, rows_read_by: RowsReadBy | None = None) -> None:
        self.provider, self.principal, self._rows_read_by = provider, principal, rows_read_by
        self.impersonated: RecipientSession | None = None

    def run(
        self, text: str, source: str | None = None, *, single_transaction: bool = False
    ) -> Iterator[StatementResult]:
        """Do the statements of a script, in order: each in its own transaction, or all in one.

        Nothing is done before the whole script is read. `source` is the name of its file.

        Raises:
            SqlError: the script is not SQL; nothing was done.
            StatementRefused: a statement cannot be done; says which took effect. In one transaction: none.
        """
        script = parse(text, source)
        if single_transaction:
            yield from self._together(script, text, source)
            return
        for number, placed in enumerate(script):
            try:
                result = self._alone(placed.statement)
            except LakeshareError as error:
                raise _refuse(error, text, source, script, number, number) from error
            yield StatementResult(text[placed.start : placed.end], result)

    def _together(
        self, script: tuple[PlacedStatement, ...], text: str, source: str | None
    ) -> list[StatementResult]:
        if not script:
            return []
        answers: list[StatementResult] = []
        changed: list[int] = []  # how many changes there were in front of each statement
        number = 0
        try:
            self._look_ahead([placed.statement for placed in script])
            with editing(self.provider.catalog, self.principal) as edit:
                for number, placed in enumerate(script):  # noqa: B007  # which one was refused
                    changed.append(len(edit.changes))
                    result = self._within(edit, placed.statement)
                    answers.append(StatementResult(text[placed.start : placed.end], result))
                try:
                    require_decidable_rules(edit, self.provider.versions)
                except BadRequest:
                    number = self._undecided(edit, changed)
                    raise
        except LakeshareError as error:
            raise _refuse(error, text, source, script, number, 0) from error
        return answers

    def _undecided(self, edit: Edit, changed: list[int]) -> int:
        """The last statement from which on there is a rule that no partition decides."""

        def is_decided_from(number: int) -> bool:
            return self._is_decided(replace(edit, changes=edit.changes[changed[number] :]))

        return bisect_left(range(len(changed)), True, key=is_decided_from) - 1

    def _is_decided(self, edit: Edit) -> bool:
        try:
            require_decidable_rules(edit, self.provider.versions)
        except BadRequest:
            return False
        return True

    def _alone(self, statement: statement_types.Statement) -> Result:
        catalog = self.provider.catalog
        if isinstance(statement, statement_types.SetRecipient):
            return self._turn_to(statement.name)
        if isinstance(statement, statement_types.ReadStatement):
            if self.impersonated is not None:
                return self.impersonated.look(statement)
            with catalog.reading() as session:
                return self._shown(session, statement)
        self._require_provider()
        if isinstance(statement, changes.Follow):
            return changes.execute_follow(statement, self.provider, self.principal)
        if isinstance(statement, changes.Unfollow):
            return changes.execute_unfollow(statement, self.provider, self.principal)
        self._look_ahead([statement])
        with editing(catalog, self.principal) as edit:
            result = _CHANGES[type(statement)](edit, statement, self.provider)
            require_decidable_rules(edit, self.provider.versions)
            return result

    def _within(self, edit: Edit, statement: statement_types.Statement) -> Result:
        if isinstance(statement, statement_types.SetRecipient):
            hint = "Recipients see what is committed: look as one outside of the transaction."
            raise BadRequest("SET RECIPIENT", statement.name or "", hint)
        self._require_provider()
        if isinstance(statement, changes.Follow | changes.Unfollow):
            name = "FOLLOW" if isinstance(statement, changes.Follow) else "UNFOLLOW"
            raise BadRequest(name, name, "It reads stores: run it outside of the transaction.")
        if isinstance(statement, statement_types.ReadStatement):
            return self._shown(edit.session, statement)
        return _CHANGES[type(statement)](edit, statement, self.provider)

    def _shown(self, session: Session, statement: statement_types.ReadStatement) -> Result:
        if isinstance(statement, statement_types.ShowUsage):
            return show.show_usage(session, statement, self.provider.catalog)
        return _READS[type(statement)](session, statement)

    def _turn_to(self, name: str | None) -> Result:
        if name is None:
            self.impersonated = None
            return make_message("this is what the provider sees again")
        with self.provider.catalog.reading() as session:
            found = states.get_recipient(session, name)
        self.impersonated = RecipientSession(self.provider, found.name, found.id, self._rows_read_by)
        return make_message(f"this is what {found.name} sees; its state is {found.state}")

    def _look_ahead(self, script: Sequence[statement_types.Statement]) -> None:
        """Know the followed tables that rules of these statements are held against before a transaction is open."""
        provider, concerned = self.provider, defaultdict[str, list[str]](list)
        writes_rule = False
        for statement in script:
            if isinstance(statement, statement_types.PutObject):
                concerned[statement.share].append(".".join(statement.path))
                writes_rule |= statement.rule is not None
            elif isinstance(statement, statement_types.PutSchema):
                with suppress(BadRequest):  # told by the statement itself
                    concerned[statement.share] += provider.tables_of(".".join(statement.path))
            elif isinstance(statement, statement_types.Grant):
                concerned[statement.share] += ()
                writes_rule |= statement.rule is not None
            elif isinstance(statement, statement_types.AlterShare) and len(script) > 1:
                # What follows may speak of it by another name: all is looked at.
                concerned[statement.name] += ()
                writes_rule = True
        for share, tables in concerned.items():
            prefetch_versions(provider.catalog, provider.versions, share, tables, writes_rule=writes_rule)

    def _require_provider(self) -> None:
        if self.impersonated is not None:
            raise Denied(f"{self.impersonated.recipient} changes nothing. RESET RECIPIENT first.")


def _refuse(
    error: LakeshareError,
    text: str,
    source: str | None,
    script: tuple[PlacedStatement, ...],
    number: int,
    took: int,
) -> StatementRefused:
    placed = script[number]
    return StatementRefused(error, _find_position(error, placed, text), text, source, took, len(script))


def _find_position(error: LakeshareError, placed: PlacedStatement, text: str) -> SourcePosition:
    """Where the statement says what was refused; its first word, if that cannot be told."""
    written = text[placed.start : placed.end]
    value = (
        error.name if isinstance(error, NotFound) else error.value if isinstance(error, BadRequest) else None
    )
    sought = rf"(?<!\w){re.escape(str(value))}(?!\w)" if value not in (None, "") else r"\A\w+"
    found = re.search(sought, written, re.IGNORECASE) or re.match(r"\w+", written)
    at, length = placed.start + (found.start() if found else 0), len(found.group()) if found else 1
    line_start = text.rfind("\n", 0, at) + 1
    return SourcePosition(text.count("\n", 0, at) + 1, at - line_start + 1, length)


# By the type of the statement, which each function takes.
_READS: Mapping[type, Callable[[Session, Any], Result]] = {
    statement_types.ShowShares: show.show_shares,
    statement_types.ShowSharesInProvider: show.show_shares_in_provider,
    statement_types.ShowAllInShare: show.show_all_in_share,
    statement_types.ShowRecipients: show.show_recipients,
    statement_types.ShowGroups: show.show_groups,
    changes.ShowFollowedTables: changes.execute_show_followed_tables,
    statement_types.ShowGrantsOnShare: show.show_grants_on_share,
    statement_types.ShowGrantsTo: show.show_grants_to,
    statement_types.DescribeShare: show.describe_share,
    statement_types.DescribeRecipient: show.describe_recipient,
    statement_types.DescribeGroup: show.describe_group,
    statement_types.SelectAll: show.select_all,
}
_CHANGES: Mapping[type, Callable[[Edit, Any, Provider], Result]] = {
    statement_types.CreateShare: changes.execute_create_share,
    statement_types.AlterShare: changes.execute_alter_share,
    statement_types.DropShare: changes.execute_drop_share,
    statement_types.PutObject: changes.execute_put_object,
    statement_types.PutSchema: changes.execute_put_schema,
    statement_types.RemoveObject: changes.execute_remove_object,
    statement_types.RemoveSchema: changes.execute_remove_schema,
    statement_types.PinPublication: changes.execute_pin_publication,
    statement_types.Publish: changes.execute_publish,
    statement_types.CreateRecipient: changes.execute_create_recipient,
    statement_types.AlterRecipient: changes.execute_alter_recipient,
    statement_types.SetProperties: changes.execute_set_properties,
    statement_types.UnsetProperties: changes.execute_unset_properties,
    statement_types.RotateToken: changes.execute_rotate_token,
    statement_types.RevokeToken: changes.execute_revoke_token,
    statement_types.Invite: changes.execute_invite,
    statement_types.PutPolicy: changes.execute_put_policy,
    statement_types.DropPolicy: changes.execute_drop_policy,
    statement_types.RevokeRecipient: changes.execute_revoke_recipient,
    statement_types.DropRecipient: changes.execute_drop_recipient,
    statement_types.CreateGroup: changes.execute_create_group,
    statement_types.AlterGroup: changes.execute_alter_group,
    statement_types.ChangeMembers: changes.execute_change_members,
    statement_types.DropGroup: changes.execute_drop_group,
    statement_types.Grant: changes.execute_grant,
    statement_types.Revoke: changes.execute_revoke,
}


WORD = re.compile(r"[\w.`]*\Z")

# The names that can follow a keyword, by what the grammar calls it.
Names = Mapping[str, Callable[[], Iterable[str]]]


def read_names(catalog: Catalog) -> Names:
    """The names in a catalog, looked up when they are asked for."""

    def named(read: Callable[..., Iterable[object]]) -> Callable[[], list[str]]:
        def names() -> list[str]:
            with catalog.reading() as session:
                return [quoted_name(str(getattr(one, "name", ""))) for one in read(session)]

        return names

    def tables() -> list[str]:
        return [".".join(map(quoted_name, table.split("."))) for table in Ledger(catalog).tables()]

    return {
        "SHARE": named(states.list_shares),
        "RECIPIENT": named(states.list_recipients),
        "GROUP": named(states.list_groups),
        **dict.fromkeys(("TABLE", "VIEW", "ADD", "ALTER"), tables),
        "FROM": lambda: [f"{SCHEMA}.{view}" for view in VIEWS],
    }


def complete_word(text: str, names: Names) -> tuple[str, list[str]]:
    """The word that is being written at the end of a text, and what it can become."""
    match = WORD.search(text)
    word = match.group() if match else ""
    follower = get_parser().parse_interactive(text[: len(text) - len(word)])
    try:
        tokens = list(follower.exhaust_lexer())
    except UnexpectedInput:
        return word, []
    accepted = follower.accepts()  # type: ignore[no-untyped-call]  # lark says nothing
    keywords = sorted(filter(str.isupper, filter(None, map(terminal_name, accepted))))
    before = tokens[-1].type if tokens else ""
    known = names[before]() if before in names and "NAME" in accepted else ()
    return word, [one for one in (*known, *keywords) if one.lower().startswith(word.lower()) and one != word]


class SqlCompleter(Completer):
    """Completes by the grammar and the catalog."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """What the word before the cursor can become."""
        word, candidates = complete_word(document.text_before_cursor, self.names)
        for candidate in candidates:
            yield Completion(candidate, start_position=-len(word))


LEAVING = frozenset({"exit", "quit", r"\q", "exit;", "quit;"})
CONTINUATION = frozenset({"help", "?", r"\h", "help;"})
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
        completer=SqlCompleter(read_names(session.provider.catalog)),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_bindings(),
        prompt_continuation=lambda width, *_: "… ".rjust(width),
        input=keys,
        output=screen,
    )


def run_prompt(
    session: SqlSession,
    typed: PromptSession[str],
    say_answer: Callable[[StatementResult], None],
    say_error: Say,
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
        if text.lower() in CONTINUATION:
            say_error(HELP)
            continue
        try:
            for answer in session.run(text):
                say_answer(answer)
        except SqlError as error:
            say_error(str(error))


def is_complete(text: str) -> bool:
    """Whether Enter ends what is typed: at a `;` that is not within quotes, or at a word for the prompt itself."""
    written = text.strip()
    if not written or written.lower() in LEAVING | CONTINUATION:
        return True
    return written.endswith(";") and not is_unfinished(text)


def _prompt(session: SqlSession) -> str:
    return (
        "lakeshare> " if session.impersonated is None else f"lakeshare as {session.impersonated.recipient}> "
    )


def _bindings() -> KeyBindings:
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


def format_table(answer: StatementResult) -> str:
    """Columns in line, and what was done or how many rows there are."""
    result = answer.result
    message = escape_unprintable(result.told)
    if not result.columns:
        return message
    cells = [list(result.columns), *([_format_cell(cell) for cell in row] for row in result.rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(result.columns))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    count = f"({len(result.rows)} row{'' if len(result.rows) == 1 else 's'})"
    return "\n".join([lines[0], rule, *lines[1:], f"{count} {message}".rstrip()])


def format_csv(answer: StatementResult) -> str:
    """A header and the rows; nothing for statements without rows."""
    result = answer.result
    if not result.columns:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.columns)
    writer.writerows([_text(cell) for cell in row] for row in result.rows)
    return text.getvalue().removesuffix("\n")


def format_json(answer: StatementResult) -> str:
    """One object in one line: the statement, what was done, the rows as objects."""
    rows = [
        dict(zip(answer.result.columns, map(_plain_value, row), strict=True)) for row in answer.result.rows
    ]
    fields = {"statement": answer.text, "told": answer.result.told, "rows": rows}
    return json.dumps(fields, ensure_ascii=False)


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
    return NULL_TEXT if cell is None else escape_unprintable(str(_text(cell)))
