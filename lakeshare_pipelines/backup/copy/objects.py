"""Copying one object inside a store of S3's kind: one request, only if the object still is what was listed.

Larger ones than one request takes go in parts (parts.py), to other stores piece by piece (streamed.py).
"""

import asyncio
import datetime as dt
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from hashlib import sha256
from typing import Protocol
from urllib.parse import quote
from xml.sax.saxutils import escape

from pydantic import BaseModel

from lakeshare_pipelines.backup.config import COPY_LIMIT_BYTES
from lakeshare_pipelines.backup.copy.engine import CopyItem, NotCopied, Outcome
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3, Response, find_element, quote_path

_CHECKSUM = re.compile(rb"<Checksum(CRC64NVME|SHA256|CRC32C|CRC32|SHA1)>([^<]+)</")


@dataclass(frozen=True)
class CopyTerms:
    """What holds for every object of a task."""

    as_of: dt.datetime
    copy_limit_bytes: int = COPY_LIMIT_BYTES
    overwrite: bool = True
    """False: a key of the target that is taken stays as it is, and the row fails as `AlreadyThere`."""
    source: StoreAddress | None = None
    """Whose account must own the objects of its bucket, where it names one."""
    is_conditional: bool = True
    """The store honours conditions on the source of a copy; where it does not, the source is asked before and after."""
    copies_parts: bool = True
    """The store copies ranges into parts; where it does not, larger objects are streamed."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers for what is written, as S3 spells them: storage class, tags, encryption, …"""


class Copier(Protocol):
    """Copies objects from one store to another; for one event loop."""

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy one.

        Raises:
            NotCopied: it cannot be copied, others may.
            BackupError: nothing can be copied.
        """
        ...


async def copy_object(target: AsyncS3, item: CopyItem, terms: CopyTerms) -> Outcome:
    """Copy an object by one CopyObject request (S3 API), with the condition that it is the listed one.

    Raises:
        NotCopied: the store refused: `NoSuchKey` (vacuumed since), `PreconditionFailed` (changed), `AccessDenied`, …
        NoAnswer: it did not answer.
    """
    there = await find_existing_copy(target, item, terms)
    if there is not None:
        return there
    headers = {**make_source_headers(item, terms), **make_target_headers(terms)}
    response = await target.request("PUT", item.stored_key, headers=headers)
    if not response.is_success:
        raise NotCopied.from_response(response)
    return make_copied_outcome(item, response)


def make_source_headers(item: CopyItem, terms: CopyTerms) -> dict[str, str]:
    """The source of a copy and its conditions."""
    version = f"?versionId={quote_path(item.version_id)}" if item.version_id else ""
    headers = {"x-amz-copy-source": f"/{item.bucket}/{quote_path(item.key)}{version}"}
    if item.etag:
        headers["x-amz-copy-source-if-match"] = f'"{item.etag}"'
    if terms.source and terms.source.account and terms.source.bucket == item.bucket:
        headers["x-amz-source-expected-bucket-owner"] = terms.source.account
    if not item.etag:
        headers["x-amz-copy-source-if-unmodified-since"] = format_datetime(terms.as_of, usegmt=True)
    return headers


def make_target_headers(terms: CopyTerms) -> dict[str, str]:
    """Headers of what is written."""
    return {**terms.headers, **({} if terms.overwrite else {"if-none-match": "*"})}


async def find_existing_copy(target: AsyncS3, item: CopyItem, terms: CopyTerms) -> Outcome | None:
    """Where nothing is to be overwritten: the copy that is there already, None where the key is free.

    Asked before, as not all stores keep the condition.

    Raises:
        NotCopied: something else has the key.
    """
    if terms.overwrite:
        return None
    response = await target.request("HEAD", item.stored_key)
    if response.status == 404:
        return None
    if not response.is_success:
        raise NotCopied.from_response(response)
    size, etag = response.headers.get("content-length"), response.headers.get("etag", "").strip('"')
    if etag != item.etag or size != str(item.size_bytes):
        raise make_key_taken_error(target.address.location(item.stored_key))
    return make_copied_outcome(item, response)


def make_key_taken_error(location: str) -> NotCopied:
    """What is said of a key that something else has."""
    return NotCopied("AlreadyThere", 412, f"something else is at {location}, and nothing is overwritten")


def make_copied_outcome(item: CopyItem, response: Response, checksum: str | None = None) -> Outcome:
    """The row of a copy; a store that gives no ETag has not copied.

    Raises:
        NotCopied: there is no ETag in the answer.
    """
    etag = (response.text("ETag") or response.headers.get("etag", "")).strip('"')
    if not etag:
        raise NotCopied("NoETag", response.status, "the store said it was done, but gave no ETag")
    version = response.headers.get("x-amz-version-id")
    return Outcome(
        item,
        stored_etag=etag,
        stored_version_id=None if version == "null" else version,
        checksum=checksum or _find_checksum(response.body),
    )


def _find_checksum(body: bytes) -> str | None:
    found = _CHECKSUM.search(body)
    # "…-3" is a checksum of checksums of parts: not one of the content.
    if found is None or b"-" in found[2]:
        return None
    return f"{found[1].decode().lower()}:{found[2].decode()}"


class ServerSideCopier:
    """Copies within one store: nothing of the objects passes through this host."""

    def __init__(self, source: AsyncS3, target: AsyncS3, terms: CopyTerms, larger: Copier) -> None:
        self._source, self._target, self._terms, self._larger = source, target, terms, larger

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy one: by a request, or by parts where it is larger than one takes."""
        if not self._terms.is_conditional:
            await self._require_unchanged(item)
        if item.size_bytes > self._terms.copy_limit_bytes:
            outcome = await self._larger.copy(item)
        else:
            outcome = await copy_object(self._target, item, self._terms)
        if not self._terms.is_conditional:
            await self._require_unchanged(item)
        return outcome

    async def _require_unchanged(self, item: CopyItem) -> None:
        query = {"versionId": item.version_id} if item.version_id else {}
        response = await self._source.at(item.bucket).request("HEAD", item.key, query)
        if not response.is_success:
            raise NotCopied.from_response(response)
        if item.etag and response.headers.get("etag", "").strip('"') != item.etag:
            raise NotCopied.changed("it changed since it was listed")


