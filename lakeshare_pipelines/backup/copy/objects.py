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
from lakeshare_pipelines.backup.copy.engine import NotCopied, Outcome, Wanted
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.backup.stores.async_s3 import Answer, AsyncS3, element, quoted_path

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

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one.

        Raises:
            NotCopied: it cannot be copied, others may.
            BackupError: nothing can be copied.
        """
        ...


async def copy_object(target: AsyncS3, wanted: Wanted, terms: CopyTerms) -> Outcome:
    """Copy an object by one CopyObject request (S3 API), with the condition that it is the listed one.

    Raises:
        NotCopied: the store refused: `NoSuchKey` (vacuumed since), `PreconditionFailed` (changed), `AccessDenied`, …
        NoAnswer: it did not answer.
    """
    there = await found_there(target, wanted, terms)
    if there is not None:
        return there
    headers = {**source_headers(wanted, terms), **written_headers(terms)}
    answer = await target.request("PUT", wanted.stored_key, headers=headers)
    if not answer.is_success:
        raise NotCopied.by(answer)
    return copied(wanted, answer)


def source_headers(wanted: Wanted, terms: CopyTerms) -> dict[str, str]:
    """The source of a copy and its conditions."""
    version = f"?versionId={quoted_path(wanted.version_id)}" if wanted.version_id else ""
    headers = {"x-amz-copy-source": f"/{wanted.bucket}/{quoted_path(wanted.key)}{version}"}
    if wanted.etag:
        headers["x-amz-copy-source-if-match"] = f'"{wanted.etag}"'
    if terms.source and terms.source.account and terms.source.bucket == wanted.bucket:
        headers["x-amz-source-expected-bucket-owner"] = terms.source.account
    if not wanted.etag:
        headers["x-amz-copy-source-if-unmodified-since"] = format_datetime(terms.as_of, usegmt=True)
    return headers


def written_headers(terms: CopyTerms) -> dict[str, str]:
    """Headers of what is written."""
    return {**terms.headers, **({} if terms.overwrite else {"if-none-match": "*"})}


async def found_there(target: AsyncS3, wanted: Wanted, terms: CopyTerms) -> Outcome | None:
    """Where nothing is to be overwritten: the copy that is there already, None where the key is free.

    Asked before, as not all stores keep the condition.

    Raises:
        NotCopied: something else has the key.
    """
    if terms.overwrite:
        return None
    answer = await target.request("HEAD", wanted.stored_key)
    if answer.status == 404:
        return None
    if not answer.is_success:
        raise NotCopied.by(answer)
    size, etag = answer.headers.get("content-length"), answer.headers.get("etag", "").strip('"')
    if etag != wanted.etag or size != str(wanted.size_bytes):
        raise already_there(target.address.location(wanted.stored_key))
    return copied(wanted, answer)


def already_there(location: str) -> NotCopied:
    """What is said of a key that something else has."""
    return NotCopied("AlreadyThere", 412, f"something else is at {location}, and nothing is overwritten")


def copied(wanted: Wanted, answer: Answer, checksum: str | None = None) -> Outcome:
    """The row of a copy; a store that gives no ETag has not copied.

    Raises:
        NotCopied: there is no ETag in the answer.
    """
    etag = (answer.text("ETag") or answer.headers.get("etag", "")).strip('"')
    if not etag:
        raise NotCopied("NoETag", answer.status, "the store said it was done, but gave no ETag")
    version = answer.headers.get("x-amz-version-id")
    return Outcome(
        wanted,
        stored_etag=etag,
        stored_version_id=None if version == "null" else version,
        checksum=checksum or _checksum_in(answer.body),
    )


def _checksum_in(body: bytes) -> str | None:
    found = _CHECKSUM.search(body)
    # "…-3" is a checksum of checksums of parts: not one of the content.
    if found is None or b"-" in found[2]:
        return None
    return f"{found[1].decode().lower()}:{found[2].decode()}"


class ServerSideCopier:
    """Copies within one store: nothing of the objects passes through this host."""

    def __init__(self, source: AsyncS3, target: AsyncS3, terms: CopyTerms, larger: Copier) -> None:
        self._source, self._target, self._terms, self._larger = source, target, terms, larger

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one: by a request, or by parts where it is larger than one takes."""
        if not self._terms.is_conditional:
            await self._require_unchanged(wanted)
        if wanted.size_bytes > self._terms.copy_limit_bytes:
            outcome = await self._larger.copy(wanted)
        else:
            outcome = await copy_object(self._target, wanted, self._terms)
        if not self._terms.is_conditional:
            await self._require_unchanged(wanted)
        return outcome

    async def _require_unchanged(self, wanted: Wanted) -> None:
        query = {"versionId": wanted.version_id} if wanted.version_id else {}
        answer = await self._source.at(wanted.bucket).request("HEAD", wanted.key, query)
        if not answer.is_success:
            raise NotCopied.by(answer)
        if wanted.etag and answer.headers.get("etag", "").strip('"') != wanted.etag:
            raise NotCopied.changed("it changed since it was listed")


