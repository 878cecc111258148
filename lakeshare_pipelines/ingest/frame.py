"""Deliveries as frames that match the contract, with rejected rows and problems of columns.

Rows that do not parse are rejected with file, line and reason; missing, unknown or mistyped columns are problems.
Neither stops the run: the audit decides. Text is read as lines and then parsed, because Spark's CSV and JSON readers
have no line numbers. Line numbers come from the order within a file block, so that several tasks can read a file.
"""

import codecs
import csv
import difflib
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.contracts.model import Reading, get_base_type
from lakeshare_pipelines.contracts.partitioning import SEPARATOR
from lakeshare_pipelines.errors import ContractError, DeliveryError
from lakeshare_pipelines.ingest.delivery import Delivery, LandingFile, assign_files, blame_changed_delivery
from lakeshare_pipelines.settings import MAX_LINE_MB, MAX_UNPACKED_MB
from lakeshare_pipelines.spark.partitions import make_key_column
from lakeshare_pipelines.spark.rows import column_by_name
from lakeshare_pipelines.spark.session import escape_glob
from lakeshare_server.lazy import LazyModule
from lakeshare_server.storage import parse_location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType
else:
    F = LazyModule("pyspark.sql.functions")

MIB = 1 << 20
CHUNK_BYTES = MIB
# Files that are checked at once: a store answers slowly, each time.
READERS = 4
BOM = "\ufeff"


@dataclass(frozen=True)
class ReadingLimits:
    max_line_mb: int = MAX_LINE_MB
    max_unpacked_mb: int = MAX_UNPACKED_MB


@dataclass(frozen=True)
class ReadableFile:
    """A checked file: the names in its header (CSV), or its columns' types (Parquet, ORC)."""

    file: LandingFile
    limits: ReadingLimits
    header: tuple[str, ...] = ()
    schema: "pa.Schema | None" = None


def require_readable(file: LandingFile, limits: ReadingLimits = ReadingLimits()) -> ReadableFile:
    """Reads a file through, or the footer of a Parquet or ORC file."""
    if file.file.size_bytes == 0:
        fix = "Deliver the file again; a table without rows has a header"
        raise _error(file, "is empty (0 bytes)", fix)
    try:
        with file.landing.translate_errors(file.file):
            if file.format == "parquet":
                return ReadableFile(file, limits, schema=_parquet_schema(file, limits))
            if file.format == "orc":
                return ReadableFile(file, limits, schema=_orc_schema(file))
            head = _decode_whole_file(file, limits)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise _error(file, reason, "Check the file and its permissions") from error
    if file.format != "csv":
        return ReadableFile(file, limits)
    lines = head.removeprefix(BOM).splitlines(keepends=True)
    names = next(csv.reader(lines, delimiter=file.table.reading.delimiter), [])
    return ReadableFile(file, limits, header=tuple(name.strip() for name in names))


