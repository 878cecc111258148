"""Nothing in a name, a text or a script reaches further than it says, and no text of any kind surprises the reader."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lark import Token

from lakeshare_server.catalog import states
from lakeshare_server.provider.following import Provider
from lakeshare_server.sql.grammar import (
    END,
    SourcePosition,
    SqlError,
    get_parser,
    is_unfinished,
    parse,
    quoted_name,
    quoted_text,
)
from lakeshare_server.sql.session import SqlSession
from tests.builders.campaign import campaign_size
from tests.builders.sql_sessions import a_lake, a_session, empty, rows

AWKWARD = [
    "'; DROP SHARE kept; --",
    "\\'; DROP SHARE kept; --",
    "''; DROP SHARE kept; --",
    "`; DROP SHARE kept; --",
    '"; DROP SHARE kept; --',
    "x' OR '1'='1",
    "/* */ -- ;",
    "%s %(name)s {name} ${jndi:ldap://x} {{7*7}}",
    "\x00",
    "\x1b]0;title\x07\x1b[2J",
    "\u202egpj.exe",
    "\ud800",
    "\ufb00 \u017f \u0130 \xdf",  # letters that change their number or kind with their case
    "' UNION SELECT digest FROM tokens --",
    "a" * 300,
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    opened = a_lake(tmp_path_factory.mktemp("lake"))
    yield opened
    opened.catalog.close()


@pytest.mark.parametrize("text", AWKWARD)
def test_a_text_is_kept_as_it_is_and_does_nothing(lake: Provider, text: str) -> None:
    empty(lake.catalog)
    session = a_session(lake)
    list(session.run(f"CREATE SHARE kept COMMENT {quoted_text(text)}"))
    # What no database can hold is replaced where it is stored.
    stored = text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert rows(session, "SHOW SHARES", "name", "comment") == [("kept", stored)]


def refusal(session: SqlSession, statement: str) -> str:
    """What is said when it is refused; nothing when it is done."""
    try:
        list(session.run(statement))
    except SqlError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", AWKWARD)
def test_a_name_is_one_name_or_refused_and_does_nothing(lake: Provider, text: str) -> None:
    empty(lake.catalog)
    session = a_session(lake)
    list(session.run("CREATE SHARE kept; CREATE RECIPIENT bob; ALTER SHARE kept ADD TABLE lake.orders"))
    name = quoted_name(text)
    for statement in (
        f"CREATE SHARE {name}",
        f"ALTER SHARE {name} RENAME TO kept2",
        f"ALTER SHARE kept ADD TABLE lake.parts AS {name}.{name}",
        f"ALTER SHARE kept ADD TABLE {name}.{name}",
        f"ALTER SHARE kept REMOVE SCHEMA {name}",
        f"GRANT SELECT ON SHARE kept TO RECIPIENT {name}",
        f"ALTER RECIPIENT bob SET PROPERTIES ({name} = {quoted_text(text)})",
        f"SHOW SHARES LIKE {quoted_text(text)}",
        f"SELECT * FROM information_schema.{name}",
        f"SHOW USAGE FOR RECIPIENT {name}",
        f"SET RECIPIENT {name}",
    ):
        # A message is one line, the line it speaks of, and a caret, whatever the name has in it.
        told = refusal(session, statement) or "one\ntwo\nthree"
        assert len(told.split("\n")) == 3
        assert told.replace("\n", "").isprintable()
    assert ("kept",) in rows(session, "SHOW SHARES", "name")
    assert "lake.orders" in {table for (table,) in rows(session, "SHOW ALL IN SHARE kept", "shared_object")}


@pytest.mark.parametrize("text", AWKWARD)
def test_a_value_of_a_partition_stays_one_text_in_the_rule(lake: Provider, text: str) -> None:
    [placed] = parse(
        f"ALTER SHARE s ADD TABLE a.b PARTITION ({quoted_name(text)} = {quoted_text(text)}, c = 'd')"
    )
    [again] = parse(f"ALTER SHARE s ADD TABLE a.b WHERE ({placed.statement.fields['rule']})")
    assert again.statement.fields["rule"] == placed.statement.fields["rule"]
    assert placed.statement.fields["rule"].endswith(" AND c = 'd'")


@given(st.text(max_size=200))
def test_any_text_is_a_script_or_refused(text: str) -> None:
    is_unfinished(text)
    place = SourcePosition(1, 1)
    try:
        parse(text)
    except SqlError as error:
        place = error.place
    assert 1 <= place.line <= text.count("\n") + 1


PIECES = ["CREATE", "SHARE", "share", "'", '"', "`", ";", "(", ")", ".", ",", "--", "/*", "*/", "\n", " ", "=", "a",
          "1", "ALTER", "ADD", "TABLE", "PARTITION", "WHERE", "UNTIL", "'x'", "''", "\\", "\x00", "é"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(" ".join))
def test_any_heap_of_pieces_is_a_script_or_refused(text: str) -> None:
    with suppress(SqlError):
        parse(text)


def test_depth_and_length_are_bounded_by_a_message_not_by_the_stack() -> None:
    depth = 20_000
    with pytest.raises(SqlError, match="deeper"):
        parse(f"GRANT SELECT ON SHARE s TO RECIPIENT r WHERE {'(' * depth}{')' * depth}")
    many = ";".join(["SHOW SHARES"] * 2000)
    assert len(parse(many)) == 2000


NAMES = ["sales", "other", "bob", "eve", "europe", "lake", "orders", "parts", "information_schema", "shares", "`x y`",
         "`a.b`", "nix", "issuer", "subject", "audience", "default"]  # fmt: skip
TEXTS = ["'x'", "''", "'a|b*'", "'2099-01-01'", "'1999-01-01 00:00Z'", "'24 hours'", "'0 days'", "'999999999 weeks'",
         "'10.0.0.0/8'", "'https://issuer.example'", "'9999-12-31T23:59:59-12:00'", '"say ""no"""']  # fmt: skip
