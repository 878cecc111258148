"""An Iceberg table of a point opens at another place, or where its copies are, without source and without catalog."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.restore.targets import find_mount
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_points import a_backup, a_point
from tests.builders.lake_tables import an_iceberg_table, some_rows

TABLE = "lake/flights"


@dataclass
class Scene:
    """A point of a table of three snapshots, and the rows of each; the source is gone."""

    folder: Path
    settings: LakeSettings
    backup: Backup
    point: Point
    rows: dict[int, list[str]]

    @property
    def snapshots(self) -> list[int]:
        return list(self.rows)


def rows_at(location: str, snapshot_id: int | None = None) -> list[str]:
    found = StaticTable.from_metadata(location).scan(snapshot_id=snapshot_id).to_arrow()
    return sorted(map(repr, found.to_pylist()))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    table = an_iceberg_table(tmp_path / "source").table
    for days in (2, 1):
        table.append(some_rows(days=days))
    rows = {one.snapshot_id: rows_at(table.metadata_location, one.snapshot_id) for one in table.snapshots()}
    backup = a_backup(tmp_path / "source", tmp_path / "backups")
    point = a_point(backup, tmp_path / "held")
    (tmp_path / "source").rename(tmp_path / "gone")
    return Scene(tmp_path, LakeSettings(_env_file=None, state_dir=tmp_path / "state"), backup, point, rows)


@pytest.mark.parametrize("which", [None, 0, 1])
def test_it_opens_at_another_place_at_any_of_its_snapshots(scene: Scene, which: int | None) -> None:
    snapshot_id = None if which is None else scene.snapshots[which]
    to = StoreAddress(url=str(scene.folder / "elsewhere" / "flights"))
    restored = PointRestore(scene.settings, scene.backup, scene.point).elsewhere(TABLE, to, snapshot_id)
    # Nothing of it is in the backup any more.
    (scene.folder / "backups").rename(scene.folder / "also gone")
    wanted = scene.snapshots[-1] if snapshot_id is None else snapshot_id
    assert rows_at(restored.location) == scene.rows[wanted]
    assert restored.version == wanted
    assert restored.rows == len(scene.rows[wanted])


def test_it_opens_where_its_copies_are(scene: Scene) -> None:
    found = find_mount(Points(scene.backup), scene.point, TABLE)
    assert rows_at(found.location) == scene.rows[scene.snapshots[-1]]
    assert StaticTable.from_metadata(found.location).properties["gc.enabled"] == "false"


def test_a_restore_that_broke_off_goes_on(scene: Scene) -> None:
    to = StoreAddress(url=str(scene.folder / "elsewhere"))
    first = PointRestore(scene.settings, scene.backup, scene.point).elsewhere(TABLE, to)
    next((scene.folder / "elsewhere").rglob("*.parquet")).unlink()
    Path(first.location).unlink()
    again = PointRestore(scene.settings, scene.backup, scene.point).elsewhere(TABLE, to)
    assert (again.objects, again.location) == (1, first.location)
    assert rows_at(again.location) == scene.rows[scene.snapshots[-1]]


def test_a_snapshot_that_never_was_is_refused(scene: Scene) -> None:
    with pytest.raises(BackupError, match="no snapshot 5"):
        find_mount(Points(scene.backup), scene.point, TABLE, 5)
