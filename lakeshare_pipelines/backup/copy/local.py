"""The engine `local`: one event loop of this host copies, from and to buckets and folders; no Spark.

A run that broke off goes on by its ledger; what is told of there is not copied again.
"""

import asyncio
import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, TypeVar
from uuid import uuid4

import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.copy.engine import (
    COPY_ITEM_COLUMNS,
    CopyItem,
    CopyTask,
    Ledger,
    LedgerWriter,
    NotCopied,
    Outcome,
    Progress,
    ReportProgress,
    compute_digests,
    read_items,
    write_report,
)
from lakeshare_pipelines.backup.copy.objects import (
    MTIME,
    BucketSource,
    Copier,
    CopyTerms,
    MemoryBudget,
    PartsCopier,
    ServerSideCopier,
    SourceObject,
    StreamedCopier,
    Uploads,
    make_key_taken_error,
    split_ranges,
)
from lakeshare_pipelines.backup.model import (
    COPY_RESULTS,
    CopyRecord,
    read_rows,
    select_rows_to_copy,
    write_rows,
)
from lakeshare_pipelines.backup.stores import BackupStore, open_store
from lakeshare_pipelines.backup.stores.async_s3 import PREFIX_PER_S, AsyncS3, Pace, Response, quote_path
from lakeshare_pipelines.backup.stores.store import (
    CREDENTIALS,
    FOLDER,
    REFUSALS,
    UNFINISHED,
    FolderStore,
    StoreAddress,
    compute_etag,
    move_into_place,
)
from lakeshare_pipelines.errors import BackupError, NoResponse, ObjectMissing

FAILURES_COUNT_FROM = 1000
MAX_FAILED_FRACTION = 0.5
FREE_SPACE = "Free space there, or give the backup another target; what is copied already stays."
ENDS = {
    "InvalidAccessKeyId": CREDENTIALS,
    "InvalidToken": CREDENTIALS,
    "SignatureDoesNotMatch": CREDENTIALS,
    "RequestTimeTooSkewed": "Set the clock of this host.",
    "QuotaExceeded": FREE_SPACE,
    "InsufficientStorage": FREE_SPACE,
    "XMinioStorageFull": FREE_SPACE,
    "HTTP507": FREE_SPACE,
}
"""What holds for every other object too, and what to do about it."""
"""As Batch Operations has it: after so many objects, a greater share of failures ends the copying."""


async def copy_all(
    copier: Copier,
    rows: Iterable[CopyItem],
    in_flight: int,
    writer: LedgerWriter,
    on_outcome: Callable[[Outcome], None],
) -> None:
    """Copy all rows, at most `in_flight` at a time; each outcome goes to the ledger and to `told`.

    Raises:
        BackupError: nothing more can be copied, or `told` had enough; what was done is in the ledger.
    """
    left = iter(rows)

    async def work() -> None:
        for wanted in left:
            await writer.begin()
            outcome = await try_copy(copier, wanted)
            writer.add(outcome)
            on_outcome(outcome)

    async def all_of_it() -> None:
        async with writer, asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(work())

    await run_with_background(all_of_it(), writer.keep())