VALUES = {
    "NAME": [name for name in NAMES if not name.startswith("`")],
    "QUOTED_NAME": [name for name in NAMES if name.startswith("`")],
    "TEXT": TEXTS,
    "DECIMAL": ["0", "1", "7", "1.5", "9223372036854775807", "99999999999999999999"],
    "OPERATOR": ["=", "<>", "+"],
    "SIGN": ["-", "+"],
}
LONGEST = 45


@st.composite
def statements(draw: st.DrawFn) -> str:
    """A statement that the grammar allows, by walking along it."""
    walker = get_parser().parse_interactive("")
    written: list[str] = []
    while len(written) < LONGEST:
        accepted = sorted(walker.accepts())
        if written and "SEMICOLON" in accepted and draw(st.integers(0, 2)) == 0:
            break
        choices = [terminal for terminal in accepted if terminal not in (END, "SEMICOLON")]
        if not choices:
            break
        terminal = draw(st.sampled_from(choices))
        pattern = get_parser().get_terminal(terminal).pattern.value
        text = draw(st.sampled_from(VALUES[terminal])) if terminal in VALUES else pattern
        walker.feed_token(Token(terminal, text))
        written.append(text)
    return " ".join(written)


BASE = """CREATE SHARE sales; ALTER SHARE sales ADD TABLE lake.orders; CREATE RECIPIENT bob; CREATE GROUP europe;
ALTER GROUP europe ADD RECIPIENT bob; GRANT SELECT ON SHARE sales TO GROUP europe; ALTER RECIPIENT bob ROTATE TOKEN;
CREATE RECIPIENT eve USING OIDC (issuer 'https://issuer.example', subject 'eve');"""


@pytest.mark.campaign
@settings(
    max_examples=campaign_size(in_ci=12, in_campaign=500),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(statements(), min_size=1, max_size=6))
def test_any_statement_is_done_or_refused_and_the_catalog_stays_readable(
    lake: Provider, script: list[str]
) -> None:
    empty(lake.catalog)
    session = a_session(lake)
    list(session.run(BASE, single_transaction=True))
    for statement in script:
        with suppress(SqlError):
            list(session.run(statement))
    session.impersonated = None
    for view in (
        "shares",
        "recipients",
        "recipient_tokens",
        "share_recipient_privileges",
        "table_share_usage",
    ):
        rows(session, f"SELECT * FROM information_schema.{view}")
    with lake.catalog.reading() as looking:
        for recipient in states.list_recipients(looking):
            assert states.list_grants(looking, recipient=recipient.name) is not None
