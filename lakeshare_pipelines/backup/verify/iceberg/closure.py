"""The closure of snapshots: manifest lists, manifests, data files, files of deletes (Iceberg spec, "Manifests").

Manifests are shared by snapshots and by metadata files, so each is read once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from lakeshare_pipelines.backup.verify.iceberg.metadata import Snapshot
from lakeshare_pipelines.backup.verify.table_copy import Need, TableCopy
from lakeshare_pipelines.errors import ObjectMissing
from lakeshare_server.errors import BadRequest
from lakeshare_server.stores.locations import normalised
from lakeshare_server.tables.iceberg.avro import read_container
from lakeshare_server.tables.iceberg.entries import Entries
from lakeshare_server.tables.iceberg.manifests import Manifest, listed_manifests

DELETED = 2


@dataclass
class Closure:
    """What one snapshot, or one manifest, is made of; `needs` is what of it is not whole."""

    needs: list[Need] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    rows: int | None = 0
    """Of its data files; None where rows are deleted from them by other files."""

    def add(self, other: "Closure") -> None:
        """Take over what another is made of."""
        self.needs += other.needs
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.rows = None if self.rows is None or other.rows is None else self.rows + other.rows


class Stored(NamedTuple):
    """Where a copy is, and how large."""

    key: str
    version_id: str | None
    size_bytes: int


class CopiedFiles:
    """The objects of a table by their original location, and the closures that they make."""

    def __init__(self, copy: TableCopy) -> None:
        self._copy = copy
        self._stored: dict[str, Stored] = {}
        self._asked: set[str] = set()
        self._manifests: dict[str, Closure] = {}
        self._take(copy.whole)

    def stored_key(self, location: str) -> str | None:
        """Where the copy of an original is; None when it is not whole."""
        found = self._of(location)
        return None if found is None else found.key

    def size_bytes(self, location: str) -> int | None:
        """The size of what is whole; None when it is not."""
        found = self._of(location)
        return None if found is None else found.size_bytes

    def read(self, location: str) -> bytes:
        """The copy of an original.

        Raises:
            ObjectMissing: there is none.
        """
        found = self._of(location)
        if found is None:
            raise ObjectMissing(location)
        return self._copy.store.read(found.key, found.version_id)

    def closure(self, snapshot: Snapshot) -> Closure:
        """What a snapshot is made of."""
        found = Closure()
        manifests = self._listed(snapshot, found)
        for manifest in manifests:
            if manifest.path not in self._manifests:
                self._manifests[manifest.path] = self._manifest(manifest)
            found.add(self._manifests[manifest.path])
        return found

    def _listed(self, snapshot: Snapshot, into: Closure) -> list[Manifest]:
        if snapshot.manifest_list is None:
            return [Manifest(path=path) for path in snapshot.manifests]
        content = self._content(snapshot.manifest_list, None, into)
        if content is None:
            return []
        try:
            return listed_manifests(content)
        except ValueError:
            into.needs.append(Need(spelt(snapshot.manifest_list)))
            return []

    def _manifest(self, manifest: Manifest) -> Closure:
        found = Closure(rows=None if manifest.has_deletes else 0)
        content = self._content(manifest.path, manifest.size_bytes or None, found)
        if content is None:
            return found
        try:
            entries = Entries()
            entries.read(read_container(content), manifest.spec_id or 0)
        except ValueError:
            found.needs.append(Need(spelt(manifest.path), manifest.size_bytes or None))
            return found
        columns = (entries.columns[name] for name in ("status", "path", "size", "rows"))
        live = [row[1:] for row in zip(*columns, strict=True) if row[0] != DELETED]
        self._learn([spelt(path.decode()) for path, _, _ in live])
        for path, size_bytes, rows in live:
            self._file(path.decode(), size_bytes, rows, found)
        return found

    def _file(self, location: str, size_bytes: int, rows: int | None, into: Closure) -> None:
        location = spelt(location)
        # Of a deletion vector's file the manifest's size may be that of one vector only.
        there = self.size_bytes(location)
        if there is None or (there != size_bytes and not location.endswith(".puffin")):
            into.needs.append(Need(location, size_bytes))
        into.files += 1
        into.size_bytes += size_bytes
        if into.rows is not None:
            into.rows = None if rows is None else into.rows + rows

    def _content(self, location: str, size_bytes: int | None, into: Closure) -> bytes | None:
        try:
            return self.read(location)
        except ObjectMissing:
            into.needs.append(Need(spelt(location), size_bytes))
            return None

    def _of(self, location: str) -> "Stored | None":
        location = spelt(location)
        if location not in self._stored:
            self._learn([location])
        return self._stored.get(location)

    def _learn(self, locations: Sequence[str]) -> None:
        """Look among the objects of other tables, and of none, for what is not among this one's."""
        unknown = [one for one in locations if one not in self._stored and one not in self._asked]
        if unknown:
            self._asked.update(unknown)
            found = self._copy.elsewhere(unknown)
            self._take(found.filter(found["is_whole"]))

    def _take(self, objects: pa.Table) -> None:
        names = ("location", "stored_key", "stored_version_id", "size_bytes")
        for location, *stored in zip(*(objects[name].to_pylist() for name in names), strict=True):
            self._stored[location] = Stored(*stored)


def spelt(location: str) -> str:
    """A location as stores spell it; one of a store that nobody knows stays as it is: it is not copied."""
    try:
        return normalised(location)
    except BadRequest:
        return location
