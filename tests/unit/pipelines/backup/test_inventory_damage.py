"""A report that is damaged, incomplete or empty is passed over for the next one, and a sentence says why."""

import datetime as dt
import json
from collections.abc import Callable
from hashlib import md5
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.inventory.reports import LateReport, find_report, open_report_store
from lakeshare_pipelines.backup.inventory.sources import make_listing
from lakeshare_pipelines.backup.points import Workspace
from lakeshare_pipelines.errors import BackupError, ReportUnusable
from tests.builders.backup_inventory import SCAN, Stored
from tests.builders.backup_listings import DAY, IN_TIME, a_backup, listed, read_reports, reports_in

NEXT = SCAN + dt.timedelta(hours=2)
GOOD = [Stored("good")]


def data_file(folder: Path) -> Path:
    return next((folder / "inventory/lake/daily/data").iterdir())


def manifest(folder: Path) -> Path:
    return folder / f"inventory/lake/daily/{SCAN:%Y-%m-%dT%H-%MZ}/manifest.json"


def retold(folder: Path, **fields: object) -> None:
    """Write the manifest again, with other fields and a checksum that fits."""
    path = manifest(folder)
    written = json.dumps(json.loads(path.read_text()) | fields).encode()
    path.write_bytes(written)
    path.with_name("manifest.checksum").write_text(md5(written).hexdigest() + "\n")


def replaced(folder: Path, content: bytes) -> None:
    """Put something else into a data file, as if the store had written it."""
    path = data_file(folder)
    path.write_bytes(content)
    files = json.loads(manifest(folder).read_text())["files"]
    for one in files:
        if one["key"].endswith(path.name):
            one |= {"size": len(content), "MD5checksum": md5(content).hexdigest()}
    retold(folder, files=files)


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "manifest of another MD5": (
        "manifest.checksum has another",
        lambda at: manifest(at).write_bytes(manifest(at).read_bytes() + b" "),
    ),
    "no manifest": ("it is gone since it was listed", lambda at: manifest(at).unlink()),
    "manifest that is no JSON": (
        "it is no manifest of an inventory",
        lambda at: (
            manifest(at).write_text("{"),
            manifest(at).with_name("manifest.checksum").write_text(md5(b"{").hexdigest()),
        ),
    ),
    "unknown format": ("it is no manifest of an inventory", lambda at: retold(at, fileFormat="JSON")),
    "schema of nothing": ("no schema of a Parquet report", lambda at: retold(at, fileSchema="message x { }")),
    "data file gone": ("a data file of the report is not there", lambda at: data_file(at).unlink()),
    "data file cut": ("its MD5 is", lambda at: data_file(at).write_bytes(data_file(at).read_bytes()[:-9])),
    "data file of another kind": ("it cannot be read as Parquet", lambda at: replaced(at, b"no parquet")),
    "no files": ("it lists no object of s3://lake", lambda at: retold(at, files=[])),
    "no ETags": (
        "it has no e_tag",
        lambda at: retold(
            at, fileSchema=json.loads(manifest(at).read_text())["fileSchema"].replace("e_tag", "x_tag")
        ),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_report_that_cannot_be_used_is_passed_over(tmp_path: Path, damage: str) -> None:
    sentence, spoil = DAMAGE[damage]
    reports = reports_in(tmp_path)
    reports.deliver([Stored("lost"), Stored("lost as well")])
    spoil(tmp_path)
    assert make_listing(a_backup(tmp_path), Workspace(tmp_path / "work"), DAY, IN_TIME) is None
    assert not (tmp_path / "work/listing").exists()
    reports.deliver(GOOD, scan=NEXT)
    record, rows = listed(a_backup(tmp_path), tmp_path)
    assert [row["key"] for row in rows] == ["good"]
    assert record.is_late
    assert sentence in record.warnings[0]


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ('"lake","a","3"\n', "it cannot be read as CSV"),
        ('"lake","a%FF","3","2026-11-20T09:30:15.123Z","e"\n', "it cannot be read as CSV"),
        ('"lake","a","three","2026-11-20T09:30:15.123Z","e"\n', "it cannot be read as CSV"),
        ('"lake","a","3","yesterday","e"\n', "it cannot be read as CSV"),
        ('"pond","a","3","2026-11-20T09:30:15.123Z","e"\n', "it has rows of other buckets than lake"),
        (None, "it cannot be read as CSV"),
    ],
)
def test_rows_that_are_not_as_told_spoil_a_report(tmp_path: Path, spoilt: str | None, sentence: str) -> None:
    import gzip

    without = ("storage_class", "is_multipart_uploaded", "encryption_status", "checksum_algorithm")
    reports = reports_in(tmp_path)
    reports.deliver([Stored("a")] * 4, "CSV", without=without)
    content = (
        gzip.compress(b'"lake","a","3"' * 99)[:-20] if spoilt is None else gzip.compress(spoilt.encode())
    )
    replaced(tmp_path, content)
    reports.deliver(GOOD, "CSV", scan=NEXT)
    record, rows = listed(a_backup(tmp_path), tmp_path)
    assert [row["key"] for row in rows] == ["good"]
    assert sentence in record.warnings[0]


def test_a_file_without_rows_is_no_damage(tmp_path: Path) -> None:
    for file_format in ("CSV", "ORC", "Parquet"):
        folder = tmp_path / file_format
        reports_in(folder).deliver(GOOD, file_format, files=3)
        assert len(listed(a_backup(folder), folder)[1]) == 1


def test_what_has_no_checksum_yet_has_not_arrived(tmp_path: Path) -> None:
    reports_in(tmp_path).deliver(GOOD)
    manifest(tmp_path).with_name("manifest.checksum").unlink()
    assert find_report(a_backup(tmp_path), DAY, IN_TIME) is None


def test_the_report_of_another_bucket_is_refused_not_passed_over(tmp_path: Path) -> None:
    reports_in(tmp_path, "pond").deliver(GOOD)
    backup = a_backup(tmp_path, location=str(tmp_path / "inventory/pond/daily"))
    with pytest.raises(BackupError, match="it lists pond, and backup lake is of lake") as refused:
        make_listing(backup, Workspace(tmp_path / "work"), DAY, IN_TIME)
    assert not isinstance(refused.value, ReportUnusable)


def test_reports_are_told_in_order_of_their_scans_until_one_is_damaged(tmp_path: Path) -> None:
    reports = reports_in(tmp_path)
    reports.deliver(GOOD, scan=NEXT)
    reports.deliver(GOOD, scan=SCAN)
    backup = a_backup(tmp_path)
    found = read_reports(open_report_store(backup), backup.listing.location or "")
    assert [one.scan_started_at for one in found] == [SCAN, NEXT]
    manifest(tmp_path).write_text("{}")
    with pytest.raises(ReportUnusable, match="MD5"):
        next(read_reports(open_report_store(backup), backup.listing.location or ""))


def test_when_the_wait_is_over_the_damage_is_told(tmp_path: Path) -> None:
    reports_in(tmp_path).deliver(GOOD)
    manifest(tmp_path).write_text("{}")
    late = find_report(a_backup(tmp_path), DAY, dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC))
    assert isinstance(late, LateReport)
    assert "the generator lists instead" in late.reason
    assert "manifest.checksum has another" in late.reason
