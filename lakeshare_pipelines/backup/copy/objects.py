"""Copies single objects into a bucket: inside one store by one request or in parts, from other stores streamed."""

import asyncio
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import Protocol
from urllib.parse import quote
from xml.sax.saxutils import escape

from pydantic import BaseModel

from lakeshare_pipelines.backup.async_s3 import AsyncS3, Response, find_element
from lakeshare_pipelines.backup.copy.engine import (
    CopyItem,
    CopyTask,
    NotCopied,
    Outcome,
    require_success,
    run_concurrently,
)
from lakeshare_server.storage.sigv4 import quote_path

_CHECKSUM = re.compile(rb"<Checksum(CRC64NVME|SHA256|CRC32C|CRC32|SHA1)>([^<]+)</")


class Capabilities(BaseModel, frozen=True):
    """Features of a store; recorded in CopyRecord."""

    copies_on_condition: bool = True  # Refuses a copy whose source has another ETag than requested
    copies_parts: bool = True  # Copies ranges into parts and returns the part's ETag
    writes_on_condition: bool = True  # Refuses a write with `if-none-match: *` to an existing key
    checks_checksums: bool = True  # Refuses a body that does not match its checksum
    versions: bool = False
    locks: bool = False


class Copier(Protocol):
    """Copies objects from one store to another; for one event loop."""

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy an object. Raises NotCopied if it cannot be copied, BackupError if no object can be copied."""


def make_source_headers(item: CopyItem, task: CopyTask) -> dict[str, str]:
    version = f"?versionId={quote_path(item.version_id)}" if item.version_id else ""
    headers = {"x-amz-copy-source": f"/{item.bucket}/{quote_path(item.key)}{version}"}
    if item.etag:
        headers["x-amz-copy-source-if-match"] = f'"{item.etag}"'
    else:
        headers["x-amz-copy-source-if-unmodified-since"] = format_datetime(task.as_of, usegmt=True)
    if task.source.account and task.source.bucket == item.bucket:
        headers["x-amz-source-expected-bucket-owner"] = task.source.account
    return headers


def make_copied_outcome(item: CopyItem, response: Response, checksum: str | None = None) -> Outcome:
    """The outcome of a copy. Raises NotCopied if the store returned no ETag: then it has not copied."""
    etag = response.text("ETag").strip('"') or _get_etag(response)
    if not etag:
        raise NotCopied("NoETag", response.status, "the store reported success, but gave no ETag")
    version = response.headers.get("x-amz-version-id")
    match = _CHECKSUM.search(response.body)
    # "…-3" is a checksum of the checksums of parts, not of the content.
    if checksum is None and match is not None and b"-" not in match[2]:
        checksum = f"{match[1].decode().lower()}:{match[2].decode()}"
    return Outcome(
        item, stored_etag=etag, stored_version_id=None if version == "null" else version, checksum=checksum
    )


def _get_etag(response: Response) -> str:
    return response.headers.get("etag", "").strip('"')


def _version_query(item: CopyItem) -> dict[str, str]:
    return {"versionId": item.version_id} if item.version_id else {}


def find_elements(body: bytes, tag: str) -> list[bytes]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)


CARRIED = (
    "content-type", "cache-control", "content-disposition", "content-encoding", "content-language", "expires",
    "x-amz-website-redirect-location",
)  # fmt: skip
"""Headers that a copy has in common with its source, besides METADATA."""
METADATA = "x-amz-meta-"
MTIME = "x-amz-meta-mtime"  # Modification time of a file in seconds, as rclone and others write it

Bounds = list[tuple[int, int]]  # Parts of an object: first byte, and the byte after the last


@dataclass(frozen=True)
class SourceObject:
    size_bytes: int
    modified_ns: int
    headers: Mapping[str, str] = field(default_factory=dict)
    bounds: Bounds | None = None  # Bounds of the object's own parts; None for an object without parts


class Source(Protocol):
    """A store to read from. Each method raises NotCopied if the object is gone or changed."""

    async def describe(self, item: CopyItem) -> SourceObject:
        """Metadata of an object."""

    async def whole(self, item: CopyItem) -> tuple[SourceObject, bytes]:
        """Metadata and content of a small object."""

    async def piece(self, item: CopyItem, start: int, end: int) -> bytes:
        """A range of an object's content."""


