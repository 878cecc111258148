"""The console's audit pages: search, events with what they changed, export, and verification."""

import csv
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from lakeshare_server.catalog import AuditEvent, Catalog, append_events, audit
from lakeshare_server.catalog.audit import Search
from lakeshare_server.catalog.audit.verifications import Verifications, list_verifications
from lakeshare_server.catalog.sharing import alter_share, create_share, editing
from tests.builders.administration import Administered, an_administered_server
from tests.builders.console import Browser, browser
from tests.builders.database_schema import open_migrated

HOSTILE = "<img src=x onerror=alert(1)>"
NOW = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
READ = AuditEvent(
    at=NOW,
    action="query_table",
    request_id="read",
    recipient="anna",
    object_name="north.lake.flights",
    version=3,
)


def record(catalog: Catalog, *events: AuditEvent) -> None:
    with catalog.writing(seen=False) as session:
        append_events(session, events)


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("audit")) as running:
        catalog = running.provider.catalog
        with editing(catalog, "paula") as edit:
            create_share(edit, "north", comment="old")
        with editing(catalog, "paula") as edit:
            alter_share(edit, "north", comment=HOSTILE)
        refused = replace(READ, recipient="ben", status=403, error_code="PERMISSION_DENIED", ip="192.0.2.7")
        record(catalog, READ, refused, replace(READ, request_id="=cmd()", user_agent="=1+1"))
        yield running


@pytest.fixture(scope="module")
def console(administered: Administered) -> Browser:
    return browser(administered, "auditor")


def list_numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r'<a href="/console/audit/(\d+)">', page)]


def test_events_are_found_by_each_filter(administered: Administered, console: Browser) -> None:
    catalog = administered.provider.catalog
    filters = {
        "recipient=ben": Search(recipient="ben"),
        "principal=paula": Search(principal="paula"),
        "action=alter_share": Search(action="alter_share"),
        "object=north.lake": Search(object_name="north.lake"),
        "request=read": Search(request_id="read"),
        "ip=192.0.2.7": Search(ip="192.0.2.7"),
        "kind=change&principal=paula": Search(kind="change", principal="paula"),
        "refused=yes&recipient=ben": Search(refused=True, recipient="ben"),
        f"from={NOW:%Y-%m-%d}&recipient=anna": Search(recipient="anna"),
    }
    for query, search in filters.items():
        expected = [event.number for event in audit.search(catalog, search, 100)][::-1]
        assert expected
        assert list_numbers(console.page(f"/console/audit?{query}")) == expected, query
    for query in ("until=2000-01-01", "from=2100-01-01", "recipient=none"):
        assert "No event matches" in console.page(f"/console/audit?{query}")
    assert "like 2027-01-31" in console.page("/console/audit?from=soon", 400)
    assert "like 2027-01-31" in console.page("/console/audit?until=0001-01-01T00:00%2B14:00", 400)
    assert "It is one of" in console.page("/console/audit?kind=other", 400)
    assert "Not a numeric value" in console.page(f"/console/audit?before={10**19}", 400)
    for odd in ("%00", "%ED%A0%80", "%25_", "'", "x" * 5000):
        assert "No event matches" in console.page(f"/console/audit?object={odd}")


