"""Avro container files, in which Iceberg keeps manifests: header, codecs, blocks. entries.py knows what is in them.

Decoding is ours: for the same manifests fastavro took twice as long, because it makes objects of every entry and of
every bound, and pyiceberg's own reader at least half as long again (docs/adr/0014).
"""

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

MAGIC = b"Obj\x01"
# How encrypted files of metadata begin (Iceberg spec, "AES GCM Stream File Format").
ENCRYPTED = b"AGS1"
SYNC_BYTES = 16


class AvroError(ValueError):
    """A file that is cut off, changed, or no Avro at all."""


class EncryptedError(AvroError):
    """A file that only who has the table's keys can read."""


@dataclass(frozen=True)
class AvroBlocks:
    """A container's schema as text, and its blocks: how many records, and their bytes."""

    schema: bytes
    metadata: Mapping[str, bytes]
    blocks: list[tuple[int, bytes]]


def read_container(content: bytes) -> AvroBlocks:
    """The blocks of a container file (Avro spec, "Object Container Files").

    Raises:
        AvroError: it is not whole, or encrypted.
    """
    if content.startswith(ENCRYPTED):
        raise EncryptedError("it is encrypted")
    if not content.startswith(MAGIC):
        raise AvroError("it does not begin like an Avro file")
    try:
        metadata, pos = _header(content)
        sync = content[pos : pos + SYNC_BYTES]
        blocks = _blocks(content, pos + SYNC_BYTES, sync, _codec(metadata))
        return AvroBlocks(metadata["avro.schema"], metadata, blocks)
    except IndexError as error:
        raise AvroError("it is cut off") from error
    except KeyError as error:
        raise AvroError("its header has no schema") from error


@lru_cache(32)
def schema_of(text: bytes) -> Any:
    """A container's schema, as JSON's types."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise AvroError("its schema is no JSON") from error


def read_long(content: bytes, pos: int) -> tuple[int, int]:
    """A zigzag-coded number of any length, and the place behind it."""
    byte = content[pos]
    pos += 1
    number = byte & 127
    shift = 7
    while byte > 127:
        byte = content[pos]
        pos += 1
        number |= (byte & 127) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), pos


def read_bytes(content: bytes, pos: int) -> tuple[bytes, int]:
    """Bytes or a text behind their length, and the place behind them."""
    length, pos = read_long(content, pos)
    end = pos + length
    if length < 0 or end > len(content):
        raise AvroError("it is cut off")
    return content[pos:end], end


def _header(content: bytes) -> tuple[dict[str, bytes], int]:
    metadata: dict[str, bytes] = {}
    count, pos = read_long(content, len(MAGIC))
    while count:
        if count < 0:
            count = -count
            _, pos = read_long(content, pos)
        for _ in range(count):
            key, pos = read_bytes(content, pos)
            metadata[key.decode()], pos = read_bytes(content, pos)
        count, pos = read_long(content, pos)
    return metadata, pos


def _blocks(
    content: bytes, pos: int, sync: bytes, decompress: Callable[[bytes], bytes]
) -> list[tuple[int, bytes]]:
    blocks = []
    while pos < len(content):
        count, pos = read_long(content, pos)
        packed, pos = read_bytes(content, pos)
        block = decompress(packed)
        # No record of ours is of no bytes: whatever says otherwise would only fill the memory.
        if not 0 <= count <= len(block) or content[pos : pos + SYNC_BYTES] != sync:
            raise AvroError("a block is damaged or cut off")
        blocks.append((count, block))
        pos += SYNC_BYTES
    return blocks


def _codec(metadata: Mapping[str, bytes]) -> Callable[[bytes], bytes]:
    name = metadata.get("avro.codec", b"null").decode()
    codecs: dict[str, Callable[[bytes], bytes]] = {
        "null": bytes,
        "deflate": _inflate,
        "snappy": _unsnap,
        "zstandard": _zstandard,
    }
    if name not in codecs:
        raise AvroError(f"it is compressed with {name}; known are {', '.join(codecs)}")
    return codecs[name]


def _inflate(packed: bytes) -> bytes:
    try:
        return zlib.decompress(packed, -zlib.MAX_WBITS)
    except zlib.error as error:
        raise AvroError("a block cannot be decompressed") from error


def _unsnap(packed: bytes) -> bytes:
    """Snappy's text begins with the length it has in full; Avro puts a CRC-32 of that text behind it."""
    import pyarrow as pa

    length, shift = 0, 0
    for byte in packed[:5]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    try:
        block: bytes = pa.Codec("snappy").decompress(packed[:-4], length, asbytes=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise AvroError("a block cannot be decompressed") from error
    if zlib.crc32(block) != int.from_bytes(packed[-4:], "big"):
        raise AvroError("a block does not have its checksum")
    return block


def _zstandard(packed: bytes) -> bytes:
    import pyarrow as pa

    try:
        # The length in full need not stand in the frame: only a stream does without.
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            block: bytes = stream.read()
            return block
    except (OSError, pa.ArrowInvalid) as error:
        raise AvroError("a block cannot be decompressed") from error
