"""What a target refuses, or a killed copy leaves there, does no more harm than it must."""

import datetime as dt
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.retention import sweep_points
from lakeshare_pipelines.backup.stores import UNFINISHED, FolderStore, ListedObject, StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_lakes import Lake
from tests.builders.lake_tables import a_delta_table, some_rows

DAY = "2099-12-30"
ROWS = some_rows(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A Delta table with a point."""
    lake = Lake(tmp_path)
    a_delta_table(lake.source / "flights", ROWS, partitioned_by=())
    lake.made(DAY, lake.listing())
    return lake


def restores(lake: Lake, said: list[str] | None = None) -> PointRestore:
    settings = LakeSettings(_env_file=None, state_dir=lake.base / "state")
    return PointRestore(
        settings, lake.backup, Points(lake.backup).get(DAY), [].append if said is None else said.append
    )


def test_a_key_of_no_table_that_the_target_cannot_hold_degrades_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    a_delta_table(lake.source / "flights", ROWS, partitioned_by=())
    odd = ListedObject("../../x", 1, dt.datetime(2026, 11, 20, tzinfo=dt.UTC), "0" * 32)
    proved = lake.made(DAY, [*lake.listing(), odd])
    assert (proved.status, proved.failed_objects) == ("verified", 1)
    assert any("'objects/../../x'" in reason for reason in proved.reasons)


class ReadOnlyStore(FolderStore):
    """A folder that nobody may write."""

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        raise BackupError(key, "the disk refused: Read-only file system", "Allow it.")

    def delete(self, key: str, version_id: str | None = None) -> None:
        raise BackupError(key, "the disk refused: Read-only file system", "Allow it.")


def test_a_table_is_restored_from_a_target_that_cannot_be_written(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("lakeshare_pipelines.backup.points.open_store", ReadOnlyStore)
    record = restores(lake, said).elsewhere("flights", StoreAddress(url=str(tmp_path / "restored")))
    assert record.rows == DeltaTable(tmp_path / "restored").to_pyarrow_table().num_rows == 4
    assert any("is read without protection from sweeps" in sentence for sentence in said)


@pytest.mark.parametrize("place", ["copies", "copies/restored", "link/restored"])
def test_nothing_is_restored_into_the_target_of_the_backup(lake: Lake, tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(lake.target)
    before = sorted(lake.target.rglob("*"))
    to = StoreAddress(url=str(tmp_path / place))
    with pytest.raises(BackupError, match="the target of backup lake"):
        restores(lake).elsewhere("flights", to)
    with pytest.raises(BackupError, match="the target of backup lake"):
        restores(lake).other_files(to)
    assert sorted(lake.target.rglob("*")) == before


def test_a_folder_of_a_day_is_a_target_too(tmp_path: Path) -> None:
    lake = Lake(tmp_path, layout="dated")
    a_delta_table(lake.source / "flights", ROWS, partitioned_by=())
    lake.made(DAY, lake.listing())
    for place in (f"copies-{DAY}/x", "copies-2020-01-01", "copies-2020-01-01T101500Z/x"):
        with pytest.raises(BackupError, match="the target of backup lake"):
            restores(lake).elsewhere("flights", StoreAddress(url=str(tmp_path / place)))
    assert restores(lake).elsewhere("flights", StoreAddress(url=str(tmp_path / "copies-restored"))).rows == 4


def test_a_sweep_removes_what_killed_copies_left(lake: Lake) -> None:
    left = lake.target / "objects" / "flights" / f"{UNFINISHED}0123"
    left.write_bytes(b"half")
    points, now = Points(lake.backup), dt.datetime.now(dt.UTC)
    sweep_points(lake.backup, points, now, dry_run=False)
    assert left.exists(), "it may still be written"
    tomorrow = now + dt.timedelta(days=1, minutes=1)
    sweep_points(lake.backup, points, tomorrow, dry_run=True)
    assert left.exists()
    said: list[str] = []
    sweep_points(lake.backup, points, tomorrow, dry_run=False, report_message=said.append)
    assert not left.exists()
    assert any("1 unfinished" in sentence for sentence in said)
    assert DeltaTable(left.parent).to_pyarrow_table().num_rows == 4


def test_a_restore_that_is_run_again_removes_what_the_killed_one_left(lake: Lake, tmp_path: Path) -> None:
    left = tmp_path / "restored" / f"{UNFINISHED}0123"
    left.parent.mkdir()
    left.write_bytes(b"half")
    assert restores(lake).elsewhere("flights", StoreAddress(url=str(tmp_path / "restored"))).rows == 4
    assert not left.exists()