def test_a_search_that_takes_too_long_goes_on_where_it_ended(
    administered: Administered, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = administered.provider.catalog
    monkeypatch.setattr("lakeshare_server.catalog.audit.log.FIRST_WINDOW", 2)
    monkeypatch.setattr("lakeshare_server.catalog.audit.log.LAST_WINDOW", 2)
    search, found, pages = Search(request_id="read"), [], 0
    while True:
        page = audit.find_events(catalog, search, 10, 0.0)
        found += [event.number for event in page.events]
        pages += 1
        if page.next is None:
            break
        search = replace(search, before=page.next)
    assert pages > 2
    assert found == [event.number for event in audit.search(catalog, Search(request_id="read"), 100)][::-1]


def test_a_change_is_shown_with_the_fields_before_and_after(
    administered: Administered, console: Browser
) -> None:
    [event] = audit.search(administered.provider.catalog, Search(action="alter_share"), 1)
    raw = console.client.get(f"/console/audit/{event.number}").text
    assert HOSTILE not in raw
    assert '<span class="removed">old</span>' in raw
    assert '<span class="added">&lt;img' in raw
    assert console.page("/console/audit/999999999", 404)
    assert console.page("/console/audit/x", 404)


def test_the_events_of_a_search_are_exported(administered: Administered, console: Browser) -> None:
    lines = console.client.get("/console/audit/export?recipient=anna").text.splitlines()
    expected = audit.search(administered.provider.catalog, Search(recipient="anna"), 100)
    assert [json.loads(line) for line in lines] == [event.as_json() for event in expected]
    response = console.client.get("/console/audit/export?recipient=anna&as=csv")
    assert "attachment" in response.headers["content-disposition"]
    rows = list(csv.DictReader(response.text.splitlines()))
    assert [int(row["number"]) for row in rows] == [event.number for event in expected]
    assert rows[-1]["user_agent"] == "'=1+1"
    assert console.page("/console/audit/export?as=xls", 400)


def wait_for(console: Browser, path: str, *texts: str) -> str:
    ends_at = time.monotonic() + 20
    while True:
        page = console.page(path)
        found = next((text for text in texts if text in page), None)
        if found is not None:
            return page
        assert time.monotonic() < ends_at, page
        time.sleep(0.05)


def test_a_verification_runs_in_the_background_and_its_result_is_shown(
    administered: Administered, console: Browser
) -> None:
    assert "It was not verified here yet" in console.page("/console/audit")
    console.send("/console/audit", "/console/audit/verify", {})
    page = wait_for(console, "/console/audit", "none removed, changed or moved")
    assert "started by auditor" in page
    with administered.provider.catalog.engine.begin() as connection:
        # The chain is damaged for the next result, and is whole again after it.
        connection.execute(text("UPDATE audit_log SET action = 'other' WHERE request_id = '=cmd()'"))
    console.send("/console/audit", "/console/audit/verify", {})
    page = wait_for(console, "/console/audit", "1 findings")
    assert "is not what it was when it was appended" in page
    with administered.provider.catalog.engine.begin() as connection:
        connection.execute(text("UPDATE audit_log SET action = 'query_table' WHERE request_id = '=cmd()'"))


def test_one_verification_runs_at_a_time_and_a_lost_one_is_no_hindrance(
    administered: Administered, console: Browser
) -> None:
    begin = text("UPDATE audit_verifications SET finished_at = NULL, heartbeat_at = :at")
    with administered.provider.catalog.engine.begin() as connection:
        connection.execute(begin, {"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}"})
    refused = console.send("/console/audit", "/console/audit/verify", {}, 409)
    assert "is running" in refused.text
    with administered.provider.catalog.engine.begin() as connection:
        connection.execute(begin, {"at": "2020-01-01 00:00:00.000000"})
    assert "Its server ended before it" in console.page("/console/audit")
    console.send("/console/audit", "/console/audit/verify", {})
    wait_for(console, "/console/audit", "none removed, changed or moved")


def test_a_verification_of_a_server_that_stops_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = open_migrated(f"sqlite:///{tmp_path / 'log.db'}")
    record(catalog, *[READ] * 3)
    monkeypatch.setattr("lakeshare_server.catalog.audit.maintenance.BATCH", 1)
    monkeypatch.setattr("lakeshare_server.catalog.audit.verifications.PAUSE_S", 20.0)
    verifications = Verifications(catalog)
    verifications.start("paula")
    verifications.stop()
    with catalog.reading() as session:
        [run] = list_verifications(session, 5)
    assert (run.problem, run.is_running, run.is_sound) == ("The server was stopped.", False, False)
    catalog.close()
