"""A table's metadata file: the snapshot that is meant, and the columns that its readers get."""

import logging
from typing import TYPE_CHECKING

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.iceberg.metadata_json import MetadataError, parsed
from lakeshare_server.tables.locations import local_path

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot

_log = logging.getLogger(__name__)


def open_metadata(metadata_location: str, snapshot_id: int) -> "tuple[StaticTable, Snapshot]":
    """The table of a metadata file, and one of its snapshots.

    Raises:
        Unserveable: the file cannot be read, or has no such snapshot.
    """
    table = _opened(local_path(metadata_location), snapshot_id)
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise Unserveable(
            f"The Iceberg metadata {metadata_location} has no snapshot {snapshot_id}.",
            "It may have been expired; publish a newer one.",
        )
    return table, snapshot


def _opened(location: str, snapshot_id: int) -> "StaticTable":
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.exceptions import NotInstalledError
    from pyiceberg.io import load_file_io
    from pyiceberg.table import StaticTable

    try:
        with load_file_io({}, location).new_input(location).open(seekable=False) as stream:
            metadata = parsed(stream.read(), snapshot_id)
        return StaticTable(
            identifier=("static-table", location),
            metadata=metadata,
            metadata_location=location,
            io=load_file_io(metadata.properties, location),
            catalog=NoopCatalog("static-table"),
        )
    except (OSError, ValueError, NotInstalledError) as error:
        _log.warning("%s cannot be read: %s", location, error)
        said = f": {error}" if isinstance(error, MetadataError) else ""
        raise Unserveable(
            f"The Iceberg metadata {location} cannot be read{said}.",
            "Check that the file is there and whole.",
        ) from error


def schema_at(table: "StaticTable", snapshot: "Snapshot") -> "Schema":
    """The columns that readers of a snapshot get."""
    schemas = table.schemas()
    # Readers of the newest snapshot get today's columns, also those that changed since it was written.
    if snapshot.snapshot_id == table.metadata.current_snapshot_id:
        return table.schema()
    if snapshot.schema_id is not None and snapshot.schema_id in schemas:
        return schemas[snapshot.schema_id]
    return table.schema()