def _decode_whole_file(file: LandingFile, limits: ReadingLimits) -> str:
    """Decodes the whole of a text file and returns its beginning."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    head, line, size_bytes, unended_bytes = "", 1, 0, 0
    for chunk in _chunks(file):
        size_bytes += len(chunk)
        if file.is_compressed:
            _require_unpacked(file, size_bytes, limits)
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


def _require_unpacked(file: LandingFile, size_bytes: int, limits: ReadingLimits) -> None:
    if size_bytes > limits.max_unpacked_mb * MIB:
        reason = f"unpacks to more than {limits.max_unpacked_mb} MiB"
        raise _error(file, reason, "Deliver it in several files, or raise LAKESHARE_MAX_UNPACKED_MB")


def _chunks(file: LandingFile) -> Iterator[bytes]:
    try:
        with file.landing.stream(file.file) as opened:
            stream = gzip.GzipFile(fileobj=opened) if file.is_compressed else opened
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except EOFError as error:
        raise _error(file, "is cut off: the gzip data ends too early", "Transfer the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _error(file, f"is no sound gzip file: {error}", "Transfer the file again") from error


def _parquet_schema(file: LandingFile, limits: ReadingLimits) -> "pa.Schema":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.landing.open(file.file) as opened:
            footer = pq.read_metadata(opened)
        schema = footer.schema.to_arrow_schema()
    except (pa.ArrowException, ValueError) as error:
        first = str(error).splitlines()[0].rstrip(".")
        raise _error(file, f"is no sound Parquet file: {first}", "Transfer the file again") from error
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    _require_unpacked(file, sum(group.total_byte_size for group in groups), limits)
    return schema


def _orc_schema(file: LandingFile) -> "pa.Schema":
    import pyarrow as pa
    from pyarrow import orc

    try:
        with file.landing.open(file.file) as opened:
            schema = orc.ORCFile(opened).schema
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        first = str(error).splitlines()[0].rstrip(".")
        raise _error(file, f"is no sound ORC file: {first}", "Transfer the file again") from error
    zoned = [each.name for each in schema if pa.types.is_timestamp(each.type) and each.type.tz is not None]
    if zoned:
        # ORC's `timestamp with local time zone`: Spark 4 fails to parse this type.
        fix = "Write them as timestamps without a zone, in UTC, or deliver Parquet"
        raise _error(
            file, f"has timestamps with a time zone, which Spark cannot read: {', '.join(zoned)}", fix
        )
    return schema


def _not_utf8(file: LandingFile, line: int, what: str) -> DeliveryError:
    fix = "Convert it, as with `iconv -f LATIN1 -t UTF-8`"
    return _error(file, f"is not UTF-8: {what} in line {line}", fix)


def _error(file: LandingFile, reason: str, fix: str) -> DeliveryError:
    return DeliveryError(file.title, reason, fix + ".")


FILE, LINE, PARTITION, RAW, BAD = (
    f"__lakeshare_{name}" for name in ("file", "line", "partition", "raw", "bad")
)
_BROKEN, _PARSED, _TEXTS = "_broken", "_parsed", "_texts"
RAW_CHARACTERS = 4000
NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"


@dataclass(frozen=True)
class RawRows:
    """Rows of files with the same structure: a frame with FILE, LINE, PARTITION, RAW and BAD, their number, and values.

    `columns` are the delivered ones in the order of the file, `values` the values of the requested ones, `types` their
    types if the file has types; otherwise values are text, null where the contract defines it.
    """

    files: tuple[LandingFile, ...]
    frame: "DataFrame"
    rows: int
    columns: tuple[str, ...]
    values: "Mapping[str, SparkColumn]"
    types: "Mapping[str, DataType] | None" = None


def make_raw_rows(
    frame: "DataFrame", label: str, reading: Reading, *, is_held: bool, is_text: bool
) -> RawRows:
    """The rows of a source other than landing; `label` stands for their file, and they have no line.

    With `is_text`, columns are read as texts where all of them are, nested ones as JSON. Held rows are read once.
    """
    from pyspark.sql import types as T

    types = {each.name: each.dataType for each in frame.schema.fields}
    nested = (T.StructType, T.ArrayType, T.MapType)
    simple = [kind for kind in types.values() if not isinstance(kind, nested)]
    is_text = is_text and all(isinstance(kind, T.StringType) for kind in simple)
    given = []
    for i, (name, kind) in enumerate(types.items()):
        column = F.col(_quoted(name))
        if isinstance(kind, nested):
            column, types[name] = F.to_json(column), T.StringType()
        elif is_text and reading.null_values:
            column = F.when(~F.trim(column).isin(list(reading.null_values)), column)
        given.append(column.alias(f"_{i}"))
    rows = frame.select(
        *given,
        F.lit(label).alias(FILE),
        F.lit(None).cast("bigint").alias(LINE),
        F.lit(label.rpartition("/")[0]).alias(PARTITION),
        F.substring(F.to_json(F.struct("*")), 1, RAW_CHARACTERS).alias(RAW),
        F.lit(None).cast("string").alias(BAD),
    )
    held = rows.persist() if is_held else rows
    values = {name: F.col(f"_{i}") for i, name in enumerate(types)}
    return RawRows((), held, held.count(), tuple(types), values, None if is_text else types)


def read_raw(spark: "SparkSession", files: Sequence[ReadableFile], names: Sequence[str]) -> list[RawRows]:
    """Reads the files of one table, grouped by structure."""
    groups: dict[object, list[ReadableFile]] = {}
    for file in files:
        shape = file.schema.remove_metadata() if file.schema is not None else file.header
        groups.setdefault((file.file.format, str(shape)), []).append(file)
    rows = []
    for group in groups.values():
        landed = tuple(readable.file for readable in group)
        if landed[0].format == "parquet":
            rows.append(_read_parquet(spark, group))
        elif landed[0].format == "orc":
            rows.append(_read_orc(spark, landed))
        elif landed[0].format == "jsonl":
            rows.append(_read_json(spark, landed, names))
        elif landed[0].table.reading.multiline:
            rows.append(_read_multiline(spark, landed, group[0].header, group[0].limits))
        else:
            rows.append(_read_csv(spark, landed, group[0].header))
    return rows


def _read_csv(spark: "SparkSession", files: tuple[LandingFile, ...], header: tuple[str, ...]) -> RawRows:
    reading = files[0].table.reading
    parsed = F.from_csv("value", _text_schema(len(header)), _csv_options(reading))
    # The parser ends an open quote at the next delimiter, which would cut a field over two lines.
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"')))
    unclosed = F.when(quotes % 2 == 1, F.lit("a quote is not closed"))
    lines, number = _lines(spark, files, has_header=True)
    rows = (
        # Exploded, so that the optimizer does not parse the line again for each field.
        lines.select("*", F.explode(F.array(parsed)).alias(_PARSED))
        .withColumn(BAD, F.coalesce(unclosed, _has_wrong_field_count(header)))
        .withColumn(RAW, F.substring("value", 1, RAW_CHARACTERS))
    )
    return _select_texts(files, rows, number, header, reading)


def _read_multiline(
    spark: "SparkSession", files: tuple[LandingFile, ...], header: tuple[str, ...], limits: ReadingLimits
) -> RawRows:
    reading = files[0].table.reading
    records = (
        _reader(spark)
        .options(**_csv_options(reading), multiLine=True, header=True)
        # A quote that is never closed makes the rest of the file one value.
        .option("maxCharsPerColumn", limits.max_line_mb * MIB)
        .schema(_text_schema(len(header)))
        .csv(_paths(files))
        .select(F.struct("*").alias(_PARSED), *_where())
    )
    texts = [F.col(_PARSED)[f"_{i}"] for i in range(len(header))]
    joined = F.coalesce(F.col(_PARSED)[_BROKEN], F.concat_ws(reading.delimiter, *texts))
    # Records are counted, not lines; the header is the first.
    located, number = _add_location(spark, files, records, F.to_csv(_PARSED), first=2)
    rows = located.withColumn(BAD, _has_wrong_field_count(header)).withColumn(
        RAW, F.substring(joined, 1, RAW_CHARACTERS)
    )
    return _select_texts(files, rows, number, header, reading)


def _read_json(spark: "SparkSession", files: tuple[LandingFile, ...], names: Sequence[str]) -> RawRows:
    lines, number = _lines(spark, files, has_header=False)
    keys = lines.select(F.explode(F.json_object_keys("value"))).distinct().collect()
    present = {row[0] for row in keys}
    fields = ", ".join(f"_{i} string" for i in range(len(names)))
    schema = "array<struct<" + ", ".join(f"{_quoted(name)}: string" for name in names) + ">>"
    # Parsed as an array, because text after the closing brace would be ignored otherwise.
    parsed = F.from_json(F.concat(F.lit("["), F.col("value"), F.lit("]")), schema)
    rows = (
        lines.select("*", F.explode_outer(F.when(F.size(parsed) == 1, parsed)).alias(_PARSED))
        .withColumn(_PARSED, F.col(_PARSED).cast(f"struct<{fields}>"))
        .withColumn(BAD, F.when(F.col(_PARSED).isNull(), F.lit("the line is not one JSON object")))
        .withColumn(RAW, F.substring("value", 1, RAW_CHARACTERS))
    )
    texts = _select_texts(files, rows, number, names, files[0].table.reading)
    values = {name: value for name, value in texts.values.items() if name in present}
    return replace(texts, columns=(*values, *sorted(present - set(names))), values=values)


def _select_texts(
    files: tuple[LandingFile, ...], rows: "DataFrame", number: int, names: Sequence[str], reading: Reading
) -> RawRows:
    """Selects the fields of the parsed struct as an array of text, with the contract's null values as null."""

    def null_or_text(text: "SparkColumn") -> "SparkColumn":
        return F.when(~F.trim(text).isin(list(reading.null_values)), text)

    fields = F.array(*(F.col(_PARSED)[f"_{i}"] for i in range(len(names))))
    texts = F.transform(fields, null_or_text) if reading.null_values else fields
    frame = rows.select(FILE, LINE, PARTITION, RAW, BAD, texts.alias(_TEXTS))
    values = {name: F.get(_TEXTS, i) for i, name in reversed(list(enumerate(names)))}
    return RawRows(files, frame, number, tuple(names), values)


