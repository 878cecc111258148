"""Two independent 64-bit hashes of rows of texts, a column at a time, from eight bytes of each row at a step.

One multiplies and shifts, the other is a polynomial. For telling rows apart, not against people who choose them.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

Words: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.uint64]]"

WORD = 8
U = np.uint64
SEEDS = U(0x9E3779B97F4A7C15), U(0xC2B2AE3D27D4EB4F)
MULTIPLIERS = U(0x87C37B91114253D5), U(0xD6E8FEB86659FD93)
FINAL = U(0xFF51AFD7ED558CCD), U(0xC4CEB9FE1A85EC53)
SHIFT = U(32)
MASKS = np.array([0, *((1 << 8 * count) - 1 for count in range(1, WORD))], np.uint64)
"""What is left of a word of which so many bytes belong to the text."""


def row_hashes(texts: Sequence[pa.Array], numbers: pa.Array) -> tuple[Words, Words]:
    """Hashes of each row of these columns: texts (pa.string, without nulls), whole numbers (pa.int64, null is -1)."""
    count = len(numbers)
    if not count:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    hashes = np.full(count, SEEDS[0]), np.full(count, SEEDS[1])
    for text in texts:
        _take_text(hashes, text)
    size = numbers.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    _take(hashes, size)
    return _finished(hashes[0]), _finished(hashes[1])


def _take_text(hashes: tuple[Words, Words], text: pa.Array) -> None:
    """Take in a column of texts: word by word, then how long each is, so that no two columns run together."""
    starts, lengths, words = _words_of(text)
    shortest = int(lengths.min())
    for at in range(0, int(lengths.max()), WORD):
        if at + WORD <= shortest:
            _take(hashes, words[starts])
            starts += WORD
            continue
        left = lengths - at
        live = np.flatnonzero(left > 0)
        found, rest = words[starts[live]], left[live]
        short = np.flatnonzero(rest < WORD)
        found[short] &= MASKS[rest[short]]
        some = hashes[0][live], hashes[1][live]
        _take(some, found)
        hashes[0][live], hashes[1][live] = some
        starts += WORD
    _take(hashes, lengths.astype(np.uint64))


def _words_of(
    text: pa.Array,
) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", "np.ndarray[tuple[int], np.dtype[np.int64]]", Words]:
    """Where each text begins, how many bytes it has, and the eight bytes from each byte on."""
    _, offsets, content = text.buffers()
    ends = np.frombuffer(offsets, np.int32)[text.offset : text.offset + len(text) + 1].astype(np.int64)
    own = b"" if content is None else content[int(ends[0]) : int(ends[-1])].to_pybytes()
    padded = own + bytes(WORD)
    words: Words = np.ndarray((len(own) + 1,), "<u8", padded, strides=(1,))
    return ends[:-1] - ends[0], np.diff(ends), words


def _take(hashes: tuple[Words, Words], words: Words) -> None:
    """One step of each hash with a word for each of the rows, in place."""
    first, second = hashes
    first ^= words
    first *= MULTIPLIERS[0]
    first ^= first >> SHIFT
    second *= MULTIPLIERS[1]
    second += words


def _finished(hashed: Words) -> Words:
    for factor in FINAL:
        hashed ^= hashed >> U(33)
        hashed *= factor
    hashed ^= hashed >> U(33)
    return hashed
