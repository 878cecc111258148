"""A session does a script's statements in order or all at once, says what took effect, and looks as whom it is told."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from lakeshare_server.catalog import Catalog, FollowedTables, Listings, states
from lakeshare_server.catalog.audit import AuditEvent, append_events
from lakeshare_server.catalog.credentials import find_link, redeem_link
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.errors import CatalogConflict, Denied
from lakeshare_server.provider.following import Provider
from lakeshare_server.sql.grammar import SqlError, StatementRefused
from lakeshare_server.sql.session import SqlSession
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.recipients import Recipients
from tests.builders.sql_sessions import ROOT, a_lake, a_session, answer, empty, rows

SALES = """CREATE SHARE sales COMMENT 'Sold';
ALTER SHARE sales ADD TABLE lake.orders COMMENT 'Orders' WHERE (region = 'EU');"""
BOB = "CREATE RECIPIENT bob;"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    opened = a_lake(tmp_path_factory.mktemp("lake"))
    yield opened
    opened.catalog.close()


@pytest.fixture
def catalog(lake: Provider) -> Catalog:
    empty(lake.catalog)
    return lake.catalog


@pytest.fixture
def session(lake: Provider, catalog: Catalog) -> SqlSession:
    return a_session(lake)


def refused(session: SqlSession, script: str, **options: object) -> StatementRefused:
    with pytest.raises(StatementRefused) as error:
        list(session.run(script, "s.sql", **options))
    return error.value


def names(session: SqlSession) -> list[str]:
    return [name for (name,) in rows(session, "SHOW SHARES", "name")]


# --- scripts


def test_statements_before_a_refused_one_take_effect_and_the_message_says_so(session):
    error = refused(session, "CREATE SHARE a;\nCREATE SHARE b;\n  DROP SHARE nix;\nCREATE SHARE c")
    assert (error.place.line, error.place.column, error.took, error.total) == (3, 14, 2, 4)
    assert str(error).startswith("s.sql:3:14: Share nix does not exist.")
    assert error.effect == "The first 2 statements of 4 took effect; this one and what follows did not."
    assert names(session) == ["a", "b"]


def test_in_a_single_transaction_nothing_takes_effect_when_one_is_refused(session):
    error = refused(session, "CREATE SHARE a; CREATE SHARE a", single_transaction=True)
    assert error.effect == "Nothing of it took effect."
    assert isinstance(error.cause, CatalogConflict)
    assert names(session) == []


def test_a_single_transaction_sees_what_it_has_done_and_writes_it_at_once(session, catalog):
    script = f"{SALES} {BOB} GRANT SELECT ON SHARE sales TO RECIPIENT bob; SHOW GRANTS ON SHARE sales"
    before = catalog.generation()
    assert [row[0] for row in answer(session, script, single_transaction=True).rows] == ["bob"]
    assert catalog.generation() == before + 1


def test_a_script_that_is_not_sql_does_nothing_however_well_it_begins(session):
    with pytest.raises(SqlError):
        list(session.run("CREATE SHARE a; CREATE SHAR b"))
    assert names(session) == []


def test_an_empty_script_does_nothing(session, catalog):
    before = catalog.generation()
    assert list(session.run(" -- nothing")) == []
    assert list(session.run("", single_transaction=True)) == []
    assert catalog.generation() == before


def test_every_change_is_told_to_the_audit_log_in_the_name_of_the_principal(lake, catalog):
    list(a_session(lake, "operator").run(f"{BOB} ALTER RECIPIENT bob ROTATE TOKEN"))
    with catalog.reading() as looking:
        own = select(AuditRow).where(AuditRow.principal == "operator").order_by(AuditRow.key)
        told = [row.action for row in looking.scalars(own)]
    assert told == ["create_recipient", "invite", "rotate_token"]


def test_usage_is_told_by_day_table_and_version(session, catalog):
    list(session.run(BOB))
    now = datetime.now(UTC)

    def asked(version: int, at: datetime = now, recipient: str = "bob", **fields: object) -> AuditEvent:
        event = {
            "action": "query_table",
            "object_name": "sales.lake.orders",
            "request_id": "r",
            "version": version,
        }
        return AuditEvent(at=at, recipient=recipient, **{**event, **fields})

    with catalog.writing(seen=False) as writing:
        append_events(writing, [
            asked(1, files=2, size_bytes=30),
            asked(1, files=1, size_bytes=10),
            asked(2, status=404, error_code="RESOURCE_DOES_NOT_EXIST"),
            asked(1, recipient="eve"),
            asked(0, now - timedelta(days=3), files=1, size_bytes=5),
        ])  # fmt: skip
    today = now.date().isoformat()
    shown = rows(
        session, "SHOW USAGE FOR RECIPIENT BOB", "day", "table", "version", "queries", "files", "size_bytes"
    )
    assert shown[0] == (today, "sales.lake.orders", 1, 2, 3, 40)
    assert {day for day, *_ in shown} == {today}
    before = (now - timedelta(days=5)).date().isoformat()
    since = rows(session, f"SHOW USAGE FOR RECIPIENT bob SINCE '{before}'", "version", "requests", "refused")
    assert since[0] == (0, 1, 0)
    assert (2, 0, 1) in since


# --- secrets


def test_the_link_of_a_new_recipient_opens_and_the_token_of_a_rotation_is_valid(session, catalog):
    [(name, link, ends)] = answer(session, "CREATE RECIPIENT bob UNTIL '2099-01-01'").rows
    code = link.removeprefix(f"{ROOT}/activate/")
    assert find_link(catalog, code)[1].name == name == "bob"
    assert timedelta(hours=71) < ends - datetime.now(UTC) < timedelta(hours=73)
    with editing(catalog, "bob") as edit:
        given = redeem_link(edit, code, from_address="192.0.2.7")[1]
    assert given.state.expires_at == datetime(2099, 1, 1, tzinfo=UTC)
    [(_, _, token, _, endpoint)] = answer(
        session, "ALTER RECIPIENT bob ROTATE TOKEN KEEP OLD FOR '1 hour'"
    ).rows
    assert endpoint == f"{ROOT}/delta-sharing"
    for valid in (token, given.secret):
        assert Recipients(catalog).by_token(valid).name == "bob"
    facts = dict(rows(session, "DESCRIBE RECIPIENT bob"))
    assert facts["activation_link"].startswith("used ")
    assert facts["rotated_token_id"] == given.state.id


def test_no_secret_is_told_twice(session, catalog):
    [(_, link, _)] = answer(session, BOB).rows
    [(_, _, token, _, _)] = answer(session, "ALTER RECIPIENT bob ROTATE TOKEN").rows
    everything = [
        rows(session, f"SELECT * FROM information_schema.{view}")
        for view in (
            "recipients",
            "recipient_tokens",
            "shares",
            "share_recipient_privileges",
            "table_share_usage",
        )
    ]
    everything += [rows(session, "DESCRIBE RECIPIENT bob"), rows(session, "SHOW RECIPIENTS")]
    with catalog.reading() as looking:
        everything += [row.details for row in looking.scalars(select(AuditRow))]
    told = repr(everything)
    assert token not in told
    assert link.rpartition("/")[2] not in told


def test_a_policy_without_an_audience_is_for_this_server(session, catalog):
    list(session.run("CREATE RECIPIENT eve USING OIDC (issuer 'https://issuer.example', subject 'eve')"))
    with catalog.reading() as looking:
        [policy] = states.get_recipient(looking, "eve").policies
    assert policy.audiences == (f"{ROOT}/delta-sharing",)


# --- as a recipient


def test_a_session_that_sees_as_a_recipient_shows_what_its_listings_show(session, catalog):
    list(session.run(f"{SALES} CREATE SHARE other; {BOB} GRANT SELECT ON SHARE sales TO RECIPIENT bob"))
    assert "what bob sees" in answer(session, "SET RECIPIENT BOB").message
    assert rows(session, "SHOW SHARES") == [("sales", None, None, "Sold")]
    [shown] = rows(
        session, "SHOW ALL IN SHARE sales", "name", "comment", "shared_object", "partitions", "added_by"
    )
    assert shown == ("lake.orders", "Orders", None, None, None)
    assert rows(session, "DESCRIBE SHARE SALES", "name", "owner") == [("sales", None)]
    assert rows(session, "SHOW GRANTS TO RECIPIENT bob", "share", "privilege") == [("sales", "SELECT")]
    assert rows(session, "SELECT * FROM information_schema.shares", "share_name") == [("sales",)]
    usage = rows(
        session, "SELECT * FROM information_schema.table_share_usage", "shared_as_table", "table_name"
    )
    assert usage == [("orders", None)]
    bob = Recipients(catalog).list()[0]
    assert [share.name for share in Listings(catalog, bob.id).shares(0, 10)] == ["sales"]
    assert "the provider" in answer(session, "RESET RECIPIENT").message
    assert names(session) == ["other", "sales"]


def test_nobody_is_seen_as_within_a_transaction(session):
    error = refused(session, f"{BOB} SET RECIPIENT bob", single_transaction=True)
    assert "outside of the transaction" in str(error)
    list(session.run(f"{BOB} SET RECIPIENT bob"))
    assert isinstance(refused(session, "SHOW SHARES", single_transaction=True).cause, Denied)


def test_a_table_that_is_shared_twice_is_named_by_its_alias(session):
    list(
        session.run(
            "CREATE SHARE s; ALTER SHARE s ADD lake.orders AS a.a; ALTER SHARE s ADD lake.orders AS b.b"
        )
    )
    assert "a.a, b.b" in str(refused(session, "ALTER SHARE s REMOVE TABLE lake.orders"))
    list(session.run("ALTER SHARE s REMOVE TABLE b.b"))
    assert rows(session, "SHOW ALL IN SHARE s", "name") == [("a.a",)]


def test_of_a_transaction_the_statement_with_the_rule_is_told_that_partitions_do_not_decide(session):
    script = f"""{SALES}{BOB}
        ALTER SHARE sales ADD TABLE lake.parts WHERE (region = 'EU');
        GRANT SELECT ON SHARE sales TO RECIPIENT bob;"""
    error = refused(session, script, single_transaction=True)
    assert (error.place.line, error.took) == (3, 0)
    assert names(session) == []


def test_a_rule_on_a_followed_table_is_decided_by_what_is_found_of_it_now(lake, session, tmp_path):
    location = a_delta_table(tmp_path / "followed")
    FollowedTables(lake.catalog).add("sea.weather", str(location), 0.0)
    list(
        session.run(
            f"{BOB} CREATE SHARE sales; ALTER SHARE sales ADD TABLE sea.weather WHERE (day IS NOT NULL)"
        )
    )
    append_delta(location, some_rows())
    grant = "GRANT SELECT ON SHARE sales TO RECIPIENT bob WHERE"
    list(session.run(f"{grant} (day = '2013-01-01')"))
    error = refused(session, f"{grant} (carrier = 'UA')", single_transaction=True)
    assert "carrier" in str(error)
    FollowedTables(lake.catalog).remove("sea.weather")
