"""Deliveries as frames that match the contract, with rejected rows and problems of columns.

Rows that do not parse are rejected with file, line and reason; missing, unknown or mistyped columns are problems.
Neither stops the run: the audit decides.
"""

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.contracts.column_types import (
    Nested,
    Type,
    find_unknown_fields,
    get_base_type,
    is_nested,
    map_leaves,
    parse_type,
)
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.contracts.model import Reading
from lakeshare_pipelines.contracts.partitioning import SEPARATOR
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.ingest.delivery import Delivery, LandingFile, assign_files, blame_changed_delivery
from lakeshare_pipelines.ingest.raw_rows import BAD, FILE, LINE, PARTITION, RAW, RawRows, json_type, read_raw
from lakeshare_pipelines.ingest.readable import DEFAULT_LIMITS, ReadingLimits, require_readable
from lakeshare_pipelines.spark.rows import column_by_name, get_parts, make_key_column
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import DataType
else:
    F = LazyModule("pyspark.sql.functions")

_CORRUPT = "_lakeshare_corrupt"
# Files that are checked at once: a store answers slowly, each time.
READERS = 4

INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Java parses 1d, 1f and 0x1p3 as numbers.
JAVA_NUMBER = r"[xX]|\d[.]?[dDfF]$"
WHOLE = r"^([+-]?\d+)\.0*$"
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
WIDEST_DECIMAL = "decimal(38,18)"
FRACTION = r"\.(\d*?)0*$"

