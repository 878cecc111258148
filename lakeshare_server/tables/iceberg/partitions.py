"""Partition columns of an Iceberg table that recipients may be told of, and their values in each file."""

from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.iceberg.bounds import column_type
from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.single_values import decoded

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import PrimitiveType

# Texts of times have no zone on the wire, so every client would take its own; the others have no text there at all.
UNSAYABLE = {"binary", "timestamp", "timestamptz", "time", "uuid"}


def partition_columns(table: "TableMetadata", schema: "Schema", files: DataFiles) -> tuple[str, ...]:
    """Columns whose value every file states: partitioned by identity in each spec that has live files."""
    identities = [_identities(table, files, spec) for spec in _specs(files)]
    if not identities:
        return ()
    everywhere = set.intersection(*(set(identity) for identity in identities))
    return tuple(
        field.name
        for field in schema.fields
        if field.field_id in everywhere and _is_sayable(table, schema, files, field.field_id)
    )


def partition_values(
    table: "TableMetadata", schema: "Schema", files: DataFiles, columns: tuple[str, ...]
) -> pa.StructArray:
    """The values of these columns in each file."""
    if not columns:
        return pa.nulls(len(files), pa.struct([]))
    arrays = []
    for column in columns:
        field = schema.find_field(column)
        kind = column_type(cast("PrimitiveType", field.field_type))
        arrays.append(_in_type(_partition_values(table, files, field.field_id), kind))
    return pa.StructArray.from_arrays(arrays, list(columns))


def _specs(files: DataFiles) -> list[int]:
    specs: list[int] = pc.unique(files.column("spec_id")).to_pylist()
    return specs


def _identities(table: "TableMetadata", files: DataFiles, spec_id: int) -> dict[int, int]:
    """`{source column id: partition field id}` of a spec's identity fields that its manifests have values of."""
    from pyiceberg.transforms import IdentityTransform

    return {
        field.source_id: field.field_id
        for field in table.specs()[spec_id].fields
        if isinstance(field.transform, IdentityTransform) and (spec_id, field.field_id) in files.partition
    }


def _is_sayable(table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int) -> bool:
    kind = str(schema.find_type(field_id))
    if kind in UNSAYABLE or kind.startswith("fixed"):
        return False
    # On the wire an empty partition value means null: such a column is left to be read from the files.
    if kind != "string":
        return True
    return not pc.any(pc.equal(_partition_values(table, files, field_id), ""), min_count=0).as_py()


def _partition_values(table: "TableMetadata", files: DataFiles, field_id: int) -> pa.Array:
    """A column's values as manifests have them: each file's own spec says which of its partition fields it is."""
    by_spec = [files.partition[spec, _identities(table, files, spec)[field_id]] for spec in _specs(files)]
    return pc.coalesce(*by_spec)


def _in_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return decoded(values, kind, is_upper=True)
    # Dates are kept as 32 bits of days, and Arrow makes dates of these only.
    return values.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else values.cast(kind)
