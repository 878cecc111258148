"""A plan tells the difference between a listing and what a point holds."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_pipelines.backup.model import LISTING, POINT_COPIES, open_database
from lakeshare_pipelines.backup.plan import compare_sides
from tests.builders.backup_plans import an_object

Rows = list[dict[str, Any]]
Told = Callable[[Rows, Rows], tuple[Rows, Rows]]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """A function from what is listed and held to the rows of `fresh` and `gone`, in order of their keys."""
    with open_database(tmp_path) as on:

        def compare(listed: Rows, held: Rows) -> tuple[Rows, Rows]:
            on.register("cut", pa.Table.from_pylist(listed, LISTING))
            on.register("before", pa.Table.from_pylist(held, POINT_COPIES))
            compare_sides(on, [])
            fresh, gone = (on.sql(f"FROM {name} ORDER BY key").to_arrow_table() for name in ("fresh", "gone"))
            return fresh.select(LISTING.names).cast(LISTING).to_pylist(), gone.to_pylist()

        yield compare


def held(row: dict[str, Any]) -> dict[str, Any]:
    copy = {"stored_key": f"objects/{row['key']}", "first_point": "2026-11-01", "level": 2, "is_healed": True}
    return {**row, **copy}


def test_new_changed_gone_and_same_are_told_apart_with_all_their_columns(told: Told) -> None:
    was = [
        an_object(key) for key in ("same", "touched", "gone", "other etag", "other size", "no etag", "ä b%\n")
    ]
    now = [
        an_object("same"),
        an_object(
            "touched", version_id="v2", last_modified=was[0]["last_modified"].replace(microsecond=7000)
        ),
        an_object("other etag", "e2"),
        an_object("other size", size_bytes=11),
        an_object("no etag", None),  # type: ignore[arg-type]
        an_object("ä b%\n"),
        an_object(
            "new", version_id="v", is_multipart=True, encryption="SSE-KMS", checksum_algorithm="SHA256"
        ),
    ]
    fresh, gone = told(now, [held(row) for row in was])
    assert fresh == sorted((now[6], *now[2:5]), key=lambda row: row["key"])
    assert [row["key"] for row in gone] == ["gone", "no etag", "other etag", "other size"]


def test_a_missing_etag_is_never_the_same(told: Told) -> None:
    row = an_object("a", None)  # type: ignore[arg-type]
    fresh, gone = told([row], [held(row)])
    assert len(fresh) == len(gone) == 1


@pytest.mark.parametrize("side", ["listed", "held", "neither"])
def test_an_empty_side_is_a_side(told: Told, side: str) -> None:
    rows = [an_object("a"), an_object("b")]
    listed = rows if side == "listed" else []
    fresh, gone = told(listed, [held(row) for row in rows] if side == "held" else [])
    assert [len(fresh), len(gone)] == [2 * (side == "listed"), 2 * (side == "held")]


def test_many_rows_are_told_as_sets_tell_them(told: Told) -> None:
    chance = random.Random(7)
    was = {f"t{number % 9}/{number}": chance.randrange(3) for number in chance.sample(range(9_000), 6_000)}
    now = {f"t{number % 9}/{number}": chance.randrange(3) for number in chance.sample(range(9_000), 6_000)}
    listed = [an_object(key, f"e{etag}") for key, etag in now.items()]
    fresh, gone = told(listed, [held(an_object(key, f"e{etag}")) for key, etag in was.items()])
    assert {row["key"] for row in fresh} == {key for key, etag in now.items() if was.get(key) != etag}
    assert {row["key"] for row in gone} == {key for key, etag in was.items() if now.get(key) != etag}
    assert len(fresh) > 1_000
