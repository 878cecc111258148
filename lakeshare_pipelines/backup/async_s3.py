"""Many concurrent requests to S3: one event loop, one pool of connections, our own signatures.

For listings and copies, where boto3 takes more time for a request than the store; other requests use stores.py.
Nothing is normalised: keys are sent unchanged, bodies are bytes.
"""

import asyncio
import io
import os
import random
import re
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from html import unescape
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from lakeshare_pipelines.backup import stores
from lakeshare_pipelines.errors import BackupError, NoResponse
from lakeshare_server.storage import s3, sigv4

if TYPE_CHECKING:
    import aiohttp

STATUS_OF_CODE = {
    "SlowDown": 503, "ServiceUnavailable": 503, "InternalError": 500, "PreconditionFailed": 412,
    "NoSuchKey": 404, "NoSuchUpload": 404, "AccessDenied": 403,
}  # fmt: skip
"""Status of an error that is sent with status 200; 500 for other codes."""
CODE_OF_STATUS = {
    304: "NotModified", 403: "AccessDenied", 404: "NoSuchKey", 405: "MethodNotAllowed", 412: "PreconditionFailed",
    416: "InvalidRange", 500: "InternalError", 503: "SlowDown",
}  # fmt: skip
"""Error code of a response to HEAD, which has no body."""
TRANSIENT_CODES = {
    "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict",
}  # fmt: skip
_ERROR_BODY = re.compile(rb"^\s*(?:<\?xml[^>]*\?>)?\s*<Error[\s>]")


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return self.status < 300

    @cached_property
    def code(self) -> str:
        """S3's error code; empty if there is no error."""
        if self.is_success:
            return ""
        return self.text("Code") or CODE_OF_STATUS.get(self.status, f"HTTP{self.status}")

    @property
    def message(self) -> str:
        return self.text("Message") or self.code

    @property
    def is_throttled(self) -> bool:
        return self.status in {429, 503} or self.code in s3.THROTTLED

    @property
    def is_transient(self) -> bool:
        """Whether a retry may succeed; never for 403, 404 and 412."""
        return (
            self.status in {500, 502, 504}
            or self.is_throttled
            or (self.status in {400, 408, 409} and self.code in TRANSIENT_CODES)
        )

    @property
    def other_region(self) -> str:
        """The bucket's region, if the request went to another one; else empty."""
        if self.status == 301 or self.code in {"PermanentRedirect", "AuthorizationHeaderMalformed"}:
            return self.headers.get("x-amz-bucket-region") or self.text("Region")
        # The response to a HEAD has no body with the error code.
        return self.headers.get("x-amz-bucket-region", "") if self.status == 400 else ""

    def text(self, tag: str) -> str:
        return find_element(self.body, tag)


def find_element(body: bytes, tag: str) -> str:
    """The text of the first XML element of this name (without attributes); empty if there is none."""
    opening = f"<{tag}>".encode()
    at = body.find(opening)
    if at < 0:
        return ""
    start = at + len(opening)
    text = body[start : body.find(b"<", start)].decode(errors="replace")
    return unescape(text) if "&" in text else text


def make_response(method: str, status: int, headers: Mapping[str, str], body: bytes) -> Response:
    """A response; the error inside the 200 of a copy or a completed upload becomes its status (S3 API, CopyObject)."""
    response = Response(status, headers, body)
    if response.is_success and method in {"PUT", "POST"} and _ERROR_BODY.match(body):
        return Response(STATUS_OF_CODE.get(response.text("Code"), 500), headers, body)
    return response


CREDENTIALS_CACHED_S = 30.0  # botocore refreshes keys ten minutes before they expire


