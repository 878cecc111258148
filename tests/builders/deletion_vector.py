"""Deletion vectors, read and written by the Delta protocol's section "Deletion Vector Format", without a library.

The tests judge servers and clients with it, so it shares no code with what it judges.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

import numpy as np

MAGIC = 1681511377  # the portable 64-bit layout of Roaring bitmaps
FILE_VERSION = b"\x01"
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
LONGEST_ARRAY = 4096
OFFSETS_FROM = 4  # containers, in bitmaps that have runs


def from_z85(text: str) -> bytes:
    """The bytes of a text in Z85; its length is a multiple of five."""
    assert len(text) % 5 == 0, f"Z85 comes in fives: {text!r}"
    words = (text[at : at + 5] for at in range(0, len(text), 5))
    return b"".join(struct.pack(">I", _number(word)) for word in words)


def _number(word: str) -> int:
    number = 0
    for letter in word:
        number = number * 85 + Z85.index(letter)
    return number


def to_z85(content: bytes) -> str:
    """The bytes in Z85, filled up with zeros to a multiple of four."""
    padded = content + bytes(-len(content) % 4)
    return "".join(_word(number) for (number,) in struct.iter_unpack(">I", padded))


def _word(number: int) -> str:
    letters = []
    for _ in range(5):
        number, digit = divmod(number, 85)
        letters.append(Z85[digit])
    return "".join(reversed(letters))


def relative_path(path_or_inline_dv: str) -> str:
    """The file, below the table's root, that a descriptor of storage type `u` names."""
    prefix, name = path_or_inline_dv[:-20], path_or_inline_dv[-20:]
    folder = f"{prefix}/" if prefix else ""
    return f"{folder}deletion_vector_{UUID(bytes=from_z85(name))}.bin"


def inline_positions(descriptor: Mapping[str, Any]) -> np.ndarray:
    """The deleted rows of an inline vector."""
    content = from_z85(descriptor["pathOrInlineDv"])[: descriptor["sizeInBytes"]]
    return _checked(descriptor, content)


def stored_positions(descriptor: Mapping[str, Any], file: bytes) -> np.ndarray:
    """The deleted rows of a vector in a file; checks the file's version, the length and the checksum."""
    assert file[:1] == FILE_VERSION, f"§2.3: a deletion vector's file begins with 1, not {file[:1]!r}"
    at, size = descriptor.get("offset") or 0, descriptor["sizeInBytes"]
    (length,) = struct.unpack_from(">I", file, at)
    assert length == size, f"§2.3: {length} bytes at offset {at}, the descriptor says {size}"
    content = file[at + 4 : at + 4 + size]
    (checksum,) = struct.unpack_from(">I", file, at + 4 + size)
    assert checksum == zlib.crc32(content), f"the checksum at offset {at} is wrong"
    return _checked(descriptor, content)


def _checked(descriptor: Mapping[str, Any], content: bytes) -> np.ndarray:
    found = positions(content)
    wanted = descriptor["cardinality"]
    assert len(found) == wanted, f"§2.3: {len(found)} rows are deleted, the descriptor says {wanted}"
    return found


def positions(content: bytes) -> np.ndarray:
    """The numbers in a serialized bitmap, its magic number in front."""
    magic, buckets = struct.unpack_from("<IQ", content)
    assert magic == MAGIC, f"a deletion vector begins with {MAGIC}, not {magic}"
    parts = [np.empty(0, np.uint64)]
    at = 12
    for _ in range(buckets):
        (high,) = struct.unpack_from("<I", content, at)
        low, at = _bitmap(content, at + 4)
        parts.append(low.astype(np.uint64) | np.uint64(high << 32))
    return np.concatenate(parts)


def _bitmap(content: bytes, at: int) -> tuple[np.ndarray, int]:
    """A 32-bit bitmap at an offset, and the offset behind it."""
    (cookie,) = struct.unpack_from("<I", content, at)
    at += 4
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        flags = np.frombuffer(content, np.uint8, (count + 7) // 8, at)
        has_run = np.unpackbits(flags, bitorder="little")[:count].astype(bool)
        at += len(flags)
    else:
        assert cookie == 12346, f"not a Roaring bitmap: cookie {cookie}"
        (count,) = struct.unpack_from("<I", content, at)
        has_run = np.zeros(count, bool)
        at += 4
    header = np.frombuffer(content, "<u2", 2 * count, at).reshape(count, 2)
    at += 4 * count
    if cookie == 12346 or count >= OFFSETS_FROM:
        at += 4 * count
    parts = [np.empty(0, np.uint32)]
    for (key, short), runs in zip(header, has_run, strict=True):
        low, at = _container(content, at, int(short) + 1, bool(runs))
        parts.append(low.astype(np.uint32) | np.uint32(int(key) << 16))
    return np.concatenate(parts), at


def _container(content: bytes, at: int, cardinality: int, runs: bool) -> tuple[np.ndarray, int]:
    if runs:
        (count,) = struct.unpack_from("<H", content, at)
        pairs = np.frombuffer(content, "<u2", 2 * count, at + 2).reshape(count, 2).astype(np.uint32)
        parts = [np.arange(start, start + length + 1, dtype=np.uint32) for start, length in pairs]
        return np.concatenate(parts), at + 2 + 4 * count
    if cardinality <= LONGEST_ARRAY:
        return np.frombuffer(content, "<u2", cardinality, at), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(content, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits), at + 8192


def serialized(rows: Iterable[int]) -> bytes:
    """A bitmap of these rows, its magic number in front; by arrays and bitsets, never by runs."""
    wanted = np.unique(np.fromiter(rows, np.uint64))
    buckets = [(int(high), wanted[wanted >> 32 == high]) for high in np.unique(wanted >> 32)]
    head = struct.pack("<IQ", MAGIC, len(buckets))
    return head + b"".join(struct.pack("<I", high) + _bitmap_of(rows) for high, rows in buckets)


def _bitmap_of(rows: np.ndarray) -> bytes:
    low = rows.astype(np.uint32)
    keys = np.unique(low >> 16)
    groups = [(low[low >> 16 == key] & 0xFFFF).astype("<u2") for key in keys]
    bodies = list(_bodies(groups))
    head = struct.pack("<II", 12346, len(keys))
    for key, group in zip(keys, groups, strict=True):
        head += struct.pack("<HH", key, len(group) - 1)
    at = len(head) + 4 * len(keys)
    for body in bodies:
        head += struct.pack("<I", at)
        at += len(body)
    return head + b"".join(bodies)


def _bodies(groups: Iterable[np.ndarray]) -> Iterator[bytes]:
    for group in groups:
        if len(group) <= LONGEST_ARRAY:
            yield group.tobytes()
        else:
            bits = np.zeros(65536, np.uint8)
            bits[group] = 1
            yield np.packbits(bits, bitorder="little").tobytes()


def inline_descriptor(rows: Iterable[int]) -> dict[str, Any]:
    """A descriptor that carries its vector itself."""
    content = serialized(rows)
    return {
        "storageType": "i",
        "pathOrInlineDv": to_z85(content),
        "sizeInBytes": len(content),
        "cardinality": len(positions(content)),
    }


def stored(vectors: Iterable[Iterable[int]]) -> tuple[bytes, list[dict[str, int]]]:
    """A file of several vectors, and of each the descriptor's `offset`, `sizeInBytes` and `cardinality`."""
    file = FILE_VERSION
    places = []
    for rows in vectors:
        content = serialized(rows)
        place = {"offset": len(file), "sizeInBytes": len(content), "cardinality": len(positions(content))}
        places.append(place)
        file += struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
    return file, places
