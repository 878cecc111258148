"""Partitions of a set in Spark: the key of each row, and the filter for the rows of some keys.

`contracts/partitioning.py` has the same arithmetic in Python; sessions run in UTC.
"""

import datetime as dt
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts.partitioning import EVERY_NAME, SEPARATOR, Partitioning, split_key
from lakeshare_pipelines.spark.rows import column_by_name
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql import functions as F
else:
    F = LazyModule("pyspark.sql.functions")

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
        return value.isin([F.lit(key).cast("date") for key in keys])
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