def blocks(body: bytes, tag: str) -> list[bytes]:
    """The content of each element of a name."""
    return re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)


def completed_upload(etags: list[str]) -> bytes:
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
class Opened:
    """What is known of an object that is about to be copied."""

    size_bytes: int
    modified_ns: int
    headers: Mapping[str, str] = field(default_factory=dict)
    bounds: Bounds | None = None
    """Where the object's own parts begin and end; None for one that was not written in parts."""


class Source(Protocol):
    """Where objects are read from."""

    async def opened(self, wanted: Wanted) -> Opened:
        """What is known of an object. Raises NotCopied where it is gone or changed."""
        ...

    async def whole(self, wanted: Wanted) -> tuple[Opened, bytes]:
        """A small object at once. Raises NotCopied where it is gone or changed."""
        ...

    async def piece(self, wanted: Wanted, start: int, end: int) -> bytes:
        """Some bytes of an object. Raises NotCopied where it is gone or changed."""
        ...


class BucketSource:
    """Objects of buckets of one store."""

    def __init__(self, s3: AsyncS3) -> None:
        self._s3 = s3

    async def opened(self, wanted: Wanted) -> Opened:
        """By HEAD, of the whole object and, where its ETag tells of parts, of its first one (S3 API, partNumber)."""
        answer = await self._asked(wanted, "HEAD")
        headers = carried(answer)
        if int(answer.headers.get("x-amz-tagging-count", "0")):
            headers["x-amz-tagging"] = await self._tags(wanted)
        size = int(answer.headers["content-length"])
        bounds = await self._bounds(wanted, size) if "-" in answer.headers.get("etag", "") else None
        return Opened(size, modified_ns(answer), headers, bounds)

    async def whole(self, wanted: Wanted) -> tuple[Opened, bytes]:
        answer = await self._asked(wanted, "GET")
        if len(answer.body) != wanted.size_bytes:
            raise NotCopied.changed(f"it has {len(answer.body)} bytes, {wanted.size_bytes} were listed")
        headers = carried(answer)
        if int(answer.headers.get("x-amz-tagging-count", "0")):
            headers["x-amz-tagging"] = await self._tags(wanted)
        return Opened(len(answer.body), modified_ns(answer), headers), answer.body

    async def piece(self, wanted: Wanted, start: int, end: int) -> bytes:
        answer = await self._asked(wanted, "GET", {"range": f"bytes={start}-{end - 1}"})
        if len(answer.body) != end - start:
            raise NotCopied.changed(f"it ends after {start + len(answer.body)} bytes")
        return answer.body

    async def _asked(
        self,
        wanted: Wanted,
        method: str,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        condition = {"if-match": f'"{wanted.etag}"'} if wanted.etag else {}
        said = {**(query or {}), **({"versionId": wanted.version_id} if wanted.version_id else {})}
        answer = await self._s3.at(wanted.bucket).request(
            method, wanted.key, said, {**condition, **(headers or {})}
        )
        if not answer.is_success:
            raise NotCopied.by(answer)
        return answer

    async def _tags(self, wanted: Wanted) -> str:
        query = {"tagging": "", **({"versionId": wanted.version_id} if wanted.version_id else {})}
        answer = await self._s3.at(wanted.bucket).request("GET", wanted.key, query)
        if not answer.is_success:
            raise NotCopied.by(answer)
        tags = [(element(tag, "Key"), element(tag, "Value")) for tag in blocks(answer.body, "Tag")]
        return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in tags)

    async def _bounds(self, wanted: Wanted, size_bytes: int) -> Bounds | None:
        first = await self._asked(wanted, "HEAD", query={"partNumber": "1"})
        parts = int(first.headers.get("x-amz-mp-parts-count", "0"))
        part_bytes = int(first.headers["content-length"])
        if not parts:
            return None
        if -(-size_bytes // part_bytes) == parts:
            return cut(size_bytes, part_bytes)
        # Parts of different sizes: each tells its own.
        sizes = [part_bytes]
        for number in range(2, parts + 1):
            answer = await self._asked(wanted, "HEAD", query={"partNumber": str(number)})
            sizes.append(int(answer.headers["content-length"]))
        ends = [sum(sizes[: number + 1]) for number in range(parts)]
        return list(zip([0, *ends[:-1]], ends, strict=True))


def cut(size_bytes: int, part_bytes: int) -> Bounds:
    """Equal parts; the last one is what is left."""
    return [
        (start, min(start + part_bytes, size_bytes)) for start in range(0, max(size_bytes, 1), part_bytes)
    ]


def carried(answer: Answer) -> dict[str, str]:
    """Headers of an object that its copy must have too."""
    return {
        name.lower(): value
        for name, value in answer.headers.items()
        if name.lower() in CARRIED or name.lower().startswith(METADATA)
    }


def modified_ns(answer: Answer) -> int:
    """When the content was written, as far as is known: that of the file it was, else of the object."""
    kept = answer.headers.get(MTIME)
    if kept is not None and kept.replace(".", "", 1).isdigit():
        whole, _, part = kept.partition(".")
        return int(whole) * 10**9 + int(part[:9].ljust(9, "0") or "0")
    return int(parsedate_to_datetime(answer.headers["last-modified"]).timestamp()) * 10**9


MOST_PARTS = 10_000
PART_BYTES = 64 * 1024**2
LEAST_PART_BYTES = 5 * 1024**2
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
        self, wanted: Wanted, opened: Opened, bounds: Bounds, send: SendPart, at_a_time: int = AT_A_TIME
    ) -> Outcome:
        """Bring all parts that are not there yet, and complete the upload.

        Raises:
            NotCopied: a part was refused; the upload is given up.
            NoAnswer: the store is silent; the next run goes on with the upload.
        """
        upload = await self._unfinished(wanted)
        if upload is None:
            before = await self._ended_before(wanted) or await found_there(self._target, wanted, self._terms)
            if before is not None:
                return before
            upload = await self._begun(wanted, opened, bounds)

        async def bring(number: int, start: int, end: int) -> None:
            upload.sent[number] = await send(upload.id, number, start, end)

        missing = [
            (number, start, end)
            for number, (start, end) in enumerate(upload.bounds, start=1)
            if number not in upload.sent
        ]
        try:
            await side_by_side((partial(bring, *one) for one in missing), at_a_time)
            answer = await self._completed(wanted, upload)
        except NotCopied:
            await self._given_up(wanted, upload)
            raise
        await self._remember(wanted, _Record())
        return copied(wanted, answer)

    async def _begun(self, wanted: Wanted, opened: Opened, bounds: Bounds) -> Upload:
        headers = {**opened.headers, **self._terms.headers}
        answer = await self._target.request("POST", wanted.stored_key, {"uploads": ""}, headers)
        if not answer.is_success:
            raise NotCopied.by(answer)
        upload = Upload(answer.text("UploadId"), bounds)
        await self._remember(wanted, _Record(upload_id=upload.id, bounds=bounds))
        return upload

    async def _completed(self, wanted: Wanted, upload: Upload) -> Answer:
        etags = [upload.sent[number] for number in range(1, len(upload.bounds) + 1)]
        headers = {} if self._terms.overwrite else {"if-none-match": "*"}
        answer = await self._target.request(
            "POST", wanted.stored_key, {"uploadId": upload.id}, headers, completed_upload(etags)
        )
        if not answer.is_success:
            raise NotCopied.by(answer)
        return answer

    async def _given_up(self, wanted: Wanted, upload: Upload) -> None:
        answer = await self._target.request("DELETE", wanted.stored_key, {"uploadId": upload.id})
        if answer.is_success or answer.status == 404:
            await self._remember(wanted, _Record())

    async def _unfinished(self, wanted: Wanted) -> Upload | None:
        """The upload of an earlier run, with the parts it has; None where there is none to go on with."""
        record = await self._remembered(wanted)
        if record is None or record.upload_id is None:
            return None
        upload = Upload(record.upload_id, record.bounds)
        marker = ""
        while True:
            query = {"uploadId": upload.id, **({"part-number-marker": marker} if marker else {})}
            answer = await self._target.request("GET", wanted.stored_key, query)
            if answer.status == 404:
                return None
            if not answer.is_success:
                raise NotCopied.by(answer)
            for part in blocks(answer.body, "Part"):
                number, size = int(element(part, "PartNumber")), int(element(part, "Size"))
                start, end = upload.bounds[number - 1]
                if size == end - start:
                    upload.sent[number] = element(part, "ETag").strip('"')
            marker = answer.text("NextPartNumberMarker")
            if answer.text("IsTruncated") != "true":
                return upload

    async def _ended_before(self, wanted: Wanted) -> Outcome | None:
        """The copy that an earlier run completed right before it broke off, known by its composite ETag."""
        record = await self._remembered(wanted)
        if record is None or wanted.etag is None:
            return None
        answer = await self._target.request("HEAD", wanted.stored_key)
        is_it = (
            answer.is_success
            and answer.headers.get("etag", "").strip('"') == wanted.etag
            and answer.headers.get("content-length") == str(wanted.size_bytes)
        )
        return copied(wanted, answer) if is_it else None

    async def _remembered(self, wanted: Wanted) -> "_Record | None":
        answer = await self._target.request("GET", self._record_key(wanted))
        if answer.status == 404:
            return None
        if not answer.is_success:
            raise NotCopied.by(answer)
        return _Record.model_validate_json(answer.body)

    async def _remember(self, wanted: Wanted, record: "_Record") -> None:
        body = record.model_dump_json().encode()
        answer = await self._target.request("PUT", self._record_key(wanted), body=body)
        if not answer.is_success:
            raise NotCopied.by(answer)

    def _record_key(self, wanted: Wanted) -> str:
        return f"{self._prefix}{wanted.digest.hex()}.json"


