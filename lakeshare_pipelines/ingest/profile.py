"""Samples of data to draft a contract from, and their profile: types, empty values, distinct values, ranges, keys.

Values of text files are classified so that what gets a type is read as that type by `frame.py`. The profile is one pass
over the sample, after its first rows have shown what to look for; only uniqueness needs more.
"""

import csv
import io
import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from lakeshare_pipelines.contracts.column_types import (
    Nested,
    explain_wrong_type,
    is_nested,
    map_leaves,
    parse_type,
)
from lakeshare_pipelines.contracts.model import Reading
from lakeshare_pipelines.errors import SampleError
from lakeshare_pipelines.ingest.compression import (
    CutOff,
    Damaged,
    find_codec,
    read_piece,
    remove_codec_suffix,
)
from lakeshare_pipelines.ingest.delivery import (
    FORMAT_BY_SUFFIX,
    KNOWN_SUFFIXES,
    FileFormat,
    explain_suffix,
    find_suffix,
)
from lakeshare_pipelines.ingest.landing import is_data
from lakeshare_pipelines.ingest.raw_rows import SPARK_FORMATS, make_parquet_columns, split_json_document
from lakeshare_pipelines.ingest.readable import (
    BOM,
    Refused,
    XmlRows,
    check_typed,
    encoding_fix,
    guess_row_tag,
)
from lakeshare_pipelines.spark.rows import to_contract_type
from lakeshare_pipelines.spark.session import REWRITE, escape_glob, explain_damage
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
else:
    F = LazyModule("pyspark.sql.functions")

HEAD_BYTES = 1 << 20
MIN_HEAD_ROWS, HEAD_ROWS = 1000, 20_000
HEAD_CELLS = 1_000_000
MAX_VALUES = 30  # A column with at most this many different values has a set of values
COLUMNS_PER_PASS = 80
KEY_CHECKS = 3
COMPOSITE_COLUMNS = 6
COMPOSITE_ROWS = 5_000_000  # Keys of several columns are searched for in samples up to this size
APPROXIMATION = 0.85  # An approximate count from this fraction of the rows on may be the number of rows
MAX_INFERRED = 4000
"""The longest spelling of a nested type that is drafted; objects with names of many kinds have longer ones."""
NULL_TOKENS = ("NA", "N/A", "n/a", "#N/A", "NULL", "null", "NaN", "nan", "None", "none", "-", "\\N")

_BROKEN = "__broken"
Report = Callable[[str], None]  # Takes a line of progress


@dataclass(frozen=True)
class Sample:
    """Rows with the columns of the delivery, which of text files are all text.

    `source` is what names its files in a contract; `nested` are columns of nested types, of which there is no profile,
    `skipped` those whose types a contract cannot have; `unclosed`
    counts lines with a quote that is not closed, which ingestion refuses.
    """

    title: str
    name: str
    source: str
    frame: "DataFrame"
    columns: tuple[str, ...]
    is_text: bool = False
    reading: Reading = field(default_factory=Reading)
    nested: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    without_broken: "DataFrame | None" = None
    unclosed: int = 0

    @property
    def pruned(self) -> "DataFrame":
        """The frame for some columns of a sample without broken rows."""
        return self.frame if self.without_broken is None else self.without_broken


def find_files(patterns: Sequence[str]) -> tuple[list[Path], FileFormat]:
    """Returns the local files of paths, folders and globs, and their format.

    Raises:
        SampleError: there are none, or they are of several formats or an unknown one.
    """
    found: list[Path] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        matches = [path] if path.exists() else sorted(path.parent.glob(path.name))
        if not matches:
            raise SampleError(pattern, "there is no such file", "Give a file, a folder, a table or a query.")
        for match in matches:
            inside = sorted(match.iterdir()) if match.is_dir() else [match]
            found += [file for file in inside if file.is_file() and (file == match or is_data(file.name))]
    formats = {get_format(path) for path in found}
    if len(formats) != 1:
        reason = f"its files are of {len(formats)} formats" if found else "the folder holds no file"
        raise SampleError(", ".join(patterns), reason, "Draft a contract from files of one format.")
    return found, formats.pop()


