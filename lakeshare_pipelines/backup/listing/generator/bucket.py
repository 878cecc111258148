"""A bucket listed by many requests at a time: folders first, then ranges that are cut in two while they are listed."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakeshare_pipelines.backup.listing.generator.pages import Page, read_page
from lakeshare_pipelines.backup.listing.generator.ranges import FIRST_THREE, KeyRange, cut_of, folders_behind
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores.s3 import refused
from lakeshare_pipelines.errors import BackupError

PAGE_KEYS = 1000
"""What S3 answers at most."""
RANGES_EACH = 2
"""Ranges for each request at a time that the first look at the folders aims at."""
PAGES_BEFORE_CUT = 8
"""How long a range is before it is cut: finding a cut takes as many requests as a few pages, though small ones."""
PAGES_AFTER_FAILURE = 32
WAITING = 4
"""Pages for each request at a time that wait for whoever writes them down."""


class BucketListing:
    """The listing of one bucket; an instance lists once."""

    def __init__(
        self, s3: AsyncS3, *, in_flight: int, versions: bool = False, page_keys: int = PAGE_KEYS
    ) -> None:
        self.s3, self.in_flight, self.versions = s3, in_flight, versions
        self.page_keys = str(page_keys)
        self.bucket = s3.address.bucket
        # AWS documents that keys are sorted by their bytes; of the others not all do, nor in all of their listings.
        self.sorts_keys = s3.address.endpoint is None

    async def ranges(self, prefix: str, wanted: int) -> tuple[list[KeyRange], list[pa.RecordBatch]]:
        """About `wanted` ranges, if there are so many folders, and the rows of what lies beside the folders."""
        level = [KeyRange(prefix)]
        ranges: list[KeyRange] = []
        beside: list[pa.RecordBatch] = []
        while level and len(level) + len(ranges) < wanted:
            pages = await asyncio.gather(*(self._folder(one.prefix) for one in level))
            below: list[KeyRange] = []
            for one, page in zip(level, pages, strict=True):
                if page.next:
                    # So many names side by side are cut while they are listed.
                    ranges.append(one)
                    continue
                below += [KeyRange(found) for found in page.prefixes]
                beside.append(page.rows(self.bucket))
            level = below
        return ranges + level, beside

    async def rows(self, ranges: list[KeyRange]) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows of ranges, page by page as they come.

        Raises:
            BackupError: the store refused, or lists in an order in which ranges cannot be told apart.
        """
        pages: asyncio.Queue[pa.RecordBatch | None] = asyncio.Queue(WAITING * self.in_flight)
        work = _Work(self, ranges, pages)
        workers = [asyncio.create_task(work.take_part()) for _ in range(self.in_flight)]
        everybody = asyncio.create_task(_all_done(workers, pages))
        try:
            while (page := await pages.get()) is not None:
                yield page
            await everybody
        finally:
            for task in (*workers, everybody):
                task.cancel()
            await asyncio.gather(*workers, everybody, return_exceptions=True)

    async def page(self, prefix: str, place: Mapping[str, str], **more: str) -> Page:
        """One answer of the store's listing, of names with a prefix, after a place."""
        kind = {"versions": ""} if self.versions else {"list-type": "2"}
        asked = {"prefix": prefix, "encoding-type": "url", "max-keys": self.page_keys}
        query = kind | asked | more | dict(place)
        answer = await self.s3.request("GET", query=query)
        where = self.s3.address.location(prefix)
        if not answer.is_success:
            raise refused(where, answer.code, answer.message)
        try:
            return read_page(answer.body)
        except ValueError as error:
            fix = "Check that the endpoint is S3's or of its kind."
            raise BackupError(where, f"its listing cannot be read: {error}", fix) from error

    def after(self, place: str) -> dict[str, str]:
        """The query for what lies after a place."""
        return {"key-marker" if self.versions else "start-after": place} if place else {}

    async def look(
        self, prefix: str, after: str = "", *, most: int = 1, by_folder: bool = False
    ) -> list[str]:
        """A few names (ranges.Look)."""
        folder = {"delimiter": "/"} if by_folder else {}
        page = await self.page(prefix, self.after(after), **{"max-keys": str(most)}, **folder)
        return sorted(page.keys + page.prefixes)

    async def _folder(self, prefix: str) -> Page:
        return await self.page(prefix, {}, delimiter="/")


