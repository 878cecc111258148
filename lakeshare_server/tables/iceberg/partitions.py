"""Partition columns of an Iceberg table that recipients may be told of, and their values in each file."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from lakeshare_server.tables.iceberg.bounds import column_type

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable
    from pyiceberg.types import PrimitiveType


def partition_columns(table: "StaticTable", schema: "Schema", files: "Sequence[DataFile]") -> tuple[str, ...]:
    """Columns whose value every file states: partitioned by identity in each spec that has live files."""
    positions = [_identity_positions(table, spec) for spec in {file.spec_id for file in files}]
    if not positions:
        return ()
    everywhere = set.intersection(*(set(position) for position in positions))
    names = {field.field_id: field.name for field in schema.fields}
    return tuple(
        names[field_id]
        for field_id in names
        if field_id in everywhere and _is_sayable(table, schema, files, field_id)
    )


def partition_values(
    table: "StaticTable", schema: "Schema", files: "Sequence[DataFile]", columns: tuple[str, ...]
) -> pa.StructArray:
    """The values of these columns in each file."""
    if not columns:
        return pa.nulls(len(files), pa.struct([]))
    arrays = []
    for column in columns:
        field = schema.find_field(column)
        values = _partition_values(table, files, field.field_id)
        arrays.append(pa.array(values, column_type(cast("PrimitiveType", field.field_type))))
    return pa.StructArray.from_arrays(arrays, list(columns))


def _identity_positions(table: "StaticTable", spec_id: int) -> dict[int, int]:
    """`{source column id: place in the partition record}` of a spec's identity fields."""
    from pyiceberg.transforms import IdentityTransform

    fields = table.specs()[spec_id].fields
    return {
        field.source_id: place
        for place, field in enumerate(fields)
        if isinstance(field.transform, IdentityTransform)
    }


def _is_sayable(table: "StaticTable", schema: "Schema", files: "Sequence[DataFile]", field_id: int) -> bool:
    kind = str(schema.find_type(field_id))
    # Texts of times have no zone on the wire, so every client would take its own.
    if kind in ("binary", "timestamptz"):
        return False
    # On the wire an empty partition value means null: such a column is left to be read from the files.
    return kind != "string" or "" not in _partition_values(table, files, field_id)


def _partition_values(table: "StaticTable", files: "Sequence[DataFile]", field_id: int) -> list[object]:
    places = {spec: _identity_positions(table, spec)[field_id] for spec in {file.spec_id for file in files}}
    return [file.partition[places[file.spec_id]] for file in files]
