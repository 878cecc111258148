"""Tables of S3 Metadata become a listing: of the first snapshot in time, or with the journal of the day's very end."""

import datetime as dt
from pathlib import Path

import pyiceberg.catalog
import pytest
from pyiceberg.utils.config import Config

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.inventory import sources
from lakeshare_pipelines.backup.inventory.reports import LateReport
from lakeshare_pipelines.backup.inventory.sources import find_snapshot, open_table
from lakeshare_pipelines.backup.points import format_point_name, get_point_time
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from tests.builders.answering_store import answering_store
from tests.builders.backup_listings import a_backup, listed
from tests.builders.backup_metadata_tables import COLUMNS, MODIFIED, MetadataTables, a_record

SECOND = dt.timedelta(seconds=1)


def by_tables(tables: MetadataTables, **listing: object) -> Backup:
    return a_backup(tables.folder, kind="s3_metadata", location=tables.place("inventory"), **listing)


def keys(rows: list[dict[str, object]]) -> list[object]:
    return [row["key"] for row in rows]


def test_current_objects_are_listed_as_they_are(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    made = tables.write(
        "inventory", [a_record("a b%+", "01"), a_record("c", "02", e_tag="x-3", is_multipart=True)]
    )
    record, rows = listed(by_tables(tables), tmp_path, format_point_name(made), made)
    assert rows[0] == {
        "bucket": "lake",
        "key": "a b%+",
        "version_id": None,
        "is_latest": True,
        "is_delete_marker": False,
        "size_bytes": 3,
        "last_modified": MODIFIED,
        "etag": "900150983cd24fb0d6963f7d28e17f72",
        "storage_class": "STANDARD",
        "is_multipart": False,
        "encryption": "SSE-S3",
        "checksum_algorithm": "CRC64NVME",
    }
    assert (rows[1]["etag"], rows[1]["is_multipart"]) == ("x-3", True)
    assert (record.kind, record.has_versions, record.is_late) == ("s3_metadata", False, False)
    assert record.location.endswith(".metadata.json")


def test_of_versions_the_one_with_the_greatest_sequence_number_is_the_latest(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    made = tables.write(
        "inventory",
        [
            a_record("a", "0a", "v1"),
            a_record("a", "0b", "v2"),
            a_record("b", "02", None),
            a_record("b", "03", "v4", is_delete_marker=True, size=None, e_tag=None),
        ],
    )
    record, rows = listed(by_tables(tables), tmp_path, format_point_name(made), made)
    said = [(row["key"], row["version_id"], row["is_latest"], row["is_delete_marker"]) for row in rows]
    assert said == [
        ("a", "v1", False, False),
        ("a", "v2", True, False),
        ("b", None, False, False),
        ("b", "v4", True, True),
    ]
    assert record.has_versions


def test_the_journal_brings_the_inventory_to_the_end_of_the_day(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    made = tables.write("inventory", [a_record(key, "05") for key in ("stays", "goes", "grows", "late")])
    day = format_point_name(made - SECOND)
    before, after = get_point_time(day) - SECOND, get_point_time(day) + SECOND
    tables.write(
        "journal",
        [
            # Older than what the inventory says already.
            a_record("stays", "04", type="DELETE", at=before),
            a_record("goes", "06", type="DELETE", at=before, size=None, e_tag=None),
            a_record("grows", "06", type="CREATE", at=before, size=9),
            a_record("grows", "07", type="UPDATE_METADATA", at=before, size=10),
            a_record("new", "06", type="CREATE", at=before),
            a_record("short", "06", type="CREATE", at=before),
            a_record("short", "07", type="DELETE", at=before),
            a_record("late", "06", type="DELETE", at=after),
            a_record("too late", "06", type="CREATE", at=after),
        ],
    )
    backup = by_tables(tables, journal=tables.place("journal"))
    record, rows = listed(backup, tmp_path, day, made)
    assert [(row["key"], row["size_bytes"]) for row in rows] == [
        ("grows", 10),
        ("late", 3),
        ("new", 3),
        ("stays", 3),
    ]
    assert record.scan_started_at == get_point_time(day)


def test_a_journal_that_has_not_come_so_far_is_waited_for(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    tables.write("inventory", [a_record("a", "05")])
    made = tables.write("journal", [a_record("a", "05", type="CREATE", at=MODIFIED)])
    backup = by_tables(tables, journal=tables.place("journal"))
    day = str((made + dt.timedelta(days=1)).date())
    assert find_snapshot(backup, day, get_point_time(day)) is None


def test_the_first_snapshot_in_time_is_read_not_the_newest(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    made = tables.write("inventory", [a_record("then", "01")])
    tables.write("inventory", [a_record("now", "02")])
    day = format_point_name(made)
    assert keys(listed(by_tables(tables), tmp_path, day, made)[1]) == ["then"]


def test_it_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    made = tables.write("inventory", [a_record("a", "01")])
    backup, tomorrow = by_tables(tables, lag_days=1, wait_hours=6), (made + dt.timedelta(days=1)).date()
    end = dt.datetime.combine(tomorrow + dt.timedelta(days=1), dt.time(), dt.UTC)
    assert find_snapshot(backup, str(tomorrow), end + dt.timedelta(hours=5)) is None
    late = find_snapshot(backup, str(tomorrow), end + dt.timedelta(hours=6))
    assert isinstance(late, LateReport)
    assert "the generator lists instead" in late.reason


def test_a_table_that_is_none_of_s3_metadata_is_refused(tmp_path: Path) -> None:
    tables = MetadataTables(tmp_path)
    without = COLUMNS.remove(COLUMNS.get_field_index("e_tag"))
    made = tables.write("inventory", [a_record("a", "01")], without)
    with pytest.raises(BackupError, match="it has no e_tag"):
        listed(by_tables(tables), tmp_path, format_point_name(made), made)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("nowhere", "no metadata of an Iceberg table is there"),
        ("nowhere/metadata/v1.metadata.json", "the table cannot be opened"),
        ("no_catalog.b_lake.inventory", "the table cannot be opened"),
    ],
)
def test_a_table_that_is_not_there_is_told(tmp_path: Path, told: str, sentence: str) -> None:
    place = told if told.startswith("no_catalog") else str(tmp_path / told)
    backup = a_backup(tmp_path, kind="s3_metadata", location=place)
    now = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
    with pytest.raises(BackupError, match=sentence):
        find_snapshot(backup, "2026-11-20", now)


def test_a_catalog_that_takes_the_request_and_never_answers_ends_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(sources, "CATALOG_S", 0.3)
    with answering_store(lambda _: None) as silent:
        monkeypatch.setenv("PYICEBERG_CATALOG__SILENT__URI", silent.endpoint)
        # It is read when pyiceberg is imported.
        monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
        with pytest.raises(BackupError, match=r"silent\.db\.inventory.*does not answer.*0\.3 seconds"):
            open_table(StoreAddress(url="s3://lake"), "silent.db.inventory")
