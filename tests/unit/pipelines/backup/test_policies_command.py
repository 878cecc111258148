"""`lakeshare backup policies` writes files or prints them, and says what it lacks; the doctor reads the same file."""

import json
from pathlib import Path

import pytest
import yaml

from lakeshare_pipelines.cli.doctor import check_backups
from lakeshare_pipelines.cli.main import main
from lakeshare_pipelines.settings import LakeSettings

RUNNER = "arn:aws:iam::222222222222:role/run"
LAKE = {
    "source": {"url": "s3://lake", "account": "111111111111"},
    "target": {"url": "s3://vault", "account": "222222222222"},
}


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of backups."""
    path = tmp_path / "backups.yaml"
    path.write_text(yaml.safe_dump({"backups": {"lake": LAKE}}))
    monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(path))
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    return path


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """How a command ended."""
    monkeypatch.setattr("sys.argv", ["lakeshare", "backup", "policies", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.usefixtures("declared")
def test_files_are_written_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "policies"
    assert typed(monkeypatch, "lake", "--runner", RUNNER, "--to", str(folder)) == 0
    named = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in named} == {path.name for path in folder.iterdir()}
    # No jobs, no role: who runs lakeshare copies.
    assert "role-policy.json" not in {path.name for path in named}
    assert json.loads((folder / "bucket-lake.json").read_text())["Statement"][0]["Principal"] == {
        "AWS": [RUNNER]
    }


@pytest.mark.usefixtures("declared")
def test_without_a_folder_they_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(monkeypatch, "lake", "--runner", RUNNER) == 0
    said = capsys.readouterr().out
    assert "# Policies of backup lake" in said
    assert '"KeepVersions"' in said


@pytest.mark.usefixtures("declared")
def test_a_runner_of_another_account_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = RUNNER.replace("2", "3")
    assert typed(monkeypatch, "lake", "--runner", wrong, "--to", str(tmp_path / "policies")) == 1
    assert "not a role or user of account 222222222222" in capsys.readouterr().err
    assert not (tmp_path / "policies").exists()


def test_the_doctor_tells_of_folders_and_of_a_file_that_cannot_be_read(
    declared: Path, tmp_path: Path
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "file").write_text("")
    folders = {"source": {"url": str(tmp_path / "lake")}, "target": {"url": str(tmp_path / "file")}}
    declared.write_text(yaml.safe_dump({"backups": {"lake": folders}}))
    settings = LakeSettings()
    found = list(check_backups(settings))
    assert [(one.ok, one.name.split(",")[0]) for one in found] == [
        (True, "backup lake"),
        (False, "backup lake"),
    ]
    assert found[1].detail == "not a folder"
    declared.write_text("backups: [")
    [unreadable] = check_backups(settings)
    assert not unreadable.ok
    assert unreadable.remedy