def get_format(path: Path) -> FileFormat:
    suffix = find_suffix(path.name)
    if suffix is None:
        raise SampleError(str(path), explain_suffix(path.name), f"{KNOWN_SUFFIXES}.")
    return FORMAT_BY_SUFFIX[suffix]


def read_files(spark: "SparkSession", patterns: Sequence[str], folder: Path | None = None) -> Sample:
    """Opens local files of one format as a sample; of large text files parts, which are copied to `folder` if given."""
    files, kind = find_files(patterns)
    stems = [path.name.removesuffix(find_suffix(path.name) or "") for path in files]
    name, source = _name_files(stems, files[0].parent.name)
    title = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    if kind == "csv":
        try:
            return _read_csv(spark, files, title, name, source, folder)
        except csv.Error as error:
            fix = "Write it with double quotes around fields with delimiters or line ends."
            raise SampleError(title, f"is no CSV: {error}", fix) from error
    fix = "Give files with types that Spark reads, and columns whose names differ by more than case."
    with _translate_spark_errors(title, fix):
        if kind == "jsonl":
            is_document = _read_head(files[0]).lstrip().startswith(("[", "{\n", "{\r"))
            parts, remark = (files, "") if is_document else take_parts(files, folder)
            return _read_json(spark, parts, title + remark, name, source, is_document=is_document)
        if kind == "xml":
            return _read_xml(spark, files, title, name, source)
        return _read_typed(spark, files, title, name, source, kind)


def _name_files(stems: Sequence[str], folder: str) -> tuple[str, str]:
    """Returns a table's name, and the `source` that fits all the stems."""
    if len(set(stems)) == 1:
        return stems[0], stems[0]
    prefix = os.path.commonprefix(stems)  # noqa: RUF071  no paths
    head = prefix.rpartition("-")[0]
    if head and all(stem == head or stem.startswith(f"{head}-") for stem in stems):
        return head, head
    name = prefix.rstrip("0123456789-_. ") or folder
    return name, f"{prefix}*"


def _read_head(path: Path) -> str:
    try:
        head = b"".join(itertools.islice(_read_pieces(path, HEAD_BYTES), 1))
    except (OSError, CutOff, Damaged) as error:
        raise SampleError(str(path), f"cannot be read: {error}", "Transfer it again.") from error
    try:
        # A character may be cut off at the end.
        text = head.decode("utf-8", errors="strict" if len(head) < HEAD_BYTES else "ignore")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte {error.start}"
        raise SampleError(str(path), reason, f"{encoding_fix(head)}.") from error
    if "\0" in text:
        raise SampleError(str(path), "has a zero byte", f"{encoding_fix(head)}.")
    if not text.strip(BOM + " \r\n"):
        raise SampleError(str(path), "holds nothing", "Give a file with a header and rows.")
    return text.removeprefix(BOM)


def _read_pieces(path: Path, size_bytes: int = HEAD_BYTES) -> Iterator[bytes]:
    """Yields the content of a file in pieces, unpacked."""
    codec = find_codec(path.name)
    with path.open("rb") as opened:
        stream = opened if codec is None else codec.open(opened)
        while piece := stream.read(size_bytes) if codec is None else read_piece(codec, stream, size_bytes):
            yield piece


def sniff_delimiter(text: str) -> str:
    """Returns the delimiter that divides the most lines into the most, and equally many, fields."""
    lines = [line for line in text.splitlines()[:200] if line.strip()]
    # The last line of a head may be cut off.
    lines = lines[:-1] if len(lines) > 2 else lines

    def score(delimiter: str) -> tuple[float, int]:
        counts = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        width, fitting = Counter(counts).most_common(1)[0]
        return (0.0, 0) if width < 2 else (fitting / len(counts), width)

    return max((",", ";", "\t", "|"), key=score)


