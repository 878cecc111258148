"""What a table is, as the portal shows it: told by the metadata call's own answer."""

import json
from typing import Any

from lakeshare_server.pages.in_place import PlaceSigners, asked_in_place, lines_of
from lakeshare_server.routes.context import AskedTable
from lakeshare_server.routes.tables import answer_metadata
from lakeshare_server.tables.index import FileIndex


def table_facts(by: AskedTable, signers: PlaceSigners) -> dict[str, Any]:
    """The newest version of a table and its columns, as JSON's types.

    Raises:
        LakeshareError: whatever the metadata call is refused with.
    """
    told = next(
        line["metaData"]
        for line in lines_of(answer_metadata(asked_in_place(by, signers)))
        if "metaData" in line
    )
    entry, metadata = by.view.entry, told["deltaMetadata"]
    latest = by.view.latest()
    index = by.view.index(latest)
    partitions = set(metadata.get("partitionColumns") or ())
    return {
        "share": entry.share.name,
        "schema": entry.schema,
        "name": entry.name,
        "comment": entry.comment or metadata.get("description"),
        "format": index.header.table_format,
        "version": latest.number,
        "publishedAt": latest.timestamp_ms,
        "history": entry.history,
        "restricted": by.view.is_restricted,
        "sizeBytes": told.get("size"),
        "files": told.get("numFiles"),
        "rows": known_rows(index),
        "columns": [
            _column(field, field["name"] in partitions)
            for field in json.loads(metadata["schemaString"])["fields"]
        ],
    }


def known_rows(index: FileIndex) -> int | None:
    """The rows of a version; None if a file does not tell how many it has."""
    is_counted = all(batch.column("rows").null_count == 0 for batch in index.batches())
    return index.header.rows if is_counted else None


def _column(field: dict[str, Any], is_partition: bool) -> dict[str, Any]:
    return {
        "name": field["name"],
        "type": type_text(field["type"]),
        "nullable": field["nullable"],
        "partition": is_partition,
        "comment": (field.get("metadata") or {}).get("comment"),
    }


def type_text(kind: Any) -> str:
    """A type of Delta's schemas as people write it in SQL."""
    if isinstance(kind, str):
        return kind
    match kind.get("type"):
        case "struct":
            fields = (f"{field['name']}: {type_text(field['type'])}" for field in kind["fields"])
            return f"struct<{', '.join(fields)}>"
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])}, {type_text(kind['valueType'])}>"
        case other:
            return str(other)
