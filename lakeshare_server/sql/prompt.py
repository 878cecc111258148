"""Talking SQL at a terminal: history, completion, several lines up to the `;`."""

from collections.abc import Callable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from lakeshare_server.settings import make_private
from lakeshare_server.sql.completion import SqlCompleter, names_of
from lakeshare_server.sql.errors import SqlError
from lakeshare_server.sql.grammar import is_unfinished
from lakeshare_server.sql.session import Done, SqlSession

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
