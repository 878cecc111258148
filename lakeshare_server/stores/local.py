"""The local disk, by absolute paths; a folder is only a part of names here, as in the other stores."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import pyarrow as pa

from lakeshare_server.errors import StoreDenied, StoreMissing, Unavailable
from lakeshare_server.stores.locations import Place
from lakeshare_server.stores.store import StoredObject

NO_SUCH_NAME = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
NOT_ALLOWED = {errno.EACCES, errno.EPERM}


class LocalStore:
    """Files of this host."""

    def read(self, place: Place) -> bytes:
        with _faults_of(place.key):
            return Path(place.key).read_bytes()

    def open(self, place: Place) -> Any:
        with _faults_of(place.key):
            if Path(place.key).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return pa.OSFile(os.fsencode(place.key))

    def list(self, prefix: Place, after: Place | None) -> Iterator[StoredObject]:
        root = os.fsencode(prefix.key.rstrip("/"))
        with _faults_of(prefix.key):
            yield from _listed(root, os.fsencode(after.key) if after else b"", ())

    def folders(self, prefix: Place) -> Sequence[str]:
        with _faults_of(prefix.key), os.scandir(prefix.key.rstrip("/") or "/") as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())

    def head(self, place: Place) -> StoredObject | None:
        try:
            with _faults_of(place.key):
                found = Path(place.key).stat()
        except StoreMissing:
            return None
        return None if S_ISDIR(found.st_mode) else _described(place.key, found)


def _listed(folder: bytes, after: bytes, above: tuple[tuple[int, int], ...]) -> Iterator[StoredObject]:
    """Files below `folder` whose path is greater than `after`; `above` are the folders we came through."""
    here = _identity(folder)
    if here is None or here in above:  # a link to a folder above would never end
        return
    for path, is_folder in _in_key_order(folder):
        if is_folder:
            if after < path or after.startswith(path):
                yield from _listed(path.rstrip(b"/"), after, (*above, here))
        elif path > after and (found := _stat(path)) is not None:
            yield _described(os.fsdecode(path), found)


def _in_key_order(folder: bytes) -> list[tuple[bytes, bool]]:
    """The folder's entries; a folder's own name counts with its slash, so `a-b` comes before `a/b`."""
    try:
        with os.scandir(folder or b"/") as entries:
            found = [(folder + b"/" + entry.name, entry.is_dir()) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((path + b"/", True) if is_folder else (path, False) for path, is_folder in found)


def _identity(folder: bytes) -> tuple[int, int] | None:
    found = _stat(folder or b"/")
    return None if found is None else (found.st_dev, found.st_ino)


def _stat(path: bytes) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - pathlib takes no bytes
    except (FileNotFoundError, NotADirectoryError):
        return None


def _described(path: str, found: os.stat_result) -> StoredObject:
    etag = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return StoredObject(path, found.st_size, found.st_mtime_ns // 1_000_000, etag)


@contextmanager
def _faults_of(path: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # a null byte, or text that no file system holds
        raise StoreMissing(path) from error
    except OSError as error:
        if error.errno in NO_SUCH_NAME:
            raise StoreMissing(path) from error
        if error.errno in NOT_ALLOWED:
            raise StoreDenied(path) from error
        raise Unavailable(f"{path} cannot be read: {error.strerror}", "Try again later.") from error
