"""Requests to S3 and its relatives by the thousand: one event loop, one pool of connections, our own signatures.

For listings and copies, where a request costs more in boto3 than in the store; rare calls are boto3's (s3.py). Nothing
is normalised: a key is sent as it is, a body is bytes, an answer is what the store said.
"""

import asyncio
import io
import os
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lakeshare_pipelines.backup.stores.address import StoreAddress
from lakeshare_pipelines.backup.stores.answers import Answer, said_by
from lakeshare_pipelines.backup.stores.credentials import Identity
from lakeshare_pipelines.backup.stores.pace import Pace
from lakeshare_pipelines.backup.stores.signature import NO_BODY, Signer, quoted_path, quoted_query
from lakeshare_pipelines.errors import NoAnswer

if TYPE_CHECKING:
    import aiohttp

ATTEMPTS = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 20.0
CONNECT_S, ANSWER_S = 10.0, 300.0
"""A large copy may be silent for minutes."""
LARGE_BYTES = 1024**2
CHUNK_BYTES = 256 * 1024
WRITES = {"PUT", "POST", "DELETE"}


@dataclass(frozen=True)
class Streamed:
    """An answer whose body is still to come; `answer.body` is whole where the store refused, else empty."""

    answer: Answer
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True)
class _Way:
    """How requests get to a bucket; what does not change between two of them."""

    origin: str
    path: str
    host: str
    proxy: str | None

    @classmethod
    def to(cls, url: str) -> "_Way":
        parts = urlsplit(url)
        host = parts.netloc.removesuffix(":443" if parts.scheme == "https" else ":80")
        proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
        return cls(f"{parts.scheme}://{parts.netloc}", parts.path, host, proxy)


