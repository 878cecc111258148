"""Requests to S3 and its relatives by the thousand: one event loop, one pool of connections, our own signatures.

For listings and copies, where a request costs more in boto3 than in the store; rare calls are boto3's (s3.py). Nothing
is normalised: a key is sent as it is, a body is bytes, an answer is what the store said.
"""

import asyncio
import hmac
import io
import os
import random
import re
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from html import unescape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from lakeshare_pipelines.backup.stores.store import CREDENTIALS, StoreAddress, make_s3_client
from lakeshare_pipelines.errors import BackupError, NoResponse

if TYPE_CHECKING:
    import aiohttp

STATUS_OF_CODE = {
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "InternalError": 500,
    "PreconditionFailed": 412,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "AccessDenied": 403,
}
"""What an error says that comes with status 200; 500 where nothing else is known."""
CODE_OF_STATUS = {
    304: "NotModified",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    416: "InvalidRange",
    500: "InternalError",
    503: "SlowDown",
}
"""What a HEAD says, whose answer has no body."""
SLOW_DOWN_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
TRANSIENT_CODES = {
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "OperationAborted",
    "ConditionalRequestConflict",
}
_ERROR_BODY = re.compile(rb"^\s*(?:<\?xml[^>]*\?>)?\s*<Error[\s>]")


@dataclass(frozen=True)
class Response:
    """One answer; names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether it was done."""
        return self.status < 300

    @cached_property
    def code(self) -> str:
        """S3's error code; empty where there is no error."""
        if self.is_success:
            return ""
        return self.text("Code") or CODE_OF_STATUS.get(self.status, f"HTTP{self.status}")

    @property
    def message(self) -> str:
        """S3's words about an error; its code where there are none."""
        return self.text("Message") or self.code

    @property
    def is_throttled(self) -> bool:
        """503 and 429: too much is asked of it."""
        return self.status in {429, 503} or self.code in SLOW_DOWN_CODES

    @property
    def is_transient(self) -> bool:
        """Whether the same request may go well a moment later; never for 403, 404 and 412."""
        return (
            self.status in {500, 502, 504}
            or self.is_throttled
            or (self.status in {400, 408, 409} and self.code in TRANSIENT_CODES)
        )

    @property
    def has_expired_keys(self) -> bool:
        """The session of the keys has ended."""
        return self.code in {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}

    @property
    def other_region(self) -> str:
        """The region that the store names as the bucket's; empty where it names none."""
        if self.status == 301 or self.code in {"PermanentRedirect", "AuthorizationHeaderMalformed"}:
            return self.headers.get("x-amz-bucket-region") or self.text("Region")
        # A HEAD has no body to name the error in.
        return self.headers.get("x-amz-bucket-region", "") if self.status == 400 else ""

    def text(self, tag: str) -> str:
        """The text of the first XML element of a name; empty where there is none."""
        return find_element(self.body, tag)


def find_element(body: bytes, tag: str) -> str:
    """The text of the first XML element of a name, which has no attributes; empty where there is none."""
    opening = f"<{tag}>".encode()
    at = body.find(opening)
    if at < 0:
        return ""
    start = at + len(opening)
    text = body[start : body.find(b"<", start)].decode(errors="replace")
    return unescape(text) if "&" in text else text


def make_response(method: str, status: int, headers: Mapping[str, str], body: bytes) -> Response:
    """An answer; the error that a copy or a completed upload may have inside a 200 becomes its status.

    S3 API, CopyObject: "A 200 OK response can contain either a success or an error".
    """
    response = Response(status, headers, body)
    if response.is_success and method in {"PUT", "POST"} and _ERROR_BODY.match(body):
        return Response(STATUS_OF_CODE.get(response.text("Code"), 500), headers, body)
    return response


