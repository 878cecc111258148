"""The files behind Iceberg snapshots: manifest lists, manifests, and what they name."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakeshare_server.access.directory import Folder
from lakeshare_server.access.view import TableView
from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.iceberg.manifests import Manifest, delete_files, listed_manifests, live_files
from lakeshare_server.tables.iceberg.metadata import open_metadata
from lakeshare_server.tables.locations import elsewhere, local_path, roots_of
from lakeshare_server.tables.serveability import is_read_by_iceberg_clients
from lakeshare_server.versions import PinnedSnapshot

_log = logging.getLogger(__name__)


def manifests_of(snapshot: Mapping[str, Any], stores: Stores) -> Sequence[Manifest]:
    """The manifests of a snapshot, as its entry in the table's metadata says it.

    Raises:
        Unserveable: it has no manifest list, as the oldest tables of format version 1.
        StoreError, Unavailable: the list cannot be read, or not now.
        ValueError: it is not whole.
    """
    location = snapshot.get("manifest-list")
    if location is None:
        raise Unserveable(
            "A snapshot of the table has no manifest list.",
            "Provider: write to the table and publish it again.",
        )
    return listed_manifests(stores.read(location))


def readable_files(snapshot: Mapping[str, Any], stores: Stores) -> frozenset[str]:
    """Locations of the files of a snapshot beside its data: manifest list, manifests, and files of deletes.

    Raises:
        Unserveable: it has no manifest list, or a manifest is not whole.
        StoreError, Unavailable: one cannot be read, or not now.
    """
    try:
        manifests = manifests_of(snapshot, stores)
        found = {snapshot["manifest-list"], *(manifest.path for manifest in manifests)}
        for manifest in manifests:
            if manifest.has_deletes:
                found |= {delete.path for delete in delete_files(manifest, stores.read(manifest.path))}
    except (ValueError, OverflowError) as error:
        _log.error("the manifests of %s cannot be read: %s", snapshot["manifest-list"], error)
        raise Unserveable(
            "A manifest of the table cannot be read.", "Provider: the server's log says which one it is."
        ) from error
    return frozenset(stores.place(location).location for location in found)


@dataclass(frozen=True)
class ListedFolder:
    """The folder of a table as the manifests of one of its snapshots tell it."""

    location: str
    roots: tuple[str, ...]
    elsewhere: int


def folder_of(view: TableView, stores: Stores) -> Folder:
    """The folder of a table's newest version; a version that only Iceberg clients can read has no index.

    Raises:
        NotFound: nothing was published yet.
        Unserveable: no API can serve it.
        StoreError, Unavailable: its metadata cannot be read, or not now.
    """
    latest = view.latest()
    try:
        return view.versions.index(latest).header
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
    [pin] = view.versions.snapshots(latest.number, latest.number)
    location, paths = _listed(pin, stores)
    others = elsewhere(location, pa.table({"path": pa.array(paths, pa.string())}))
    return ListedFolder(location, tuple(sorted(roots_of(location, others))), len(others))


def data_files(view: TableView, pin: PinnedSnapshot, stores: Stores) -> frozenset[str]:
    """Locations of the data files of a publication, by its index; without one, by its manifests.

    Raises:
        Unserveable: no API can serve it.
        StoreError, Unavailable: its metadata cannot be read, or not now.
    """
    found: set[str] = set()
    try:
        index = view.index(pin.version)
    except Unserveable as error:
        if not is_read_by_iceberg_clients(error):
            raise
        found.update(_listed(pin, stores)[1])
    else:
        for batch in index.batches():
            found.update(batch.column("path").to_pylist())
            index.give_back(batch)
    return frozenset(stores.place(path).location for path in found)


def _listed(pin: PinnedSnapshot, stores: Stores) -> tuple[str, list[str]]:
    """The location of a table, and the data files that the manifests of a snapshot name."""
    try:
        table, snapshot = open_metadata(stores, pin.metadata_location, pin.snapshot_id)
        location = local_path(table.location)
        live = live_files(stores, snapshot, location)
    except Unserveable as error:
        _log.error("the files of %s cannot be listed: %s", pin.metadata_location, error)
        raise Unserveable(
            "The manifests of the table cannot be read.", "Provider: the server's log names the file."
        ) from error
    return location, [local_path(path) for path in live.data.column("path").to_pylist()]
