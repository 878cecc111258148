"""A cut divides keys alike for stores that sort whole keys and for those that sort folder by folder."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_pipelines.backup.inventory.list_objects import KeyRange, find_cut, has_folder

Order = Callable[[str], object]
ORDERS: dict[str, Order] = {
    "whole keys": str.encode,
    "folders": lambda key: [part.encode() for part in key.split("/")],
}


class Shelf:
    """Keys in one of the two orders; those behind a place are behind it in that order."""

    def __init__(self, keys: Sequence[str], order: str) -> None:
        self.order = ORDERS[order]
        self.keys = sorted(keys, key=self.order)  # type: ignore[arg-type]
        self.looks = 0

    def behind(self, place: str) -> list[str]:
        return [key for key in self.keys if self.order(key) > self.order(place)]  # type: ignore[operator]

    async def look(
        self, prefix: str, after: str = "", *, most: int = 1, by_folder: bool = False
    ) -> list[str]:
        self.looks += 1
        found = [key for key in (self.behind(after) if after else self.keys) if key.startswith(prefix)]
        if by_folder:
            short = (key[: (key.find("/", len(prefix)) + 1) or None] for key in found)
            found = list(dict.fromkeys(short))
        return found[:most]


def cut(shelf: Shelf, keys: KeyRange, last: str) -> str | None:
    return asyncio.run(find_cut(shelf.look, keys, last))


@pytest.mark.parametrize("order", ORDERS)
def test_a_flat_folder_is_cut_about_in_the_middle(order: str) -> None:
    shelf = Shelf([f"t/part-{number:05}.parquet" for number in range(10_000)], order)
    found = cut(shelf, KeyRange("t/"), "t/part-00999.parquet")
    assert found is not None
    assert 3_000 < len(shelf.behind(found)) < 7_000
    assert shelf.looks < 30


@pytest.mark.parametrize("order", ORDERS)
def test_the_last_key_of_a_range_leaves_nothing_to_cut(order: str) -> None:
    assert cut(Shelf(["a", "b"], order), KeyRange(""), "b") is None
    assert cut(Shelf(["a", "b", "c"], order), KeyRange("", until="b"), "b") is None


def test_a_place_that_the_orders_disagree_on_is_no_cut() -> None:
    keys = ["t/1", *(f"t-{number}" for number in range(10))]
    for order in ORDERS:
        found = cut(Shelf(keys, order), KeyRange(""), "t-0")
        assert found is None or not found.startswith("t-")


def test_an_object_and_a_folder_of_one_name_hide_nothing() -> None:
    found = cut(Shelf(["0", "0.", "0/0"], "folders"), KeyRange(""), "0.")
    assert found is None


NAMES = st.text(alphabet="ab-./0é", min_size=1, max_size=6).filter(
    lambda key: not any(part in {"", ".", ".."} for part in key.split("/"))
)


@settings(max_examples=500, deadline=None)
@given(st.sets(NAMES, min_size=2, max_size=40), st.data(), st.sampled_from(sorted(ORDERS)))
def test_no_key_changes_sides_with_the_order(keys: set[str], chosen: st.DataObject, order: str) -> None:
    shelf = Shelf(sorted(keys), order)
    last = chosen.draw(st.sampled_from(shelf.keys))
    found = cut(shelf, KeyRange(""), last)
    if found is not None:
        assert found > last
        behind = set(shelf.behind(found))
        assert behind == {key for key in keys if key > found}
        assert behind


@settings(max_examples=500, deadline=None)
@given(st.sets(NAMES, min_size=1, max_size=20), NAMES, st.sampled_from(sorted(ORDERS)))
def test_a_folder_is_found_among_names_that_begin_like_it(keys: set[str], name: str, order: str) -> None:
    folder = f"{name}/"
    found = asyncio.run(has_folder(Shelf(sorted(keys), order).look, folder))
    assert found == any(key.startswith(folder) for key in keys)
