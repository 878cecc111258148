"""The engine `local`: one event loop of this host copies from and to buckets and folders, without Spark.

A run continues after a crash by its ledger; what the ledger has is not copied again.
"""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

from lakeshare_pipelines.backup.async_s3 import PREFIX_PER_S, AsyncS3, Pace
from lakeshare_pipelines.backup.copy import engine, objects
from lakeshare_pipelines.backup.stores import FOLDER, FREE_SPACE, FolderStore, compute_etag, make_refusal
from lakeshare_pipelines.errors import BackupError, NoResponse
from lakeshare_server.storage.sigv4 import quote_path
from lakeshare_server.storage.stores import UNFINISHED

CONTENT = b"lakeshare asks what this store can"


async def probe_capabilities(target: AsyncS3, work_prefix: str) -> objects.Capabilities:
    """The features of a bucket. Raises BackupError if it refuses a write."""
    source, copy = f"{work_prefix}probe/source", f"{work_prefix}probe/copy"
    written = await target.request("PUT", source, body=CONTENT)
    if not written.is_success:
        raise make_refusal(target.address.location(source), written.code, written.message)
    copy_source = {"x-amz-copy-source": f"/{target.address.bucket}/{quote_path(source)}"}
    other_etag = {**copy_source, "x-amz-copy-source-if-match": f'"{"0" * 32}"'}
    wrong_sum = {"x-amz-checksum-sha256": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
    on_condition, again, checked, locked, parts = await asyncio.gather(
        target.request("PUT", copy, headers=other_etag, attempts=1),
        target.request("PUT", source, headers={"if-none-match": "*"}, body=CONTENT, attempts=1),
        target.request("PUT", f"{work_prefix}probe/checked", headers=wrong_sum, body=CONTENT, attempts=1),
        target.request("GET", query={"object-lock": ""}, attempts=1),
        _probe_part_copies(target, f"{work_prefix}probe/parts", copy_source),
    )
    return objects.Capabilities(
        copies_on_condition=on_condition.status == 412,
        copies_parts=parts,
        writes_on_condition=again.status == 412,
        checks_checksums=not checked.is_success,
        versions=written.headers.get("x-amz-version-id") not in {None, "null"},
        locks=locked.is_success and b"Enabled" in locked.body,
    )


async def _probe_part_copies(target: AsyncS3, key: str, copy_source: dict[str, str]) -> bool:
    begun = await target.request("POST", key, {"uploads": ""}, attempts=1)
    upload = begun.text("UploadId")
    if not begun.is_success or not upload:
        return False
    query = {"partNumber": "1", "uploadId": upload}
    headers = {**copy_source, "x-amz-copy-source-range": f"bytes=0-{len(CONTENT) - 1}"}
    part = await target.request("PUT", key, query, headers, attempts=1)
    await target.request("DELETE", key, {"uploadId": upload}, attempts=1)
    return part.is_success and bool(part.text("ETag"))


PIECE_BYTES = 16 * 1024**2
DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
S3_CODES = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP), ("NoSuchKey", 404)),
    errno.ENAMETOOLONG: ("KeyTooLongError", 400),
    **dict.fromkeys((errno.EACCES, errno.EPERM), ("AccessDenied", 403)),
}
"""S3 error codes of errors of the file system that concern one file."""

Result = TypeVar("Result")


class FolderSource:
    def __init__(self, store: FolderStore, task: engine.CopyTask) -> None:
        self._store, self._task = store, task

    async def describe(self, item: engine.CopyItem) -> objects.SourceObject:
        return (await run_in_thread(lambda: self._read(item, 0, 0)))[0]

    async def whole(self, item: engine.CopyItem) -> tuple[objects.SourceObject, bytes]:
        return await run_in_thread(lambda: self._read(item, 0, -1))

    async def piece(self, item: engine.CopyItem, start: int, end: int) -> bytes:
        return (await run_in_thread(lambda: self._read(item, start, end - start)))[1]

    def _read(self, item: engine.CopyItem, start: int, size: int) -> tuple[objects.SourceObject, bytes]:
        with open_as_listed(self._store, item, self._task) as (file, status):
            whole, part = divmod(status.st_mtime_ns, 10**9)
            described = objects.SourceObject(
                status.st_size, status.st_mtime_ns, {objects.MTIME: f"{whole}.{part:09}"}
            )
            file.seek(start)
            return described, file.read(size)


