"""Deletion vectors of Iceberg v3, read out of their Puffin files (Puffin spec, "deletion-vector-v1").

Their bytes are those of Delta's vectors, but recipients do not get these files: Delta's readers want a file of vectors
to begin with its version, and refuse Puffin's magic number there (see the ADR on row-level deletes).
"""

import logging
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import LASTING, Stores
from lakeshare_server.tables.deletion_vectors import MAGIC, Vector, vector_of

READERS = 16
# A length before the vector, a checksum behind it, four bytes each.
FRAME = 4
# Reading what lies between two vectors is quicker than asking a store once more.
GAP_BYTES = 256 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VectorBlob:
    """Where a vector is, how many rows it deletes, and of which data file: its number, and how many rows that has."""

    path: str
    offset: int
    size: int
    cardinality: int
    number: int
    rows: int


def read_vectors(stores: Stores, blobs: Sequence[VectorBlob], root: str) -> dict[int, Vector]:
    """The vectors by the numbers of their data files.

    Raises:
        Unserveable: a file is missing, cut off or damaged.
    """
    files: dict[str, list[VectorBlob]] = defaultdict(list)
    for blob in sorted(blobs, key=lambda blob: blob.offset):
        files[blob.path].append(blob)
    vectors: dict[int, Vector] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for found in pool.map(lambda path: _read(stores, path, files[path], root), files):
            vectors |= dict(found)
    return vectors


def _read(stores: Stores, path: str, blobs: Sequence[VectorBlob], root: str) -> list[tuple[int, Vector]]:
    try:
        with stores.open(path) as stream:
            return [(blob.number, _vector(blob, framed)) for blob, framed in _stretches(stream, blobs)]
    except (*LASTING, OSError, ValueError, struct.error) as error:
        _log.warning("the deletion vectors %s of %s cannot be read: %s", path, root, error)
        raise Unserveable(
            f"The deletion vectors {path} of {root} cannot be read.",
            "Check that the file is there and whole; publish the table again.",
        ) from error


def _stretches(stream: Any, blobs: Sequence[VectorBlob]) -> Iterator[tuple[VectorBlob, bytes]]:
    """Each vector's bytes; neighbours are read in one go."""
    stretch: list[VectorBlob] = []
    for blob in blobs:
        if stretch and blob.offset > stretch[-1].offset + stretch[-1].size + GAP_BYTES:
            yield from _stretch(stream, stretch)
            stretch = []
        stretch.append(blob)
    yield from _stretch(stream, stretch)


def _stretch(stream: Any, blobs: Sequence[VectorBlob]) -> Iterator[tuple[VectorBlob, bytes]]:
    start, end = blobs[0].offset, max(blob.offset + blob.size for blob in blobs)
    stream.seek(start)
    content = stream.read(end - start)
    for blob in blobs:
        yield blob, content[blob.offset - start : blob.offset - start + blob.size]


def _vector(blob: VectorBlob, framed: bytes) -> Vector:
    from pyroaring import BitMap64

    content = framed[FRAME:-FRAME]
    length, checksum = struct.unpack(">I", framed[:FRAME])[0], struct.unpack(">I", framed[-FRAME:])[0]
    if len(framed) != blob.size or length != len(content) or checksum != zlib.crc32(content):
        raise ValueError(f"the bytes at {blob.offset} are not the vector that was written there")
    if content[:FRAME] != MAGIC:
        raise ValueError(f"the bytes at {blob.offset} are no deletion vector")
    rows = BitMap64.deserialize(content[FRAME:])
    if len(rows) != blob.cardinality:
        raise ValueError(f"{len(rows)} rows at {blob.offset}, the manifest says {blob.cardinality}")
    if rows and rows.max() >= blob.rows:
        rows.remove_range(blob.rows, rows.max() + 1)
        return vector_of(rows)
    return Vector(content, len(rows))
