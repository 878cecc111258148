"""`lakeshare backup plan` shows what a point would take and keeps nothing; `sweep` and `orphans` tell theirs."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.cli.main import main
from tests.builders.backup_plans import a_planner, rows_of_folder

DAY = "2100-01-01"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A backup of a folder with one Delta table."""
    declare(tmp_path, "")
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(tmp_path / "backups.yaml"))
    write_deltalake(tmp_path / "lake" / "sales" / "t", pa.table({"id": [1]}))
    return tmp_path


def declare(folder: Path, more: str) -> None:
    (folder / "backups.yaml").write_text(
        f"backups:\n  lake:\n    source: {{url: {folder / 'lake'}}}\n    target: {{url: {folder / 'target'}}}\n"
        f"    listing: {{lag_days: 0, wait_hours: 0}}\n{more}"
    )


def ran(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["lakeshare", "backup", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_plan_is_shown_and_leaves_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ran(monkeypatch, capsys, "plan")
    assert code == 0
    assert "2 requests, 0.00 USD" in out
    assert "delta    sales/t" in out
    assert not (lake / "target").exists()
    assert not [path for path in (lake / "state").rglob("*") if path.is_file()]


def test_a_plan_beyond_its_bounds_is_shown_and_refused(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(lake, "    bounds: {objects: 1}\n")
    code, out, err = ran(monkeypatch, capsys, "plan", "lake")
    assert code == 1
    assert "to copy" in out
    assert "2 objects where 1 are allowed" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "--day", "soon"], "'soon' is no day"),
        (["plan", "other"], "the declared ones are lake"),
        (["lock", "lake", DAY, "--until", "soon"], "'soon' is no day"),
        (["lock", "lake", "2099-01-01"], "it has no point '2099-01-01'"),
        (["lock", "lake", DAY], "it has no lock"),
        (["orphans", "lake", "2099-01-01"], "it has no point '2099-01-01'"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    lake: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    planner = a_planner(lake, source={"url": str(lake / "lake")})
    planner.point(DAY, rows_of_folder(lake / "lake"))
    code, _, err = ran(monkeypatch, capsys, *arguments)
    assert code != 0
    assert sentence in err


def test_a_sweep_and_orphans_are_told(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(lake, "    retention: {daily: 1, weekly: 0, monthly: 0, yearly: 0}\n")
    (lake / "lake" / "sales" / "t" / "stray").write_text("x" * 9)
    planner = a_planner(lake, source={"url": str(lake / "lake")})
    for day in ("2099-12-31", DAY):
        planner.point(day, rows_of_folder(lake / "lake"))
    code, out, _ = ran(monkeypatch, capsys, "orphans", "lake")
    assert code == 0
    assert "1 orphans of 1 tables, 9 bytes" in out
    assert ran(monkeypatch, capsys, "sweep", "--dry-run")[1].startswith(
        "lake: 1 points would go, with 0 copies"
    )
    assert planner.points.days() == ["2099-12-31", DAY]
    assert ran(monkeypatch, capsys, "sweep")[1].startswith("lake: 1 points are gone, with 0 copies")
    assert planner.points.days() == [DAY]
