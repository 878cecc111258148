"""All of a bucket or folder as batches of a listing, with progress, for whoever writes them down."""

import asyncio
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.backup.config import GIB
from lakeshare_pipelines.backup.inventory.configuration import ReportProgress, log_message
from lakeshare_pipelines.backup.model import LISTING
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3
from lakeshare_pipelines.backup.stores.store import (
    FOLDER,
    UNFINISHED,
    compute_etag,
    make_refusal,
    translate_errors,
)
from lakeshare_pipelines.errors import BackupError

THREADS = 8
"""More gain nothing on a disk of this host; a folder over a network answers as many questions at a time."""
SCANNING = 4 * THREADS
"""Folders at a time that are scanned, or wait for whoever writes them down."""


def list_folder_rows(address: StoreAddress) -> Iterator[pa.RecordBatch]:
    """All files below a folder, a folder at a time, in no order: rows of schema LISTING.

    Raises:
        BackupError: a folder cannot be read, or a file's name is no UTF-8.
    """
    root = Path(address.url)
    with translate_errors(str(root)):
        # Of what vanishes below, nothing is told; the folder itself must be there.
        os.scandir(root).close()
    with ThreadPoolExecutor(THREADS, "folders") as pool:
        waiting, scanning = [""], set[Future[tuple[pa.RecordBatch, list[str]]]]()
        try:
            while waiting or scanning:
                while waiting and len(scanning) < SCANNING:
                    scanning.add(pool.submit(_scan_folder, root, waiting.pop()))
                done, scanning = wait(scanning, return_when=FIRST_COMPLETED)
                for one in done:
                    rows, folders = one.result()
                    waiting += folders
                    if rows.num_rows:
                        yield rows
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _scan_folder(root: Path, folder: str) -> tuple[pa.RecordBatch, list[str]]:
    """The files of one folder, and the folders in it: keys, those of folders with a slash at their end."""
    files: list[tuple[str, os.stat_result]] = []
    folders: list[str] = []
    with translate_errors(str(root / folder)):
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
        "etag": pa.array([compute_etag(found) for _, found in files], pa.string()),
        "storage_class": pa.repeat("STANDARD", count),
        "is_multipart": pa.repeat(False, count),
        "encryption": pa.nulls(count, pa.string()),
        "checksum_algorithm": pa.nulls(count, pa.string()),
    }
    return pa.RecordBatch.from_arrays([found[name] for name in LISTING.names], schema=LISTING)


ENDS = (b"</ListBucketResult>", b"</ListVersionsResult>")
OBJECT, VERSION, MARKER = b"<Contents>", b"<Version>", b"<DeleteMarker>"
_ENTRY = re.compile(rb"<(Contents|Version|DeleteMarker)>(.*?)</\1>", re.DOTALL)
_FIELDS = {
    "key": re.compile(rb"<Key>([^<]*)</Key>"),
    "version_id": re.compile(rb"<VersionId>([^<]*)</VersionId>"),
    "is_latest": re.compile(rb"<IsLatest>([^<]*)</IsLatest>"),
    "size_bytes": re.compile(rb"<Size>([0-9]+)</Size>"),
    "last_modified": re.compile(rb"<LastModified>([^<]*)</LastModified>"),
    # Quoted as it is, by name or by number.
    "etag": re.compile(rb'<ETag>(?:"|&quot;|&#34;)?([^<"&]*)'),
    "storage_class": re.compile(rb"<StorageClass>([^<]*)</StorageClass>"),
    "checksum_algorithm": re.compile(rb"<ChecksumAlgorithm>([^<]*)</ChecksumAlgorithm>"),
}
OF_EVERY_OBJECT = ("key", "size_bytes", "last_modified", "etag")
OF_EVERY_VERSION = (*OF_EVERY_OBJECT, "version_id", "is_latest")
OF_SOME = ("storage_class", "checksum_algorithm")
# Escapes that many keys have; the rest costs a step each.
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
    """Columns of what one answer lists, in its order, spelt as the store spells them but for the keys.

    `next` is what the next request adds to its query; empty at the end. `prefixes` are those of a delimiter listing.
    """

    keys: list[str]
    columns: Mapping[str, Column]
    is_marker: list[bool] | None
    prefixes: list[str]
    next: Mapping[str, str]

    def rows(self, bucket: str) -> pa.RecordBatch:
        """The page as rows of schema LISTING."""
        count = len(self.keys)
        etags = _text(self.columns["etag"])
        found = {
            "bucket": pa.repeat(pa.scalar(bucket, pa.string()), count),
            "key": pa.array(self.keys, pa.string()),
            "version_id": _versions(self.columns.get("version_id"), count),
            "is_latest": _latest(self.columns.get("is_latest"), count),
            "is_delete_marker": pa.array(self.is_marker or [False] * count, pa.bool_()),
            "size_bytes": _text(self.columns["size_bytes"]).cast(pa.int64()),
            "last_modified": _text(self.columns["last_modified"]).cast(LISTING.field("last_modified").type),
            "etag": etags,
            "storage_class": _classes(self.columns["storage_class"], self.is_marker, count),
            # A listing does not tell; the ETag of what was uploaded in parts ends in their number.
            "is_multipart": pc.match_substring(etags, "-"),
            "encryption": pa.nulls(count, pa.string()),
            "checksum_algorithm": _text(self.columns["checksum_algorithm"]),
        }
        return pa.RecordBatch.from_arrays([found[name] for name in LISTING.names], schema=LISTING)