def find_elements(body: bytes, tag: str) -> list[bytes]:
    """The content of each element of a name."""
    return re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)


def make_completion_body(etags: list[str]) -> bytes:
    """The body that completes an upload of these parts (S3 API, CompleteMultipartUpload)."""
    parts = "".join(
        f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
        for number, etag in enumerate(etags, start=1)
    )
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{parts}</CompleteMultipartUpload>'.encode()


CARRIED = (
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "x-amz-website-redirect-location",
)
METADATA = "x-amz-meta-"
MTIME = "x-amz-meta-mtime"
"""Modification time of a file that is kept in a bucket, in seconds, as rclone and others write it."""

Bounds = list[tuple[int, int]]
"""Parts of an object: first byte, and the one after the last."""


@dataclass(frozen=True)
class SourceObject:
    """What is known of an object that is about to be copied."""

    size_bytes: int
    modified_ns: int
    headers: Mapping[str, str] = field(default_factory=dict)
    bounds: Bounds | None = None
    """Where the object's own parts begin and end; None for one that was not written in parts."""


class Source(Protocol):
    """Where objects are read from."""

    async def opened(self, item: CopyItem) -> SourceObject:
        """What is known of an object. Raises NotCopied where it is gone or changed."""
        ...

    async def whole(self, item: CopyItem) -> tuple[SourceObject, bytes]:
        """A small object at once. Raises NotCopied where it is gone or changed."""
        ...

    async def piece(self, item: CopyItem, start: int, end: int) -> bytes:
        """Some bytes of an object. Raises NotCopied where it is gone or changed."""
        ...