class Identity:
    """Credentials from botocore's chain and the endpoint from boto3's configuration, for one address."""

    def __init__(self, address: stores.StoreAddress) -> None:
        session = stores.make_session(address)
        region, endpoint = session.region_name, address.endpoint
        if not endpoint:
            # Making a client takes long; only it knows AWS's endpoint.
            client = stores.make_s3_client(address)
            region, endpoint = client.meta.region_name, client.meta.endpoint_url
        self.region: str = sigv4.DEFAULT_REGION if region in {None, "aws-global"} else str(region)
        self._address, self._endpoint = address, str(endpoint).rstrip("/")
        self._chain = stores.make_key_chain(address, session)
        self._lock = asyncio.Lock()
        self._keys: sigv4.AwsKeys | None = None
        self._read_at = 0.0

    def bucket_url(self, bucket: str, region: str | None = None) -> str:
        """The URL before `/key`: path addressing for a declared endpoint and for names that are no host label."""
        endpoint = self._endpoint
        if region is not None and sigv4.is_aws(endpoint):
            tail = ".cn" if endpoint.endswith(".cn") else ""
            endpoint = f"{urlsplit(endpoint).scheme}://s3.{region}.amazonaws.com{tail}"
        return sigv4.Bucket.at(bucket, region or self.region, endpoint).url

    async def keys(self) -> sigv4.AwsKeys:
        if self._keys is None or time.monotonic() - self._read_at > CREDENTIALS_CACHED_S:
            async with self._lock:
                if self._keys is None or time.monotonic() - self._read_at > CREDENTIALS_CACHED_S:
                    self._keys = await asyncio.to_thread(self._read_keys)
                    self._read_at = time.monotonic()
        return self._keys

    async def renew(self) -> bool:
        """Replace expired keys; False if there are no others."""
        expired, self._keys = self._keys, None
        return await self.keys() != expired

    def _read_keys(self) -> sigv4.AwsKeys:
        keys = stores.find_keys(self._address, self._chain)
        if keys is None:
            raise BackupError(str(self._address), "there are no credentials for it", stores.CREDENTIALS)
        return keys


PREFIX_PER_S = (
    3500.0  # Writes a second that S3 accepts below one prefix (user guide, "Optimizing performance")
)
RECOVERY_S = 1.0  # Concurrent requests report the same congestion: the limit is halved once in this time
MAX_PREFIXES = 4096
MIN_WAIT_S = 0.001


class Pace:
    """Limits concurrent requests (additive increase, multiplicative decrease, 1 to `most`) and writes per prefix."""

    def __init__(self, most: int, prefix_per_s: float = PREFIX_PER_S) -> None:
        self.most, self.limit, self.in_flight = most, float(most), 0
        self.slowed = 0
        self._prefix_per_s = prefix_per_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._cut_at = -RECOVERY_S
        self._tokens: dict[str, tuple[float, float]] = {}

    async def enter(self, prefix: str | None = None) -> None:
        """Wait until one more request may start; `prefix` is that of a write request."""
        if prefix is not None:
            await self._take_token(prefix)
        while self.in_flight >= int(self.limit):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                # The turn of a cancelled request goes to the next one.
                if turn.done() and not turn.cancelled():
                    self._wake()
                raise
        self.in_flight += 1

    def leave(self) -> None:
        self.in_flight -= 1
        if self._waiting:
            self._wake()

    def slow_down(self) -> None:
        """Halve the limit: the store throttles."""
        now = time.monotonic()
        if now - self._cut_at >= RECOVERY_S:
            self._cut_at, self.limit = now, max(1.0, self.limit / 2)
            self.slowed += 1

    def record_success(self) -> None:
        """Raise the limit by one for every `limit` responses."""
        if self.limit < self.most:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)
            self._wake()

    def _wake(self) -> None:
        free = int(self.limit) - self.in_flight
        while free > 0 and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    async def _take_token(self, prefix: str) -> None:
        rate = self._prefix_per_s
        while True:
            now = time.monotonic()
            left, at = self._tokens.get(prefix, (rate, now))
            left = min(rate, left + (now - at) * rate)
            if left >= 1:
                self._tokens[prefix] = (left - 1, now)
                if len(self._tokens) > MAX_PREFIXES:
                    # After a second without writes a prefix has all its tokens again.
                    self._tokens = {name: used for name, used in self._tokens.items() if now - used[1] < 1}
                return
            await asyncio.sleep(max(MIN_WAIT_S, (1 - left) / rate))


ATTEMPTS = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 20.0
CONNECT_S, RESPONSE_S = 10.0, 300.0  # The response to a large copy may take minutes
LARGE_BYTES = 1024**2
WRITES = {"PUT", "POST", "DELETE"}


@dataclass(frozen=True)
class _Route:
    origin: str
    path: str
    host: str
    proxy: str | None

    @property
    def has_tls(self) -> bool:
        return any(url.startswith("https:") for url in (self.origin, self.proxy or ""))

    @classmethod
    def to(cls, url: str) -> "_Route":
        parts = urlsplit(url)
        host = parts.netloc.removesuffix(":443" if parts.scheme == "https" else ":80")
        proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
        return cls(f"{parts.scheme}://{parts.netloc}", parts.path, host, proxy)


