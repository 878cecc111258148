"""A plan warns of tables that may remove files before they are copied, as the tables themselves say."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.builders.backup_plans import a_delta_table, a_planner, an_object, rows_of_folder

DAY = "2100-01-01"
RETENTION = "delta.deletedFileRetentionDuration"
ROWS = pa.table({"id": [1]})


def warnings(folder: Path, lag_days: int, **told: object) -> list[str]:
    source = folder / "lake"
    planner = a_planner(folder, source={"url": str(source)}, listing={"lag_days": lag_days})
    return list(planner.plan(DAY, rows_of_folder(source), **told).warnings)


@pytest.mark.parametrize(
    ("said", "lag_days", "is_short"),
    [
        (None, 2, False),
        (None, 7, True),
        ("interval 7 days", 2, False),
        ("interval 1 week", 2, False),
        ("interval 200 hours", 7, False),
        ("interval 24 hours", 0, False),
        ("interval 24 hours", 2, True),
        ("interval 5 hours", 0, True),
        ("interval 1 day 12 hours", 1, False),
    ],
)
def test_a_delta_table_that_is_vacuumed_too_soon(
    tmp_path: Path, said: str | None, lag_days: int, is_short: bool
) -> None:
    configuration = {} if said is None else {RETENTION: said}
    write_deltalake(tmp_path / "lake" / "t", ROWS, configuration=configuration)
    write_deltalake(tmp_path / "lake" / "t", ROWS, mode="append")
    told = warnings(tmp_path, lag_days)
    assert [RETENTION in sentence and sentence.startswith("t: ") for sentence in told] == [True] * is_short


def test_what_is_said_last_counts_and_a_checkpoint_says_it_too(tmp_path: Path) -> None:
    root = tmp_path / "lake" / "t"
    write_deltalake(root, ROWS, configuration={RETENTION: "interval 30 days"})
    table = DeltaTable(root)
    table.alter.set_table_properties({RETENTION: "interval 1 hours"})
    assert "1.0 hours" in warnings(tmp_path, 2)[0]
    table.create_checkpoint()
    for version in range(2):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    assert "1.0 hours" in warnings(tmp_path, 2)[0]


@pytest.mark.parametrize(
    ("content", "lag_days", "is_short"),
    [
        ('{"properties": {"history.expire.max-snapshot-age-ms": "3600000"}}', 2, True),
        ('{"properties": {"history.expire.max-snapshot-age-ms": "864000000"}}', 7, False),
        ('{"properties": {}}', 2, False),
        ("{}", 5, True),
        ('{"proper', 7, False),
    ],
)
def test_an_iceberg_table_whose_snapshots_expire_too_soon(
    tmp_path: Path, content: str, lag_days: int, is_short: bool
) -> None:
    metadata = tmp_path / "lake" / "t" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "00001-x.metadata.json").write_text(content)
    assert len(warnings(tmp_path, lag_days)) == is_short


def test_older_versions_make_a_clean_up_harmless(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "lake" / "t", ROWS, configuration={RETENTION: "interval 1 hours"})
    assert len(warnings(tmp_path, 2)) == 1
    assert warnings(tmp_path, 2, has_versions=True) == []


def test_a_source_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("no folder")
    rows = [*a_delta_table("a", "x"), *a_delta_table("b", "y"), an_object("z")]
    source = {"url": "s3://lake", "endpoint": "http://127.0.0.1:1", "profile": "nobody-has-such-a-profile"}
    planner = a_planner(tmp_path, source=source)
    told = planner.plan("2026-11-01", rows).warnings
    assert [
        sentence.startswith("How long 2 tables keep removed files cannot be read: ") for sentence in told
    ] == [True]
