"""Iceberg's types in Delta's words, for recipients that know only those."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.names import NAMES_OF_TODAY, InFiles
from lakeshare_server.tables.reason_codes import ReasonCode

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
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "binary": "binary",
    "variant": "variant",
}
# Primitive types of Iceberg's specification, without their parameters, and those that format version 3 adds.
TYPES = frozenset({*SAME_MEANING, "decimal", "time", "uuid", "fixed"})
TYPES_OF_V3 = frozenset({"timestamp_ns", "timestamptz_ns", "unknown", "geometry", "geography"})
FIXES = {
    "uuid": "Store it as string.",
    "time": "Store it as string or as long.",
    "fixed": "Store it as binary.",
    "timestamp_ns": "Store it as timestamp, in microseconds.",
    "timestamptz_ns": "Store it as timestamptz, in microseconds.",
    "unknown": "Give it a type, or drop it.",
}


def delta_schema_string(schema: "Schema", table: str, in_files: InFiles = NAMES_OF_TODAY) -> str:
    """The schema in Delta's JSON form; with column mapping and type changes where the live files need them.

    Raises:
        Unserveable: a column has a type or a name that Delta's schema cannot say.
    """
    fields = _Words(table, in_files).fields(schema.fields, "")
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)


def require_known_types(schema: "Schema", format_version: int, table: str) -> None:
    """Refuse a column whose type Iceberg's specification does not define: no client knows how to read it.

    Raises:
        Unserveable: names the column and its type.
    """
    known = TYPES | TYPES_OF_V3 if format_version >= 3 else TYPES
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        if kind.is_primitive and re.split(r"[\[(]", str(kind))[0].strip() not in known:
            raise Unserveable(
                f"Column {schema.find_column_name(field_id)} of {table} has the type {kind}, which Iceberg's "
                f"specification does not define for format version {format_version}.",
                ReasonCode.UNKNOWN_TYPE.fix,
                ReasonCode.UNKNOWN_TYPE,
            )


def physical_name(field_id: int) -> str:
    """The name of a mapped column in statistics and partition values.

    It must be in no file: the kernel of the Python client takes a column of that name for one whose id it does not
    find. Iceberg's writers make no such name, a hyphen becomes `_x2D` in their files.
    """
    return f"col-{field_id}"


@dataclass(frozen=True)
class _Words:
    """One table's columns being put into words."""

    table: str
    in_files: InFiles

    def fields(self, fields: "tuple[NestedField, ...]", above: str) -> list[dict[str, Any]]:
        self._require_different(fields, above)
        return [self._field(field, above + field.name) for field in fields]

    def _require_different(self, fields: "tuple[NestedField, ...]", above: str) -> None:
        seen: dict[str, str] = {}
        for field in fields:
            other = seen.setdefault(field.name.lower(), field.name)
            if other != field.name:
                raise Unserveable(
                    f"{self.table} has columns {above}{other} and {above}{field.name}, whose names differ only by "
                    "case.",
                    ReasonCode.NAMES_DIFFER_BY_CASE.fix,
                    ReasonCode.NAMES_DIFFER_BY_CASE,
                )

    def _field(self, field: "NestedField", path: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {"comment": field.doc} if field.doc else {}
        if self.in_files.renamed:
            metadata["delta.columnMapping.id"] = field.field_id
            metadata["delta.columnMapping.physicalName"] = physical_name(field.field_id)
        changes = list(_type_changes(field.field_type, field.field_id, "", self.in_files.widened))
        if changes:
            metadata["delta.typeChanges"] = changes
        return {
            "name": field.name,
            "type": self._type(field.field_type, path),
            "nullable": not field.required,
            "metadata": metadata,
        }

    def _type(self, kind: "IcebergType", path: str) -> str | dict[str, Any]:
        from pyiceberg.types import ListType, MapType, StructType

        if isinstance(kind, StructType):
            return {"type": "struct", "fields": self.fields(kind.fields, f"{path}.")}
        if isinstance(kind, ListType):
            element = self._type(kind.element_type, f"{path}.element")
            return {"type": "array", "elementType": element, "containsNull": not kind.element_required}
        if isinstance(kind, MapType):
            return {
                "type": "map",
                "keyType": self._type(kind.key_type, f"{path}.key"),
                "valueType": self._type(kind.value_type, f"{path}.value"),
                "valueContainsNull": not kind.value_required,
            }
        said = delta_type(kind)
        if said is None:
            name = str(kind)
            raise Unserveable(
                f"Column {path} of {self.table} has the type {name}, which recipients cannot be told of.",
                FIXES.get(name.partition("[")[0], ReasonCode.UNSUPPORTED_TYPE.fix),
                ReasonCode.UNSUPPORTED_TYPE,
            )
        return said


def delta_type(kind: "IcebergType") -> str | None:
    """The protocol's name of a primitive type; None for a type it does not have."""
    from pyiceberg.types import DecimalType

    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return SAME_MEANING.get(str(kind))


def _type_changes(
    kind: "IcebergType", field_id: int, path: str, widened: Mapping[int, tuple[str, ...]]
) -> Iterator[dict[str, str]]:
    """What the field around a type says of it (PROTOCOL.md, "Type Change Metadata"); structs' fields say theirs."""
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, ListType):
        yield from _type_changes(kind.element_type, kind.element_id, _below(path, "element"), widened)
    elif isinstance(kind, MapType):
        yield from _type_changes(kind.key_type, kind.key_id, _below(path, "key"), widened)
        yield from _type_changes(kind.value_type, kind.value_id, _below(path, "value"), widened)
    elif not isinstance(kind, StructType):
        steps = [*widened.get(field_id, ()), delta_type(kind) or ""]
        for older, newer in pairwise(steps):
            yield {"fromType": older, "toType": newer, **({"fieldPath": path} if path else {})}


def _below(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