async def run_with_background(
    work: Coroutine[object, object, None], *beside: Coroutine[object, object, None]
) -> None:
    """Do `work`; what runs beside it without an end is ended with it, and ends it by a fault of its own.

    Raises:
        Exception: the first fault of either.
    """
    tasks = [asyncio.create_task(one) for one in (work, *beside)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    except* Exception as faults:
        raise _first(faults) from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def try_copy(copier: Copier, item: CopyItem) -> Outcome:
    """What became of an object; that it cannot be copied is an outcome too.

    Raises:
        BackupError: nothing can be copied.
    """
    try:
        return await copier.copy(item)
    except NotCopied as reason:
        return reason.outcome(item)
    except NoResponse as silence:
        return NotCopied("RequestTimeout", None, silence.reason).outcome(item)


class FailureBound:
    """Ends a copying of which most fails: `told` of each outcome."""

    def __init__(self, target: str) -> None:
        self._target, self._seen, self._failed = target, 0, Counter[str]()
        self._words: dict[str, str] = {}

    def count_outcome(self, outcome: Outcome) -> None:
        """Count one.

        Raises:
            BackupError: it is too many.
        """
        self._seen += 1
        if outcome.error_code is None:
            return
        if outcome.error_code in ENDS:
            reason = f"nothing more can be copied: {(outcome.message or outcome.error_code).rstrip('.')}"
            raise BackupError(self._target, reason, ENDS[outcome.error_code])
        self._failed[outcome.error_code] += 1
        self._words[outcome.error_code] = outcome.message or ""
        failed = self._failed.total()
        if self._seen >= FAILURES_COUNT_FROM and failed > MAX_FAILED_FRACTION * self._seen:
            code, times = self._failed.most_common(1)[0]
            raise BackupError(
                self._target,
                f"{failed} of {self._seen} copies failed, {times} of them with {code} ({self._words[code]})",
                "Remove the cause and run it again: what is copied already stays.",
            )


def _first(faults: BaseExceptionGroup[Exception]) -> Exception:
    first = faults.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


class CopyRun:
    """One run of a task, which others can find and stop."""

    def __init__(self, store: BackupStore, task: CopyTask) -> None:
        self._store, self._task, self.id = store, task, uuid4().hex
        store.put(f"{task.work_prefix}run", self.id.encode())

    @staticmethod
    def cancel(store: BackupStore, task: CopyTask) -> None:
        """Ask the newest run to stop; nothing where there is none."""
        try:
            run = store.read(f"{task.work_prefix}run")
        except ObjectMissing:
            return
        store.put(f"{task.work_prefix}cancelled", run)

    def require_wanted(self) -> None:
        """Go on only if nobody stopped this run.

        Raises:
            BackupError: somebody did.
        """
        try:
            cancelled = self._store.read(f"{self._task.work_prefix}cancelled").decode()
        except ObjectMissing:
            return
        if cancelled == self.id:
            raise BackupError(
                str(self._task.target),
                "the copy was cancelled",
                "Run it again to go on: what is copied already stays.",
            )


class CopyCounter:
    """How far a copy is."""

    def __init__(self, task: CopyTask, report_progress: ReportProgress) -> None:
        self._task, self._tell, self._began = task, report_progress, time.monotonic()
        self.objects = self.size_bytes = self.failed = 0
        self.objects_of = self.size_bytes_of = 0
        for batch in select_rows_to_copy(read_rows(task.plan, ["lane", "size_bytes"])):
            self.objects_of += batch.num_rows
            self.size_bytes_of += pc.sum(batch.column("size_bytes")).as_py() or 0

    def left(self, before: set[bytes]) -> Iterator[CopyItem]:
        """The objects of the task that are still to be copied; the others, whose digests are told, count as done."""
        for wanted in read_items(read_rows(self._task.plan, COPY_ITEM_COLUMNS)):
            if before and wanted.digest in before:
                self.objects += 1
                self.size_bytes += wanted.size_bytes
            else:
                yield wanted

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        self.objects += 1
        self.failed += not outcome.is_success
        self.size_bytes += outcome.wanted.size_bytes if outcome.is_success else 0

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    def report_progress(self) -> None:
        """Say how far it is."""
        sizes = (self.size_bytes, self.size_bytes_of)
        self._tell(Progress(self.objects, self.objects_of, *sizes, self.failed, self.seconds))


def finish_copy(
    store: BackupStore,
    task: CopyTask,
    engine: str,
    ledger: Ledger,
    capabilities: dict[str, bool],
    seconds: float,
) -> CopyRecord:
    """Write the report and the rows of a copy that is done, from its ledger.

    Raises:
        BackupError: the ledger does not tell of every row of the plan.
    """
    planned = {
        digest for batch in select_rows_to_copy(read_rows(task.plan)) for digest in compute_digests(batch)
    }
    objects = len(planned)
    for left in (task.done, task.done.with_name(f".{task.done.name}.part")):
        if left.exists():
            shutil.rmtree(left)
    write_rows(task.done, COPY_RESULTS, ledger.done(planned))
    report = write_report(store, task.work_prefix, task.token(), read_rows(task.done))
    succeeded = size_bytes = 0
    for batch in read_rows(task.done):
        done = batch.filter(pc.equal(batch.column("status"), "succeeded"))
        succeeded += done.num_rows
        size_bytes += pc.sum(done.column("size_bytes")).as_py() or 0
    return CopyRecord(
        engine=engine,
        succeeded=succeeded,
        failed=objects - succeeded,
        size_bytes=size_bytes,
        seconds=seconds,
        reports=(report,),
        capabilities=capabilities,
    )


CONTENT = b"lakeshare asks what this store can"


class Capabilities(BaseModel):
    """What a store does; recorded in CopyRecord."""

    model_config = ConfigDict(frozen=True)

    copies_on_condition: bool = True
    """A copy whose source has another ETag than asked for is refused."""
    copies_parts: bool = True
    """Ranges are copied into parts, and the part's ETag is told."""
    writes_on_condition: bool = True
    """A write that is to overwrite nothing is refused where the key is taken."""
    checks_checksums: bool = True
    """A body that is not what its checksum says is refused."""
    versions: bool = False
    locks: bool = False


async def probe_capabilities(target: AsyncS3, work_prefix: str) -> Capabilities:
    """What a bucket does.

    Raises:
        BackupError: it takes nothing from us.
    """
    source, copy = f"{work_prefix}probe/source", f"{work_prefix}probe/copy"
    written = await target.request("PUT", source, body=CONTENT)
    if not written.is_success:
        raise make_refusal(target, source, written)
    from_there = {"x-amz-copy-source": f"/{target.address.bucket}/{quote_path(source)}"}
    other = {**from_there, "x-amz-copy-source-if-match": f'"{"0" * 32}"'}
    wrong_sum = {"x-amz-checksum-sha256": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}
    on_condition, again, checked, locked, parts = await asyncio.gather(
        target.request("PUT", copy, headers=other, attempts=1),
        target.request("PUT", source, headers={"if-none-match": "*"}, body=CONTENT, attempts=1),
        target.request("PUT", f"{work_prefix}probe/checked", headers=wrong_sum, body=CONTENT, attempts=1),
        target.request("GET", query={"object-lock": ""}, attempts=1),
        _probe_part_copies(target, f"{work_prefix}probe/parts", from_there),
    )
    return Capabilities(
        copies_on_condition=on_condition.status == 412,
        copies_parts=parts,
        writes_on_condition=again.status == 412,
        checks_checksums=not checked.is_success,
        versions=written.headers.get("x-amz-version-id") not in {None, "null"},
        locks=locked.is_success and b"Enabled" in locked.body,
    )


async def _probe_part_copies(target: AsyncS3, key: str, source: dict[str, str]) -> bool:
    begun = await target.request("POST", key, {"uploads": ""}, attempts=1)
    upload = begun.text("UploadId")
    if not begun.is_success or not upload:
        return False
    part = await target.request(
        "PUT",
        key,
        {"partNumber": "1", "uploadId": upload},
        {**source, "x-amz-copy-source-range": f"bytes=0-{len(CONTENT) - 1}"},
        attempts=1,
    )
    await target.request("DELETE", key, {"uploadId": upload}, attempts=1)
    return part.is_success and bool(part.text("ETag"))


def make_refusal(target: AsyncS3, key: str, response: Response) -> BackupError:
    """A sentence for a store that takes nothing from us."""
    reason, fix = REFUSALS.get(
        response.code, (f"the store refused: {response.message}", "What is copied already stays.")
    )
    return BackupError(target.address.location(key), reason, fix)


CHUNK_BYTES = 1 << 20
PIECE_BYTES = 16 * 1024**2
DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
S3_CODES = {
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

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy one."""
        return await run_in_thread(lambda: self._copy(item))

    def _copy(self, item: CopyItem) -> Outcome:
        place = get_file_path(self._target, item.stored_key)
        there = None if self._terms.overwrite else find_same_file(place, item)
        if there is not None:
            return there
        digest = sha256()
        # It gets its name after the source was looked at again.
        with (
            write_file(place, self._terms) as writing,
            open_as_listed(self._source, item, self._terms) as (file, found),
        ):
            writing.modified_ns = found.st_mtime_ns
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                writing.file.write(chunk)
        return make_file_outcome(item, place, f"sha256:{digest.hexdigest()}")


class FolderSource:
    """Files read piece by piece."""

    def __init__(self, store: FolderStore, terms: CopyTerms) -> None:
        self._store, self._terms = store, terms

    async def opened(self, item: CopyItem) -> SourceObject:
        def look() -> SourceObject:
            with open_as_listed(self._store, item, self._terms) as (_, found):
                return _make_source_object(found)

        return await run_in_thread(look)

    async def whole(self, item: CopyItem) -> tuple[SourceObject, bytes]:
        def read() -> tuple[SourceObject, bytes]:
            with open_as_listed(self._store, item, self._terms) as (file, found):
                return _make_source_object(found), file.read()

        return await run_in_thread(read)

    async def piece(self, item: CopyItem, start: int, end: int) -> bytes:
        def read() -> bytes:
            with open_as_listed(self._store, item, self._terms) as (file, _):
                file.seek(start)
                return file.read(end - start)

        return await run_in_thread(read)


class FetchingCopier:
    """From a bucket into a folder."""

    def __init__(self, source: BucketSource, target: FolderStore, terms: CopyTerms) -> None:
        self._source, self._target, self._terms = source, target, terms

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy one; larger ones piece by piece."""
        place = get_file_path(self._target, item.stored_key)
        if not self._terms.overwrite and place.exists():
            return await self._compared(item, place)
        if item.size_bytes <= PIECE_BYTES:
            opened, content = await self._source.whole(item)
            return await run_in_thread(lambda: self._write(item, place, opened, content))
        opened, digest = await self._source.opened(item), sha256()
        with translate_disk_errors(), write_file(place, self._terms) as writing:
            writing.modified_ns = opened.modified_ns
            for start, end in split_ranges(item.size_bytes, PIECE_BYTES):
                content = await self._source.piece(item, start, end)
                digest.update(content)
                await run_in_thread(partial(writing.file.write, content))
        return make_file_outcome(item, place, f"sha256:{digest.hexdigest()}")

    def _write(self, item: CopyItem, place: Path, opened: SourceObject, content: bytes) -> Outcome:
        with write_file(place, self._terms) as writing:
            writing.modified_ns = opened.modified_ns
            writing.file.write(content)
        return make_file_outcome(item, place, f"sha256:{sha256(content).hexdigest()}")

    async def _compared(self, item: CopyItem, place: Path) -> Outcome:
        """What is there may be this very object, of a run that broke off: its content tells."""
        size = (await run_in_thread(place.stat)).st_size
        if size != item.size_bytes:
            raise make_key_taken_error(str(place))
        here, stored = sha256(), sha256()
        for start, end in split_ranges(size, PIECE_BYTES):
            stored.update(await self._source.piece(item, start, end) if size else b"")
            here.update(await run_in_thread(partial(_read_bytes, place, start, end)))
        if here.digest() != stored.digest():
            raise make_key_taken_error(str(place))
        return make_file_outcome(item, place, f"sha256:{here.hexdigest()}")


@contextmanager
def open_as_listed(
    store: FolderStore, item: CopyItem, terms: CopyTerms
) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A file, open, that is what was listed both before and after it was read.

    Raises:
        NotCopied: it is not.
    """
    place = get_file_path(FolderStore(store.address.at(item.bucket)), item.key)
    with place.open("rb") as file:
        found = os.fstat(file.fileno())
        if item.etag is None and found.st_mtime > terms.as_of.timestamp():
            raise NotCopied.changed(f"{place} was modified after {terms.as_of:%Y-%m-%d %H:%M:%S} UTC")
        listed = item.etag or compute_etag(found)
        if compute_etag(found) != listed:
            raise NotCopied.changed(f"{place} changed since it was listed")
        yield file, found
        if compute_etag(os.fstat(file.fileno())) != listed or compute_etag(place.stat()) != listed:
            raise NotCopied.changed(f"{place} changed while it was copied")


@dataclass
class FileInProgress:
    """A file that is being written, and the time it is to have."""

    file: BinaryIO
    modified_ns: int = 0


@contextmanager
def write_file(place: Path, terms: CopyTerms) -> Iterator[FileInProgress]:
    """A file that gets its name when it is whole, with the time of what it is a copy of.

    Raises:
        NotCopied: nothing is to be overwritten, and the name is taken.
    """
    unfinished = place.with_name(f"{UNFINISHED}{uuid4().hex}")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with unfinished.open("xb") as file:
            writing = FileInProgress(file)
            yield writing
        os.utime(unfinished, ns=(writing.modified_ns, writing.modified_ns))
        if not move_into_place(unfinished, place, if_absent=not terms.overwrite):
            raise make_key_taken_error(str(place))
    finally:
        with suppress(FileNotFoundError):
            unfinished.unlink()


def find_same_file(place: Path, item: CopyItem) -> Outcome | None:
    """The copy of a file that is there already, known by its time and size; None where the name is free.

    Raises:
        NotCopied: something else has the name.
    """
    try:
        found = place.stat()
    except FileNotFoundError:
        return None
    if compute_etag(found) != item.etag:
        raise make_key_taken_error(str(place))
    return make_file_outcome(item, place, None)


def make_file_outcome(item: CopyItem, place: Path, checksum: str | None) -> Outcome:
    """The row of a copy that is a file."""
    return Outcome(item, stored_etag=compute_etag(place.stat()), checksum=checksum)


def get_file_path(store: FolderStore, key: str) -> Path:
    """The file of a key. Raises NotCopied where no file can have such a name."""
    try:
        return store.path(key)
    except BackupError as error:
        raise NotCopied("InvalidKey", 400, f"{error.subject}: {error.reason}") from error


async def run_in_thread(work: Callable[[], Result]) -> Result:
    """Do what waits for the disk in a thread.

    Raises:
        NotCopied: the disk refused one file.
        BackupError: it takes nothing more.
    """

    def run() -> Result:
        with translate_disk_errors():
            return work()

    return await asyncio.to_thread(run)


@contextmanager
def translate_disk_errors() -> Iterator[None]:
    """What a disk says, in S3's words."""
    try:
        yield
    except OSError as error:
        reason, where = error.strerror or str(error), str(error.filename or error.filename2 or "the disk")
        if error.errno in DISK_FULL_ERRNOS:
            fix = "Free space there, or give the backup another target; what is copied already stays."
            raise BackupError(where, f"the disk takes nothing more: {reason}", fix) from error
        code, status = S3_CODES.get(error.errno or 0, ("InternalError", 500))
        raise NotCopied(code, status, f"{where}: {reason}") from error


def _make_source_object(found: os.stat_result) -> SourceObject:
    whole, part = divmod(found.st_mtime_ns, 10**9)
    return SourceObject(found.st_size, found.st_mtime_ns, {MTIME: f"{whole}.{part:09}"})


def _read_bytes(place: Path, start: int, end: int) -> bytes:
    with place.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


@dataclass(frozen=True)
class CopySession:
    """An open way; for the event loop that opened it."""

    copier: Copier
    capabilities: Mapping[str, bool]
    pace: Pace | None
    """Of the target's requests; None for a folder."""


@asynccontextmanager
async def open_copy_session(
    task: CopyTask,
    *,
    in_flight: int | None = None,
    capabilities: Capabilities | None = None,
    prefix_per_s: float = PREFIX_PER_S,
) -> AsyncIterator[CopySession]:
    """The way of a task until the end of the block.

    `in_flight` and `prefix_per_s` are the share of one process where several copy side by side; `capabilities` are
    those that another process found, else the target is probed.

    Raises:
        BackupError: there are no credentials, or the target takes nothing.
    """
    in_flight = in_flight or task.in_flight
    async with AsyncExitStack() as stack:
        if task.target.kind == FOLDER:
            yield await _open_folder_session(stack, task, in_flight)
            return
        pace = Pace(in_flight, prefix_per_s)
        target = await stack.enter_async_context(AsyncS3(task.target, in_flight, pace=pace))
        known = capabilities or await probe_capabilities(target, task.work_prefix)
        terms = CopyTerms(
            as_of=task.as_of,
            copy_limit_bytes=task.copy_limit_bytes,
            overwrite=task.overwrite,
            source=task.source,
            is_conditional=known.copies_on_condition,
            copies_parts=known.copies_parts,
        )
        uploads, memory = Uploads(target, task.work_prefix, terms), MemoryBudget()
        if task.source.kind == FOLDER:
            files = FolderSource(FolderStore(task.source), terms)
            yield CopySession(StreamedCopier(files, target, terms, uploads, memory), known.model_dump(), pace)
            return
        source = await stack.enter_async_context(AsyncS3(task.source, in_flight))
        streamed = StreamedCopier(BucketSource(source), target, terms, uploads, memory)
        if not is_one_store(task.source, task.target):
            yield CopySession(streamed, known.model_dump(), pace)
            return
        larger = PartsCopier(source, target, terms, uploads) if terms.copies_parts else streamed
        yield CopySession(ServerSideCopier(source, target, terms, larger), known.model_dump(), pace)


def is_one_store(source: StoreAddress, target: StoreAddress) -> bool:
    """Whether the store itself can copy from one to the other; who writes the target then must read the source too."""
    return source.kind == target.kind and source.endpoint == target.endpoint


async def _open_folder_session(stack: AsyncExitStack, task: CopyTask, in_flight: int) -> CopySession:
    terms = CopyTerms(as_of=task.as_of, overwrite=task.overwrite)
    target = FolderStore(task.target)
    if task.source.kind == FOLDER:
        return CopySession(FolderCopier(FolderStore(task.source), target, terms), {}, None)
    source = await stack.enter_async_context(AsyncS3(task.source, in_flight))
    return CopySession(FetchingCopier(BucketSource(source), target, terms), {}, None)


PROGRESS_S = 1.0


class LocalEngine:
    """Copies in this process.

    `capabilities` are the target's, where somebody found them out already; `prefix_per_s` is the share of a prefix's
    requests that this process may make, where others copy beside it.
    """

    name = "local"

    def __init__(
        self, *, capabilities: Capabilities | None = None, prefix_per_s: float = PREFIX_PER_S
    ) -> None:
        self._capabilities, self._prefix_per_s = capabilities, prefix_per_s

    def copy(self, task: CopyTask, report_progress: ReportProgress) -> CopyRecord:
        """Copy all rows of a task (CopyEngine.copy)."""
        store, count = open_store(task.target), CopyCounter(task, report_progress)
        run, ledger = CopyRun(store, task), Ledger(store, task.work_prefix)
        capabilities = asyncio.run(self._copied(task, ledger, count, run))
        run.require_wanted()
        count.report_progress()
        return finish_copy(store, task, self.name, ledger, capabilities, count.seconds)

    def cancel(self, task: CopyTask) -> None:
        """Stop the run of a task, in whichever process it is; it ends within seconds."""
        CopyRun.cancel(open_store(task.target), task)

    async def _copied(
        self, task: CopyTask, ledger: Ledger, count: CopyCounter, run: CopyRun
    ) -> dict[str, bool]:
        bound = FailureBound(str(task.target))

        def on_outcome(outcome: Outcome) -> None:
            count.add(outcome)
            bound.count_outcome(outcome)

        async def watch() -> None:
            while True:
                await asyncio.to_thread(run.require_wanted)
                count.report_progress()
                await asyncio.sleep(PROGRESS_S)

        # A folder's copies are to be on the disk before the ledger says so.
        settle = os.sync if task.target.kind == FOLDER else None
        writer = LedgerWriter(ledger, count.objects_of, task.in_flight, settle)
        async with open_copy_session(
            task, capabilities=self._capabilities, prefix_per_s=self._prefix_per_s
        ) as way:
            rows = count.left(await asyncio.to_thread(ledger.copied))
            await run_with_background(copy_all(way.copier, rows, task.in_flight, writer, on_outcome), watch())
            return dict(way.capabilities)
