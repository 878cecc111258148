"""Delta's JSON schema: its columns, their Arrow types, and what of it parquet-format recipients may see."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

PRIMITIVES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
# Metadata of columns that recipients of the parquet format need: comments, and what changes how Spark compares strings.
# The lengths of CHAR and VARCHAR decide about padding, collations about equality and order.
READER_METADATA = ("comment", "__CHAR_VARCHAR_TYPE_STRING", "__COLLATIONS")
DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


@dataclass(frozen=True)
class Field:
    """A column; `type` is a name of the protocol for primitives, else the JSON object of a nested type."""

    name: str
    type: str | Mapping[str, Any]
    nullable: bool
    metadata: Mapping[str, Any]


def parse_schema(schema_string: str) -> tuple[Field, ...]:
    """The columns of a struct type in Delta's JSON form."""
    return _struct_fields(json.loads(schema_string))


def struct_fields(field: Field) -> tuple[Field, ...] | None:
    """The columns inside a struct column; None for any other type."""
    if isinstance(field.type, str) or field.type["type"] != "struct":
        return None
    return _struct_fields(field.type)


def arrow_type(type_name: str) -> pa.DataType | None:
    """The Arrow type of a primitive; None for a type of which nothing is known."""
    decimal = DECIMAL.fullmatch(type_name)
    if decimal:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    return PRIMITIVES.get(type_name)


def parquet_format_schema(schema_string: str) -> str:
    """The schema as it goes over the wire, with the metadata that recipients need and no other."""
    return json.dumps(_for_readers(json.loads(schema_string)), separators=(",", ":"), ensure_ascii=False)


def primitive_types(schema_string: str) -> Iterator[tuple[str, str]]:
    """`(column path, type name)` of every primitive in the schema, inside arrays and maps too."""
    for field in parse_schema(schema_string):
        yield from _primitives(field.name, field.type)


def has_metadata(schema_string: str, key: str) -> bool:
    """Whether any column, at any depth, carries this metadata key."""
    return f'"{key}"' in schema_string and key in _metadata_keys(json.loads(schema_string))


def _struct_fields(struct: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple(
        Field(member["name"], member["type"], member.get("nullable", True), member.get("metadata") or {})
        for member in struct["fields"]
    )


def _primitives(path: str, kind: Any) -> Iterator[tuple[str, str]]:
    if isinstance(kind, str):
        yield path, kind
    elif kind["type"] == "struct":
        for member in kind["fields"]:
            yield from _primitives(f"{path}.{member['name']}", member["type"])
    elif kind["type"] == "array":
        yield from _primitives(f"{path}.element", kind["elementType"])
    else:
        yield from _primitives(f"{path}.key", kind["keyType"])
        yield from _primitives(f"{path}.value", kind["valueType"])


def _for_readers(node: Any) -> Any:
    if isinstance(node, list):
        return [_for_readers(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {key: _for_readers(value) for key, value in node.items() if key != "metadata"}
    if "metadata" in node:
        metadata = node["metadata"] or {}
        kept["metadata"] = {key: metadata[key] for key in READER_METADATA if key in metadata}
    return kept


def _metadata_keys(node: Any) -> set[str]:
    if isinstance(node, list):
        return {key for item in node for key in _metadata_keys(item)}
    if not isinstance(node, dict):
        return set()
    inner = {key for name, value in node.items() if name != "metadata" for key in _metadata_keys(value)}
    return inner | set(node.get("metadata") or {})
