"""Rows with the contract's columns and, where one cannot be taken, the reason."""

from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.ingest.raw_rows import BAD, FILE, LINE, PARTITION, RAW, RawRows
from lakeshare_pipelines.ingest.typed import from_text, from_typed, is_fitting

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

REASON = "__lakeshare_reason"
_GROUP = "__lakeshare_group"
_GIVEN = "__lakeshare_given_"
_MISFIT = "__lakeshare_misfit_"
SHOWN_CHARACTERS = 100
# One value that does not parse is a bad row; from here on, if all of them do not, it is a column of another type.
ANOTHER_TYPE_FROM = 2


def judge(
    contract: SetContract, table: Table, groups: Sequence[RawRows], without: Collection[tuple[int, str]] = ()
) -> "DataFrame":
    """The rows of all groups, typed, each with the reason why it cannot be taken, or null.

    `without` names columns, by number of their group, that are of another type and therefore left empty.
    """
    frames = [
        _typed(table, rows, index, {name for number, name in without if number == index})
        for index, rows in enumerate(groups)
    ]
    judged = reduce(lambda one, other: one.unionByName(other), frames)
    return _refusals(contract, table, _computed(contract, table, judged))


def another_type(
    table: Table, judged: "DataFrame", groups: Sequence[RawRows]
) -> tuple[int, list[tuple[int, str]]]:
    """How many rows cannot be taken, and the columns (with their group) in which not one value fits."""
    from pyspark.sql import functions as F

    names = [column.name for column in table.columns if column.delivered_as]
    counts = [F.count(F.col(name)) for name in names]
    counts += [F.count_if(F.col(_MISFIT + name)) for name in names]
    refused = F.count_if(F.col(REASON).isNotNull())
    rows_of_group = judged.groupBy(_GROUP).agg(refused, *counts).collect()
    found = [
        (index, name)
        for index, _, *numbers in rows_of_group
        for name, fit, unfit in zip(names, numbers[: len(names)], numbers[len(names) :], strict=True)
        if fit == 0 and unfit >= ANOTHER_TYPE_FROM
    ]
    return sum(row[1] for row in rows_of_group), sorted(found)


def _typed(table: Table, rows: RawRows, index: int, without: Collection[str]) -> "DataFrame":
    from pyspark.sql import functions as F

    known = {c.name: _given(c, rows) for c in table.columns if c.name not in without}
    given = {name: value for name, value in known.items() if value is not None}
    values = [
        (_value(column, rows, given[column.name]) if column.name in given else F.lit(None))
        .cast(column.type)
        .alias(column.name)
        for column in table.columns
    ]
    kept = [value.alias(_GIVEN + name) for name, value in given.items()]
    typed = rows.frame.select(FILE, LINE, PARTITION, RAW, BAD, *values, *kept)
    # A step of its own: what is used in several places below is computed once here.
    misfits = {name: F.col(_GIVEN + name).isNotNull() & F.col(name).isNull() for name in given}
    reasons = [
        F.when(misfits[column.name], _misfit(column)) for column in table.columns if column.name in misfits
    ]
    flags = [
        misfits.get(column.name, F.lit(False)).alias(_MISFIT + column.name)  # a literal column
        for column in table.columns
    ]
    return typed.select(
        *(column.name for column in table.columns),
        FILE,
        LINE,
        PARTITION,
        RAW,
        *flags,
        F.coalesce(BAD, *reasons).alias(REASON),
        F.lit(index).alias(_GROUP),
    )


def _given(column: Column, rows: RawRows) -> "SparkColumn | None":
    """The value as the file has it; None when the file lacks the column or has it in another type."""
    name = column.delivered_as
    if name is None or name not in rows.values:
        return None
    if rows.types is not None and not is_fitting(rows.types[name], column.type):
        return None
    return rows.values[name]


def _value(column: Column, rows: RawRows, given: "SparkColumn") -> "SparkColumn":
    if rows.types is None:
        return from_text(given, column.type)
    return from_typed(given, rows.types[column.delivered_as or column.name], column.type)


def _misfit(column: Column) -> "SparkColumn":
    from pyspark.sql import functions as F

    given = F.col(_GIVEN + column.name).cast("string")
    shown = F.lit("(hidden)") if column.pii else F.substring(given, 1, SHOWN_CHARACTERS)
    return F.concat(F.lit(f"{column.name}: '"), shown, F.lit(f"' is not {column.type}"))


def _computed(contract: SetContract, table: Table, frame: "DataFrame") -> "DataFrame":
    """The frame with the columns that no file holds."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    for index, column in enumerate(table.columns):
        if column.expression is None:
            continue
        try:
            value = F.expr(f"try_cast(({column.expression}) AS {column.type})")
            frame = frame.withColumn(column.name, value)
            _ = frame.schema  # Spark Connect analyses no earlier
        except (AnalysisException, ParseException) as error:
            raise ContractError(
                contract.path,
                f"{table.short_name}.properties[{index}].transformLogic",
                str(error).splitlines()[0].rstrip("."),
                "It is Spark SQL over the other columns of the table.",
            ) from error
    return frame


def _refusals(contract: SetContract, table: Table, frame: "DataFrame") -> "DataFrame":
    """The frame with the final reasons: rows that do not belong into the partition of their delivery have one too."""
    from pyspark.sql import functions as F

    reason = F.col(REASON)
    if contract.partitioning == "daily":
        name = table.partition_by[0][0]
        day = F.col(name).cast("string")
        strays = F.concat(F.lit(f"{name} is '"), day, F.lit("', the delivery is of "), F.col(PARTITION))
        reason = F.coalesce(
            reason,
            F.when(day.isNull(), F.lit(f"{name} is empty: the row belongs to no day")),
            F.when(day != F.col(PARTITION), strays),
        )
    # Exploded, though it is one: a filter on it would otherwise be pushed down with all that it is made of, twice.
    others = [name for name in frame.columns if name != REASON]
    return frame.select(*others, F.explode(F.array(reason)).alias(REASON))
