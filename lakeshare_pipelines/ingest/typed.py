"""Values as the contract types them: from text, from Parquet's own types; what does not fit becomes null.

Spark's own casts take too much: `12:30` is a timestamp of today, `2013-01-01 junk` a date, `1d` a double, and a
decimal is rounded. What is refused here ends in quarantine, so nothing is changed silently.
"""

from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts.types import base_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql.types import DataType

INTEGERS = ("tinyint", "smallint", "int", "bigint")
# Java reads 1d, 1f and 0x1p3 as numbers.
JAVA_NUMBER = r"[xX]|\d[.]?[dDfF]$"
WHOLE = r"^([+-]?\d+)\.0*$"
DECIMAL = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
WIDEST_DECIMAL = "decimal(38,18)"

# Which types of a Parquet file are the contract's type, if their values fit; all else is another type.
FITTING = {
    "boolean": {"boolean"},
    "string": {"string"},
    "date": {"date"},
    "timestamp": {"timestamp", "timestamp_ntz"},
    **{kind: {*INTEGERS, "float", "double", "decimal"} for kind in INTEGERS},
    **{kind: {*INTEGERS, "float", "double", "decimal"} for kind in ("float", "double")},
    "decimal": {*INTEGERS, "decimal"},
}


def from_text(text: "SparkColumn", kind: str) -> "SparkColumn":
    """Text as a value of the type; null where it is none."""
    from pyspark.sql import functions as F

    base = base_of(kind)
    if base == "string":
        return text
    text = F.trim(text)
    if base in INTEGERS:
        # Whatever held integers beside missing values as floats wrote 517 as 517.0.
        return F.when(text.contains("."), F.regexp_replace(text, WHOLE, "$1")).otherwise(text).try_cast(kind)
    if base in ("float", "double"):
        number = text.try_cast(kind)
        is_overflow = (F.abs(number) == float("inf")) & text.rlike(r"\d")
        return F.when(~text.rlike(JAVA_NUMBER) & ~is_overflow, number)
    if base == "decimal":
        return _exact(F.when(text.rlike(DECIMAL), text), kind)
    if base in ("date", "timestamp"):
        # At least 2013-1-1, and a date has nothing behind it.
        is_day_first = (F.length(text) >= 8) & (F.substring(text, 5, 1) == "-")
        if base == "date":
            is_day_first &= ~text.rlike(r"[T\s]")
        return F.when(is_day_first, text.try_cast(kind))
    return text.try_cast(kind)


def is_fitting(found: "DataType", kind: str) -> bool:
    """Whether a Parquet column of type `found` may hold the contract's type."""
    return base_of(found.simpleString()) in FITTING[base_of(kind)]


def from_typed(value: "SparkColumn", found: "DataType", kind: str) -> "SparkColumn":
    """A fitting Parquet value as the contract's type; null where it does not fit without loss."""
    from pyspark.sql import functions as F

    base, before = base_of(kind), base_of(found.simpleString())
    if found.simpleString() == kind:
        return value
    if base in INTEGERS and before in ("float", "double", "decimal"):
        return F.when(value == F.floor(value), value.try_cast(kind))
    if base == "decimal":
        return _exact(value, kind)
    return value.try_cast(kind)


def _exact(value: "SparkColumn", kind: str) -> "SparkColumn":
    from pyspark.sql import functions as F

    exact = value.try_cast(kind)
    return F.when(exact.cast(WIDEST_DECIMAL) == value.try_cast(WIDEST_DECIMAL), exact)
