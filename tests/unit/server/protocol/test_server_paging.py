"""Paging through any listing shows every entry once, in order, whatever the page sizes and whatever comes between."""

import base64
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.tokens import Pager, PageRequest

KEY = b"k" * 32


@dataclass(frozen=True)
class Entry:
    key: int


def reader(keys: list[int]):
    def read(after: int, limit: int) -> list[Entry]:
        return [Entry(key) for key in sorted(keys) if key > after][:limit]

    return read


KEYS = st.lists(st.integers(1, 10**9), unique=True, max_size=30)


@given(KEYS, st.lists(st.integers(1, 7), min_size=1), st.integers(1, 7))
@settings(deadline=None)
def test_pages_never_skip_and_never_repeat(keys: list[int], sizes: list[int], page_size: int) -> None:
    pager, token, seen = Pager(KEY, page_size), None, []
    for turn in range(len(keys) + 1):
        size = sizes[turn % len(sizes)]
        page, token = pager.page("bob", "l", PageRequest(str(size), token), reader(keys))
        assert len(page) <= min(size, page_size)
        seen += [entry.key for entry in page]
        if token is None:
            break
    assert seen == sorted(keys)


@given(KEYS, st.integers(1, 5), st.data())
@settings(deadline=None)
def test_entries_that_come_and_go_disturb_no_other(keys: list[int], size: int, data: st.DataObject) -> None:
    pager, token, seen, there = Pager(KEY, size), None, [], set(keys)
    gone: set[int] = set()
    while True:
        page, token = pager.page("bob", "l", PageRequest(None, token), reader(list(there)))
        seen += [entry.key for entry in page]
        if token is None:
            break
        if there:
            leaving = data.draw(st.sampled_from(sorted(there)))
            there.discard(leaving)
            gone.add(leaving)
        there.add(
            max(there | gone | {0}) + 1 if data.draw(st.booleans()) and len(there) < 40 else max(there | {1})
        )
        if len(seen) > 200:
            break
    assert len(seen) == len(set(seen))
    assert set(keys) - gone <= set(seen)


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 11])
def test_the_last_page_has_no_token(count: int) -> None:
    pager, token, pages = Pager(KEY, 5), None, 0
    while pages == 0 or token:
        _, token = pager.page("bob", "l", PageRequest(None, token), reader(list(range(1, count + 1))))
        pages += 1
    assert pages == max(1, math.ceil(count / 5))


def test_no_results_may_be_asked_for_and_the_listing_goes_on_after() -> None:
    pager = Pager(KEY, 5)
    page, token = pager.page("bob", "l", PageRequest("0", None), reader([1, 2]))
    assert list(page) == []
    page, _ = pager.page("bob", "l", PageRequest(None, token), reader([1, 2]))
    assert [entry.key for entry in page] == [1, 2]


def test_a_token_may_be_used_without_saying_the_size_again() -> None:
    pager = Pager(KEY, 500)
    _, token = pager.page("bob", "l", PageRequest("1", None), reader([1, 2, 3]))
    page, token = pager.page("bob", "l", PageRequest(None, token), reader([1, 2, 3]))
    assert [entry.key for entry in page] == [2, 3]
    assert token is None


def test_tokens_of_another_listing_or_server_or_of_nobody_are_refused() -> None:
    pager = Pager(KEY, 1)
    _, token = pager.page("bob", "schemas/s", PageRequest(None, None), reader([1, 2]))
    assert token
    wrong = ["x", "====", "ü", token + "A", token[:-2], "A" * 40, " " + token]
    for holder, listing, key, used in [
        ("bob", "schemas/t", KEY, token),
        ("bob", "schemas/s", b"o" * 32, token),
        ("eve", "schemas/s", KEY, token),
        *(("bob", "schemas/s", KEY, text) for text in wrong),
    ]:
        with pytest.raises(BadRequest, match="pageToken"):
            Pager(key, 1).page(holder, listing, PageRequest(None, used), reader([1, 2]))


def test_a_token_shows_no_key_of_the_catalog() -> None:
    _, token = Pager(KEY, 1).page(
        "bob", "schemas/s", PageRequest(None, None), reader([777_777_777, 777_777_778])
    )
    assert token
    content = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for text in (b"777777777", b"schemas", b"after", b"bob"):
        assert text not in content


@pytest.mark.parametrize("size", ["-1", "501", "x", "1.5", "", "٣", "9" * 30])
def test_sizes_that_are_none_are_refused(size: str) -> None:
    with pytest.raises(BadRequest, match="maxResults"):
        Pager(KEY, 5).page("bob", "l", PageRequest(size, None), reader([1]))
