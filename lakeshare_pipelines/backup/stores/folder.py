"""A folder of this host as a store: keys are paths below it, written whole by rename."""

import datetime as dt
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from lakeshare_pipelines.backup.stores.address import StoreAddress
from lakeshare_pipelines.backup.stores.store import Head, Listed
from lakeshare_pipelines.errors import BackupError, ObjectMissing
from lakeshare_server.settings import make_private

UNFINISHED = ".lakeshare-unfinished-"
"""How files begin that are being written; listings leave them out."""
GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


class FolderStore:
    """Files of this host below one folder."""

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._root = Path(address.url)

    def list(self, prefix: str = "", start_after: str = "") -> Iterator[Listed]:
        with explained(str(self._root)):
            for key, found in _walked(self._root, prefix):
                if key.startswith(prefix) and key.encode() > start_after.encode():
                    yield Listed(key, found.st_size, _time(found), etag_of(found), storage_class="STANDARD")

    def versions(self, prefix: str = "") -> Iterator[Listed]:
        return self.list(prefix)

    def head(self, key: str, version_id: str | None = None) -> Head | None:
        if not _can_be_held(key):
            return None
        try:
            with explained(str(self.path(key))):
                found = self.path(key).stat()
        except ObjectMissing:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return Head(key, found.st_size, _time(found), etag_of(found), storage_class="STANDARD")

    def read(self, key: str, version_id: str | None = None) -> bytes:
        with explained(str(self.path(key))):
            return self.path(key).read_bytes()

    def open(self, key: str, version_id: str | None = None) -> IO[bytes]:
        with explained(str(self.path(key))):
            return self.path(key).open("rb")

    def put(self, key: str, content: bytes, *, if_absent: bool = False) -> bool:
        path = self.path(key)
        unfinished = path.with_name(f"{UNFINISHED}{uuid4().hex}")
        with explained(str(path)):
            make_private(path.parent)
            try:
                with unfinished.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                return moved_into_place(unfinished, path, if_absent=if_absent)
            finally:
                with suppress(FileNotFoundError):
                    unfinished.unlink()

    def delete(self, key: str, version_id: str | None = None) -> None:
        with suppress(ObjectMissing), explained(str(self.path(key))):
            self.path(key).unlink()

    def path(self, key: str) -> Path:
        """The file of a key.

        Raises:
            BackupError: no file can have such a name.
        """
        if not _can_be_held(key):
            raise BackupError(
                f"{self._root}: key {key!r}",
                "a folder cannot hold such a key",
                "Back up to a bucket instead.",
            )
        return self._root / key


def _can_be_held(key: str) -> bool:
    """Whether a file below a folder can have this key as its path."""
    return bool(key) and not any(part in {"", ".", ".."} for part in key.split("/"))


def remove_unfinished(folder: Path, before: dt.datetime | None = None) -> int:
    """Remove files that were being written below a folder when their writer was killed; returns how many.

    With `before` only those that nobody has written since then.
    """
    removed = 0
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above) / name
            # Of a file that another writer finishes or removes now nothing is to be done.
            with suppress(FileNotFoundError):
                # Not the time of modification: that of what is copied is given to it before it gets its name.
                if name.startswith(UNFINISHED) and (
                    before is None or path.stat().st_ctime < before.timestamp()
                ):
                    path.unlink()
                    removed += 1
    return removed


def etag_of(found: os.stat_result) -> str:
    """What tells that a file changed: 32 hexadecimal digits of its modification time and size."""
    return f"{found.st_mtime_ns:016x}{found.st_size:016x}"


def moved_into_place(unfinished: Path, path: Path, *, if_absent: bool) -> bool:
    """Give a written file its name; False when `if_absent` and the name is taken: then it still has the old one."""
    if not if_absent:
        unfinished.replace(path)
        return True
    try:
        os.link(unfinished, path)
    except FileExistsError:
        return False
    return True


def _walked(root: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Keys in order of their bytes: a folder sorts as its name with a slash."""
    start = prefix.rpartition("/")[0]
    folder = root / start
    if not folder.is_dir():
        return
    yield from _below(folder, f"{start}/" if start else "")


def _below(folder: Path, key: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as scanned:
        entries = [(f"{one.name}/" if one.is_dir() else one.name, one) for one in scanned]
    for name, entry in sorted(entries, key=lambda found: os.fsencode(found[0])):
        if name.endswith("/"):
            yield from _below(Path(entry.path), key + name)
        elif not name.startswith(UNFINISHED):
            # What vanishes while it is listed is not there.
            with suppress(FileNotFoundError):
                found = entry.stat()
                if stat.S_ISREG(found.st_mode):
                    yield key + name, found


def _time(found: os.stat_result) -> dt.datetime:
    return dt.datetime.fromtimestamp(found.st_mtime, dt.UTC)


@contextmanager
def explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in GONE:
            raise ObjectMissing(path) from None
        raise BackupError(path, f"the disk refused: {error.strerror}", _remedy(error)) from error


def _remedy(error: OSError) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "Free space there, or give the backup another target; what is copied already stays."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return "Allow the user that runs backups to read the source and write the target."
    return "Look at the disk; what is copied already stays."