def _read_parquet(spark: "SparkSession", group: Sequence[ReadableFile]) -> RawRows:
    from pyspark.sql import types as T

    files = tuple(readable.file for readable in group)
    schema = group[0].schema
    nanos = {field.name for field in schema or () if str(field.type).startswith("timestamp[ns")}
    if nanos:
        # Pandas writes timestamps in nanoseconds, which Spark reads only as integers.
        spark.conf.set(NANOS_AS_LONG, "true")
    rows = _reader(spark).parquet(*_paths(files))
    types: dict[str, T.DataType] = {field.name: field.dataType for field in rows.schema.fields}
    given: list[SparkColumn] = []
    for i, name in enumerate(types):
        column = F.col(_quoted(name))
        if name in nanos:
            column, types[name] = F.timestamp_micros(F.floor(column / 1000)), T.TimestampType()
        given.append(column.alias(f"_{i}"))
    line = (F.col("_metadata.row_index") + 1).alias("_row")
    raw = F.substring(F.to_json(F.struct("*")), 1, RAW_CHARACTERS).alias(RAW)
    located, number = _add_location(spark, files, rows.select(*given, raw, line, *_where()), None)
    frame = located.withColumn(LINE, F.col("_row")).withColumn(BAD, F.lit(None).cast("string"))
    values = {name: F.col(f"_{i}") for i, name in enumerate(types)}
    return RawRows(files, frame, number, tuple(types), values, types)


