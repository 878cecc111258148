"""The bytes of a deletion vector: Z85 where they are inline, and Roaring bitmaps by Delta's portable layout."""

import struct
from collections.abc import Iterator

MAGIC = struct.pack("<I", 1681511377)
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_NO_RUNS, _RUNS = 12346, 12347
_ARRAY_LIMIT, _FEW_CONTAINERS = 4096, 4
_BITMAP_BYTES = 8192


def unpack_inline(text: str) -> bytes:
    """The bytes of a vector that stands in the line itself.

    Raises:
        ValueError: the text is not Z85.
    """
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters are no Z85")
    content = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for sign in text[start : start + 5]:
            number = number * 85 + Z85.index(sign)
        content += struct.pack(">I", number & 0xFFFFFFFF)
    return bytes(content)


def cardinality(content: bytes) -> int:
    """How many rows a vector marks; -1 if its bytes are not what they should be."""
    try:
        return sum(_cardinalities(content))
    except (struct.error, IndexError):
        return -1


def _cardinalities(content: bytes) -> Iterator[int]:
    at = 4
    (bitmaps,) = struct.unpack_from("<Q", content, at)
    at += 8
    for _ in range(bitmaps):
        at += 4  # the upper half of the numbers of this bitmap
        found, at = _bitmap(content, at)
        yield found


def _bitmap(content: bytes, at: int) -> tuple[int, int]:
    """How many numbers a 32-bit bitmap holds, and where it ends."""
    (cookie,) = struct.unpack_from("<I", content, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == _RUNS:
        containers = (cookie >> 16) + 1
        runs = content[at : at + (containers + 7) // 8]
        at += len(runs)
    elif cookie == _NO_RUNS:
        (containers,) = struct.unpack_from("<I", content, at)
        at += 4
    else:
        raise IndexError(f"{cookie} begins no bitmap")
    counts = [struct.unpack_from("<HH", content, at + 4 * number)[1] + 1 for number in range(containers)]
    at += 4 * containers
    if not runs or containers >= _FEW_CONTAINERS:
        at += 4 * containers  # where each container begins
    for number, count in enumerate(counts):
        at += _container_bytes(content, at, count, bool(runs) and bool(runs[number // 8] >> number % 8 & 1))
    if at > len(content):
        raise IndexError("the bitmap is cut off")
    return sum(counts), at


def _container_bytes(content: bytes, at: int, count: int, is_run: bool) -> int:
    if is_run:
        (pairs,) = struct.unpack_from("<H", content, at)
        return int(2 + 4 * pairs)
    return 2 * count if count <= _ARRAY_LIMIT else _BITMAP_BYTES
