"""An Iceberg table that was rewritten for another place has its rows there, and speaks of no other place.

The original place is gone when the new one is read: whatever still pointed there would be missed. What Spark writes
(deletes of every kind, format version 3) is in tests/integration/test_backup_iceberg_rewriting.py.
"""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.verify.rewriting import (
    MOUNT_PROPERTIES,
    find_whole_snapshots,
    require_whole_snapshot,
)
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_moves import Move
from tests.builders.lake_tables import IcebergTable, an_iceberg_table, some_rows


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    """Three snapshots, partitioned."""
    made = an_iceberg_table(tmp_path / "lake")
    made.append(some_rows(days=2))
    made.append(some_rows(days=1))
    return made


@pytest.fixture
def move(tmp_path: Path) -> Move:
    return Move(tmp_path / "lake", tmp_path / "elsewhere")


def same(found: pa.Table, expected: pa.Table) -> None:
    # As texts: a NaN equals none.
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def test_the_table_opens_elsewhere_with_its_rows_and_names_no_other_place(
    table: IcebergTable, move: Move
) -> None:
    rows = table.table.scan().to_arrow()
    rewritten = move.rewritten(table.table.metadata_location)
    move.copy()
    move.remove_source()
    found = StaticTable.from_metadata(rewritten.metadata_location)
    assert rewritten.snapshot_id == table.table.metadata.current_snapshot_id
    assert len(found.snapshots()) == 3
    same(found.scan().to_arrow(), rows)
    assert not move.still_named(rewritten)


def test_every_snapshot_still_opens(table: IcebergTable, move: Move) -> None:
    before = {
        one.snapshot_id: table.table.scan(snapshot_id=one.snapshot_id).to_arrow()
        for one in table.table.snapshots()
    }
    rewritten = move.rewritten(table.table.metadata_location)
    move.copy()
    move.remove_source()
    found = StaticTable.from_metadata(rewritten.metadata_location)
    for snapshot_id, rows in before.items():
        same(found.scan(snapshot_id=snapshot_id).to_arrow(), rows)


def test_only_the_wanted_snapshots_are_kept_and_the_newest_of_them_is_the_table(
    table: IcebergTable, move: Move
) -> None:
    first, second, _ = (one.snapshot_id for one in table.table.snapshots())
    rows = table.table.scan(snapshot_id=second).to_arrow()
    rewritten = move.rewritten(table.table.metadata_location, snapshots={first, second})
    move.copy()
    move.remove_source()
    found = StaticTable.from_metadata(rewritten.metadata_location)
    assert [one.snapshot_id for one in found.snapshots()] == [first, second]
    assert found.metadata.refs["main"].snapshot_id == found.metadata.current_snapshot_id == second
    assert found.history()[-1].snapshot_id == second
    same(found.scan().to_arrow(), rows)


def test_an_older_snapshot_becomes_the_newest_when_told(table: IcebergTable, move: Move) -> None:
    first = table.table.snapshots()[0].snapshot_id
    rows = table.table.scan(snapshot_id=first).to_arrow()
    rewritten = move.rewritten(table.table.metadata_location, current=first)
    move.copy()
    same(StaticTable.from_metadata(rewritten.metadata_location).scan().to_arrow(), rows)
    assert rewritten.snapshot_id == first


def test_what_is_written_is_the_same_each_time(table: IcebergTable, move: Move) -> None:
    once = move.rewritten(table.table.metadata_location)
    contents = {key: move.target.read(key) for key in once.keys}
    again = move.rewritten(table.table.metadata_location)
    assert again == once
    assert {key: move.target.read(key) for key in again.keys} == contents


def test_places_and_older_metadata_of_the_original_are_left_behind(table: IcebergTable, move: Move) -> None:
    path = Path(table.table.metadata_location.removeprefix("file://"))
    told = json.loads(path.read_text())
    told["properties"] |= {"write.data.path": f"{move.source}/elsewhere", "owner": "us"}
    path.write_text(json.dumps(told))
    rewritten = move.rewritten(str(path), properties=MOUNT_PROPERTIES)
    new = json.loads(Path(rewritten.metadata_location).read_text())
    assert new["properties"] == {"owner": "us", "gc.enabled": "false"}
    assert new["metadata-log"] == []
    assert new["location"] == str(move.to / "flights")


def test_metadata_in_gzip_stays_in_gzip(table: IcebergTable, move: Move) -> None:
    path = Path(table.table.metadata_location.removeprefix("file://"))
    packed = path.with_name("00009-a.gz.metadata.json")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    rewritten = move.rewritten(str(packed))
    assert rewritten.metadata_location.endswith("/00009-a.gz.metadata.json")
    assert json.loads(gzip.decompress(Path(rewritten.metadata_location).read_bytes()))["location"]


def test_a_table_without_rows_is_one_elsewhere(tmp_path: Path, move: Move) -> None:
    empty = IcebergTable(tmp_path / "lake", some_rows().schema)
    rewritten = move.rewritten(empty.table.metadata_location)
    assert StaticTable.from_metadata(rewritten.metadata_location).scan().to_arrow().num_rows == 0
    assert rewritten.snapshot_id is None


@pytest.mark.parametrize(
    "broken", ["cut", "no json", "version 4", "missing manifest", "encrypted", "other snapshot"]
)
def test_what_cannot_be_read_is_refused_with_its_name(table: IcebergTable, move: Move, broken: str) -> None:
    metadata = Path(table.table.metadata_location.removeprefix("file://"))
    manifest = next(one for one in metadata.parent.glob("*-m0.avro"))
    snapshots = None
    if broken == "cut":
        manifest.write_bytes(manifest.read_bytes()[:-40])
    elif broken == "no json":
        metadata.write_text("{")
    elif broken == "version 4":
        metadata.write_text(metadata.read_text().replace('"format-version":2', '"format-version":4'))
    elif broken == "missing manifest":
        manifest.unlink()
    elif broken == "encrypted":
        manifest.write_bytes(b"AGS1" + manifest.read_bytes())
    else:
        snapshots = {5}
    place = manifest.name if broken in ("cut", "missing manifest", "encrypted") else metadata.name
    with pytest.raises(BackupError, match=place):
        move.rewritten(str(metadata), snapshots=snapshots)
    assert not list(move.to.rglob("*.metadata.json"))


def test_progress_is_told_by_manifests(table: IcebergTable, move: Move) -> None:
    told: list[tuple[int, int]] = []
    move.rewritten(table.table.metadata_location, report_progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_snapshots_are_whole_as_far_as_their_files_are_held(table: IcebergTable, move: Move) -> None:
    first, second, third = (one.snapshot_id for one in table.table.snapshots())
    [*_, newest] = [task.file.file_path for task in table.table.scan().plan_files()]
    listed = {
        one.snapshot_id: {
            task.file.file_path for task in table.table.scan(snapshot_id=one.snapshot_id).plan_files()
        }
        for one in table.table.snapshots()
    }
    location = table.table.metadata_location
    assert find_whole_snapshots(move.read, location, lambda _: True) == {first, second, third}
    for lost in (newest, min(listed[first])):
        whole = find_whole_snapshots(move.read, location, lambda at, lost=lost: at != lost)
        assert whole == {snapshot for snapshot, files in listed.items() if lost not in files}
    with pytest.raises(BackupError, match=str(third)):
        require_whole_snapshot(location, third, {first, second})
