"""At the prompt: several lines up to the `;`, completion by grammar and catalog, history, mistakes that end nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from lakeshare_server.provider.following import Provider
from lakeshare_server.sql.session import (
    SqlCompleter,
    SqlSession,
    StatementResult,
    complete_word,
    is_complete,
    prompt_with_history,
    read_names,
    run_prompt,
)
from tests.builders.sql_sessions import a_lake, a_session, answer, empty

CTRL_C, CTRL_D, TAB, UP = "\x03", "\x04", "\t", "\x1b[A"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    opened = a_lake(tmp_path_factory.mktemp("lake"))
    yield opened
    opened.catalog.close()


@pytest.fixture
def session(lake: Provider) -> SqlSession:
    empty(lake.catalog)
    session = a_session(lake)
    list(session.run("CREATE SHARE sales; CREATE SHARE `a-b`; CREATE RECIPIENT bob; CREATE GROUP europe"))
    return session


def typed(session: SqlSession, keys: str, history: Path, **then: str) -> tuple[list[str], list[str]]:
    """What is answered, and what is said otherwise, for these keys, and for others once a text stands there."""
    answers: list[str] = []
    said: list[str] = []
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        prompt = prompt_with_history(session, history, keys=pipe, screen=DummyOutput())
        prompt.default_buffer.on_text_changed += lambda buffer: pipe.send_text(then.pop(buffer.text, ""))
        run_prompt(session, prompt, lambda done: answers.append(_told(done)), said.append)
    return answers, said


def _told(done: StatementResult) -> str:
    return f"{done.text}: {done.result.message or len(done.result.rows)}"


def test_a_statement_takes_several_lines_and_a_line_several_statements(session, tmp_path):
    answers, said = typed(session, f"CREATE SHARE\r  b;\rSHOW SHARES; SHOW GROUPS;\r{CTRL_D}", tmp_path / "h")
    assert answers == ["CREATE SHARE\n  b: share b is made", "SHOW SHARES: 3", "SHOW GROUPS: 1"]
    assert said == []


def test_a_mistake_is_told_and_the_prompt_goes_on(session, tmp_path):
    answers, said = typed(session, "SHOV;\rDROP SHARE nix;\rhelp\rSHOW SHARES;\rexit\r", tmp_path / "h")
    assert answers == ["SHOW SHARES: 2"]
    assert "Did you mean SHOW?" in said[0]
    assert "Share nix does not exist." in said[1]
    assert "SET RECIPIENT r;" in said[2]


def test_ctrl_c_forgets_what_was_typed_and_nothing_else(session, tmp_path):
    answers, said = typed(session, f"DROP SHARE sa{CTRL_C}SHOW SHARES;\r{CTRL_D}", tmp_path / "h")
    assert answers == ["SHOW SHARES: 2"]
    assert said == []


def test_history_comes_back_in_the_next_session_and_is_nobody_elses(session, tmp_path):
    history = tmp_path / "made" / "h"
    typed(session, f"SHOW SHARES;\r{CTRL_D}", history)
    assert history.stat().st_mode & 0o077 == 0
    assert typed(session, f"{UP}\r{CTRL_D}", history)[0] == ["SHOW SHARES: 2"]


@pytest.mark.timeout(30)
def test_tab_completes_a_name_of_the_catalog(session, tmp_path):
    then = {"DESCRIBE SHARE sales": f";\r{CTRL_D}"}
    answers, _ = typed(session, f"DESCRIBE SHARE sal{TAB}", tmp_path / "h", **then)
    assert answers == ["DESCRIBE SHARE sales: 1"]


@pytest.mark.parametrize(
    ("text", "word", "candidates"),
    [
        ("", "", ["ALTER", "COMMENT", "CREATE", "DESC", "DESCRIBE", "DROP", "FOLLOW", "GRANT", "PUBLISH",
                  "RESET", "REVOKE", "SELECT", "SET", "SHOW", "UNFOLLOW"]),
        ("sho", "sho", ["SHOW"]),
        ("SHOW ALL IN SHARE ", "", ["sales", "`a-b`"]),
        ("ALTER SHARE sales ADD TABLE lake.o", "lake.o", ["lake.orders"]),
        ("ALTER SHARE sales SET PUBLICATION 1 FOR TABLE s", "s", ["sea.ships"]),
        ("GRANT SELECT ON SHARE sales TO ", "", ["GROUP", "RECIPIENT"]),
        ("GRANT SELECT ON SHARE sales TO RECIPIENT B", "B", ["bob"]),
        ("SHOW SHARES; ALTER GROUP ", "", ["europe"]),
        ("SELECT * FROM information_schema.recipient_", "information_schema.recipient_",
         ["information_schema.recipient_tokens", "information_schema.recipient_allowed_ip_ranges"]),
        ("NO SUCH ", "", []),
        ("CREATE SHARE s COMMENT 'SHO", "SHO", []),
    ],
)  # fmt: skip
def test_what_can_follow_is_known(session, text, word, candidates):
    assert complete_word(text, read_names(session.provider.catalog)) == (word, candidates)


def test_a_completion_replaces_the_word_that_is_being_written(session):
    completer = SqlCompleter(read_names(session.provider.catalog))
    [one] = completer.get_completions(Document("DROP RECIPIENT b"), CompleteEvent())
    assert (one.text, one.start_position) == ("bob", -1)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("SHOW SHARES;", True),
        ("SHOW SHARES", False),
        ("SHOW SHARES; SHOW", False),
        ("CREATE SHARE s COMMENT 'a;", False),
        ("CREATE SHARE s COMMENT 'a;';", True),
        ("SHOV;", True),
        ("  ", True),
        ("EXIT", True),
        ("help", True),
    ],
)
def test_enter_ends_what_is_whole(text, whole):
    assert is_complete(text) is whole


def test_the_prompt_says_as_whom_it_looks(session, tmp_path):
    answers, _ = typed(session, f"SET RECIPIENT bob;\rSHOW SHARES;\r{CTRL_D}", tmp_path / "h")
    assert answers[1] == "SHOW SHARES: 0"
    assert session.impersonated is not None
    assert answer(session, "RESET RECIPIENT").message
