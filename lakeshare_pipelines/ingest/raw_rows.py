"""Files of deliveries as raw rows: values as text or with the types of the file, each with its file and line.

Text is read as lines and then parsed, because Spark's CSV and JSON readers have no line numbers. Line numbers come from
the order within a file block, so that several tasks can read a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lakeshare_pipelines.contracts.column_types import Type, is_nested
from lakeshare_pipelines.contracts.model import Reading, Table
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest.delivery import LandingFile
from lakeshare_pipelines.ingest.readable import BOM, MIB, ReadableFile, ReadingLimits
from lakeshare_pipelines.spark.rows import to_contract_type
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

# Spark's own class: the jar that registers the name `avro` is published later than PySpark, or not at all.
SPARK_FORMATS = {"avro": "org.apache.spark.sql.avro.AvroFileFormat"}
"""Names of formats for Spark's reader, where they differ."""

FILE, LINE, PARTITION, RAW, BAD = (
    f"__lakeshare_{name}" for name in ("file", "line", "partition", "raw", "bad")
)
_BROKEN, _PARSED, _TEXTS = "_broken", "_parsed", "_texts"
_CORRUPT = "__lakeshare_corrupt"
RAW_CHARACTERS, MAX_FIELDS = 4000, 20_480


@dataclass(frozen=True)
class RawRows:
    """Rows of files with the same structure: a frame with FILE, LINE, PARTITION, RAW and BAD, their number, and values.

    `columns` are the delivered ones in the order of the file, `values` the values of the requested ones, `types` their
    types if the file has types; otherwise values are text, null where the contract defines it. `nested` are the types
    of nested values, if the file or the source has types.
    """

    files: tuple[LandingFile, ...]
    frame: "DataFrame"
    rows: int
    columns: tuple[str, ...]
    values: "Mapping[str, SparkColumn]"
    types: "Mapping[str, DataType] | None" = None
    nested: Mapping[str, Type] = field(default_factory=dict)


def make_raw_rows(frame: "DataFrame", label: str, table: Table, *, is_held: bool, is_text: bool) -> RawRows:
    """The rows of a source other than landing; `label` stands for their file, and they have no line.

    With `is_text`, columns are read as texts where all of them are, nested ones as JSON. Otherwise only those are texts
    of JSON that are not nested in the contract. Held rows are read once.
    """
    kept = {column.delivered_as for column in table.columns if is_nested(column.type)}
    from pyspark.sql import types as T

    types = {each.name: each.dataType for each in frame.schema.fields}
    nested = (T.StructType, T.ArrayType, T.MapType)
    simple = [kind for kind in types.values() if not isinstance(kind, nested)]
    is_text = is_text and all(isinstance(kind, T.StringType) for kind in simple)
    given = []
    for i, (name, kind) in enumerate(types.items()):
        column = F.col(_quoted(name))
        if isinstance(kind, nested) and (is_text or name not in kept):
            column, types[name] = F.to_json(column), T.StringType()
        elif is_text and table.reading.null_values:
            column = F.when(~F.trim(column).isin(list(table.reading.null_values)), column)
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
    found = {each.name: to_contract_type(each.dataType) for each in frame.schema.fields}
    return RawRows((), held, held.count(), tuple(types), values, None if is_text else types, found)


def read_raw(spark: "SparkSession", files: Sequence[ReadableFile], names: Sequence[str]) -> list[RawRows]:
    """Reads the files of one table, grouped by structure."""
    groups: dict[object, list[ReadableFile]] = {}
    for file in files:
        shape: object = file.schema.remove_metadata() if file.schema is not None else file.header
        # Rows of XML may lack elements: files with other ones are read together.
        shape = (
            file.avro_schema if file.file.format == "avro" else None if file.file.format == "xml" else shape
        )
        groups.setdefault((file.file.format, str(shape)), []).append(file)
    return [_read_group(spark, group, names) for group in groups.values()]


def _read_group(spark: "SparkSession", group: Sequence[ReadableFile], names: Sequence[str]) -> RawRows:
    from pyspark.errors import AnalysisException

    files = tuple(readable.file for readable in group)
    kind = files[0].format
    try:
        if kind == "parquet":
            return _read_parquet(spark, group)
        if kind in ("orc", "avro"):
            return _read_typed(spark, group, SPARK_FORMATS.get(kind, kind))
        if kind == "xml":
            return _read_xml(spark, group, names)
        if kind == "jsonl":
            return _read_json(spark, group, names)
        if files[0].table.reading.multiline:
            return _read_multiline(spark, files, group[0].header, group[0].limits)
        return _read_csv(spark, files, group[0].header)
    except AnalysisException as error:
        # As of columns whose names differ by case only.
        reason = f"cannot be read by Spark: {str(error).strip().splitlines()[0].rstrip('.')}"
        fix = "Deliver types that Spark reads, and columns whose names differ by more than case."
        raise DeliveryError(files[0].title, reason, fix) from error