def read_page(body: bytes) -> Page:
    """Take one answer apart.

    Raises:
        ValueError: it is no listing, or not a whole one.
    """
    if not body.rstrip().endswith(ENDS):
        raise ValueError("the answer is no listing, or not a whole one")
    is_encoded = b"<EncodingType>url</EncodingType>" in body
    columns = _in_step(body) or _by_entry(body)
    kinds = None
    if MARKER in body:
        kinds = [kind == b"DeleteMarker" for kind, _ in _ENTRY.findall(body)]
    keys = _decode_keys([key for key in columns["key"] if key is not None], is_encoded)
    if len(keys) != len(columns["etag"]):
        raise ValueError("the answer tells of objects without a key")
    prefixes = _decode_keys(_PREFIX.findall(body), is_encoded)
    return Page(keys, columns, kinds, prefixes, _next_page(body, is_encoded))


def _next_page(body: bytes, is_encoded: bool) -> dict[str, str]:
    if b"<IsTruncated>true</IsTruncated>" not in body:
        return {}
    found = {name: expression.search(body) for name, expression in _NEXT.items()}
    markers_of_page = {name: match[1] for name, match in found.items() if match and match[1]}
    if not markers_of_page:
        raise ValueError("the answer is not the last, but does not tell how to go on")
    return {
        name: _decode_keys([value], is_encoded and name == "key-marker")[0]
        for name, value in markers_of_page.items()
    }


def _in_step(body: bytes) -> dict[str, Column] | None:
    """All columns at once, when every entry has every field; None when some differ."""
    if MARKER in body:
        return None
    objects, versions = body.count(OBJECT), body.count(VERSION)
    count = objects or versions
    names = OF_EVERY_OBJECT if versions == 0 else OF_EVERY_VERSION
    columns: dict[str, Column] = {name: _FIELDS[name].findall(body) for name in names}
    for name in OF_SOME:
        # A search for what is nowhere is nearly free.
        found = _FIELDS[name].findall(body)
        columns[name] = found or [None] * count
    return columns if all(len(column) == count for column in columns.values()) else None


def _by_entry(body: bytes) -> dict[str, Column]:
    entries = [content for _, content in _ENTRY.findall(body)]
    has_versions = OBJECT not in body
    names = (*(OF_EVERY_VERSION if has_versions else OF_EVERY_OBJECT), *OF_SOME)
    return {name: [_first(_FIELDS[name], entry) for entry in entries] for name in names}


def _first(expression: re.Pattern[bytes], entry: bytes) -> bytes | None:
    found = expression.search(entry)
    return found[1] if found else None


def _decode_keys(spelt: Sequence[bytes], is_encoded: bool) -> list[str]:
    """Keys as they are: S3 encodes them like forms (a blank is a plus), or escapes them as XML does."""
    joined = b"\n".join(spelt)
    is_plain = b"&" not in joined and b"%0A" not in joined and b"%0a" not in joined
    if not spelt or not is_plain or joined.count(b"\n") >= len(spelt):
        return [_decode_key(key, is_encoded) for key in spelt]
    if is_encoded and (b"%" in joined or b"+" in joined):
        for escape, plain in _FREQUENT:
            joined = joined.replace(escape, plain)
        if b"%" in joined:
            joined = unquote_to_bytes(joined)
    return joined.decode().split("\n")


def _decode_key(spelt: bytes, is_encoded: bool) -> str:
    text = unescape(spelt.decode()) if b"&" in spelt else spelt.decode()
    return unquote_to_bytes(text.replace("+", " ")).decode() if is_encoded else text


def _text(column: Column) -> pa.Array:
    return pa.array(column, pa.binary()).cast(pa.string())


def _versions(column: Column | None, count: int) -> pa.Array:
    if column is None:
        return pa.nulls(count, pa.string())
    return _text([None if one in {b"null", b""} else one for one in column])


def _latest(column: Column | None, count: int) -> pa.Array:
    return pa.array([one == b"true" for one in column] if column else [True] * count, pa.bool_())


