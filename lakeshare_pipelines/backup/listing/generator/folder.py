"""A folder of this host listed by several threads: each scans one folder at a time."""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa

from lakeshare_pipelines.backup.rows import LISTING
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.folder import UNFINISHED, etag_of, explained
from lakeshare_pipelines.errors import BackupError

THREADS = 8
"""More gain nothing on a disk of this host; a folder over a network answers as many questions at a time."""
SCANNING = 4 * THREADS
"""Folders at a time that are scanned, or wait for whoever writes them down."""


def folder_rows(address: StoreAddress) -> Iterator[pa.RecordBatch]:
    """All files below a folder, a folder at a time, in no order: rows of schema LISTING.

    Raises:
        BackupError: a folder cannot be read, or a file's name is no UTF-8.
    """
    root = Path(address.url)
    with explained(str(root)):
        # Of what vanishes below, nothing is told; the folder itself must be there.
        os.scandir(root).close()
    with ThreadPoolExecutor(THREADS, "folders") as pool:
        waiting, scanning = [""], set[Future[tuple[pa.RecordBatch, list[str]]]]()
        try:
            while waiting or scanning:
                while waiting and len(scanning) < SCANNING:
                    scanning.add(pool.submit(_scanned, root, waiting.pop()))
                done, scanning = wait(scanning, return_when=FIRST_COMPLETED)
                for one in done:
                    rows, folders = one.result()
                    waiting += folders
                    if rows.num_rows:
                        yield rows
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _scanned(root: Path, folder: str) -> tuple[pa.RecordBatch, list[str]]:
    """The files of one folder, and the folders in it: keys, those of folders with a slash at their end."""
    files: list[tuple[str, os.stat_result]] = []
    folders: list[str] = []
    with explained(str(root / folder)):
        try:
            entries = os.scandir(root / folder)
        except FileNotFoundError:
            return _rows(root, files), folders
        with entries:
            for entry in entries:
                _sort(entry, folder, files, folders)
    return _rows(root, files), folders


def _sort(
    entry: "os.DirEntry[str]", folder: str, files: list[tuple[str, os.stat_result]], folders: list[str]
) -> None:
    if entry.name.startswith(UNFINISHED):
        return
    try:
        if entry.is_dir():
            folders.append(f"{folder}{entry.name}/")
            return
        found = entry.stat()
    except FileNotFoundError:
        # What vanishes while it is listed is not there.
        return
    if stat.S_ISREG(found.st_mode):
        files.append((folder + entry.name, found))


def _rows(root: Path, files: list[tuple[str, os.stat_result]]) -> pa.RecordBatch:
    count = len(files)
    try:
        keys = pa.array([key for key, _ in files], pa.string())
    except UnicodeEncodeError as error:
        name = error.object.encode(errors="backslashreplace").decode()
        raise BackupError(
            f"{root}/{name}", "the name is no UTF-8, and no listing can hold it", "Rename the file."
        ) from error
    milliseconds = [found.st_mtime_ns // 1_000_000 for _, found in files]
    found = {
        "bucket": pa.repeat(pa.scalar(str(root), pa.string()), count),
        "key": keys,
        "version_id": pa.nulls(count, pa.string()),
        "is_latest": pa.repeat(True, count),
        "is_delete_marker": pa.repeat(False, count),
        "size_bytes": pa.array([found.st_size for _, found in files], pa.int64()),
        "last_modified": pa.array(milliseconds, pa.int64()).cast(LISTING.field("last_modified").type),
        "etag": pa.array([etag_of(found) for _, found in files], pa.string()),
        "storage_class": pa.repeat("STANDARD", count),
        "is_multipart": pa.repeat(False, count),
        "encryption": pa.nulls(count, pa.string()),
        "checksum_algorithm": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_arrays([found[name] for name in LISTING.names], schema=LISTING)
