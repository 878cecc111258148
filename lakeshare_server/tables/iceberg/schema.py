"""Iceberg's types in Delta's words, for recipients that know only those."""

import json
from typing import TYPE_CHECKING, Any

from lakeshare_server.errors import Unserveable

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

SAME_MEANING = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
}
FIXES = {
    "timestamp": "Store it as timestamptz (TIMESTAMP in Spark); a time without zone needs the delta format.",
    "uuid": "Store it as string.",
    "time": "Store it as string or as long.",
}


def delta_schema_string(schema: "Schema", table: str) -> str:
    """The schema in Delta's JSON form.

    Raises:
        Unserveable: a column has a type, or a default for older files, that Delta's schema cannot say.
    """
    fields = [_field(field, table, field.name) for field in schema.fields]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)


def _field(field: "NestedField", table: str, path: str) -> dict[str, Any]:
    if field.initial_default is not None:
        raise Unserveable(
            f"Column {path} of {table} has a default for files that lack it, which the parquet response format "
            "cannot carry.",
            "Rewrite the data files, then drop the default.",
        )
    return {
        "name": field.name,
        "type": _type(field.field_type, table, path),
        "nullable": not field.required,
        "metadata": {"comment": field.doc} if field.doc else {},
    }


def _type(kind: "IcebergType", table: str, path: str) -> str | dict[str, Any]:
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    if isinstance(kind, StructType):
        inner = [_field(field, table, f"{path}.{field.name}") for field in kind.fields]
        return {"type": "struct", "fields": inner}
    if isinstance(kind, ListType):
        element = _type(kind.element_type, table, f"{path}.element")
        return {"type": "array", "elementType": element, "containsNull": not kind.element_required}
    if isinstance(kind, MapType):
        return {
            "type": "map",
            "keyType": _type(kind.key_type, table, f"{path}.key"),
            "valueType": _type(kind.value_type, table, f"{path}.value"),
            "valueContainsNull": not kind.value_required,
        }
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    name = str(kind)
    if name not in SAME_MEANING:
        raise Unserveable(
            f"Column {path} of {table} has the type {name}, which the parquet response format cannot carry.",
            FIXES.get(name, "Share a copy of the table without the column, or with another type."),
        )
    return SAME_MEANING[name]