def _classes(column: Column, is_marker: list[bool] | None, count: int) -> pa.Array:
    """The classes told; S3 does not tell that of delete markers, and some stores tell none at all."""
    classes = _text(column)
    if classes.null_count == 0:
        return classes
    markers = pa.array(is_marker or [False] * count, pa.bool_())
    return pc.if_else(markers, classes, pc.fill_null(classes, "STANDARD"))


HIGHEST = "~"
"""The last character that keys usually have; higher ones are looked for only where a key was seen to have one."""
SURROGATES = range(0xD800, 0xE000)

FIRST_THREE = 3
"""Names that begin alike: an object's, that of a folder called the same, and in either order one more."""


class ListNames(Protocol):
    """A few names in a bucket: one small request."""

    async def __call__(
        self, prefix: str, after: str = "", *, most: int = 1, by_folder: bool = False
    ) -> list[str]:
        """The first keys with a prefix after a place; with `by_folder` what is below the next slash is one name."""
        ...


@dataclass(frozen=True)
class KeyRange:
    """Keys that begin with `prefix`, lie after `after` and not after `until`.

    Python compares texts by code points, which is the order of the bytes of their UTF-8.
    """

    prefix: str
    after: str = ""
    until: str | None = None

    def is_past(self, key: str) -> bool:
        """Whether a key lies behind the range."""
        return self.until is not None and key > self.until


async def find_cut(look: ListNames, keys: KeyRange, last: str, *, in_any_order: bool = True) -> str | None:
    """A place about in the middle of what a range has after the key `last`; None where none was found.

    By bisection: first for the leftmost character of `last` in which a later key differs, then for the highest
    character that keys have there. Needs some fifteen requests of one key each. With `in_any_order` only a cut will do
    that stores of either order agree on.
    """

    async def after(place: str) -> str | None:
        found = await look(keys.prefix, place)
        return found[0] if found and not keys.is_past(found[0]) else None

    position = await _leftmost_change(after, keys.prefix, last)
    if position is None:
        return None
    stem = last[:position]
    found = await after(_raised(last, position))
    if found is None or not found.startswith(stem) or len(found) <= position:
        return None
    highest = await _highest(after, stem, found[position])
    middle = (ord(last[position]) + highest + 1) // 2
    cut = stem + chr(middle if middle not in SURROGATES else SURROGATES.stop)
    if cut <= last or (in_any_order and not await _is_safe(look, keys.prefix, cut)):
        return None
    return cut


async def _leftmost_change(
    after: Callable[[str], Awaitable[str | None]], prefix: str, last: str
) -> int | None:
    """The first position after the prefix at which some later key has a higher character than `last`."""
    low, high = len(prefix), len(last)
    while low < high:
        middle = (low + high) // 2
        if await after(_raised(last, middle)) is None:
            low = middle + 1
        else:
            high = middle
    return low if low < len(last) else None


async def _highest(after: Callable[[str], Awaitable[str | None]], stem: str, known: str) -> int:
    """The code point of the highest character that a key has behind `stem`; some key has `known` there."""
    low, high = ord(known), max(ord(HIGHEST), ord(known))
    while low < high:
        middle = (low + high + 1) // 2
        found = await after(stem + chr(middle)) if middle not in SURROGATES else None
        if found is not None and found.startswith(stem):
            low = max(middle, ord(found[len(stem)]))
            high = max(low, high)
        else:
            high = middle - 1
    return low


def _raised(key: str, position: int) -> str:
    higher = min(ord(key[position]) + 1, 0x10FFFF)
    return key[:position] + chr(higher if higher not in SURROGATES else SURROGATES.stop)


def find_enclosing_folders(prefix: str, key: str) -> list[str]:
    """The folders that come before a key when folders are sorted by their names, and behind it by whole keys."""
    return [f"{key[:at]}/" for at in range(len(prefix), len(key)) if key[at] < "/"]


async def has_folder(look: ListNames, folder: str) -> bool:
    """Whether some key begins with a folder's name, which has its slash; true as well where that is not certain.

    Two names are looked at rather than one key below the folder: where there is none, SeaweedFS 4.48 reads all names
    that begin like the folder's to find that out, which can be most of a bucket.
    """
    stem = folder[:-1]
    first, behind = await asyncio.gather(
        # Where folders are sorted by their names, this one is first of those that begin like it.
        look(stem, most=FIRST_THREE, by_folder=True),
        # Where whole keys are sorted, it is first behind all that have a lower character than its slash.
        look(stem, f"{stem}.{chr(sys.maxunicode)}", by_folder=True),
    )
    return folder in first or any(name <= folder for name in behind)


