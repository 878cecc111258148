"""Whether a landing file can be read at all, before Spark meets it: size, compression, encoding, footer, header.

Spark holds a line, and a value, in memory whole: their length is limited here.
"""

import codecs
import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.landing_files import LandingFile
from lakeshare_pipelines.settings import MAX_LINE_MB, MAX_UNPACKED_MB

if TYPE_CHECKING:
    import pyarrow as pa

MIB = 1 << 20
CHUNK_BYTES = MIB
BOM = "\ufeff"


@dataclass(frozen=True)
class ReadingLimits:
    """How long a line may be, and what a file may unpack to."""

    max_line_mb: int = MAX_LINE_MB
    max_unpacked_mb: int = MAX_UNPACKED_MB


@dataclass(frozen=True)
class ReadableFile:
    """A file that was looked through: the names in its header (CSV), or its columns' types (Parquet)."""

    file: LandingFile
    limits: ReadingLimits
    header: tuple[str, ...] = ()
    schema: "pa.Schema | None" = None


def require_readable(file: LandingFile, limits: ReadingLimits = ReadingLimits()) -> ReadableFile:
    """Look a file through.

    Raises:
        DeliveryError: it is empty, unreadable, cut off, not UTF-8, or beyond a limit.
    """
    try:
        if file.path.stat().st_size == 0:
            raise _error(
                file, "is empty (0 bytes)", "Deliver the file again; a table without rows has a header"
            )
        if file.format == "parquet":
            return ReadableFile(file, limits, schema=_parquet_schema(file, limits))
        head = _look_through(file, limits)
    except OSError as error:
        raise _error(
            file, f"cannot be read: {error.strerror or error}", "Check the file and its permissions"
        ) from error
    return ReadableFile(file, limits, header=_header(file, head) if file.format == "csv" else ())


def _look_through(file: LandingFile, limits: ReadingLimits) -> str:
    """Decode all of a text file and return its beginning."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    head, line, size_bytes, unended_bytes = "", 1, 0, 0
    for chunk in _chunks(file):
        size_bytes += len(chunk)
        if file.is_compressed:
            _require_unpacked(file, size_bytes, limits)
        first, last = _line_ends(chunk)
        # Lines between two ends in one chunk are shorter than it, and so than any limit.
        if unended_bytes + first > limits.max_line_mb * MIB:
            raise _error(
                file,
                f"line {line} is longer than {limits.max_line_mb} MiB",
                "Deliver it in lines, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it",
            )
        unended_bytes = unended_bytes + len(chunk) if last < 0 else len(chunk) - 1 - last
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


def _line_ends(chunk: bytes) -> tuple[int, int]:
    """How many bytes stand before the first end of a line, all when there is none, and where the last end is, or -1."""
    ends = [at for at in (chunk.find(b"\n"), chunk.find(b"\r")) if at >= 0]
    return min(ends, default=len(chunk)), max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))


def _require_unpacked(file: LandingFile, size_bytes: int, limits: ReadingLimits) -> None:
    if size_bytes > limits.max_unpacked_mb * MIB:
        raise _error(
            file,
            f"unpacks to more than {limits.max_unpacked_mb} MiB",
            "Deliver it in several files, or raise LAKESHARE_MAX_UNPACKED_MB",
        )


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


def _parquet_schema(file: LandingFile, limits: ReadingLimits) -> "pa.Schema":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(file.path)
        schema = footer.schema.to_arrow_schema()
    except (pa.ArrowException, ValueError) as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise _error(file, f"is no sound Parquet file: {first}", "Transfer the file again") from error
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    _require_unpacked(file, sum(group.total_byte_size for group in groups), limits)
    return schema


def _not_utf8(file: LandingFile, line: int, what: str) -> DeliveryError:
    return _error(
        file, f"is not UTF-8: {what} in line {line}", "Convert it, as with `iconv -f LATIN1 -t UTF-8`"
    )


def _error(file: LandingFile, reason: str, fix: str) -> DeliveryError:
    return DeliveryError(file.title, reason, fix + ".")