def _read_orc(spark: "SparkSession", files: tuple[LandingFile, ...]) -> RawRows:
    rows = _reader(spark).orc(_paths(files))
    types = {field.name: field.dataType for field in rows.schema.fields}
    given = [F.col(_quoted(name)).alias(f"_{i}") for i, name in enumerate(types)]
    raw = F.substring(F.to_json(F.struct("*")), 1, RAW_CHARACTERS).alias(RAW)
    located, number = _add_location(spark, files, rows.select(*given, raw, *_where()), F.col(RAW))
    values = {name: F.col(f"_{i}") for i, name in enumerate(types)}
    return RawRows(
        files, located.withColumn(BAD, F.lit(None).cast("string")), number, tuple(types), values, types
    )


def _lines(
    spark: "SparkSession", files: tuple[LandingFile, ...], *, has_header: bool
) -> "tuple[DataFrame, int]":
    """Returns the lines that are neither blank nor a header, and their number."""
    rows = _reader(spark).text(_paths(files)).select("value", *_where())
    is_filled = F.trim("value") != ""
    located, number = _add_location(spark, files, rows, F.col("value"), kept=is_filled, has_header=has_header)
    text = F.when(F.col(LINE) == 1, F.regexp_replace("value", f"^{BOM}", "")).otherwise(F.col("value"))
    lines = located.withColumn("value", text).where(is_filled)
    return (lines.where(F.col(LINE) > 1) if has_header else lines), number


def _where() -> "list[SparkColumn]":
    return [
        F.col("_metadata.file_path").alias("_path"),
        F.col("_metadata.file_block_start").alias("_block"),
        F.monotonically_increasing_id().alias("_id"),
    ]


def _add_location(
    spark: "SparkSession",
    files: tuple[LandingFile, ...],
    rows: "DataFrame",
    counted: "SparkColumn | None",
    first: int = 1,
    *,
    kept: "SparkColumn | None" = None,
    has_header: bool = False,
) -> "tuple[DataFrame, int]":
    """Adds label and partition of the file, and the line if `counted` is given.

    Returns the number of rows, too: of all, or of those that are `kept` and no header.
    """
    # The content is counted, not only the rows: this scan is then planned as the one that reads them.
    count = F.count(counted) if counted is not None else F.count(F.lit(1))
    counts = [count] if kept is None else [count, F.count_if(kept), F.min_by(kept, "_id")]
    blocks = rows.groupBy("_path", "_block").agg(F.min("_id"), *counts).collect()
    by_path = {file.file.location: file for file in files}
    shifts: list[tuple[str, int, int, str, str]] = []
    path_before, line, number = "", first, 0
    for path, block, lowest, rows_in_block, *of_kept in sorted(map(tuple, blocks)):
        kept_rows, is_first_kept = of_kept or (rows_in_block, True)
        number += kept_rows - (has_header and path != path_before and is_first_kept)
        line = line if path == path_before else first
        file = by_path[parse_location(unquote(path)).location]
        shifts.append((path, block, line - lowest, file.label, file.partition))
        path_before, line = path, line + rows_in_block
    located = rows.join(F.broadcast(_make_frame(spark, shifts)), ["_path", "_block"])
    return located.withColumn(LINE, F.col("_id") + F.col("_shift")), number


