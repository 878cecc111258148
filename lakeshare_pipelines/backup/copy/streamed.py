"""Objects that pass through this host: to a store of another provider, or from a folder into a bucket.

Memory is bounded however many are under way, and the checksum of the content is taken on the way.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256

from lakeshare_pipelines.backup.copy.objects import CopyTerms, copied, found_there, written_headers
from lakeshare_pipelines.backup.copy.outcomes import NotCopied, Outcome, Wanted
from lakeshare_pipelines.backup.copy.parts import Uploads, part_bounds
from lakeshare_pipelines.backup.copy.sources import Opened, Source
from lakeshare_pipelines.backup.stores.async_s3 import AsyncS3

WHOLE_BYTES = 16 * 1024**2
"""Up to so many bytes an object is one request."""
MOST_PIECE_BYTES = 64 * 1024**2
"""Parts of the source that are larger are not kept as they are: a piece is held in memory."""
MEMORY_BYTES = 256 * 1024**2
AT_A_TIME = 4


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

        outcome = await self._uploads.copy(wanted, opened, bounds, send, AT_A_TIME)
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
