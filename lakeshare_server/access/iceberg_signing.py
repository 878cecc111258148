"""Which requests of Iceberg clients are signed: reads of files of the publications that the recipient may read."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from threading import Lock
from typing import Any

from lakeshare_server.access.iceberg import LoadedTable
from lakeshare_server.access.iceberg_files import data_files, readable_files
from lakeshare_server.access.iceberg_scans import IcebergScans
from lakeshare_server.access.view import TableView
from lakeshare_server.errors import Denied
from lakeshare_server.stores import Stores
from lakeshare_server.versions import PinnedSnapshot

KEPT = 64  # snapshots, each with the locations of its files


class SignableFiles:
    """The files of snapshots, looked up once; for many threads."""

    def __init__(self, stores: Stores, scans: IcebergScans) -> None:
        self._stores, self._scans = stores, scans
        self._known: OrderedDict[Hashable, frozenset[str]] = OrderedDict()
        self._turn = Lock()

    def require(self, view: TableView, table: LoadedTable, location: str) -> None:
        """Refuse to sign for a file that is not one of the table's published ones.

        Raises:
            Denied: it is none, or not one that this recipient may read.
            StoreError, Unavailable: what tells cannot be read, or not now.
        """
        by_id = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
        # What is read nearly always is of the newest publication.
        for pin in reversed(table.pins):
            snapshot = by_id.get(pin.snapshot_id)
            if snapshot is None:
                continue
            key = view.entry.lake_table, pin, view.restriction
            files = self._known.get(key)
            if files is None:
                files = self._keep(key, self._files(view, table, pin, snapshot))
            if location in files:
                return
        raise Denied(f"{location} is not a file of a publication of {view.entry.path} that you may read.")

    def _files(
        self, view: TableView, table: LoadedTable, pin: PinnedSnapshot, snapshot: Mapping[str, Any]
    ) -> frozenset[str]:
        if view.is_restricted:
            # No manifests: they tell of all files.
            paths = self._scans.readable(view, table, pin)
            return frozenset(self._stores.place(path).location for path in paths)
        return data_files(view, pin, self._stores) | readable_files(snapshot, self._stores)

    def _keep(self, key: Hashable, files: frozenset[str]) -> frozenset[str]:
        with self._turn:
            self._known[key] = files
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return files
