"""A table's metadata file: the snapshot that is meant, and the columns that its readers get."""

import logging
from typing import TYPE_CHECKING

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.unknown_types import require_known_types
from lakeshare_server.tables.locations import local_path

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot

_log = logging.getLogger(__name__)


def open_metadata(metadata_location: str, snapshot_id: int) -> "tuple[StaticTable, Snapshot]":
    """The table of a metadata file, and one of its snapshots.

    Raises:
        Unserveable: the file cannot be read, has a type that nobody here knows, or has no such snapshot.
    """
    from pyiceberg.exceptions import NotInstalledError, ValidationError
    from pyiceberg.table import StaticTable

    try:
        table = StaticTable.from_metadata(local_path(metadata_location))
    except (OSError, ValueError, ValidationError, NotInstalledError) as error:
        _log.warning("%s cannot be read: %s", metadata_location, error)
        require_known_types(local_path(metadata_location))
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} cannot be read.",
            "Check that the file is there and whole.",
        ) from error
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} has no snapshot {snapshot_id}.",
            "It may have been expired; publish a newer one.",
        )
    return table, snapshot


def schema_at(table: "StaticTable", snapshot: "Snapshot") -> "Schema":
    """The columns that readers of a snapshot get."""
    schemas = table.schemas()
    # Readers of the newest snapshot get today's columns, also those that changed since it was written.
    if snapshot.snapshot_id == table.metadata.current_snapshot_id:
        return table.schema()
    if snapshot.schema_id is not None and snapshot.schema_id in schemas:
        return schemas[snapshot.schema_id]
    return table.schema()
