"""Deletion vectors that we make ourselves, in Delta's layout, for tables whose format keeps deletes in another way.

A small one goes into its file's line. A larger one becomes a file of its own in the state folder, which the byte
endpoint serves wherever the table is (Delta's PROTOCOL.md, "Deletion Vector Format"; see the ADR on row-level deletes).
"""

import hashlib
import os
import struct
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from lakeshare_server.settings import make_private
from lakeshare_server.tables.scratch import remove_abandoned, scratch_file, sync_folder
from lakeshare_server.tables.z85 import z85_text

if TYPE_CHECKING:
    from pyroaring import BitMap64

MAGIC = struct.pack("<I", 1681511377)  # the portable 64-bit layout of Roaring bitmaps
FILE_VERSION = b"\x01"
# Lines are read whole by clients, and rendered by thousands: 50 KiB are about 64 KiB in Z85.
INLINE_BYTES = 50 << 10
# All lines of a table together: each of its answers has all of these again.
ALL_INLINE_BYTES = 256 << 20


@dataclass(frozen=True)
class Vector:
    """The deleted rows of one data file: serialised, its magic number in front, and how many they are."""

    content: bytes
    cardinality: int

    def rows(self) -> "BitMap64":
        """The numbers of the deleted rows."""
        from pyroaring import BitMap64

        return BitMap64.deserialize(self.content[len(MAGIC) :])


def vector_of(rows: "BitMap64") -> Vector:
    """The vector of a set of row numbers, as small as it can be."""
    rows.run_optimize()
    return Vector(MAGIC + rows.serialize(), len(rows))


def bitmap_of(rows: pa.Array) -> "BitMap64":
    """A set of row numbers, none of them negative."""
    from pyroaring import BitMap64

    # As they lie in memory.
    numbers = rows.cast(pa.int64())
    return BitMap64(array("Q", bytes(numbers.buffers()[1].slice(numbers.offset * 8, len(numbers) * 8))))


def framed(content: bytes) -> bytes:
    """A vector as it stands in a file: its length before it, its checksum behind it."""
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def vector_columns(vectors: Mapping[int, Vector], files: int, folder: Path | None) -> dict[str, pa.Array]:
    """The columns of a snapshot's deletion vectors, of which `vectors` has those of some rows; none without vectors.

    Large ones are written to `folder`.

    Raises:
        TooLargeForALine: there is a large one, and no folder.
    """
    if not vectors:
        return {}
    most = min(INLINE_BYTES, ALL_INLINE_BYTES // len(vectors))
    if folder is not None and any(len(vector.content) > most for vector in vectors.values()):
        make_private(folder)
        remove_abandoned(folder)
    places = {row: _placed(vector, most, folder) for row, vector in vectors.items()}

    def column(name: str, kind: pa.DataType) -> pa.Array:
        return pa.array([places[row][name] if row in places else None for row in range(files)], kind)

    texts = ("dv_storage", "dv_path", "dv_inline", "dv_id")
    cardinality = [vectors[row].cardinality if row in vectors else 0 for row in range(files)]
    return {
        **{name: column(name, pa.string()) for name in texts},
        **{name: column(name, pa.int64()) for name in ("dv_offset", "dv_size")},
        "dv_cardinality": pa.array(cardinality, pa.int64()),
    }


class TooLargeForALine(Exception):
    """A vector that would need a file of its own, where none can be written."""


def _placed(vector: Vector, most: int, folder: Path | None) -> dict[str, str | int | None]:
    size = len(vector.content)
    if size <= most:
        text = z85_text(vector.content)
        # Only files of vectors have an id that recipients are told.
        inline = {"dv_storage": "i", "dv_path": None, "dv_inline": text, "dv_id": None}
        return {**inline, "dv_offset": None, "dv_size": size}
    if folder is None:
        raise TooLargeForALine(f"{size} bytes")
    path, offset = str(_stored(vector.content, folder)), len(FILE_VERSION)
    stored = {"dv_storage": "p", "dv_path": path, "dv_inline": None, "dv_id": f"p{path}@{offset}"}
    return {**stored, "dv_offset": offset, "dv_size": size}


def _stored(content: bytes, folder: Path) -> Path:
    """The file of a vector, named by the SHA-256 of its bytes; written once, whoever asks for it how often."""
    file = FILE_VERSION + framed(content)
    path = folder / f"{hashlib.sha256(file).hexdigest()}.bin"
    if path.exists():
        return path
    scratch = scratch_file(folder)
    try:
        with scratch.open("xb") as target:
            target.write(file)
            target.flush()
            os.fsync(target.fileno())
        scratch.chmod(0o600)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(folder)
    return path
