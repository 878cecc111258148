"""Delta tables that are Iceberg tables too: UniForm writes Iceberg metadata beside the log, some time after a commit.

Each metadata file says which version of the table it stands for. It counts where the recipient may read that version,
and where it has the version's very files: what it would show beside them was never published. The newest version has to
be there: an older one is not passed off as it.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

from lakeshare_server.access.view import TableView
from lakeshare_server.errors import BadRequest, StoreError, StoreMissing, Unavailable, Unserveable
from lakeshare_server.protocol.iceberg_trimming import trimmed
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.tables.iceberg.delete_targets import targets_of
from lakeshare_server.tables.iceberg.deletes import deletion_vectors
from lakeshare_server.tables.iceberg.manifests import live_files
from lakeshare_server.tables.iceberg.metadata import metadata_text, open_metadata
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.versions import PinnedSnapshot, Version

# Delta, IcebergConverter.
VERSION = "delta-version"
METADATA_FILE = re.compile(r"v?(\d+)[-.][^/]*metadata\.json(\.gz)?")
# Of one table so many metadata files are looked at, the newest first; versions before that are not there.
MOST_FILES = 32
KEPT = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Converted:
    """A Delta version in Iceberg's words."""

    version: int
    metadata_location: str
    snapshot_id: int


class UniformTables:
    """Finds the Iceberg metadata of Delta tables; for many threads."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        # What is in a file never changes; what is no conversion is None.
        self._read: OrderedDict[StoredObject, Converted | None] = OrderedDict()
        self._has_same_files: OrderedDict[tuple[str, Converted], bool] = OrderedDict()
        self._keeping = Lock()

    def is_one(self, view: TableView) -> bool:
        """Whether a table's newest version has UniForm on, whether it was converted or not.

        Raises:
            NotFound: nothing was published yet.
        """
        return view.versions.index(view.latest()).header.head.has_iceberg_metadata

    def snapshots(self, view: TableView) -> list[PinnedSnapshot]:
        """The readable versions that were converted, the newest last.

        Raises:
            NotFound: nothing was published yet.
            Unserveable: the newest version was not converted, or not as it is.
            Unavailable: its store does not answer.
        """
        try:
            return self._snapshots(view)
        # Nothing of what stores say goes out: it names places of the server.
        except StoreError as error:
            _log.error("the Iceberg metadata of %s cannot be read: %s", view.entry.lake_table, error)
            raise Unserveable(
                "The table's Iceberg metadata cannot be read.", "Provider: the server's log says why."
            ) from error
        except Unavailable as error:
            _log.warning("the Iceberg metadata of %s: %s", view.entry.lake_table, error)
            raise Unavailable("the table's store does not answer", "Try again in a moment.") from error

    def _snapshots(self, view: TableView) -> list[PinnedSnapshot]:
        newest, first = view.latest(), view.first_readable()
        found: dict[int, Converted] = {}
        for one in self._converted(view.versions.location(), first):
            # A version that was converted again counts as it was the last time.
            found.setdefault(one.version, one)
        if newest.number not in found:
            raise Unserveable(
                f"Version {newest.number} of the table has no Iceberg metadata, which UniForm writes after a commit.",
                "Load it again later, or read it by Delta Sharing.",
            )
        pins = []
        for number in sorted(number for number in found if first <= number <= newest.number):
            version, one = view.versions.at(number), found[number]
            if version is not None and self._is_as_published(view, version, one):
                pins.append(PinnedSnapshot(version, one.metadata_location, one.snapshot_id))
        if not pins or pins[-1].version.number != newest.number:
            raise Unserveable(
                f"The Iceberg metadata of version {newest.number} of the table does not have its files.",
                "Read it by Delta Sharing. Provider: the server's log says which file it is.",
            )
        return pins

    def _converted(self, location: str, first: int) -> Iterator[Converted]:
        """The conversions from a version on, the last one first."""
        for file in self._metadata_files(location):
            with self._keeping:
                known = file in self._read
                converted = self._read.get(file)
            if not known:
                try:
                    converted = self._keep(file, self._look(file.location))
                except StoreMissing:
                    # It was listed a moment ago; writers clean up behind themselves.
                    continue
            if converted is not None:
                yield converted
                if converted.version < first:
                    return

    def _metadata_files(self, location: str) -> list[StoredObject]:
        folder = f"{location.rstrip('/')}/metadata"
        start = len(self._stores.place(folder).location) + 1
        numbered = []
        for file in self._stores.list(folder):
            name = METADATA_FILE.fullmatch(file.location[start:])
            if name is not None:
                numbered.append((int(name[1]), file.modified_ms, file))
        newest_first = sorted(numbered, key=lambda one: one[:2], reverse=True)
        return [file for _, _, file in newest_first[:MOST_FILES]]

    def _look(self, location: str) -> Converted | None:
        try:
            metadata: Any = trimmed(metadata_text(self._stores, location), ())
            version = metadata["properties"][VERSION]
            return Converted(int(version), location, int(metadata["current-snapshot-id"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _log.info("%s is no Iceberg metadata of a Delta version: %r", location, error)
            return None

    def _keep(self, file: StoredObject, converted: Converted | None) -> Converted | None:
        with self._keeping:
            self._read[file] = converted
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
        return converted

    def _is_as_published(self, view: TableView, version: Version, converted: Converted) -> bool:
        """Whether a conversion has the files of its version, and the same rows of them; looked at once."""
        # Of the whole table, whatever this recipient may read of it.
        index = view.versions.index(version)
        key = (index.header.head.table_id, converted)
        with self._keeping:
            known = self._has_same_files.get(key)
        if known is not None:
            return known
        told = self._told_files(converted)
        if told is None:
            return False
        found = told == self._own_files(index)
        if not found:
            _log.error(
                "%s does not have the files of version %s", converted.metadata_location, version.number
            )
        with self._keeping:
            self._has_same_files[key] = found
            while len(self._has_same_files) > KEPT:
                self._has_same_files.popitem(last=False)
        return found

    def _told_files(self, converted: Converted) -> dict[str, int] | None:
        """How many rows of each file are deleted; None where the metadata cannot be used."""
        try:
            table, snapshot = open_metadata(self._stores, converted.metadata_location, converted.snapshot_id)
            live = live_files(self._stores, snapshot, table.location)
            paths, deleted = live.data.column("path").to_pylist(), {}
            if live.deletes:
                targets = targets_of(table, live.data)
                vectors = deletion_vectors(self._stores, targets, live.deletes, table.location)
                deleted = {number: vector.cardinality for number, vector in vectors.items()}
            return {self._place(path): deleted.get(number, 0) for number, path in enumerate(paths)}
        except (Unserveable, BadRequest) as error:
            _log.error("%s cannot be used: %s", converted.metadata_location, error)
            return None

    def _own_files(self, index: FileIndex) -> dict[str, int]:
        found: dict[str, int] = {}
        for batch in index.batches():
            paths = [self._place(path) for path in batch.column("path").to_pylist()]
            has_vectors = "dv_cardinality" in batch.schema.names
            deleted = batch.column("dv_cardinality").to_pylist() if has_vectors else [0] * len(paths)
            found.update(zip(paths, deleted, strict=True))
            index.give_back(batch)
        return found

    def _place(self, path: str) -> str:
        return self._stores.place(path).location