class FolderCopier:
    """Copies into a folder: small objects whole, larger ones in pieces."""

    def __init__(self, source: objects.Source, target: FolderStore, memory: objects.MemoryBudget) -> None:
        self._source, self._target, self._memory = source, target, memory

    async def copy(self, item: engine.CopyItem) -> engine.Outcome:
        path = get_file_path(self._target, item.stored_key)
        async with self._memory.reserve(min(item.size_bytes, PIECE_BYTES)):
            if item.size_bytes <= PIECE_BYTES:
                described, content = await self._source.whole(item)
                return await run_in_thread(lambda: self._write(item, path, described, content))
            described, digest = await self._source.describe(item), sha256()
            # The copy gets its name after the source was checked again.
            with translate_disk_errors(), write_file(path, described.modified_ns) as file:
                for start, end in objects.split_ranges(described.size_bytes, PIECE_BYTES):
                    content = await self._source.piece(item, start, end)
                    digest.update(content)
                    await run_in_thread(partial(file.write, content))
        return make_file_outcome(item, path, digest.hexdigest())

    def _write(
        self, item: engine.CopyItem, path: Path, described: objects.SourceObject, content: bytes
    ) -> engine.Outcome:
        with write_file(path, described.modified_ns) as file:
            file.write(content)
        return make_file_outcome(item, path, sha256(content).hexdigest())


@contextmanager
def open_as_listed(
    store: FolderStore, item: engine.CopyItem, task: engine.CopyTask
) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """An open file; raises NotCopied unless it is the listed one both before and after it was read."""
    path = get_file_path(FolderStore(store.address.at(item.bucket)), item.key)
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if item.etag is None and status.st_mtime > task.as_of.timestamp():
            raise engine.NotCopied.changed(f"{path} was modified after {task.as_of:%Y-%m-%d %H:%M:%S} UTC")
        listed = item.etag or compute_etag(status)
        if compute_etag(status) != listed:
            raise engine.NotCopied.changed(f"{path} changed since it was listed")
        yield file, status
        if compute_etag(os.fstat(file.fileno())) != listed or compute_etag(path.stat()) != listed:
            raise engine.NotCopied.changed(f"{path} changed while it was copied")