def _make_frame(spark: "SparkSession", shifts: Sequence[tuple[str, int, int, str, str]]) -> "DataFrame":
    """Makes a small frame without the Python workers that `createDataFrame` starts."""
    columns = {"_path": "string", "_block": "bigint", "_shift": "bigint", FILE: "string", PARTITION: "string"}
    structs = []
    for shift in shifts or [("", 0, 0, "", "")]:
        fields = zip(shift, columns.items(), strict=True)
        structs.append(F.struct(*(F.lit(value).cast(kind).alias(name) for value, (name, kind) in fields)))
    return spark.range(1 if shifts else 0).select(F.inline(F.array(*structs)))


def _has_wrong_field_count(header: Sequence[str]) -> "SparkColumn":
    reason = F.lit(f"the row has not the {len(header)} fields of the header")
    return F.when(F.col(_PARSED)[_BROKEN].isNotNull(), reason)


def _csv_options(reading: Reading) -> dict[str, str]:
    options = {"quote": '"', "escape": '"', "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN}
    return {"sep": reading.delimiter, **options}


def _text_schema(width: int) -> str:
    return ", ".join([*(f"_{i} string" for i in range(width)), f"{_BROKEN} string"])


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _reader(spark: "SparkSession") -> "DataFrameReader":
    # Spark would add columns for folders above landing that are named like partitions, `env=prod`.
    return spark.read.option("recursiveFileLookup", True)


def _paths(files: Sequence[LandingFile]) -> list[str]:
    return [escape_glob(file.file.location) for file in files]


INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Java parses 1d, 1f and 0x1p3 as numbers.
JAVA_NUMBER = r"[xX]|\d[.]?[dDfF]$"
WHOLE = r"^([+-]?\d+)\.0*$"
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
WIDEST_DECIMAL = "decimal(38,18)"

# Parquet types that a contract's type accepts, if the values fit.
COMPATIBLE_TYPES = {
    "boolean": {"boolean"},
    "string": {"string"},
    "date": {"date"},
    "timestamp": {"timestamp", "timestamp_ntz"},
    **{kind: {*INTEGERS, "float", "double", "decimal"} for kind in INTEGERS},
    **{kind: {*INTEGERS, "float", "double", "decimal"} for kind in ("float", "double")},
    "decimal": {*INTEGERS, "decimal"},
}


def parse_text(text: "SparkColumn", kind: str) -> "SparkColumn":
    """Parses text as a value of the type; null if it is none."""
    base = get_base_type(kind)
    if base == "string":
        return text
    text = F.trim(text)
    if base in INTEGERS:
        # Tools that hold integers with missing values as floats write 517 as 517.0.
        return F.when(text.contains("."), F.regexp_replace(text, WHOLE, "$1")).otherwise(text).try_cast(kind)
    if base in ("float", "double"):
        number = text.try_cast(kind)
        is_overflow = (F.abs(number) == float("inf")) & text.rlike(r"\d")
        return F.when(~text.rlike(JAVA_NUMBER) & ~is_overflow, number)
    if base == "decimal":
        return _exact(F.when(text.rlike(DECIMAL), text), kind)
    if base in ("date", "timestamp"):
        # At least 2013-1-1; a date has no time.
        is_day_first = (F.length(text) >= 8) & (F.substring(text, 5, 1) == "-")
        if base == "date":
            is_day_first &= ~text.rlike(r"[T\s]")
        return F.when(is_day_first, text.try_cast(kind))
    return text.try_cast(kind)


def is_compatible(found: "DataType", kind: str) -> bool:
    """Whether a Parquet column of type `found` can hold the contract's type."""
    return get_base_type(found.simpleString()) in COMPATIBLE_TYPES[get_base_type(kind)]


def convert_typed(value: "SparkColumn", found: "DataType", kind: str) -> "SparkColumn":
    """Converts a Parquet value to the contract's type; null if that loses information."""
    base, before = get_base_type(kind), get_base_type(found.simpleString())
    if found.simpleString() == kind:
        return value
    if base in INTEGERS and before in ("float", "double", "decimal"):
        return F.when(value == F.floor(value), value.try_cast(kind))
    if base == "decimal":
        return _exact(value, kind)
    return value.try_cast(kind)


def _exact(value: "SparkColumn", kind: str) -> "SparkColumn":
    exact = value.try_cast(kind)
    return F.when(exact.cast(WIDEST_DECIMAL) == value.try_cast(WIDEST_DECIMAL), exact)


REASON = "__lakeshare_reason"
_GROUP = "__lakeshare_group"
_GIVEN = "__lakeshare_given_"
_MISFIT = "__lakeshare_misfit_"
SHOWN_CHARACTERS = 100
# A column of which all values fail to parse, if at least this many, is of another type.
MIN_TYPE_MISMATCHES = 2


def validate_rows(
    contract: SetContract, table: Table, groups: Sequence[RawRows], without: Collection[tuple[int, str]] = ()
) -> "DataFrame":
    """Returns the rows of all groups, typed, each with the reason for its rejection, or null.

    `without` names columns, by number of their group, that are of another type and therefore left empty.
    """
    frames = [
        _convert_rows(table, rows, index, {name for number, name in without if number == index})
        for index, rows in enumerate(groups)
    ]
    typed = reduce(lambda frame, other: frame.unionByName(other), frames)
    return _add_reasons(contract, table, _compute_columns(contract, table, typed))


def find_type_mismatches(
    table: Table, judged: "DataFrame", groups: Sequence[RawRows]
) -> tuple[int, int, list[tuple[int, str]]]:
    """Returns the number of rows, of rejected ones, and the columns (with their group) without any valid value."""
    names = [column.name for column in table.columns if column.delivered_as]
    counts = [F.count(F.col(name)) for name in names]
    counts += [F.count_if(F.col(_MISFIT + name)) for name in names]
    rows_of_group = judged.groupBy(_GROUP).agg(*_count_rows(), *counts).collect()
    found = [
        (index, name)
        for index, _, _, *numbers in rows_of_group
        for name, fit, unfit in zip(names, numbers[: len(names)], numbers[len(names) :], strict=True)
        if fit == 0 and unfit >= MIN_TYPE_MISMATCHES
    ]
    return sum(row[1] for row in rows_of_group), sum(row[2] for row in rows_of_group), sorted(found)


def _count_rows() -> "tuple[SparkColumn, SparkColumn]":
    return F.count("*"), F.count_if(F.col(REASON).isNotNull())


def _convert_rows(table: Table, rows: RawRows, index: int, without: Collection[str]) -> "DataFrame":
    known = {c.name: _given(c, rows) for c in table.columns if c.name not in without}
    given = {name: value for name, value in known.items() if value is not None}
    values = [
        (_convert(column, rows, given[column.name]) if column.name in given else F.lit(None))
        .cast(column.type)
        .alias(column.name)
        for column in table.columns
    ]
    given_columns = [value.alias(_GIVEN + name) for name, value in given.items()]
    typed = rows.frame.select(FILE, LINE, PARTITION, RAW, BAD, *values, *given_columns)
    # Values that are used several times below are computed once in this step.
    misfits = {name: F.col(_GIVEN + name).isNotNull() & F.col(name).isNull() for name in given}
    reasons = [
        F.when(misfits[column.name], _misfit(column)) for column in table.columns if column.name in misfits
    ]
    flags = [misfits.get(column.name, F.lit(False)).alias(_MISFIT + column.name) for column in table.columns]
    names = [column.name for column in table.columns]
    reason, group = F.coalesce(BAD, *reasons).alias(REASON), F.lit(index).alias(_GROUP)
    return typed.select(*names, FILE, LINE, PARTITION, RAW, *flags, reason, group)


def _given(column: Column, rows: RawRows) -> "SparkColumn | None":
    """Returns the delivered value; None if the file lacks the column or has it in another type."""
    name = column.delivered_as
    if name is None or name not in rows.values:
        return None
    if rows.types is not None and not is_compatible(rows.types[name], column.type):
        return None
    return rows.values[name]


def _convert(column: Column, rows: RawRows, given: "SparkColumn") -> "SparkColumn":
    if rows.types is None:
        return parse_text(given, column.type)
    return convert_typed(given, rows.types[column.delivered_as or column.name], column.type)


def _misfit(column: Column) -> "SparkColumn":
    given = F.col(_GIVEN + column.name).cast("string")
    shown = F.lit("(hidden)") if column.pii else F.substring(given, 1, SHOWN_CHARACTERS)
    return F.concat(F.lit(f"{column.name}: '"), shown, F.lit(f"' is not {column.type}"))


def _compute_columns(contract: SetContract, table: Table, frame: "DataFrame") -> "DataFrame":
    """Adds the columns that no file holds."""
    from pyspark.errors import AnalysisException, ParseException

    for index, column in enumerate(table.columns):
        if column.expression is None:
            continue
        try:
            value = F.expr(f"try_cast(({column.expression}) AS {column.type})")
            frame = frame.withColumn(column.name, value)
            _ = frame.schema  # Spark Connect analyses the frame now
        except (AnalysisException, ParseException) as error:
            field = f"{table.short_name}.properties[{index}].transformLogic"
            problem = str(error).splitlines()[0].rstrip(".")
            hint = "It is Spark SQL over the other columns of the table."
            line = find_line(
                contract, "schema", table.short_name, "properties", column.name, "transformLogic"
            )
            raise ContractError(contract.path, field, problem, hint, line=line) from error
    return frame


def _add_reasons(contract: SetContract, table: Table, frame: "DataFrame") -> "DataFrame":
    """Adds the final reasons; where partitions are replaced, rows of others than their delivery are rejected too."""
    reason = F.col(REASON)
    if contract.is_by_partition(table):
        partitioning, first = contract.partitioning, table.partition_column
        parts = [(first, make_key_column(partitioning.time_dimension, first.name, first.type), 1)]
        if partitioning.second is not None:
            second = table.column(partitioning.second.column)
            parts.append((second, column_by_name(second.name), -1))
        for column, key, position in parts:
            shown = F.lit("(hidden)") if column.pii else column_by_name(column.name).cast("string")
            strays = F.concat(
                F.lit(f"{column.name} is '"), shown, F.lit("', the delivery is of "), F.col(PARTITION)
            )
            reason = F.coalesce(
                reason,
                F.when(
                    key.isNull(), F.lit(f"{column.name} is empty: the row belongs to no {partitioning.noun}")
                ),
                F.when(key != F.substring_index(PARTITION, SEPARATOR, position), strays),
            )
    # Exploded, so that a filter on the reason is not pushed down together with its computation.
    others = [name for name in frame.columns if name != REASON]
    return frame.select(*others, F.explode(F.array(reason)).alias(REASON))


@dataclass(frozen=True)
class ColumnProblem:
    """A column that is missing, unknown, given twice or of another type; empty `column`: all columns."""

    column: str
    what: str
    files: tuple[LandingFile, ...] = ()

    @property
    def detail(self) -> str:
        """The sentence: `column 'carrier' is missing in 2013-01-01/departures.csv.gz and 30 more files`."""
        labels = sorted(file.label for file in self.files)
        more = f" and {len(labels) - 1} more files" if len(labels) > 1 else ""
        where = f" in {labels[0]}{more}" if labels else ""
        return f"column {self.column!r} {self.what}{where}" if self.column else f"{self.what}{where}"


def find_column_problems(table: Table, rows: RawRows) -> list[ColumnProblem]:
    """Compares the columns of a group of files with the contract."""
    expected = {column.delivered_as: column for column in table.columns if column.delivered_as}
    missing = [name for name in expected if name not in rows.columns]
    extra = [name for name in dict.fromkeys(rows.columns) if name not in expected]
    repeated = [name for name, count in Counter(rows.columns).items() if count > 1]
    found = []
    for name in missing:
        close = difflib.get_close_matches(name.lower(), [e.lower() for e in extra], n=1, cutoff=0.6)
        hint = f" (the file has {close[0]!r})" if close else ""
        found.append(ColumnProblem(name, f"is missing{hint}", rows.files))
    if len(missing) == len(expected) and extra and rows.files and rows.files[0].format == "csv":
        # The names may be values of the first row, which may be personal data.
        what = f"none of the {len(extra)} columns is in the contract, the first line may not be a header,"
        return [*found, ColumnProblem("", what, rows.files)]
    found += [ColumnProblem(name, "is not in the contract", rows.files) for name in extra]
    found += [ColumnProblem(name, "is given twice", rows.files) for name in repeated]
    for name, column in expected.items():
        kind = rows.types.get(name) if rows.types else None
        if kind is not None and not is_compatible(kind, column.type):
            found.append(ColumnProblem(name, f"is {kind.simpleString()}, not {column.type},", rows.files))
    return found


def merge_problems(problems: Iterable[ColumnProblem]) -> tuple[ColumnProblem, ...]:
    """Merges the same problem of several groups of files."""
    files: dict[tuple[str, str], tuple[LandingFile, ...]] = {}
    for problem in problems:
        key = (problem.column, problem.what)
        files[key] = files.get(key, ()) + problem.files
    return tuple(ColumnProblem(column, what, found) for (column, what), found in files.items())


@dataclass(frozen=True)
class TableFrame:
    """A table of a delivery: its typed rows, their number, rejected rows (None if there are none), column problems.

    `rejected` has the columns table, file, line, reason and raw.
    """

    frame: "DataFrame"
    rows: int
    rejected: "DataFrame | None" = None
    problems: tuple[ColumnProblem, ...] = ()
    rejected_rows: int = 0


@dataclass(frozen=True)
class DeliveredTable:
    """The checked files of a table, in groups of one structure; `write` and `read` read their rows."""

    contract: SetContract
    table: Table
    groups: Sequence[RawRows]

    def write(self, replace_rows: "Callable[[DataFrame], int]") -> TableFrame:
        """Reads and writes the rows in one pass, if none is rejected; rejected ones are found in another pass.

        `replace_rows` writes a frame in place of what it wrote before, and returns the number of rows. It is called
        again if a column is of another type than the contract's, with that column empty.
        """
        frame = self._select_valid(validate_rows(self.contract, self.table, self.groups))
        rows = replace_rows(frame)
        if rows == sum(group.rows for group in self.groups):
            return TableFrame(frame, rows, problems=merge_problems(self._find_column_problems()))
        found = self.read()
        if found.rows != rows:
            replace_rows(found.frame)
        return found

    def read(self) -> TableFrame:
        """Counts the rows in a pass of its own, or two if a column is of another type than the contract's."""
        problems = self._find_column_problems()
        judged = validate_rows(self.contract, self.table, self.groups)
        rows, rejected_rows, wrong = find_type_mismatches(self.table, judged, self.groups)
        if wrong:
            problems += [
                ColumnProblem(
                    name, f"is of another type than {self.table.column(name).type}", self.groups[index].files
                )
                for index, name in wrong
            ]
            judged = validate_rows(self.contract, self.table, self.groups, without=wrong)
            [(rows, rejected_rows)] = judged.agg(*_count_rows()).collect()
        rejected = judged.where(F.col(REASON).isNotNull()).select(
            F.lit(self.table.name).alias("table"),
            F.col(FILE).alias("file"),
            F.col(LINE).alias("line"),
            F.col(REASON).alias("reason"),
            F.col(RAW).alias("raw"),
        )
        return TableFrame(
            frame=self._select_valid(judged),
            rows=rows - rejected_rows,
            rejected=rejected if rejected_rows else None,
            problems=merge_problems(problems),
            rejected_rows=rejected_rows,
        )

    def release(self) -> None:
        """Releases rows that were held to be read once."""
        for group in self.groups:
            group.frame.unpersist()

    def _select_valid(self, judged: "DataFrame") -> "DataFrame":
        return judged.where(F.col(REASON).isNull()).select(*(column.name for column in self.table.columns))

    def _find_column_problems(self) -> list[ColumnProblem]:
        return [problem for group in self.groups for problem in find_column_problems(self.table, group)]


def read_delivery(
    spark: "SparkSession",
    contract: SetContract,
    deliveries: Sequence[Delivery],
    limits: ReadingLimits = ReadingLimits(),
) -> dict[str, DeliveredTable]:
    """Checks the files of a run's deliveries, all partitions together; returns each table with a source."""
    with blame_changed_delivery(deliveries):
        assigned = [file for delivery in deliveries for file in assign_files(contract, delivery)]
        with ThreadPoolExecutor(READERS) as pool:
            files = list(pool.map(partial(require_readable, limits=limits), assigned))
        return {
            table.name: DeliveredTable(
                contract,
                table,
                read_raw(
                    spark,
                    [file for file in files if file.file.table is table],
                    [column.delivered_as for column in table.columns if column.delivered_as],
                ),
            )
            for table in contract.tables
            if table.source is not None
        }
