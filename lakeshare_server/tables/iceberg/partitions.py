"""Partition columns of an Iceberg table that recipients are told of, and their values in each file.

A column that a data file lacks has the value of an identity partition field (Iceberg spec, "Column Projection"). Files
adopted from Hive lack their partition columns, so recipients get these values in the lines of the files; a value that
has no text there is refused.
"""

from functools import reduce
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.bounds import column_type
from lakeshare_server.tables.iceberg.data_files import DataFiles
from lakeshare_server.tables.iceberg.names import InFiles
from lakeshare_server.tables.iceberg.schema import delta_type
from lakeshare_server.tables.iceberg.single_values import decoded
from lakeshare_server.tables.json_text import partition_text
from lakeshare_server.tables.reason_codes import ReasonCode

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import PrimitiveType

# Read from the files wherever they have the column: not all clients know the text of a time with its zone.
FROM_FILES = {"timestamp", "timestamptz"}


def partition_columns(table: "TableMetadata", schema: "Schema", files: DataFiles) -> tuple[str, ...]:
    """Columns whose value each file has in its partition, in a text that all clients read: no file is looked at.

    Without any file they are those of the table's own spec, so that rules by partitions can be decided.
    """
    identities = [_identities(table, files, spec) for spec in _specs(files)]
    if not identities:
        identities = [_identity_fields(table, table.default_spec_id)]
    everywhere = set.intersection(*(set(identity) for identity in identities))
    return tuple(
        field.name
        for field in schema.fields
        if field.field_id in everywhere
        and str(field.field_type) not in FROM_FILES
        and _has_text(table, schema, files, field.field_id)
    )


def identity_columns(
    table: "TableMetadata", schema: "Schema", files: DataFiles
) -> dict[int, pa.BooleanArray]:
    """Columns by id, and which files are partitioned by their values."""
    found: dict[int, pa.BooleanArray] = {}
    for spec_id in _specs(files):
        for field_id in _identities(table, files, spec_id):
            # The column may have been dropped since.
            if field_id in schema.field_ids:
                known = found.get(field_id)
                found[field_id] = (
                    files.in_spec(spec_id) if known is None else pc.or_(known, files.in_spec(spec_id))
                )
    return found


def columns_in_lines(
    table: "TableMetadata",
    schema: "Schema",
    files: DataFiles,
    known: tuple[str, ...],
    in_files: InFiles,
    root: str,
) -> tuple[str, ...]:
    """The columns whose values are in the lines of files: the `known` ones, and others that some file lacks.

    Raises:
        Unserveable: a file lacks a column, and its value cannot be in the file's line.
    """
    ids = [schema.find_field(name).field_id for name in known]
    for field_id, lacking in in_files.files_lacking.items():
        values = _partition_values(table, files, field_id)
        # Recipients read null where a file lacks a column.
        if not pc.any(pc.and_(lacking, pc.is_valid(values)), min_count=0).as_py():
            continue
        problem = _problem(table, schema, files, field_id, in_files)
        if problem is not None:
            code = ReasonCode.PARTITION_VALUES_NOT_IN_FILES
            what = f"{root} has files without the partition column {schema.find_column_name(field_id)}"
            raise Unserveable(f"{what}: {problem}.", code.fix, code)
        if field_id not in ids:
            ids.append(field_id)
    # The kernel of the Python client (delta-kernel-rust-sharing-wrapper 0.3.3) fails on partition columns of a table
    # in mode id.
    return () if in_files.renamed else tuple(str(schema.find_column_name(field_id)) for field_id in ids)


def partition_values(
    table: "TableMetadata", schema: "Schema", files: DataFiles, columns: tuple[str, ...]
) -> pa.StructArray:
    """The values of these columns in each file."""
    if not columns:
        return pa.nulls(len(files), pa.struct([]))
    arrays = [_typed_values(table, schema, files, schema.find_field(column).field_id) for column in columns]
    return pa.StructArray.from_arrays(arrays, list(columns))


def _problem(
    table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int, in_files: InFiles
) -> str | None:
    """Why the values of a column cannot be in the lines of files."""
    if in_files.renamed:
        return "columns are read by field ids, with which not all clients read partition values"
    if field_id not in {field.field_id for field in schema.fields}:
        return "it is inside of another column, and partition values are of whole columns"
    if not _has_text(table, schema, files, field_id):
        return f"it has a value of the type {schema.find_type(field_id)} that clients do not read from a text"
    is_partitioned = identity_columns(table, schema, files)[field_id]
    # In a file that lacks it and is not partitioned by it, it is null.
    if not pc.all(pc.or_(is_partitioned, in_files.files_lacking[field_id]), min_count=0).as_py():
        return "other files have many values of it, and recipients read a column either from all files or from none"
    return None


def _specs(files: DataFiles) -> list[int]:
    specs: list[int] = pc.unique(files.column("spec_id")).to_pylist()
    return specs


def _identities(table: "TableMetadata", files: DataFiles, spec_id: int) -> dict[int, int]:
    """`{source column id: partition field id}` of a spec's identity fields that its manifests have values of."""
    return {
        source_id: field_id
        for source_id, field_id in _identity_fields(table, spec_id).items()
        if (spec_id, field_id) in files.partition
    }


def _identity_fields(table: "TableMetadata", spec_id: int) -> dict[int, int]:
    from pyiceberg.transforms import IdentityTransform

    return {
        field.source_id: field.field_id
        for field in table.specs()[spec_id].fields
        if isinstance(field.transform, IdentityTransform)
    }


def _has_text(table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int) -> bool:
    """Whether clients read each value of a column from its text: for them an empty one means null."""
    # The Python client refuses partitions of bytes, and kernels take the text for UTF-8.
    if delta_type(schema.find_type(field_id)) in (None, "binary"):
        return False
    values = _typed_values(table, schema, files, field_id)
    texts = partition_text(values)
    return bool(
        texts.null_count == values.null_count and not pc.any(pc.equal(texts, ""), min_count=0).as_py()
    )


def _typed_values(table: "TableMetadata", schema: "Schema", files: DataFiles, field_id: int) -> pa.Array:
    kind = column_type(cast("PrimitiveType", schema.find_type(field_id)))
    return _in_type(_partition_values(table, files, field_id), kind) if len(files) else pa.nulls(0, kind)


def _partition_values(table: "TableMetadata", files: DataFiles, field_id: int) -> pa.Array:
    """A column's values as manifests have them, null for files that are not partitioned by them."""
    by_spec = [
        files.partition[spec, identities[field_id]]
        for spec in _specs(files)
        if field_id in (identities := _identities(table, files, spec))
    ]
    return reduce(pc.coalesce, by_spec)


def _in_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return decoded(values, kind, is_upper=True)
    # Dates are kept as 32 bits of days, and Arrow makes dates of these only.
    return values.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else values.cast(kind)
