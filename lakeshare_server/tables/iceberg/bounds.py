"""Statistics of Iceberg data files as the columns of a snapshot: bounds decoded, keyed by column instead of id."""

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.delta_schema import arrow_type
from lakeshare_server.tables.iceberg.schema import SAME_MEANING

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.types import NestedField, PrimitiveType


def bounds(fields: Sequence["NestedField"], files: Sequence["DataFile"], which: str) -> pa.StructArray:
    """`lower_bounds` or `upper_bounds` of all files, as a struct of the table's columns."""
    values = [getattr(file, which) or {} for file in files]
    return _struct(fields, lambda field, kind: _bound_column(field.field_id, kind, values), len(files))


def told_maxima(
    maxima: pa.StructArray, fields: Sequence["NestedField"], files: Sequence["DataFile"]
) -> pa.StructArray:
    """The upper bounds that recipients may go by: NaN, which bounds leave out, is for them greater than all numbers."""
    from pyiceberg.types import StructType

    by_name = {field.name: field for field in fields}
    arrays: list[pa.Array] = []
    for place, member in enumerate(maxima.type):
        field, values = by_name[member.name], pc.struct_field(maxima, [place])
        if isinstance(field.field_type, StructType):
            values = told_maxima(values, field.field_type.fields, files)
        elif pa.types.is_floating(member.type):
            counts = [(file.nan_value_counts or {}).get(field.field_id) for file in files]
            values = pc.if_else(pa.array([count == 0 for count in counts], pa.bool_()), values, None)
        arrays.append(values)
    if not arrays:
        return maxima
    return pa.StructArray.from_arrays(arrays, [member.name for member in maxima.type])


def null_counts(fields: Sequence["NestedField"], files: Sequence["DataFile"]) -> pa.StructArray:
    """How many nulls each file has, as a struct of the table's columns; null where nobody counted."""
    counts = [file.null_value_counts or {} for file in files]

    def column(field: "NestedField", _kind: "PrimitiveType") -> pa.Array:
        return pa.array([count.get(field.field_id) for count in counts], pa.int64())

    return _struct(fields, column, len(files))


def column_type(kind: "PrimitiveType") -> pa.DataType:
    """The Arrow type in which values of a primitive column are kept."""
    name = str(kind)
    found = arrow_type(SAME_MEANING.get(name, name.replace(" ", "")))
    if found is None:
        raise AssertionError(f"{name} passed the schema's check but has no Arrow type")
    return found


def _struct(
    fields: Sequence["NestedField"],
    column: Callable[["NestedField", "PrimitiveType"], pa.Array],
    count: int,
) -> pa.StructArray:
    from pyiceberg.types import PrimitiveType, StructType

    arrays: list[pa.Array] = []
    names: list[str] = []
    for field in fields:
        kind = field.field_type
        if isinstance(kind, PrimitiveType):
            arrays.append(column(field, kind))
            names.append(field.name)
        elif isinstance(kind, StructType):
            arrays.append(_struct(kind.fields, column, count))
            names.append(field.name)
    if not arrays:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays(arrays, names)


def _bound_column(field_id: int, kind: "PrimitiveType", values: Sequence[Mapping[int, bytes]]) -> pa.Array:
    decode = _decoder(kind)
    decoded = [
        None if bound is None else decode(bound) for bound in (value.get(field_id) for value in values)
    ]
    return pa.array(decoded, column_type(kind))


def _decoder(kind: "PrimitiveType") -> Callable[[bytes], Any]:
    from pyiceberg.types import DecimalType

    if isinstance(kind, DecimalType):
        scale = kind.scale
        return lambda bound: Decimal(int.from_bytes(bound, "big", signed=True)).scaleb(-scale)
    decoders: dict[str, Callable[[bytes], Any]] = {
        "boolean": lambda bound: bound != b"\x00",
        "float": _floating,
        "double": _floating,
        "string": _text,
        "binary": bytes,
    }
    return decoders.get(str(kind), _little_endian)


def _little_endian(bound: bytes) -> int:
    # A column promoted from int to long keeps four-byte bounds in older manifests.
    return int.from_bytes(bound, "little", signed=True)


def _floating(bound: bytes) -> float:
    value: float = struct.unpack("<f" if len(bound) == 4 else "<d", bound)[0]
    return value


def _text(bound: bytes) -> str | None:
    try:
        return bound.decode()
    except UnicodeDecodeError:
        # Some writers cut bounds inside a character; no bound is always true.
        return None
