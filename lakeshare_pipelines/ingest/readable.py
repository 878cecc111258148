"""Files of deliveries, read through before Spark reads them: sound, UTF-8, within the limits; their columns and rows.

A file that fails here is refused as a whole, with its name and the remedy. Rows are judged in `frame.py`.
"""

import codecs
import csv
import io
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO
from xml.parsers import expat

from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.compression import CutOff, Damaged, read_piece
from lakeshare_pipelines.ingest.delivery import LandingFile
from lakeshare_pipelines.settings import MAX_LINE_MB, MAX_UNPACKED_MB
from lakeshare_server.tables.iceberg import avro

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

MIB = 1 << 20
CHUNK_BYTES = MIB
BOM = "\ufeff"
TRANSFER = "Transfer the file again"
NO_ROWS = "Deliver the file again; without rows, CSV has a header, JSON lines a line break and a table with allowEmpty"
SHOWN_ELEMENTS = 5
# Logical and converted types of Parquet; Spark refuses a file that has one.
NOT_IN_SPARK = {"TIME", "UUID", "INTERVAL", "FLOAT16", "GEOMETRY", "GEOGRAPHY"}
GUESS_PIECES, MAX_GUESS_DEPTH = 4, 10


@dataclass(frozen=True)
class ReadingLimits:
    max_line_mb: int = MAX_LINE_MB
    max_unpacked_mb: int = MAX_UNPACKED_MB


DEFAULT_LIMITS = ReadingLimits()


@dataclass(frozen=True)
class ReadableFile:
    """A checked file: the names in its header (CSV) or rows (XML), or its columns' types (Parquet, ORC).

    `rows` is the number of its rows, where it was counted; `avro_schema` is the schema of an Avro file, as JSON.
    """

    file: LandingFile
    limits: ReadingLimits
    header: tuple[str, ...] = ()
    schema: "pa.Schema | None" = None
    avro_schema: bytes = b""
    rows: int | None = None


def require_readable(file: LandingFile, limits: ReadingLimits = DEFAULT_LIMITS) -> ReadableFile:
    """Reads a file through, or the footer of a Parquet or ORC file.

    Raises:
        DeliveryError: it is damaged, above a limit, or of a kind that Spark does not read.
    """
    if file.file.size_bytes == 0:
        raise _error(file, "is empty (0 bytes)", NO_ROWS)
    try:
        with file.landing.translate_errors(file.file):
            if file.format in ("parquet", "orc", "avro"):
                return _check_typed(file, limits)
            if file.format == "xml":
                return _check_xml(file, limits)
            if file.is_json_document:
                return _check_json(file, limits)
            text = io.StringIO(_decode_whole_file(file, limits).removeprefix(BOM), newline="")
            rows = csv.reader(text, delimiter=file.table.reading.delimiter)
            names = next(rows, []) if file.format == "csv" else []
    except Refused as error:
        raise _error(file, error.reason, error.fix) from error
    except (OSError, csv.Error) as error:
        reason = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise _error(file, reason, "Check the file and its permissions") from error
    header = tuple(name.strip() for name in names)
    if file.format == "csv" and not any(header):
        raise _error(file, "has no names in its first line", "Begin it with a header")
    return ReadableFile(file, limits, header=header)


def encoding_fix(begin: bytes | bytearray) -> str:
    """What to do with a text file that begins so and is not UTF-8, or has zero bytes."""
    if begin.startswith(b"\x1f\x8b"):
        return "It is compressed: give it a name that ends with .gz"
    if begin.startswith(b"PK\3\4"):
        return "It is a ZIP archive, as spreadsheets are: deliver the text that is in it"
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or 0 in begin[:2]:
        return "Convert it: `iconv -f UTF-16 -t UTF-8`"
    without_zeros = "Send text without zero bytes: `tr -d '\\0'`"
    return without_zeros if 0 in begin else "Convert it: `iconv -f LATIN1 -t UTF-8`"


