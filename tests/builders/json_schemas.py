"""A JSON schema as a flat list of fields, without titles, descriptions and the names of classes."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.builders.snapshots import as_json

Schema = Mapping[str, Any]
TEXTS = frozenset({"title", "description", "$defs", "properties", "items", "anyOf", "default", "required"})


def field_lines(schema: Schema) -> list[str]:
    """A line for each accepted field: its path, its type with bounds, and whether it is required."""
    return list(_fields(schema, schema.get("$defs", {}), "", ()))


def _fields(schema: Schema, definitions: Schema, path: str, within: tuple[str, ...]) -> Iterator[str]:
    for part in _alternatives(schema, definitions):
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name in within:
                yield f"{path}: as above"
            else:
                yield from _fields(definitions[name], definitions, path, (*within, name))
            continue
        required = set(part.get("required", ()))
        for name, field in part.get("properties", {}).items():
            at = f"{path}.{name}".lstrip(".")
            need = "required" if name in required else f"default {_compact(field.get('default'))}"
            yield f"{at}: {_type(field, definitions)}; {need}"
            yield from _fields(field, definitions, at, within)
        if isinstance(part.get("items"), dict):
            yield from _fields(part["items"], definitions, f"{path}[]", within)
        if isinstance(part.get("additionalProperties"), dict):
            yield from _fields(part["additionalProperties"], definitions, f"{path}.*", within)


def _alternatives(schema: Schema, definitions: Schema) -> list[Schema]:
    return list(schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or [schema])


def _type(schema: Schema, definitions: Schema) -> str:
    told = []
    for part in _alternatives(schema, definitions):
        if "$ref" in part:
            part = definitions[part["$ref"].rpartition("/")[2]]
        kind = str(part.get("type", "any"))
        if isinstance(part.get("items"), dict):
            kind = f"array of {_type(part['items'], definitions)}"
        bounds = {
            name: value
            for name, value in part.items()
            if name not in TEXTS and name not in ("type", "additionalProperties", "propertyNames")
        }
        if part.get("additionalProperties") is False:
            kind = "object of known fields"
        elif isinstance(part.get("additionalProperties"), dict):
            kind = f"object of {_type(part['additionalProperties'], definitions)}"
        told.append(f"{kind} {_compact(bounds)}" if bounds else kind)
    return " | ".join(told)


def _compact(value: Any) -> str:
    return " ".join(as_json(value).split())
