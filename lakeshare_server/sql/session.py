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
from lakeshare_server.provider.following import find_versions_ahead
from lakeshare_server.settings import make_private
from lakeshare_server.sql import changes, show
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.changes import Provider
from lakeshare_server.sql.grammar import Placed, called, is_unfinished, parse, parser
from lakeshare_server.sql.show import SCHEMA, VIEWS, RowsReadBy, SeenAs, written
from lakeshare_server.sql.statements import (
    Cell,
    Place,
    Result,
    SqlError,
    StatementRefused,
    done,
    printable,
    quoted_name,
)


@dataclass(frozen=True)
class Done:
    """A statement that was done, as it was written, and what it answered."""

    text: str
    result: Result


class SqlSession:
    """Statements in the name of a principal; `rows_read_by` reads tables for whoever sees as a recipient."""

    def __init__(self, provider: Provider, principal: str, rows_read_by: RowsReadBy | None = None) -> None:
        self.provider, self.principal, self._rows_read_by = provider, principal, rows_read_by
        self.seen_as: SeenAs | None = None

    def run(
        self, text: str, source: str | None = None, *, single_transaction: bool = False
    ) -> Iterator[Done]:
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
                raise _refused(error, text, source, script, number, number) from error
            yield Done(text[placed.start : placed.end], result)

    def _together(self, script: tuple[Placed, ...], text: str, source: str | None) -> list[Done]:
        if not script:
            return []
        answers: list[Done] = []
        changed: list[int] = []  # how many changes there were in front of each statement
        number = 0
        try:
            self._look_ahead([placed.statement for placed in script])
            with editing(self.provider.catalog, self.principal) as edit:
                for number, placed in enumerate(script):  # noqa: B007  # which one was refused
                    changed.append(len(edit.changes))
                    result = self._within(edit, placed.statement)
                    answers.append(Done(text[placed.start : placed.end], result))
                try:
                    require_decidable_rules(edit, self.provider.versions)
                except BadRequest:
                    number = self._undecided(edit, changed)
                    raise
        except LakeshareError as error:
            raise _refused(error, text, source, script, number, 0) from error
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

    def _alone(self, asked: said.Statement) -> Result:
        catalog = self.provider.catalog
        if isinstance(asked, said.SetRecipient):
            return self._turn_to(asked.name)
        if isinstance(asked, said.Look):
            if self.seen_as is not None:
                return self.seen_as.look(asked)
            with catalog.reading() as session:
                return self._shown(session, asked)
        self._require_provider()
        if isinstance(asked, changes.Follow):
            return changes.do_follow(asked, self.provider, self.principal)
        if isinstance(asked, changes.Unfollow):
            return changes.do_unfollow(asked, self.provider, self.principal)
        self._look_ahead([asked])
        with editing(catalog, self.principal) as edit:
            result = _CHANGES[type(asked)](edit, asked, self.provider)
            require_decidable_rules(edit, self.provider.versions)
            return result

    def _within(self, edit: Edit, asked: said.Statement) -> Result:
        if isinstance(asked, said.SetRecipient):
            hint = "Recipients see what is committed: look as one outside of the transaction."
            raise BadRequest("SET RECIPIENT", asked.name or "", hint)
        self._require_provider()
        if isinstance(asked, changes.Follow | changes.Unfollow):
            name = "FOLLOW" if isinstance(asked, changes.Follow) else "UNFOLLOW"
            raise BadRequest(name, name, "It reads stores: run it outside of the transaction.")
        if isinstance(asked, said.Look):
            return self._shown(edit.session, asked)
        return _CHANGES[type(asked)](edit, asked, self.provider)

    def _shown(self, session: Session, asked: said.Look) -> Result:
        if isinstance(asked, said.ShowUsage):
            return show.show_usage(session, asked, self.provider.catalog)
        return _LOOKS[type(asked)](session, asked)

    def _turn_to(self, name: str | None) -> Result:
        if name is None:
            self.seen_as = None
            return done("this is what the provider sees again")
        with self.provider.catalog.reading() as session:
            found = states.recipient(session, name)
        self.seen_as = SeenAs(self.provider, found.name, found.id, self._rows_read_by)
        return done(f"this is what {found.name} sees; its state is {found.state}")

    def _look_ahead(self, script: Sequence[said.Statement]) -> None:
        """Know the followed tables that rules of these statements are held against before a transaction is open."""
        provider, concerned = self.provider, defaultdict[str, list[str]](list)
        writes_rule = False
        for asked in script:
            if isinstance(asked, said.PutObject):
                concerned[asked.share].append(".".join(asked.path))
                writes_rule |= asked.rule is not None
            elif isinstance(asked, said.PutSchema):
                with suppress(BadRequest):  # told by the statement itself
                    concerned[asked.share] += provider.tables_of(".".join(asked.path))
            elif isinstance(asked, said.Grant):
                concerned[asked.share] += ()
                writes_rule |= asked.rule is not None
            elif isinstance(asked, said.AlterShare) and len(script) > 1:
                # What follows may speak of it by another name: all is looked at.
                concerned[asked.name] += ()
                writes_rule = True
        for share, tables in concerned.items():
            find_versions_ahead(provider.catalog, provider.versions, share, tables, writes_rule=writes_rule)

    def _require_provider(self) -> None:
        if self.seen_as is not None:
            raise Denied(f"{self.seen_as.recipient} changes nothing. RESET RECIPIENT first.")


