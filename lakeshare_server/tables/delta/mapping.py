"""Column mapping: the names a table's log and files use for its columns (Delta's PROTOCOL.md, "Column Mapping")."""

import json
from collections.abc import Mapping
from typing import Any

PHYSICAL = "delta.columnMapping.physicalName"


def mapping_mode(configuration: Mapping[str, str | None]) -> str:
    """`none`, `name` or `id`."""
    return (configuration.get("delta.columnMapping.mode") or "none").lower()


def physical_name(member: Mapping[str, Any]) -> str:
    """The name of a schema's field in log and files."""
    name = (member.get("metadata") or {}).get(PHYSICAL)
    return str(member["name"] if name is None else name)


def physical_partition_columns(metadata: Mapping[str, Any]) -> list[str]:
    """The partition columns as `partitionValues` names them, in the table's order."""
    return list(partition_types(metadata))


def partition_types(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The types of the partition columns, by their names in `partitionValues`, in the table's order."""
    is_mapped = mapping_mode(metadata.get("configuration") or {}) != "none"
    members = {member["name"]: member for member in json.loads(metadata["schemaString"])["fields"]}
    columns = [(column, members[column]) for column in metadata.get("partitionColumns") or ()]
    return {
        physical_name(member) if is_mapped else str(column): str(member["type"]) for column, member in columns
    }
