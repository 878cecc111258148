"""File indexes that are built on first use: old and followed versions, kept in a folder of bounded size.

What a key stands for never changes, so whoever finds its index has the right one. Publications are not kept here.
"""

import fcntl
import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from lakeshare_server.errors import Unavailable
from lakeshare_server.tables.index import LAYOUT, FileIndex, index_path, open_index, write_index
from lakeshare_server.tables.snapshot import TableSnapshot

OPEN_INDEXES = 64
LOCK_FILE = ".building"
LOCKS = 64


class IndexCache:
    """Builds each index once, whatever number of threads and processes ask for it."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._open: OrderedDict[str, FileIndex] = OrderedDict()
        self._opening = Lock()
        self._building = [Lock() for _ in range(LOCKS)]

    def get(self, identity: Sequence[object], build: Callable[[], TableSnapshot]) -> FileIndex:
        """The index of what the identity says, built from its snapshot when nobody has done so yet.

        Raises:
            Unavailable: the folder cannot be written.
            LakeshareError: whatever `build` raises; nothing is kept then.
        """
        key = _key(identity)
        found = self._opened(key)
        if found is None:
            with self._building[int(key[:8], 16) % LOCKS], self._alone(key):
                found = self._opened(key) or self._built(key, build)
        return found

    def _opened(self, key: str) -> FileIndex | None:
        with self._opening:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        if not index_path(self.folder, key).exists():
            return None
        return self._keep(key, open_index(self.folder, key))

    def _keep(self, key: str, index: FileIndex) -> FileIndex:
        os.utime(index_path(self.folder, key))
        with self._opening:
            self._open[key] = index
            while len(self._open) > OPEN_INDEXES:
                self._open.popitem(last=False)
        return index

    def _built(self, key: str, build: Callable[[], TableSnapshot]) -> FileIndex:
        snapshot = build()
        try:
            stored = write_index(snapshot, self.folder)
            stored.path.replace(index_path(self.folder, key))
        except OSError as error:
            raise Unavailable(
                f"the index of a table cannot be written to {self.folder}: {error.strerror}",
                "Make room there, or set LAKESHARE_STATE_DIR to a place that can be written.",
            ) from error
        self._make_room(key)
        return self._keep(key, open_index(self.folder, key))

    def _make_room(self, kept: str) -> None:
        """Remove what was used longest ago; open ones stay readable until they are closed."""
        files = sorted(self.folder.glob("*.arrow"), key=lambda file: file.stat().st_mtime)
        total = sum(file.stat().st_size for file in files)
        for file in files:
            if total <= self.max_bytes:
                return
            if file.stem != kept:
                total -= file.stat().st_size
                file.unlink(missing_ok=True)

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Keep other processes from building the same index meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{LOCK_FILE}-{int(key[:8], 16) % LOCKS}"
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _key(identity: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([LAYOUT, *identity]).encode()).hexdigest()