def _decode_whole_file(file: LandingFile, limits: ReadingLimits) -> str:
    """Decodes the whole of a text file and returns its beginning."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    head, line, unended_bytes = "", 1, 0
    for chunk in _chunks(file, limits):
        ends = [end for end in (chunk.find(b"\n"), chunk.find(b"\r")) if end >= 0]
        first, last = min(ends, default=len(chunk)), max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        # Lines within one chunk are shorter than any limit.
        if unended_bytes + first > limits.max_line_mb * MIB:
            fix = "Deliver it in lines, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it"
            raise _error(file, f"line {line} is longer than {limits.max_line_mb} MiB", fix)
        unended_bytes = unended_bytes + len(chunk) if last < 0 else len(chunk) - 1 - last
        try:
            text = decoder.decode(chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise _not_utf8(file, error.object, line, f"byte 0x{error.object[error.start]:02x}") from error
        if "\0" in text:
            line += text[: text.index("\0")].count("\n")
            raise _error(file, f"has a zero byte in line {line}", encoding_fix(chunk))
        head = head or text
        line += text.count("\n")
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(file, b"", line, "a character that is cut off at the end") from error
    if not head.strip(BOM + " \r\n") and not (file.format == "jsonl" and file.table.allow_empty):
        raise _error(file, "holds nothing", NO_ROWS)
    return head


def _require_unpacked(file: LandingFile, size_bytes: int, limits: ReadingLimits) -> None:
    if size_bytes > limits.max_unpacked_mb * MIB:
        reason = f"unpacks to more than {limits.max_unpacked_mb} MiB"
        raise _error(file, reason, "Deliver it in several files, or raise LAKESHARE_MAX_UNPACKED_MB")


def _chunks(file: LandingFile, limits: ReadingLimits) -> Iterator[bytes]:
    """Yields the content of a file in pieces, unpacked up to the limit."""
    codec = file.codec
    with file.landing.stream(file.file) as opened:
        if codec is None:
            while chunk := opened.read(CHUNK_BYTES):
                yield chunk
            return
        stream, size_bytes = codec.open(opened), 0
        try:
            while chunk := read_piece(codec, stream, CHUNK_BYTES):
                size_bytes += len(chunk)
                _require_unpacked(file, size_bytes, limits)
                yield chunk
        except CutOff as error:
            raise _error(file, f"is cut off: {error}", TRANSFER) from error
        except Damaged as error:
            raise _error(file, f"is no sound {codec.name} file: {error}", TRANSFER) from error


def _check_typed(file: LandingFile, limits: ReadingLimits) -> ReadableFile:
    # Avro is read from its beginning, the footers of the others are at the end.
    with (file.landing.stream if file.format == "avro" else file.landing.open)(file.file) as stream:
        found = check_typed(file.format, stream)
    _require_unpacked(file, found.unpacked_bytes, limits)
    return ReadableFile(file, limits, schema=found.schema, avro_schema=found.avro_schema, rows=found.rows)


@dataclass(frozen=True)
class TypedFile:
    """What the footer of a Parquet or ORC file, or an Avro file that was read to its end, gives."""

    schema: "pa.Schema | None" = None
    avro_schema: bytes = b""
    rows: int | None = None
    unpacked_bytes: int = 0


def check_typed(kind: str, stream: BinaryIO) -> TypedFile:
    """Checks the footer of a Parquet or ORC file; reads an Avro file to its end, without decoding its rows.

    Raises:
        Refused: it is damaged, Spark cannot read it, or no table can have its rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import orc

    try:
        if kind == "avro":
            return _check_avro(avro.check_container(stream))
        if kind == "orc":
            return _check_orc(orc.ORCFile(stream).schema)
        return _check_parquet(pq.read_metadata(stream))
    except (avro.AvroError, pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        label = {"parquet": "Parquet", "orc": "ORC", "avro": "Avro"}[kind]
        first = str(error).splitlines()[0].rstrip(".")
        raise Refused(f"is no sound {label} file: {first}", TRANSFER) from error


def _check_parquet(footer: "pq.FileMetaData") -> TypedFile:
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if sum(group.num_rows for group in groups) != footer.num_rows:
        # Spark reads as many rows as the groups have.
        raise Refused("is no sound Parquet file: its row groups have other numbers of rows", TRANSFER)
    unread = []
    for each in map(footer.schema.column, range(footer.num_columns)):
        kinds = {json.loads(each.logical_type.to_json())["Type"].upper(), each.converted_type}
        unread += [f"{each.path} ({kind})" for kind in sorted(NOT_IN_SPARK & kinds)]
    if unread:
        shown, fix = ", ".join(unread[:SHOWN_ELEMENTS]), "Write them as texts, geometries also as binary"
        raise Refused(f"has columns that Spark cannot read: {shown}", fix)
    unpacked_bytes = sum(group.total_byte_size for group in groups)
    return TypedFile(footer.schema.to_arrow_schema(), unpacked_bytes=unpacked_bytes)


def _check_orc(schema: "pa.Schema") -> TypedFile:
    zoned = [each.name for each in schema if getattr(each.type, "tz", None) is not None]
    if zoned:
        # ORC's `timestamp with local time zone`: Spark 4 fails to parse this type.
        fix = "Write them as timestamps without a zone, in UTC, or deliver Parquet"
        raise Refused(f"has timestamps with a time zone, which Spark cannot read: {', '.join(zoned)}", fix)
    return TypedFile(schema)


def _check_avro(summary: avro.ContainerSummary) -> TypedFile:
    try:
        schema = avro.parse_avro_schema(summary.schema)
        recursive = _find_recursive(schema)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise avro.AvroError("its schema is not one of Avro") from error
    if recursive:
        reason = f"has the type {recursive!r} within itself, which no table can have"
        raise Refused(reason, "Deliver it with types of a fixed depth")
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, str | list) and kind not in ("record", "error"):  # Spark reads no union (a list)
        raise Refused("has values that are no records", "Deliver records with named fields")
    return TypedFile(None, summary.schema, summary.rows, summary.unpacked_bytes)


