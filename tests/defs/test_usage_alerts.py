"""Recipients that fell silent and days that are many times the usual are told of, once there is something to go by."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import update

from lakeshare_pipelines.defs.share import usage_checks
from lakeshare_pipelines.defs.wap import LakeResource, SparkResource
from lakeshare_pipelines.share.shares import find_silent_recipients, find_usage_spikes
from lakeshare_server.catalog import Catalog, open_catalog
from lakeshare_server.catalog.audit import prune
from lakeshare_server.catalog.models import RecipientRow
from tests.builders.events import an_event, append
from tests.builders.recipients import Recipients

NOW = datetime.now(UTC)
YESTERDAY = NOW - timedelta(days=1)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path))
    opened = open_catalog(f"sqlite:///{tmp_path / 'lakeshare.db'}")
    for name in ("busy", "quiet", "never", "new", "gone"):
        Recipients(opened).add(name, [])
    with opened.writing() as session:
        old = update(RecipientRow).where(RecipientRow.name != "new")
        session.execute(old.values(created_at=NOW - timedelta(days=90)))
    Recipients(opened).revoke("gone")
    usual = [
        an_event(day, at=YESTERDAY - timedelta(days=day), recipient=name, size_bytes=100)
        for day in range(1, 10)
        for name in ("busy", "quiet")
        if name == "busy" or day > 7
    ]
    # Today as well: the checks look at the day before the clock's, and the day may end while the tests run.
    busy = [an_event(0, at=at, recipient="busy", size_bytes=501) for at in (YESTERDAY, NOW)]
    append(opened, [*usual, *busy])
    return opened


def test_silent_recipients_are_told_of_with_when_they_were_answered_last(catalog: Catalog) -> None:
    silent = {one.recipient: one.last_seen for one in find_silent_recipients(catalog, 7, NOW)}
    assert silent == {"quiet": YESTERDAY - timedelta(days=8), "never": None}
    assert {one.recipient for one in find_silent_recipients(catalog, 30, NOW)} == {"never"}
    prune(catalog, NOW - timedelta(minutes=1), "ann")
    # The day is known of what was pruned.
    assert {one.recipient for one in find_silent_recipients(catalog, 30, NOW)} == {"never"}


def test_a_day_of_many_times_the_usual_is_told_of(catalog: Catalog) -> None:
    [spike] = find_usage_spikes(catalog, 5, YESTERDAY.date())
    assert (spike.recipient, spike.measure, spike.value, spike.usual) == ("busy", "size_bytes", 501, 100)
    assert find_usage_spikes(catalog, 5.01, YESTERDAY.date()) == []
    append(catalog, [an_event(n, at=YESTERDAY, recipient="new", size_bytes=10**9) for n in range(50)])
    # Of whom there is no usual day nothing is said.
    assert {one.recipient for one in find_usage_spikes(catalog, 5, YESTERDAY.date())} == {"busy"}


def test_the_checks_warn_and_hold_nothing_up(catalog: Catalog) -> None:
    assert catalog.generation() > 0
    checks = usage_checks()
    defs = dg.Definitions.merge(
        dg.Definitions(
            assets=[dg.AssetSpec("share_catalog")],
            resources={"lakeshare": LakeResource(spark=SparkResource())},
        ),
        checks,
    )
    ended = defs.resolve_job_def("usage_checks").execute_in_process()
    told = {one.check_name: one for one in ended.get_asset_check_evaluations()}
    assert ended.success
    assert {name: one.passed for name, one in told.items()} == {
        "silent_recipients": False,
        "usage_spikes": False,
    }
    assert {one.severity for one in told.values()} == {dg.AssetCheckSeverity.WARN}
    assert "busy: 501 size_bytes, usually 100" in (told["usage_spikes"].description or "")
    assert set(told["silent_recipients"].metadata["lakeshare/last_seen"].value) == {"quiet", "never"}
