"""Metadata that pyiceberg cannot load for a type it does not know: that type is named, not the library's complaint."""

import json
from collections.abc import Iterator
from typing import Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.reason_codes import ReasonCode

FIXES = {"variant": ReasonCode.VARIANTS.fix}


def require_known_types(metadata_text: bytes) -> None:
    """Refuse metadata of which a schema has a type that cannot be parsed; what is no metadata at all passes.

    Raises:
        Unserveable: names the column and its type.
    """
    try:
        metadata = json.loads(metadata_text)
        table, unknown = metadata["location"], list(_in_schemas(metadata))
    except (ValueError, LookupError, TypeError, AttributeError):
        return
    if unknown:
        path, name = unknown[0]
        raise Unserveable(
            f"Column {path} of {table} has the type {name}, now or earlier, which this server cannot read.",
            FIXES.get(name, ReasonCode.UNSUPPORTED_TYPE.fix),
            ReasonCode.UNSUPPORTED_TYPE,
        )


def _in_schemas(metadata: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Of all schemas, the current one first: an earlier one cannot be parsed either."""
    current = metadata["current-schema-id"]
    for schema in sorted(metadata["schemas"], key=lambda one: one["schema-id"] != current):
        yield from _unknown("", schema)


def _unknown(path: str, kind: Any) -> Iterator[tuple[str, str]]:
    if isinstance(kind, str):
        if not _is_known(kind):
            yield path, kind
        return
    for field in kind.get("fields", ()):
        yield from _unknown(f"{path}.{field['name']}" if path else field["name"], field["type"])
    for part in ("element", "key", "value"):
        if part in kind:
            yield from _unknown(f"{path}.{part}", kind[part])


def _is_known(name: str) -> bool:
    from pydantic import TypeAdapter, ValidationError
    from pyiceberg.types import IcebergType

    try:
        TypeAdapter(IcebergType).validate_python(name)
    except (ValidationError, ValueError):
        return False
    return True
