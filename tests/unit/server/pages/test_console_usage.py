"""Usage in the console: counted in memory as the audit log counts it, charts by day, silent and spiking recipients."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from lakeshare_server.catalog import AuditEvent, Catalog, append_events, audit
from lakeshare_server.catalog.audit.maintenance import COUNTS
from lakeshare_server.catalog.models import RecipientRow
from lakeshare_server.catalog.sharing import create_group, create_recipient, editing
from lakeshare_server.provider.usage import KEPT_DAYS, CountedUsage, UsageSummary
from tests.builders.administration import an_administered_server
from tests.builders.console import Browser, browser
from tests.builders.database_schema import open_migrated


def record(catalog: Catalog, *events: AuditEvent) -> None:
    with catalog.writing(seen=False) as session:
        append_events(session, events)


def read_of(now: datetime, recipient: str, days_ago: int = 0, **different: object) -> AuditEvent:
    """A query of a recipient some days ago."""
    event = AuditEvent(
        at=now - timedelta(days=days_ago), action="query_table", request_id="read", recipient=recipient,
        object_name="flights.lake.flights", version=0,
    )  # fmt: skip
    return replace(event, **different)  # type: ignore[arg-type]  # fields of events


def some_events(now: datetime, draw: random.Random, count: int) -> list[AuditEvent]:
    return [
        read_of(
            now,
            draw.choice("abc"),
            draw.randrange(KEPT_DAYS + 5),
            action=draw.choice(("query_table", "table_version", "read_file")),
            object_name=draw.choice((None, "s.a.x", "S.a.X", "s.a.y")),
            status=draw.choice((200, 200, 403)),
            principal=draw.choice((None, None, None, "paula")),
            version=draw.choice((None, 0, 1)),
            files=draw.choice((None, 3)),
            size_bytes=draw.choice((None, 1000)),
        )
        for _ in range(count)
    ]


def require_same_counts(catalog: Catalog, counted: CountedUsage | None) -> None:
    """Compares with the counts of the audit log itself."""
    assert counted is not None
    usages = audit.read_usage(catalog, counted.since, counted.at.date())
    for recipient in "abc":
        own = [usage for usage in usages if usage.recipient == recipient]
        expected = {
            group["day"]: [group[name] for name in COUNTS] for group in audit.group_usage(own, ["day"])
        }
        found = {
            usage.day: [getattr(usage, name) for name in COUNTS]
            for usage in counted.by_day(recipient=recipient)
        }
        assert {day: counts for day, counts in found.items() if any(counts)} == {
            day: counts for day, counts in expected.items() if any(counts)
        }
        assert counted.last_days[recipient] == max(usage.day for usage in own if usage.requests)
    of_table = [usage for usage in usages if (usage.table or "").lower() == "s.a.x" and usage.queries]
    expected_reads = {
        (recipient, version): sum(
            u.queries for u in of_table if (u.recipient, u.version) == (recipient, version)
        )
        for recipient, version in {(usage.recipient, usage.version) for usage in of_table}
    }
    assert {(r.recipient, r.version): r.queries for r in counted.by_version(["s.a.x"], 100)} == expected_reads


def test_counts_are_those_of_the_audit_log_also_for_newer_and_pruned_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakeshare_server.provider.usage.EVENTS_AT_ONCE", 40)
    monkeypatch.setattr("lakeshare_server.provider.usage.REFRESH_EVERY_S", 0.0)
    monkeypatch.setattr("lakeshare_server.provider.usage.MAX_PARTS", 6)
    catalog, draw = open_migrated(f"sqlite:///{tmp_path / 'usage.db'}"), random.Random(3)
    now = datetime.now(UTC)
    summary = UsageSummary(catalog)
    empty = summary.read(30)
    assert empty is not None
    assert empty.rows.num_rows == 0
    for count in (150, 1, 90):
        record(catalog, *sorted(some_events(now, draw, count), key=lambda event: event.at))
        require_same_counts(catalog, summary.read(30))
    audit.prune(catalog, now - timedelta(days=60), "tests")
    # Counted before and after they were pruned: by the same summary and by a new one.
    require_same_counts(catalog, summary.read(30))
    require_same_counts(catalog, UsageSummary(catalog).read(30))
    record(catalog, *some_events(now, draw, 20))
    audit.prune(catalog, now - timedelta(days=1), "tests")
    require_same_counts(catalog, summary.read(30))
    catalog.close()


def test_a_database_that_fails_delays_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lakeshare_server.provider.usage.REFRESH_EVERY_S", 0.0)
    catalog = open_migrated(f"sqlite:///{tmp_path / 'usage.db'}")
    record(catalog, read_of(datetime.now(UTC), "a"))
    summary = UsageSummary(catalog)
    for failing, table in (("audit_log", "elsewhere"), ("elsewhere", "audit_log")):
        with catalog.engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {failing} RENAME TO {table}"))
        counted = summary.read(30)
        assert (counted is None) == (table == "elsewhere")
    assert "usage is not counted" in caplog.text
    assert counted is not None
    assert set(counted.last_days) == {"a"}
    summary.stop()
    catalog.close()


@dataclass(frozen=True)
class Used:
    """A browser, and the time of the newest requests."""

    console: Browser
    now: datetime
    catalog: Catalog


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    with an_administered_server(tmp_path_factory.mktemp("usage")) as running:
        provider = running.provider
        provider.share("lake.flights")
        now = datetime.now(UTC)
        for name in ("quiet", "newcomer", "steady", "sudden"):
            provider.recipient(name)
        with provider.catalog.writing() as session:
            for row in session.query(RecipientRow).where(RecipientRow.name != "newcomer"):
                row.created_at = now - timedelta(days=60)
        steady = [read_of(now, "steady", day) for day in range(10) for _ in range(100)]
        before = [read_of(now, "sudden", day) for day in range(1, 10) for _ in range(4)]
        sudden = [read_of(now, "sudden", version=2)] * 100
        record(provider.catalog, read_of(now, "quiet", 40), *steady, *before, *sudden)
        yield Used(browser(running), now, provider.catalog)


def list_recipients(page: str) -> set[str]:
    return set(re.findall(r'<th scope="row"><a href="/console/recipients/(\w+)">', page))


def open_counted(console: Browser, path: str) -> str:
    """A page after usage was counted."""
    page = console.page(path)
    while "being counted" in page:
        page = console.page(path)
    return page


def test_silent_and_spiking_recipients_are_listed(used: Used) -> None:
    console = used.console
    silent = open_counted(console, "/console/recipients?show=silent")
    assert list_recipients(silent) == {"quiet"}
    assert f"{used.now - timedelta(days=40):%Y-%m-%d}" in silent
    spiking = open_counted(console, "/console/recipients?show=spiking")
    assert list_recipients(spiking) == {"sudden"}
    assert '<td class="number">100</td><td class="number">4</td>' in spiking
    assert list_recipients(console.page("/console/recipients")) == {"quiet", "newcomer", "steady", "sudden"}
    assert "It is one of" in console.page("/console/recipients?show=other", 400)


def test_pages_of_recipients_and_tables_show_usage_by_day(used: Used) -> None:
    console = used.console
    for path, count in (("recipients/steady", 100), ("tables/lake.flights", 200)):
        page = open_counted(console, f"/console/{path}")
        assert f"<title>{used.now:%Y-%m-%d}: {count} requests, 0 refused</title>" in page
    assert "No requests in the last" in open_counted(console, "/console/recipients/newcomer")
    reads = open_counted(console, "/console/publications/lake.flights")
    assert re.search(r'sudden</a></th><td class="number">2</td><td class="number">100</td>', reads)


def test_a_large_group_is_shown_by_its_size_and_first_members(used: Used) -> None:
    names = [f"member{number}" for number in range(25)]
    with editing(used.catalog, "tests") as edit:
        for name in names:
            create_recipient(edit, name)
        create_group(edit, "many", members=names)
    page = used.console.page("/console/groups")
    assert "member19" in page
    assert "member20" not in page
    assert "and 5 more" in page
