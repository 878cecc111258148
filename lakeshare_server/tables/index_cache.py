"""File indexes that are built on first use: old and followed versions. Publications are not kept here."""

from collections.abc import Callable, Sequence
from pathlib import Path

from lakeshare_server.tables.cache_folder import CacheFolder
from lakeshare_server.tables.index import LAYOUT, FileIndex
from lakeshare_server.tables.index_writing import write_index_file
from lakeshare_server.tables.snapshot import TableSnapshot

# Grows when indexes in the cache have to be built anew, although those of publications stay as they are.
REVISION = 1


class IndexCache:
    """Builds each index once, whatever number of threads and processes ask for it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self._files = CacheFolder(folder, "index", max_bytes, FileIndex)

    def get(self, identity: Sequence[object], build: Callable[[], TableSnapshot]) -> FileIndex:
        """The index of what the identity says, built from its snapshot when nobody has done so yet.

        Raises:
            Unavailable: the folder cannot be written.
            LakeshareError: whatever `build` raises; nothing is kept then.
        """
        key = ("index", LAYOUT, REVISION, *identity)
        return self._files.get(key, lambda path: write_index_file(build(), path))
