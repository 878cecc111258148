"""Statistics of Iceberg data files as the columns of a snapshot: decoded by type, keyed by column instead of id.

What partitions say of a column is added where it says more: see transforms.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta_schema import arrow_type
from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.schema import SAME_MEANING
from lakeshare_server.tables.iceberg.single_values import decoded
from lakeshare_server.tables.iceberg.transforms import Range, highest, lowest

if TYPE_CHECKING:
    from pyiceberg.types import NestedField, PrimitiveType

# Of other types Delta's statistics have no bounds (Delta PROTOCOL, "Per-file Statistics"), and nothing prunes by them.
WITH_BOUNDS = {
    "boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "string", "decimal"
}  # fmt: skip


def minima(fields: Sequence["NestedField"], files: DataFiles, ranges: Mapping[int, Range]) -> pa.StructArray:
    """The lower bounds of all files, as a struct of the table's columns."""

    def column(field: "NestedField", kind: "PrimitiveType") -> pa.Array | None:
        found = _bound(files, files.lower, field, kind, is_upper=False)
        known = ranges.get(field.field_id)
        return found if found is None or known is None else highest(found, known.low)

    return _struct(fields, column, len(files))


def maxima(fields: Sequence["NestedField"], files: DataFiles, ranges: Mapping[int, Range]) -> pa.StructArray:
    """The upper bounds of all files, as a struct of the table's columns."""

    def column(field: "NestedField", kind: "PrimitiveType") -> pa.Array | None:
        found = _bound(files, files.upper, field, kind, is_upper=True)
        known = ranges.get(field.field_id)
        return found if found is None or known is None else lowest(found, known.high)

    return _struct(fields, column, len(files))


def told_maxima(known: pa.StructArray, fields: Sequence["NestedField"], files: DataFiles) -> pa.StructArray:
    """The upper bounds that recipients may go by: NaN, which bounds leave out, is for them greater than all numbers."""
    from pyiceberg.types import StructType

    by_name = {field.name: field for field in fields}
    arrays: list[pa.Array] = []
    for place, member in enumerate(known.type):
        field, values = by_name[member.name], pc.struct_field(known, [place])
        if isinstance(field.field_type, StructType):
            values = told_maxima(values, field.field_type.fields, files)
        elif pa.types.is_floating(member.type):
            counts = files.nan_counts.get(field.field_id, pa.nulls(len(files), pa.int64()))
            values = pc.if_else(pc.fill_null(pc.equal(counts, 0), False), values, None)
        arrays.append(values)
    if not arrays:
        return known
    return pa.StructArray.from_arrays(arrays, [member.name for member in known.type])


def null_counts(
    fields: Sequence["NestedField"], files: DataFiles, ranges: Mapping[int, Range]
) -> pa.StructArray:
    """How many nulls each file has, as a struct of the table's columns; null where nobody knows."""

    def column(field: "NestedField", _kind: "PrimitiveType") -> pa.Array:
        counts = files.null_counts.get(field.field_id, pa.nulls(len(files), pa.int64()))
        known = ranges.get(field.field_id)
        return counts if known is None else pc.coalesce(counts, known.nulls)

    return _struct(fields, column, len(files))


def column_type(kind: "PrimitiveType") -> pa.DataType:
    """The Arrow type in which values of a primitive column are kept."""
    name = str(kind)
    found = arrow_type(SAME_MEANING.get(name, name.replace(" ", "")))
    if found is None:
        raise AssertionError(f"{name} passed the schema's check but has no Arrow type")
    return found


def bounded_type(kind: "PrimitiveType") -> pa.DataType | None:
    """The Arrow type of a column's bounds; None where nothing goes by bounds of its type."""
    return column_type(kind) if str(kind).split("(")[0] in WITH_BOUNDS else None


def _struct(
    fields: Sequence["NestedField"],
    column: Callable[["NestedField", "PrimitiveType"], pa.Array | None],
    count: int,
) -> pa.StructArray:
    from pyiceberg.types import PrimitiveType, StructType

    arrays: dict[str, pa.Array] = {}
    for field in fields:
        kind = field.field_type
        if isinstance(kind, StructType):
            arrays[field.name] = _struct(kind.fields, column, count)
        elif isinstance(kind, PrimitiveType):
            values = column(field, kind)
            if values is not None:
                arrays[field.name] = values
    if not arrays:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays(list(arrays.values()), list(arrays))


def _bound(
    files: DataFiles,
    bounds: Mapping[int, pa.Array],
    field: "NestedField",
    kind: "PrimitiveType",
    *,
    is_upper: bool,
) -> pa.Array | None:
    as_kept = bounded_type(kind)
    if as_kept is None:
        return None
    if field.field_id not in bounds:
        return pa.nulls(len(files), as_kept)
    return decoded(bounds[field.field_id], as_kept, is_upper=is_upper)