async def _is_safe(look: ListNames, prefix: str, cut: str) -> bool:
    """Whether a cut divides keys alike in both orders.

    It does not where a folder's name ends while the cut goes on below a slash (`a/` and the cut `a-5`), nor where the
    cut has a slash and other names go on below it (`a-b` and the cut `a/5`).
    """
    slashes = [at for at in range(len(prefix), len(cut)) if cut[at] == "/"]
    folders, names = await asyncio.gather(
        asyncio.gather(
            *(has_folder(look, folder) for folder in (*find_enclosing_folders(prefix, cut), f"{cut}/"))
        ),
        # In either order the first three names have one below the slash, if there is any.
        asyncio.gather(*(look(cut[:at], most=FIRST_THREE, by_folder=True) for at in slashes)),
    )
    found = zip(slashes, names, strict=True)
    return not any(folders) and not any(name[at:] and name[at] < "/" for at, some in found for name in some)


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
        parameters = {"prefix": prefix, "encoding-type": "url", "max-keys": self.page_keys}
        query = kind | parameters | more | dict(place)
        response = await self.s3.request("GET", query=query)
        where = self.s3.address.location(prefix)
        if not response.is_success:
            raise make_refusal(where, response.code, response.message)
        try:
            return read_page(response.body)
        except ValueError as error:
            fix = "Check that the endpoint is S3's or of its kind."
            raise BackupError(where, f"its listing cannot be read: {error}", fix) from error

    def after(self, place: str) -> dict[str, str]:
        """The query for what lies after a place."""
        return {"key-marker" if self.versions else "start-after": place} if place else {}

    async def list_names(
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
        behind = [
            folder for folder in find_enclosing_folders(prefix, marker) if folder not in self.looked_behind
        ]
        self.looked_behind.update(behind)
        found = await asyncio.gather(*(self.listing.list_names(folder) for folder in behind))
        confused = [key for keys in found for key in keys]
        if marker.endswith("/"):
            stem = marker.removesuffix("/")
            beside = await self.listing.list_names(stem, most=FIRST_THREE, by_folder=True)
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
            find_cut(self.listing.list_names, keys, one.last, in_any_order=not self.listing.sorts_keys)
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


IN_FLIGHT = 32
"""Listing requests at a time: at a thousand keys each they are bound by the processor long before by the store."""
ROWS_A_BATCH = 131_072
PROGRESS_EVERY_S = 1.0


def list_rows(
    source: StoreAddress,
    *,
    versions: bool = False,
    in_flight: int = IN_FLIGHT,
    report_progress: ReportProgress = log_message,
) -> Iterator[pa.RecordBatch]:
    """Everything below a source, in no order: rows of schema LISTING in batches of about `ROWS_A_BATCH`.

    Raises:
        BackupError: the store refused, did not answer, or lists in an order that is none.
    """
    if source.kind == FOLDER:
        return merge_batches(_report_rows(list_folder_rows(source), source, report_progress))
    return merge_batches(
        _report_rows(_now(_list_bucket_rows(source, versions, in_flight)), source, report_progress)
    )


def list_range_rows(
    source: StoreAddress, ranges: list[KeyRange], *, versions: bool, in_flight: int = IN_FLIGHT
) -> Iterator[pa.RecordBatch]:
    """The same of some ranges of a bucket."""
    return merge_batches(_now(_list_ranges_rows(source, ranges, versions, in_flight)))


def find_first_ranges(
    source: StoreAddress, wanted: int, *, versions: bool
) -> tuple[list[KeyRange], list[pa.RecordBatch]]:
    """Ranges that make up a bucket, `wanted` if it has so many folders, and the rows that are in none of them."""

    async def found() -> tuple[list[KeyRange], list[pa.RecordBatch]]:
        async with AsyncS3(source, IN_FLIGHT) as s3:
            return await BucketListing(s3, in_flight=IN_FLIGHT, versions=versions).ranges(
                source.prefix, wanted
            )

    return asyncio.run(found())


def merge_batches(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Many small batches as few large ones."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for page in pages:
        pending.append(page)
        rows += page.num_rows
        if rows >= ROWS_A_BATCH:
            yield pa.concat_batches(pending)
            pending, rows = [], 0
    if rows:
        yield pa.concat_batches(pending)


async def _list_bucket_rows(
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


async def _list_ranges_rows(
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
            runner.run(_close_pages(pages))


async def _next(pages: AsyncGenerator[pa.RecordBatch, None]) -> pa.RecordBatch:
    return await anext(pages)


async def _close_pages(pages: AsyncGenerator[pa.RecordBatch, None]) -> None:
    await pages.aclose()


def _report_rows(
    batches: Iterator[pa.RecordBatch], source: StoreAddress, report_progress: ReportProgress
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