# Parquet types that a contract's type accepts, if the values fit.
COMPATIBLE_TYPES = {
    **{kind: {kind} for kind in ("boolean", "binary", "date")},
    # As Impala and old versions of Hive write texts.
    "string": {"string", "binary"},
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
        return _parse_decimal(text, kind)
    if base in ("date", "timestamp"):
        # At least 2013-1-1; a date has no time.
        is_day_first = (F.length(text) >= 8) & (F.substring(text, 5, 1) == "-")
        if base == "date":
            is_day_first &= ~text.rlike(r"[T\s]")
        value = text.try_cast(kind)
        # Between these years no offset leads out of the calendar.
        value = F.when(text.between("0002", "9999"), value).otherwise(_in_calendar(value, base))
        return F.when(is_day_first, value)
    if base == "binary":
        return F.try_to_binary(text, F.lit("base64"))
    return text.try_cast(kind)


def _in_calendar(value: "SparkColumn", base: str) -> "SparkColumn":
    """A date or timestamp of the years 1 to 9999, which Spark documents for its types; Python knows no others."""
    return F.when(F.year(value).between(1, 9999), value) if base in ("date", "timestamp") else value


def is_compatible(found: "DataType", kind: Type) -> bool:
    """Whether a column of type `found`, as in Parquet, can hold the contract's type; fields may be missing in it."""
    base = get_base_type(found.simpleString())
    kind = parse_type(kind) if isinstance(kind, str) else kind
    if isinstance(kind, str):
        return base in {"void", *COMPATIBLE_TYPES[get_base_type(kind)]}
    parts = get_parts(found)
    return base in ("void", kind.kind) and all(
        is_compatible(parts[name], part) for name, part in kind.parts if name in parts
    )


def convert_typed(value: "SparkColumn", found: "DataType", kind: str) -> "SparkColumn":
    """Converts a Parquet value to the contract's type; null if that loses information."""
    base, before = get_base_type(kind), get_base_type(found.simpleString())
    if found.simpleString() in (kind, "void"):
        return _in_calendar(value, base)
    new = _in_calendar(value.try_cast(kind), base)
    if base in INTEGERS and before in ("float", "double", "decimal"):
        # Of a float that is one too large, a cast makes the largest integer.
        return F.when((value == F.floor(value)) & (value.try_cast("decimal(38,0)") == new), new)
    if base == "float" and before == "double":
        return F.when((F.abs(value) == float("inf")) | (F.abs(new) != float("inf")), new)
    if base == "decimal":
        return F.when(new.try_cast(found) == value, new)
    return F.try_validate_utf8(new) if before == "binary" else new


def convert_nested(
    value: "SparkColumn", found: "DataType | None", kind: Type, reading: Reading
) -> "tuple[SparkColumn, SparkColumn]":
    """Converts a nested value, and returns whether a part of it is none of its type; texts if `found` is None.

    A field that the value lacks is null.
    """
    if isinstance(kind, str):
        value = value if found is not None else value.cast("string")
        if found is None and reading.null_values:
            value = F.when(~F.trim(value).isin(list(reading.null_values)), value)
        new = parse_text(value, kind) if found is None else convert_typed(value, found, kind)
        return new.cast(kind), value.isNotNull() & new.isNull()
    parts = None if found is None else get_parts(found)

    def convert(part: "SparkColumn", name: str) -> "tuple[SparkColumn, SparkColumn]":
        return convert_nested(part, None if parts is None else parts[name], dict(kind.parts)[name], reading)

    def is_any(values: "SparkColumn", name: str) -> "SparkColumn":
        return F.coalesce(F.exists(values, lambda item: convert(item, name)[1]), F.lit(False))

    if kind.kind == "array":
        return F.transform(value, lambda item: convert(item, "element")[0]), is_any(value, "element")
    if kind.kind == "map":
        new = F.transform_values(value, lambda _key, item: convert(item, "value")[0])
        return new, is_any(F.map_values(value), "value")
    fields, is_bad = [], F.lit(False)
    for name, part in kind.parts:
        if parts is not None and name not in parts:
            fields.append(F.lit(None).cast(str(part)).alias(name))
            continue
        new, is_other = convert(value.getField(name), name)
        fields.append(new.alias(name))
        is_bad = is_bad | is_other
    return F.when(value.isNotNull(), F.struct(*fields)), value.isNotNull() & is_bad


def parse_nested(text: "SparkColumn", kind: Nested, reading: Reading) -> "SparkColumn":
    """Parses a text of JSON as a nested type; null if it is none, or a part of it is not of its type."""
    # Texts or variants, in place of simple types.
    texts = map_leaves(kind, json_type)
    corrupt = {"columnNameOfCorruptRecord": _CORRUPT}
    # Within an object, because at the outermost level another value becomes a struct of nulls.
    whole = F.concat(F.lit('{"value":'), text, F.lit("}"))
    parsed = F.from_json(whole, f"value {texts}, {_CORRUPT} string", corrupt)

    def convert(record: "SparkColumn") -> "SparkColumn":
        value, is_bad = convert_nested(record["value"], None, kind, reading)
        return F.when(record[_CORRUPT].isNull() & ~is_bad, value)

    # In an array of one, so that the optimizer does not parse the text again for each use.
    return F.get(F.transform(F.array(parsed), convert), 0)


def _parse_decimal(text: "SparkColumn", kind: str) -> "SparkColumn":
    """Parses text as a decimal; null if it has more digits than the type holds."""
    exact, scale = text.try_cast(kind), int(kind[:-1].partition(",")[2])
    # Numbers with an exponent are compared in a type that holds more of them.
    same = exact.try_cast(WIDEST_DECIMAL) == text.try_cast(WIDEST_DECIMAL)
    # Most have no zeros to be left out at the end.
    digits = F.length(F.substring_index(text, ".", -1)), F.length(F.regexp_extract(text, FRACTION, 1))
    is_short = (digits[0] <= scale) | (digits[1] <= scale)
    fits = F.when(text.contains("e") | text.contains("E"), same).otherwise(is_short)
    return F.when(text.rlike(DECIMAL) & fits, exact)


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
        (_convert(column, rows, given[column.name], table.reading) if column.name in given else F.lit(None))
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


def _convert(column: Column, rows: RawRows, given: "SparkColumn", reading: Reading) -> "SparkColumn":
    kind = parse_type(column.type)
    if rows.types is None:
        return parse_nested(given, kind, reading) if isinstance(kind, Nested) else parse_text(given, kind)
    found = rows.types[column.delivered_as or column.name]
    if isinstance(kind, str) or found.typeName() == "void":
        return convert_typed(given, found, column.type)
    value, is_bad = convert_nested(given, found, kind, reading)
    return F.when(~is_bad, value)


def _misfit(column: Column) -> "SparkColumn":
    given = F.col(_GIVEN + column.name).cast("string")
    shown = F.lit("(hidden)") if column.pii else F.make_valid_utf8(F.substring(given, 1, SHOWN_CHARACTERS))
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
    nested = rows.nested or _find_nested_types(table, rows)
    for name, column in expected.items():
        kind = rows.types.get(name) if rows.types else None
        if kind is not None and not is_compatible(kind, column.type):
            found.append(ColumnProblem(name, f"is {kind.simpleString()}, not {column.type},", rows.files))
        elif is_nested(column.type) and name in nested:
            unknown = find_unknown_fields(parse_type(column.type), nested[name], name)
            found += [ColumnProblem(path, "is not in the contract", rows.files) for path in unknown]
    return found


def _find_nested_types(table: Table, rows: RawRows) -> dict[str, Type]:
    """The fields of nested values of JSON, found in a pass over those that fit: only there are kinds the same."""
    columns = {
        column.delivered_as: column
        for column in table.columns
        if column.delivered_as is not None and "struct<" in column.type
    }
    texts = {name: rows.values[name] for name in columns if name in rows.values}
    if not texts:
        return {}
    fitting = {
        name: F.when(_convert(columns[name], rows, text, table.reading).isNotNull(), text)
        for name, text in texts.items()
    }
    documents = (F.schema_of_variant_agg(F.try_parse_json(text)) for text in fitting.values())
    found = rows.frame.select(*documents).first() or ()
    kinds = {name: kind for name, kind in zip(fitting, found, strict=True) if is_nested(kind)}
    return {name: parse_type(kind, of_values=True) for name, kind in kinds.items()}


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
    limits: ReadingLimits = DEFAULT_LIMITS,
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
