"""The conditions of a request for a file: one range of bytes or all of them, and the entity tag it is to have."""

import re
from dataclasses import dataclass

# Ranges of other units, several at once or misspelt ones may be ignored: the whole file is a right answer.
# Clients in Java ask up to Long.MAX_VALUE, of 19 digits.
SINGLE = re.compile(r"\s*bytes\s*=\s*(\d{0,64})\s*-\s*(\d{0,64})\s*", re.IGNORECASE | re.ASCII)
TAGS = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class ByteRange:
    """Which bytes to send."""

    start: int
    length: int
    is_partial: bool


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The bytes asked for of a file of `size`; None when none of them exists."""
    found = SINGLE.fullmatch(header or "")
    if found is None or not (found[1] or found[2]):
        return ByteRange(0, size, False)
    if not found[1]:
        length = min(int(found[2]), size)
        return ByteRange(size - length, length, True) if length else None
    start = int(found[1])
    last = min(int(found[2]), size - 1) if found[2] else size - 1
    if found[2] and int(found[2]) < start:
        return ByteRange(0, size, False)
    return ByteRange(start, last - start + 1, True) if start < size else None


def matches(header: str, etag: str) -> bool:
    """Whether a list of entity tags, or `*`, has this one; as weak tags are compared (RFC 9110 §8.8.3.2)."""
    return header.strip() == "*" or etag in TAGS.findall(header)
