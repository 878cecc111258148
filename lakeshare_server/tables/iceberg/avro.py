"""Avro container files: header, codecs and blocks, checked in pieces if large; Iceberg manifests decoded into columns.

For the same manifests fastavro took twice as long, because it creates an object for every entry and every bound, and
pyiceberg's own reader three times as long or more (docs/adr/0014).
"""

import bz2
import io
import json
import lzma
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, TypeAlias

MAGIC = b"Obj\x01"
# The magic of encrypted metadata files (Iceberg spec, "AES GCM Stream File Format").
ENCRYPTED = b"AGS1"
SYNC_BYTES = 16
PIECE_BYTES = 1 << 20
# Writers end a block at some tens of kilobytes; a few kilobytes can decompress to gigabytes.
MAX_BLOCK_BYTES = 256 << 20
MAX_LONG_BYTES = 10


class AvroError(ValueError):
    """A file that is truncated, damaged, or no Avro file."""


class EncryptedError(AvroError):
    """An encrypted file."""


@dataclass(frozen=True)
class AvroBlocks:
    """A container's schema as text, its metadata, and its blocks: the number of records and their bytes."""

    schema: bytes
    metadata: Mapping[str, bytes]
    blocks: list[tuple[int, bytes]]


def read_container(content: bytes) -> AvroBlocks:
    """Reads a container file (Avro spec, "Object Container Files"); raises AvroError if damaged or encrypted."""
    if content.startswith(ENCRYPTED):
        raise EncryptedError("it is encrypted")
    container = _Container(io.BytesIO(content))
    blocks = list(container.read_blocks())
    # Each record of a manifest has at least one byte: a larger count would only fill the memory.
    if any(count > len(block) for count, block in blocks):
        raise AvroError("a block is damaged or cut off")
    return AvroBlocks(container.schema, container.metadata, blocks)


@dataclass(frozen=True)
class ContainerSummary:
    """What a container holds: its schema as text, the number of its records and their size in bytes, unpacked."""

    schema: bytes
    rows: int
    unpacked_bytes: int


def check_container(stream: BinaryIO) -> ContainerSummary:
    """Reads a container file of any size to its end, block by block, without decoding its records.

    Raises:
        AvroError: it is damaged, truncated, or no Avro file.
    """
    container, rows, unpacked_bytes = _Container(stream), 0, 0
    for count, block in container.read_blocks():
        rows, unpacked_bytes = rows + count, unpacked_bytes + len(block)
    parse_avro_schema(container.schema)
    return ContainerSummary(container.schema, rows, unpacked_bytes)


class _Container:
    """A container that is read in pieces: `_content` is the part that is not yet consumed, from `_pos` on."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._content, self._pos = stream, b"", 0
        try:
            self.metadata = self._read_header()
            self.schema = self.metadata["avro.schema"]
        except IndexError as error:
            raise AvroError("it is cut off") from error
        except KeyError as error:
            raise AvroError("its header has no schema") from error
        self._sync, self._decompress = self._take(SYNC_BYTES), _codec(self.metadata)

    def read_blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yields the number of records and the bytes of each block, decompressed; raises AvroError."""
        try:
            while self._fill(1):
                yield self._read_block()
        except IndexError as error:
            raise AvroError("it is cut off") from error

    def _read_header(self) -> dict[str, bytes]:
        self._fill(PIECE_BYTES)
        if not self._content.startswith(MAGIC):
            raise AvroError("it does not begin like an Avro file")
        while True:
            try:
                metadata, self._pos = _header(self._content)
                break
            except (IndexError, AvroError):
                # The header may be longer than what was read.
                size = len(self._content)
                self._fill(2 * size)
                if size >= MAX_BLOCK_BYTES or len(self._content) == size:
                    raise
        return metadata

    def _read_block(self) -> tuple[int, bytes]:
        self._fill(2 * MAX_LONG_BYTES)
        count, self._pos = read_long(self._content, self._pos)
        size, self._pos = read_long(self._content, self._pos)
        if count < 0 or not 0 <= size <= MAX_BLOCK_BYTES:
            raise AvroError("a block is damaged")
        packed = self._take(size)
        if self._take(SYNC_BYTES) != self._sync:
            raise AvroError("a block is damaged or cut off")
        return count, self._decompress(packed)

    def _take(self, size: int) -> bytes:
        if not self._fill(size):
            raise AvroError("it is cut off")
        taken = self._content[self._pos : self._pos + size]
        self._pos += size
        return taken

    def _fill(self, size: int) -> bool:
        """Reads until `size` bytes are left to consume; whether there are so many."""
        missing = size - (len(self._content) - self._pos)
        pieces = [self._content[self._pos :]] if missing > 0 else []
        while missing > 0 and (piece := self._stream.read(max(missing, PIECE_BYTES))):
            pieces.append(piece)
            missing -= len(piece)
        if pieces:
            self._content, self._pos = b"".join(pieces), 0
        return missing <= 0


