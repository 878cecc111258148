"""A restore takes the newest fully verified point, and tells why."""

from pathlib import Path

import pytest

from lakeshare_pipelines.backup.model import Point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.restore.copies import get_point
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_points import a_backup, a_point
from tests.builders.lake_tables import a_delta_table

DAYS = ("2026-11-18", "2026-11-19", "2026-11-20", "2026-11-21")


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Points:
    """One fully verified point and three newer ones: with fallbacks, degraded, and with a damaged record."""
    a_delta_table(tmp_path / "lake" / "flights")
    backup = a_backup(tmp_path / "lake", tmp_path / "backups")
    write = Points.write
    for day, status in zip(DAYS, ("verified", "verified_with_fallback", "degraded", "verified"), strict=True):

        def written(points: Points, point: Point, held: Path, status: str = status) -> None:
            write(points, point.model_copy(update={"status": status}), held)

        monkeypatch.setattr(Points, "write", written)
        a_point(backup, tmp_path / "held", day)
    points = Points(backup)
    points.store.put(f"{points.folder(DAYS[-1])}point.json", b"{")
    return points


def test_the_newest_fully_verified_point_is_taken_and_the_others_are_named(points: Points) -> None:
    said: list[str] = []
    assert get_point(points, None, said.append).day == DAYS[0]
    assert said == [
        "Point 2026-11-18 is taken: the newest that is fully verified. Passed over: 2026-11-19 is "
        "verified_with_fallback; 2026-11-20 is degraded; 2026-11-21 is damaged."
    ]


def test_without_a_fully_verified_one_the_newest_with_fallbacks_is_taken(points: Points) -> None:
    said: list[str] = []
    points.store.delete(f"{points.folder(DAYS[0])}point.json")
    assert get_point(points, None, said.append).day == DAYS[1]
    assert "none is fully verified" in said[0]


def test_a_point_that_is_named_is_taken_without_a_word(points: Points) -> None:
    said: list[str] = []
    assert get_point(points, DAYS[2], said.append).day == DAYS[2]
    assert said == []
    with pytest.raises(BackupError, match="cannot be read"):
        get_point(points, DAYS[3])