SAMPLE_BYTES = 128 << 20
PART_BYTES = 8 << 20
UNPACKED_FACTOR = 4
"""How much larger text is than its compressed file, about."""


def take_parts(files: Sequence[Path], folder: Path | None) -> tuple[list[Path], str]:
    """Returns the files, or copies of evenly spread parts of them if they are large; and a remark for titles."""
    sizes = [path.stat().st_size * (UNPACKED_FACTOR if find_codec(path.name) else 1) for path in files]
    if folder is None or sum(sizes) <= SAMPLE_BYTES:
        return list(files), ""
    copies = []
    for number, (path, size) in enumerate(zip(files, sizes, strict=True)):
        copy = folder / f"part-{number}{remove_codec_suffix(path.name)[-20:]}"
        _copy_lines(path, copy, max(PART_BYTES, SAMPLE_BYTES * size // sum(sizes)))
        copies.append(copy)
    taken = sum(copy.stat().st_size for copy in copies)
    return copies, f" (a sample of {taken >> 20:,} MiB)"


def _copy_lines(path: Path, copy: Path, size_bytes: int) -> None:
    """Copies the first line and whole lines of evenly spread parts; of a compressed file those at its beginning."""
    size = path.stat().st_size
    with path.open("rb") as opened, copy.open("wb") as out:
        if find_codec(path.name) is not None:
            pieces = itertools.islice(_read_pieces(path), -(-size_bytes // HEAD_BYTES))
            out.write(b"".join(pieces).rpartition(b"\n")[0] + b"\n")
            return
        out.write(opened.readline())
        parts = 1 if size <= size_bytes else max(1, size_bytes // PART_BYTES)
        for part in range(parts):
            if part:
                opened.seek((size - PART_BYTES) * part // (parts - 1))
                opened.readline()  # the rest of a line
            out.write(opened.read(size if size <= size_bytes else PART_BYTES))
            out.write(opened.readline())


def _read_csv(
    spark: "SparkSession", files: Sequence[Path], title: str, name: str, source: str, folder: Path | None
) -> Sample:
    text = _read_head(files[0])
    delimiter = sniff_delimiter(text)
    rows = list(itertools.islice(_parse_csv(text, delimiter), HEAD_ROWS))
    header = [cell.strip() for cell in rows[0]]
    _require_header(str(files[0]), header)
    # The last row may end within quotes: the head is cut off there, or a quote is never closed.
    whole = rows[:-1] if text.count('"') % 2 else rows
    has_line_ends = any("\n" in cell or "\r" in cell for row in whole for cell in row)
    reading = Reading(delimiter=delimiter, multiline=has_line_ends)
    for path in files[1:]:
        other = next(_parse_csv(_read_head(path), delimiter), [])
        if [cell.strip() for cell in other] != header:
            fix = "Draft a contract from files with the same columns."
            raise SampleError(str(path), f"has other columns than {files[0].name}", fix)
    # A line may be within a field.
    parts, remark = (files, "") if reading.multiline else take_parts(files, folder)
    schema = ", ".join([*(f"_{i} string" for i in range(len(header))), f"{_BROKEN} string"])
    reader = (
        spark.read.options(sep=delimiter, quote='"', escape='"', mode="PERMISSIVE", header=True)
        .options(multiLine=reading.multiline, columnNameOfCorruptRecord=_BROKEN)
        .schema(schema)
    )
    paths = [escape_glob(str(path.absolute())) for path in parts]
    return Sample(
        title + remark,
        name,
        source,
        # Rows with too few fields are not found where only some columns are parsed.
        reader.option("columnPruning", False).csv(paths),
        tuple(header),
        is_text=True,
        reading=reading,
        without_broken=reader.option("columnPruning", True).csv(paths),
        unclosed=0 if reading.multiline else _count_unclosed_quotes(spark, paths, text),
    )


def _parse_csv(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)


def _count_unclosed_quotes(spark: "SparkSession", paths: list[str], head: str) -> int:
    """Counts lines with an odd number of quotes, if the beginning of the first file has any."""
    if not any(line.count('"') % 2 for line in head.splitlines()[:-1]):
        return 0
    quotes = F.length("value") - F.length(F.replace("value", F.lit('"')))
    return spark.read.text(paths).where(quotes % 2 == 1).count()


def _require_header(file: str, header: Sequence[str]) -> None:
    if not any(header):
        raise SampleError(file, "has no names in its first line", "Begin it with a header.")
    for place, name in enumerate(header, 1):
        if not name:
            raise SampleError(file, f"column {place} has no name in the header", "Give it one.")
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        fix = "Give each column a name of its own."
        raise SampleError(file, f"the column {repeated[0]!r} is given twice", fix)


def _read_json(
    spark: "SparkSession", files: Sequence[Path], title: str, name: str, source: str, *, is_document: bool
) -> Sample:
    paths = [escape_glob(str(path.absolute())) for path in files]
    lines = spark.read.text(paths, wholetext=is_document)
    if is_document:
        lines = lines.select(F.explode(split_json_document()).alias("value"))
    keys = lines.select(F.explode(F.json_object_keys("value"))).distinct().collect()
    present = {str(row[0]) for row in keys}
    first = lines.select(F.json_object_keys("value").alias("keys")).where("keys IS NOT NULL").first()
    order = [] if first is None else list(first.keys)
    columns = (*order, *sorted(present - set(order)))
    if not columns:
        fix = 'Write one object with its fields on each line, like {"id": 1}: `jq -c .`.'
        raise SampleError(str(files[0]), "holds no JSON object on a line, and is no document", fix)
    fields = ", ".join(f"`{key.replace('`', '``')}` string" for key in columns)
    parsed = F.from_json("value", fields)
    renamed = F.when(F.json_object_keys("value").isNotNull(), parsed)
    frame = (
        lines.where(F.trim("value") != "")
        .select(F.col("value"), F.explode(F.array(renamed)).alias("_parsed"))
        .select(
            *(F.col("_parsed")[key].alias(f"_{i}") for i, key in enumerate(columns)),
            F.when(F.col("_parsed").isNull(), F.lit("broken")).alias(_BROKEN),
        )
    )
    nested = _infer_nested(frame, columns)
    places = [i for i, key in enumerate(columns) if key not in nested]
    kept = frame.select(*(F.col(f"_{i}").alias(f"_{at}") for at, i in enumerate(places)), _BROKEN)
    simple, reading = tuple(columns[i] for i in places), Reading(multiline=is_document)
    return Sample(title, name, source, kept, simple, is_text=True, reading=reading, nested=nested)


def _infer_nested(frame: "DataFrame", columns: Sequence[str]) -> dict[str, str]:
    """Returns the types of the columns whose values are all objects, or all arrays, of a type that a contract can have.

    The texts of the frame are the values of JSON.
    """
    asked = []
    for i in range(len(columns)):
        text = F.col(f"_{i}")
        value = F.when(text.rlike(r"^\s*[\[{]"), F.try_parse_json(text))
        asked += [F.schema_of_variant_agg(value), F.count(F.when(value.isNull(), text))]
    found = frame.select(*asked).first() or ()
    nested = {}
    for name, kind, others in zip(columns, found[::2], found[1::2], strict=True):
        if not others and is_nested(kind):
            inferred = str(map_leaves(parse_type(kind, of_values=True), _guess_part))
            if len(inferred) <= MAX_INFERRED and explain_wrong_type(inferred, None, "iceberg") is None:
                nested[name] = inferred
    return nested


def _guess_part(kind: str) -> str:
    """The type of a contract for one that was inferred of values of JSON: of numbers with room for larger ones."""
    return "double" if kind.startswith("decimal") else "string" if kind == "void" else kind


def _read_xml(spark: "SparkSession", files: Sequence[Path], title: str, name: str, source: str) -> Sample:
    """Opens XML files; their rows are the elements that are repeated most among the outermost ones."""
    tag, columns = "", dict[str, None]()
    for path in files:
        try:
            tag = tag or guess_row_tag(_read_pieces(path))
            rows = XmlRows(tag)
            for piece in _read_pieces(path):
                rows.feed(piece)
            rows.end()
        except Refused as error:
            raise SampleError(str(path), error.reason, f"{error.fix}.") from error
        except (expat.ExpatError, OSError, CutOff, Damaged) as error:
            raise SampleError(str(path), f"is no sound XML: {error}", "Transfer it again.") from error
        columns |= rows.names
    if not columns:
        fix = "Give a file with an element for each row, and its values in elements or attributes."
        raise SampleError(str(files[0]), f"the elements <{tag}> have no values", fix)
    fields = ", ".join(f"`{key.replace('`', '``')}` string" for key in columns)
    paths = [escape_glob(str(path.absolute())) for path in files]
    read = spark.read.format("xml").options(rowTag=tag).schema(fields).load(paths)
    frame = read.select(
        *(F.col(f"`{key.replace('`', '``')}`").alias(f"_{i}") for i, key in enumerate(columns)),
        F.lit(None).cast("string").alias(_BROKEN),
    )
    return Sample(title, name, source, frame, tuple(columns), is_text=True, reading=Reading(row_tag=tag))


def _read_typed(
    spark: "SparkSession", files: Sequence[Path], title: str, name: str, source: str, kind: str
) -> Sample:
    checked = []
    for path in files:
        try:
            with path.open("rb") as opened:
                checked.append(check_typed(kind, opened))
        except Refused as error:
            raise SampleError(str(path), error.reason, f"{error.fix}.") from error
        except OSError as error:
            raise SampleError(str(path), f"cannot be read: {error}", "Check its permissions.") from error
    paths = [escape_glob(str(path.absolute())) for path in files]
    rows = spark.read.format(SPARK_FORMATS.get(kind, kind)).load(paths)
    return from_frame(rows.select(*make_parquet_columns(rows, checked[0].schema)), title, name, source)


_SAME = ("boolean", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp")
_OTHERS = {"tinyint": "int", "smallint": "int", "timestamp_ntz": "timestamp", "void": "string"}
CONTRACT_TYPES = {kind: kind for kind in _SAME} | _OTHERS
"""The types of a contract, which tables of both formats can have, by those of Spark."""


def from_frame(frame: "DataFrame", title: str, name: str, source: str) -> Sample:
    """Returns a sample with the types of a frame."""
    kept, nested, skipped = [], dict[str, str](), dict[str, str]()
    for column in frame.schema.fields:
        kind = column.dataType.simpleString()
        found = map_leaves(to_contract_type(column.dataType), lambda part: CONTRACT_TYPES.get(part, part))
        if kind in CONTRACT_TYPES or kind.startswith("decimal("):
            kept.append(column.name)
        elif isinstance(found, Nested) and explain_wrong_type(str(found), None, "iceberg") is None:
            nested[column.name] = str(found)
        else:
            skipped[column.name] = kind
    if not kept and not nested:
        raise SampleError(title, "has no column of a type that a contract can have", "Flatten its columns.")
    columns = [F.col(f"`{name.replace('`', '``')}`").alias(f"_{i}") for i, name in enumerate(kept)]
    shown = frame.select(*columns, F.lit(None).cast("string").alias(_BROKEN))
    return Sample(title, name, source, shown, tuple(kept), nested=nested, skipped=skipped)


def read_sql(read: "Callable[[], DataFrame]", title: str, name: str) -> Sample:
    """Opens a table or a query of Spark SQL as a sample.

    Raises:
        SampleError: Spark does not know the table, or cannot analyse the query.
    """
    with _translate_spark_errors(title, "Give a table or a query that Spark SQL knows."):
        frame = read()
        _ = frame.schema  # Spark Connect analyses no earlier
        return from_frame(frame, title, name, name)


@contextmanager
def _translate_spark_errors(title: str, fix: str) -> Iterator[None]:
    from pyspark.errors import AnalysisException, ParseException

    # It writes the stack trace of an error to the terminal.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        yield
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise SampleError(title, reason, fix) from error


# Classes of texts, each disjoint from the others. No class for numbers with leading zeros, a plus sign or more than 18
# digits: these are names, and stay text.
PATTERNS = {
    "int": r"^-?(0|[1-9][0-9]{0,8})$",
    "bigint": r"^-?[1-9][0-9]{9,17}$",
    "decimal": r"^-?(0|[1-9][0-9]{0,17})?\.[0-9]{1,40}$",
    "double": r"^-?[0-9]{1,18}(\.[0-9]{1,40})?[eE][+-]?[0-9]{1,2}$",
    "boolean": r"^(?i:true|false)$",
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    "timestamp": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}",
}
CONTROL = r"[\x00-\x08\x0e-\x1f]"
CLASSES = (*PATTERNS, "string", *NULL_TOKENS)
NUMBERS = ("int", "bigint", "decimal", "double")


def classify(text: str) -> str:
    """Returns the class of a text; days that do not exist are found by the pass over all rows."""
    if text in NULL_TOKENS:
        return "token"
    return next((kind for kind, pattern in PATTERNS.items() if re.search(pattern, text)), "string")


@dataclass(frozen=True)
class ColumnProfile:
    """What a column holds. `classes` are those of its texts, or its type; `values` are all different ones, if few.

    `filled` counts values that are not empty. `low` and `high` are numbers, or days as text. `examples` are of the
    first rows, and not for reports; `may_be_unique` if all of them are different.
    """

    name: str
    place: int
    classes: frozenset[str]
    filled: int
    may_be_unique: bool = False
    low: Any = None
    high: Any = None
    scale: int = 0
    values: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    type: str | None = None


@dataclass(frozen=True)
class Profile:
    """The profile of a sample: its rows without the broken ones, columns, and texts that mean empty."""

    rows: int
    broken: int
    columns: tuple[ColumnProfile, ...]
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Head:
    """What the first rows show of a column."""

    name: str
    place: int
    classes: Counter[str]
    values: Counter[str]
    type: str | None

    @property
    def is_free_text(self) -> bool:
        return self.type == "string" or (self.type is None and self.classes["string"] > 0)

    @property
    def may_be_unique(self) -> bool:
        return bool(self.values) and max(self.values.values()) == 1

    @property
    def order(self) -> list[str]:
        """The classes to try, the most frequent first."""
        return sorted(PATTERNS, key=lambda kind: -self.classes[kind])


def profile_sample(sample: Sample, report: Report) -> Profile:
    """Reads the first rows, then all of them for each 80 columns; again if other texts turn out to mean empty.

    Raises:
        SampleError: a file is damaged.
    """
    try:
        return _profile(sample, report)
    except Exception as error:
        if (damage := explain_damage(str(error))) is None:
            raise
        raise SampleError(sample.title, damage, f"{REWRITE}.") from error


def _profile(sample: Sample, report: Report) -> Profile:
    heads = _read_heads(sample)
    tokens = {text for head in heads if not head.is_free_text for text in head.values if text in NULL_TOKENS}
    if not sample.is_text:
        tokens = set()
    profile = _scan(sample, heads, sorted(tokens), report)
    typed = [column.classes for column in profile.columns if "string" not in column.classes]
    late = {kind for classes in typed for kind in classes if kind in NULL_TOKENS} - tokens
    return _scan(sample, heads, sorted(tokens | late), report) if late else profile


def _read_heads(sample: Sample) -> list[_Head]:
    width = len(sample.columns)
    names = [f"_{i}" for i in range(width)]
    limit = max(MIN_HEAD_ROWS, min(HEAD_ROWS, HEAD_CELLS // max(1, width)))
    kinds = dict(sample.frame.dtypes)
    texts = [F.trim(F.col(name).cast("string")).alias(name) for name in names]
    rows = sample.frame.where(F.col(_BROKEN).isNull()).select(*texts).limit(limit).collect()
    heads = []
    for place, name in enumerate(sample.columns):
        values = Counter(row[place] for row in rows if row[place])
        classes: Counter[str] = Counter()
        kind = None if sample.is_text else kinds[names[place]]
        if kind is None:
            for text, count in values.items():
                classes[classify(text)] += count
        heads.append(_Head(name, place, classes, values, kind))
    return heads


def _scan(sample: Sample, heads: Sequence[_Head], tokens: Sequence[str], report: Report) -> Profile:
    sound = F.col(_BROKEN).isNull()
    measured: dict[str, Any] = {}
    for start in range(0, max(1, len(heads)), COLUMNS_PER_PASS):
        part = heads[start : start + COLUMNS_PER_PASS]
        prepared = [column for head in part for column in _prepare(sample, head, tokens)]
        wanted = [measure for head in part for measure in _measure(sample, head)]
        counts = [F.count_if(sound).alias("rows"), F.count_if(~sound).alias("broken")]
        frame = sample.frame.select(F.col(_BROKEN), *prepared)
        measured |= frame.agg(*counts, *wanted).collect()[0].asDict()
        if start + len(part) < len(heads):
            report(f"{start + len(part):,} of {len(heads):,} columns")
    columns = tuple(_make_profile(head, measured) for head in heads)
    return Profile(measured["rows"], measured["broken"] + sample.unclosed, columns, tuple(tokens))


def _prepare(sample: Sample, head: _Head, tokens: Sequence[str]) -> "list[SparkColumn]":
    """The value of a column, null if it is empty, and the class of a text that may have a type."""
    name = f"_{head.place}"
    if not sample.is_text:
        return [F.when(F.col(_BROKEN).isNull(), F.col(name)).alias(name)]
    trimmed = F.trim(F.col(name))
    empty = trimmed.isin(["", *tokens]) if tokens else trimmed == ""
    text = F.when(F.col(_BROKEN).isNull() & ~empty, trimmed)
    if head.is_free_text:
        # Blanks around a text are part of it.
        return [F.when(text.isNotNull(), F.col(name)).alias(name)]
    kind = F.when(text.isNull(), F.lit(None).cast("int"))
    for class_ in head.order:
        fits = text.rlike(PATTERNS[class_])
        if class_ in ("date", "timestamp"):
            fits = fits & text.try_cast(class_).isNotNull()
        kind = kind.when(fits, CLASSES.index(class_))
    for token in NULL_TOKENS:
        kind = kind.when(text == token, CLASSES.index(token))
    return [text.alias(name), kind.otherwise(CLASSES.index("string")).alias(f"class{name}")]


def _measure(sample: Sample, head: _Head) -> "list[SparkColumn]":
    place, value = head.place, F.col(f"_{head.place}")
    # Only aggregates that Spark compiles: those that count different values take several times as long.
    found = [F.count(value).alias(f"filled_{place}")]
    if _has_few_values(head):
        found.append(F.count_if(~value.isin(list(head.values))).alias(f"other_{place}"))
    if head.type == "binary":
        is_text = F.is_valid_utf8(value) & ~value.cast("string").rlike(CONTROL)
        found.append(F.count_if(~is_text).alias(f"other_{place}"))
    if head.is_free_text:
        return found
    if head.type is None:
        found.append(F.bit_or(F.expr(f"shiftleft(1, class_{place})")).alias(f"mask_{place}"))
    is_day = any(head.classes[kind] for kind in ("date", "timestamp")) or head.type in ("date", "timestamp")
    # Numbers may follow where the first rows are empty, and decimals where they are whole.
    kind = head.type or ("" if is_day else "decimal")
    is_number = kind in ("float", "double") or "int" in kind or kind.startswith("decimal")
    if is_number and head.type is None:
        fraction = F.when(value.contains("."), F.length(F.substring_index(value, ".", -1)))
        found.append(F.max(fraction).alias(f"scale_{place}"))
    if is_number:
        value = value.try_cast("double") if head.type is None else value.cast("double")
    elif is_day:
        value = value.cast("string")
    if is_number or is_day:
        found += [F.min(value).alias(f"low_{place}"), F.max(value).alias(f"high_{place}")]
    return found


def _has_few_values(head: _Head) -> bool:
    return head.is_free_text and 0 < len(head.values) <= MAX_VALUES


def _make_profile(head: _Head, measured: Mapping[str, Any]) -> ColumnProfile:
    place = head.place
    mask = measured.get(f"mask_{place}") or 0
    classes = {kind for number, kind in enumerate(CLASSES) if mask >> number & 1}
    others = measured.get(f"other_{place}")
    is_text = others == 0 if head.type == "binary" else head.type is None and head.is_free_text
    classes = {"string"} if is_text else classes
    has_few = _has_few_values(head) and others == 0
    return ColumnProfile(
        name=head.name,
        place=place,
        classes=frozenset(classes),
        filled=measured[f"filled_{place}"],
        may_be_unique=head.may_be_unique,
        low=measured.get(f"low_{place}"),
        high=measured.get(f"high_{place}"),
        scale=measured.get(f"scale_{place}") or 0,
        values=tuple(sorted(head.values)) if has_few else (),
        examples=tuple(itertools.islice(head.values, 1000)),
        type=head.type,
    )


def find_unique(sample: Sample, profile: Profile, candidates: Sequence[ColumnProfile]) -> tuple[str, ...]:
    """Returns the first candidate whose values are all different, else the smallest such combination, else ().

    Candidates have no empty value.
    """
    near = [one for one in candidates if one.may_be_unique]
    for column in near[:KEY_CHECKS]:
        if _is_unique(sample, profile, [column]):
            return (column.name,)
    if profile.rows > COMPOSITE_ROWS or len(candidates) < 2:
        return ()
    pool = candidates[:COMPOSITE_COLUMNS]
    sets = [combination for size in (2, 3) for combination in itertools.combinations(pool, size)]
    counted = [F.approx_count_distinct(F.struct(*_texts(columns))) for columns in sets]
    counts = _sound(sample, profile).agg(*counted).collect()[0]
    likely = [one for one, count in zip(sets, counts, strict=True) if count >= APPROXIMATION * profile.rows]
    for columns in likely[:KEY_CHECKS]:
        if _is_unique(sample, profile, columns):
            return tuple(column.name for column in columns)
    return ()


def _is_unique(sample: Sample, profile: Profile, columns: Sequence[ColumnProfile]) -> bool:
    counts = _sound(sample, profile).groupBy(*_texts(columns)).count()
    return not counts.where(F.col("count") > 1).limit(1).collect()


def _texts(columns: Sequence[ColumnProfile]) -> "list[SparkColumn]":
    # As they are read: only text keeps blanks around it.
    return [F.trim(F.col(f"_{one.place}").cast("string")).alias(f"_{one.place}") for one in columns]


def _sound(sample: Sample, profile: Profile) -> "DataFrame":
    # Without broken rows only the columns of the key are parsed.
    return sample.frame.where(F.col(_BROKEN).isNull()) if profile.broken else sample.pruned