@lru_cache(32)
def parse_avro_schema(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise AvroError("its schema is no JSON") from error


def read_long(content: bytes, pos: int) -> tuple[int, int]:
    """Reads a zigzag-coded number of any length; also returns the position after it."""
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
    """Reads bytes or a text after their length; also returns the position after them."""
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


def _codec(metadata: Mapping[str, bytes]) -> Callable[[bytes], bytes]:
    name = metadata.get("avro.codec", b"null").decode()
    codecs: dict[str, Callable[[bytes], bytes]] = {
        "null": bytes,
        "deflate": lambda packed: _decompress(zlib.decompressobj(-zlib.MAX_WBITS), packed),
        "snappy": _unsnap,
        "zstandard": _zstandard,
        "bzip2": lambda packed: _decompress(bz2.BZ2Decompressor(), packed),
        "xz": lambda packed: _decompress(lzma.LZMADecompressor(), packed),
    }
    if name not in codecs:
        raise AvroError(f"it is compressed with {name}; known are {', '.join(codecs)}")

    def decompress(packed: bytes) -> bytes:
        try:
            return codecs[name](packed)
        except AvroError:
            raise
        # pa.ArrowInvalid is a ValueError.
        except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
            raise AvroError("a block cannot be decompressed") from error

    return decompress


def _decompress(decompressor: Any, packed: bytes) -> bytes:
    """Decompresses a block, with a decompressor of the standard library for it alone."""
    block: bytes = decompressor.decompress(packed, MAX_BLOCK_BYTES)
    if not decompressor.eof:
        raise _too_large() if len(block) == MAX_BLOCK_BYTES else AvroError("a block cannot be decompressed")
    return block


def _too_large() -> AvroError:
    return AvroError(f"a block is larger than {MAX_BLOCK_BYTES >> 20} MiB, decompressed")


def _unsnap(packed: bytes) -> bytes:
    """Snappy data begins with its decompressed length; Avro appends a CRC-32 of the decompressed bytes."""
    import pyarrow as pa

    length, shift = 0, 0
    for byte in packed[:5]:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if length > MAX_BLOCK_BYTES:
        raise _too_large()
    block: bytes = pa.Codec("snappy").decompress(packed[:-4], length, asbytes=True)
    if zlib.crc32(block) != int.from_bytes(packed[-4:], "big"):
        raise AvroError("a block does not have its checksum")
    return block


def _zstandard(packed: bytes) -> bytes:
    import pyarrow as pa

    # A frame may lack the decompressed length, which only a stream does not need.
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        block: bytes = stream.read(MAX_BLOCK_BYTES + 1)
    if len(block) > MAX_BLOCK_BYTES:
        raise _too_large()
    return block


Step: TypeAlias = Callable[[bytes, int, int], int]
# Whether a member is a union of null and the type of the step, as nearly all are: checked once for speed.
Member: TypeAlias = tuple[bool, Step]
# The zigzag code of the second type of a union.
SECOND = 2

LONGS = {
    0: "status", 1: "snapshot_id", 3: "sequence_number", 134: "content", 103: "rows", 104: "size",
    142: "first_row_id", 144: "content_offset", 145: "content_size_in_bytes", 501: "length", 502: "spec_id",
    503: "snapshot_id", 504: "added", 505: "existing", 512: "added_rows", 513: "existing_rows",
    515: "sequence_number", 517: "content", 520: "first_row_id",
}  # fmt: skip
TEXTS = {500: "path", 100: "path", 101: "format", 131: "key_metadata", 143: "referenced_data_file"}
COUNTS = {110: "null_counts", 137: "nan_counts"}
BOUNDS = {125: "lower", 128: "upper"}
EQUALITY_IDS, PARTITION = 135, 102
# For the rare writer without field ids.
NAMED = {
    "status": 0, "snapshot_id": 1, "data_file": 2, "sequence_number": 3, "content": 134, "file_path": 100,
    "file_format": 101, "partition": 102, "record_count": 103, "file_size_in_bytes": 104,
    "null_value_counts": 110, "nan_value_counts": 137, "lower_bounds": 125, "upper_bounds": 128,
    "key_metadata": 131, "equality_ids": 135, "first_row_id": 142, "referenced_data_file": 143,
    "content_offset": 144, "content_size_in_bytes": 145, "manifest_path": 500, "manifest_length": 501,
    "partition_spec_id": 502, "added_snapshot_id": 503, "added_files_count": 504, "existing_files_count": 505,
    "added_rows_count": 512, "existing_rows_count": 513,
}  # fmt: skip


class Padded(dict[Any, list[Any]]):
    """Columns that are created with their first value; other rows have None."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __missing__(self, key: Any) -> list[Any]:
        column = self[key] = [None] * self.rows
        return column

    def grow(self, rows: int) -> None:
        self.rows += rows
        more = [None] * rows
        for column in self.values():
            column += more

    def remove_rows(self) -> None:
        """Removes all rows; the lists stay the same objects."""
        self.rows = 0
        for column in self.values():
            column.clear()


class Entries:
    """Entries of manifests in columns: counts and equality ids in Avro's encoding, texts as bytes.

    `partition` is by (spec id, partition field id), `partition_kinds` has its Avro types; `lower` and `upper` are by
    column id.
    """

    def __init__(self) -> None:
        self.columns, self.partition = Padded(), Padded()
        self.lower, self.upper = Padded(), Padded()
        self.partition_kinds: dict[tuple[int, int], str] = {}
        self._programs: dict[tuple[bytes, int], Step] = {}

    @property
    def rows(self) -> int:
        return self.columns.rows

    def read(self, manifest: AvroBlocks, spec_id: int) -> None:
        """Adds the entries of a manifest; raises AvroError if they do not match its schema."""
        program, row = self._program(manifest.schema, spec_id), self.rows
        # Some writers write all entries in one block, others a block for each.
        count = sum(count for count, _ in manifest.blocks)
        for columns in (self.columns, self.partition, self.lower, self.upper):
            columns.grow(count)
        for count, block in manifest.blocks:
            pos = 0
            try:
                for at in range(row, row + count):
                    pos = program(block, pos, at)
            except (IndexError, AttributeError, TypeError, OverflowError, struct.error) as error:
                raise AvroError("an entry is cut off") from error
            if pos != len(block):
                raise AvroError("a block's entries are longer or shorter than the block")
            row += count

    def clear(self) -> None:
        """Removes the entries; the compiled readers of schemas stay."""
        for columns in (self.columns, self.partition, self.lower, self.upper):
            columns.remove_rows()

    def _program(self, schema: bytes, spec_id: int) -> Step:
        key = (schema, spec_id)
        if key not in self._programs:
            try:
                self._programs[key] = self._record(_resolve(parse_avro_schema(schema), {}), spec_id)
            except (KeyError, TypeError, AttributeError) as error:
                raise AvroError("its schema is not that of a manifest") from error
        return self._programs[key]

    def _record(self, schema: Mapping[str, Any], spec_id: int) -> Step:
        return _in_turn([self._field(field, spec_id) for field in schema["fields"]])

    def _field(self, field: Mapping[str, Any], spec_id: int) -> Member:
        field_id, kind = field.get("field-id", NAMED.get(field["name"])), field["type"]
        if field_id == 2:
            return False, self._record(kind, spec_id)
        if field_id == PARTITION:
            return False, _in_turn([self._partition(member, spec_id) for member in kind["fields"]])
        step = self._kept(field_id)
        if step is None:
            return _is_nullable(kind), make_skipper(kind[1] if _is_nullable(kind) else kind)
        return _member(kind, step)

    def _kept(self, field_id: int) -> Step | None:
        if field_id in LONGS:
            return _long(self.columns[LONGS[field_id]])
        if field_id in TEXTS:
            return _text(self.columns[TEXTS[field_id]])
        if field_id in COUNTS:
            return _varints_of(self.columns[COUNTS[field_id]], 2)
        if field_id == EQUALITY_IDS:
            return _varints_of(self.columns["equality_ids"], 1)
        return _bounds(getattr(self, BOUNDS[field_id])) if field_id in BOUNDS else None

    def _partition(self, field: Mapping[str, Any], spec_id: int) -> Member:
        key, kind = (spec_id, field["field-id"]), field["type"]
        [value] = [branch for branch in kind if branch != "null"] if isinstance(kind, list) else [kind]
        self.partition_kinds[key] = _name(value)
        return _member(kind, _value(_name(value), value, self.partition[key]))


def unpack_longs(packed: bytes) -> list[int]:
    return [_number(varint) for varint in VARINT.findall(packed)]


def make_skipper(kind: Any) -> Step:
    if isinstance(kind, list):
        branches = [make_skipper(branch) for branch in kind]
        return lambda block, pos, row: branches[block[pos] >> 1](block, pos + 1, row)
    name = _name(kind)
    if name in ("record", "error"):
        return _in_turn([(False, make_skipper(field["type"])) for field in kind["fields"]])
    if name in ("array", "map"):
        return _skip_items(kind)
    if name in _WIDTHS or name == "fixed":
        width: int = kind["size"] if name == "fixed" else _WIDTHS[name]
        return lambda block, pos, row: pos + width
    if name in ("bytes", "string"):
        return lambda block, pos, row: read_bytes(block, pos)[1]
    if name in ("int", "long", "enum"):
        return lambda block, pos, row: read_long(block, pos)[1]
    raise AvroError(f"its schema has the type {name}")


VARINT = re.compile(rb"[\x80-\xff]*+[\x00-\x7f]", re.DOTALL)
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}


@lru_cache(4096)
def _number(varint: bytes) -> int:
    return read_long(varint, 0)[0]


@lru_cache(1024)
def _so_many(count: int) -> "Callable[[bytes, int], re.Match[bytes] | None]":
    return re.compile(rb"(?:[\x80-\xff]*+[\x00-\x7f]){%d}" % count).match


def _name(kind: Any) -> str:
    name: str = kind["type"] if isinstance(kind, Mapping) else kind
    return name


def _resolve(kind: Any, known: dict[str, Any], space: str = "") -> Any:
    """The type with the definitions of the types that it names (Avro spec, "Names"); `known` are those before it.

    Not of records, which manifests do not name again: few of them can stand for a schema of any size.
    """
    if isinstance(kind, list):
        return [_resolve(branch, known, space) for branch in kind]
    if isinstance(kind, str):
        return known.get(kind if "." in kind or not space else f"{space}.{kind}", kind)
    name: str = kind.get("name", "")
    space = name.rpartition(".")[0] or kind.get("namespace", space)
    resolved = dict(kind)
    if "fields" in kind:
        resolved["fields"] = [
            field | {"type": _resolve(field["type"], known, space)} for field in kind["fields"]
        ]
    for part in ("type", "items", "values"):
        # A type in a field, or around another one.
        if part in kind and not (part == "type" and isinstance(kind["type"], str)):
            resolved[part] = _resolve(kind[part], known, space)
    if name and "fields" not in kind:
        known[name if "." in name or not space else f"{space}.{name}"] = resolved
    return resolved


def _in_turn(members: Sequence[Member]) -> Step:
    def all_of(block: bytes, pos: int, row: int) -> int:
        for is_nullable, step in members:
            if is_nullable:
                branch = block[pos]
                pos += 1
                if not branch:
                    continue
                if branch != SECOND:
                    raise IndexError
            pos = step(block, pos, row)
        return pos

    return all_of


def _is_nullable(kind: Any) -> bool:
    return isinstance(kind, list) and len(kind) == 2 and kind[0] == "null"


def _member(kind: Any, step: Step) -> Member:
    """A member of a record; the step reads its type without null."""
    if _is_nullable(kind) or not isinstance(kind, list):
        return _is_nullable(kind), step
    is_null = [branch == "null" for branch in kind]
    return False, lambda block, pos, row: pos + 1 if is_null[block[pos] >> 1] else step(block, pos + 1, row)


def _long(column: list[Any]) -> Step:
    def step(block: bytes, pos: int, row: int) -> int:
        byte = block[pos]
        if byte < 128:
            column[row] = (byte >> 1) ^ -(byte & 1)
            return pos + 1
        column[row], pos = read_long(block, pos)
        return pos

    return step


def _text(column: list[Any]) -> Step:
    def step(block: bytes, pos: int, row: int) -> int:
        column[row], pos = read_bytes(block, pos)
        return pos

    return step


def _fixed(column: list[Any], width: int, decode: Callable[[bytes], Any]) -> Step:
    def step(block: bytes, pos: int, row: int) -> int:
        column[row] = decode(block[pos : pos + width])
        return pos + width

    return step


def _value(name: str, kind: Any, column: list[Any]) -> Step:
    if name in ("int", "long"):
        return _long(column)
    if name in ("bytes", "string"):
        return _text(column)
    if name == "boolean":
        return _fixed(column, 1, lambda value: value != b"\x00")
    if name in ("float", "double"):
        form = struct.Struct("<f" if name == "float" else "<d")
        return _fixed(column, form.size, lambda value: form.unpack(value)[0])
    if name == "fixed":
        return _fixed(column, kind["size"], bytes)
    raise AvroError(f"it has partition values of the type {name}")


def _varints_of(column: list[Any], each: int) -> Step:
    """Stores an array of items of `each` numbers, still encoded: most files of a table have the same null counts."""

    def step(block: bytes, pos: int, row: int) -> int:
        count = block[pos]
        if count and not count & 129:
            # Up to 63 items in one block of the array, as in nearly all arrays.
            end = _so_many((count >> 1) * each)(block, pos + 1).end()  # type: ignore[union-attr]
            if not block[end]:
                column[row] = block[pos + 1 : end]
                return end + 1
        column[row], pos = in_blocks(block, pos)
        return pos

    def in_blocks(block: bytes, pos: int) -> tuple[bytes, int]:
        kept = b""
        count, pos = read_long(block, pos)
        while count:
            if count < 0:
                count = -count
                _, pos = read_long(block, pos)
            end = _so_many(count * each)(block, pos).end()  # type: ignore[union-attr]
            kept += block[pos:end]
            count, pos = read_long(block, end)
        return kept, pos

    return step


def _bounds(columns: Padded) -> Step:
    """Stores a map from column ids to bytes, which Iceberg writes as an array of keys and values."""

    def step(block: bytes, pos: int, row: int) -> int:
        count, pos = read_long(block, pos)
        while count:
            if count < 0:
                count = -count
                _, pos = read_long(block, pos)
            for _ in range(count):
                key, length = block[pos], block[pos + 1]
                # Most ids and lengths have one byte; function calls for each would double the time.
                if (key | length) < 128 and not (key | length) & 1:
                    pos += 2
                    end = pos + (length >> 1)
                    columns[key >> 1][row] = block[pos:end]
                    pos = end
                else:
                    key, pos = read_long(block, pos)
                    columns[key][row], pos = read_bytes(block, pos)
            count, pos = read_long(block, pos)
        return pos

    return step


def _skip_items(kind: Mapping[str, Any]) -> Step:
    if kind["type"] == "array":
        numbers = _numbers_in(kind["items"])
        item = make_skipper(kind["items"])
    else:
        numbers, item = 0, _in_turn([(False, make_skipper("string")), (False, make_skipper(kind["values"]))])

    def step(block: bytes, pos: int, row: int) -> int:
        count = block[pos]
        if numbers and count and not count & 129:
            end = _so_many((count >> 1) * numbers)(block, pos + 1).end()  # type: ignore[union-attr]
            if not block[end]:
                return end + 1
        return in_blocks(block, pos, row)

    def in_blocks(block: bytes, pos: int, row: int) -> int:
        count, pos = read_long(block, pos)
        while count:
            if count < 0:
                size, pos = read_long(block, pos)
                pos += size
            elif numbers:
                pos = _so_many(count * numbers)(block, pos).end()  # type: ignore[union-attr]
            else:
                for _ in range(count):
                    pos = item(block, pos, row)
            count, pos = read_long(block, pos)
        return pos

    return step


def _numbers_in(kind: Any) -> int:
    """The number of numbers in an item, 0 if it has other parts."""
    if _name(kind) in ("int", "long"):
        return 1
    if _name(kind) != "record":
        return 0
    inner = [_numbers_in(field["type"]) for field in kind["fields"] if not isinstance(field["type"], list)]
    return sum(inner) if all(inner) and len(inner) == len(kind["fields"]) else 0