def _check_json(file: LandingFile, limits: ReadingLimits) -> ReadableFile:
    """Reads a document of JSON, which Spark parses as one value: an object, or an array of them."""
    fix = "Deliver one object a line, without multiline in reading of its table"
    content = bytearray()
    for chunk in _chunks(file, limits):
        content += chunk
        if len(content) > limits.max_line_mb * MIB:
            larger = f"{fix}, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it"
            raise _error(file, f"is a JSON document of more than {limits.max_line_mb} MiB", larger)
    try:
        document = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise _not_utf8(file, content, line, f"byte 0x{content[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        reason = f"is no JSON document: {error.msg} in line {error.lineno}, column {error.colno}"
        raise _error(file, reason, f"Correct it. {fix}, if it has several documents") from error
    except RecursionError as error:
        raise _error(file, "is no JSON document that is read: it is nested too deep", "Flatten it") from error
    if not isinstance(document, dict | list):
        raise _error(file, "is neither a JSON object nor an array of objects", fix)
    return ReadableFile(file, limits, rows=len(document) if isinstance(document, list) else 1)


def _find_recursive(kind: Any, within: tuple[str, ...] = (), namespace: str = "") -> str | None:
    """Returns the name of a record of an Avro schema that has itself as a part."""
    if isinstance(kind, str):
        name = kind if "." in kind or not namespace else f"{namespace}.{kind}"
        return next((each for each in (kind, name) if each in within), None)
    parts = kind if isinstance(kind, list) else [kind.get("items", "null"), kind.get("values", "null")]
    if isinstance(kind, dict) and kind.get("type") == "record":
        namespace = kind.get("namespace", namespace)
        name = str(kind["name"])
        within = (*within, name if "." in name or not namespace else f"{namespace}.{name}")
        parts = [field["type"] for field in kind["fields"]]
    elif isinstance(kind, dict) and isinstance(kind["type"], dict | list):
        parts = [kind["type"]]
    return next((found for part in parts if (found := _find_recursive(part, within, namespace))), None)


def _check_xml(file: LandingFile, limits: ReadingLimits) -> ReadableFile:
    """Reads the whole of an XML file; Spark would skip what follows an error."""
    rows = XmlRows(file.table.reading.row_tag or "")
    size_bytes = 0
    try:
        for chunk in _chunks(file, limits):
            size_bytes += len(chunk)
            rows.feed(chunk)
            if rows.get_open_bytes(size_bytes) > limits.max_line_mb * MIB:
                fix = "Deliver smaller rows, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it"
                raise _error(file, f"row {rows.count} is longer than {limits.max_line_mb} MiB", fix)
        rows.end()
    except expat.ExpatError as error:
        reason = f"{expat.ErrorString(error.code)} in line {error.lineno}, column {error.offset + 1}"
        raise _error(file, f"is no sound XML: {reason}", "Correct the file, or transfer it again") from error
    return ReadableFile(file, limits, header=tuple(rows.names), rows=rows.count)


class Refused(Exception):
    """A file that is not read: a sound one of XML or Avro, or a damaged one."""

    def __init__(self, reason: str, fix: str) -> None:
        self.reason, self.fix = reason, fix
        super().__init__(reason)


def refuse_document_type(*_declared: object) -> None:
    reason = "has a document type (<!DOCTYPE>), which may define entities and is never read"
    raise Refused(reason, "Deliver it without a document type, with the entities replaced by their text")


@dataclass
class XmlRows:
    """Finds the rows of an XML document that is fed in pieces: their number, and the names of their columns.

    A column is an element within the row, or an attribute of it with `_` before its name, as Spark has them. A
    document type is refused: only there are entities defined, which may be of any size and may name other files.

    Raises:
        Refused: the document has a document type, another encoding than UTF-8, rows in rows, or no row.
        xml.parsers.expat.ExpatError: the document is not well-formed.
    """

    row_tag: str
    count: int = 0
    names: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    _depth: int = 0
    _row_depth: int = 0
    _begin: int = 0

    def __post_init__(self) -> None:
        self._parser = expat.ParserCreate("utf-8")
        self._parser.XmlDeclHandler = self._check_encoding
        self._parser.StartDoctypeDeclHandler = refuse_document_type
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end

    def feed(self, chunk: bytes) -> None:
        self._parser.Parse(chunk, False)

    def end(self) -> None:
        self._parser.Parse(b"", True)
        if not self.count and self.others:
            found = ", ".join(f"<{name}>" for name in self.others)
            fix = "Correct rowTag in reading of its table: the name of the element of a row"
            raise Refused(f"has no element <{self.row_tag}>; its first elements are {found}", fix)

    def get_open_bytes(self, size_bytes: int) -> int:
        """The bytes of the row, or of the document, since the last begin of a row that has not ended."""
        return size_bytes - self._begin if self._row_depth else 0

    def _check_encoding(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in ("utf-8", "utf8", "us-ascii", "ascii"):
            raise Refused(
                f"is declared as {encoding}, not as UTF-8", "Convert it, and its declaration, to UTF-8"
            )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._row_depth:
            if self._depth == self._row_depth + 1:
                self.names[name] = None
            if name == self.row_tag:
                fix = "Deliver rows beside each other, or name another element in rowTag"
                raise Refused(f"row {self.count} has another <{name}> within it", fix)
        elif name == self.row_tag:
            self.count += 1
            self._row_depth, self._begin = self._depth, self._parser.CurrentByteIndex
            for attribute in attributes:
                if attribute != "xmlns" and not attribute.startswith("xmlns:"):
                    self.names[f"_{attribute}"] = None
        elif self._depth > 1 and len(self.others) < SHOWN_ELEMENTS:
            self.others[name] = None

    def _end(self, _name: str) -> None:
        if self._depth == self._row_depth:
            self._row_depth = 0
        self._depth -= 1


def guess_row_tag(pieces: Iterable[bytes]) -> str:
    """Returns the element that is repeated most among those with the fewest elements around them, below the root.

    Raises:
        Refused: the document has no elements below its root.
    """
    depth, counts = 0, Counter[tuple[int, str]]()

    def start(name: str, _attributes: object) -> None:
        nonlocal depth
        counts[depth, name] += 1
        depth += 1

    def end(_name: str) -> None:
        nonlocal depth
        depth -= 1

    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = refuse_document_type
    for piece in itertools.islice(pieces, GUESS_PIECES):
        parser.Parse(piece, False)
    for level in range(1, MAX_GUESS_DEPTH):
        found = {name: count for (at, name), count in counts.items() if at == level}
        repeated = {name: count for name, count in found.items() if count > 1}
        if repeated:
            return max(repeated, key=lambda name: repeated[name])
    single = [name for at, name in counts if at == 1]
    if not single:
        fix = "Give a file with an element for each row below its outermost element"
        raise Refused("has no element below its outermost one", fix)
    return single[0]


def _not_utf8(file: LandingFile, begin: bytes | bytearray, line: int, what: str) -> DeliveryError:
    return _error(file, f"is not UTF-8: {what} in line {line}", encoding_fix(begin))


def _error(file: LandingFile, reason: str, fix: str) -> DeliveryError:
    return DeliveryError(file.title, reason, fix + ".")
