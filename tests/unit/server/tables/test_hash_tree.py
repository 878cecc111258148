"""A tree proves each of its leaves and no other, and a proof shows nothing of the number of leaves below 16 times."""

import hashlib
from collections.abc import Sequence

import pytest

from lakeshare_server.tables.hash_tree import (
    HashTree,
    choose_places,
    commit_text,
    find_depth,
    find_root,
    hash_leaf,
    hash_node,
)

PADDING = b"p" * 32


def a_tree(count: int) -> tuple[HashTree, Sequence[int], list[bytes]]:
    depth = find_depth(count)
    places, leaves = choose_places(count, depth), [hash_leaf(b"s" * 16, b"%d" % n) for n in range(count)]
    return HashTree(zip(places, leaves, strict=True), depth, PADDING), places, leaves


@pytest.mark.parametrize("count", [0, 1, 2, 3, 15, 16, 17, 100, 256, 257])
def test_each_leaf_is_proven_at_its_place_only(count: int) -> None:
    tree, places, leaves = a_tree(count)
    for place, leaf in zip(places, leaves, strict=True):
        proof = tree.prove(place)
        assert len(proof) == find_depth(count)
        assert find_root(leaf, place, proof) == tree.root
        assert find_root(leaf, place ^ 1, proof) != tree.root
        assert find_root(hash_leaf(b"s" * 16, b"other"), place, proof) != tree.root


def test_hashes_are_those_of_rfc_6962() -> None:
    left, right = hash_leaf(b"", b"left"), hash_leaf(b"", b"right")
    assert left == hashlib.sha256(b"\x00left").digest()
    tree = HashTree([(0, left), (1, right)], 1, PADDING)
    assert tree.root == hash_node(left, right) == hashlib.sha256(b"\x01" + left + right).digest()
    assert commit_text(b"salt", "text") == hashlib.sha256(b"\x03salttext").hexdigest()


def test_any_left_out_added_moved_or_changed_leaf_gives_another_root() -> None:
    tree, places, leaves = a_tree(40)
    depth = find_depth(40)
    pairs = list(zip(places, leaves, strict=True))
    free = next(place for place in range(1 << depth) if place not in places)
    others = [
        pairs[1:],
        [*pairs, (free, leaves[0])],
        [(free, leaves[0]), *pairs[1:]],
        [(places[1], leaves[0]), (places[0], leaves[1]), *pairs[2:]],
        [(places[0], hash_leaf(b"", b"x")), *pairs[1:]],
    ]
    assert all(HashTree(other, depth, PADDING).root != tree.root for other in others)
    assert HashTree(reversed(pairs), depth, PADDING).root == tree.root


def test_the_depth_shows_an_order_of_magnitude_only() -> None:
    assert {find_depth(count) for count in range(17)} == {4}
    assert {find_depth(count) for count in (17, 100, 256)} == {8}
    assert find_depth(257) == 12
    assert find_depth(1_000_000) == 20


@pytest.mark.parametrize("places", [[3, 3], [16]])
def test_impossible_places_are_refused(places: list[int]) -> None:
    with pytest.raises(ValueError, match="place"):
        HashTree([(place, b"l" * 32) for place in places], 4, PADDING)