def _refused(
    error: LakeshareError, text: str, source: str | None, script: tuple[Placed, ...], number: int, took: int
) -> StatementRefused:
    placed = script[number]
    return StatementRefused(error, _meant(error, placed, text), text, source, took, len(script))


def _meant(error: LakeshareError, placed: Placed, text: str) -> Place:
    """Where the statement says what was refused; its first word, if that cannot be told."""
    written = text[placed.start : placed.end]
    value = (
        error.name if isinstance(error, NotFound) else error.value if isinstance(error, BadRequest) else None
    )
    sought = rf"(?<!\w){re.escape(str(value))}(?!\w)" if value not in (None, "") else r"\A\w+"
    found = re.search(sought, written, re.IGNORECASE) or re.match(r"\w+", written)
    at, length = placed.start + (found.start() if found else 0), len(found.group()) if found else 1
    line_start = text.rfind("\n", 0, at) + 1
    return Place(text.count("\n", 0, at) + 1, at - line_start + 1, length)


# By the type of the statement, which each function takes.
_LOOKS: Mapping[type, Callable[[Session, Any], Result]] = {
    said.ShowShares: show.show_shares,
    said.ShowSharesInProvider: show.show_shares_in_provider,
    said.ShowAllInShare: show.show_all_in_share,
    said.ShowRecipients: show.show_recipients,
    said.ShowGroups: show.show_groups,
    changes.ShowFollowedTables: changes.show_followed_tables,
    said.ShowGrantsOnShare: show.show_grants_on_share,
    said.ShowGrantsTo: show.show_grants_to,
    said.DescribeShare: show.describe_share,
    said.DescribeRecipient: show.describe_recipient,
    said.DescribeGroup: show.describe_group,
    said.SelectAll: show.select_all,
}
_CHANGES: Mapping[type, Callable[[Edit, Any, Provider], Result]] = {
    said.CreateShare: changes.do_create_share,
    said.AlterShare: changes.do_alter_share,
    said.DropShare: changes.do_drop_share,
    said.PutObject: changes.do_put_object,
    said.PutSchema: changes.do_put_schema,
    said.RemoveObject: changes.do_remove_object,
    said.RemoveSchema: changes.do_remove_schema,
    said.PinPublication: changes.do_pin_publication,
    said.Publish: changes.do_publish,
    said.CreateRecipient: changes.do_create_recipient,
    said.AlterRecipient: changes.do_alter_recipient,
    said.SetProperties: changes.do_set_properties,
    said.UnsetProperties: changes.do_unset_properties,
    said.RotateToken: changes.do_rotate_token,
    said.RevokeToken: changes.do_revoke_token,
    said.Invite: changes.do_invite,
    said.PutPolicy: changes.do_put_policy,
    said.DropPolicy: changes.do_drop_policy,
    said.RevokeRecipient: changes.do_revoke_recipient,
    said.DropRecipient: changes.do_drop_recipient,
    said.CreateGroup: changes.do_create_group,
    said.AlterGroup: changes.do_alter_group,
    said.ChangeMembers: changes.do_change_members,
    said.DropGroup: changes.do_drop_group,
    said.Grant: changes.do_grant,
    said.Revoke: changes.do_revoke,
}


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
