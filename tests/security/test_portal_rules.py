"""What a rule, an end or somebody else's grant keeps from a recipient, the portal does not show, count or name."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from lakeshare_server.catalog.credentials import issue_token
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import create_recipient, editing
from tests.builders import plain_http
from tests.builders.grants import alter_shared, grant_to
from tests.builders.offered_lake import OfferedLake, an_offered_lake

DAY = "2013-01-03"
ASKED = ("about", "versions", "preview", "code")
Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfferedLake]:
    with an_offered_lake(tmp_path_factory.mktemp("rules")) as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(verify=False, timeout=30) as made:
        yield made


@pytest.fixture
def reader(lake: OfferedLake, client: httpx.Client, request: pytest.FixtureRequest) -> Callable[..., Ask]:
    """Makes recipients, each of which asks the portal of its own."""

    def made(name: str, **grants: dict[str, Any]) -> Ask:
        with editing(lake.provider.catalog, "steward") as edit:
            create_recipient(edit, name)
            headers = {"Authorization": f"Bearer {issue_token(edit, name).secret}"}
        for share, terms in grants.items():
            grant_to(lake.provider, name, share, **terms)

        def ask(table: str, what: str, **asked: Any) -> httpx.Response:
            share, schema, name = table.split(".")
            path = f"{lake.root}/portal/api/shares/{share}/schemas/{schema}/tables/{name}/{what}"
            return client.get(path, headers=headers, params=asked)

        return ask

    return made


@pytest.mark.parametrize("table", ["flights.lake.flights", "trade.lake.cargo"])
def test_a_rule_leaves_its_rows_and_their_numbers(reader: Callable[..., Ask], table: str) -> None:
    name = table.replace(".", "-")
    everything: dict[str, Any] = {"flights": {}, "trade": {}}
    ruled = {share: {"rule": f"day = '{DAY}'"} for share in everything}
    whole, part = reader(f"whole-{name}", **everything), reader(f"part-{name}", **ruled)
    rows = whole(table, "preview", limit=500).json()["rows"]
    expected = sorted((row for row in rows if row[0] == DAY), key=str)
    shown = part(table, "preview", limit=500).json()
    assert sorted(shown["rows"], key=str) == expected != []
    about = part(table, "about").json()
    assert (about["rows"], about["restricted"]) == (len(expected), True)
    assert 0 < about["files"] < whole(table, "about").json()["files"]
    versions = part(table, "versions").json()["versions"]
    assert sum(one["changes"]["rows"] for one in versions) == len(expected)
    others = {row[0] for row in rows} - {DAY}
    # Rows have times of other days in another column.
    answers = [part(table, what).text for what in ASKED if what != "preview"]
    assert not [day for day in others for answer in answers if day in answer]


def test_a_rule_that_nothing_fits_shows_an_empty_table(reader: Callable[..., Ask]) -> None:
    ask = reader("none", flights={"rule": "day = '1999-01-01'"})
    shown = ask("flights.lake.flights", "preview").json()
    assert (shown["rows"], shown["hasMore"]) == ([], False)
    assert ask("flights.lake.flights", "about").json()["rows"] == 0
    changes = [one["changes"] for one in ask("flights.lake.flights", "versions").json()["versions"]]
    assert changes == [{"filesAdded": 0, "filesRemoved": 0, "rows": 0}] * len(changes)


def test_a_pinned_publication_is_the_newest_there_is(lake: OfferedLake, reader: Callable[..., Ask]) -> None:
    ask = reader("pinned", flights={})
    alter_shared(lake.provider, "flights.lake.flights", publication=1)
    try:
        told = [one["version"] for one in ask("flights.lake.flights", "versions").json()["versions"]]
        shown = ask("flights.lake.flights", "preview").json()["version"]
        later = ask("flights.lake.flights", "preview", version=2).status_code
    finally:
        alter_shared(lake.provider, "flights.lake.flights", publication=None)
    assert (told, shown, later) == ([1, 0], 1, 400)


def test_versions_before_the_first_one_shared_are_not_there(
    lake: OfferedLake, reader: Callable[..., Ask]
) -> None:
    ask = reader("started", flights={})
    alter_shared(lake.provider, "flights.lake.flights", start_version=1)
    try:
        page = ask("flights.lake.flights", "versions").json()
        earlier = ask("flights.lake.flights", "versions", before=1).json()["versions"]
        refused = ask("flights.lake.flights", "preview", version=0).status_code
    finally:
        alter_shared(lake.provider, "flights.lake.flights", start_version=None)
    assert ([one["version"] for one in page["versions"]], earlier, refused) == ([2, 1], [], 400)


@pytest.mark.parametrize("what", ASKED)
def test_what_is_not_granted_now_is_like_what_is_not_there(reader: Callable[..., Ask], what: str) -> None:
    now = datetime.now(UTC)
    ended = reader(f"ended-{what}", flights={"ends_at": now - timedelta(seconds=1)})
    to_begin = reader(f"to-begin-{what}", flights={"starts_at": now + timedelta(hours=1)})
    nothing = reader(f"nothing-{what}")
    answers = [ask("flights.lake.flights", what) for ask in (ended, to_begin, nothing)]
    answers.append(nothing("flights.lake.unknown", what))
    assert [answer.status_code for answer in answers] == [404] * 4
    assert len({answer.text.replace("unknown", "flights") for answer in answers}) == 1


def test_looks_are_in_the_audit_log_with_what_was_shown(tmp_path_factory: pytest.TempPathFactory) -> None:
    with an_offered_lake(tmp_path_factory.mktemp("audited")) as lake:
        with editing(lake.provider.catalog, "steward") as edit:
            create_recipient(edit, "audited")
            headers = {"Authorization": f"Bearer {issue_token(edit, 'audited').secret}"}
        grant_to(lake.provider, "audited", "flights")
        path = f"{lake.root}/portal/api/shares/flights/schemas/lake/tables/flights/preview"
        assert plain_http.get(path, headers=headers, params={"limit": 30}).is_success
        assert plain_http.get(path.replace("flights", "trade"), headers=headers).status_code == 404
        catalog = lake.provider.catalog
    with catalog.reading() as session:
        rows = session.scalars(select(AuditRow).where(AuditRow.action == "portal_preview"))
        told = [
            (row.recipient, row.object_name, row.status, row.version, row.files is not None) for row in rows
        ]
    assert told == [
        ("audited", "flights.lake.flights", 200, 2, True),
        ("audited", "trade.lake.trade", 404, None, False),
    ]
