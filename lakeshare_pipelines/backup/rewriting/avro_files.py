"""Avro files with some of their records changed: schema, header and codec stay byte for byte what they were.

What a newer writer has put into them goes through: records are decoded by the file's own schema, without making
dates or decimals of what is numbers and bytes.
"""

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeAlias

from lakeshare_pipelines.errors import BackupError
from lakeshare_server.tables.iceberg.avro import (
    MAGIC,
    SYNC_BYTES,
    AvroBlocks,
    AvroError,
    read_container,
    schema_of,
)

Record: TypeAlias = dict[str, Any]  # of the file's own schema, whatever that is


def records_of(location: str, content: bytes) -> Iterator[Record]:
    """The records of a container file.

    Raises:
        BackupError: as `changed_records` says.
    """
    container, schema = _opened(location, content)
    for count, block in container.blocks:
        yield from _decoded(location, schema, count, block)


def changed_records(location: str, content: bytes, change: Callable[[Record], None]) -> bytes:
    """A container file (Avro spec, "Object Container Files") after `change` was called with each of its records.

    Blocks stay the blocks they were; those of codecs other than null and deflate are deflated.

    Raises:
        BackupError: the file is not whole, encrypted, or no Avro at all.
    """
    from fastavro import schemaless_writer

    container, schema = _opened(location, content)
    header, pack = _codec(container.metadata)
    sync = sha256(content).digest()[:SYNC_BYTES]
    written = io.BytesIO()
    written.write(MAGIC + _map(header) + sync)
    for count, block in container.blocks:
        changed = io.BytesIO()
        for record in _decoded(location, schema, count, block):
            change(record)
            schemaless_writer(changed, schema, record)
        packed = pack(changed.getvalue())
        written.write(_long(count) + _long(len(packed)) + packed + sync)
    return written.getvalue()


def _opened(location: str, content: bytes) -> tuple[AvroBlocks, Any]:
    from fastavro import parse_schema

    try:
        container = read_container(content)
        return container, parse_schema(_without_meaning(schema_of(container.schema)))
    except ValueError as error:
        raise unreadable(location, error) from error


def _decoded(location: str, schema: Any, count: int, block: bytes) -> Iterator[Record]:
    from fastavro import schemaless_reader

    records = io.BytesIO(block)
    for _ in range(count):
        try:
            record: Any = schemaless_reader(records, schema, None)
        except (EOFError, IndexError, ValueError, TypeError) as error:
            raise unreadable(location, error) from error
        yield record


def unreadable(location: str, error: Exception) -> BackupError:
    """The error for a file of a table's metadata that is not what it should be."""
    reason = str(error) if isinstance(error, AvroError) else f"{type(error).__name__}: {error}"
    return BackupError(
        location,
        f"it cannot be read: {reason}",
        "Restore from another point, or an older snapshot of this one.",
    )


def _without_meaning(schema: Any) -> Any:
    """A schema whose values are what lies in the file: no logical types, and no names that decoding stumbles over."""
    if isinstance(schema, dict):
        return {key: _without_meaning(said) for key, said in schema.items() if key != "logicalType"}
    return [_without_meaning(one) for one in schema] if isinstance(schema, list) else schema


def _codec(metadata: Mapping[str, bytes]) -> tuple[dict[str, bytes], Callable[[bytes], bytes]]:
    if metadata.get("avro.codec", b"null") == b"null":
        return dict(metadata), bytes
    return {**metadata, "avro.codec": b"deflate"}, _deflated


def _deflated(block: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(block) + packing.flush()


def _map(texts: Mapping[str, bytes]) -> bytes:
    pairs = b"".join(_text(key.encode()) + _text(said) for key, said in texts.items())
    return _long(len(texts)) + pairs + _long(0)


def _text(content: bytes) -> bytes:
    return _long(len(content)) + content


def _long(number: int) -> bytes:
    """A number that is not negative, zigzag-coded."""
    number <<= 1
    coded = bytearray()
    while number > 127:
        coded.append(number & 127 | 128)
        number >>= 7
    return bytes((*coded, number))
