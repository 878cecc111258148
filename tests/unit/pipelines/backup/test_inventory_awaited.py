"""A day's report is the first whose scan began at D+lag or later; it is waited for, and not for ever."""

import datetime as dt
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.inventory.reports import LateReport, Report, find_report
from lakeshare_pipelines.backup.inventory.sources import is_listing_ready, make_listing
from lakeshare_pipelines.backup.points import Workspace
from tests.builders.backup_inventory import Stored
from tests.builders.backup_listings import DAY, a_backup, listed, reports_in

SCANS = (
    "2026-11-20T23:59",
    "2026-11-21T01:00",
    "2026-11-22T01:00",
    "2026-11-23T01:00",
    "2026-11-26T01:00:09",
)


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("day", "lag", "scans", "now", "expected"),
    [
        (DAY, 2, 5, "2026-11-27T00:00", "2026-11-22T01:00"),
        (DAY, 1, 5, "2026-11-27T00:00", "2026-11-21T01:00"),
        # A scan that began before the day ended never speaks for it.
        (DAY, 0, 5, "2026-11-27T00:00", "2026-11-21T01:00"),
        ("2026-11-21", 2, 5, "2026-11-27T00:00", "2026-11-23T01:00"),
        (DAY, 2, 2, "2026-11-22T02:00", None),
        (DAY, 2, 2, "2026-11-23T11:59", None),
        (DAY, 2, 2, "2026-11-23T12:00", "late"),
        # When the day is made up for much later, its own report still counts.
        (DAY, 2, 5, "2027-01-01T00:00", "2026-11-22T01:00"),
        ("2026-11-25T080000Z", 2, 5, "2026-11-27T00:00", "2026-11-26T01:00:09"),
        ("2026-11-25T080000Z", 2, 4, "2026-11-25T08:00", "late"),
        # Folders tell the minute of a scan, manifests its second.
        ("2026-11-26T010009Z", 2, 5, "2026-11-27T00:00", "2026-11-26T01:00:09"),
        ("2026-11-26T010010Z", 2, 5, "2026-11-27T00:00", "late"),
    ],
)
def test_the_first_report_after_the_lag_is_taken(
    tmp_path: Path, day: str, lag: int, scans: int, now: str, expected: str | None
) -> None:
    for scan in SCANS[:scans]:
        reports_in(tmp_path).deliver([Stored(scan)], scan=at(scan))
    backup = a_backup(tmp_path, lag_days=lag, wait_hours=36)
    found = find_report(backup, day, at(now))
    assert is_listing_ready(backup, day, at(now)) == (found is not None)
    if expected is None:
        assert found is None
        assert make_listing(backup, Workspace(tmp_path / "work"), day, at(now)) is None
    elif expected == "late":
        assert isinstance(found, LateReport)
    else:
        assert isinstance(found, Report)
        assert found.scan_started_at == at(expected)
        assert [row["key"] for row in listed(backup, tmp_path, day, at(now))[1]] == [expected]


@pytest.mark.parametrize(("scan", "is_late"), [("2026-11-23T01:00", False), ("2026-11-26T01:00", True)])
def test_a_report_from_after_the_wait_counts_as_late(tmp_path: Path, scan: str, is_late: bool) -> None:
    reports_in(tmp_path).deliver([Stored("a")], scan=at(scan))
    record, _ = listed(a_backup(tmp_path), tmp_path, now=at("2026-11-27T00:00"))
    assert record.is_late == is_late


def test_a_day_that_is_not_over_is_not_listed(tmp_path: Path) -> None:
    reports_in(tmp_path).deliver([Stored("a")], scan=at("2026-11-22T01:00"))
    assert not is_listing_ready(a_backup(tmp_path), DAY, at("2026-11-20T23:59"))
    assert make_listing(a_backup(tmp_path), Workspace(tmp_path / "work"), DAY, at("2026-11-20T23:59")) is None
    assert not is_listing_ready(a_backup(tmp_path, kind="generator"), DAY, at("2026-11-20T23:59"))


def test_a_listing_made_again_replaces_the_first(tmp_path: Path) -> None:
    reports_in(tmp_path).deliver([Stored("a"), Stored("b")])
    first = listed(a_backup(tmp_path), tmp_path)
    (tmp_path / "work/.listing.part").mkdir()
    (tmp_path / "work/.listing.part/part-00007.parquet").write_text("left by one who was killed")
    assert listed(a_backup(tmp_path), tmp_path) == first


def test_when_no_report_comes_the_generator_lists_and_says_so(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    (lake / "sales").mkdir(parents=True)
    (lake / "sales/a").write_bytes(b"abc")
    reports_in(tmp_path, str(lake)).deliver([Stored("a")], scan=at("2026-11-20T10:00"))
    backup = a_backup(tmp_path, str(lake), location=str(tmp_path / "inventory" / str(lake)[1:] / "daily"))
    record, rows = listed(backup, tmp_path, now=at("2026-11-23T12:00"))
    assert [row["key"] for row in rows] == ["sales/a"]
    assert (record.kind, record.is_late) == ("generator", True)
    assert "no usable report whose scan began at 2026-11-22 00:00 UTC" in record.warnings[0]
    # Nobody could have waited for the report of a moment: that is not late.
    moment, _ = listed(backup, tmp_path, "2026-11-23T115900Z", at("2026-11-23T12:00"))
    assert (moment.kind, moment.is_late) == ("generator", False)
