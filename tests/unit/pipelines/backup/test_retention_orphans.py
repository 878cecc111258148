"""Orphans are told from a point's copies alone: files that no version which can still be made names, and no others."""

import datetime as dt
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from lakeshare_pipelines.backup.config import GIB
from lakeshare_pipelines.backup.retention import OrphanReport, find_orphans
from tests.builders.backup_plans import Planner, a_planner, rows_of_folder

DAY = dt.datetime.now(dt.UTC).date().isoformat()
LONG_AGO = time.time() - 30 * 86_400


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def reported(tmp_path: Path, lake: Path, *young: str) -> OrphanReport:
    """The orphans of a point of the lake as it is; all but the young files are old."""
    for path in lake.rglob("*"):
        if path.is_file() and path.name not in young:
            os.utime(path, (LONG_AGO, LONG_AGO))
    planner: Planner = a_planner(tmp_path, source={"url": str(lake)}, prices={"per_gib_month": GIB})
    planner.point(DAY, rows_of_folder(lake))
    return find_orphans(planner.backup, planner.points, DAY, report_message=lambda sentence: None)


def orphans(report: OrphanReport) -> dict[str, tuple[str, ...]]:
    return {table.root: table.examples for table in report.tables}


def stray(lake: Path, key: str, size_bytes: int = 100) -> str:
    (lake / key).parent.mkdir(parents=True, exist_ok=True)
    (lake / key).write_bytes(b"x" * size_bytes)
    return key


def some(day: int) -> pa.Table:
    return pa.table({"id": [1, 2], "day": [day, day]})


def test_a_delta_table_names_all_that_its_retained_versions_have(tmp_path: Path, lake: Path) -> None:
    table = lake / "sales" / "t"
    for day in range(3):
        write_deltalake(table, some(day), mode="append", partition_by=["day"])
    write_deltalake(table, some(9), mode="overwrite")
    assert orphans(reported(tmp_path, lake)) == {}


def test_files_of_no_retained_version_are_told_with_what_they_cost(tmp_path: Path, lake: Path) -> None:
    table = lake / "t"
    write_deltalake(table, some(1))
    first = DeltaTable(table).file_uris()[0]
    write_deltalake(table, some(2), mode="overwrite")
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    strays = [stray(lake, "t/day=1/part-x.parquet", 3_000_000), stray(lake, "t/b", 7)]
    stray(lake, "t/young")
    stray(lake, "t/_change_data/cdc-1.parquet")
    stray(lake, "of no table")
    report = reported(tmp_path, lake, "young")
    forgotten = str(Path(first).relative_to(lake))
    assert orphans(report) == {"t": (strays[0], forgotten, strays[1])}
    size_bytes = 3_000_007 + (lake / forgotten).stat().st_size
    assert (report.tables[0].objects, report.tables[0].size_bytes) == (3, size_bytes)
    assert report.tables[0].usd_a_month == size_bytes
    assert report.unknown == ()


def test_names_in_logs_are_decoded(tmp_path: Path, lake: Path) -> None:
    text = pa.table({"id": [1, 2], "at": ["a b%c", "ä/+"]})
    write_deltalake(lake / "t", text, partition_by=["at"])
    assert orphans(reported(tmp_path, lake)) == {}


def test_nothing_is_said_of_a_table_whose_log_has_a_hole(tmp_path: Path, lake: Path) -> None:
    for day in range(4):
        write_deltalake(lake / "t", some(day), mode="append")
    write_deltalake(lake / "whole", some(1))
    (lake / "t" / "_delta_log" / f"{2:020}.json").unlink()
    told = stray(lake, "whole/stray")
    report = reported(tmp_path, lake)
    assert orphans(report) == {"whole": (told,)}
    assert report.unknown == ("t: _delta_log/: the copy of its log has a hole; its files are not judged.",)


def test_an_iceberg_table_names_all_that_its_snapshots_have(tmp_path: Path, lake: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{lake}")
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.t", some(1).schema)
    for day in range(3):
        table.append(some(day))
    table.delete("day = 1")
    catalog.engine.dispose()
    root = str(Path(table.location().removeprefix("file://")).relative_to(lake))
    told = [stray(lake, f"{root}/data/stray.parquet", 200), stray(lake, f"{root}/metadata/snap-1-stray.avro")]
    assert orphans(reported(tmp_path, lake)) == {root: tuple(told)}
