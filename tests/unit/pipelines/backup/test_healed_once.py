"""A healed file is held once, whatever wanted it, and the point that was healed can be restored and drilled."""

from pathlib import Path

from deltalake import DeltaTable

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.run import run_drill
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_lakes import Lake
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows

ONE, TWO = "2099-12-30", "2099-12-31"
ROWS = some_rows(days=1)


def test_a_log_file_that_was_healed_is_held_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    append_delta(a_delta_table(lake.source / "flights", ROWS, partitioned_by=()), ROWS)
    lake.made(ONE, lake.listing())
    (lost,) = (lake.target / "objects").rglob("*0.json")
    lost.unlink()
    (proof,) = lake.made(TWO, lake.listing()).tables
    assert (proof.status, len(proof.healed)) == ("verified", 1)
    points = Points(lake.backup)
    keys = [key for batch in points.read_copies(points.get(TWO)) for key in batch["key"].to_pylist()]
    assert len(keys) == len(set(keys)) == 4
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    ran = run_drill(lake.backup, points, settings, "seed")
    assert (ran.passed, ran.rows, ran.day) == (True, 8, TWO)
    assert DeltaTable(lake.target / "objects" / "flights").version() == 1
