"""Each statement of the sharing DDL answers with its columns and has its effect; on both databases.

A case is what is there before, the statement, what it answers (rows, or words of the sentence), and rows of another
statement that show the effect.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, get_args
from unittest.mock import ANY

import pytest

from lakeshare_server.provider.following import Provider
from lakeshare_server.sql import show
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.grammar import parse
from tests.builders.sql_sessions import ROOT, a_lake, a_session, answer, empty, rows
from tests.integration.postgres_server import PostgresServer

NEW_YEAR = datetime(2099, 1, 1, tzinfo=UTC)
SALES = "CREATE SHARE sales COMMENT 'What was sold';"
ORDERS = f"{SALES} ALTER SHARE sales ADD TABLE lake.orders COMMENT 'Orders';"
BOB = "CREATE RECIPIENT bob COMMENT 'Tests' PROPERTIES (region = 'EU');"
OIDC = "CREATE RECIPIENT eve USING OIDC (issuer 'https://issuer.example', subject 'eve');"
TOKEN = "ALTER RECIPIENT bob ROTATE TOKEN;"
# The columns of a recipient without texts.
NO_TEXTS = (None,) * len(show.SHORT_TEXTS)
EUROPE = f"{BOB} CREATE GROUP europe COMMENT 'Those there'; ALTER GROUP europe ADD RECIPIENT bob;"
GRANTED = (
    f"{ORDERS}{BOB} GRANT SELECT ON SHARE sales TO RECIPIENT bob UNTIL '2099-01-01' WHERE (region = 'EU');"
)


@dataclass(frozen=True)
class Case:
    """A statement; `answers` is its rows, or words in what it tells."""

    statement: str
    answers: list[tuple[Any, ...]] | str
    before: str = ""
    shown_by: str = ""
    shows: list[tuple[Any, ...]] = field(default_factory=list)
    columns: tuple[str, ...] = ()  # of what is shown; all by default


def objects(*shown: tuple[Any, ...]) -> dict[str, Any]:
    """What SHOW ALL IN SHARE sales shows of tables, without what is the same for all."""
    columns = (
        "name",
        "type",
        "shared_object",
        "comment",
        "partitions",
        "history",
        "start_version",
        "publication",
    )
    return {"shown_by": "SHOW ALL IN SHARE sales", "shows": list(shown), "columns": columns}


def facts(name: str = "bob", **shown: Any) -> dict[str, Any]:
    """What DESCRIBE RECIPIENT says of some of its facts."""
    return {"shown_by": f"DESCRIBE RECIPIENT {name}", "shows": list(shown.items())}


PLAIN = ("lake.orders", "TABLE", "lake.orders", "Orders", None, True, None, None)
CASES = [
    Case("SHOW FOLLOWED TABLES", []),
    # shares
    Case("CREATE SHARE sales COMMENT 'x'", "share sales is made", "", "SHOW SHARES", [("sales", ANY, "ann", "x")]),
    Case("CREATE SHARE IF NOT EXISTS SALES COMMENT 'y'", "nothing is changed", SALES,
         "SHOW SHARES", [("sales", ANY, "ann", "What was sold")]),
    Case("ALTER SHARE sales RENAME TO sold", "share sold is changed", SALES,
         "SHOW SHARES", [("sold",)], ("name",)),
    Case("ALTER SHARE sales OWNER TO `bea@example.com`", "is changed", SALES,
         "DESCRIBE SHARE sales", [("sales", "bea@example.com", "ann")], ("name", "owner", "updated_by")),
    Case("COMMENT ON SHARE sales IS NULL", "is changed", SALES, "SHOW SHARES", [("sales", None)], ("name", "comment")),
    Case("ALTER SHARE sales SET DISPLAY NAME 'Sales of 2013'", "is changed", SALES,
         "DESCRIBE SHARE sales", [("Sales of 2013",)], ("display_name",)),
    Case("DROP SHARE sales", "gone", GRANTED, "SHOW GRANTS TO RECIPIENT bob", []),
    Case("DROP SHARE IF EXISTS sales", "nothing is changed"),
    # what is in them
    Case("ALTER SHARE sales ADD TABLE lake.orders COMMENT 'Orders'", "lake.orders is shared as sales.lake.orders",
         SALES, **objects(PLAIN)),
    Case("ALTER SHARE sales ADD TABLE lake.later", "it is not published yet", SALES,
         **objects(("lake.later", "TABLE", "lake.later", None, None, True, None, None))),
    Case("ALTER SHARE sales ADD lake.orders AS shop.o WITHOUT HISTORY", "as sales.shop.o", SALES,
         **objects(("shop.o", "TABLE", "lake.orders", None, None, False, None, None))),
    Case("ALTER SHARE sales ADD TABLE lake.orders WITH HISTORY START VERSION 1", "is shared", SALES,
         **objects((*PLAIN[:3], None, None, True, 1, None))),
    Case("ALTER SHARE sales ADD TABLE lake.orders WITH CHANGE DATA FEED", "is shared", SALES,
         **objects((*PLAIN[:3], None, None, True, 2, None))),
    Case("ALTER SHARE sales ADD TABLE lake.orders PARTITION (day = '2024'), (region = CURRENT_RECIPIENT().region)",
         "is shared", SALES,
         **objects((*PLAIN[:3], None, "(day = '2024') OR (region = current_recipient('region'))", True, None, None))),
    Case("ALTER SHARE sales ADD TABLE lake.orders WHERE (day > '2024')", "is shared", SALES,
         **objects((*PLAIN[:3], None, "day > '2024'", True, None, None))),
    Case("ALTER SHARE sales ADD MATERIALIZED VIEW lake.top AS best", "is shared as sales.lake.best", SALES,
         **objects(("lake.best", "VIEW", "lake.top", None, None, True, None, None))),
    Case("ALTER SHARE sales ADD SCHEMA lake", "1 of 2 published tables of lake are new in sales", ORDERS,
         **objects(PLAIN, ("lake.parts", "TABLE", "lake.parts", None, None, True, None, None))),
    Case("ALTER SHARE sales ALTER TABLE lake.orders WITHOUT HISTORY", "sales.lake.orders is changed", ORDERS,
         **objects((*PLAIN[:3], None, None, False, None, None))),
    Case("ALTER SHARE sales ALTER TABLE lake.orders COMMENT 'Orders' AS shop.o", "sales.shop.o is changed", ORDERS,
         **objects(("shop.o", *PLAIN[1:]))),
    Case("ALTER SHARE sales ALTER TABLE lake.orders COMMENT 'c' AS b.b", "sales.b.b is changed",
         f"{SALES} ALTER SHARE sales ADD TABLE lake.orders AS a.a; ALTER SHARE sales ADD TABLE lake.orders AS b.b;",
         "SHOW ALL IN SHARE sales", [("a.a", None), ("b.b", "c")], ("name", "comment")),
    Case("ALTER SHARE sales REMOVE TABLE lake.orders", "sales.lake.orders is shared no more", ORDERS, **objects()),
    Case("ALTER SHARE sales REMOVE TABLE shop.o", "sales.shop.o is shared no more",
         f"{SALES} ALTER SHARE sales ADD TABLE lake.orders AS shop.o;", **objects()),
    Case("ALTER SHARE sales REMOVE SCHEMA lake", "sales.lake.orders, sales.lake.parts: shared no more",
         f"{SALES} ALTER SHARE sales ADD SCHEMA lake; ALTER SHARE sales ADD TABLE sea.ships;",
         "SHOW ALL IN SHARE sales", [("sea.ships",)], ("name",)),
    Case("ALTER SHARE sales SET PUBLICATION 1 FOR TABLE lake.orders", "recipients read publication 1", ORDERS,
         **objects((*PLAIN[:7], 1))),
    Case("ALTER SHARE sales SET PUBLICATION 0", "sales.lake.orders, sales.lake.parts: recipients read publication 0",
         f"{SALES} ALTER SHARE sales ADD SCHEMA lake;",
         "SHOW ALL IN SHARE sales", [(0,), (0,)], ("publication",)),
    Case("ALTER SHARE sales UNSET PUBLICATION", "recipients read the latest publication",
         f"{ORDERS} ALTER SHARE sales SET PUBLICATION 1;", **objects(PLAIN)),
    # recipients
    Case("CREATE RECIPIENT bob COMMENT 'c' PROPERTIES (region = 'EU', `a.b` = 'x') IP ALLOW ('10.0.0.0/8') "
         "AGREEMENT 'terms' UNTIL '2099-01-01'", [("bob", ANY, ANY)],
         **facts(recipient_name="bob", authentication_type="TOKEN", owner="ann", created_by="ann", comment="c",
                 state="invited", expiration="2099-01-01T00:00:00Z", ip_allow="10.0.0.0/8",
                 **{"property region": "EU", "property a.b": "x"})),
    Case("CREATE RECIPIENT IF NOT EXISTS bob", "nothing is changed", BOB, **facts(comment="Tests")),
    Case("CREATE RECIPIENT eve USING OIDC (issuer 'https://issuer.example', subject 'eve')", "recipient eve is made",
         **facts("eve", authentication_type="OIDC_FEDERATION", state="activated", activation_link=None,
                 **{"oidc default": "https://issuer.example eve"})),
    Case("CREATE RECIPIENT app USING CLIENT CREDENTIALS", [("app", ANY, ANY)],
         **facts("app", authentication_type="OAUTH_CLIENT_CREDENTIALS")),
    Case("ALTER RECIPIENT bob RENAME TO rob", "recipient rob is changed", BOB,
         "SHOW RECIPIENTS", [("rob", ANY, "ann", "Tests", "TOKEN", "invited")]),
    Case("ALTER RECIPIENT bob OWNER TO bea", "is changed", BOB, **facts(owner="bea")),
    Case("COMMENT ON RECIPIENT bob IS 'x'", "is changed", BOB, **facts(comment="x", updated_by="ann")),
    Case("ALTER RECIPIENT bob SET PROPERTIES (desk = '7')", "is changed", BOB,
         **facts(**{"property region": "EU", "property desk": "7"})),
    Case("ALTER RECIPIENT bob UNSET PROPERTIES (region)", "is changed", BOB, **facts(**{"property region": None})),
    Case("ALTER RECIPIENT bob SET IP ALLOW ('192.0.2.7', '2001:db8::/32')", "is changed", BOB,
         "SELECT * FROM information_schema.recipient_allowed_ip_ranges",
         [("bob", "192.0.2.7/32"), ("bob", "2001:db8::/32")]),
    Case("ALTER RECIPIENT bob UNSET IP ALLOW", "is changed", f"{BOB} ALTER RECIPIENT bob SET IP ALLOW ('192.0.2.7');",
         "SELECT * FROM information_schema.recipient_allowed_ip_ranges", []),
    Case("ALTER RECIPIENT bob SET UNTIL '2000-01-01'", "is changed", BOB, **facts(state="expired")),
    Case("ALTER RECIPIENT bob SET AGREEMENT 'terms'", "is changed", BOB, **facts(agreement_accepted_at=None)),
    Case("ALTER RECIPIENT bob ROTATE TOKEN UNTIL '2099-01-01'",
         [("bob", ANY, ANY, NEW_YEAR, f"{ROOT}/delta-sharing")], BOB,
         **facts(active_token_id=ANY, active_token_expiration="2099-01-01T00:00:00Z", rotated_token_id=None)),
    Case("ALTER RECIPIENT bob ROTATE TOKEN KEEP OLD FOR '24 hours'", [("bob", ANY, ANY, None, ANY)], f"{BOB}{TOKEN}",
         **facts(state="rotating", rotated_token_id=ANY, rotated_token_expiration=ANY)),
    Case("REVOKE TOKEN FROM RECIPIENT bob", "1 tokens of bob are revoked", f"{BOB}{TOKEN}",
         **facts(active_token_id=None)),
    Case("ALTER RECIPIENT bob INVITE FOR '7 days'", [("bob", ANY, ANY)], BOB, **facts(activation_link=ANY)),
    Case("ALTER RECIPIENT eve ADD OIDC (name 'two', issuer 'https://b.example', subject 's', audience 'a')",
         "gets in with tokens of https://b.example", OIDC, **facts("eve", **{"oidc two": "https://b.example s"})),
    Case("ALTER RECIPIENT eve DROP OIDC `default`", "policy default of eve is gone", OIDC,
         **facts("eve", **{"oidc default": None})),
    Case("REVOKE RECIPIENT bob", "may read nothing any more", f"{BOB}{TOKEN}",
         **facts(state="revoked", active_token_id=None)),
    Case("DROP RECIPIENT bob", "recipient bob is gone", GRANTED, "SHOW GRANTS ON SHARE sales", []),
    Case("DROP RECIPIENT IF EXISTS bob", "nothing is changed"),
    # groups
    Case("CREATE GROUP europe COMMENT 'c'", "group europe is made", "",
         "SHOW GROUPS", [("europe", ANY, "ann", "c", "")]),
    Case("ALTER GROUP europe ADD RECIPIENT bob", "group europe has bob", f"{BOB} CREATE GROUP europe;",
         **facts(groups="europe")),
    Case("ALTER GROUP europe REMOVE RECIPIENT bob", "has no members", EUROPE, "SHOW GROUPS", [("",)], ("members",)),
    Case("ALTER GROUP europe RENAME TO eu", "group eu is changed", EUROPE,
         "DESCRIBE GROUP eu", [("eu", ANY, "ann", "Those there", "bob")]),
    Case("DROP GROUP europe", "gone", EUROPE, "SHOW GROUPS", []),
    # grants
    Case("GRANT SELECT ON SHARE sales TO RECIPIENT bob", "bob may read sales", f"{SALES}{BOB}",
         "SHOW GRANTS ON SHARE sales", [("bob", "SELECT", "SHARE", "sales", "RECIPIENT", None, None, None)]),
    Case("GRANT SELECT ON SHARE sales TO RECIPIENT bob FROM '2098-01-01' UNTIL '2099-01-01' WHERE (region = 'EU')",
         "until 2099-01-01 00:00 UTC where region = 'EU'", f"{SALES}{BOB}",
         "SHOW GRANTS TO RECIPIENT bob",
         [("sales", "SELECT", None, NEW_YEAR.replace(year=2098), NEW_YEAR, "region = 'EU'")]),
    Case("GRANT SELECT ON SHARE sales TO RECIPIENT bob", "bob may read sales", GRANTED,
         "SHOW GRANTS TO RECIPIENT bob", [("sales", "SELECT", None, None, None, None)]),
    Case("GRANT SELECT ON SHARE sales TO GROUP europe", "europe may read sales", f"{SALES}{EUROPE}",
         "SHOW GRANTS TO RECIPIENT bob", [("sales", "SELECT", "europe", None, None, None)]),
    Case("REVOKE SELECT ON SHARE sales FROM RECIPIENT bob", "bob may not read sales", GRANTED,
         "SHOW GRANTS ON SHARE sales", []),
    # looking
    Case("SHOW SHARES LIKE 'S*|b'", [("b", ANY, "ann", None), ("sales", ANY, "ann", "What was sold")],
         f"{SALES} CREATE SHARE other; CREATE SHARE b; CREATE SHARE bb;"),
    Case("SHOW ALL IN SHARE sales",
         [("lake.orders", "TABLE", "lake.orders", ANY, "ann", "Orders", None, True, None, None, None)], ORDERS),
    Case("SHOW RECIPIENTS 'b*'", [("bob", ANY, "ann", "Tests", "TOKEN", "invited")], f"{BOB}{OIDC}"),
    Case("SHOW GRANTS TO GROUP europe", [("sales", "SELECT", "europe", None, None, None)],
         f"{SALES}{EUROPE} GRANT SELECT ON SHARE sales TO GROUP europe;"),
    Case("SHOW USAGE FOR RECIPIENT bob SINCE '2024-01-01'", [], BOB),
    Case("DESCRIBE SHARE sales", [("sales", ANY, "ann", "What was sold", None, None, "ann", ANY, "ann")], SALES),
    Case("SELECT * FROM information_schema.shares LIMIT 1",
         [("sales", "ann", "What was sold", ANY, "ann", ANY, "ann")], f"{SALES} CREATE SHARE other;"),
    Case("SELECT * FROM system.information_schema.recipients",
         [("bob", ANY, "ann", "TOKEN", "Tests", ANY, "ann", ANY, "ann", "invited", *NO_TEXTS)], BOB),
    Case("SELECT * FROM information_schema.recipient_tokens",
         [("bob", ANY, ANY, None, ANY, "ann", None, None, None, None)], f"{BOB}{TOKEN}"),
    Case("SELECT * FROM information_schema.share_recipient_privileges",
         [("ann", "bob", "sales", "SELECT", "GROUP europe", None, None, None)],
         f"{SALES}{EUROPE} GRANT SELECT ON SHARE sales TO GROUP europe;"),
    Case("SELECT * FROM information_schema.table_share_usage",
         [("main", "lake", "t", "sales", None, "NO", None, "a", "b", None)],
         f"{SALES} ALTER SHARE sales ADD TABLE main.lake.t AS a.b WITHOUT HISTORY;"),
]  # fmt: skip


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """A catalog with published tables, once of each kind for all cases."""
    folder: Path = tmp_path_factory.mktemp("sql")
    url = None
    if request.param == "postgresql":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        url = postgres.new_database()
    provider = a_lake(folder, database_url=url)
    yield provider
    provider.catalog.close()


@pytest.mark.parametrize("case", CASES, ids=[case.statement[:70] for case in CASES])
def test_a_statement_answers_and_has_its_effect(filled: Provider, case: Case) -> None:
    empty(filled.catalog)
    session = a_session(filled)
    list(session.run(case.before))
    result = answer(session, case.statement)
    if isinstance(case.answers, str):
        assert case.answers in result.message
        assert result.columns == {}
    else:
        assert list(result.rows) == case.answers
        assert all(len(row) == len(result.columns) for row in result.rows)
    if case.shown_by.startswith("DESCRIBE RECIPIENT"):
        known = dict(rows(session, case.shown_by))
        assert [(name, known.get(name)) for name, _ in case.shows] == case.shows
    elif case.shown_by:
        assert rows(session, case.shown_by, *case.columns) == case.shows


def test_every_statement_has_a_case() -> None:
    written = [case.before + case.statement + ";" + case.shown_by for case in CASES]
    parsed = [placed.statement for text in written for placed in parse(text)]
    tried = {type(statement) for statement in parsed}
    every = {*said.ChangeStatement.__subclasses__(), *show.ReadStatement.__subclasses__()}
    # Refused, whatever they say: see test_sql_refusals.py. Reading stores: see test_follow_many.py.
    assert every - tried == {said.Publish, show.ShowSharesInProvider, said.Follow, said.Unfollow}
    of_kinds = said.Alter, said.Drop, show.Show, show.Describe
    kinds = {(type(statement), statement.kind) for statement in parsed if isinstance(statement, of_kinds)}
    assert kinds == {*product(of_kinds, get_args(said.ObjectKind))}
    created = {statement.kind for statement in parsed if isinstance(statement, said.Create)}
    assert created == {"SHARE", "GROUP"}


# The manual's columns, in the manual's order; ours stand behind them.
MANUAL = {
    "SHOW SHARES": "name created_at created_by comment",
    "SHOW ALL IN SHARE sales": "name type shared_object added_at added_by comment partitions",
    "SHOW GRANTS ON SHARE sales": "recipient actionType objectType objectKey",
    "SHOW GRANTS TO RECIPIENT bob": "share privilege",
    "DESCRIBE SHARE sales": "name created_at created_by comment",
    "DESCRIBE RECIPIENT bob": "info_name info_value",
    "SELECT * FROM information_schema.recipient_tokens": "recipient_name recipient_token_id activation_url "
    "expiration_time created created_by last_altered last_altered_by",
    "SELECT * FROM information_schema.shares": "share_name share_owner comment created created_by last_altered "
    "last_altered_by",
    "SELECT * FROM information_schema.share_recipient_privileges": "grantor recipient_name share_name privilege_type "
    "inherited_from",
    "SELECT * FROM information_schema.table_share_usage": "catalog_name schema_name table_name share_name "
    "partition_spec cdf_enabled start_version shared_as_schema shared_as_table comment",
    "SELECT * FROM information_schema.recipient_allowed_ip_ranges": "recipient_name allowed_ip_range",
}


@pytest.mark.parametrize("statement", MANUAL)
def test_columns_begin_with_those_of_the_manual(filled: Provider, statement: str) -> None:
    empty(filled.catalog)
    session = a_session(filled)
    list(session.run(GRANTED))
    columns = list(answer(session, statement).columns)
    expected = MANUAL[statement].split()
    assert columns[: len(expected)] == expected


def test_describe_recipient_names_its_facts_as_the_manual_does(filled: Provider) -> None:
    empty(filled.catalog)
    session = a_session(filled)
    list(session.run(BOB + TOKEN))
    assert [name for name, _ in rows(session, "DESCRIBE RECIPIENT bob")][:12] == [
        "recipient_name", "recipient_id", "authentication_type", "owner", "created_by", "create_at", "updated_by",
        "updated_at", "comment", "active_token_id", "active_token_expiration", "activation_link",
    ]  # fmt: skip
