"""Rows that differ in any column have other hashes, however their texts run together; the same rows have the same."""

import random
import string

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_pipelines.backup.plan.row_hashes import row_hashes

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=40)


def hashes(rows: list[tuple[str, str, int]]) -> list[tuple[int, int]]:
    columns = list(zip(*rows, strict=True))
    texts = [pa.array(column, pa.string()) for column in columns[:2]]
    first, second = row_hashes(texts, pa.array(columns[2], pa.int64()))
    return list(zip(first.tolist(), second.tolist(), strict=True))


@settings(deadline=None)
@given(ROWS)
def test_rows_have_the_same_hashes_exactly_when_they_are_the_same(rows: list[tuple[str, str, int]]) -> None:
    found = hashes(rows)
    of_row = dict(zip(rows, found, strict=True))
    assert [of_row[row] for row in rows] == found
    for both in range(2):
        assert len({one[both] for one in found}) == len(set(rows))


@settings(deadline=None)
@given(ROWS)
def test_a_rows_hashes_do_not_depend_on_its_neighbours(rows: list[tuple[str, str, int]]) -> None:
    assert hashes(rows) == [hashes([row])[0] for row in rows]
    sliced = pa.array(["before", *(row[0] for row in rows), "after"])[1:-1]
    others = [pa.array([row[1] for row in rows]), pa.array([row[2] for row in rows], pa.int64())]
    assert row_hashes([sliced, others[0]], others[1])[0].tolist() == [one[0] for one in hashes(rows)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b", 1), ("ab", "", 1)),
        (("a\0", "", 1), ("a", "\0", 1)),
        (("a", "", 1), ("a\0", "", 1)),
        (("12345678", "", 1), ("12345678\0\0\0\0\0\0\0\0", "", 1)),
        (("", "", -1), ("", "", 0)),
    ],
)
def test_texts_that_run_together_are_told_apart(
    one: tuple[str, str, int], other: tuple[str, str, int]
) -> None:
    assert not set(hashes([one])[0]) & set(hashes([other])[0])


def test_hashes_spread_over_all_bits() -> None:
    """Neighbouring names of files: every bit is set in half of the rows, within five standard deviations."""
    count = 20_000
    keys = pa.array([f"warehouse/t/part-{number:09}.parquet" for number in range(count)])
    for found in row_hashes([keys], pa.array([7] * count, pa.int64())):
        bits = np.unpackbits(found.view(np.uint8)).reshape(count, 64).sum(axis=0)
        assert np.abs(bits - count / 2).max() < 5 * (count / 4) ** 0.5
        assert len(np.unique(found >> np.uint64(24))) > count - 5


def test_no_rows_have_no_hashes() -> None:
    first, second = row_hashes([pa.array([], pa.string())], pa.array([], pa.int64()))
    assert len(first) == len(second) == 0


def test_two_hashes_are_independent() -> None:
    """Rows whose first hashes share sixteen bits do not share those of the second."""
    chance = random.Random(3)
    keys = pa.array(["".join(chance.choices(string.ascii_lowercase, k=30)) for _ in range(20_000)])
    first, second = row_hashes([keys], pa.array([1] * 20_000, pa.int64()))
    shared = [(int(one) & 0xFF, int(other) & 0xFF) for one, other in zip(first, second, strict=True)]
    assert sum(one == other for one, other in shared) < 20_000 / 256 * 2