ALGORITHM = "AWS4-HMAC-SHA256"
NO_BODY = sha256(b"").hexdigest()
"""What `x-amz-content-sha256` says of a request without a body."""
UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True)
class SigningKeys:
    """Keys of a user, or of a session of a role."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class Signer:
    """Signs requests to one service in one region."""

    def __init__(self, region: str, service: str = "s3") -> None:
        self.region, self.service = region, service
        self._derived: dict[tuple[SigningKeys, str], bytes] = {}

    def signed(
        self,
        keys: SigningKeys,
        method: str,
        host: str,
        path: str,
        query: str,
        headers: Mapping[str, str],
        content_sha256: str = NO_BODY,
        moment: datetime | None = None,
    ) -> dict[str, str]:
        """All headers to send: those given (names in lower case), the host and the signature over them.

        `path` and `query` are as they are sent: quoted by `quoted_path` and `quoted_query`. `content_sha256` is that
        of the body, in hexadecimal, or UNSIGNED. Section "Create a signed AWS API request" of the IAM guide.
        """
        stamp = (moment or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
        sent = {**headers, "host": host, "x-amz-content-sha256": content_sha256, "x-amz-date": stamp}
        if keys.token:
            sent["x-amz-security-token"] = keys.token
        names = sorted(sent)
        lines = "".join(f"{name}:{' '.join(sent[name].split())}\n" for name in names)
        signed = ";".join(names)
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{content_sha256}"
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        to_sign = f"{ALGORITHM}\n{stamp}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.digest(self._key(keys, stamp[:8]), to_sign.encode(), "sha256").hex()
        sent["authorization"] = (
            f"{ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={signed}, Signature={signature}"
        )
        return sent

    def _key(self, keys: SigningKeys, day: str) -> bytes:
        found = self._derived.get((keys, day))
        if found is None:
            found = f"AWS4{keys.secret_key}".encode()
            for part in (day, self.region, self.service, "aws4_request"):
                found = hmac.digest(found, part.encode(), "sha256")
            # Others are of yesterday, or of a session that has ended.
            self._derived = {(keys, day): found}
        return found


def quote_path(key: str) -> str:
    """A key as it stands in a path: S3 takes it as it is, so nothing is normalised."""
    return quote(key, safe="/~")


def quote_query(query: Mapping[str, str]) -> str:
    """A query in the one form that is both sent and signed: sorted, all quoted, a value even where it is empty."""
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


DEFAULT_REGION = "us-east-1"
AWS = re.compile(r"(\S+\.)?amazonaws\.com(\.cn)?")
HOST_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
"""Buckets that may stand in front of a host whose certificate covers one label."""
LOOK_AGAIN_S = 30.0
"""botocore refreshes keys ten minutes before their end: they are not asked for at every request."""


class Identity:
    """Credentials by botocore's chain and the endpoint by boto3's configuration, of one address."""

    def __init__(self, address: StoreAddress) -> None:
        region, endpoint, credentials = _load_configuration(address)
        self.region: str = DEFAULT_REGION if region in {None, "aws-global"} else str(region)
        self._address, self._endpoint = address, endpoint.rstrip("/")
        self._lock = asyncio.Lock()
        self._keys: SigningKeys | None = None
        self._looked_at = 0.0
        # botocore's credentials come without types.
        self._credentials: Any = credentials

    def bucket_url(self, bucket: str, region: str | None = None) -> str:
        """The URL in front of `/key`: by path at an endpoint that was given, and where the name is no host's."""
        endpoint = self._endpoint
        parts = urlsplit(endpoint)
        if AWS.fullmatch(parts.hostname or ""):
            if region is not None:
                tail = ".cn" if endpoint.endswith(".cn") else ""
                endpoint = f"{parts.scheme}://s3.{region}.amazonaws.com{tail}"
            if HOST_LABEL.fullmatch(bucket):
                return endpoint.replace("://", f"://{bucket}.", 1)
        return f"{endpoint}/{bucket}"

    async def keys(self) -> SigningKeys:
        """The keys of now.

        Raises:
            BackupError: there are none.
        """
        if self._keys is None or time.monotonic() - self._looked_at > LOOK_AGAIN_S:
            async with self._lock:
                if self._keys is None or time.monotonic() - self._looked_at > LOOK_AGAIN_S:
                    self._keys = await asyncio.to_thread(self._look)
                    self._looked_at = time.monotonic()
        return self._keys

    async def renew(self) -> bool:
        """Look for other keys than those that have ended; False where there are none."""
        had = self._keys
        self._keys = None
        return await self.keys() != had

    def _look(self) -> SigningKeys:
        if self._credentials is None:
            raise BackupError(str(self._address), "there are no credentials for it", CREDENTIALS)
        try:
            now = self._credentials.get_frozen_credentials()
        # Each provider of botocore's chain has errors of its own.
        except Exception as error:
            reason = f"its credentials cannot be refreshed: {str(error).rstrip('.')}"
            raise BackupError(str(self._address), reason, CREDENTIALS) from error
        return SigningKeys(now.access_key, now.secret_key, now.token)