class _Record(BaseModel):
    """What is remembered of an upload; without an id it has ended."""

    upload_id: str | None = None
    bounds: list[tuple[int, int]] = []


class PartsCopier:
    """Copies large objects inside a store, range by range, each part only if the object still is the listed one."""

    def __init__(self, source: AsyncS3, target: AsyncS3, terms: CopyTerms, uploads: Uploads) -> None:
        self._source, self._target, self._terms, self._uploads = BucketSource(source), target, terms, uploads

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one, by UploadPartCopy (S3 API)."""
        opened = await self._source.opened(wanted)
        condition = source_headers(wanted, self._terms)

        async def send(upload_id: str, number: int, start: int, end: int) -> str:
            answer = await self._target.request(
                "PUT",
                wanted.stored_key,
                {"partNumber": str(number), "uploadId": upload_id},
                {**condition, "x-amz-copy-source-range": f"bytes={start}-{end - 1}"},
            )
            if not answer.is_success:
                raise NotCopied.by(answer)
            etag = answer.text("ETag").strip('"')
            if not etag:
                raise NotCopied("NoETag", answer.status, f"the store gave no ETag for part {number}")
            return etag

        bounds = part_bounds(opened, self._terms.copy_limit_bytes)
        return await self._uploads.copy(wanted, opened, bounds, send)


def part_bounds(opened: Opened, most_bytes: int, wanted_bytes: int = PART_BYTES) -> Bounds:
    """The source's own parts where they are no larger than `most_bytes`; else parts of a size that suits."""
    if opened.bounds and all(end - start <= most_bytes for start, end in opened.bounds):
        return opened.bounds
    least = max(LEAST_PART_BYTES, -(-opened.size_bytes // MOST_PARTS))
    return cut(opened.size_bytes, max(least, min(wanted_bytes, most_bytes)))


async def side_by_side(works: Iterable[Callable[[], Awaitable[None]]], most: int) -> None:
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
MOST_PIECE_BYTES = 64 * 1024**2
"""Parts of the source that are larger are not kept as they are: a piece is held in memory."""
MEMORY_BYTES = 256 * 1024**2
PARTS_AT_A_TIME = 4


class Memory:
    """Bytes that may be held at a time, by all objects under way."""

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self._most, self._held = most_bytes, 0
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def held(self, size_bytes: int) -> AsyncIterator[None]:
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
        self, source: Source, target: AsyncS3, terms: CopyTerms, uploads: Uploads, memory: Memory
    ) -> None:
        self._source, self._target, self._terms = source, target, terms
        self._uploads, self._memory = uploads, memory

    async def copy(self, wanted: Wanted) -> Outcome:
        """Copy one: small ones by one PutObject, others in parts (S3 API)."""
        if wanted.size_bytes > min(WHOLE_BYTES, self._terms.copy_limit_bytes):
            return await self._in_parts(wanted)
        there = await found_there(self._target, wanted, self._terms)
        if there is not None:
            return there
        async with self._memory.held(wanted.size_bytes):
            opened, content = await self._source.whole(wanted)
            return await self._put(wanted, opened, content)

    async def _put(self, wanted: Wanted, opened: Opened, content: bytes) -> Outcome:
        digest = sha256(content)
        headers = {
            **opened.headers,
            **written_headers(self._terms),
            "x-amz-checksum-sha256": b64encode(digest.digest()).decode(),
        }
        answer = await self._target.request("PUT", wanted.stored_key, headers=headers, body=content)
        if not answer.is_success:
            raise NotCopied.by(answer)
        return copied(wanted, answer, f"sha256:{digest.hexdigest()}")

    async def _in_parts(self, wanted: Wanted) -> Outcome:
        opened = await self._source.opened(wanted)
        if opened.size_bytes != wanted.size_bytes:
            raise NotCopied.changed(f"it has {opened.size_bytes} bytes, {wanted.size_bytes} were listed")
        bounds = part_bounds(opened, MOST_PIECE_BYTES, WHOLE_BYTES)
        passing = _InOrder(self._source, wanted)

        async def send(upload_id: str, number: int, start: int, end: int) -> str:
            async with AsyncExitStack() as holding:
                # Who asks for the turn first has it first, and parts ask in their order.
                async with passing.turn:
                    await holding.enter_async_context(self._memory.held(end - start))
                    content = await passing.piece(start, end)
                return await self._send_part(wanted, upload_id, number, content)

        outcome = await self._uploads.copy(wanted, opened, bounds, send, PARTS_AT_A_TIME)
        if passing.size_bytes != wanted.size_bytes:
            # A run before this one sent some of the parts: their bytes did not pass here.
            return outcome
        return Outcome(
            wanted,
            stored_etag=outcome.stored_etag,
            stored_version_id=outcome.stored_version_id,
            checksum=f"sha256:{passing.digest.hexdigest()}",
        )

    async def _send_part(self, wanted: Wanted, upload_id: str, number: int, content: bytes) -> str:
        answer = await self._target.request(
            "PUT", wanted.stored_key, {"partNumber": str(number), "uploadId": upload_id}, body=content
        )
        if not answer.is_success:
            raise NotCopied.by(answer)
        etag = answer.headers.get("etag", "").strip('"')
        if not etag:
            raise NotCopied("NoETag", answer.status, f"the store gave no ETag for part {number}")
        return etag


class _InOrder:
    """Reads the pieces of an object one after the other, so that the checksum is of the whole."""

    def __init__(self, source: Source, wanted: Wanted) -> None:
        self._source, self._wanted = source, wanted
        self.turn, self.digest, self.size_bytes = asyncio.Lock(), sha256(), 0

    async def piece(self, start: int, end: int) -> bytes:
        """The next piece, for whoever has the turn."""
        content = await self._source.piece(self._wanted, start, end)
        await asyncio.to_thread(self.digest.update, content)
        self.size_bytes += len(content)
        return content
