"""The commands `lakeshare backup …` as a person types them, on a backup of a folder with one Delta table."""

from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lakeshare_pipelines.backup import run
from lakeshare_pipelines.backup.model import Verification
from lakeshare_pipelines.backup.points import Points, wait_for_point_name
from lakeshare_pipelines.cli.backup import load_backup
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


@pytest.mark.parametrize(
    "day", ["soon", "20260101", "2026-1-1", "2026-02-30", "2026-01-01T00:00:00Z", "2100-01-01"]
)
def test_a_day_that_is_none_or_is_not_over_is_not_claimed(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], day: str
) -> None:
    code, _, err = ran(monkeypatch, capsys, "run", "--day", day)
    assert code != 0
    assert "it can be made from 2100-01-02 00:00 UTC on" in err or f"'{day}' is no day" in err
    assert not (lake / "target").exists()


def test_a_point_is_made_once_shown_and_read_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ran(monkeypatch, capsys, "list")
    assert (code, out) == (0, "lake has no point yet: `lakeshare backup run lake` makes one\n")
    assert ran(monkeypatch, capsys, "show", "lake")[0] == 1
    code, out, _ = ran(monkeypatch, capsys, "run")
    assert code == 0
    (day,) = Points(load_backup(None)[1]).days()
    shown = out[out.index(f"lake {day}: verified, 2 objects") :]
    assert "sales/t                                  delta   verified               L4 version 0" in shown
    assert ran(monkeypatch, capsys, "show", "lake")[1] == shown
    assert ran(monkeypatch, capsys, "list")[1].startswith(
        f"{day:20} verified               yearly       1 tables"
    )
    code, _, err = ran(monkeypatch, capsys, "run", "--day", day)
    assert (code, "the point exists already" in err) == (1, True)
    code, _, err = ran(monkeypatch, capsys, "release", "lake", day)
    assert (code, "no run has claimed it" in err) == (1, True)

    (copy,) = (lake / "target" / "objects").rglob("*.parquet")
    whole = copy.read_bytes()
    copy.write_bytes(bytes(len(whole)))
    code, out, _ = ran(monkeypatch, capsys, "scrub", "--all")
    assert (code, copy.read_bytes()) == (0, whole)
    assert "lake: read 2 of 2 copies" in out
    (lake / "lake" / copy.relative_to(lake / "target" / "objects")).unlink()
    copy.write_bytes(bytes(len(whole)))
    code, out, _ = ran(monkeypatch, capsys, "scrub", "--all")
    assert code == 1
    assert "DAMAGED" in out
    assert f"degraded by that: {day}" in out
    assert "degraded" in ran(monkeypatch, capsys, "show", "lake")[1]


def test_a_claimed_day_is_made_after_it_was_released(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day = wait_for_point_name()
    Points(load_backup(None)[1]).claim(day, "run 5d1c")
    code, _, err = ran(monkeypatch, capsys, "run", "--day", day)
    assert code == 1
    assert (
        f"run 5d1c is making it. Wait for it, or take it over with `lakeshare backup release lake {day}`"
        in err
    )
    code, out, _ = ran(monkeypatch, capsys, "release", "lake", day)
    assert (code, out) == (0, f"lake {day} can be made by another run\n")
    assert ran(monkeypatch, capsys, "run", "--day", day)[0] == 0


def test_a_day_that_another_host_makes_by_hand_is_not_made_twice(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day = wait_for_point_name()
    with monkeypatch.context() as there:
        there.setenv("LAKESHARE_STATE_DIR", str(lake / "elsewhere"))
        there.setattr("socket.gethostname", lambda: "two")
        # The other host is interrupted while it plans.
        there.setattr(run, "ensure_plan", Mock(side_effect=KeyboardInterrupt))
        assert ran(there, capsys, "run", "--day", day)[0] == 130
    code, _, err = ran(monkeypatch, capsys, "run", "--day", day)
    assert (
        code,
        f"a run by hand on two, with the state folder {lake / 'elsewhere'}, is making it" in err,
    ) == (1, True)
    with monkeypatch.context() as there:
        there.setenv("LAKESHARE_STATE_DIR", str(lake / "elsewhere"))
        there.setattr("socket.gethostname", lambda: "two")
        assert ran(there, capsys, "run", "--day", day)[0] == 0


def test_a_run_whose_claim_was_taken_over_finishes_no_point(
    lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    day, verify = wait_for_point_name(), run.ensure_verification

    def taken_over(backup_run: run.BackupRun) -> Verification:
        proof = verify(backup_run)
        backup_run.points.release(day)
        backup_run.points.claim(day, "run 5d1c")
        return proof

    monkeypatch.setattr(run, "ensure_verification", taken_over)
    code, _, err = ran(monkeypatch, capsys, "run", "--day", day)
    assert (code, "its claim was taken over by run 5d1c" in err) == (1, True)
    points = Points(load_backup(None)[1])
    assert not points.days()
    assert [
        listed.key for listed in points.store.list(points.folder(day)) if "/engine/" not in listed.key
    ] == [f"{points.folder(day)}claim.json"]


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
