"""Portions of a plan have every row to copy once, like costs, and are the same every time."""

from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.backup.copy import spark
from lakeshare_pipelines.backup.copy.engine import open_results
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from tests.builders.backup_plan import plan_folder, planned

MIB = 1024**2


def portions_of(folder: Path, rows: list[dict[str, Any]], count: int) -> list[list[dict[str, Any]]]:
    store = open_store(StoreAddress(url=str(folder / "store")))
    with open_results(plan_folder(folder / "plan", rows), ()) as on:
        spark.write_portions(store, "work/", count, on)
    return [spark.read_portion(store, "work/", number).to_pylist() for number in range(count)]


def test_every_row_to_copy_is_in_one_portion(tmp_path: Path) -> None:
    rows = [planned(f"t/k{number}", lane="held" if number % 7 == 0 else "small") for number in range(1000)]
    found = portions_of(tmp_path, rows, 6)
    keys = [row["key"] for portion in found for row in portion]
    assert sorted(keys) == sorted(row["key"] for row in rows if row["lane"] == "small")
    assert found == portions_of(tmp_path, rows, 6)


def test_keys_of_one_prefix_are_spread(tmp_path: Path) -> None:
    found = portions_of(tmp_path, [planned(f"t/k{number}") for number in range(4000)], 4)
    assert all(800 < len(portion) < 1200 for portion in found)


def test_heavy_objects_are_balanced_and_come_first(tmp_path: Path) -> None:
    heavy = [planned(f"h{number}", size_bytes=(number + 1) * 100 * MIB, lane="large") for number in range(40)]
    found = portions_of(tmp_path, [planned(f"k{number}") for number in range(400)] + heavy, 4)
    sizes = [sum(row["size_bytes"] for row in portion) for portion in found]
    assert max(sizes) < 1.1 * min(sizes)
    for portion in found:
        lanes = [row["lane"] for row in portion]
        assert lanes == sorted(lanes), "large comes before small"


@pytest.mark.parametrize(
    ("rows", "workers", "count"),
    [(0, 8, 1), (10, 8, 1), (1_000, 8, 4), (100_000, 8, 24), (100_000_000, 8, 100)],
)
def test_portions_are_neither_tiny_nor_huge(rows: int, workers: int, count: int) -> None:
    assert spark.choose_portion_count(rows, workers) == count
