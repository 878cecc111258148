"""`lakeshare restore` and `lakeshare backup drill` as a person types them: a plan first, then the way back."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from lakeshare_pipelines.cli.backup import backup_app
from lakeshare_pipelines.cli.restore import restore_app
from lakeshare_pipelines.errors import BackupError
from tests.builders.backup_points import a_backup, a_point
from tests.builders.lake_tables import a_delta_table, an_iceberg_table

ROWS = 12


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse with two Delta tables, an Iceberg table and a note, and a point of it in the default place."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    lake = tmp_path / "state" / "warehouse"
    a_delta_table(lake / "sales" / "orders")
    a_delta_table(lake / "v1.2" / "planes")
    an_iceberg_table(lake)
    (lake / "notes.txt").write_text("mine")
    a_point(a_backup(lake, tmp_path / "state" / "backups"), tmp_path / "held")
    return lake


def said(*words: object, app=restore_app) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_a_plan_is_told_and_nothing_is_done(lake: Path) -> None:
    shutil.rmtree(lake / "sales")
    told = said("table", "sales.orders", "--in-place", "--plan")
    assert told.exit_code == 0, told.output
    assert "4 missing objects are restored" in told.output
    assert "The log ends at version 0" in told.output
    assert not (lake / "sales").exists()


def test_a_table_comes_back(lake: Path) -> None:
    shutil.rmtree(lake / "sales")
    told = said("table", "sales.orders", "--in-place")
    assert told.exit_code == 0, told.output
    assert f"{ROWS} rows, 3 files; 4 objects copied" in told.output
    assert DeltaTable(lake / "sales" / "orders").to_pyarrow_table().num_rows == ROWS


def test_all_of_a_point_comes_back_at_another_place(lake: Path, tmp_path: Path) -> None:
    shutil.rmtree(lake)
    told = said("all", "--to", "elsewhere")
    assert told.exit_code == 0, told.output
    assert "3 of 3 tables restored" in told.output
    assert (tmp_path / "elsewhere" / "notes.txt").read_text() == "mine"
    for folder in ("sales/orders", "v1.2/planes"):
        assert DeltaTable(tmp_path / "elsewhere" / folder).to_pyarrow_table().num_rows == ROWS
    assert list((tmp_path / "elsewhere" / "lake" / "flights" / "metadata").glob("*.metadata.json"))


def test_one_that_fails_keeps_none_of_the_others(lake: Path, tmp_path: Path) -> None:
    next((tmp_path / "state" / "backups" / "objects" / "sales").rglob("*.parquet")).unlink()
    (tmp_path / "other" / "sales" / "orders").mkdir(parents=True)
    (tmp_path / "other" / "sales" / "orders" / "mine.txt").write_text("x")
    planned = said("all", "--to", "other", "--plan")
    assert planned.exit_code == 1
    assert "2 of 3 tables planned" in planned.output
    assert "NOT PLANNED: sales/orders: " in planned.output
    told = said("all", "--to", "elsewhere")
    assert told.exit_code == 1
    assert "2 of 3 tables restored" in told.output
    assert "NOT RESTORED: sales/orders: " in told.output


def test_copies_open_where_they_are(lake: Path, tmp_path: Path) -> None:
    told = said("table", "sales/orders", "--mount")
    location = tmp_path / "state" / "backups" / "objects" / "sales" / "orders"
    assert told.stdout == f"{location} at version 0\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("table", "sales.orders"), "one location"),
        (("table", "sales.orders", "--in-place", "--to", "x"), "one location"),
        (("table", "nothing", "--in-place"), "no such table"),
        (("table", "sales.orders", "--in-place", "--point", "2020-01-01"), "no point '2020-01-01'"),
        (("set", "nothing", "--in-place"), "the contracts are"),
        (("partition", "sales.orders", "day"), "no COLUMN=VALUE"),
        (("partition", "lake.flights", "day=2013-01-01"), "Iceberg"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(lake: Path, words: tuple[str, ...], told: str) -> None:
    with pytest.raises(BackupError, match=told):
        CliRunner().invoke(restore_app, words, catch_exceptions=False)


def test_a_drill_tells_how_long_it_took_and_fails_as_a_command(lake: Path, tmp_path: Path) -> None:
    passed = said("drill", "--seed", "1", app=backup_app)
    assert passed.exit_code == 0, passed.output
    assert "12 rows in 3 files" in passed.output
    assert "(RTO)" in passed.output
    for copy in (tmp_path / "state" / "backups" / "objects").rglob("*.parquet"):
        copy.unlink()
    failed = said("drill", "--seed", "1", app=backup_app)
    assert failed.exit_code == 1
    assert failed.output.startswith("  Point 2026-11-20 is taken")
    assert "FAILED" in failed.output
