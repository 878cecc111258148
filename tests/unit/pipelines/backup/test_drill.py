"""A drill proves that a table comes back, says how long that took, and names the copy that keeps it from doing so."""

import json
import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.run import draw_table, run_drill
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_points import DAY, a_backup, a_point
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows


@pytest.fixture
def settings(tmp_path: Path) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path / "state")


@pytest.fixture(params=["delta", "iceberg"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> Backup:
    """A backup of one table, with a point."""
    if request.param == "delta":
        append_delta(a_delta_table(tmp_path / "lake" / "flights"), some_rows(days=2))
    else:
        an_iceberg_table(tmp_path / "lake").append(some_rows(days=2))
    made = a_backup(tmp_path / "lake", tmp_path / "backups")
    a_point(made, tmp_path / "held")
    return made


def test_a_whole_point_passes_and_leaves_a_record(
    backup: Backup, settings: LakeSettings, tmp_path: Path
) -> None:
    points = Points(backup)
    ran = run_drill(backup, points, settings, "seed")
    assert ran.passed
    assert ran.reasons == ()
    assert (ran.day, ran.rows) == (DAY, 20)
    copies = [
        path for path in (tmp_path / "backups" / "objects").rglob("*.*") if path.parent.name != "metadata"
    ]
    assert ran.objects == ran.compared == len(copies)
    assert ran.rto_s > 0
    [kept] = [one.key for one in points.store.list(f"{points.folder(DAY)}drills/")]
    assert json.loads(points.store.read(kept)) == json.loads(ran.model_dump_json())
    assert not any((settings.state_dir / "drills" / backup.name).iterdir())


@pytest.mark.parametrize("damage", ["gone", "changed behind its back"])
def test_a_damaged_copy_fails_the_drill_and_is_named(
    backup: Backup, settings: LakeSettings, tmp_path: Path, damage: str
) -> None:
    copy = max((tmp_path / "backups" / "objects").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    if damage == "gone":
        copy.unlink()
    else:
        was, content = copy.stat(), bytearray(copy.read_bytes())
        content[len(content) // 2] ^= 1
        copy.write_bytes(content)
        os.utime(copy, ns=(was.st_atime_ns, was.st_mtime_ns))
    ran = run_drill(backup, Points(backup), settings, "seed")
    assert not ran.passed
    assert any(copy.name in reason for reason in ran.reasons)
    assert not any((settings.state_dir / "drills" / backup.name).iterdir())


def test_a_table_of_other_rows_than_were_proved_fails(tmp_path: Path, settings: LakeSettings) -> None:
    a_delta_table(tmp_path / "lake" / "flights")
    made = a_backup(tmp_path / "lake", tmp_path / "backups")
    a_point(made, tmp_path / "held", rows=11)
    ran = run_drill(made, Points(made), settings, "seed")
    assert not ran.passed
    assert "12 rows" in ran.reasons[0]
    assert "proved 11" in ran.reasons[0]


def a_point_of_three(tmp_path: Path) -> tuple[Backup, Point]:
    for name in ("rare", "often", "never"):
        a_delta_table(tmp_path / "lake" / name)
    made = a_backup(tmp_path / "lake", tmp_path / "backups")
    weighed = made.model_copy(update={"drill_weights": {"often": 3.0, "never": 0.0}})
    return weighed, a_point(weighed, tmp_path / "held")


def test_tables_are_drawn_by_their_weights(tmp_path: Path) -> None:
    backup, point = a_point_of_three(tmp_path)
    random = Random(7)
    found = Counter(draw_table(backup, point, random).table.root for _ in range(1000))
    assert found["never"] == 0
    assert 2 < found["often"] / found["rare"] < 4


def test_the_same_seed_draws_the_same_table(tmp_path: Path, settings: LakeSettings) -> None:
    backup, _ = a_point_of_three(tmp_path)
    drilled = {run_drill(backup, Points(backup), settings, "same").table for _ in range(2)}
    assert len(drilled) == 1


def test_without_a_good_point_there_is_nothing_to_drill(tmp_path: Path, settings: LakeSettings) -> None:
    backup = a_backup(tmp_path / "lake", tmp_path / "backups")
    with pytest.raises(BackupError, match="no verified point"):
        run_drill(backup, Points(backup), settings, "seed")


def test_the_source_is_not_asked(backup: Backup, settings: LakeSettings, tmp_path: Path) -> None:
    """A drill is of the day on which the source is gone."""
    (tmp_path / "lake").rename(tmp_path / "gone")
    assert run_drill(backup, Points(backup), settings, "seed").passed
