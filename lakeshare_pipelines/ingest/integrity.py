"""Whether a landing file can be read at all, before Spark meets it: size, compression, encoding, footer, header."""

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.landing_files import LandingFile

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES = 1 << 20
BOM = "\ufeff"


@dataclass(frozen=True)
class ReadableFile:
    """A file that was looked through: the names in its header (CSV), or its columns' types (Parquet)."""

    file: LandingFile
    header: tuple[str, ...] = ()
    schema: "pa.Schema | None" = None


def require_readable(file: LandingFile) -> ReadableFile:
    """Look a file through.

    Raises:
        DeliveryError: it is empty, unreadable, cut off, or not UTF-8.
    """
    try:
        if file.path.stat().st_size == 0:
            raise _error(
                file, "is empty (0 bytes)", "Deliver the file again; a table without rows has a header"
            )
        if file.format == "parquet":
            return ReadableFile(file, schema=_parquet_schema(file))
        head = _look_through(file)
    except OSError as error:
        raise _error(
            file, f"cannot be read: {error.strerror or error}", "Check the file and its permissions"
        ) from error
    return ReadableFile(file, header=_header(file, head) if file.format == "csv" else ())


def _look_through(file: LandingFile) -> str:
    """Decode all of a text file and return its beginning."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    head, line = "", 1
    for chunk in _chunks(file):
        try:
            text = decoder.decode(chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise _not_utf8(file, line, f"byte 0x{error.object[error.start]:02x}") from error
        if "\0" in text:
            raise _not_utf8(file, line + text[: text.index("\0")].count("\n"), "a zero byte, as in UTF-16,")
        head = head or text
        line += text.count("\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(file, line, "a character that is cut off at the end") from error
    if not head.strip(BOM + " \r\n"):
        raise _error(file, "holds nothing", "Deliver the file again; a table without rows has a header")
    return head


def _chunks(file: LandingFile) -> Iterator[bytes]:
    if not file.is_compressed:
        with file.path.open("rb") as plain:
            yield from _blocks(plain)
        return
    try:
        with gzip.open(file.path) as packed:
            yield from _blocks(cast("IO[bytes]", packed))
    except EOFError as error:
        raise _error(file, "is cut off: the gzip data ends too early", "Transfer the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _error(file, f"is no sound gzip file: {error}", "Transfer the file again") from error


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(CHUNK_BYTES):
        yield block


def _header(file: LandingFile, head: str) -> tuple[str, ...]:
    reader = csv.reader(
        head.removeprefix(BOM).splitlines(keepends=True), delimiter=file.table.reading.delimiter
    )
    return tuple(name.strip() for name in next(reader, []))


def _parquet_schema(file: LandingFile) -> "pa.Schema":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_schema(file.path)
    except (pa.ArrowException, ValueError) as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise _error(file, f"is no sound Parquet file: {first}", "Transfer the file again") from error


def _not_utf8(file: LandingFile, line: int, what: str) -> DeliveryError:
    return _error(
        file, f"is not UTF-8: {what} in line {line}", "Convert it, as with `iconv -f LATIN1 -t UTF-8`"
    )


def _error(file: LandingFile, reason: str, fix: str) -> DeliveryError:
    return DeliveryError(file.title, reason, fix + ".")
