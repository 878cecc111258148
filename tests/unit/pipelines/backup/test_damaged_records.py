"""A point whose own record is cut, changed or gone is listed as damaged, and stops nothing else."""

import datetime as dt
import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.backup.config import Retention
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.retention import sweep_points
from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.errors import BackupError, DamagedRecord
from lakeshare_pipelines.settings import LakeSettings
from tests.builders.backup_damage import delete, flip_bytes, truncate
from tests.builders.backup_lakes import Lake
from tests.builders.kept_folder import KeptFolder
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows

DAYS = ONE, TWO, THREE = "2099-12-29", "2099-12-30", "2099-12-31"
ROWS = some_rows(days=1)
ROWS_HELD = "held/part-00000.parquet"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptFolder:
    """A Delta table with two points."""
    lake = Lake(tmp_path_factory.mktemp("points"))
    a_delta_table(lake.source / "flights", ROWS, partitioned_by=())
    lake.made(ONE, lake.listing())
    append_delta(lake.source / "flights", ROWS)
    lake.made(TWO, lake.listing())
    return KeptFolder(lake.base)


@pytest.fixture
def lake(kept: KeptFolder) -> Lake:
    return Lake(kept.put_back())


def record(lake: Lake, day: str, name: str) -> Path:
    points = Points(lake.backup)
    return Path(points.store.address.url) / points.folder(day) / name


@pytest.mark.parametrize(
    ("day", "name", "damage"),
    [
        (ONE, "point.json", truncate),
        (TWO, "point.json", flip_bytes),
        (TWO, "point.json", delete),
        (ONE, ROWS_HELD, flip_bytes),
        (TWO, ROWS_HELD, truncate),
        (TWO, ROWS_HELD, delete),
    ],
)
def test_a_damaged_record_keeps_no_new_point_from_being_made(lake: Lake, day: str, name: str, damage) -> None:  # type: ignore[no-untyped-def]
    damage(record(lake, day, name), Random(3), [])
    append_delta(lake.source / "flights", ROWS)
    proved = lake.made(THREE, lake.listing())
    assert proved.status == "verified"
    assert proved.tables[0].rows == 12
    points = Points(lake.backup)
    newest = points.latest_good()
    assert newest is not None
    assert newest.day == THREE
    # The sweep removes nothing that a damaged point may need, and says which one that is.
    swept = sweep_points(lake.backup, points, dt.datetime(2200, 1, 1, tzinfo=dt.UTC), dry_run=False)
    assert swept.days == ()
    if (name, damage) != ("point.json", delete):
        assert any(f"point {day}" in sentence for sentence in swept.spared)


def test_any_changed_value_of_a_record_is_noticed(lake: Lake) -> None:
    """Also where the JSON is whole."""
    path = record(lake, TWO, "point.json")
    said = json.loads(path.read_text())
    said["verification"]["tables"][0]["version"] = 0
    path.write_text(json.dumps(said))
    with pytest.raises(DamagedRecord, match="digest"):
        Points(lake.backup).get(TWO)


def test_the_record_of_another_day_is_noticed(lake: Lake) -> None:
    record(lake, TWO, "point.json").write_bytes(record(lake, ONE, "point.json").read_bytes())
    with pytest.raises(DamagedRecord, match=ONE):
        Points(lake.backup).get(TWO)


def test_a_record_of_an_earlier_release_has_no_digest_and_is_read(lake: Lake) -> None:
    path = record(lake, TWO, "point.json")
    said = json.loads(path.read_text())
    for name in ("digest", "held_digests"):
        del said[name]
    path.write_text(json.dumps(said))
    assert Points(lake.backup).get(TWO).status == "verified"


def test_the_list_shows_damaged_points_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state", warehouse=tmp_path / "lake")
    lake = Lake(tmp_path, declared=_embedded(settings))
    a_delta_table(Path(lake.backup.source.url) / "flights", ROWS, partitioned_by=())
    for day in (ONE, TWO):
        lake.made(day, lake.listing())
    record(lake, ONE, "point.json").write_bytes(b"{")
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("LAKESHARE_WAREHOUSE", str(settings.lake_root))
    shown = CliRunner().invoke(app, ["backup", "list"])
    assert shown.exit_code == 0, shown.output
    first, second = shown.output.splitlines()
    assert first.startswith(f"{ONE}           damaged: point.json cannot be read")
    assert second.split()[:2] == [TWO, "verified"]


def _embedded(settings: LakeSettings):  # type: ignore[no-untyped-def]
    from lakeshare_pipelines.backup.config import make_embedded_backup

    return make_embedded_backup(settings)


def test_damaged_marks_of_others_keep_a_sweep_from_nothing_but_their_own_points(lake: Lake) -> None:
    """A lease, a lock's end, a claim and the mark of a sweep that broke off."""
    points, now = Points(lake.backup), dt.datetime.now(dt.UTC)
    for name in (f"{points.folder(ONE)}leases/x.json", f"{points.folder(TWO)}lock.json", points.sweep_key):
        points.store.put(name, b"{")
    points.store.put(f"{points.folder(THREE)}claim.json", b"[]")
    with pytest.raises(BackupError, match="another sweep is running"):
        sweep_points(lake.backup, points, now, dry_run=False)
    with pytest.raises(BackupError, match="claim cannot be read is making it"):
        points.claim(THREE, "me")
    points.store.delete(points.sweep_key)
    strict = lake.backup.model_copy(update={"retention": Retention(daily=1, weekly=0, monthly=0, yearly=0)})
    append_delta(lake.source / "flights", ROWS)
    lake.made(THREE, lake.listing())
    assert sweep_points(strict, points, now, dry_run=False).spared == (
        f"{ONE} stays: a reader whose lease cannot be read reads it.",
        f"{TWO} stays: lock.json cannot be read, so it may be locked.",
    )
    # A lease that nobody can have any more holds nothing.
    later = now + dt.timedelta(days=3)
    assert sweep_points(strict, points, later, dry_run=True).days == (ONE,)