# Credentials of botocore come without types.
def _load_configuration(address: StoreAddress) -> tuple[str | None, str, Any]:
    """Region, endpoint and credentials, as boto3 is set up; a client takes a while: it is made for AWS's endpoint."""
    import boto3

    if address.endpoint:
        session = boto3.Session(profile_name=address.profile, region_name=address.region)
        return session.region_name, address.endpoint, session.get_credentials()
    client = make_s3_client(address)
    return client.meta.region_name, client.meta.endpoint_url, client._request_signer._credentials


PREFIX_PER_S = 3500.0
"""Requests that write which S3 takes a second below one prefix (user guide, "Optimizing performance")."""
RECOVERY_S = 1.0
"""Requests that were under way together tell of the same congestion: between two cuts passes so long."""
MAX_PREFIXES = 4096
SHORTEST_S = 0.001


class Pace:
    """Additive increase, multiplicative decrease, between 1 and `most`; and a bucket of tokens for each prefix."""

    def __init__(self, most: int, prefix_per_s: float = PREFIX_PER_S) -> None:
        self.most, self.limit, self.in_flight = most, float(most), 0
        self.slowed = 0
        self._prefix_per_s = prefix_per_s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._cut_at = -RECOVERY_S
        self._tokens: dict[str, tuple[float, float]] = {}

    async def enter(self, prefix: str | None = None) -> None:
        """Wait for a place among those in flight; `prefix` is given by requests that write below it."""
        if prefix is not None:
            await self._admitted(prefix)
        while self.in_flight >= int(self.limit):
            await self._place()
        self.in_flight += 1

    def leave(self) -> None:
        """Give the place back."""
        self.in_flight -= 1
        if self._waiting:
            self._wake()

    def slow_down(self) -> None:
        """The store asked for it: half as many from now on."""
        now = time.monotonic()
        if now - self._cut_at >= RECOVERY_S:
            self._cut_at, self.limit = now, max(1.0, self.limit / 2)
            self.slowed += 1

    def record_success(self) -> None:
        """An answer came: one more in flight after as many answers as there are places."""
        if self.limit < self.most:
            self.limit = min(float(self.most), self.limit + 1 / self.limit)
            self._wake()

    async def _place(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            # A place that was given to someone who no longer wants it goes to the next.
            if place.done() and not place.cancelled():
                self._wake()
            raise

    def _wake(self) -> None:
        free = int(self.limit) - self.in_flight
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1

    async def _admitted(self, prefix: str) -> None:
        while True:
            now, rate = time.monotonic(), self._prefix_per_s
            left, at = self._tokens.get(prefix, (rate, now))
            left = min(rate, left + (now - at) * rate)
            if left >= 1:
                self._tokens[prefix] = (left - 1, now)
                if len(self._tokens) > MAX_PREFIXES:
                    self._forget(now)
                return
            await asyncio.sleep(max(SHORTEST_S, (1 - left) / rate))

    def _forget(self, now: float) -> None:
        """Prefixes that nobody wrote below for a second are full again: nothing is to be remembered of them."""
        self._tokens = {prefix: (left, at) for prefix, (left, at) in self._tokens.items() if now - at < 1}


ATTEMPTS = 8
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 20.0
CONNECT_S, RESPONSE_S = 10.0, 300.0
"""A large copy may be silent for minutes."""
LARGE_BYTES = 1024**2
CHUNK_BYTES = 256 * 1024
WRITES = {"PUT", "POST", "DELETE"}


@dataclass(frozen=True)
class StreamedResponse:
    """An answer whose body is still to come; `answer.body` is whole where the store refused, else empty."""

    response: Response
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True)
class _Route:
    """How requests get to a bucket; what does not change between two of them."""

    origin: str
    path: str
    host: str
    proxy: str | None

    @classmethod
    def to(cls, url: str) -> "_Route":
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
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=RESPONSE_S),
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
        self._way = _Route.to(self.identity.bucket_url(address.bucket))
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
    ) -> Response:
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
                response = await self._answered(method, key, query, headers, body)
            except self._faults() as fault:
                if attempt == most:
                    raise self._silent(key, fault) from fault
            else:
                if not await self._comes_again(response) or attempt == most:
                    return response
            await asyncio.sleep(compute_backoff_s(attempt))
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def stream(
        self,
        key: str,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """An object piece by piece, as they come; one attempt: who has used a piece knows what to do about a fault.

        Raises:
            NoAnswer: the store did not answer, or broke off.
        """
        await self.pace.enter()
        try:
            async with await self._begun("GET", key, query, headers, b"") as response:
                refused = b"" if response.status < 300 else await response.read()
                error = make_response("GET", response.status, response.headers, refused)
                if not error.is_success:
                    await self._comes_again(error)
                yield StreamedResponse(error, response.content.iter_chunked(CHUNK_BYTES))
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
    ) -> Response:
        """One request and its whole answer; a place and tokens are waited for, and given back at the end."""
        await self.pace.enter(key.rpartition("/")[0] if method in WRITES else None)
        try:
            async with await self._begun(method, key, query, headers, body) as response:
                return make_response(method, response.status, response.headers, await response.read())
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

        way, query_text = self._way, quote_query(query) if query else ""
        path = f"{way.path}/{quote_path(key)}"
        lowered = {name.lower(): value for name, value in headers.items()} if headers else {}
        if self.address.account:
            lowered.setdefault("x-amz-expected-bucket-owner", self.address.account)
        keys, content_sha256 = await self.identity.keys(), await _sha256(body)
        sent = self._signer.signed(keys, method, way.host, path, query_text, lowered, content_sha256)
        target = URL(f"{way.origin}{path}{'?' if query_text else ''}{query_text}", encoded=True)
        return self._pool.session().request(
            method, target, headers=sent, data=_payload(body), allow_redirects=False, proxy=way.proxy
        )

    async def _comes_again(self, response: Response) -> bool:
        """Whether the same request may be answered otherwise next time; what the answer teaches is learnt."""
        if response.is_throttled:
            self.pace.slow_down()
            return True
        self.pace.record_success()
        if response.has_expired_keys:
            return await self.identity.renew()
        region = response.other_region
        if region and region != self._signer.region:
            self._signer = Signer(region)
            self._way = _Route.to(self.identity.bucket_url(self.address.bucket, region))
            return True
        if response.status == 307 and response.headers.get("location"):
            # A new bucket, whose name does not lead everywhere yet.
            moved = urlsplit(response.headers["location"])
            self._way = _Route.to(f"{moved.scheme}://{moved.netloc}{self._way.path}")
            return True
        return response.is_transient

    def _silent(self, key: str, fault: BaseException) -> NoResponse:
        reason = str(fault).rstrip(".") or type(fault).__name__
        return NoResponse(self.address.location(key), f"the store does not answer: {reason}")

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


def compute_backoff_s(attempt: int) -> float:
    """How long to wait before the next attempt: exponential, with full jitter, so that nobody comes back together."""
    longest_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
    return random.uniform(0, longest_s)  # noqa: S311
