"""The files behind Iceberg snapshots: manifest lists, manifests, and what they name."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import Stores
from lakeshare_server.tables.iceberg.manifests import Manifest, delete_files, listed_manifests

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
