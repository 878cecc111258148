"""Compressed files of text: the suffixes of the codecs that Spark reads, and streams that unpack and pack them."""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import pyarrow as pa

PIECE_BYTES = 1 << 20


class CutOff(ValueError):
    """Compressed data that ends too early."""


class Damaged(ValueError):
    """Data that is not of its codec, or is damaged."""


@dataclass(frozen=True)
class Codec:
    """A codec by its name in messages; `open` unpacks a stream, `pack` packs whole content."""

    name: str
    open: Callable[[BinaryIO], BinaryIO]
    pack: Callable[[bytes], bytes]


class _DeflateStream(io.RawIOBase):
    """Unpacks a zlib stream, which is what Hadoop calls deflate, in pieces."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._unpacker = stream, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = b""
        while not piece and not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail or self._stream.read(PIECE_BYTES)
            if not packed:
                raise EOFError
            piece = self._unpacker.decompress(packed, len(buffer))
        if self._unpacker.unused_data:
            raise zlib.error("data after the end of the stream")
        buffer[: len(piece)] = piece
        return len(piece)


def _open_deflate(stream: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", io.BufferedReader(_DeflateStream(stream), PIECE_BYTES))


def _open_zstandard(stream: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"))


CODECS: Mapping[str, Codec] = {
    ".gz": Codec(
        "gzip",
        lambda stream: cast("BinaryIO", gzip.GzipFile(fileobj=stream)),
        lambda content: gzip.compress(content, mtime=0),
    ),
    ".bz2": Codec("bzip2", lambda stream: cast("BinaryIO", bz2.BZ2File(stream)), bz2.compress),
    ".zst": Codec(
        "zstandard", _open_zstandard, lambda content: pa.Codec("zstd").compress(content, asbytes=True)
    ),
    ".deflate": Codec("deflate", _open_deflate, zlib.compress),
}
"""The codecs that are read, by suffix."""

REFUSED: Mapping[str, str] = {
    # Hadoop's codecs of these suffixes read a format of its own; a file of the usual tools ends Spark's driver.
    ".lz4": "LZ4",
    ".snappy": "Snappy",
    ".sz": "Snappy",
    ".xz": "xz",
    ".lzma": "xz",
    ".br": "Brotli",
    ".lzo": "LZO",
    ".Z": "compress",
    ".zip": "zip",
    ".7z": "7-Zip",
    ".rar": "RAR",
    ".tar": "tar",
    ".tgz": "tar",
}
"""Codecs and archives that Spark cannot read, or not as the usual tools write them."""


def find_codec(name: str) -> Codec | None:
    """Returns the codec of a file by its name; None for a file that is not compressed."""
    return next((codec for suffix, codec in CODECS.items() if name.endswith(suffix)), None)


def remove_codec_suffix(name: str) -> str:
    suffix = next((suffix for suffix in CODECS if name.endswith(suffix)), "")
    return name.removesuffix(suffix)


def read_piece(codec: Codec, stream: BinaryIO, size_bytes: int) -> bytes:
    """Reads from a stream that `codec` opened.

    Raises:
        CutOff: the packed data ends too early.
        Damaged: it is not of this codec, or damaged.
    """
    try:
        return stream.read(size_bytes)
    except EOFError as error:
        raise CutOff(f"the {codec.name} data ends too early") from error
    except (gzip.BadGzipFile, zlib.error, pa.ArrowException) as error:
        raise Damaged(str(error).rstrip(".")) from error
    except OSError as error:
        # Those of bz2 and Arrow have no number; others are of the store or the disk.
        if error.errno is not None:
            raise
        if "runcated" in str(error):
            raise CutOff(f"the {codec.name} data ends too early") from error
        raise Damaged(str(error).rstrip(".")) from error


def unpack(codec: Codec, packed: bytes, most_bytes: int) -> bytes:
    """Unpacks content up to the piece that is beyond `most_bytes`. Raises as `read_piece`."""
    stream, unpacked = codec.open(io.BytesIO(packed)), bytearray()
    while len(unpacked) <= most_bytes and (piece := read_piece(codec, stream, PIECE_BYTES)):
        unpacked += piece
    return bytes(unpacked)
