"""Z85 (ZeroMQ RFC 32), the base 85 in which Delta's descriptors have the UUIDs of vectors, or the vectors."""

import struct

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
DIGIT = {character: value for value, character in enumerate(ALPHABET)}
# Two digits at a time: a vector of 50,000 bytes is 12,500 numbers of five digits.
PAIRS = [first + second for first in ALPHABET for second in ALPHABET]


def z85_text(content: bytes) -> str:
    """The bytes in Z85, filled up with zeros to a multiple of four: their number has to be told beside them."""
    padded = content + bytes(-len(content) % 4)
    return "".join(_five_digits(number) for (number,) in struct.iter_unpack(">I", padded))


def z85_bytes(text: str) -> bytes:
    """The bytes of a Z85 text.

    Raises:
        KeyError, ValueError, OverflowError: it is none.
    """
    if len(text) % 5:
        raise ValueError("Z85 comes in fives")
    decoded = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for character in text[start : start + 5]:
            number = number * 85 + DIGIT[character]
        decoded += number.to_bytes(4, "big")
    return bytes(decoded)


def _five_digits(number: int) -> str:
    upper, last = divmod(number, len(PAIRS))
    first, middle = divmod(upper, len(PAIRS))
    return ALPHABET[first] + PAIRS[middle] + PAIRS[last]