class BucketSource:
    """Objects of buckets of one store."""

    def __init__(self, s3: AsyncS3) -> None:
        self._s3 = s3

    async def opened(self, item: CopyItem) -> SourceObject:
        """By HEAD, of the whole object and, where its ETag tells of parts, of its first one (S3 API, partNumber)."""
        response = await self._asked(item, "HEAD")
        headers = select_carried_headers(response)
        if int(response.headers.get("x-amz-tagging-count", "0")):
            headers["x-amz-tagging"] = await self._tags(item)
        size = int(response.headers["content-length"])
        bounds = await self._bounds(item, size) if "-" in response.headers.get("etag", "") else None
        return SourceObject(size, get_modified_ns(response), headers, bounds)

    async def whole(self, item: CopyItem) -> tuple[SourceObject, bytes]:
        response = await self._asked(item, "GET")
        if len(response.body) != item.size_bytes:
            raise NotCopied.changed(f"it has {len(response.body)} bytes, {item.size_bytes} were listed")
        headers = select_carried_headers(response)
        if int(response.headers.get("x-amz-tagging-count", "0")):
            headers["x-amz-tagging"] = await self._tags(item)
        return SourceObject(len(response.body), get_modified_ns(response), headers), response.body

    async def piece(self, item: CopyItem, start: int, end: int) -> bytes:
        response = await self._asked(item, "GET", {"range": f"bytes={start}-{end - 1}"})
        if len(response.body) != end - start:
            raise NotCopied.changed(f"it ends after {start + len(response.body)} bytes")
        return response.body

    async def _asked(
        self,
        item: CopyItem,
        method: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Response:
        condition = {"if-match": f'"{item.etag}"'} if item.etag else {}
        parameters = {**(query or {}), **({"versionId": item.version_id} if item.version_id else {})}
        response = await self._s3.at(item.bucket).request(
            method, item.key, parameters, {**condition, **(headers or {})}
        )
        if not response.is_success:
            raise NotCopied.from_response(response)
        return response

    async def _tags(self, item: CopyItem) -> str:
        query = {"tagging": "", **({"versionId": item.version_id} if item.version_id else {})}
        response = await self._s3.at(item.bucket).request("GET", item.key, query)
        if not response.is_success:
            raise NotCopied.from_response(response)
        tags = [
            (find_element(tag, "Key"), find_element(tag, "Value"))
            for tag in find_elements(response.body, "Tag")
        ]
        return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in tags)

    async def _bounds(self, item: CopyItem, size_bytes: int) -> Bounds | None:
        first = await self._asked(item, "HEAD", query={"partNumber": "1"})
        parts = int(first.headers.get("x-amz-mp-parts-count", "0"))
        part_bytes = int(first.headers["content-length"])
        if not parts:
            return None
        if -(-size_bytes // part_bytes) == parts:
            return split_ranges(size_bytes, part_bytes)
        # Parts of different sizes: each tells its own.
        sizes = [part_bytes]
        for number in range(2, parts + 1):
            response = await self._asked(item, "HEAD", query={"partNumber": str(number)})
            sizes.append(int(response.headers["content-length"]))
        ends = [sum(sizes[: number + 1]) for number in range(parts)]
        return list(zip([0, *ends[:-1]], ends, strict=True))


def split_ranges(size_bytes: int, part_bytes: int) -> Bounds:
    """Equal parts; the last one is what is left."""
    return [
        (start, min(start + part_bytes, size_bytes)) for start in range(0, max(size_bytes, 1), part_bytes)
    ]


def select_carried_headers(response: Response) -> dict[str, str]:
    """Headers of an object that its copy must have too."""
    return {
        name.lower(): value
        for name, value in response.headers.items()
        if name.lower() in CARRIED or name.lower().startswith(METADATA)
    }


def get_modified_ns(response: Response) -> int:
    """When the content was written, as far as is known: that of the file it was, else of the object."""
    mtime = response.headers.get(MTIME)
    if mtime is not None and mtime.replace(".", "", 1).isdigit():
        whole, _, part = mtime.partition(".")
        return int(whole) * 10**9 + int(part[:9].ljust(9, "0") or "0")
    return int(parsedate_to_datetime(response.headers["last-modified"]).timestamp()) * 10**9


MAX_PARTS = 10_000
PART_BYTES = 64 * 1024**2
MIN_PART_BYTES = 5 * 1024**2
AT_A_TIME = 16

SendPart = Callable[[str, int, int, int], Awaitable[str]]
"""Brings one part: upload id, number from 1 on, first byte, the one after the last; returns the part's ETag."""


@dataclass
class Upload:
    """One upload in parts that was begun."""

    id: str
    bounds: Bounds
    sent: dict[int, str] = field(default_factory=dict)
    """ETag of each part that is there, by its number."""


class Uploads:
    """Uploads in parts into one bucket; what was begun is remembered under `<work prefix>uploads/`."""

    def __init__(self, target: AsyncS3, work_prefix: str, terms: CopyTerms) -> None:
        self._target, self._prefix, self._terms = target, f"{work_prefix}uploads/", terms

    async def copy(
        self, item: CopyItem, opened: SourceObject, bounds: Bounds, send: SendPart, at_a_time: int = AT_A_TIME
    ) -> Outcome:
        """Bring all parts that are not there yet, and complete the upload.

        Raises:
            NotCopied: a part was refused; the upload is given up.
            NoAnswer: the store is silent; the next run goes on with the upload.
        """
        upload = await self._unfinished(item)
        if upload is None:
            before = await self._ended_before(item) or await find_existing_copy(
                self._target, item, self._terms
            )
            if before is not None:
                return before
            upload = await self._begun(item, opened, bounds)

        async def bring(number: int, start: int, end: int) -> None:
            upload.sent[number] = await send(upload.id, number, start, end)

        missing = [
            (number, start, end)
            for number, (start, end) in enumerate(upload.bounds, start=1)
            if number not in upload.sent
        ]
        try:
            await run_concurrently((partial(bring, *one) for one in missing), at_a_time)
            response = await self._completed(item, upload)
        except NotCopied:
            await self._given_up(item, upload)
            raise
        await self._remember(item, _Record())
        return make_copied_outcome(item, response)

    async def _begun(self, item: CopyItem, opened: SourceObject, bounds: Bounds) -> Upload:
        headers = {**opened.headers, **self._terms.headers}
        response = await self._target.request("POST", item.stored_key, {"uploads": ""}, headers)
        if not response.is_success:
            raise NotCopied.from_response(response)
        upload = Upload(response.text("UploadId"), bounds)
        await self._remember(item, _Record(upload_id=upload.id, bounds=bounds))
        return upload

    async def _completed(self, item: CopyItem, upload: Upload) -> Response:
        etags = [upload.sent[number] for number in range(1, len(upload.bounds) + 1)]
        headers = {} if self._terms.overwrite else {"if-none-match": "*"}
        response = await self._target.request(
            "POST", item.stored_key, {"uploadId": upload.id}, headers, make_completion_body(etags)
        )
        if not response.is_success:
            raise NotCopied.from_response(response)
        return response

    async def _given_up(self, item: CopyItem, upload: Upload) -> None:
        response = await self._target.request("DELETE", item.stored_key, {"uploadId": upload.id})
        if response.is_success or response.status == 404:
            await self._remember(item, _Record())

    async def _unfinished(self, item: CopyItem) -> Upload | None:
        """The upload of an earlier run, with the parts it has; None where there is none to go on with."""
        record = await self._remembered(item)
        if record is None or record.upload_id is None:
            return None
        upload = Upload(record.upload_id, record.bounds)
        marker = ""
        while True:
            query = {"uploadId": upload.id, **({"part-number-marker": marker} if marker else {})}
            response = await self._target.request("GET", item.stored_key, query)
            if response.status == 404:
                return None
            if not response.is_success:
                raise NotCopied.from_response(response)
            for part in find_elements(response.body, "Part"):
                number, size = int(find_element(part, "PartNumber")), int(find_element(part, "Size"))
                start, end = upload.bounds[number - 1]
                if size == end - start:
                    upload.sent[number] = find_element(part, "ETag").strip('"')
            marker = response.text("NextPartNumberMarker")
            if response.text("IsTruncated") != "true":
                return upload

    async def _ended_before(self, item: CopyItem) -> Outcome | None:
        """The copy that an earlier run completed right before it broke off, known by its composite ETag."""
        record = await self._remembered(item)
        if record is None or item.etag is None:
            return None
        response = await self._target.request("HEAD", item.stored_key)
        is_it = (
            response.is_success
            and response.headers.get("etag", "").strip('"') == item.etag
            and response.headers.get("content-length") == str(item.size_bytes)
        )
        return make_copied_outcome(item, response) if is_it else None

    async def _remembered(self, item: CopyItem) -> "_Record | None":
        response = await self._target.request("GET", self._record_key(item))
        if response.status == 404:
            return None
        if not response.is_success:
            raise NotCopied.from_response(response)
        return _Record.model_validate_json(response.body)

    async def _remember(self, item: CopyItem, record: "_Record") -> None:
        body = record.model_dump_json().encode()
        response = await self._target.request("PUT", self._record_key(item), body=body)
        if not response.is_success:
            raise NotCopied.from_response(response)

    def _record_key(self, item: CopyItem) -> str:
        return f"{self._prefix}{item.digest.hex()}.json"


class _Record(BaseModel):
    """What is remembered of an upload; without an id it has ended."""

    upload_id: str | None = None
    bounds: list[tuple[int, int]] = []


class PartsCopier:
    """Copies large objects inside a store, range by range, each part only if the object still is the listed one."""

    def __init__(self, source: AsyncS3, target: AsyncS3, terms: CopyTerms, uploads: Uploads) -> None:
        self._source, self._target, self._terms, self._uploads = BucketSource(source), target, terms, uploads

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy one, by UploadPartCopy (S3 API)."""
        opened = await self._source.opened(item)
        condition = make_source_headers(item, self._terms)

        async def send(upload_id: str, number: int, start: int, end: int) -> str:
            response = await self._target.request(
                "PUT",
                item.stored_key,
                {"partNumber": str(number), "uploadId": upload_id},
                {**condition, "x-amz-copy-source-range": f"bytes={start}-{end - 1}"},
            )
            if not response.is_success:
                raise NotCopied.from_response(response)
            etag = response.text("ETag").strip('"')
            if not etag:
                raise NotCopied("NoETag", response.status, f"the store gave no ETag for part {number}")
            return etag

        bounds = choose_part_bounds(opened, self._terms.copy_limit_bytes)
        return await self._uploads.copy(item, opened, bounds, send)


def choose_part_bounds(opened: SourceObject, most_bytes: int, wanted_bytes: int = PART_BYTES) -> Bounds:
    """The source's own parts where they are no larger than `most_bytes`; else parts of a size that suits."""
    if opened.bounds and all(end - start <= most_bytes for start, end in opened.bounds):
        return opened.bounds
    least = max(MIN_PART_BYTES, -(-opened.size_bytes // MAX_PARTS))
    return split_ranges(opened.size_bytes, max(least, min(wanted_bytes, most_bytes)))


async def run_concurrently(works: Iterable[Callable[[], Awaitable[None]]], most: int) -> None:
    """Do all, at most so many at a time, begun in their order; the first fault ends the others and is raised."""
    left = iter(works)

    async def some() -> None:
        for work in left:
            await work()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(most):
                group.create_task(some())
    except* Exception as faults:
        raise faults.exceptions[0] from None


WHOLE_BYTES = 16 * 1024**2
"""Up to so many bytes an object is one request."""
MAX_PIECE_BYTES = 64 * 1024**2
"""Parts of the source that are larger are not kept as they are: a piece is held in memory."""
MEMORY_BYTES = 256 * 1024**2
PARTS_AT_A_TIME = 4


class MemoryBudget:
    """Bytes that may be held at a time, by all objects under way."""

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self._most, self._held = most_bytes, 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is place for so many; one piece always finds it."""
        size_bytes = min(size_bytes, self._most)
        async with self._freed:
            await self._freed.wait_for(lambda: self._held + size_bytes <= self._most)
            self._held += size_bytes
        try:
            yield
        finally:
            async with self._freed:
                self._held -= size_bytes
                self._freed.notify_all()


class StreamedCopier:
    """Reads from any source and writes into a bucket."""

    def __init__(
        self, source: Source, target: AsyncS3, terms: CopyTerms, uploads: Uploads, memory: MemoryBudget
    ) -> None:
        self._source, self._target, self._terms = source, target, terms
        self._uploads, self._memory = uploads, memory

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy one: small ones by one PutObject, others in parts (S3 API)."""
        if item.size_bytes > min(WHOLE_BYTES, self._terms.copy_limit_bytes):
            return await self._in_parts(item)
        there = await find_existing_copy(self._target, item, self._terms)
        if there is not None:
            return there
        async with self._memory.reserve(item.size_bytes):
            opened, content = await self._source.whole(item)
            return await self._put(item, opened, content)

    async def _put(self, item: CopyItem, opened: SourceObject, content: bytes) -> Outcome:
        digest = sha256(content)
        headers = {
            **opened.headers,
            **make_target_headers(self._terms),
            "x-amz-checksum-sha256": b64encode(digest.digest()).decode(),
        }
        response = await self._target.request("PUT", item.stored_key, headers=headers, body=content)
        if not response.is_success:
            raise NotCopied.from_response(response)
        return make_copied_outcome(item, response, f"sha256:{digest.hexdigest()}")

    async def _in_parts(self, item: CopyItem) -> Outcome:
        opened = await self._source.opened(item)
        if opened.size_bytes != item.size_bytes:
            raise NotCopied.changed(f"it has {opened.size_bytes} bytes, {item.size_bytes} were listed")
        bounds = choose_part_bounds(opened, MAX_PIECE_BYTES, WHOLE_BYTES)
        passing = _InOrder(self._source, item)

        async def send(upload_id: str, number: int, start: int, end: int) -> str:
            async with AsyncExitStack() as holding:
                # Who asks for the turn first has it first, and parts ask in their order.
                async with passing.turn:
                    await holding.enter_async_context(self._memory.reserve(end - start))
                    content = await passing.piece(start, end)
                return await self._send_part(item, upload_id, number, content)

        outcome = await self._uploads.copy(item, opened, bounds, send, PARTS_AT_A_TIME)
        if passing.size_bytes != item.size_bytes:
            # A run before this one sent some of the parts: their bytes did not pass here.
            return outcome
        return Outcome(
            item,
            stored_etag=outcome.stored_etag,
            stored_version_id=outcome.stored_version_id,
            checksum=f"sha256:{passing.digest.hexdigest()}",
        )

    async def _send_part(self, item: CopyItem, upload_id: str, number: int, content: bytes) -> str:
        response = await self._target.request(
            "PUT", item.stored_key, {"partNumber": str(number), "uploadId": upload_id}, body=content
        )
        if not response.is_success:
            raise NotCopied.from_response(response)
        etag = response.headers.get("etag", "").strip('"')
        if not etag:
            raise NotCopied("NoETag", response.status, f"the store gave no ETag for part {number}")
        return etag


class _InOrder:
    """Reads the pieces of an object one after the other, so that the checksum is of the whole."""

    def __init__(self, source: Source, item: CopyItem) -> None:
        self._source, self._wanted = source, item
        self.turn, self.digest, self.size_bytes = asyncio.Lock(), sha256(), 0

    async def piece(self, start: int, end: int) -> bytes:
        """The next piece, for whoever has the turn."""
        content = await self._source.piece(self._wanted, start, end)
        await asyncio.to_thread(self.digest.update, content)
        self.size_bytes += len(content)
        return content
