"""Reports of our own are laid out like S3 Inventory's, and tell of a folder what is in it."""

import csv
import datetime as dt
import gzip
import json
import os
from hashlib import md5
from pathlib import Path
from urllib.parse import unquote_plus

import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from typer.testing import CliRunner

from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.inventory.configuration import FORMATS, ReportFormat
from lakeshare_pipelines.backup.inventory.list_objects import list_rows
from lakeshare_pipelines.backup.inventory.reports import (
    ReportDestination,
    generate_report,
    write_files,
    write_manifest,
)
from lakeshare_pipelines.backup.inventory.sources import list_source, make_listing
from lakeshare_pipelines.backup.model import LISTING, ListingRecord, read_table
from lakeshare_pipelines.backup.points import Workspace
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.errors import BackupError

KEYS = ("a b+c%20&'\"é.txt", "day=2026-01-01/part-0", "empty", "t/_delta_log/00.json", "x~*_-.y")
MODIFIED = dt.datetime(2026, 11, 20, 9, 30, 15, 123000, tzinfo=dt.UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    for key in KEYS:
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if key == "empty" else key.encode())
        nanoseconds = int(MODIFIED.timestamp() * 1000) * 1_000_000
        os.utime(path, ns=(nanoseconds, nanoseconds))
    return folder


def a_place(
    lake: Path, file_format: ReportFormat = "Parquet", *, versions: bool = False
) -> ReportDestination:
    destination = StoreAddress(url=str(lake.parent / "reports"))
    return ReportDestination(StoreAddress(url=str(lake)), destination, file_format, versions)


def manifest_of(location: str) -> dict[str, object]:
    written = Path(location).read_bytes()
    checksum = Path(location).with_name("manifest.checksum").read_text()
    assert checksum == md5(written, usedforsecurity=False).hexdigest()
    told: dict[str, object] = json.loads(written)
    return told


def rows_of(path: Path, file_format: ReportFormat) -> list[dict[str, object]]:
    if file_format == "Parquet":
        return pq.read_table(path).to_pylist()
    if file_format == "ORC":
        with path.open("rb") as file:
            return orc.ORCFile(file).read().to_pylist()
    names = ("bucket", "key", "size", "last_modified_date", "e_tag", "storage_class", "is_multipart_uploaded")
    with gzip.open(path, "rt", newline="") as file:
        return [dict(zip((*names, "checksum_algorithm"), line, strict=True)) for line in csv.reader(file)]


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_layout_is_what_aws_documents(lake: Path, file_format: ReportFormat) -> None:
    before = dt.datetime.now(dt.UTC)
    found = generate_report(a_place(lake, file_format))
    manifest = manifest_of(found.location)
    began = dt.datetime.fromtimestamp(int(str(manifest["creationTimestamp"])) / 1000, dt.UTC)
    assert before - dt.timedelta(milliseconds=1) <= began <= found.scan_ended_at
    base = lake.parent / "reports/lake/lakeshare"
    assert Path(found.location) == base / f"{began:%Y-%m-%dT%H-%MZ}/manifest.json"
    assert manifest["sourceBucket"] == str(lake)
    assert manifest["destinationBucket"] == f"arn:aws:s3:::{lake.parent}/reports"
    assert (manifest["version"], manifest["fileFormat"]) == ("2016-11-30", file_format)
    [file] = manifest["files"]  # type: ignore[misc]
    path = lake.parent / "reports" / file["key"]
    assert path.parent == base / "data"
    content = path.read_bytes()
    assert (file["size"], file["MD5checksum"]) == (
        len(content),
        md5(content, usedforsecurity=False).hexdigest(),
    )
    links = (base / f"hive/dt={began:%Y-%m-%d-%H-%M}/symlink.txt").read_text()
    assert links == f"file://{path}"


@pytest.mark.parametrize("file_format", FORMATS)
def test_the_rows_are_the_files(lake: Path, file_format: ReportFormat) -> None:
    found = generate_report(a_place(lake, file_format))
    [file] = manifest_of(found.location)["files"]  # type: ignore[misc]
    rows = rows_of(lake.parent / "reports" / file["key"], file_format)
    is_csv = file_format == "CSV"
    keys = [unquote_plus(str(row["key"])) if is_csv else str(row["key"]) for row in rows]
    assert sorted(keys) == sorted(KEYS)
    assert found.rows == len(KEYS)
    for key, row in zip(keys, rows, strict=True):
        size = (lake / key).stat().st_size
        assert row["size"] == (str(size) if is_csv else size)
        told = row["last_modified_date"]
        assert told == "2026-11-20T09:30:15.123Z" if is_csv else told.replace(tzinfo=dt.UTC) == MODIFIED  # type: ignore[union-attr]
        assert row["storage_class"] == "STANDARD"


def test_csv_is_quoted_throughout_and_says_blanks_as_pluses(lake: Path) -> None:
    found = generate_report(a_place(lake, "CSV"))
    [file] = manifest_of(found.location)["files"]  # type: ignore[misc]
    content = (lake.parent / "reports" / file["key"]).read_bytes()
    assert content[4:8] == bytes(4), "the gzip header has no time"
    lines = gzip.decompress(content).decode().splitlines()
    assert any(f'"{lake}","a+b%2Bc%2520%26%27%22%C3%A9.txt",' in line for line in lines)
    assert all(line.startswith('"') and line.endswith('"') and line.count('","') == 7 for line in lines)


