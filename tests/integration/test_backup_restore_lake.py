"""Published tables of the lake that were lost come back from a point, and recipients read what they read before.

Real Spark and Nessie make and publish them; the point is of plain copies (tests/builders/backup_points.py).
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.restore.copies import RestoreRecord
from lakeshare_pipelines.backup.restore.tables import PointRestore
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger, Publication
from lakeshare_server.storage import normalise_location
from lakeshare_server.tables import open_index
from tests.builders.backup_points import DAY, a_backup, a_point
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_delivery, green, orders, staged_without_reading

MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY = (f"2024-01-0{day}" for day in range(1, 6))


@dataclass
class Scene:
    """A set of two tables, published once, and a point of the lake as it was then."""

    lake: Lake
    catalog: Catalog
    contract: SetContract
    folder: Path
    backup: Backup
    point: Point | None = None

    @property
    def orders(self) -> str:
        return self.contract.table("orders").name

    @property
    def latest(self) -> Publication:
        found = Ledger(self.catalog).latest(self.orders)
        assert found is not None
        return found

    @property
    def root(self) -> Path:
        return Path(normalise_location(self.latest.location))

    def run(self, day: str, rows: int, *, is_read_by_spark: bool = False) -> None:
        """Deliver and publish a day; reading its delivery would take longer than everything else of a run."""
        delivered = orders(day, rows)
        a_delivery(self.lake.settings, self.contract, day, delivered)
        if is_read_by_spark:
            staged = stage(self.lake, self.contract, [day], str(uuid4()))
        else:
            staged = staged_without_reading(self.lake, self.contract, day, delivered)
        publish_or_replay(self.lake, self.catalog, self.contract, staged, green(self.contract, staged))

    def rows(self) -> list[object]:
        return rows_on_main(self.lake, self.contract, "orders")

    def served(self) -> set[str]:
        """The files that recipients are sent to, all of which are there."""
        index = open_index(self.lake.settings.index_dir, self.latest.index_digest)
        paths = {normalise_location(path) for batch in index.batches() for path in batch["path"].to_pylist()}
        assert all(Path(path).exists() for path in paths)
        return paths

    def new_point(self, day: str = DAY) -> Point:
        """A point of the tables of this set: other tests leave damaged tables in the same warehouse."""
        return a_point(self.backup, self.folder / "held", day, below=f"{self.contract.name}/")

    def lose(self, *, entry: bool = True) -> None:
        """All tables of the set at once."""
        publisher = self.lake.nessie("publisher")
        for table in self.contract.tables:
            latest = Ledger(self.catalog).latest(table.name)
            assert latest is not None
            if latest.format == "iceberg" and entry:
                publisher.drop_table(table.name, "main", publisher.reference("main").hash, message="lost")
            shutil.rmtree(normalise_location(latest.location))

    def restore(self) -> RestoreRecord:
        """Restore all tables of the set; what became of the orders."""
        point = self.point
        assert point is not None
        restores = PointRestore(self.lake.settings, self.backup, point)
        restored = [restores.in_place(self.catalog, table.name) for table in self.contract.tables]
        return next(one for one in restored if one.registered_as == self.orders)


@pytest.fixture
def scene(lake: Lake, catalog: Catalog, contract: SetContract, tmp_path: Path) -> Scene:
    settings = lake.settings.model_copy(update={"contracts_dir": tmp_path / "contracts"})
    mine = Lake(settings, lambda: lake.spark)
    found = Scene(mine, catalog, contract, tmp_path, a_backup(settings.lake_root, tmp_path / "backups"))
    found.run(MONDAY, 3)
    found.point = found.new_point()
    return found


def test_what_was_lost_or_went_on_is_read_again(scene: Scene) -> None:
    """One story of a table, since every publication takes Spark a while."""
    old, rows, files = scene.latest, scene.rows(), scene.served()
    was_served_again(scene, old, rows, files)
    scene.run(TUESDAY, 2)
    new = went_on_and_got_a_new_number(scene, old, rows)
    scene.run(WEDNESDAY, 4)
    lost_its_newest_numbers(scene, new, rows)
    # The set goes on from there.
    scene.run(THURSDAY, 5)
    assert scene.latest.rows == old.rows + 5
    an_older_version_of_a_newer_point(scene, old, rows)
    something_else_at_its_keys(scene, rows)


def an_older_version_of_a_newer_point(scene: Scene, old: Publication, rows: list[object]) -> None:
    newer = scene.latest
    point = scene.new_point("2026-11-21")
    version = old.snapshot_id if old.delta_version is None else old.delta_version
    settings = scene.lake.settings
    restored = PointRestore(settings, scene.backup, point).in_place(scene.catalog, scene.orders, version)
    assert scene.rows() == rows
    assert (restored.version, restored.rows) == (version, old.rows)
    assert scene.latest.version > newer.version
    scene.served()


def something_else_at_its_keys(scene: Scene, rows: list[object]) -> None:
    newer = scene.latest
    contents = {Path(path): Path(path).read_bytes() for path in scene.served()}
    try:
        for path in contents:
            path.write_text("mine")
        restored = scene.restore()
        assert scene.rows() == rows
        assert {path.read_text() for path in contents} == {"mine"}
        assert scene.latest.version == restored.publication > newer.version
        assert all("/_restored/" in path for path in scene.served())
        # The set goes on from there, by a whole run.
        scene.run(FRIDAY, 6, is_read_by_spark=True)
        assert scene.latest.rows == len(rows) + 6
    finally:
        for path, content in contents.items():
            path.write_bytes(content)


def was_served_again(scene: Scene, old: Publication, rows: list[object], files: set[str]) -> None:
    # The catalog has an entry of an Iceberg table only.
    for entry in {scene.latest.format == "iceberg", False}:
        scene.lose(entry=entry)
        restored = scene.restore()
        assert scene.rows() == rows
        assert scene.served() == files
        assert scene.latest == old
        assert (restored.registered_as, restored.publication) == (scene.orders, old.version)


def went_on_and_got_a_new_number(scene: Scene, old: Publication, rows: list[object]) -> Publication:
    newer = scene.latest
    assert newer.rows == old.rows + 2
    restored = scene.restore()
    assert scene.rows() == rows
    assert scene.latest.version > newer.version
    assert scene.latest.rollback_of == old.version
    assert restored.publication == scene.latest.version
    assert scene.latest.rows == old.rows
    # Once more, and there is no further number.
    assert scene.restore().publication == scene.latest.version == restored.publication
    return scene.latest


def lost_its_newest_numbers(scene: Scene, old: Publication, rows: list[object]) -> None:
    """Numbers that were lost are not given again."""
    newer = scene.latest
    assert newer.version > old.version
    scene.lose()
    restored = scene.restore()
    assert scene.rows() == rows
    assert scene.latest.version > newer.version
    assert restored.publication == scene.latest.version
    assert any("lost" in note for note in restored.notes)
    scene.served()
