"""`inventory status` shows the newest reports, their ages and whether they came in time; `configure` shows or puts."""

import datetime as dt
import json
import os
from pathlib import Path

import pytest
import yaml

from lakeshare_pipelines.backup.inventory.reports import get_inventory_status
from lakeshare_pipelines.cli.main import main
from tests.builders.backup_inventory import InventoryReports, Stored
from tests.builders.backup_listings import a_backup, reports_in
from tests.builders.backup_metadata_tables import MetadataTables, a_record
from tests.builders.inventory_store import an_inventory_store

NOW = dt.datetime(2026, 11, 23, 13, tzinfo=dt.UTC)


def delivered(folder: Path, scan: str, arrived: str) -> None:
    """A report of that scan whose checksum was written at that time."""
    at = dt.datetime.fromisoformat(scan).replace(tzinfo=dt.UTC)
    reports: InventoryReports = reports_in(folder)
    reports.deliver([Stored("a")], scan=at)
    checksum = folder / reports.base / f"{at:%Y-%m-%dT%H-%MZ}/manifest.checksum"
    moment = dt.datetime.fromisoformat(arrived).replace(tzinfo=dt.UTC).timestamp()
    os.utime(checksum, (moment, moment))


def test_the_newest_reports_are_told_with_their_days(tmp_path: Path) -> None:
    delivered(tmp_path, "2026-11-21T01:00", "2026-11-21T05:00")
    delivered(tmp_path, "2026-11-22T01:00", "2026-11-23T13:00")
    found = get_inventory_status(a_backup(tmp_path), NOW)
    told = [(str(one.scan_started_at)[:16], one.day, one.is_in_time, str(one.age)) for one in found.reports]
    assert told == [
        ("2026-11-22 01:00", "2026-11-20", False, "1 day, 12:00:00"),
        ("2026-11-21 01:00", "2026-11-19", True, "2 days, 12:00:00"),
    ]
    assert (found.arrived, found.due_day, found.late, found.next_day) == (2, "2026-11-20", None, "2026-11-21")
    assert str(found.next_until)[:16] == "2026-11-24 12:00"


def test_a_day_without_a_report_is_late_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    delivered(tmp_path, "2026-11-21T01:00", "2026-11-21T05:00")
    (tmp_path / "inventory/lake/daily/2026-11-21T01-00Z/manifest.json").write_text("{}")
    found = get_inventory_status(a_backup(tmp_path), NOW)
    assert found.late is not None
    assert found.reports[0].problem is not None
    assert "MD5" in found.reports[0].problem


def test_a_day_before_the_first_is_not_late(tmp_path: Path) -> None:
    (tmp_path / "inventory/lake/daily").mkdir(parents=True)
    backup = a_backup(tmp_path).model_copy(update={"first_day": dt.date(2026, 11, 21)})
    assert get_inventory_status(backup, NOW).late is None


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of declared backups; the folder is one of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(tmp_path / "backups.yaml"))
    return tmp_path / "backups.yaml"


def declare(path: Path, listing: dict[str, object], **source: object) -> None:
    lake = {"source": {"url": "s3://lake", **source}, "target": {"url": "s3://copies"}, "listing": listing}
    path.write_text(yaml.safe_dump({"backups": {"lake": lake}}))


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """The exit code of `lakeshare inventory …`."""
    monkeypatch.setattr("sys.argv", ["lakeshare", "inventory", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code


def test_status_is_printed_and_fails_when_a_day_is_late(
    tmp_path: Path, declared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "inventory/lake/daily"
    declare(declared, {"kind": "s3_inventory", "location": str(place)})
    place.mkdir(parents=True)
    assert ended(monkeypatch, "status") == 1
    said = capsys.readouterr().out
    assert "no report has arrived" in said
    assert "the generator lists instead" in said
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(hours=30)
    delivered(tmp_path, yesterday.isoformat()[:16], yesterday.isoformat()[:16])
    ended(monkeypatch, "status", "lake")
    said = capsys.readouterr().out
    assert f"{yesterday:%Y-%m-%d %H:%M} UTC" in said
    assert "Parquet" in said


@pytest.mark.parametrize(
    ("listing", "sentence"),
    [({"kind": "generator"}, "no report is expected"), ({"kind": "manifest_csv", "location": "/m"}, "at /m")],
)
def test_status_of_what_has_no_reports(
    declared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    listing: dict[str, object],
    sentence: str,
) -> None:
    declare(declared, listing)
    assert ended(monkeypatch, "status") == 0
    assert sentence in capsys.readouterr().out


def test_status_of_metadata_tables_is_their_newest_snapshot(
    tmp_path: Path, declared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = MetadataTables(tmp_path / "tables")
    made = tables.write("inventory", [a_record("a", "01")])
    declare(declared, {"kind": "s3_metadata", "location": tables.place("inventory")})
    # The source is a bucket, the table a folder: each place is read as what it is.
    assert ended(monkeypatch, "status") == 0
    assert f"newest snapshot {made:%Y-%m-%d %H:%M:%S} UTC" in capsys.readouterr().out


def test_configure_shows_first_and_then_puts(
    declared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    listing = {"kind": "s3_inventory", "location": "s3://reports/inventory/lake/backup"}
    with an_inventory_store() as store:
        declare(declared, listing, account="111122223333", endpoint=store.endpoint)
        assert ended(monkeypatch, "configure", "--show") == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["InventoryConfiguration"]["Id"] == "backup"
        assert shown["Statement"]["Principal"] == {"Service": "s3.amazonaws.com"}
        assert store.puts == []
        assert ended(monkeypatch, "configure", "--format", "csv", "--weekly") == 0
        assert "s3://lake has inventory configuration backup: csv, weekly" in capsys.readouterr().out
        assert sorted(store.puts) == ["inventory", "policy"]
        assert ended(monkeypatch, "configure", "--format", "json") == 2
        assert store.deletions == 0