class AsyncS3:
    """A client for one bucket and one event loop: `async with AsyncS3(address, 64) as s3: await s3.request(…)`."""

    def __init__(
        self,
        address: stores.StoreAddress,
        in_flight: int,
        *,
        pace: Pace | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.address = address
        self.pace = pace or Pace(in_flight)
        self.identity = identity or Identity(address)
        self._signer = sigv4.RequestSigner(self.identity.region)
        self._route = _Route.to(self.identity.bucket_url(address.bucket))
        # One HTTP session, or none yet; shared with the clients of other buckets.
        self._sessions: list[aiohttp.ClientSession] = []
        self._others: dict[str, AsyncS3] = {}

    async def request(
        self,
        method: str,
        key: str = "",
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        attempts: int = ATTEMPTS,
    ) -> Response:
        """Send a request, with retries and backoff for transient faults; returns the response of any status.

        `key` is decoded; without a key the request is for the bucket. An error inside a 200 has the error's status.
        Raises NoResponse if the store did not respond in `attempts` attempts, and BackupError if there are no
        credentials.
        """
        import aiohttp

        for attempt in range(1, attempts + 1):
            try:
                response = await self._send(method, key, query, headers, body)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as fault:
                if attempt == attempts:
                    reason = str(fault).rstrip(".") or type(fault).__name__
                    where = self.address.location(key)
                    raise NoResponse(where, f"the store does not answer: {reason}") from fault
            else:
                if not await self._should_retry(response) or attempt == attempts:
                    return response
            # Full jitter, so that clients do not retry at the same time.
            longest_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
            await asyncio.sleep(random.uniform(0, longest_s))  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    def at(self, bucket: str) -> "AsyncS3":
        """A client for another bucket, with the same identity, pace and connections; this client closes them."""
        if bucket == self.address.bucket:
            return self
        if bucket not in self._others:
            # The owner of the other bucket is not declared.
            address = self.address.at(bucket).model_copy(update={"account": None})
            other = AsyncS3(address, 0, pace=self.pace, identity=self.identity)
            other._sessions = self._sessions
            self._others[bucket] = other
        return self._others[bucket]

    async def close(self) -> None:
        while self._sessions:
            await self._sessions.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        body: bytes,
    ) -> Response:
        from yarl import URL

        await self.pace.enter(key.rpartition("/")[0] if method in WRITES else None)
        try:
            route, query_text = self._route, sigv4.quote_query(query) if query else ""
            path = f"{route.path}/{sigv4.quote_path(key)}"
            lowered = {name.lower(): value for name, value in headers.items()} if headers else {}
            if self.address.account:
                lowered.setdefault("x-amz-expected-bucket-owner", self.address.account)
            keys, digest = await self.identity.keys(), sigv4.NO_BODY
            data: bytes | io.BytesIO | None = None
            if body:
                is_large = len(body) >= LARGE_BYTES
                # Hashing a large body here would delay all other requests.
                digest = (await asyncio.to_thread(sha256, body) if is_large else sha256(body)).hexdigest()
                data = io.BytesIO(body) if is_large else body
            sent = self._signer.sign(keys, method, route.host, path, query_text, lowered, digest)
            url = URL(f"{route.origin}{path}{'?' if query_text else ''}{query_text}", encoded=True)
            async with self._session().request(
                method, url, headers=sent, data=data, allow_redirects=False, proxy=route.proxy
            ) as response:
                return make_response(method, response.status, response.headers, await response.read())
        finally:
            self.pace.leave()

    def _session(self) -> "aiohttp.ClientSession":
        import aiohttp

        if not self._sessions:
            # Loading the trusted certificates takes longer than several requests.
            bundle = os.environ.get("AWS_CA_BUNDLE")
            trusted = ssl.create_default_context(cafile=bundle) if self._route.has_tls else True
            session = aiohttp.ClientSession(
                # The pace limits the number of connections.
                connector=aiohttp.TCPConnector(limit=0, ssl=trusted, ttl_dns_cache=60),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=RESPONSE_S),
                auto_decompress=False,
                skip_auto_headers=("Content-Type", "User-Agent", "Accept", "Accept-Encoding"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            self._sessions.append(session)
        return self._sessions[0]

    async def _should_retry(self, response: Response) -> bool:
        if response.is_throttled:
            self.pace.slow_down()
            return True
        self.pace.record_success()
        if response.code in {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}:
            return await self.identity.renew()
        region = response.other_region
        if region and region != self._signer.region:
            self._signer = sigv4.RequestSigner(region)
            self._route = _Route.to(self.identity.bucket_url(self.address.bucket, region))
            return True
        if response.status == 307 and response.headers.get("location"):
            # The DNS name of a new bucket is not known everywhere yet.
            moved = urlsplit(response.headers["location"])
            self._route = _Route.to(f"{moved.scheme}://{moved.netloc}{self._route.path}")
            return True
        return response.is_transient
