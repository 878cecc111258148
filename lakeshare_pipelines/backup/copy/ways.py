"""The way from one store to another: inside a store of S3's kind, through this host, or between folders."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from lakeshare_pipelines.backup.copy.capabilities import Capabilities, capabilities_of
from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.copy.folders import FetchingCopier, FolderCopier, FolderSource
from lakeshare_pipelines.backup.copy.objects import Copier, CopyTerms, ServerSideCopier
from lakeshare_pipelines.backup.copy.parts import PartsCopier, Uploads
from lakeshare_pipelines.backup.copy.sources import BucketSource
from lakeshare_pipelines.backup.copy.streamed import Memory, StreamedCopier
from lakeshare_pipelines.backup.stores.address import FOLDER, StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores.folder import FolderStore
from lakeshare_pipelines.backup.stores.pace import PREFIX_PER_S, Pace


@dataclass(frozen=True)
class Way:
    """An open way; for the event loop that opened it."""

    copier: Copier
    capabilities: Mapping[str, bool]
    pace: Pace | None
    """Of the target's requests; None for a folder."""


@asynccontextmanager
async def open_way(
    task: CopyTask,
    *,
    in_flight: int | None = None,
    capabilities: Capabilities | None = None,
    prefix_per_s: float = PREFIX_PER_S,
) -> AsyncIterator[Way]:
    """The way of a task until the end of the block.

    `in_flight` and `prefix_per_s` are the share of one process where several copy side by side; `capabilities` are
    those that another process found, else the target is probed.

    Raises:
        BackupError: there are no credentials, or the target takes nothing.
    """
    in_flight = in_flight or task.in_flight
    async with AsyncExitStack() as stack:
        if task.target.kind == FOLDER:
            yield await _into_a_folder(stack, task, in_flight)
            return
        pace = Pace(in_flight, prefix_per_s)
        target = await stack.enter_async_context(AsyncS3(task.target, in_flight, pace=pace))
        known = capabilities or await capabilities_of(target, task.work_prefix)
        terms = CopyTerms(
            as_of=task.as_of,
            copy_limit_bytes=task.copy_limit_bytes,
            overwrite=task.overwrite,
            source=task.source,
            is_conditional=known.copies_on_condition,
            copies_parts=known.copies_parts,
        )
        uploads, memory = Uploads(target, task.work_prefix, terms), Memory()
        if task.source.kind == FOLDER:
            files = FolderSource(FolderStore(task.source), terms)
            yield Way(StreamedCopier(files, target, terms, uploads, memory), known.model_dump(), pace)
            return
        source = await stack.enter_async_context(AsyncS3(task.source, in_flight))
        streamed = StreamedCopier(BucketSource(source), target, terms, uploads, memory)
        if not is_one_store(task.source, task.target):
            yield Way(streamed, known.model_dump(), pace)
            return
        larger = PartsCopier(source, target, terms, uploads) if terms.copies_parts else streamed
        yield Way(ServerSideCopier(source, target, terms, larger), known.model_dump(), pace)


def is_one_store(source: StoreAddress, target: StoreAddress) -> bool:
    """Whether the store itself can copy from one to the other; who writes the target then must read the source too."""
    return source.kind == target.kind and source.endpoint == target.endpoint


async def _into_a_folder(stack: AsyncExitStack, task: CopyTask, in_flight: int) -> Way:
    terms = CopyTerms(as_of=task.as_of, overwrite=task.overwrite)
    target = FolderStore(task.target)
    if task.source.kind == FOLDER:
        return Way(FolderCopier(FolderStore(task.source), target, terms), {}, None)
    source = await stack.enter_async_context(AsyncS3(task.source, in_flight))
    return Way(FetchingCopier(BucketSource(source), target, terms), {}, None)
