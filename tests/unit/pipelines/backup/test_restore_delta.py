"""A Delta table comes back from a point as it was, wherever it was lost, and nothing that is there is overwritten."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.restore.copies import DestinationState, RestoreRecord, TableRestore
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog
from tests.builders.backup_points import DAY, KeptPoint
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows

TABLE = "sales/orders"


@dataclass
class Scene:
    """A lake with one table of four versions, 0 to 3, and a point of it."""

    folder: Path
    settings: LakeSettings
    catalog: Catalog
    backup: Backup
    point: Point

    @property
    def root(self) -> Path:
        return self.folder / "lake" / TABLE

    def rows(self, version: int | None = None, root: Path | None = None) -> list[str]:
        return sorted(map(repr, DeltaTable(root or self.root, version).to_pyarrow_table().to_pylist()))

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.root.rglob("*")) if path.is_file()}

    def restore(self, version: int | None = None) -> RestoreRecord:
        return PointRestore(self.settings, self.backup, self.point).in_place(self.catalog, TABLE, version)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptPoint:
    folder = tmp_path_factory.mktemp("scene")
    root = a_delta_table(folder / "lake" / TABLE)
    for days in (1, 2, 3):
        append_delta(root, some_rows(days=days))
    DeltaTable(root).create_checkpoint()
    return KeptPoint.of(folder)


@pytest.fixture
def scene(kept: KeptPoint) -> Scene:
    return Scene(kept.folder.path, *kept.put_back(), kept.backup, kept.point)


def test_a_deleted_table_is_the_same_table_again(scene: Scene) -> None:
    before = scene.files()
    rows = scene.rows()
    shutil.rmtree(scene.root)
    restored = scene.restore()
    assert scene.rows() == rows
    assert {path: content for path, content in scene.files().items() if "_last" not in path} == {
        path: content for path, content in before.items() if "_last" not in path
    }
    assert (restored.version, restored.objects, restored.rows) == (3, len(before) - 1, len(rows))


def test_the_pointer_speaks_of_the_checkpoint_that_is_there(scene: Scene) -> None:
    shutil.rmtree(scene.root)
    scene.restore()
    pointer = (scene.root / "_delta_log" / "_last_checkpoint").read_text()
    rows = pq.read_metadata(scene.root / "_delta_log" / f"{3:020}.checkpoint.parquet").num_rows
    assert pointer == f'{{"version": 3, "size": {rows}}}'


@pytest.mark.parametrize(
    "lost", ["*.parquet", "_delta_log/*.json", "_delta_log", "_delta_log/_last_checkpoint"]
)
def test_what_is_missing_is_put_back_and_nothing_else_is_touched(scene: Scene, lost: str) -> None:
    rows = scene.rows()
    gone = [
        path
        for path in scene.root.rglob(lost.rpartition("/")[2])
        if lost.startswith("_") or path.parent != scene.root / "_delta_log"
    ]
    for path in gone:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    left = scene.files()
    restored = scene.restore()
    assert scene.rows() == rows
    now = scene.files()
    assert {path: now[path] for path in left} == left
    assert restored.version == 3


def test_the_end_of_a_live_log_comes_back_and_a_commit_that_another_writer_made_meanwhile_stays(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, rows = scene.root / "_delta_log", scene.rows()
    lost = [*log.glob(f"{2:020}*"), *log.glob(f"{3:020}*"), log / "_last_checkpoint"]
    contents = {path: path.read_bytes() for path in lost}
    for path in lost:
        path.unlink()
    bring = TableRestore.bring

    def bring_late(work: TableRestore, at: DestinationState, *, into_live_log: bool = False) -> None:
        append_delta(scene.root, some_rows(days=1))
        bring(work, at, into_live_log=into_live_log)

    with monkeypatch.context() as patched:
        patched.setattr(TableRestore, "bring", bring_late)
        with pytest.raises(BackupError, match=r"00002\.json: another writer wrote it meanwhile"):
            scene.restore()
    other = log / f"{2:020}.json"
    assert other.read_bytes() != contents[other]
    other.unlink()
    assert scene.restore().objects == 3
    assert scene.rows() == rows
    assert [path for path in lost[:-1] if path.read_bytes() != contents[path]] == []


def test_a_table_that_is_whole_needs_nothing(scene: Scene) -> None:
    before = scene.files()
    assert scene.restore().objects == 0
    assert scene.files() == before


def test_a_table_that_went_on_shows_the_restored_state_by_a_new_commit(scene: Scene) -> None:
    rows = scene.rows(3)
    DeltaTable(scene.root).delete("day = DATE '2013-01-01'")
    append_delta(scene.root, some_rows(days=1))
    before = scene.files()
    scene.restore()
    assert DeltaTable(scene.root).version() == 6
    assert scene.rows() == rows
    assert {path: scene.files()[path] for path in before} == before
    # Once more changes nothing.
    scene.restore()
    assert DeltaTable(scene.root).version() == 6


def test_files_that_were_vacuumed_since_come_back_before_the_commit(scene: Scene) -> None:
    rows = scene.rows(3)
    DeltaTable(scene.root).delete()
    DeltaTable(scene.root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    restored = scene.restore()
    assert restored.objects > 0
    assert scene.rows() == rows


def test_a_table_made_anew_at_the_same_place_keeps_its_own_files(scene: Scene) -> None:
    rows = scene.rows(3)
    shutil.rmtree(scene.root)
    a_delta_table(scene.root, some_rows(days=1))
    before = scene.files()
    scene.restore()
    assert scene.rows() == rows
    assert {path: scene.files()[path] for path in before} == before
    assert (scene.root / "_restored" / DAY / "_delta_log").is_dir()
    assert scene.rows(0) == sorted(map(repr, some_rows(days=1).to_pylist()))


def test_a_table_of_other_columns_at_the_same_place_is_left_alone(scene: Scene) -> None:
    shutil.rmtree(scene.root)
    a_delta_table(scene.root, pa.table({"other": [1]}), partitioned_by=())
    with pytest.raises(BackupError, match="other columns"):
        scene.restore()
    assert DeltaTable(scene.root).version() == 0
    assert DeltaTable(scene.root).to_pyarrow_table().to_pylist() == [{"other": 1}]


def test_a_log_with_a_hole_is_refused_and_left_alone(scene: Scene) -> None:
    for days in (1, 1, 1):
        append_delta(scene.root, some_rows(days=days))
    (scene.root / "_delta_log" / f"{5:020}.json").unlink()
    before = scene.files()
    with pytest.raises(BackupError, match="but not 5"):
        scene.restore()
    assert scene.files() == before


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_inside_the_point_comes_back_elsewhere(scene: Scene, version: int) -> None:
    rows = scene.rows(version)
    to = scene.folder / "elsewhere" / "orders"
    restored = PointRestore(scene.settings, scene.backup, scene.point).elsewhere(
        TABLE, StoreAddress(url=str(to)), version
    )
    shutil.rmtree(scene.root)
    assert DeltaTable(to).version() == version == restored.version
    assert scene.rows(root=to) == rows
    assert not (to.parent / "_lakeshare").exists()


def test_a_place_where_something_is_is_refused(scene: Scene) -> None:
    to = scene.folder / "elsewhere"
    to.mkdir()
    (to / "notes.txt").write_text("mine")
    with pytest.raises(BackupError, match=r"notes\.txt"):
        PointRestore(scene.settings, scene.backup, scene.point).elsewhere(TABLE, StoreAddress(url=str(to)))
    assert [path.name for path in to.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("damage", ["gone", "shorter", "changed", "changed as long ago"])
def test_a_damaged_copy_is_refused_with_its_name(scene: Scene, damage: str) -> None:
    shutil.rmtree(scene.root)
    copy = next((scene.folder / "backups" / "objects" / TABLE).rglob("*.parquet"))
    if damage == "gone":
        copy.unlink()
    elif damage == "shorter":
        copy.write_bytes(copy.read_bytes()[:-1])
    else:
        was = copy.stat()
        content = bytearray(copy.read_bytes())
        content[40] ^= 1
        copy.write_bytes(content)
        if damage == "changed as long ago":
            os.utime(copy, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(BackupError, match=copy.name):
        scene.restore()
    assert not (scene.root / "_delta_log").exists()
    assert not list(scene.root.rglob(copy.name))


def test_a_restore_that_broke_off_goes_on(scene: Scene) -> None:
    rows = scene.rows()
    shutil.rmtree(scene.root)
    copy = max((scene.folder / "backups" / "objects" / TABLE).rglob("*.parquet"))
    was, content = copy.stat(), copy.read_bytes()
    copy.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    os.utime(copy, ns=(was.st_atime_ns, was.st_mtime_ns))
    with pytest.raises(BackupError, match="was backed up"):
        scene.restore()
    there = [path.name for path in scene.root.rglob("*.parquet")]
    assert there
    copy.write_bytes(content)
    os.utime(copy, ns=(was.st_atime_ns, was.st_mtime_ns))
    again = scene.restore()
    assert scene.rows() == rows
    assert again.objects == len(list(scene.root.rglob("*.*"))) - len(there)


@pytest.mark.parametrize(
    ("table", "version", "said"),
    [("sales/none", None, "no such table"), (TABLE, 9, "versions 0 to 3"), (TABLE, -1, "versions 0 to 3")],
)
def test_what_the_point_does_not_hold_is_refused(
    scene: Scene, table: str, version: int | None, said: str
) -> None:
    with pytest.raises(BackupError, match=said):
        PointRestore(scene.settings, scene.backup, scene.point).in_place(scene.catalog, table, version)


def test_the_point_is_held_only_while_it_is_read(scene: Scene) -> None:
    shutil.rmtree(scene.root)
    scene.restore()
    leases = scene.folder / "backups" / "_lakeshare" / "lake" / "points" / DAY / "leases"
    assert not any(leases.iterdir())