@contextmanager
def write_file(path: Path, modified_ns: int) -> Iterator[BinaryIO]:
    """A file that gets its name and time when it is complete."""
    temporary = path.with_name(f"{UNFINISHED}{uuid4().hex}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("xb") as file:
            yield file
        os.utime(temporary, ns=(modified_ns, modified_ns))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_file_outcome(item: engine.CopyItem, path: Path, digest: str) -> engine.Outcome:
    return engine.Outcome(item, stored_etag=compute_etag(path.stat()), checksum=f"sha256:{digest}")


def get_file_path(store: FolderStore, key: str) -> Path:
    """The file of a key. Raises NotCopied if no file can have such a name."""
    try:
        return store.path(key)
    except BackupError as error:
        raise engine.NotCopied("InvalidKey", 400, f"{error.subject}: {error.reason}") from error


async def run_in_thread(work: Callable[[], Result]) -> Result:
    def run() -> Result:
        with translate_disk_errors():
            return work()

    return await asyncio.to_thread(run)


@contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Raises NotCopied for errors that concern one file, BackupError if the disk accepts nothing more."""
    try:
        yield
    except OSError as error:
        reason, where = error.strerror or str(error), str(error.filename or error.filename2 or "the disk")
        if error.errno in DISK_FULL_ERRNOS:
            raise BackupError(where, f"the disk takes nothing more: {reason}", FREE_SPACE) from error
        code, status = S3_CODES.get(error.errno or 0, ("InternalError", 500))
        raise engine.NotCopied(code, status, f"{where}: {reason}") from error


@dataclass(frozen=True)
class CopySession:
    copier: objects.Copier
    capabilities: Mapping[str, bool]
    pace: Pace | None  # Of the target's requests; None for a folder


@asynccontextmanager
async def open_copy_session(
    task: engine.CopyTask,
    *,
    capabilities: objects.Capabilities | None = None,
    prefix_per_s: float = PREFIX_PER_S,
) -> AsyncIterator[CopySession]:
    """The copier of a task until the end of the block. `prefix_per_s` is this process's share of the requests to a
    prefix. Without `capabilities` the target is probed."""
    async with AsyncExitStack() as stack:
        reader: objects.Source
        source: AsyncS3 | None = None
        if task.source.kind == FOLDER:
            reader = FolderSource(FolderStore(task.source), task)
        else:
            source = await stack.enter_async_context(AsyncS3(task.source, task.in_flight))
            reader = objects.BucketSource(source)
        if task.target.kind == FOLDER:
            folder = FolderCopier(reader, FolderStore(task.target), objects.MemoryBudget())
            yield CopySession(folder, {}, None)
            return
        pace = Pace(task.in_flight, prefix_per_s)
        target = await stack.enter_async_context(AsyncS3(task.target, task.in_flight, pace=pace))
        known = capabilities or await probe_capabilities(target, task.work_prefix)
        # Within one store, the store itself copies; the target's identity must be allowed to read the source.
        inside = source if task.source.endpoint == task.target.endpoint else None
        yield CopySession(objects.BucketCopier(reader, inside, target, task, known), known.model_dump(), pace)


PROGRESS_S = 2.0


class LocalEngine(engine.CopyEngine):
    """Copies in this process. `capabilities` are the target's, if known; `prefix_per_s` is this process's share of
    the requests to a prefix."""

    name = "local"

    def __init__(
        self, *, capabilities: objects.Capabilities | None = None, prefix_per_s: float = PREFIX_PER_S
    ) -> None:
        self._capabilities, self._prefix_per_s = capabilities, prefix_per_s

    def transfer(self, copying: engine.Copying, condition: str = "true") -> Mapping[str, bool]:
        """As CopyEngine.transfer, of the objects that meet a condition in SQL."""
        return asyncio.run(self._copy_items(copying, copying.select_items(condition)))

    async def _copy_items(
        self, copying: engine.Copying, items: Iterator[engine.CopyItem]
    ) -> Mapping[str, bool]:
        task, counter = copying.task, copying.counter
        # Copies in a folder must be on disk before the ledger has them.
        settle = os.sync if task.target.kind == FOLDER else None
        writer = engine.LedgerWriter(copying.ledger, counter.objects_of, task.in_flight, settle)

        async def watch() -> None:
            while True:
                await asyncio.to_thread(copying.run.require_not_cancelled)
                counter.report_progress()
                await writer.flush()
                await asyncio.sleep(PROGRESS_S)

        async with open_copy_session(
            task, capabilities=self._capabilities, prefix_per_s=self._prefix_per_s
        ) as session:

            async def copy(item: engine.CopyItem) -> None:
                await writer.begin()
                try:
                    outcome = await session.copier.copy(item)
                except engine.NotCopied as refused:
                    outcome = refused.outcome(item)
                except NoResponse as fault:
                    outcome = engine.NotCopied("RequestTimeout", None, fault.reason).outcome(item)
                await writer.add(outcome)
                counter.add(outcome)

            async def copy_all() -> None:
                try:
                    works = (partial(copy, item) for item in items)
                    await engine.run_concurrently(works, task.in_flight)
                finally:
                    # Before `watch` is cancelled, which may be writing a batch.
                    await writer.flush()

            await engine.run_concurrently([copy_all], 1, watch)
            return session.capabilities
