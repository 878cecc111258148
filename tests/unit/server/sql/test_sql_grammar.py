"""Every statement of the sharing DDL is read as what it says, and what is wrong is told with its place."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_server.catalog.states import FederationPolicy
from lakeshare_server.sql import show
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.grammar import SqlError, get_parser, is_unfinished, parse, quoted_name, quoted_text

NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
BOB, EUROPE = said.Grantee("RECIPIENT", "bob"), said.Grantee("GROUP", "europe")


def put(share: str = "s", **fields: object) -> said.PutObject:
    table = {"verb": "ADD", "path": ("lake", "t"), "alias": ("lake", "t"), "columns": ()}
    usual = {"kind": "TABLE", "comment": None, "rule": None, "history": True, "start_version": None}
    own = {name: fields.pop(name) for name in list(fields) if name in usual}
    return said.PutObject(share, **{**table, **fields}, fields={**usual, **own})


def a_policy(**fields: object) -> FederationPolicy:
    usual = {
        "name": "default",
        "issuer": "https://i",
        "subject": "s",
        "subject_claim": "sub",
        "audiences": (),
    }
    return FederationPolicy(**{**usual, **fields})


STATEMENTS = [
    ("CREATE SHARE s", said.Create("SHARE", "s")),
    ("create share if not exists s comment 'it''s'", said.Create("SHARE", "s", True, {"comment": "it's"})),
    ("DROP SHARE s", said.Drop("SHARE", "s")),
    ("DROP SHARE IF EXISTS `a-b`", said.Drop("SHARE", "a-b", True)),
    ("ALTER SHARE s RENAME TO t", said.Alter("SHARE", "s", {"new_name": "t"})),
    ("ALTER SHARE s OWNER TO `ann@example.com`", said.Alter("SHARE", "s", {"owner": "ann@example.com"})),
    ("ALTER SHARE s SET OWNER TO ann", said.Alter("SHARE", "s", {"owner": "ann"})),
    ("ALTER SHARE s SET COMMENT NULL", said.Alter("SHARE", "s", {"comment": None})),
    ("COMMENT ON SHARE s IS 'x'", said.Alter("SHARE", "s", {"comment": "x"})),
    ("ALTER SHARE s SET DISPLAY NAME 'Sales'", said.Alter("SHARE", "s", {"display_name": "Sales"})),
    ("ALTER SHARE s ADD TABLE lake.t", put()),
    ("ALTER SHARE s ADD lake.t", put()),
    ("ALTER SHARE s ADD TABLE main.lake.t", put(path=("main", "lake", "t"))),
    ("ALTER SHARE s ADD TABLE t AS lake.t", put(path=("t",))),
    ("ALTER SHARE s ALTER TABLE lake.t COMMENT 'c'", put(verb="ALTER", comment="c")),
    ("ALTER SHARE s ADD VIEW lake.t AS a.b", put(kind="VIEW", alias=("a", "b"))),
    ("ALTER SHARE s ADD MATERIALIZED VIEW lake.t AS b", put(kind="VIEW", alias=("lake", "b"))),
    ("ALTER SHARE s ADD TABLE lake.t WITH HISTORY", put()),
    ("ALTER SHARE s ADD TABLE lake.t WITH HISTORY START VERSION 3", put(start_version=3)),
    ("ALTER SHARE s ADD TABLE lake.t WITHOUT HISTORY", put(history=False)),
    ("ALTER SHARE s ADD TABLE lake.t WITH CHANGE DATA FEED START VERSION 7", put(start_version=7)),
    (
        "ALTER SHARE s ADD TABLE lake.t PARTITION (day = '2024-01-01', region LIKE 'E%'), (n = -2, ok = TRUE)",
        put(rule="(day = '2024-01-01' AND region LIKE 'E%') OR (n = -2 AND ok = TRUE)"),
    ),
    (
        "ALTER SHARE s ADD TABLE lake.t PARTITION (region = CURRENT_RECIPIENT().sales.region)",
        put(rule="region = current_recipient('sales.region')"),
    ),
    (
        "ALTER SHARE s ADD TABLE lake.t PARTITION (`my day` = current_recipient('it''s')) AS a.b",
        put(rule="`my day` = current_recipient('it''s')", alias=("a", "b")),
    ),
    (
        "ALTER SHARE s ADD TABLE lake.t WHERE ( a='x'  or(b in(1,2) and  not c is null) )",
        put(rule="a = 'x' OR (b IN (1, 2) AND NOT c IS NULL)"),
    ),
    (
        """ALTER SHARE s ADD TABLE lake.t WHERE (a == - 1 OR `b` <> "it's" /* ? */ AND c = current_recipient ('k'))""",
        put(rule="a == -1 OR `b` <> 'it''s' AND c = current_recipient('k')"),
    ),
    ("ALTER SHARE s ADD TABLE lake.t COLUMNS (a, `b c`)", put(columns=("a", "b c"))),
    ("ALTER SHARE s ADD SCHEMA lake", said.PutSchema("s", "ADD", ("lake",))),
    ("ALTER SHARE s ALTER SCHEMA lake COMMENT 'c'", said.PutSchema("s", "ALTER", ("lake",), "c")),
    ("ALTER SHARE s REMOVE TABLE lake.t", said.RemoveObject("s", ("lake", "t"))),
    ("ALTER SHARE s REMOVE MATERIALIZED VIEW lake.t", said.RemoveObject("s", ("lake", "t"))),
    ("ALTER SHARE s REMOVE SCHEMA lake", said.RemoveSchema("s", ("lake",))),
    ("ALTER SHARE s SET PUBLICATION 4", said.PinPublication("s", 4)),
    ("ALTER SHARE s SET PUBLICATION 4 FOR TABLE lake.t", said.PinPublication("s", 4, ("lake", "t"))),
    ("ALTER SHARE s UNSET PUBLICATION FOR lake.t", said.PinPublication("s", None, ("lake", "t"))),
    ("CREATE RECIPIENT bob", said.CreateRecipient("bob")),
    ("CREATE RECIPIENT bob USING ID 'aws:x:y'", said.CreateRecipient("bob", metastore_id="aws:x:y")),
    (
        "CREATE RECIPIENT IF NOT EXISTS bob COMMENT 'c' PROPERTIES (region = 'EU', 'a.b' 'x', c.d = 'y') "
        "IP ALLOW ('10.0.0.0/8', '192.0.2.7') AGREEMENT 'terms' UNTIL '2027-01-01'",
        said.CreateRecipient(
            "bob",
            True,
            {
                "comment": "c",
                "properties": {"region": "EU", "a.b": "x", "c.d": "y"},
                "ip_allow": ("10.0.0.0/8", "192.0.2.7"),
                "agreement": "terms",
                "expires_at": NEW_YEAR,
            },
        ),
    ),
    (
        "CREATE RECIPIENT bob USING OIDC (issuer 'https://i', subject = 's', audience 'a', audience 'b')",
        said.CreateRecipient(
            "bob", fields={"authentication": "OIDC_FEDERATION"}, policy=a_policy(audiences=("a", "b"))
        ),
    ),
    (
        "CREATE RECIPIENT bob USING CLIENT CREDENTIALS SET PROPERTIES (a = 'b')",
        said.CreateRecipient(
            "bob", fields={"authentication": "OAUTH_CLIENT_CREDENTIALS", "properties": {"a": "b"}}
        ),
    ),
    ("ALTER RECIPIENT bob RENAME TO rob", said.Alter("RECIPIENT", "bob", {"new_name": "rob"})),
    ("ALTER RECIPIENT bob SET OWNER TO 'ann'", said.Alter("RECIPIENT", "bob", {"owner": "ann"})),
    ("ALTER RECIPIENT bob COMMENT 'c'", said.Alter("RECIPIENT", "bob", {"comment": "c"})),
    ("COMMENT ON RECIPIENT bob IS NULL", said.Alter("RECIPIENT", "bob", {"comment": None})),
    ("ALTER RECIPIENT bob SET PROPERTIES (a = 'b')", said.SetEntries("properties", "bob", {"a": "b"})),
    ("ALTER RECIPIENT bob UNSET PROPERTIES (a, b.c)", said.UnsetEntries("properties", "bob", ("a", "b.c"))),
    (
        "ALTER RECIPIENT bob SET IP ALLOW ('10.0.0.0/8')",
        said.Alter("RECIPIENT", "bob", {"ip_allow": ("10.0.0.0/8",)}),
    ),
    ("ALTER RECIPIENT bob UNSET IP ALLOW", said.Alter("RECIPIENT", "bob", {"ip_allow": None})),
    ("ALTER RECIPIENT bob SET AGREEMENT 'x'", said.Alter("RECIPIENT", "bob", {"agreement": "x"})),
    ("ALTER RECIPIENT bob UNSET AGREEMENT", said.Alter("RECIPIENT", "bob", {"agreement": None})),
    ("ALTER RECIPIENT bob SET UNTIL '2027-01-01'", said.Alter("RECIPIENT", "bob", {"expires_at": NEW_YEAR})),
    ("ALTER RECIPIENT bob UNSET UNTIL", said.Alter("RECIPIENT", "bob", {"expires_at": None})),
    ("ALTER RECIPIENT bob ROTATE TOKEN", said.RotateToken("bob")),
    (
        "ALTER RECIPIENT bob ROTATE TOKEN KEEP OLD FOR '1 day 12 hours' UNTIL '2027-01-01'",
        said.RotateToken("bob", timedelta(hours=36), NEW_YEAR),
    ),
    ("ALTER RECIPIENT bob REVOKE TOKEN 'id'", said.RevokeToken("bob", "id")),
    ("REVOKE TOKEN 'id' FROM RECIPIENT bob", said.RevokeToken("bob", "id")),
    ("REVOKE TOKEN FROM RECIPIENT bob", said.RevokeToken("bob")),
    ("ALTER RECIPIENT bob INVITE FOR '7 days'", said.Invite("bob", timedelta(days=7))),
    (
        "ALTER RECIPIENT bob ADD OIDC (name 'n', issuer 'https://i', subject 's', subject_claim 'oid')",
        said.PutPolicy("bob", a_policy(subject_claim="oid", name="n")),
    ),
    ("ALTER RECIPIENT bob DROP OIDC n", said.DropPolicy("bob", "n")),
    ("REVOKE RECIPIENT bob", said.RevokeRecipient("bob")),
    ("DROP RECIPIENT IF EXISTS bob", said.Drop("RECIPIENT", "bob", True)),
    ("CREATE GROUP IF NOT EXISTS europe COMMENT 'c'", said.Create("GROUP", "europe", True, {"comment": "c"})),
    ("ALTER GROUP europe ADD RECIPIENT bob, rob", said.ChangeMembers("europe", "ADD", ("bob", "rob"))),
    ("ALTER GROUP europe REMOVE RECIPIENT bob", said.ChangeMembers("europe", "REMOVE", ("bob",))),
    ("ALTER GROUP europe RENAME TO eu", said.Alter("GROUP", "europe", {"new_name": "eu"})),
    ("ALTER GROUP europe SET COMMENT 'c'", said.Alter("GROUP", "europe", {"comment": "c"})),
    ("DROP GROUP europe", said.Drop("GROUP", "europe")),
    ("GRANT SELECT ON SHARE s TO RECIPIENT bob", said.Grant("s", BOB)),
    (
        "GRANT SELECT ON SHARE s TO GROUP europe FROM '2027-01-01' UNTIL '2028-02-03 04:05+01:00' WHERE (a = 1)",
        said.Grant(
            "s",
            EUROPE,
            {"starts_at": NEW_YEAR, "ends_at": datetime(2028, 2, 3, 3, 5, tzinfo=UTC), "rule": "a = 1"},
        ),
    ),
    ("REVOKE SELECT ON SHARE s FROM RECIPIENT bob", said.Revoke("s", BOB)),
    ("PUBLISH TABLE lake.t FROM BRANCH `wap-x`", said.Publish(("lake", "t"), "wap-x")),
    ("SHOW SHARES", show.Show("SHARE")),
    ("SHOW SHARES LIKE 'a*'", show.Show("SHARE", "a*")),
    ("SHOW SHARES 'a*|b'", show.Show("SHARE", "a*|b")),
    ("SHOW SHARES IN PROVIDER p", show.ShowSharesInProvider("p")),
    ("SHOW ALL IN SHARE s", show.ShowAllInShare("s")),
    ("SHOW RECIPIENTS LIKE 'b*'", show.Show("RECIPIENT", "b*")),
    ("FOLLOW 's3://lake/sales/*'", said.Follow("s3://lake/sales/*")),
    (
        "FOLLOW '/lake/orders' AS sales.orders IN SHARE partners WITH HISTORY START VERSION 3",
        said.Follow("/lake/orders", ("sales", "orders"), "partners", True, 3),
    ),
    ("FOLLOW '/lake/orders' WITHOUT HISTORY", said.Follow("/lake/orders", history=False)),
    ("UNFOLLOW sales.orders", said.Unfollow(("sales", "orders"))),
    ("SHOW FOLLOWED TABLES LIKE 'sales.*'", show.ShowFollowedTables("sales.*")),
    ("SHOW GROUPS", show.Show("GROUP")),
    ("SHOW GRANT ON SHARE s", show.ShowGrantsOnShare("s")),
    ("SHOW GRANTS ON SHARE s", show.ShowGrantsOnShare("s")),
    ("SHOW GRANTS TO RECIPIENT bob", show.ShowGrantsTo(BOB)),
    ("SHOW GRANTS TO GROUP europe", show.ShowGrantsTo(EUROPE)),
    ("SHOW USAGE FOR RECIPIENT bob", show.ShowUsage("bob")),
    ("SHOW USAGE FOR RECIPIENT bob SINCE '2027-01-01'", show.ShowUsage("bob", NEW_YEAR)),
    ("DESC SHARE s", show.Describe("SHARE", "s")),
    ("DESCRIBE RECIPIENT bob", show.Describe("RECIPIENT", "bob")),
    ("DESCRIBE GROUP europe", show.Describe("GROUP", "europe")),
    ("SELECT * FROM information_schema.shares LIMIT 5", show.SelectAll(("information_schema", "shares"), 5)),
    ("SET RECIPIENT bob", said.SetRecipient("bob")),
    ("RESET RECIPIENT", said.SetRecipient(None)),
]


@pytest.mark.parametrize(("text", "statement"), STATEMENTS, ids=[text for text, _ in STATEMENTS])
def test_a_statement_is_read_as_what_it_says(text, statement):
    [placed] = parse(text)
    assert placed.statement == statement


def test_the_retired_spelling_without_a_start_begins_with_what_is_published_from_now_on():
    [placed] = parse("ALTER SHARE s ADD TABLE lake.t WITH CHANGE DATA FEED")
    assert placed.statement.fields["history"]
    assert isinstance(placed.statement.fields["start_version"], said.Now)


@pytest.mark.parametrize(
    "word", ["share", "table", "comment", "select", "recipient", "until", "like", "größe"]
)
def test_a_keyword_is_a_name_where_a_name_stands(word):
    [placed] = parse(f"ALTER SHARE {word} ADD TABLE lake.{word} AS {word}.{word}")
    assert placed.statement == put(word, path=("lake", word), alias=(word, word))


def test_a_script_has_many_statements_and_tells_where_each_is():
    text = "-- first\nCREATE SHARE a;;\n/* ; */ DROP SHARE b ;\n"
    first, second = parse(text)
    assert text[first.start : first.end] == "CREATE SHARE a"
    assert text[second.start : second.end] == "DROP SHARE b"
    assert parse(" ; -- nothing") == ()


def test_the_caret_stands_below_the_word_that_is_wrong():
    with pytest.raises(SqlError) as refused:
        parse("CREATE SHARE s;\n\tDROP TABLE x;", "changes.sql")
    first, shown, caret = str(refused.value).split("\n")
    assert first.startswith("changes.sql:2:7: TABLE was not expected here")
    assert shown[caret.index("^") :][: caret.count("^")] == "TABLE"


def test_of_a_long_line_the_part_around_the_mistake_is_shown():
    with pytest.raises(SqlError) as refused:
        parse(f"{'SHOW SHARES; ' * 500}DROP TABLE x; {'SHOW SHARES; ' * 500}")
    _, shown, caret = str(refused.value).split("\n")
    assert len(shown) < 120
    assert shown[caret.index("^") :][:5] == "TABLE"


@pytest.mark.parametrize(
    ("text", "unfinished"),
    [
        ("CREATE SHARE", True),
        ("CREATE SHARE s COMMENT 'x;", True),
        ("CREATE SHARE s /* ;", True),
        ("ALTER SHARE s ADD TABLE a.b WHERE (", True),
        ("CREATE SHARE s;", False),
        ("CREATE SHAR", False),
        ("", False),
    ],
)
def test_a_text_that_only_ends_too_early_is_told_from_a_wrong_one(text, unfinished):
    assert is_unfinished(text) is unfinished


@given(st.text())
def test_any_text_comes_back_out_of_its_quotes(text):
    [placed] = parse(f"CREATE SHARE s COMMENT {quoted_text(text)}")
    assert placed.statement.fields == {"comment": text}


@given(st.text(min_size=1).filter(str.strip))
def test_any_name_comes_back_out_of_its_quotes(name):
    [placed] = parse(f"DROP SHARE {quoted_name(name)}")
    assert placed.statement.name == name


def test_names_that_are_keywords_come_back_out_of_their_quotes():
    for word in [terminal.name for terminal in get_parser().terminals if terminal.name.isalpha()]:
        name = quoted_name(word)
        [placed] = parse(f"ALTER SHARE {name} ADD {name}.t PARTITION ({name} = 1) AS a.{name}")
        assert placed.statement.path == (word, "t")