class BucketSource:
    def __init__(self, s3: AsyncS3) -> None:
        self._s3 = s3

    async def describe(self, item: CopyItem) -> SourceObject:
        """Sends HEAD for the object and, if its ETag is of an upload in parts, for its parts (S3 API, partNumber)."""
        response = await self._request(item, "HEAD")
        described = await self._describe(item, response, int(response.headers["content-length"]))
        if "-" not in response.headers.get("etag", ""):
            return described
        return replace(described, bounds=await self._read_bounds(item, described.size_bytes))

    async def whole(self, item: CopyItem) -> tuple[SourceObject, bytes]:
        response = await self._request(item, "GET")
        if len(response.body) != item.size_bytes:
            raise NotCopied.changed(f"it has {len(response.body)} bytes, {item.size_bytes} were listed")
        return await self._describe(item, response, len(response.body)), response.body

    async def piece(self, item: CopyItem, start: int, end: int) -> bytes:
        response = await self._request(item, "GET", {"range": f"bytes={start}-{end - 1}"})
        if len(response.body) != end - start:
            raise NotCopied.changed(f"it ends after {start + len(response.body)} bytes")
        return response.body

    async def _request(
        self,
        item: CopyItem,
        method: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Response:
        condition = {"if-match": f'"{item.etag}"'} if item.etag else {}
        parameters = {**(query or {}), **_version_query(item)}
        response = await self._s3.at(item.bucket).request(
            method, item.key, parameters, {**condition, **(headers or {})}
        )
        return require_success(response)

    async def _describe(self, item: CopyItem, response: Response, size_bytes: int) -> SourceObject:
        headers = {
            name.lower(): value
            for name, value in response.headers.items()
            if name.lower() in CARRIED or name.lower().startswith(METADATA)
        }
        if int(response.headers.get("x-amz-tagging-count", "0")):
            query = {"tagging": "", **_version_query(item)}
            tagging = require_success(await self._s3.at(item.bucket).request("GET", item.key, query))
            tags = find_elements(tagging.body, "Tag")
            pairs = [(find_element(tag, "Key"), find_element(tag, "Value")) for tag in tags]
            headers["x-amz-tagging"] = "&".join(
                f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs
            )
        return SourceObject(size_bytes, get_modified_ns(response), headers)

    async def _read_bounds(self, item: CopyItem, size_bytes: int) -> Bounds | None:
        first = await self._request(item, "HEAD", query={"partNumber": "1"})
        parts = int(first.headers.get("x-amz-mp-parts-count", "0"))
        part_bytes = int(first.headers["content-length"])
        if not parts:
            return None
        if -(-size_bytes // part_bytes) == parts:
            return split_ranges(size_bytes, part_bytes)
        # The parts have different sizes.
        sizes = [part_bytes]
        for number in range(2, parts + 1):
            response = await self._request(item, "HEAD", query={"partNumber": str(number)})
            sizes.append(int(response.headers["content-length"]))
        ends = list(accumulate(sizes))
        return list(zip([0, *ends[:-1]], ends, strict=True))


def split_ranges(size_bytes: int, part_bytes: int) -> Bounds:
    return [
        (start, min(start + part_bytes, size_bytes)) for start in range(0, max(size_bytes, 1), part_bytes)
    ]


def get_modified_ns(response: Response) -> int:
    """When the content was written: the time of the original file if known, else of the object."""
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
"""Sends a part: upload id, number from 1 on, first byte, the byte after the last; returns the part's ETag."""


class _UploadRecord(BaseModel):
    """The record of an upload; without an id it has ended."""

    upload_id: str | None = None
    bounds: Bounds = []


class Uploads:
    """Uploads in parts into one bucket, recorded under `<work prefix>uploads/` so that a later run can continue."""

    def __init__(self, target: AsyncS3, task: CopyTask) -> None:
        self._target, self._prefix = target, f"{task.work_prefix}uploads/"

    async def copy(
        self,
        item: CopyItem,
        described: SourceObject,
        bounds: Bounds,
        send: SendPart,
        at_a_time: int = AT_A_TIME,
    ) -> Outcome:
        """Send the missing parts and complete the upload. After NotCopied the upload is aborted; after NoResponse the
        next run continues it."""
        record = await self._load_record(item)
        etags = None if record is None else await self._list_parts(item, record)
        if record is None or etags is None:
            completed = None if record is None else await self._find_completed(item)
            if completed is not None:
                return completed
            begun = require_success(
                await self._target.request("POST", item.stored_key, {"uploads": ""}, described.headers)
            )
            record, etags = _UploadRecord(upload_id=begun.text("UploadId"), bounds=bounds), {}
            await self._save_record(item, record)
        upload_id, sent = str(record.upload_id), etags

        async def send_part(number: int, start: int, end: int) -> None:
            sent[number] = await send(upload_id, number, start, end)

        missing = [
            partial(send_part, number, start, end)
            for number, (start, end) in enumerate(record.bounds, start=1)
            if number not in sent
        ]
        try:
            await run_concurrently(missing, at_a_time)
            response = await self._complete(item, upload_id, [sent[number] for number in sorted(sent)])
        except NotCopied:
            aborted = await self._target.request("DELETE", item.stored_key, {"uploadId": upload_id})
            if aborted.is_success or aborted.status == 404:
                await self._save_record(item, _UploadRecord())
            raise
        await self._save_record(item, _UploadRecord())
        return make_copied_outcome(item, response)

    async def _complete(self, item: CopyItem, upload_id: str, etags: list[str]) -> Response:
        parts = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{escape(etag)}"</ETag></Part>'
            for number, etag in enumerate(etags, start=1)
        )
        space = "http://s3.amazonaws.com/doc/2006-03-01/"
        body = f'<CompleteMultipartUpload xmlns="{space}">{parts}</CompleteMultipartUpload>'.encode()
        return require_success(
            await self._target.request("POST", item.stored_key, {"uploadId": upload_id}, body=body)
        )

    async def _list_parts(self, item: CopyItem, record: _UploadRecord) -> dict[int, str] | None:
        """The ETags of the parts of an earlier run's upload; None if it has ended."""
        if record.upload_id is None:
            return None
        etags: dict[int, str] = {}
        query = {"uploadId": record.upload_id}
        while True:
            response = await self._target.request("GET", item.stored_key, query)
            if response.status == 404:
                return None
            for part in find_elements(require_success(response).body, "Part"):
                number, size = int(find_element(part, "PartNumber")), int(find_element(part, "Size"))
                start, end = record.bounds[number - 1]
                if size == end - start:
                    etags[number] = find_element(part, "ETag").strip('"')
            if response.text("IsTruncated") != "true":
                return etags
            query["part-number-marker"] = response.text("NextPartNumberMarker")

    async def _find_completed(self, item: CopyItem) -> Outcome | None:
        """The copy that an earlier run completed right before it was aborted, by its composite ETag."""
        if item.etag is None:
            return None
        response = await self._target.request("HEAD", item.stored_key)
        is_copy = response.is_success and _get_etag(response) == item.etag
        has_size = response.headers.get("content-length") == str(item.size_bytes)
        return make_copied_outcome(item, response) if is_copy and has_size else None

    async def _load_record(self, item: CopyItem) -> _UploadRecord | None:
        response = await self._target.request("GET", self._record_key(item))
        if response.status == 404:
            return None
        return _UploadRecord.model_validate_json(require_success(response).body)

    async def _save_record(self, item: CopyItem, record: _UploadRecord) -> None:
        body = record.model_dump_json().encode()
        require_success(await self._target.request("PUT", self._record_key(item), body=body))

    def _record_key(self, item: CopyItem) -> str:
        return f"{self._prefix}{item.digest.hex()}.json"


def _require_part_etag(etag: str, response: Response, number: int) -> str:
    if not etag:
        raise NotCopied("NoETag", response.status, f"the store gave no ETag for part {number}")
    return etag


def choose_part_bounds(described: SourceObject, most_bytes: int, wanted_bytes: int = PART_BYTES) -> Bounds:
    """The source's own parts if they are no larger than `most_bytes`; else equal parts."""
    if described.bounds and all(end - start <= most_bytes for start, end in described.bounds):
        return described.bounds
    least = max(MIN_PART_BYTES, -(-described.size_bytes // MAX_PARTS))
    return split_ranges(described.size_bytes, max(least, min(wanted_bytes, most_bytes)))


WHOLE_BYTES = 16 * 1024**2  # Objects up to this size are one request
MAX_PIECE_BYTES = 64 * 1024**2  # Larger parts of the source are divided: a piece is held in memory
MEMORY_BYTES = 256 * 1024**2
PARTS_AT_A_TIME = 4


class MemoryBudget:
    """Limits the bytes in memory of all copies together."""

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self._most, self._reserved = most_bytes, 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until so many bytes are free; a single larger piece is allowed."""
        size_bytes = min(size_bytes, self._most)
        async with self._freed:
            await self._freed.wait_for(lambda: self._reserved + size_bytes <= self._most)
            self._reserved += size_bytes
        try:
            yield
        finally:
            async with self._freed:
                self._reserved -= size_bytes
                self._freed.notify_all()


class BucketCopier:
    """Copies into a bucket. With `source`, a bucket of the same store, no content passes through this host, but for
    parts that the store cannot copy; else content is read from `reader` and sent."""

    def __init__(
        self, reader: Source, source: AsyncS3 | None, target: AsyncS3, task: CopyTask, known: Capabilities
    ) -> None:
        self._reader, self._source, self._target, self._task = reader, source, target, task
        self._known, self._uploads, self._memory = known, Uploads(target, task), MemoryBudget()

    async def copy(self, item: CopyItem) -> Outcome:
        """Copy an object by one CopyObject, one PutObject, UploadPartCopy or UploadPart (S3 API)."""
        if self._source is None:
            return await self._send(item)
        is_large = item.size_bytes > self._task.copy_limit_bytes
        # A store that ignores conditions is asked before and after.
        if not self._known.copies_on_condition:
            await self._require_unchanged(self._source, item)
        if not is_large:
            headers = make_source_headers(item, self._task)
            response = await self._target.request("PUT", item.stored_key, headers=headers)
            outcome = make_copied_outcome(item, require_success(response))
        else:
            outcome = await (self._copy_parts(item) if self._known.copies_parts else self._send(item))
        if not self._known.copies_on_condition:
            await self._require_unchanged(self._source, item)
        return outcome

    async def _require_unchanged(self, source: AsyncS3, item: CopyItem) -> None:
        response = await source.at(item.bucket).request("HEAD", item.key, _version_query(item))
        if item.etag and _get_etag(require_success(response)) != item.etag:
            raise NotCopied.changed("it changed since it was listed")

    async def _copy_parts(self, item: CopyItem) -> Outcome:
        """Copy a large object within a store, each part only if the object is the listed one."""
        described = await self._reader.describe(item)
        condition = make_source_headers(item, self._task)

        async def send(upload_id: str, number: int, start: int, end: int) -> str:
            query = {"partNumber": str(number), "uploadId": upload_id}
            headers = {**condition, "x-amz-copy-source-range": f"bytes={start}-{end - 1}"}
            response = require_success(await self._target.request("PUT", item.stored_key, query, headers))
            return _require_part_etag(response.text("ETag").strip('"'), response, number)

        bounds = choose_part_bounds(described, self._task.copy_limit_bytes)
        return await self._uploads.copy(item, described, bounds, send)

    async def _send(self, item: CopyItem) -> Outcome:
        if item.size_bytes > min(WHOLE_BYTES, self._task.copy_limit_bytes):
            return await self._send_parts(item)
        async with self._memory.reserve(item.size_bytes):
            described, content = await self._reader.whole(item)
            digest = sha256(content)
            checksum = b64encode(digest.digest()).decode()
            headers = {**described.headers, "x-amz-checksum-sha256": checksum}
            response = await self._target.request("PUT", item.stored_key, headers=headers, body=content)
            return make_copied_outcome(item, require_success(response), f"sha256:{digest.hexdigest()}")

    async def _send_parts(self, item: CopyItem) -> Outcome:
        described = await self._reader.describe(item)
        if described.size_bytes != item.size_bytes:
            raise NotCopied.changed(f"it has {described.size_bytes} bytes, {item.size_bytes} were listed")
        bounds = choose_part_bounds(described, MAX_PIECE_BYTES, WHOLE_BYTES)
        # Pieces are read one after the other, in their order: the digest is that of the whole object.
        turn, digest, read_bytes = asyncio.Lock(), sha256(), 0

        async def send(upload_id: str, number: int, start: int, end: int) -> str:
            nonlocal read_bytes
            async with AsyncExitStack() as reserved:
                async with turn:
                    await reserved.enter_async_context(self._memory.reserve(end - start))
                    content = await self._reader.piece(item, start, end)
                    await asyncio.to_thread(digest.update, content)
                    read_bytes += len(content)
                query = {"partNumber": str(number), "uploadId": upload_id}
                response = await self._target.request("PUT", item.stored_key, query, body=content)
                return _require_part_etag(_get_etag(require_success(response)), response, number)

        outcome = await self._uploads.copy(item, described, bounds, send, PARTS_AT_A_TIME)
        if read_bytes != item.size_bytes:
            # An earlier run sent some of the parts: the digest does not include them.
            return outcome
        return replace(outcome, checksum=f"sha256:{digest.hexdigest()}")
