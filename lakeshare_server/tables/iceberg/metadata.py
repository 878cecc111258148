"""A table's metadata file: the snapshot that is meant, and the columns that its readers get."""

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import LASTING, Stores
from lakeshare_server.tables.iceberg.metadata_json import LONGEST_BYTES, MetadataError, parsed, unpacked

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

# The id that metadata of old writers has where a table has no snapshot (Iceberg spec, "Table Metadata"). Here it stands
# for the state of a table that has none: its columns, and no rows.
NO_SNAPSHOT = -1

_log = logging.getLogger(__name__)


def metadata_text(stores: Stores, location: str) -> bytes:
    """The JSON of a metadata file, which may be compressed, whatever its name says (Iceberg spec, Appendix F).

    Raises:
        MetadataError: it is compressed and not whole, or too long.
        StoreError, Unavailable, BadRequest: as `Stores.read` says.
    """
    return unpacked(stores.read(location), LONGEST_BYTES)


def open_metadata(
    stores: Stores, metadata_location: str, snapshot_id: int
) -> "tuple[TableMetadata, Snapshot]":
    """What a metadata file says of its table, and one of its snapshots.

    Of a table without one, `NO_SNAPSHOT` gives a snapshot without files.

    Raises:
        Unserveable: the file cannot be read, or has no such snapshot.
        Unavailable: its store does not answer.
    """
    table = _opened(stores, metadata_location, snapshot_id)
    if snapshot_id == NO_SNAPSHOT and table.current_snapshot_id is None:
        return table, _without_files(table)
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} has no snapshot {snapshot_id}.",
            "It may have been expired; publish a newer one.",
        )
    return table, snapshot


def schema_at(table: "TableMetadata", snapshot: "Snapshot") -> "Schema":
    """The columns that readers of a snapshot get."""
    schemas = {schema.schema_id: schema for schema in table.schemas}
    is_newest = snapshot.snapshot_id == table.current_snapshot_id
    return schemas[
        readers_schema_id(
            is_newest=is_newest,
            written_with=snapshot.schema_id,
            today=table.current_schema_id,
            known=schemas.keys(),
        )
    ]


def readers_schema_id(
    *, is_newest: bool, written_with: int | None, today: int, known: Collection[int]
) -> int:
    """The id of the schema that readers of a snapshot get.

    Readers of a table's newest snapshot get today's columns, also those that changed since it was written.
    """
    if is_newest or written_with is None or written_with not in known:
        return today
    return written_with


def _without_files(table: "TableMetadata") -> "Snapshot":
    from lakeshare_server.tables.iceberg.oldest_snapshots import OldestSnapshot

    return OldestSnapshot.model_validate(
        {
            "snapshot-id": NO_SNAPSHOT,
            "timestamp-ms": table.last_updated_ms,
            "schema-id": table.current_schema_id,
            "manifests": [],
        }
    )


def _opened(stores: Stores, location: str, snapshot_id: int) -> "TableMetadata":
    try:
        return parsed(stores.read(location), snapshot_id)
    except (*LASTING, MetadataError) as error:
        _log.warning("%s cannot be read: %s", location, error)
        said = f": {error}" if isinstance(error, MetadataError) else ""
        raise Unserveable(
            f"The Iceberg metadata {location} cannot be read{said}.",
            "Check that the file is there and whole.",
        ) from error