@dataclass(eq=False)
class _Open:
    """A range that is being listed."""

    keys: KeyRange
    last: str = ""
    pages: int = 0
    cut_from: int = PAGES_BEFORE_CUT
    is_being_cut: bool = False
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class _Work:
    """What the workers of one listing share: ranges that wait, ranges that are listed."""

    def __init__(
        self, listing: BucketListing, ranges: list[KeyRange], pages: "asyncio.Queue[pa.RecordBatch | None]"
    ) -> None:
        self.listing, self.pages = listing, pages
        self.waiting = deque(ranges)
        self.open: set[_Open] = set()
        self.changed = asyncio.Condition()
        self.looked_behind: set[str] = set()

    async def take_part(self) -> None:
        """Be one worker: list what waits, else cut a range that another lists and take the rest of it."""
        while True:
            if self.waiting:
                await self._list(self.waiting.popleft())
            elif longest := self._longest():
                rest = await self._cut(longest)
                if rest is not None:
                    await self._list(rest)
            elif self.open:
                async with self.changed:
                    # Asked again under the lock: what changed before it was taken is not told again.
                    if self.open and not self.waiting and not self._longest():
                        await self.changed.wait()
            else:
                return

    async def _list(self, keys: KeyRange) -> None:
        one = _Open(keys)
        self.open.add(one)
        try:
            place = self.listing.after(keys.after)
            while True:
                page = await self.listing.page(keys.prefix, place)
                if page.next and self.listing.versions and not self.listing.sorts_keys:
                    return await self._list_by_folder(keys.prefix)
                rows, is_past = _within(page, one.keys, self.listing.bucket)
                one.pages += 1
                if page.keys:
                    one.last = page.keys[-1]
                if rows.num_rows:
                    await self.pages.put(rows)
                if is_past or not page.next:
                    return
                place = dict(page.next)
                if one.pages == one.cut_from:
                    await self._tell()
        finally:
            self.open.discard(one)
            one.is_over.set()
            await self._tell()

    async def _list_by_folder(self, prefix: str) -> None:
        """List the names in a folder; what is in its folders waits for somebody.

        SeaweedFS 4.48 sorts versions by whole keys, but goes on by folders: behind a page that ends in `a/` it never
        lists `a-b/`, nor the other way round. Within one folder there is nothing to confuse.
        """
        place: dict[str, str] = {}
        while True:
            page = await self.listing.page(prefix, place, delimiter="/")
            if page.keys:
                await self.pages.put(page.rows(self.listing.bucket))
            self.waiting += [KeyRange(folder) for folder in page.prefixes]
            await self._tell()
            if not page.next:
                return
            place = dict(page.next)
            await self._refuse_confusion(prefix, place["key-marker"])

    async def _refuse_confusion(self, prefix: str, marker: str) -> None:
        """Stop where a page ends between two names that the store may take in either order."""
        behind = [folder for folder in folders_behind(prefix, marker) if folder not in self.looked_behind]
        self.looked_behind.update(behind)
        found = await asyncio.gather(*(self.listing.look(folder) for folder in behind))
        confused = [key for keys in found for key in keys]
        if marker.endswith("/"):
            stem = marker.removesuffix("/")
            beside = await self.listing.look(stem, most=FIRST_THREE, by_folder=True)
            confused += [name for name in beside if name[len(stem) :] and name[len(stem)] < "/"]
        if confused:
            raise BackupError(
                f"{self.listing.bucket}: {marker!r} and {confused[0]!r}",
                "the store may confuse their order, and lose versions of one of them",
                "Let the backup list without `versions`, or rename one of the two.",
            )

    def _longest(self) -> _Open | None:
        found = [one for one in self.open if one.pages >= one.cut_from and not one.is_being_cut]
        return max(found, key=lambda one: one.pages, default=None)

    async def _cut(self, one: _Open) -> KeyRange | None:
        """Take the rest of a range; None where it could not be cut, or was listed past the cut meanwhile."""
        one.is_being_cut = True
        keys = one.keys
        looking = asyncio.create_task(
            cut_of(self.listing.look, keys, one.last, in_any_order=not self.listing.sorts_keys)
        )
        over = asyncio.create_task(one.is_over.wait())
        try:
            # Nobody waits for a cut of what is listed already.
            await asyncio.wait((looking, over), return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return None
            cut = looking.result()
            if cut is None or one.last >= cut:
                one.cut_from = one.pages + PAGES_AFTER_FAILURE
                return None
            one.keys = KeyRange(keys.prefix, keys.after, cut)
            return KeyRange(keys.prefix, cut, keys.until)
        finally:
            one.is_being_cut = False
            looking.cancel()
            over.cancel()
            await asyncio.gather(looking, over, return_exceptions=True)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _within(page: Page, keys: KeyRange, bucket: str) -> tuple[pa.RecordBatch, bool]:
    """The rows of a page that are in the range, and whether the page goes past it."""
    rows = page.rows(bucket)
    outside = next((key for key in page.keys if key <= keys.after), None) if keys.after else None
    if outside is not None:
        raise BackupError(
            f"{bucket}: key {outside!r}",
            f"the store lists it after {keys.after!r}: ranges of keys cannot be told apart there",
            "List with one request at a time: `in_flight: 1`.",
        )
    if keys.until is None:
        return rows, False
    inside = [not keys.is_past(key) for key in page.keys]
    return (rows, False) if all(inside) else (rows.filter(pa.array(inside, pa.bool_())), True)


async def _all_done(
    workers: "list[asyncio.Task[None]]", pages: "asyncio.Queue[pa.RecordBatch | None]"
) -> None:
    try:
        await asyncio.gather(*workers)
    except Exception:
        await pages.put(None)
        raise
    await pages.put(None)
