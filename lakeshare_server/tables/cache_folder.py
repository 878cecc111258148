"""Files that are built on first use and kept in a folder of bounded size, shared by threads and processes.

What a key stands for never changes, so whoever finds its file has the right one.
"""

import fcntl
import hashlib
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import make_private
from lakeshare_server.tables.scratch import remove_abandoned, scratch_file

logger = logging.getLogger(__name__)

OPEN_FILES = 256
# A file in use is marked as used at most so often.
MARKED_EVERY_S = 60.0
# Whoever builds the file of a table in a slow store is to hold up no other table.
LOCKS = 1024
SUFFIX = ".arrow"

Opened = TypeVar("Opened")


@dataclass
class _Kept(Generic[Opened]):
    """An open file, and when it was last marked as used."""

    opened: Opened
    marked_at: float = field(default_factory=time.monotonic)


class CacheFolder(Generic[Opened]):
    """Builds each file once; `open_file` opens one, and what it returns is kept for the requests that follow.

    Several kinds may share a folder. Whoever builds a file of one kind may have files of another built meanwhile, never
    one of its own kind: builders of a kind wait for each other.
    """

    def __init__(self, folder: Path, kind: str, max_bytes: int, open_file: Callable[[Path], Opened]) -> None:
        self.folder, self.kind, self.max_bytes, self._open_file = folder, kind, max_bytes, open_file
        self._open: OrderedDict[str, _Kept[Opened]] = OrderedDict()
        self._opening = Lock()
        self._building = [Lock() for _ in range(LOCKS)]

    def get(
        self,
        identity: Sequence[object],
        write: Callable[[Path], None],
        is_good: Callable[[Opened], bool] = lambda _: True,
    ) -> Opened:
        """The file of what the identity says, written when nobody has done so yet, or when what is there is no good.

        Raises:
            Unavailable: the folder cannot be written.
            LakeshareError: whatever `write` raises; nothing is kept then.
        """
        key = _key(identity)
        found = self._found(key)
        if found is not None and is_good(found):
            return found
        with self._building[int(key[:8], 16) % LOCKS], self._alone(key):
            found = self._found(key)
            return found if found is not None and is_good(found) else self._built(key, write)

    def found(self, identity: Sequence[object]) -> Opened | None:
        """The file of what the identity says, if somebody built it."""
        return self._found(_key(identity))

    def _found(self, key: str) -> Opened | None:
        path = self._path(key)
        with self._opening:
            kept = self._open.get(key)
            if kept is not None:
                self._open.move_to_end(key)
        if kept is not None:
            _mark(kept, path)
            return kept.opened
        try:
            opened = self._open_file(path)
            os.utime(path)
        except (OSError, KeyError, TypeError, ValueError):
            # Not built yet, removed to make room, or damaged: each time it is built anew.
            return None
        return self._keep(key, opened)

    def _keep(self, key: str, opened: Opened) -> Opened:
        with self._opening:
            self._open[key] = _Kept(opened)
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        return opened

    def _built(self, key: str, write: Callable[[Path], None]) -> Opened:
        scratch = scratch_file(self.folder)
        try:
            write(scratch)
            # Before others see it: they might remove it to make room.
            opened = self._open_file(scratch)
            scratch.replace(self._path(key))
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            scratch.unlink(missing_ok=True)
        self._make_room(key)
        return self._keep(key, opened)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{SUFFIX}"

    def _make_room(self, kept: str) -> None:
        """Remove what was used longest ago; open ones stay readable until they are closed."""
        remove_abandoned(self.folder)
        described = []
        for file in self.folder.glob(f"*{SUFFIX}"):
            try:
                described.append((file, file.stat()))
            except FileNotFoundError:
                # Another process made room at the same time.
                continue
        total = sum(found.st_size for _, found in described)
        for file, found in sorted(described, key=lambda one: one[1].st_mtime):
            if total <= self.max_bytes:
                return
            if file.stem != kept:
                total -= found.st_size
                file.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> Unavailable:
        logger.warning("%s cannot be written: %s", self.folder, error)
        return Unavailable(
            f"an index cannot be written: {error.strerror}",
            "Make room below LAKESHARE_STATE_DIR, or set it to a place that can be written.",
        )

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """Keep other processes from building the same file meanwhile."""
        try:
            make_private(self.folder)
            file = (self.folder / f".building-{self.kind}-{int(key[:8], 16) % LOCKS}").open("a")
        except OSError as error:
            raise self._unwritable(error) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _mark(kept: _Kept[Opened], path: Path) -> None:
    """Tell whoever makes room that the file is in use."""
    now = time.monotonic()
    if now - kept.marked_at >= MARKED_EVERY_S:
        kept.marked_at = now
        # It may be gone, and stays open all the same.
        with suppress(OSError):
            os.utime(path)


def _key(identity: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
