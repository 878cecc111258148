"""Objects read piece by piece, only while they are what was listed: from buckets here, from folders in folders.py.

What is carried to the copy besides the content is read here too: type, metadata, tags, and where parts begin.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Protocol
from urllib.parse import quote

from lakeshare_pipelines.backup.copy.outcomes import NotCopied, Wanted
from lakeshare_pipelines.backup.copy.xml import blocks
from lakeshare_pipelines.backup.stores.answers import Answer, element
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3

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
