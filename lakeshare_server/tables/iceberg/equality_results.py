"""Rows that equality deletes delete, kept from one version of a table to the next: its files never change.

One file for each table: which deletes were applied, and for each data file the rows that they delete. A later version
reads only what has come since; a data file whose deletes were removed is looked at again.
"""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.settings import ServerSettings, StoreSettings
from lakeshare_server.tables.cache_folder import CacheFolder
from lakeshare_server.tables.iceberg.delete_targets import Targets
from lakeshare_server.tables.iceberg.manifests import DeleteFile

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyroaring import BitMap64

# Grows whenever the file's columns or the meaning of equality change.
LAYOUT = 1
KIND = "equality"
HEADER = b"lakeshare"


@dataclass(frozen=True)
class Results:
    """Known rows by the numbers of data files, None where none is deleted; and the paths of the deletes applied."""

    rows: "Mapping[int, BitMap64 | None]" = field(default_factory=dict)
    deletes: Set[str] = frozenset()


class ResultsCache:
    """The results of one table; without a folder nothing is kept."""

    def __init__(self, folder: "CacheFolder[_Kept] | None", identity: Sequence[object]) -> None:
        self._folder, self._identity = folder, identity

    @classmethod
    def of(cls, settings: StoreSettings, table: "TableMetadata") -> "ResultsCache":
        """The cache of a table; only a server has a folder for it."""
        # Files without field ids get them by the mapping of names, so the key columns depend on it.
        mapping = table.properties.get("schema.name-mapping.default", "")
        identity = KIND, LAYOUT, str(table.table_uuid), sha256(mapping.encode()).hexdigest()
        if not isinstance(settings, ServerSettings):
            return cls(None, identity)
        folder = settings.index_dir / "cache"
        return cls(CacheFolder(folder, KIND, settings.index_cache_bytes, _Kept), identity)

    def find(self, targets: Targets, deletes: Sequence[DeleteFile]) -> Results:
        """What is known of these data files, as far as it still applies."""
        from pyroaring import BitMap64

        kept = None if self._folder is None else self._folder.found(self._identity)
        if kept is None:
            return Results()
        live = {delete.path: _said(targets, delete) for delete in deletes}
        same = {path for path, said in kept.deletes.items() if live.get(path) == said}
        removed: dict[str, int] = {}
        for path, (scope, number, *_) in kept.deletes.items():
            if path not in same:
                removed[scope] = max(number, removed.get(scope, 0))
        paths = pa.array([file.path for file in targets.files], pa.string())
        found: dict[int, BitMap64 | None] = {}
        for number, place in enumerate(pc.index_in(paths, value_set=kept.paths).to_pylist()):
            if place is None:
                continue
            file = targets.files[number]
            is_same = kept.files[place].as_py() == _file(targets, number)
            if is_same and file.sequence_number >= _removed_with(targets, number, removed):
                rows = kept.rows[place].as_py()
                found[number] = None if rows is None else BitMap64.deserialize(rows)
        return Results(found, same)

    def keep(
        self,
        sequence_number: int,
        targets: Targets,
        deletes: Sequence[DeleteFile],
        rows: "Mapping[int, BitMap64 | None]",
    ) -> None:
        """Keep what is known of the data files of a snapshot, unless that of a later one is kept.

        Raises:
            Unavailable: the folder cannot be written.
        """
        if self._folder is None:
            return
        numbers = sorted(rows)
        header = {
            "sequence_number": sequence_number,
            "deletes": {delete.path: _said(targets, delete) for delete in deletes},
        }
        contents = [rows[number] for number in numbers]
        table = pa.table(
            {
                "path": pa.array([targets.files[number].path for number in numbers], pa.string()),
                "file": pa.array([_file(targets, number) for number in numbers], pa.string()),
                "rows": pa.array(
                    [None if content is None else content.serialize() for content in contents],
                    pa.large_binary(),
                ),
            }
        ).replace_schema_metadata({HEADER: orjson.dumps(header)})

        def write(path: Path) -> None:
            with pa.OSFile(os.fsencode(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())

        self._folder.get(self._identity, write, lambda kept: kept.sequence_number > sequence_number)


class _Kept:
    """A file of results, as it is."""

    def __init__(self, path: Path) -> None:
        with pa.OSFile(os.fsencode(path), "rb") as file:
            table = pa.ipc.open_file(file).read_all().combine_chunks()
        header: dict[str, Any] = orjson.loads(table.schema.metadata[HEADER])
        self.sequence_number: int = header["sequence_number"]
        self.deletes: dict[str, list[Any]] = header["deletes"]
        self.paths = table.column("path").combine_chunks()
        self.files, self.rows = table.column("file"), table.column("rows")


def _said(targets: Targets, delete: DeleteFile) -> list[Any]:
    """What of a file of deletes its results depend on."""
    return [targets.scope(delete), delete.sequence_number, delete.size_bytes, list(delete.equality_ids)]


def _file(targets: Targets, number: int) -> str:
    """What of a data file its results depend on, beside its content."""
    file = targets.files[number]
    return f"{file.sequence_number}:{file.rows}:{targets.own_scope(number)}"


def _removed_with(targets: Targets, number: int, removed: Mapping[str, int]) -> int:
    """The highest sequence number of deletes that applied to a data file and are gone."""
    return max(removed.get(targets.own_scope(number), 0), removed.get("", 0))
