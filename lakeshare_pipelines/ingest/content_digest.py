"""Digest of a delivery's content: names and bytes, nothing else; a copy made tomorrow has the same one."""

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

# A change within the clock tick of an earlier one leaves no trace in the file's times: hash young files again.
RACY_S = 2.0
CACHE_SIZE = 20_000

_Key = tuple[str, int, int, int, int]
_cache: dict[_Key, str] = {}


def digest_of(root: Path, files: Iterable[Path]) -> str:
    """SHA-256 over the names below `root` and the bytes of `files`, in order of name."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        digest.update(f"{len(name.encode())}:{name}:{file_digest(path)}\n".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file; remembered while size, times and inode stay as they are."""
    stat = path.stat()
    key = _key(path, stat)
    known = _cache.get(key)
    if known is not None:
        return known
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        after = os.fstat(file.fileno())
    is_settled = time.time() - max(stat.st_mtime, stat.st_ctime) > RACY_S
    if is_settled and _key(path, after) == key:
        if len(_cache) >= CACHE_SIZE:
            _cache.clear()
        _cache[key] = found
    return found


def _key(path: Path, stat: os.stat_result) -> _Key:
    return str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
