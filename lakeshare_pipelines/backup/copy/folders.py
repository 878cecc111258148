"""Copies where one end, or both, is a folder of this host: files are read only as they were listed, and written whole.

The times of files are kept; the checksum of the content is taken on the way.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

from lakeshare_pipelines.backup.copy.objects import CopyTerms, already_there
from lakeshare_pipelines.backup.copy.outcomes import NotCopied, Outcome, Wanted
from lakeshare_pipelines.backup.copy.sources import MTIME, BucketSource, Opened, cut
from lakeshare_pipelines.backup.stores.folder import UNFINISHED, FolderStore, etag_of, moved_into_place
from lakeshare_pipelines.errors import BackupError

CHUNK_BYTES = 1 << 20
PIECE_BYTES = 16 * 1024**2
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
CODES = {
    errno.ENOENT: ("NoSuchKey", 404),
    errno.ENOTDIR: ("NoSuchKey", 404),
    errno.EISDIR: ("NoSuchKey", 404),
    errno.ELOOP: ("NoSuchKey", 404),
    errno.ENAMETOOLONG: ("KeyTooLongError", 400),
    errno.EACCES: ("AccessDenied", 403),
    errno.EPERM: ("AccessDenied", 403),
}
"""S3's words for what a disk says of one file."""

Result = TypeVar("Result")


class FolderCopier:
    """From a folder into a folder."""

    def __init__(self, source: FolderStore, target: FolderStore, terms: CopyTerms) -> None:
        self._source, self._target, self._terms = source, target, terms

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one."""
        return await off_the_loop(lambda: self._copy(wanted))

    def _copy(self, wanted: Wanted) -> Outcome:
        place = file_of(self._target, wanted.stored_key)
        there = None if self._terms.overwrite else same_there(place, wanted)
        if there is not None:
            return there
        digest = sha256()
        # It gets its name after the source was looked at again.
        with (
            being_written(place, self._terms) as writing,
            as_listed(self._source, wanted, self._terms) as (file, found),
        ):
            writing.modified_ns = found.st_mtime_ns
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                writing.file.write(chunk)
        return of_file(wanted, place, f"sha256:{digest.hexdigest()}")


class FolderSource:
    """Files read piece by piece."""

    def __init__(self, store: FolderStore, terms: CopyTerms) -> None:
        self._store, self._terms = store, terms

    async def opened(self, wanted: Wanted) -> Opened:
        def look() -> Opened:
            with as_listed(self._store, wanted, self._terms) as (_, found):
                return _opened(found)

        return await off_the_loop(look)

    async def whole(self, wanted: Wanted) -> tuple[Opened, bytes]:
        def read() -> tuple[Opened, bytes]:
            with as_listed(self._store, wanted, self._terms) as (file, found):
                return _opened(found), file.read()

        return await off_the_loop(read)

    async def piece(self, wanted: Wanted, start: int, end: int) -> bytes:
        def read() -> bytes:
            with as_listed(self._store, wanted, self._terms) as (file, _):
                file.seek(start)
                return file.read(end - start)

        return await off_the_loop(read)


class FetchingCopier:
    """From a bucket into a folder."""

    def __init__(self, source: BucketSource, target: FolderStore, terms: CopyTerms) -> None:
        self._source, self._target, self._terms = source, target, terms

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one; larger ones piece by piece."""
        place = file_of(self._target, wanted.stored_key)
        if not self._terms.overwrite and place.exists():
            return await self._compared(wanted, place)
        if wanted.size_bytes <= PIECE_BYTES:
            opened, content = await self._source.whole(wanted)
            return await off_the_loop(lambda: self._write(wanted, place, opened, content))
        opened, digest = await self._source.opened(wanted), sha256()
        with disk_told(), being_written(place, self._terms) as writing:
            writing.modified_ns = opened.modified_ns
            for start, end in cut(wanted.size_bytes, PIECE_BYTES):
                content = await self._source.piece(wanted, start, end)
                digest.update(content)
                await off_the_loop(partial(writing.file.write, content))
        return of_file(wanted, place, f"sha256:{digest.hexdigest()}")

    def _write(self, wanted: Wanted, place: Path, opened: Opened, content: bytes) -> Outcome:
        with being_written(place, self._terms) as writing:
            writing.modified_ns = opened.modified_ns
            writing.file.write(content)
        return of_file(wanted, place, f"sha256:{sha256(content).hexdigest()}")

    async def _compared(self, wanted: Wanted, place: Path) -> Outcome:
        """What is there may be this very object, of a run that broke off: its content tells."""
        size = (await off_the_loop(place.stat)).st_size
        if size != wanted.size_bytes:
            raise already_there(str(place))
        here, stored = sha256(), sha256()
        for start, end in cut(size, PIECE_BYTES):
            stored.update(await self._source.piece(wanted, start, end) if size else b"")
            here.update(await off_the_loop(partial(_bytes, place, start, end)))
        if here.digest() != stored.digest():
            raise already_there(str(place))
        return of_file(wanted, place, f"sha256:{here.hexdigest()}")