def _read_csv(spark: "SparkSession", files: tuple[LandingFile, ...], header: tuple[str, ...]) -> RawRows:
    reading = files[0].table.reading
    # Spark's parser ends the run at a row of more fields. Shorter lines cannot have as many.
    fields = F.length("value") - F.length(F.replace("value", F.lit(reading.delimiter))) + 1
    value = F.when((F.octet_length("value") < MAX_FIELDS) | (fields <= MAX_FIELDS), F.col("value"))
    parsed = F.from_csv(value, _text_schema(len(header)), _csv_options(reading))
    # The parser ends an open quote at the next delimiter, which would cut a field over two lines.
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"')))
    unclosed = F.when(F.col("value").contains('"') & (quotes % 2 == 1), F.lit("a quote is not closed"))
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


def _read_json(spark: "SparkSession", group: Sequence[ReadableFile], names: Sequence[str]) -> RawRows:
    files = tuple(readable.file for readable in group)
    kinds = {column.delivered_as: json_type(column.type) for column in files[0].table.columns}
    is_document = files[0].is_json_document
    if is_document:
        lines, number = _json_records(spark, files, max(kinds.values()))  # variants if a column is one
        _require_counted(group, number)
    else:
        lines, number = _lines(spark, files, has_header=False)
    unit = "record" if is_document else "line"
    keys = lines.select(F.explode(F.json_object_keys("value"))).distinct().collect()
    present = {row[0] for row in keys} if number else set(names)
    fields = ", ".join(f"_{i} string" for i in range(len(names)))
    columns = ", ".join(f"{_quoted(name)}: {kinds.get(name, 'string')}" for name in names)
    # Parsed as an array, because text after the closing brace would be ignored otherwise.
    parsed = F.from_json(F.concat(F.lit("["), F.col("value"), F.lit("]")), f"array<struct<{columns}>>")
    rows = (
        lines.select("*", F.explode_outer(F.when(F.size(parsed) == 1, parsed)).alias(_PARSED))
        .withColumn(_PARSED, F.col(_PARSED).cast(f"struct<{fields}>"))
        .withColumn(BAD, F.when(F.col(_PARSED).isNull(), F.lit(f"the {unit} is not one JSON object")))
        .withColumn(RAW, F.substring("value", 1, RAW_CHARACTERS))
    )
    return _keep_present(_select_texts(files, rows, number, names, files[0].table.reading), present)


def json_type(kind: Type) -> str:
    """The type in which Spark's JSON parser keeps a value as it is: a decimal as text would get a double's digits."""
    return "variant" if "decimal" in str(kind) else "string"


def split_json_document(kind: str = "string") -> "SparkColumn":
    """The records of the JSON document in the column `value`, as an array of texts; null if it is no JSON."""
    text = F.trim(F.regexp_replace("value", f"^{BOM}", ""), F.lit(" \t\r\n"))
    whole = F.when(text.startswith("["), text).otherwise(F.concat(F.lit("["), text, F.lit("]")))
    return F.from_json(whole, f"array<{kind}>").cast("array<string>")


def _json_records(spark: "SparkSession", files: Sequence[LandingFile], kind: str) -> "tuple[DataFrame, int]":
    """Returns the objects of JSON documents as texts, numbered from 1 in each file, and their number."""
    documents = _reader(spark).text(_paths(files), wholetext=True)
    records = documents.select(F.posexplode(split_json_document(kind)).alias("_row", "value"), *_where())
    located, number = _add_location(spark, files, records, F.col("value"), kept=F.lit(True))
    text = F.coalesce("value", F.lit("null"))
    return located.withColumn("value", text).withColumn(LINE, F.col("_row") + 1), number


def _select_texts(
    files: tuple[LandingFile, ...], rows: "DataFrame", number: int, names: Sequence[str], reading: Reading
) -> RawRows:
    """Selects the fields of the parsed struct as an array of text, with the contract's null values as null."""

    fields, nulls = F.array(*(F.col(_PARSED)[f"_{i}"] for i in range(len(names)))), list(reading.null_values)
    texts = F.transform(fields, lambda text: F.when(~F.trim(text).isin(nulls), text)) if nulls else fields
    frame = rows.select(FILE, LINE, PARTITION, RAW, BAD, texts.alias(_TEXTS))
    values = {name: F.get(_TEXTS, i) for i, name in reversed(list(enumerate(names)))}
    return RawRows(files, frame, number, tuple(names), values)


def make_parquet_columns(rows: "DataFrame", schema: "pa.Schema | None") -> "list[SparkColumn]":
    """The columns of Parquet files as they were written: pandas writes types that Spark reads as integers."""
    written = {each.name: str(each.type) for each in schema or ()}

    def convert(name: str, kind: str) -> "SparkColumn":
        column = F.col(_quoted(name))
        # INT96, as Spark itself writes, is nanoseconds too, but read as a timestamp.
        if kind == "bigint" and written.get(name, "").startswith("timestamp[ns"):
            column = F.timestamp_micros(F.floor(column / 1000))
        return (F.lit(None) if written.get(name) == "null" else column).alias(name)

    return [convert(each.name, each.dataType.simpleString()) for each in rows.schema.fields]


