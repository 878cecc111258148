"""A partition of a live Delta table goes back to what it was, by one commit that touches nothing else."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.restore.copies import RestoreRecord
from lakeshare_pipelines.backup.restore.tables import REMOVE_FIELDS, PointRestore
from lakeshare_pipelines.backup.restore.targets import read_live_adds
from lakeshare_pipelines.backup.stores import open_store
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders.backup_points import KeptPoint
from tests.builders.hostile.matrix import unpack
from tests.builders.kernel import read_by_the_kernel
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows

FIRST, SECOND = "2013-01-01", "2013-01-02"


@dataclass
class Scene:
    """A table of three days, its point, and what it was on each day."""

    root: Path
    settings: LakeSettings
    catalog: Catalog
    backup: Backup
    point: Point

    def day(self, day: str) -> list[str]:
        rows = DeltaTable(self.root).to_pyarrow_table().to_pylist()
        return sorted(repr(row) for row in rows if str(row["day"]) == day)

    @property
    def restores(self) -> PointRestore:
        return PointRestore(self.settings, self.backup, self.point)

    def restore(self, **values: str | None) -> RestoreRecord:
        return self.restores.partition(self.catalog, "flights", values)


@pytest.fixture(scope="module", params=["commits", "checkpoint"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KeptPoint:
    folder = tmp_path_factory.mktemp(request.param)
    root = a_delta_table(folder / "lake" / "flights")
    append_delta(root, some_rows(days=2))
    if request.param == "checkpoint":
        DeltaTable(root).create_checkpoint()
    return KeptPoint.of(folder)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the hostile tables."""
    folder = tmp_path_factory.mktemp("hostile")
    unpack(folder)
    return folder / "tables"


@pytest.fixture
def scene(kept: KeptPoint) -> Scene:
    return Scene(kept.folder.path / "lake" / "flights", *kept.put_back(), kept.backup, kept.point)


def test_the_partition_is_what_it_was_and_others_are_what_they_are(scene: Scene) -> None:
    first = scene.day(FIRST)
    DeltaTable(scene.root).delete(f"day = DATE '{FIRST}'")
    DeltaTable(scene.root).delete(f"day = DATE '{SECOND}'")
    append_delta(scene.root, some_rows(days=2).slice(0, 1))
    second = scene.day(SECOND)
    version = DeltaTable(scene.root).version()
    restored = scene.restore(day=FIRST)
    assert scene.day(FIRST) == first
    assert scene.day(SECOND) == second
    assert DeltaTable(scene.root).version() == version + 1
    assert restored.objects == 0
    # Statistics and sizes are those of the first time: the log says again what it said.
    told = DeltaTable(scene.root).get_add_actions(flatten=True)
    assert None not in pa.table(told)["num_records"].to_pylist()


def test_a_plan_says_what_comes_and_goes(scene: Scene) -> None:
    DeltaTable(scene.root).delete(f"day = DATE '{FIRST}'")
    append_delta(scene.root, some_rows(days=1))
    told = scene.restores.plan_of_partition(scene.catalog, "flights", {"day": FIRST})
    assert "removes 1 files of the partition and adds 2." in told.steps[1]
    assert told.objects == 0
    scene.restore(day=FIRST)
    told = scene.restores.plan_of_partition(scene.catalog, "flights", {"day": FIRST})
    assert "no commit" in told.steps[1]


def test_vacuumed_files_come_back(scene: Scene) -> None:
    first = scene.day(FIRST)
    DeltaTable(scene.root).delete(f"day = DATE '{FIRST}'")
    DeltaTable(scene.root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert scene.restore(day=FIRST).objects == 2
    assert scene.day(FIRST) == first


def test_a_partition_that_is_what_it_was_gets_no_commit(scene: Scene) -> None:
    version = DeltaTable(scene.root).version()
    scene.restore(day=FIRST)
    assert DeltaTable(scene.root).version() == version


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"day": "2020-01-01"}, "no files of day=2020-01-01"),
        ({"month": "1"}, "no such partition column. The table"),
    ],
)
def test_a_partition_that_never_was_is_refused(scene: Scene, values: dict[str, str], said: str) -> None:
    version = DeltaTable(scene.root).version()
    with pytest.raises(BackupError, match=said):
        scene.restore(**values)
    assert DeltaTable(scene.root).version() == version


def test_a_table_of_appends_only_is_refused(scene: Scene) -> None:
    DeltaTable(scene.root).alter.set_table_properties({"delta.appendOnly": "true"})
    assert refused(scene, "appends only") == 2


def test_features_that_ask_more_of_a_commit_are_refused(scene: Scene) -> None:
    protocol = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["rowTracking", "domainMetadata"],
    }
    (scene.root / "_delta_log" / f"{2:020}.json").write_text(json.dumps({"protocol": protocol}))
    assert refused(scene, "domainMetadata, rowTracking") == 2


@pytest.mark.parametrize(
    ("name", "column"), [("dv_partitioned", "p"), ("dv_and_cm_table", "partition_col"), ("cm_id", "part of")]
)
def test_partitions_with_deletion_vectors_and_of_mapped_columns_come_back(
    name: str, column: str, hostile: Path, tmp_path: Path
) -> None:
    root = tmp_path / "lake" / "flights"
    shutil.copytree(hostile / name, root)
    kept = KeptPoint.of(tmp_path)
    restores = PointRestore(
        LakeSettings(_env_file=None, state_dir=tmp_path / "state"), kept.backup, kept.point
    )
    rows, table = read_by_the_kernel(root).to_pylist(), DeltaTable(root)
    adds = read_live_adds(open_store(kept.backup.source), "flights", table.version()).values()
    vectors = [add["deletionVector"] for add in adds if add.get("deletionVector")]
    assert bool(vectors) == name.startswith("dv_")

    removes = [
        {"remove": {field: add.get(field) for field in REMOVE_FIELDS} | {"dataChange": True}} for add in adds
    ]
    commit = root / "_delta_log" / f"{table.version() + 1:020}.json"
    commit.write_text("\n".join(map(json.dumps, removes)))
    for path in root.rglob("deletion_vector_*.bin"):
        path.unlink()
    assert read_by_the_kernel(root).num_rows == 0

    values = {None if row[column] is None else str(row[column]) for row in rows}
    for value in sorted(values, key=str):
        restores.partition(open_catalog(restores.settings.catalog_url), "flights", {column: value})
        found = [row for row in read_by_the_kernel(root).to_pylist() if str(row[column]) == str(value)]
        assert sorted(map(repr, found)) == sorted(repr(row) for row in rows if str(row[column]) == str(value))
    assert sorted(map(repr, read_by_the_kernel(root).to_pylist())) == sorted(map(repr, rows))


def refused(scene: Scene, said: str) -> int:
    with pytest.raises(BackupError, match=said):
        scene.restore(day=FIRST)
    return DeltaTable(scene.root).version()