@contextmanager
def as_listed(
    store: FolderStore, wanted: Wanted, terms: CopyTerms
) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A file, open, that is what was listed both before and after it was read.

    Raises:
        NotCopied: it is not.
    """
    place = file_of(FolderStore(store.address.at(wanted.bucket)), wanted.key)
    with place.open("rb") as file:
        found = os.fstat(file.fileno())
        if wanted.etag is None and found.st_mtime > terms.as_of.timestamp():
            raise NotCopied.changed(f"{place} was modified after {terms.as_of:%Y-%m-%d %H:%M:%S} UTC")
        listed = wanted.etag or etag_of(found)
        if etag_of(found) != listed:
            raise NotCopied.changed(f"{place} changed since it was listed")
        yield file, found
        if etag_of(os.fstat(file.fileno())) != listed or etag_of(place.stat()) != listed:
            raise NotCopied.changed(f"{place} changed while it was copied")


@dataclass
class Writing:
    """A file that is being written, and the time it is to have."""

    file: BinaryIO
    modified_ns: int = 0


@contextmanager
def being_written(place: Path, terms: CopyTerms) -> Iterator[Writing]:
    """A file that gets its name when it is whole, with the time of what it is a copy of.

    Raises:
        NotCopied: nothing is to be overwritten, and the name is taken.
    """
    unfinished = place.with_name(f"{UNFINISHED}{uuid4().hex}")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished.open("xb") as file:
            writing = Writing(file)
            yield writing
        os.utime(unfinished, ns=(writing.modified_ns, writing.modified_ns))
        if not moved_into_place(unfinished, place, if_absent=not terms.overwrite):
            raise already_there(str(place))
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


def same_there(place: Path, wanted: Wanted) -> Outcome | None:
    """The copy of a file that is there already, known by its time and size; None where the name is free.

    Raises:
        NotCopied: something else has the name.
    """
    try:
        found = place.stat()
    except FileNotFoundError:
        return None
    if etag_of(found) != wanted.etag:
        raise already_there(str(place))
    return of_file(wanted, place, None)


def of_file(wanted: Wanted, place: Path, checksum: str | None) -> Outcome:
    """The row of a copy that is a file."""
    return Outcome(wanted, stored_etag=etag_of(place.stat()), checksum=checksum)


def file_of(store: FolderStore, key: str) -> Path:
    """The file of a key. Raises NotCopied where no file can have such a name."""
    try:
        return store.path(key)
    except BackupError as error:
        raise NotCopied("InvalidKey", 400, f"{error.subject}: {error.reason}") from error


async def off_the_loop(work: Callable[[], Result]) -> Result:
    """Do what waits for the disk in a thread.

    Raises:
        NotCopied: the disk refused one file.
        BackupError: it takes nothing more.
    """

    def told() -> Result:
        with disk_told():
            return work()

    return await asyncio.to_thread(told)


@contextmanager
def disk_told() -> Iterator[None]:
    """What a disk says, in S3's words."""
    try:
        yield
    except OSError as error:
        reason, where = error.strerror or str(error), str(error.filename or error.filename2 or "the disk")
        if error.errno in FULL:
            fix = "Free space there, or give the backup another target; what is copied already stays."
            raise BackupError(where, f"the disk takes nothing more: {reason}", fix) from error
        code, status = CODES.get(error.errno or 0, ("InternalError", 500))
        raise NotCopied(code, status, f"{where}: {reason}") from error


def _opened(found: os.stat_result) -> Opened:
    whole, part = divmod(found.st_mtime_ns, 10**9)
    return Opened(found.st_size, found.st_mtime_ns, {MTIME: f"{whole}.{part:09}"})


def _bytes(place: Path, start: int, end: int) -> bytes:
    with place.open("rb") as file:
        file.seek(start)
        return file.read(end - start)