def _read_parquet(spark: "SparkSession", group: Sequence[ReadableFile]) -> RawRows:
    files = tuple(readable.file for readable in group)
    rows = _reader(spark).parquet(*_paths(files))
    columns = make_parquet_columns(rows, group[0].schema)
    types = {each.name: each.dataType for each in rows.select(*columns).schema.fields}
    given = [column.alias(f"_{i}") for i, column in enumerate(columns)]
    line = (F.col("_metadata.row_index") + 1).alias("_row")
    raw = F.substring(F.to_json(F.struct("*")), 1, RAW_CHARACTERS).alias(RAW)
    located, number = _add_location(spark, files, rows.select(*given, raw, line, *_where()), None)
    frame = located.withColumn(LINE, F.col("_row")).withColumn(BAD, F.lit(None).cast("string"))
    values = {name: F.col(f"_{i}") for i, name in enumerate(types)}
    nested = {name: to_contract_type(kind) for name, kind in types.items()}
    return RawRows(files, frame, number, tuple(types), values, types, nested)


def _read_typed(spark: "SparkSession", group: Sequence[ReadableFile], spark_format: str) -> RawRows:
    """Reads files with types of their own in a format without numbers of rows."""
    files = tuple(readable.file for readable in group)
    rows = _reader(spark).format(spark_format).load(_paths(files))
    types = {each.name: each.dataType for each in rows.schema.fields}
    given = [F.col(_quoted(name)).alias(f"_{i}") for i, name in enumerate(types)]
    raw = F.substring(F.to_json(F.struct("*")), 1, RAW_CHARACTERS).alias(RAW)
    located, number = _add_location(spark, files, rows.select(*given, raw, *_where()), F.col(RAW))
    _require_counted(group, number)
    values = {name: F.col(f"_{i}") for i, name in enumerate(types)}
    nested = {name: to_contract_type(kind) for name, kind in types.items()}
    frame = located.withColumn(BAD, F.lit(None).cast("string"))
    return RawRows(files, frame, number, tuple(types), values, types, nested)


def _read_xml(spark: "SparkSession", group: Sequence[ReadableFile], names: Sequence[str]) -> RawRows:
    files = tuple(readable.file for readable in group)
    reading = files[0].table.reading
    # An element may be repeated, of which Spark would take the last one; attributes cannot be.
    kinds = ["string" if name.startswith("_") else "array<string>" for name in names]
    fields = [f"{_quoted(name)} {kind}" for name, kind in zip(names, kinds, strict=True)]
    records = (
        _reader(spark)
        .format("xml")
        .options(rowTag=reading.row_tag, mode="PERMISSIVE", columnNameOfCorruptRecord=_CORRUPT)
        .schema(", ".join([*fields, f"{_CORRUPT} string"]))
        .load(_paths(files))
        .select(F.struct("*").alias(_PARSED), *_where())
    )
    located, number = _add_location(spark, files, records, F.to_json(_PARSED))
    _require_counted(group, number)
    given = {name: F.col(_PARSED)[name] for name in names}
    lists = {name: column for name, column in given.items() if not name.startswith("_")}
    repeated = [
        F.when(F.size(column) > 1, F.concat(F.lit(f"{name} is given "), F.size(column), F.lit(" times")))
        for name, column in lists.items()
    ]
    broken = F.when(F.col(_PARSED)[_CORRUPT].isNotNull(), F.lit("the row is not read as XML"))
    texts = [F.get(given[name], 0) if name in lists else given[name] for name in names]
    rows = located.select(
        *(FILE, LINE, PARTITION),
        F.coalesce(broken, *repeated).alias(BAD),
        F.substring(F.to_json(_PARSED), 1, RAW_CHARACTERS).alias(RAW),
        F.struct(*(text.alias(f"_{i}") for i, text in enumerate(texts))).alias(_PARSED),
    )
    present = {name for readable in group for name in readable.header}
    return _keep_present(_select_texts(files, rows, number, names, reading), present)


def _keep_present(texts: RawRows, present: set[str]) -> RawRows:
    """Returns rows with the columns that any of them has, known ones first."""
    values = {name: value for name, value in texts.values.items() if name in present}
    unknown = sorted(present - set(texts.columns))
    return replace(texts, columns=(*values, *unknown), values=values)


def _require_counted(group: Sequence[ReadableFile], number: int) -> None:
    """Checks that Spark reads as many rows as were found in the files."""
    counted = [readable.rows for readable in group if readable.rows is not None]
    if counted and sum(counted) != number:
        reason = f"Spark reads {number} rows of the {sum(counted)} in it and files of its kind"
        raise DeliveryError(group[0].file.title, reason, "Deliver the rows as CSV, JSON or Parquet.")


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
    files: Sequence[LandingFile],
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
    return F.when(F.col(_PARSED).isNull() | F.col(_PARSED)[_BROKEN].isNotNull(), reason)


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
