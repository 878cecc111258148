"""Avro containers with the codecs that fastavro has from other packages."""

import zlib

import pyarrow as pa

from lakeshare_server.tables.iceberg.avro import SYNC_BYTES, read_container, read_long


def compress_avro(content: bytes, codec: str) -> bytes:
    """An uncompressed container, compressed with `snappy` or `zstandard`."""
    whole = read_container(content)
    sync, null = content[-SYNC_BYTES:], b"\x14avro.codec\x08null"
    head = content[: content.index(sync) + SYNC_BYTES]
    assert null in head
    packed = head.replace(null, b"\x14avro.codec" + make_varint(len(codec)) + codec.encode())
    for count, block in whole.blocks:
        text = pa.Codec(codec.replace("zstandard", "zstd")).compress(block, asbytes=True)
        if codec == "snappy":
            # Each block ends with the CRC-32 of what it was.
            text += zlib.crc32(block).to_bytes(4, "big")
        packed += make_varint(count) + make_varint(len(text)) + text + sync
    return packed


def make_varint(number: int) -> bytes:
    """A number as Avro writes it: zigzag-coded, seven bits in a byte."""
    written, rest = b"", number << 1
    while rest > 127:
        written, rest = written + bytes([rest & 127 | 128]), rest >> 7
    written += bytes([rest])
    assert read_long(written, 0)[0] == number
    return written
