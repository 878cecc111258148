"""What a file's partition values say of its columns: a day, a prefix or a bucket is no column, but bounds one.

The value of `day(ts)` puts all of the file's times into that day, also when the file has no statistics. Buckets bound
nothing, and transforms that are not known here are passed over.
"""

import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.single_values import DAY_US, DECIMAL_BYTES, decoded

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import PrimitiveType

HOUR_US = 3_600_000_000
EPOCH = datetime.date(1970, 1, 1)
# What a partition value bounds: the least and the greatest it may stand for, None where there is no end.
Span: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True)
class Range:
    """Of one column in all files: bounds, and the number of nulls; each null where partitions do not tell."""

    low: pa.Array
    high: pa.Array
    nulls: pa.Array

    def together(self, other: "Range") -> "Range":
        """What both know."""
        return Range(
            highest(self.low, other.low),
            lowest(self.high, other.high),
            pc.coalesce(self.nulls, other.nulls),
        )


def highest(one: pa.Array, other: pa.Array) -> pa.Array:
    """The greater of two lower bounds in each row; one that is unknown counts for nothing."""
    # Arrow's max_element_wise takes neither times with a zone nor booleans.
    return pc.if_else(_is_said(one, pc.greater(other, one)), other, one)


def lowest(one: pa.Array, other: pa.Array) -> pa.Array:
    """The lesser of two upper bounds in each row; one that is unknown counts for nothing."""
    return pc.if_else(_is_said(one, pc.less(other, one)), other, one)


def _is_said(one: pa.Array, other_says_more: pa.BooleanArray) -> pa.BooleanArray:
    return pc.or_(pc.is_null(one), pc.fill_null(other_says_more, False))


def partition_ranges(
    table: "TableMetadata",
    schema: "Schema",
    files: DataFiles,
    type_of: "Callable[[PrimitiveType], pa.DataType | None]",
) -> dict[int, Range]:
    """What is known of columns by the partitions of the files, by column id; `type_of` is None for types unbounded."""
    found: dict[int, Range] = {}
    for spec_id in pc.unique(files.column("spec_id")).to_pylist():
        is_in_spec = files.in_spec(spec_id)
        for field, kind, spanned in _bounding(table, schema, spec_id, type_of):
            values = files.partition.get((spec_id, field.field_id))
            if values is None:
                continue
            nulls = pc.if_else(is_in_spec, pc.if_else(pc.is_valid(values), 0, files.column("rows")), None)
            known = Range(*_bounds(values, kind, spanned), nulls)
            earlier = found.get(field.source_id)
            found[field.source_id] = known if earlier is None else earlier.together(known)
    return found


def _bounding(
    table: "TableMetadata",
    schema: "Schema",
    spec_id: int,
    type_of: "Callable[[PrimitiveType], pa.DataType | None]",
) -> "Iterator[tuple[PartitionField, pa.DataType, Callable[[Any], Span]]]":
    from pyiceberg.types import PrimitiveType

    for field in table.specs()[spec_id].fields:
        # A column that was dropped is not in the schema; its partitions stay.
        if field.source_id not in schema.field_ids:
            continue
        source = schema.find_type(field.source_id)
        if not isinstance(source, PrimitiveType):
            continue
        kind = type_of(source)
        spanned = None if kind is None else _span_of(str(field.transform), str(source))
        if kind is not None and spanned is not None:
            yield field, kind, spanned


def _span_of(transform: str, source: str) -> Callable[[Any], Span] | None:
    """What one value of the transform stands for, in the numbers that its column is kept in."""
    is_date = source == "date"
    if transform == "identity" and source not in ("float", "double"):
        return lambda value: (value, value)
    if transform == "day" and is_date:
        return lambda value: (value, value)
    if transform in TIMES and (is_date or source in ("timestamp", "timestamptz")):
        return partial(_time, TIMES[transform], 1 if is_date else DAY_US)
    if transform.startswith("truncate["):
        width = int(transform.removeprefix("truncate[").removesuffix("]"))
        if source == "string":
            return partial(_prefix, width)
        if source in ("int", "long") or source.startswith("decimal"):
            return lambda value: (value, value + width - 1)
    return None


def _time(start: Callable[[int, int], int | None], per_day: int, value: int) -> Span:
    end = start(value + 1, per_day)
    # Before 0.10 Iceberg rounded times before 1970 towards it: their value is one too high.
    return start(value - 1 if value <= 0 else value, per_day), None if end is None else end - 1


def _month_start(months: int, per_day: int) -> int | None:
    year, month = 1970 + months // 12, months % 12 + 1
    if not datetime.MINYEAR <= year <= datetime.MAXYEAR:
        return None
    return (datetime.date(year, month, 1) - EPOCH).days * per_day


TIMES: Mapping[str, Callable[[int, int], int | None]] = {
    "year": lambda years, per_day: _month_start(years * 12, per_day),
    "month": _month_start,
    "day": lambda days, per_day: days * per_day,
    "hour": lambda hours, _per_day: hours * HOUR_US,
}


def _prefix(width: int, value: str) -> Span:
    return (value, value) if len(value) < width else (value, behind(value))


def behind(prefix: str) -> str | None:
    """The least text that is greater than all that begin with the prefix."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    # Surrogates are no characters.
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


def _bounds(values: pa.Array, kind: pa.DataType, spanned: Callable[[Any], Span]) -> tuple[pa.Array, pa.Array]:
    """The bounds in each file; each different value is looked at once."""
    different = values.dictionary_encode()
    spans = [spanned(value) for value in _plain(different.dictionary, kind)]
    low, high = (pc.take(typed([span[end] for span in spans], kind), different.indices) for end in (0, 1))
    return low, high


def _plain(values: pa.Array, kind: pa.DataType) -> list[Any]:
    """Values as numbers and texts: those of decimals are not scaled, dates and times are numbers already."""
    said = values.to_pylist()
    return (
        [int.from_bytes(value, "big", signed=True) for value in said] if pa.types.is_decimal(kind) else said
    )


def typed(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Numbers and texts, as partitions have them, in the type of their column; null for what it cannot hold."""
    if pa.types.is_decimal(kind):
        limit = 10**kind.precision
        packed = [
            None
            if value is None or abs(value) >= limit
            else value.to_bytes(DECIMAL_BYTES, "big", signed=True)
            for value in values
        ]
        return decoded(pa.array(packed, pa.binary()), kind, is_upper=True)
    if not pa.types.is_temporal(kind) and not pa.types.is_integer(kind):
        return pa.array(values, kind)
    limit = 1 << (kind.bit_width - 1)
    held = [None if value is None or not -limit <= value < limit else value for value in values]
    numbers = pa.array(held, pa.int64() if kind.bit_width == 64 else pa.int32())
    return cast("pa.Array", numbers.cast(kind))
