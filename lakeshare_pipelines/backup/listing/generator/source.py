"""All of a bucket or folder as batches of a listing, with progress, for whoever writes them down."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.declared import GIB
from lakeshare_pipelines.backup.listing.generator.bucket import RANGES_EACH, BucketListing
from lakeshare_pipelines.backup.listing.generator.folder import folder_rows
from lakeshare_pipelines.backup.listing.generator.ranges import KeyRange
from lakeshare_pipelines.backup.listing.telling import Tell, to_log
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.address import FOLDER
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3

IN_FLIGHT = 32
"""Listing requests at a time: at a thousand keys each they are bound by the processor long before by the store."""
ROWS_A_BATCH = 131_072
TELL_EVERY_S = 1.0


def listed(
    source: StoreAddress, *, versions: bool = False, in_flight: int = IN_FLIGHT, tell: Tell = to_log
) -> Iterator[pa.RecordBatch]:
    """Everything below a source, in no order: rows of schema LISTING in batches of about `ROWS_A_BATCH`.

    Raises:
        BackupError: the store refused, did not answer, or lists in an order that is none.
    """
    if source.kind == FOLDER:
        return in_batches(_told(folder_rows(source), source, tell))
    return in_batches(_told(_now(_bucket_rows(source, versions, in_flight)), source, tell))


def listed_ranges(
    source: StoreAddress, ranges: list[KeyRange], *, versions: bool, in_flight: int = IN_FLIGHT
) -> Iterator[pa.RecordBatch]:
    """The same of some ranges of a bucket."""
    return in_batches(_now(_ranges_rows(source, ranges, versions, in_flight)))


def first_ranges(
    source: StoreAddress, wanted: int, *, versions: bool
) -> tuple[list[KeyRange], list[pa.RecordBatch]]:
    """Ranges that make up a bucket, `wanted` if it has so many folders, and the rows that are in none of them."""

    async def found() -> tuple[list[KeyRange], list[pa.RecordBatch]]:
        async with AsyncS3(source, IN_FLIGHT) as s3:
            return await BucketListing(s3, in_flight=IN_FLIGHT, versions=versions).ranges(
                source.prefix, wanted
            )

    return asyncio.run(found())


def in_batches(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Many small batches as few large ones."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for page in pages:
        held.append(page)
        rows += page.num_rows
        if rows >= ROWS_A_BATCH:
            yield pa.concat_batches(held)
            held, rows = [], 0
    if rows:
        yield pa.concat_batches(held)


async def _bucket_rows(
    source: StoreAddress, versions: bool, in_flight: int
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with AsyncS3(source, in_flight) as s3:
        listing = BucketListing(s3, in_flight=in_flight, versions=versions)
        wanted = RANGES_EACH * in_flight if in_flight > 1 else 1
        ranges, beside = await listing.ranges(source.prefix, wanted)
        for rows in beside:
            yield rows
        async for rows in listing.rows(ranges):
            yield rows


async def _ranges_rows(
    source: StoreAddress, ranges: list[KeyRange], versions: bool, in_flight: int
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with AsyncS3(source, in_flight) as s3:
        async for rows in BucketListing(s3, in_flight=in_flight, versions=versions).rows(ranges):
            yield rows


def _now(pages: AsyncGenerator[pa.RecordBatch, None]) -> Iterator[pa.RecordBatch]:
    """What comes from a loop of its own, which stands still while the last page is used."""
    with asyncio.Runner() as runner:
        try:
            while True:
                yield runner.run(_next(pages))
        except StopAsyncIteration:
            return
        finally:
            runner.run(_closed(pages))


async def _next(pages: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatch:
    return await anext(pages)


async def _closed(pages: AsyncGenerator[pa.RecordBatch, None]) -> None:
    await pages.aclose()


def _told(batches: Iterator[pa.RecordBatch], source: StoreAddress, tell: Tell) -> Iterator[pa.RecordBatch]:
    began = told_at = time.monotonic()
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += pc.sum(batch.column("size_bytes")).as_py() or 0
        if time.monotonic() - told_at >= TELL_EVERY_S:
            told_at = time.monotonic()
            tell(
                f"{source}: {rows:,} objects of {size / GIB:,.2f} GiB listed, {rows / (told_at - began):,.0f} a second"
            )
        yield batch
