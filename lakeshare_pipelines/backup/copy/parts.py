"""Objects that go in parts: begun once, resumed where a run broke off, and given up when they cannot be copied.

The source's own part boundaries are kept, so that the copy has the same composite ETag. How one part gets there is
said by whoever calls: copied inside the store here, streamed from elsewhere in streamed.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from pydantic import BaseModel

from lakeshare_pipelines.backup.copy.objects import (
    CopyTerms,
    copied,
    found_there,
    source_headers,
)
from lakeshare_pipelines.backup.copy.outcomes import NotCopied, Outcome, Wanted
from lakeshare_pipelines.backup.copy.sources import Bounds, BucketSource, Opened, cut
from lakeshare_pipelines.backup.copy.xml import blocks, completed_upload
from lakeshare_pipelines.backup.stores.answers import Answer, element
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3

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
