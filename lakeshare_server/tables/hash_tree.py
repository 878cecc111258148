"""A Merkle tree over the files of a publication that shows a proof's reader nothing of the other files.

Leaves and nodes are hashed as in RFC 6962 §2.1, with a byte in front that separates them. A leaf has a random place in
a tree that is up to 16 times larger than needed, and the other places are padding that looks like any hash: a proof
shows the order of magnitude of the number of files, and neither the number nor any content.
"""

import hashlib
import hmac
import secrets
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import SystemRandom

import pyarrow as pa
import pyarrow.compute as pc

LEAF, NODE, COMMITMENT = b"\x00", b"\x01", b"\x03"
HASH_BYTES, SALT_BYTES = 32, 16
# The depth is a multiple of this: one of few values.
DEPTH_STEP = 4
MAX_DEPTH = 40


def hash_leaf(salt: bytes, entry: bytes) -> bytes:
    return hashlib.sha256(LEAF + salt + entry).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(NODE + left + right).digest()


def commit_text(salt: bytes, text: str) -> str:
    """The commitment to a text, which shows nothing of it without the salt."""
    return hashlib.sha256(COMMITMENT + salt + text.encode()).hexdigest()


def derive_salt(secret: bytes, purpose: str) -> bytes:
    return hmac.digest(secret, purpose.encode(), "sha256")


def find_depth(files: int) -> int:
    """The depth of the tree of so many files."""
    needed = max(files - 1, 1).bit_length()
    return -(-needed // DEPTH_STEP) * DEPTH_STEP


def choose_places(files: int, depth: int) -> list[int]:
    """Random places of files, no two the same."""
    return SystemRandom().sample(range(1 << depth), files)


def make_secret() -> bytes:
    return secrets.token_bytes(HASH_BYTES)


class HashTree:
    """The tree of leaves at their places; `padding` is the key of the hashes in the other places.

    Keeps every node that is no padding: 40 bytes each.
    """

    def __init__(self, leaves: Iterable[tuple[int, bytes]], depth: int, padding: bytes) -> None:
        self._depth, self._padding = depth, padding
        places, hashes = _sort_leaves(leaves)
        if any(left == right for left, right in pairwise(places)):
            raise ValueError("two leaves have one place")
        if places and places[-1] >> depth:
            raise ValueError("a leaf has a place outside of the tree")
        self._levels = [(places, hashes)]
        for level in range(depth):
            self._levels.append(self._join(level, *self._levels[level]))

    @property
    def root(self) -> bytes:
        _, top = self._levels[-1]
        return top or self._pad(self._depth, 0)

    def prove(self, place: int) -> list[bytes]:
        """The hashes beside the path from a place to the root."""
        proof = []
        for level in range(self._depth):
            proof.append(self._at(level, (place >> level) ^ 1))
        return proof

    def _at(self, level: int, position: int) -> bytes:
        positions, hashes = self._levels[level]
        number = bisect_left(positions, position)
        if number < len(positions) and positions[number] == position:
            return hashes[number * HASH_BYTES : (number + 1) * HASH_BYTES]
        return self._pad(level, position)

    def _join(self, level: int, positions: "array[int]", hashes: bytes) -> "tuple[array[int], bytes]":
        above, joined, number = array("Q"), bytearray(), 0
        while number < len(positions):
            position, start = positions[number], number * HASH_BYTES
            own = hashes[start : start + HASH_BYTES]
            if position & 1:
                joined += hash_node(self._pad(level, position - 1), own)
            elif number + 1 < len(positions) and positions[number + 1] == position + 1:
                joined += hash_node(own, hashes[start + HASH_BYTES : start + 2 * HASH_BYTES])
                number += 1
            else:
                joined += hash_node(own, self._pad(level, position + 1))
            above.append(position >> 1)
            number += 1
        return above, bytes(joined)

    def _pad(self, level: int, position: int) -> bytes:
        return hmac.digest(self._padding, level.to_bytes(1) + position.to_bytes(8), "sha256")


def _sort_leaves(leaves: Iterable[tuple[int, bytes]]) -> "tuple[array[int], bytes]":
    """The places in order, and the hashes in the same order, one after the other."""
    places, hashes = array("Q"), bytearray()
    for place, leaf in leaves:
        places.append(place)
        hashes += leaf
    count = len(places)
    order = pc.sort_indices(pa.array(places, pa.uint64()))
    joined = pa.Array.from_buffers(pa.binary(HASH_BYTES), count, [None, pa.py_buffer(bytes(hashes))])
    ordered = array("Q")
    ordered.frombytes(pa.array(places, pa.uint64()).take(order).buffers()[1].to_pybytes()[: 8 * count])
    return ordered, joined.take(order).buffers()[1].to_pybytes()[: HASH_BYTES * count]


def find_root(leaf: bytes, place: int, proof: Sequence[bytes]) -> bytes:
    """The root that a proof leads to from a leaf at its place."""
    found = leaf
    for level, beside in enumerate(proof):
        found = hash_node(beside, found) if place >> level & 1 else hash_node(found, beside)
    return found