@pytest.mark.parametrize("file_format", FORMATS)
def test_our_reader_reads_what_our_generator_writes(lake: Path, file_format: ReportFormat) -> None:
    found = generate_report(a_place(lake, file_format))
    backup = Backup(
        name="lake",
        source=StoreAddress(url=str(lake)),
        target=StoreAddress(url=str(lake.parent / "copies")),
        listing=ListingSource(kind="s3_inventory", location=str(lake.parent / "reports/lake/lakeshare")),
    )
    day = found.scan_started_at - dt.timedelta(days=2)
    workspace = Workspace(lake.parent / "work")
    record = make_listing(backup, workspace, day.date().isoformat(), found.scan_ended_at)
    assert record is not None
    assert record.kind == "s3_inventory"
    read = read_table(workspace.rows("listing"), LISTING)
    direct = next(list_rows(backup.source))
    assert sorted(read.to_pylist(), key=str) == sorted(direct.to_pylist(), key=str)


def test_many_rows_become_several_files(lake: Path) -> None:
    place = a_place(lake)
    batches = (batch.slice(at, 1) for batch in list_rows(place.source) for at in range(batch.num_rows))
    files = list(write_files(place, batches, rows_a_file=2))
    assert sorted(file.rows for file in files) == [1, 2, 2]
    now = dt.datetime.now(dt.UTC)
    found = write_manifest(place, files, now, now)
    assert (found.files, found.rows) == (3, 5)
    assert found.size_bytes == sum((lake / key).stat().st_size for key in KEYS)


def test_a_second_report_of_a_minute_is_refused_and_the_first_stays(lake: Path) -> None:
    place, now = a_place(lake), dt.datetime.now(dt.UTC)
    found = write_manifest(place, [], now, now)
    first = Path(found.location).read_bytes()
    with pytest.raises(BackupError, match="report of this minute already"):
        write_manifest(place, list(write_files(place, list_rows(place.source))), now, now)
    assert Path(found.location).read_bytes() == first
    assert manifest_of(found.location)["files"] == []


def test_a_backup_lists_without_what_lakeshare_keeps_there(lake: Path) -> None:
    store = open_store(StoreAddress(url=str(lake)))
    store.put("_lakeshare/lake/points/2026-11-20/point.json", b"{}")
    store.put("copies/objects/a", b"a")
    backup = Backup(
        name="lake", source=StoreAddress(url=str(lake)), target=StoreAddress(url=str(lake / "copies"))
    )
    workspace = Workspace(lake.parent / "work")
    record = list_source(backup, workspace)
    rows = read_table(workspace.rows("listing"), LISTING)
    assert sorted(rows["key"].to_pylist()) == sorted(KEYS)
    assert (record.kind, record.rows, record.has_versions) == ("generator", len(KEYS), False)
    assert record.size_bytes == sum(rows["size_bytes"].to_pylist())
    assert record.scan_started_at <= record.scan_ended_at  # type: ignore[operator]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_or_missing_source_is_refused(tmp_path: Path, is_there: bool) -> None:
    if is_there:
        (tmp_path / "lake").mkdir()
    backup = Backup(
        name="lake",
        source=StoreAddress(url=str(tmp_path / "lake")),
        target=StoreAddress(url=str(tmp_path / "copies")),
    )
    workspace = Workspace(tmp_path / "work")
    with pytest.raises(BackupError, match="no object in it" if is_there else "it is not there"):
        list_source(backup, workspace)
    assert not workspace.rows("listing").exists()
    assert workspace.load("listing", ListingRecord) is None


def test_a_name_that_no_listing_can_hold_is_told(lake: Path) -> None:
    Path(os.fsdecode(os.fsencode(lake) + b"/\xff")).touch()
    with pytest.raises(BackupError, match=r"udcff: the name is no UTF-8, and no listing can hold it. Rename"):
        list(list_rows(StoreAddress(url=str(lake))))


def test_the_command_lists_and_tells_where_the_report_is(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESHARE_WAREHOUSE", str(lake))
    to = str(lake.parent / "reports")
    told = CliRunner().invoke(app, ["inventory", "generate", "--to", to, "--format", "csv", "--id", "hand"])
    assert told.exit_code == 0, told.output
    location = told.stdout.splitlines()[0]
    assert location.startswith(f"{to}/lake/hand/")
    assert manifest_of(location)["fileFormat"] == "CSV"


@pytest.mark.parametrize(("option", "value"), [("--format", "xml"), ("--to", "elsewhere")])
def test_the_command_refuses_what_it_cannot_write(lake: Path, option: str, value: str) -> None:
    to = {"--to": str(lake.parent / "reports"), option: value}
    told = CliRunner().invoke(app, ["inventory", "generate", *(part for pair in to.items() for part in pair)])
    assert told.exit_code == 2
    assert not (lake.parent / "reports").exists()
