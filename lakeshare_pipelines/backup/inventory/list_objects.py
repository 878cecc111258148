"""Lists all objects of a bucket or folder as batches of schema LISTING: in one process, or by Spark's tasks."""

import asyncio
import json
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from html import unescape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup import stores
from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.config import GIB
from lakeshare_pipelines.backup.model import LISTING, ReportMessage, group_batches, make_listing_batch
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.spark.session import count_cores, is_connect
from lakeshare_server.storage.stores import walk_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("lakeshare_pipelines.backup.inventory")


def log_message(sentence: str) -> None:
    log.info("%s", sentence)


FOLDER_ROWS = 10_000


def list_folder_rows(address: StoreAddress, prefix: str = "") -> Iterator[pa.RecordBatch]:
    """All files below a folder, or below the folder `prefix` of it if that exists. Raises BackupError if a folder
    cannot be read, or a name is not UTF-8."""
    root = Path(address.url)
    if prefix and not (root / prefix).is_dir():
        return
    with stores.translate_errors(str(root)):
        # A folder below may vanish while it is listed; this one must exist.
        os.scandir(root).close()
    above = os.fsencode(f"{address.url.rstrip('/')}/")
    start = (above + os.fsencode(prefix)).rstrip(b"/")
    found = ((os.fsdecode(path.removeprefix(above)), status) for path, status in walk_files(start))
    try:
        while files := list(islice(found, FOLDER_ROWS)):
            yield _make_folder_rows(root, files)
    except OSError as error:
        with stores.translate_errors(os.fsdecode(error.filename or above)):
            raise


