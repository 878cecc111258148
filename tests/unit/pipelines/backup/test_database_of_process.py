"""The DuckDB of a process spills where only its user reads, and leaves nothing where no exit handlers run."""

import os
import tempfile
from pathlib import Path

import pytest

from lakeshare_pipelines.backup import model
from lakeshare_pipelines.errors import BackupError

SPILLING = "CREATE TEMP TABLE spilled AS SELECT range, hash(range) FROM range(5_000_000)"


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user for what is spilled; there is none yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"lakeshare-backup-{os.geteuid()}"


def test_a_worker_leaves_no_folder(private: Path) -> None:
    if not (worker := os.fork()):
        with model.open_database() as on:
            rows = on.sql("FROM range(3)").fetchall()
        os._exit(len(rows))
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 3
    assert list(private.iterdir()) == []


def test_what_is_spilled_is_private_and_removed(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MEMORY_BYTES", 32 * 1024**2)
    database = model._database_of_process.__wrapped__(os.getpid())
    with database:
        database.execute(SPILLING)
        assert [folder.is_dir() for folder in private.iterdir()] == [True]
        assert private.stat().st_mode & 0o777 == 0o700
    assert list(private.iterdir()) == []


def test_a_folder_that_others_can_open_is_refused(private: Path) -> None:
    private.mkdir(mode=0o755)
    with pytest.raises(BackupError, match=r"lakeshare-backup-\d+: others can open this folder\. Remove it"):
        model._database_of_process.__wrapped__(os.getpid())
