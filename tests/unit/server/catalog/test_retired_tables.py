"""Tables that contracts retire stay shared until their last day, with a notice that recipients see; then they go."""

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import delta_sharing
import pytest
from sqlalchemy import select

from lakeshare_server.catalog import (
    DeclaredShare,
    RetiredTable,
    ShareDiff,
    SharedTable,
    apply_shares,
    share_table,
)
from lakeshare_server.catalog.declared import export
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import alter_share, editing
from lakeshare_server.catalog.states import list_objects
from lakeshare_server.errors import BadRequest
from lakeshare_server.provider import following
from tests.builders.lake_tables import a_delta_table
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.sql_sessions import a_session, rows

END = date(2030, 1, 31)
RETIRED = RetiredTable("lake.flights", END, "lake.flights_v2")
OLD = SharedTable("lake", "flights", "lake.flights")
NEW = SharedTable("lake", "flights_v2", "lake.flights_v2")


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    """Shares `lake.flights` by a contract, in `flights` alone and in `all` with its successor."""
    made = a_provider(tmp_path)
    for table in ("flights", "flights_v2"):
        made.publish_delta(f"lake.{table}", a_delta_table(tmp_path / table))
    apply_shares(made.catalog, [DeclaredShare("all", (OLD,)), DeclaredShare("flights", (OLD,))])
    yield made
    made.catalog.close()


def retire(provider: Provider, *tables: SharedTable, today: date = END, end: date = END) -> ShareDiff:
    """Applies contracts that share these tables in `all`, and retire the old one."""
    declared = [DeclaredShare("all", tables or (NEW,))]
    return apply_shares(
        provider.catalog, declared, [RetiredTable(RETIRED.table, end, RETIRED.successor)], today
    )


def notices(provider: Provider) -> dict[str, str | None]:
    with provider.catalog.reading() as session:
        return {table.path: table.notice for table in list_objects(session)}


def test_a_retired_table_stays_where_it_is_shared_until_the_end_of_its_day(provider: Provider) -> None:
    applied = retire(provider)

    assert (applied.added, applied.changed, applied.removed) == (
        ("all.lake.flights_v2",),
        ("all.lake.flights", "flights.lake.flights"),
        (),
    )
    text = "This table gets no new data and is shared until 2030-01-31 (end of the day, UTC)."
    assert notices(provider) == {
        "all.lake.flights": f"{text} Read all.lake.flights_v2 instead.",
        "all.lake.flights_v2": None,
        # The successor is not in this share, so it is not named there.
        "flights.lake.flights": text,
    }
    again = retire(provider)
    assert (again.changed, again.removed) == ((), ())
    later = retire(provider, end=END + timedelta(days=1))
    assert later.changed == ("all.lake.flights", "flights.lake.flights")

    ended = retire(provider, today=END + timedelta(days=1))

    assert ended.removed == ("all.lake.flights", "flights.lake.flights")
    assert list(notices(provider)) == ["all.lake.flights_v2"]
    with provider.catalog.reading() as session:
        events = session.execute(
            select(AuditRow.principal, AuditRow.object_name).where(AuditRow.action == "remove_table")
        )
        assert [tuple(event) for event in events] == [("contracts", name) for name in ended.removed]


def test_a_name_is_of_the_retired_table_until_its_day(provider: Provider) -> None:
    before = notices(provider)
    taken = SharedTable("lake", "flights", "lake.flights_v2")

    with pytest.raises(BadRequest, match="It stands for lake"):
        retire(provider, taken)

    assert notices(provider) == before
    retire(provider, taken, today=END + timedelta(days=1))
    assert notices(provider) == {"all.lake.flights": None}


def test_what_contracts_do_not_share_is_left_alone(provider: Provider) -> None:
    share_table(provider.catalog, "mine", SharedTable("lake", "old", "lake.flights"))
    retire(provider, today=END + timedelta(days=1))
    assert notices(provider) == {"all.lake.flights_v2": None, "mine.lake.old": None}


def test_a_table_that_is_published_again_has_no_notice(provider: Provider) -> None:
    retire(provider)
    apply_shares(provider.catalog, [DeclaredShare("all", (OLD, NEW))], (), END)
    assert notices(provider) == {"all.lake.flights": None, "all.lake.flights_v2": None}


def test_recipients_see_the_notice_in_the_portal_in_sql_and_in_properties(provider: Provider) -> None:
    retire(provider)
    token = provider.recipient(shares=("all",))
    text = notices(provider)["all.lake.flights"]
    with a_server(provider) as server, server.client(token) as client:
        portal = f"{client.base_url.copy_with(path='/portal/api')}/shares/all/schemas/lake/tables"
        for table, notice in (("flights", text), ("flights_v2", None)):
            about = client.get(f"{portal}/{table}/about")
            assert about.json()["notice"] == notice
            query = client.post(f"/shares/all/schemas/lake/tables/{table}/query", json={})
            assert ("lakeshare.notice" in query.text) == (notice is not None)
        url = f"{server.profile(token)}#all.lake.flights"
        read = [delta_sharing.load_as_pandas(url, use_delta_format=form) for form in (False, True)]
        assert len(read[0]) == len(read[1]) > 0
    session = a_session(following.Provider(provider.catalog, provider.settings))
    assert rows(session, "SHOW ALL IN SHARE all", "notice") == [(text,), (None,)]
    with provider.catalog.reading() as session:
        # Files cannot have what contracts decide.
        assert "retire_date" not in export(session)


def test_the_notice_of_a_share_is_on_each_of_its_tables_as_long_as_it_is_set(provider: Provider) -> None:
    retire(provider)
    token, end = provider.recipient(shares=("all",)), notices(provider)["all.lake.flights"]
    late = "The load of today is late."
    with a_server(provider) as server, server.client(token) as client:
        portal = f"{client.base_url.copy_with(path='/portal/api')}/shares/all/schemas/lake/tables"
        for notice, expected in ((late, [f"{late} {end}", late]), (None, [end, None])):
            with editing(provider.catalog, "tests") as edit:
                alter_share(edit, "all", notice=notice)
            for table, text in zip(("flights", "flights_v2"), expected, strict=True):
                assert client.get(f"{portal}/{table}/about").json()["notice"] == text
                query = client.post(f"/shares/all/schemas/lake/tables/{table}/query", json={})
                assert (f'"lakeshare.notice":"{text}"' in query.text) == (text is not None)
