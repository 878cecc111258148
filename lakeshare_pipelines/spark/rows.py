"""Rows of Spark frames: columns by name, comparable values, digests that do not depend on the order, and partitions.

`contracts/partitioning.py` has the arithmetic of partitions in Python; sessions run in UTC.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Literal, cast

from lakeshare_pipelines.contracts.column_types import Nested, Type, is_nested, parse_type
from lakeshare_pipelines.contracts.partitioning import EVERY_NAME, SEPARATOR, Partitioning, split_key
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
    from pyspark.sql.types import DataType
else:
    F, T = LazyModule("pyspark.sql.functions"), LazyModule("pyspark.sql.types")

RowDigest = tuple[int, int]
"""The number of rows, and the sum over their hashes."""


def column_by_name(name: str) -> "Column":
    """A column by its name, with any characters."""
    return F.col(f"`{name.replace('`', '``')}`")


def digest_rows(
    *frames: "DataFrame", by: "Sequence[Column]" = ()
) -> list[dict[tuple[str | None, ...], RowDigest]]:
    """Of each frame the number of rows and an order-independent sum over their hashes, by the texts of `by`."""
    sums = []
    for number, frame in enumerate(frames):
        columns = [column_by_name(name) for name in frame.columns]
        values = [
            to_comparable(column, field.dataType) for column, field in zip(columns, frame.schema, strict=True)
        ]
        # A hash skips nulls: without their positions (null, a) and (a, null) would be equal.
        row = F.xxhash64(*values, *(column.isNull() for column in columns)).cast("decimal(38,0)")
        keys = [column.cast("string").alias(f"key{at}") for at, column in enumerate(by)]
        counted = frame.groupBy(*keys).agg(F.count("*").alias("rows"), F.sum(row).alias("sum"))
        sums.append(counted.withColumn("frame", F.lit(number)))
    digests: list[dict[tuple[str | None, ...], RowDigest]] = [{} for _ in frames]
    for found in reduce(lambda union, frame: union.unionByName(frame), sums).collect():
        key = tuple(found[f"key{at}"] for at in range(len(by)))
        digests[found["frame"]][key] = int(found["rows"]), int(found["sum"] or 0)
    return digests


def to_comparable(value: "Column", kind: "DataType") -> "Column":
    """A value to group by: maps and variants have no equality, and grouping treats the two zeros of floats as equal."""
    if not has_type(kind, T.MapType, T.FloatType, T.DoubleType, T.VariantType):
        return value
    if isinstance(kind, T.StructType):
        members = (to_comparable(value.getField(each.name), each.dataType).alias(each.name) for each in kind)
        return F.when(value.isNotNull(), F.struct(*members))
    if isinstance(kind, T.ArrayType):
        return F.transform(value, lambda item: to_comparable(item, kind.elementType))
    if isinstance(kind, T.MapType):
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.struct(
                to_comparable(entry["key"], kind.keyType).alias("key"),
                to_comparable(entry["value"], kind.valueType).alias("value"),
            ),
        )
        return F.array_sort(entries)
    return value.cast("string")


def get_parts(kind: "DataType") -> "dict[str, DataType]":
    """The parts of a nested type: the fields of a struct by name, `element`, or `key` and `value`; none of others."""
    if isinstance(kind, T.StructType):
        return {field.name: field.dataType for field in kind.fields}
    if isinstance(kind, T.ArrayType):
        return {"element": kind.elementType}
    return {"key": kind.keyType, "value": kind.valueType} if isinstance(kind, T.MapType) else {}


def to_contract_type(kind: "DataType") -> Type:
    """A type of Spark as those of contracts are parsed."""
    parts = get_parts(kind)
    if not parts:
        return kind.simpleString()
    name = "struct" if isinstance(kind, T.StructType) else "array" if isinstance(kind, T.ArrayType) else "map"
    return Nested(
        cast("Literal['struct', 'array', 'map']", name),
        tuple((part, to_contract_type(inner)) for part, inner in parts.items()),
    )


def find_other_fields(frame: "DataFrame", expected: Mapping[str, str]) -> list[str]:
    """Names the nested columns whose fields have other names or another order than in the expected types.

    A cast of structs goes by position.
    """
    found = {field.name.lower(): to_contract_type(field.dataType) for field in frame.schema.fields}
    return [
        f"{name} is {found[name.lower()]}, not {kind}"
        for name, kind in expected.items()
        if is_nested(kind) and not _has_names_of(found[name.lower()], parse_type(kind))
    ]


def _has_names_of(found: Type, expected: Type) -> bool:
    if isinstance(found, str) or isinstance(expected, str):
        return True
    pairs = zip(found.parts, expected.parts, strict=False)
    return len(found.parts) == len(expected.parts) and all(
        name.lower() == other.lower() and _has_names_of(part, kind) for (name, part), (other, kind) in pairs
    )


def has_type(kind: "DataType", *wanted: type) -> bool:
    """Whether a type is, or contains at any depth, one of the wanted types."""
    inner: Any = kind
    if isinstance(kind, wanted):
        return True
    if hasattr(inner, "fields"):
        return any(has_type(field.dataType, *wanted) for field in inner.fields)
    parts = (getattr(inner, name, None) for name in ("elementType", "keyType", "valueType"))
    return any(has_type(part, *wanted) for part in parts if part is not None)


_UNITS = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month"}


def make_key_column(partitioning: Partitioning, name: str, column_type: str) -> "Column":
    """Returns the key of the partition that each row belongs to, as a string; null for an empty value."""
    if partitioning.second is not None:
        key = make_key_column(partitioning.time_dimension, name, column_type)
        return F.concat(key, F.lit(SEPARATOR), column_by_name(partitioning.second.column).cast("string"))
    value = column_by_name(name)
    if column_type == "string" or (column_type == "date" and partitioning.kind == "daily"):
        return value.cast("string")
    if column_type == "date":
        return F.date_trunc(_UNITS[partitioning.kind], value).cast("date").cast("string")
    local = F.from_utc_timestamp(value, partitioning.time_zone)
    if partitioning.kind != "hourly":
        return F.date_trunc(_UNITS[partitioning.kind], local).cast("date").cast("string")
    hour = F.date_format(local, "yyyy-MM-dd-HH")
    if partitioning.time_zone == "UTC":
        return hour
    before = F.from_utc_timestamp(value - F.expr("INTERVAL 1 HOUR"), partitioning.time_zone)
    offset = ((F.unix_timestamp(local) - F.unix_timestamp(value)) / 3600).cast("int")
    suffix = F.when(local == before, F.format_string("%+03d00", offset)).otherwise(F.lit(""))
    return F.concat(hour, suffix)


def filter_partitions(
    partitioning: Partitioning, name: str, column_type: str, keys: Sequence[str]
) -> "Column":
    """Returns the condition for rows of these partitions, of which formats can skip or replace whole files."""
    if partitioning.second is not None:
        return _filter_cells(partitioning, name, column_type, keys)
    value = column_by_name(name)
    if column_type == "string":
        return value.isin(list(keys))
    if column_type == "date" and partitioning.kind == "daily":
        return value.isin([dt.date.fromisoformat(key) for key in keys])
    # A range: a file of a month matches it as a whole, which Iceberg cannot know of a list of days.
    ranges = [
        (value >= _make_bound(partitioning, start, column_type))
        & (value < _make_bound(partitioning, end, column_type))
        for start, end in partitioning.merge_windows(keys)
    ]
    return reduce(or_, ranges)


def _filter_cells(partitioning: Partitioning, name: str, column_type: str, keys: Sequence[str]) -> "Column":
    """Returns one condition for all names with the same partitions of time."""
    times: dict[str, list[str]] = {}
    for first, second in map(split_key, keys):
        times.setdefault(second, []).append(first)
    names: dict[tuple[str, ...], list[str]] = {}
    for second, found in times.items():
        names.setdefault(tuple(dict.fromkeys(found)), []).append(second)
    conditions = []
    for first_keys, seconds in names.items():
        condition = filter_partitions(partitioning.time_dimension, name, column_type, first_keys)
        if EVERY_NAME not in seconds and partitioning.second is not None:
            condition &= column_by_name(partitioning.second.column).isin(seconds)
        conditions.append(condition)
    return reduce(or_, conditions)


def _make_bound(partitioning: Partitioning, at: dt.datetime, column_type: str) -> "Column":
    text = partitioning.to_day(at).isoformat() if column_type == "date" else at.isoformat()
    return F.lit(text).cast(column_type)