class _Pool:
    """Connections of one event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            trusted = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
            self._session = aiohttp.ClientSession(
                # How many there are is decided by the pace.
                connector=aiohttp.TCPConnector(limit=0, ssl=trusted, ttl_dns_cache=60),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S),
                auto_decompress=False,
                skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class AsyncS3:
    """One bucket, asked by one event loop: `async with AsyncS3(address, 64) as s3: await s3.request(…)`."""

    def __init__(
        self,
        address: StoreAddress,
        in_flight: int,
        *,
        pace: Pace | None = None,
        identity: Identity | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.address, self.attempts = address, attempts
        self.pace = pace or Pace(in_flight)
        self.identity = identity or Identity(address)
        self._signer = Signer(self.identity.region)
        self._way = _Way.to(self.identity.bucket_url(address.bucket))
        self._pool = _Pool()
        self._others: dict[str, AsyncS3] = {}

    async def request(
        self,
        method: str,
        key: str = "",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        attempts: int | None = None,
    ) -> Answer:
        """The store's answer, whatever its status, after passing faults were tried again with growing waits.

        `key` is as it is, decoded; without one the bucket is asked. Names in `query` and `headers` are as S3 spells
        them. A copy or a completed upload that says 200 with an error inside has that error's status.

        Raises:
            NoAnswer: the store did not answer, `attempts` times.
            BackupError: there are no credentials.
        """
        most = attempts or self.attempts
        for attempt in range(1, most + 1):
            try:
                answer = await self._answered(method, key, query, headers, body)
            except self._faults() as fault:
                if attempt == most:
                    raise self._silent(key, fault) from fault
            else:
                if not await self._comes_again(answer) or attempt == most:
                    return answer
            await asyncio.sleep(waiting_s(attempt))
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Streamed]:
        """An object piece by piece, as they come; one attempt: who has used a piece knows what to do about a fault.

        Raises:
            NoAnswer: the store did not answer, or broke off.
        """
        await self.pace.enter()
        try:
            async with await self._begun("GET", key, query, headers, b"") as answer:
                refused = b"" if answer.status < 300 else await answer.read()
                told = said_by("GET", answer.status, answer.headers, refused)
                if not told.is_success:
                    await self._comes_again(told)
                yield Streamed(told, answer.content.iter_chunked(CHUNK_BYTES))
        except self._faults() as fault:
            raise self._silent(key, fault) from fault
        finally:
            self.pace.leave()

    def at(self, bucket: str) -> "AsyncS3":
        """Another bucket, with the same identity, pace and connections, which are this one's to close."""
        if bucket == self.address.bucket:
            return self
        if bucket not in self._others:
            # Who must own that one is not said.
            address = self.address.at(bucket).model_copy(update={"account": None})
            other = AsyncS3(address, 0, pace=self.pace, identity=self.identity, attempts=self.attempts)
            other._pool = self._pool
            self._others[bucket] = other
        return self._others[bucket]

    async def close(self) -> None:
        """Let go of the connections."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _answered(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes,
    ) -> Answer:
        """One request and its whole answer; a place and tokens are waited for, and given back at the end."""
        await self.pace.enter(key.rpartition("/")[0] if method in WRITES else None)
        try:
            async with await self._begun(method, key, query, headers, body) as answer:
                return said_by(method, answer.status, answer.headers, await answer.read())
        finally:
            self.pace.leave()

    async def _begun(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes,
    ) -> "aiohttp.client._RequestContextManager":
        """A signed request, to be entered."""
        from yarl import URL

        way, asked = self._way, quoted_query(query) if query else ""
        path = f"{way.path}/{quoted_path(key)}"
        said = {name.lower(): value for name, value in headers.items()} if headers else {}
        if self.address.account:
            said.setdefault("x-amz-expected-bucket-owner", self.address.account)
        keys, content_sha256 = await self.identity.keys(), await _sha256(body)
        sent = self._signer.signed(keys, method, way.host, path, asked, said, content_sha256)
        target = URL(f"{way.origin}{path}{'?' if asked else ''}{asked}", encoded=True)
        return self._pool.session().request(
            method, target, headers=sent, data=_payload(body), allow_redirects=False, proxy=way.proxy
        )

    async def _comes_again(self, answer: Answer) -> bool:
        """Whether the same request may be answered otherwise next time; what the answer teaches is learnt."""
        if answer.asks_to_slow_down:
            self.pace.slow_down()
            return True
        self.pace.went_well()
        if answer.has_expired_keys:
            return await self.identity.renewed()
        region = answer.other_region
        if region and region != self._signer.region:
            self._signer = Signer(region)
            self._way = _Way.to(self.identity.bucket_url(self.address.bucket, region))
            return True
        if answer.status == 307 and answer.headers.get("location"):
            # A new bucket, whose name does not lead everywhere yet.
            moved = urlsplit(answer.headers["location"])
            self._way = _Way.to(f"{moved.scheme}://{moved.netloc}{self._way.path}")
            return True
        return answer.is_passing

    def _silent(self, key: str, fault: BaseException) -> NoAnswer:
        reason = str(fault).rstrip(".") or type(fault).__name__
        return NoAnswer(self.address.location(key), f"the store does not answer: {reason}")

    @staticmethod
    def _faults() -> tuple[type[Exception], ...]:
        import aiohttp

        return (aiohttp.ClientError, TimeoutError, ConnectionError)


async def _sha256(body: bytes) -> str:
    if not body:
        return NO_BODY
    # A large one would keep all other requests waiting.
    digest = sha256(body) if len(body) < LARGE_BYTES else await asyncio.to_thread(sha256, body)
    return digest.hexdigest()


def _payload(body: bytes) -> "bytes | io.BytesIO | None":
    return None if not body else body if len(body) < LARGE_BYTES else io.BytesIO(body)


def waiting_s(attempt: int) -> float:
    """How long to wait before the next attempt: exponential, with full jitter, so that nobody comes back together."""
    longest_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
    return random.uniform(0, longest_s)  # noqa: S311
