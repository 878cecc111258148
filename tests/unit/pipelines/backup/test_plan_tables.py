"""Tables are found by the keys of a listing alone, and each key belongs to the nearest root above it."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from lakeshare_pipelines.backup.model import LISTING, POINT_COPIES
from lakeshare_pipelines.backup.plan import TableRoots, compare_sides
from tests.builders.backup_plans import a_delta_table, a_planner, an_object

COMMIT = "_delta_log/00000000000000000000.json"


def found_in(*keys: str) -> TableRoots:
    found = TableRoots()
    for key in keys:
        found.add(pa.array([key]))
    return found


@pytest.mark.parametrize(
    ("keys", "tables"),
    [
        ([f"a/b/{COMMIT}", "a/b/part-0"], {"a/b": "delta"}),
        ([COMMIT], {"": "delta"}),
        (["a/_delta_log/_sidecars/1.parquet"], {"a": "delta"}),
        (["a/_delta_log/"], {}),
        (["a/x_delta_log/1.json", "_delta_logs/1.json"], {}),
        (["a/metadata/00001-x.metadata.json"], {"a": "iceberg"}),
        (["metadata/v1.gz.metadata.json"], {"": "iceberg"}),
        (["a/metadata/v1.metadata.json.gz"], {"a": "iceberg"}),
        (["a/metadata/x/v1.metadata.json", "a/metadata/v1.metadata.json.crc", "a/metadata/1.json"], {}),
        ([f"a/{COMMIT}", "a/metadata/1.metadata.json"], {"a": "delta"}),
        ([f"a/{COMMIT}", f"a/_staged/run-1/{COMMIT}"], {"a": "delta"}),
        (
            [f"_staged/run-1/{COMMIT}", f"a/_staged/x/y/{COMMIT}"],
            {"_staged/run-1": "delta", "a/_staged/x/y": "delta"},
        ),
        ([f"a\nb/{COMMIT}", f"ä/%20/{COMMIT}"], {"a\nb": "delta", "ä/%20": "delta"}),
        (["a/.hoodie/20260101.commit"], {}),
    ],
)
def test_roots_are_told_by_keys(keys: list[str], tables: dict[str, str]) -> None:
    assert found_in(*keys).tables() == tables


def test_people_are_told_of_hudi_and_of_tables_in_two_formats() -> None:
    told = found_in(
        "h/.hoodie/1.commit", f"u/{COMMIT}", "u/metadata/1.metadata.json", f"d/{COMMIT}"
    ).warnings()
    assert [sentence.split(":")[0] for sentence in told] == ["u", "h"]
    assert "does not verify" in told[1]


def located(roots: list[str], keys: list[str]) -> list[tuple[str | None, str]]:
    """The nearest root of each key, and what moves with it."""
    with duckdb.connect() as on:
        on.register("cut", pa.Table.from_pylist([an_object(key) for key in keys], LISTING))
        on.register("before", POINT_COPIES.empty_table())
        compare_sides(on, roots)
        rows = on.sql("SELECT key, nearest, unit FROM listed").fetchall()
    found = {key: (nearest, unit) for key, nearest, unit in rows}
    return [found[key] for key in keys]


def test_a_key_belongs_to_the_nearest_root_and_moves_with_the_outermost() -> None:
    keys = ["a/x", "a/b/x", "a/b/c/x", "a/b/cd/x", "ab/x", "a", "abc/x", "", "a/", "b\n/x", "/a/x", "a//x"]
    found = located(["a", "a/b/c", "ab", "b\n"], keys)
    nearest = ["a", "a", "a/b/c", "a", "ab", None, None, None, "a", "b\n", None, "a"]
    assert [root for root, _ in found] == nearest
    units = ["a/", "a/", "a/", "a/", "ab/", "a", "abc/x", "", "a/", "b\n/", "/a/x", "a/"]
    assert [unit for _, unit in found] == units


def test_a_store_that_is_a_table_holds_everything() -> None:
    assert located(["", "in"], ["x", "in/x"]) == [("", "/"), ("in", "/")]


def test_a_plan_tells_each_objects_table(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    rows = [
        *a_delta_table("s/t", "day=1/a", "_staged/r/b"),
        *a_delta_table("s/t/_staged/r"),
        an_object("s/plain"),
    ]
    plan = planner.plan("2026-11-01", rows)
    assert [(table.root, table.format, table.bucket) for table in plan.tables] == [
        ("s/t", "delta", planner.backup.source.url)
    ]
    roots = {key: row["table_root"] for key, row in planner.by_key("2026-11-01").items()}
    assert roots.pop("s/plain") is None
    assert set(roots.values()) == {"s/t"}


def test_a_table_of_after_the_moment_is_none(tmp_path: Path) -> None:
    planner = a_planner(tmp_path)
    late = [row | {"last_modified": row["last_modified"].replace(day=3)} for row in a_delta_table("t", "a")]
    assert planner.plan("2026-11-01", [an_object("x"), *late]).tables == ()