def _make_folder_rows(root: Path, files: list[tuple[str, os.stat_result]]) -> pa.RecordBatch:
    count = len(files)
    try:
        keys = pa.array([key for key, _ in files], pa.string())
    except UnicodeEncodeError as error:
        name = error.object.encode(errors="backslashreplace").decode()
        reason = "the name is no UTF-8, and no listing can hold it"
        raise BackupError(f"{root}/{name}", reason, "Rename the file.") from error
    milliseconds = [status.st_mtime_ns // 1_000_000 for _, status in files]
    columns = {
        "bucket": pa.repeat(pa.scalar(str(root), pa.string()), count),
        "key": keys,
        "size_bytes": pa.array([status.st_size for _, status in files], pa.int64()),
        "last_modified": pa.array(milliseconds, pa.int64()).cast(LISTING.field("last_modified").type),
        "etag": pa.array([stores.compute_etag(status) for _, status in files], pa.string()),
        "storage_class": pa.repeat("STANDARD", count),
        "is_multipart": pa.repeat(False, count),
    }
    return make_listing_batch(columns, count)


ENDS = (b"</ListBucketResult>", b"</ListVersionsResult>")
OBJECT, VERSION, MARKER = b"<Contents>", b"<Version>", b"<DeleteMarker>"
_ENTRY = re.compile(rb"<(Contents|Version|DeleteMarker)>(.*?)</\1>", re.DOTALL)
_FIELDS = {
    "key": re.compile(rb"<Key>([^<]*)</Key>"),
    "version_id": re.compile(rb"<VersionId>([^<]*)</VersionId>"),
    "is_latest": re.compile(rb"<IsLatest>([^<]*)</IsLatest>"),
    "size_bytes": re.compile(rb"<Size>([0-9]+)</Size>"),
    "last_modified": re.compile(rb"<LastModified>([^<]*)</LastModified>"),
    # With quotes that are escaped by name, by number, or not.
    "etag": re.compile(rb'<ETag>(?:"|&quot;|&#34;)?([^<"&]*)'),
    "storage_class": re.compile(rb"<StorageClass>([^<]*)</StorageClass>"),
    "checksum_algorithm": re.compile(rb"<ChecksumAlgorithm>([^<]*)</ChecksumAlgorithm>"),
}
OF_EVERY_OBJECT = ("key", "size_bytes", "last_modified", "etag")
OF_EVERY_VERSION = (*OF_EVERY_OBJECT, "version_id", "is_latest")
OF_SOME = ("storage_class", "checksum_algorithm")
# Frequent escapes; the others take longer to decode.
_FREQUENT = ((b"%2F", b"/"), (b"%3D", b"="), (b"%3A", b":"), (b"+", b" "))
_PREFIX = re.compile(rb"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>")
_NEXT = {
    "continuation-token": re.compile(rb"<NextContinuationToken>([^<]*)</NextContinuationToken>"),
    "key-marker": re.compile(rb"<NextKeyMarker>([^<]*)</NextKeyMarker>"),
    "version-id-marker": re.compile(rb"<NextVersionIdMarker>([^<]*)</NextVersionIdMarker>"),
}
Column = Sequence[bytes | None]


@dataclass(frozen=True)
class Page:
    """Columns of one response, in its order and spelling, with decoded keys. `next` is added to the query of the next
    request; empty at the end. `prefixes` are those of a delimiter listing."""

    keys: list[str]
    columns: Mapping[str, Column]
    is_marker: list[bool] | None
    prefixes: list[str]
    next: Mapping[str, str]

    def rows(self, bucket: str) -> pa.RecordBatch:
        count = len(self.keys)
        etags, classes = _make_text(self.columns["etag"]), _make_text(self.columns["storage_class"])
        times = _make_text(self.columns["last_modified"])
        is_marker = pa.array(self.is_marker or [False] * count, pa.bool_())
        if classes.null_count:
            # S3 lists delete markers without a class, some stores all objects.
            classes = pc.if_else(is_marker, classes, pc.fill_null(classes, "STANDARD"))
        columns = {
            "bucket": pa.repeat(pa.scalar(bucket, pa.string()), count),
            "key": pa.array(self.keys, pa.string()),
            "is_delete_marker": is_marker,
            "size_bytes": _make_text(self.columns["size_bytes"]).cast(pa.int64()),
            "last_modified": times.cast(LISTING.field("last_modified").type),
            "etag": etags,
            "storage_class": classes,
            # Not listed; the ETag of an upload in parts ends with their number.
            "is_multipart": pc.match_substring(etags, "-"),
            "checksum_algorithm": _make_text(self.columns["checksum_algorithm"]),
        }
        if versions := self.columns.get("version_id"):
            columns["version_id"] = _make_text([None if id_ in {b"null", b""} else id_ for id_ in versions])
        if is_latest := self.columns.get("is_latest"):
            columns["is_latest"] = pa.array([text == b"true" for text in is_latest], pa.bool_())
        return make_listing_batch(columns, count)


def _make_text(column: Column) -> pa.Array:
    return pa.array(column, pa.binary()).cast(pa.string())


def read_page(body: bytes) -> Page:
    """Parse one response. Raises ValueError if it is no listing, or not a complete one."""
    if not body.rstrip().endswith(ENDS):
        raise ValueError("the response is no listing, or not a complete one")
    is_encoded = b"<EncodingType>url</EncodingType>" in body
    columns = _parse_columns(body) or _parse_entries(body)
    is_marker = None
    if MARKER in body:
        is_marker = [kind == b"DeleteMarker" for kind, _ in _ENTRY.findall(body)]
    keys = _read_keys([key for key in columns["key"] if key is not None], is_encoded)
    if len(keys) != len(columns["etag"]):
        raise ValueError("the response has objects without a key")
    prefixes = _read_keys(_PREFIX.findall(body), is_encoded)
    return Page(keys, columns, is_marker, prefixes, _parse_next(body, is_encoded))


def _parse_next(body: bytes, is_encoded: bool) -> dict[str, str]:
    if b"<IsTruncated>true</IsTruncated>" not in body:
        return {}
    matches = {name: expression.search(body) for name, expression in _NEXT.items()}
    markers = {name: match[1] for name, match in matches.items() if match and match[1]}
    if not markers:
        raise ValueError("the response is not the last page, but has no marker of the next")
    return {
        name: _read_keys([value], is_encoded and name == "key-marker")[0] for name, value in markers.items()
    }


def _parse_columns(body: bytes) -> dict[str, Column] | None:
    if MARKER in body:
        return None
    versions = body.count(VERSION)
    count = body.count(OBJECT) or versions
    names = OF_EVERY_VERSION if versions else OF_EVERY_OBJECT
    columns: dict[str, Column] = {name: _FIELDS[name].findall(body) for name in names}
    for name in OF_SOME:
        # The search for a missing field is nearly free.
        columns[name] = _FIELDS[name].findall(body) or [None] * count
    return columns if all(len(column) == count for column in columns.values()) else None


def _parse_entries(body: bytes) -> dict[str, Column]:
    entries = [content for _, content in _ENTRY.findall(body)]
    names = (*(OF_EVERY_OBJECT if OBJECT in body else OF_EVERY_VERSION), *OF_SOME)
    matches = {name: [_FIELDS[name].search(entry) for entry in entries] for name in names}
    return {name: [match[1] if match else None for match in column] for name, column in matches.items()}


def _read_keys(spelt: Sequence[bytes], is_encoded: bool) -> list[str]:
    """Keys of a response, which are escaped like XML and, with `is_encoded`, encoded like forms before that."""
    if any(b"&" in key for key in spelt):
        spelt = [unescape(key.decode()).encode() for key in spelt]
    return decode_keys(spelt) if is_encoded else [key.decode() for key in spelt]


def decode_keys(spelt: Sequence[bytes]) -> list[str]:
    """Decodes keys that are encoded like forms (a blank is a plus). Raises UnicodeDecodeError if one is not UTF-8."""
    joined = b"\n".join(spelt)
    if not spelt or joined.count(b"\n") >= len(spelt) or b"%0A" in joined or b"%0a" in joined:
        return [unquote_to_bytes(key.replace(b"+", b" ")).decode() for key in spelt]
    for escape, plain in _FREQUENT:
        joined = joined.replace(escape, plain)
    return (unquote_to_bytes(joined) if b"%" in joined else joined).decode().split("\n")


HIGHEST = "~"  # The highest character of most keys; higher ones are searched only after a key that has one
SURROGATES = range(0xD800, 0xE000)

FIRST_THREE = 3  # An object, the folder of the same name, and in either order one more name

ListNames = Callable[..., Awaitable[list[str]]]
"""`(prefix, after="", *, most=1, by_folder=False)`: the first keys with a prefix after a key, by one small request.

With `by_folder`, keys with the same folder below the prefix are one name.
"""


@dataclass(frozen=True)
class KeyRange:
    """Keys that begin with `prefix`, are after `after` and not after `until`. Python compares strings by code points,
    which is the order of their UTF-8 bytes."""

    prefix: str
    after: str = ""
    until: str | None = None

    def is_past(self, key: str) -> bool:
        return self.until is not None and key > self.until


async def find_cut(
    list_names: ListNames, keys: KeyRange, last: str, *, in_any_order: bool = True
) -> str | None:
    """A key near the middle of a range's keys after `last`; None if none is found.

    Bisection: first for the leftmost character of `last` in which a later key differs, then for the highest character
    there. Takes about fifteen requests of one key each. With `in_any_order`, the cut divides the keys alike in stores
    that sort whole keys and in stores that sort by folders.
    """

    async def find_after(place: str) -> str | None:
        names = await list_names(keys.prefix, place)
        return names[0] if names and not keys.is_past(names[0]) else None

    # The first position at which some later key has a higher character than `last`.
    low, high = len(keys.prefix), len(last)
    while low < high:
        middle = (low + high) // 2
        if await find_after(_raise_character(last, middle)) is None:
            low = middle + 1
        else:
            high = middle
    if low >= len(last):
        return None
    stem = last[:low]
    later = await find_after(_raise_character(last, low))
    if later is None or not later.startswith(stem) or len(later) <= low:
        return None
    highest = await _find_highest(find_after, stem, later[low])
    middle = (ord(last[low]) + highest + 1) // 2
    cut = stem + chr(middle if middle not in SURROGATES else SURROGATES.stop)
    if cut <= last or (in_any_order and not await _is_safe(list_names, keys.prefix, cut)):
        return None
    return cut


async def _find_highest(find_after: Callable[[str], Awaitable[str | None]], stem: str, known: str) -> int:
    """The code point of the highest character after `stem` in a key; some key has `known` there."""
    low, high = ord(known), max(ord(HIGHEST), ord(known))
    while low < high:
        middle = (low + high + 1) // 2
        key = await find_after(stem + chr(middle)) if middle not in SURROGATES else None
        if key is not None and key.startswith(stem):
            low = max(middle, ord(key[len(stem)]))
            high = max(low, high)
        else:
            high = middle - 1
    return low


def _raise_character(key: str, position: int) -> str:
    higher = min(ord(key[position]) + 1, 0x10FFFF)
    return key[:position] + chr(higher if higher not in SURROGATES else SURROGATES.stop)


def find_enclosing_folders(prefix: str, key: str) -> list[str]:
    """Folders that are before a key if folders are sorted by their names, and behind it if whole keys are sorted."""
    return [f"{key[:at]}/" for at in range(len(prefix), len(key)) if key[at] < "/"]


async def has_folder(list_names: ListNames, folder: str) -> bool:
    """Whether some key begins with a folder's name, including the slash; also True if this is not certain.

    Lists two names instead of one key below the folder: without such a key, SeaweedFS 4.48 would read all names with
    the same beginning, which can be most of a bucket.
    """
    stem = folder[:-1]
    first, behind = await asyncio.gather(
        # If folders are sorted by their names, it is the first of the names with the same beginning.
        list_names(stem, most=FIRST_THREE, by_folder=True),
        # If whole keys are sorted, it is the first behind all with a character lower than its slash.
        list_names(stem, f"{stem}.{chr(sys.maxunicode)}", by_folder=True),
    )
    return folder in first or any(name <= folder for name in behind)


async def _is_safe(list_names: ListNames, prefix: str, cut: str) -> bool:
    """Whether a cut divides keys alike in both orders.

    It does not if a folder's name ends where the cut continues below the slash (`a/` and the cut `a-5`), nor if the
    cut has a slash where other names continue below it (`a-b` and the cut `a/5`).
    """
    slashes = [at for at in range(len(prefix), len(cut)) if cut[at] == "/"]
    candidates = (*find_enclosing_folders(prefix, cut), f"{cut}/")
    folders, names = await asyncio.gather(
        asyncio.gather(*(has_folder(list_names, folder) for folder in candidates)),
        # In either order, the first three names include one below the slash, if there is any.
        asyncio.gather(*(list_names(cut[:at], most=FIRST_THREE, by_folder=True) for at in slashes)),
    )
    pairs = zip(slashes, names, strict=True)
    return not any(folders) and not any(name[at:] and name[at] < "/" for at, some in pairs for name in some)


PAGE_KEYS = 1000  # The maximum of S3
RANGES_EACH = 2  # Ranges per concurrent request to find in the folders
PAGES_BEFORE_CUT = 8  # Finding a cut takes as many requests as a few pages, though small ones
PAGES_AFTER_FAILURE = 32
WAITING = 4  # Pages per concurrent request that wait to be consumed


class BucketListing:
    """The listing of one bucket; an instance lists once."""

    def __init__(
        self, s3: AsyncS3, *, in_flight: int, versions: bool = False, page_keys: int = PAGE_KEYS
    ) -> None:
        self.s3, self.in_flight, self.versions = s3, in_flight, versions
        self.page_keys = str(page_keys)
        self.bucket = s3.address.bucket
        # AWS documents that keys are sorted by their bytes; not all other stores do, nor in all of their listings.
        self.sorts_keys = s3.address.endpoint is None

    async def ranges(self, prefix: str, wanted: int) -> tuple[list[KeyRange], list[pa.RecordBatch]]:
        """About `wanted` ranges, if there are so many folders, and the rows beside the folders."""
        level = [KeyRange(prefix)]
        ranges: list[KeyRange] = []
        beside: list[pa.RecordBatch] = []
        while level and len(level) + len(ranges) < wanted:
            pages = await asyncio.gather(*(self.page(keys.prefix, {}, delimiter="/") for keys in level))
            below: list[KeyRange] = []
            for keys, page in zip(level, pages, strict=True):
                if page.next:
                    # A folder with so many names is cut while it is listed.
                    ranges.append(keys)
                    continue
                below += [KeyRange(folder) for folder in page.prefixes]
                beside.append(page.rows(self.bucket))
            level = below
        return ranges + level, beside

    async def rows(self, ranges: list[KeyRange]) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows of ranges in order of arrival. Raises BackupError if the order of keys does not allow ranges."""
        pages: asyncio.Queue[pa.RecordBatch | None] = asyncio.Queue(WAITING * self.in_flight)
        work = _Work(self, ranges, pages)
        workers = [asyncio.create_task(work.run_worker()) for _ in range(self.in_flight)]

        async def finish() -> None:
            try:
                await asyncio.gather(*workers)
            except Exception:
                await pages.put(None)
                raise
            await pages.put(None)

        finishing = asyncio.create_task(finish())
        try:
            while (page := await pages.get()) is not None:
                yield page
            await finishing
        finally:
            for task in (*workers, finishing):
                task.cancel()
            await asyncio.gather(*workers, finishing, return_exceptions=True)

    async def page(self, prefix: str, place: Mapping[str, str], **more: str) -> Page:
        kind = {"versions": ""} if self.versions else {"list-type": "2"}
        parameters = {"prefix": prefix, "encoding-type": "url", "max-keys": self.page_keys}
        response = await self.s3.request("GET", query=kind | parameters | more | dict(place))
        where = self.s3.address.location(prefix)
        if not response.is_success:
            raise stores.make_refusal(where, response.code, response.message)
        try:
            return read_page(response.body)
        except ValueError as error:
            fix = "Check that the endpoint is that of an S3-compatible store."
            raise BackupError(where, f"its listing cannot be read: {error}", fix) from error

    def after(self, key: str) -> dict[str, str]:
        return {"key-marker" if self.versions else "start-after": key} if key else {}

    async def list_names(
        self, prefix: str, after: str = "", *, most: int = 1, by_folder: bool = False
    ) -> list[str]:
        folder = {"delimiter": "/"} if by_folder else {}
        page = await self.page(prefix, self.after(after), **{"max-keys": str(most)}, **folder)
        return sorted(page.keys + page.prefixes)


@dataclass(eq=False)
class _OpenRange:
    keys: KeyRange
    last: str = ""
    pages: int = 0
    cut_from: int = PAGES_BEFORE_CUT
    is_being_cut: bool = False
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class _Work:
    def __init__(
        self, listing: BucketListing, ranges: list[KeyRange], pages: "asyncio.Queue[pa.RecordBatch | None]"
    ) -> None:
        self.listing, self.pages = listing, pages
        self.waiting = deque(ranges)
        self.open: set[_OpenRange] = set()
        self.changed = asyncio.Condition()
        self.checked_folders: set[str] = set()

    async def run_worker(self) -> None:
        """List waiting ranges, then the rests of ranges that other workers list."""
        while True:
            if self.waiting:
                await self._list(self.waiting.popleft())
            elif longest := self._find_longest():
                rest = await self._cut(longest)
                if rest is not None:
                    await self._list(rest)
            elif self.open:
                async with self.changed:
                    # Checked again under the lock: earlier changes are not notified again.
                    if self.open and not self.waiting and not self._find_longest():
                        await self.changed.wait()
            else:
                return

    async def _list(self, keys: KeyRange) -> None:
        listed = _OpenRange(keys)
        self.open.add(listed)
        try:
            place = self.listing.after(keys.after)
            while True:
                page = await self.listing.page(keys.prefix, place)
                if page.next and self.listing.versions and not self.listing.sorts_keys:
                    return await self._list_by_folder(keys.prefix)
                rows, is_past = _select_range(page, listed.keys, self.listing.bucket)
                listed.pages += 1
                if page.keys:
                    listed.last = page.keys[-1]
                if rows.num_rows:
                    await self.pages.put(rows)
                if is_past or not page.next:
                    return
                place = dict(page.next)
                if listed.pages == listed.cut_from:
                    await self._notify()
        finally:
            self.open.discard(listed)
            listed.is_over.set()
            await self._notify()

    async def _list_by_folder(self, prefix: str) -> None:
        """Lists the names in a folder; its folders become waiting ranges.

        SeaweedFS 4.48 sorts versions by whole keys, but continues by folders: after a page that ends in `a/` it never
        lists `a-b/`, nor the other way round. Within one folder both orders are the same.
        """
        place: dict[str, str] = {}
        while True:
            page = await self.listing.page(prefix, place, delimiter="/")
            if page.keys:
                await self.pages.put(page.rows(self.listing.bucket))
            self.waiting += [KeyRange(folder) for folder in page.prefixes]
            await self._notify()
            if not page.next:
                return
            place = dict(page.next)
            await self._require_unambiguous(prefix, place["key-marker"])

    async def _require_unambiguous(self, prefix: str, marker: str) -> None:
        """Raises BackupError if a page ends between two names that the store may sort in either order."""
        folders = [
            folder for folder in find_enclosing_folders(prefix, marker) if folder not in self.checked_folders
        ]
        self.checked_folders.update(folders)
        listed = await asyncio.gather(*(self.listing.list_names(folder) for folder in folders))
        ambiguous = [key for keys in listed for key in keys]
        if marker.endswith("/"):
            stem = marker.removesuffix("/")
            beside = await self.listing.list_names(stem, most=FIRST_THREE, by_folder=True)
            ambiguous += [name for name in beside if name[len(stem) :] and name[len(stem)] < "/"]
        if ambiguous:
            reason = "the store may confuse their order, and lose versions of one of them"
            fix = "Let the backup list without `versions`, or rename one of the two."
            raise BackupError(f"{self.listing.bucket}: {marker!r} and {ambiguous[0]!r}", reason, fix)

    def _find_longest(self) -> _OpenRange | None:
        candidates = [
            listed for listed in self.open if listed.pages >= listed.cut_from and not listed.is_being_cut
        ]
        return max(candidates, key=lambda listed: listed.pages, default=None)

    async def _cut(self, listed: _OpenRange) -> KeyRange | None:
        """Takes the rest of a range; None if it cannot be cut, or was listed past the cut meanwhile."""
        listed.is_being_cut = True
        keys = listed.keys
        search = asyncio.create_task(
            find_cut(self.listing.list_names, keys, listed.last, in_any_order=not self.listing.sorts_keys)
        )
        over = asyncio.create_task(listed.is_over.wait())
        try:
            # The cut is of no use once the range is listed.
            await asyncio.wait((search, over), return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return None
            cut = search.result()
            if cut is None or listed.last >= cut:
                listed.cut_from = listed.pages + PAGES_AFTER_FAILURE
                return None
            listed.keys = KeyRange(keys.prefix, keys.after, cut)
            return KeyRange(keys.prefix, cut, keys.until)
        finally:
            listed.is_being_cut = False
            search.cancel()
            over.cancel()
            await asyncio.gather(search, over, return_exceptions=True)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _select_range(page: Page, keys: KeyRange, bucket: str) -> tuple[pa.RecordBatch, bool]:
    rows = page.rows(bucket)
    outside = next((key for key in page.keys if key <= keys.after), None) if keys.after else None
    if outside is not None:
        reason = f"the store lists it after {keys.after!r}: ranges of keys cannot be listed there"
        fix = "List with one request at a time: `in_flight: 1`."
        raise BackupError(f"{bucket}: key {outside!r}", reason, fix)
    if keys.until is None:
        return rows, False
    inside = [not keys.is_past(key) for key in page.keys]
    return (rows, False) if all(inside) else (rows.filter(pa.array(inside, pa.bool_())), True)


IN_FLIGHT = 32  # With a thousand keys each, the processor is the limit long before the store
ROWS_A_BATCH = 131_072
PROGRESS_EVERY_S = 1.0


def list_rows(
    source: StoreAddress,
    *,
    prefix: str = "",
    versions: bool = False,
    in_flight: int = IN_FLIGHT,
    ranges: list[KeyRange] | None = None,
    report_progress: ReportMessage | None = log_message,
) -> Iterator[pa.RecordBatch]:
    """All objects of a store, of a folder `prefix` (with a slash at its end) or of ranges of a bucket, unordered:
    batches of about `ROWS_A_BATCH` rows of LISTING."""
    if source.kind == stores.FOLDER:
        batches = list_folder_rows(source, prefix)
    else:
        at = prefix or source.prefix
        batches = _run_generator(_list_bucket_rows(source, at, versions, in_flight, ranges))
    if report_progress is not None:
        batches = _report_rows(batches, source, report_progress)
    return (pa.concat_batches(group) for group in group_batches(batches, ROWS_A_BATCH))


async def _list_bucket_rows(
    source: StoreAddress, prefix: str, versions: bool, in_flight: int, ranges: list[KeyRange] | None
) -> AsyncGenerator[pa.RecordBatch, None]:
    async with AsyncS3(source, in_flight) as s3:
        listing = BucketListing(s3, in_flight=in_flight, versions=versions)
        if ranges is None:
            wanted = RANGES_EACH * in_flight if in_flight > 1 else 1
            ranges, beside = await listing.ranges(prefix, wanted)
            for rows in beside:
                yield rows
        async for rows in listing.rows(ranges):
            yield rows


def _run_generator(pages: AsyncGenerator[pa.RecordBatch, None]) -> Iterator[pa.RecordBatch]:
    """Yields from an event loop, which stands still while a page is consumed."""

    async def read_next() -> pa.RecordBatch:
        return await anext(pages)

    async def close() -> None:
        await pages.aclose()

    with asyncio.Runner() as runner:
        try:
            while True:
                yield runner.run(read_next())
        except StopAsyncIteration:
            return
        finally:
            runner.run(close())


def _report_rows(
    batches: Iterator[pa.RecordBatch], source: StoreAddress, report_progress: ReportMessage
) -> Iterator[pa.RecordBatch]:
    began = reported_at = time.monotonic()
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += pc.sum(batch.column("size_bytes")).as_py() or 0
        if time.monotonic() - reported_at >= PROGRESS_EVERY_S:
            reported_at = time.monotonic()
            report_progress(
                f"{source}: {rows:,} objects of {size / GIB:,.2f} GiB listed, "
                f"{rows / (reported_at - began):,.0f} a second"
            )
        yield batch


RANGES_A_CORE = 16
TASKS_A_CORE = 4  # Tasks differ in the number of objects; the last ones should be short
SPARK_PROGRESS_EVERY_S = 2.0


def list_by_spark(
    spark: "SparkSession",
    source: StoreAddress,
    versions: bool,
    write: Callable[[Iterable[pa.RecordBatch]], Iterable[Sequence[Any]]],
    report_progress: ReportMessage,
) -> list[Any]:
    """List a bucket by Spark's tasks, which `write` the batches of their ranges; returns the results of `write`."""
    cores = count_cores(spark)

    async def find_ranges() -> tuple[list[KeyRange], list[pa.RecordBatch]]:
        async with AsyncS3(source, IN_FLIGHT) as s3:
            listing = BucketListing(s3, in_flight=IN_FLIGHT, versions=versions)
            return await listing.ranges(source.prefix, RANGES_A_CORE * cores)

    ranges, beside = asyncio.run(find_ranges())
    tasks = max(1, min(len(ranges), TASKS_A_CORE * cores))
    report_progress(f"{source}: {len(ranges)} ranges of keys are listed by {tasks} tasks")

    def work(number: int) -> Iterable[Sequence[Any]]:
        return write(list_rows(source, versions=versions, ranges=ranges[number::tasks], report_progress=None))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run_spark_tasks, spark, tasks, work)
        while not wait([future], timeout=SPARK_PROGRESS_EVERY_S).done:
            if not is_connect(spark):
                done = _count_done_tasks(spark, tasks)
                report_progress(f"{done} of {tasks} tasks have listed their ranges")
        results = future.result()
    return [*results, *(write(beside) if beside else ())]


def _count_done_tasks(spark: "SparkSession", tasks: int) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    return max((stage.numCompletedTasks for stage in stages if stage and stage.numTasks == tasks), default=0)


def run_spark_tasks(
    spark: "SparkSession", count: int, work: Callable[[int], Iterable[Sequence[Any]]]
) -> list[Any]:
    """The results of `work` for the numbers up to `count`, sent as JSON; raises the first BackupError of a task, which
    Spark does not retry. With as many partitions as numbers, each has one, in every mode."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                try:
                    results: list[Any] = list(work(number))
                except BackupError as refused:
                    results = [{"refusal": (refused.subject, refused.reason, refused.fix)}]
                texts = [json.dumps(result) for result in results]
                yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["result"])

    rows = spark.range(0, count, 1, count).mapInArrow(run, "result string").collect()
    results = [json.loads(row.result) for row in rows]
    for result in results:
        if isinstance(result, dict):
            raise BackupError(*result["refusal"])
    return results
