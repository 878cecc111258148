"""Responses: JSON, streamed and compressed NDJSON, errors; and the limits of HTTP connections."""

import asyncio
import io
import json
import re
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pyarrow as pa
from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from lakeshare_server.access.rate_limit import TrustedProxies, address_network, parse_address

NDJSON = "application/x-ndjson; charset=utf-8"
JSON_TYPE = "application/json; charset=utf-8"
WEIGHT = re.compile(r"[01](?:\.\d{0,3})?")
Piece = bytes | memoryview

# How long a response may search for files before other responses continue.
TURN_S = 0.005
# Slow signers have a pool per store, so that they do not delay responses of other stores.
QUICK = ThreadPoolExecutor(1, "lines")
COMPRESSING = ThreadPoolExecutor(8, "compressed-lines")
SLOW_THREADS = 8
SLOW: dict[str, ThreadPoolExecutor] = {}


class Gzip:
    name = "gzip"

    def __init__(self) -> None:
        self._stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)

    def encode(self, piece: Piece) -> bytes:
        return self._stream.compress(piece) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        return self._stream.flush()


class Zstd:
    name = "zstd"

    def __init__(self) -> None:
        self._sink = _Sink()
        self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, mode="w"), "zstd")

    def encode(self, piece: Piece) -> bytes:
        self._stream.write(piece)
        self._stream.flush()
        return self._sink.take()

    def finish(self) -> bytes:
        self._stream.close()
        return self._sink.take()


class _Sink(io.RawIOBase):
    _parts: tuple[bytes, ...] = ()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._parts = (*self._parts, bytes(content))
        return len(content)

    def take(self) -> bytes:
        parts, self._parts = self._parts, ()
        return b"".join(parts)


# Each piece can be decompressed on arrival.
Encoder = Zstd | Gzip
ENCODERS: dict[str, type[Encoder]] = {"zstd": Zstd, "gzip": Gzip}


def choose_encoder(scope: Scope) -> Encoder | None:
    """The best compression that the client accepts; None on loopback, where compression costs more than bytes."""
    client = scope.get("client")
    address = parse_address(client[0]) if client else None
    if address is None or address.is_loopback or not scope["app"].state.app_state.settings.compress_lines:
        return None
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"]
    accepted = parse_weights(",".join(values))
    return next((encoder() for name, encoder in ENCODERS.items() if accepted.get(name, 0) > 0), None)


def parse_weights(header: str) -> dict[str, float]:
    """The weights of the values in an Accept or Accept-Encoding header; an invalid weight counts as 0."""
    weights = {}
    for part in header.split(","):
        name, *parameters = (text.strip().lower() for text in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[name] = float(weight) if WEIGHT.fullmatch(weight) else 0.0
    return weights


def _compress(pieces: Iterator[Piece], encoder: Encoder) -> Iterator[Piece]:
    for piece in pieces:
        yield encoder.encode(piece) if piece else piece
    yield encoder.finish()


class LinesResponse(Response):
    """NDJSON of any length: `first`, then pieces as they are made.

    If making a piece raises, the connection is cut; if the client disconnects, making pieces stops. An empty piece is
    not sent: other responses may continue before the next piece is made.
    """

    def __init__(
        self,
        first: bytes,
        pieces: Iterator[Piece],
        headers: Mapping[str, str],
        *,
        slow_store: str | None = None,
    ) -> None:
        super().__init__(None, 200, {**headers, "Vary": "Accept-Encoding"}, NDJSON)
        del self.headers["content-length"]
        self._first, self._pieces, self._executor = first, pieces, QUICK
        if slow_store is not None:
            if slow_store not in SLOW:
                SLOW[slow_store] = ThreadPoolExecutor(SLOW_THREADS, f"lines of {slow_store}")
            self._executor = SLOW[slow_store]
        self._is_disconnected = False

    def pieces(self) -> Iterator[Piece]:
        """The uncompressed body, for readers in this process."""
        yield self._first
        yield from self._pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        encoder = choose_encoder(scope)
        first, executor = self._first, self._executor
        if encoder is not None:
            self.headers["Content-Encoding"] = encoder.name
            # Compressing takes longer than making lines: uncompressed responses must not wait for it.
            first, executor = encoder.encode(first), COMPRESSING if executor is QUICK else executor
            self._pieces = _compress(self._pieces, encoder)
        # Its audit event is written first: it has nothing of the pieces.
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        watch = loop.create_task(self._watch(receive))
        piece: Piece | None = first
        # The next piece is made while one is sent.
        following = loop.run_in_executor(executor, self._next)
        try:
            while not self._is_disconnected:
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await following
                if piece is None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                following = loop.run_in_executor(executor, self._next)
        finally:
            watch.cancel()
            following.cancel()

    def _next(self) -> Piece | None:
        ends = time.monotonic() + TURN_S
        for piece in self._pieces:
            if piece or time.monotonic() >= ends:
                return piece
        return None

    async def _watch(self, receive: Receive) -> None:
        # Sending does not fail after a disconnect: without this, the response would be made to its end.
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True


def json_response(
    content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(encode_json(content), status, headers, media_type=JSON_TYPE)


def encode_json(content: object) -> bytes:
    # Recipients' texts may have half a surrogate pair, which UTF-8 cannot encode.
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def error_response(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    return json_response({"errorCode": code, "message": message}, status, headers)


def iceberg_error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the format of Iceberg REST catalogs; `kind` is a Java exception, which clients map."""
    return json_response({"error": {"message": message, "type": kind, "code": status}}, status, headers)


MAX_HEAD_BYTES = 65_536
# The key of the connection limits in the state of the application's lifespan.
LIMITS = "connection_limits"
# The key in a request's scope of uvicorn's cycle, which has the state of the body.
CYCLE = "lakeshare.cycle"
# Limits for a client that is still sending when it gets a refusal; lower for invalid requests.
LINGER_S = 2.0
LINGER_BYTES = 16 << 20
LINGER_HEAD_BYTES = 65_536


class ConnectionLimits:
    def __init__(self, slow_client_s: float, per_address: int, proxies: TrustedProxies) -> None:
        self.slow_client_s, self.per_address = slow_client_s, per_address
        self._proxies = proxies
        self._open: Counter[str] = Counter()

    def enter(self, peer: str | None) -> bool:
        """Counts a connection; False, without counting, if its address has reached the limit."""
        if peer is None or self._proxies.names(peer):
            return True
        origin = address_network(peer)
        if self._open[origin] >= self.per_address:
            return False
        self._open[origin] += 1
        return True

    def leave(self, peer: str | None) -> None:
        if peer is None or self._proxies.names(peer):
            return
        origin = address_network(peer)
        self._open[origin] -= 1
        if self._open[origin] <= 0:
            del self._open[origin]


class LingeringTransport:
    """A transport that closes its own direction first while the client is still sending.

    Closing with unread bytes would reset the connection, and the client might lose the response.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, linger_s: float) -> None:
        self._transport, self._loop, self._linger_s = transport, loop, linger_s
        self._timer: asyncio.TimerHandle | None = None
        self._remaining_bytes = LINGER_BYTES
        # Set while a request's body is incomplete.
        self.is_receiving = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def is_lingering(self) -> bool:
        return self._timer is not None

    def is_closing(self) -> bool:
        return self.is_lingering or bool(self._transport.is_closing())

    def close(self) -> None:
        """Closes, or stops sending and waits for the client to close."""
        if self.is_closing():
            return
        if not (self.is_receiving and self._transport.can_write_eof()):
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._timer = self._loop.call_later(self._linger_s, self._transport.abort)

    def discard(self, data: bytes) -> None:
        """Drops what a client sends after the refusal, up to a limit."""
        self._remaining_bytes -= len(data)
        if self._remaining_bytes < 0:
            self._transport.abort()

    def expect_little(self) -> None:
        self.is_receiving = True
        self._remaining_bytes = LINGER_HEAD_BYTES

    def closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class BoundedConnection(asyncio.Protocol):
    """A mixin for uvicorn's protocols: bounded waits, and the parser's refusals as errors of the sharing protocol."""

    app_state: dict[str, Any]
    loop: asyncio.AbstractEventLoop
    transport: LingeringTransport
    client: tuple[str, int] | None
    cycle: Any
    scope: dict[str, Any]

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _peer: str | None = None
    _is_counted = False

    def connection_made(self, transport: Any) -> None:
        self._limits: ConnectionLimits = self.app_state[LIMITS]
        linger_s = min(LINGER_S, self._limits.slow_client_s)
        super().connection_made(cast(Any, LingeringTransport(transport, self.loop, linger_s)))
        self._peer = self.client[0] if self.client else None
        self._is_counted = self._limits.enter(self._peer)
        if not self._is_counted:
            self.transport.expect_little()
            what = f"Your address has {self._limits.per_address} open connections, as many as it may."
            self._refuse(
                429, "REQUEST_LIMIT_EXCEEDED", f"{what} Close some and try again.", {"Retry-After": "5"}
            )
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_lingering:
            self.transport.discard(data)
            return
        super().data_received(data)
        if self.cycle is not None:
            self.scope[CYCLE] = self.cycle
        if self.cycle is not None and (not self.cycle.response_complete or self.cycle.more_body):
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers are larger than {MAX_HEAD_BYTES} bytes.")
        elif self._timer is None and not self.transport.is_closing():
            self._wait_for_head()

    def eof_received(self) -> bool | None:
        if self.transport.is_lingering:
            return None
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self.transport.closed()
        if self._is_counted:
            self._is_counted = False
            self._limits.leave(self._peer)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for a request that it cannot parse."""
        self._stop_waiting()
        self.transport.expect_little()
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            # A response has begun: a second one cannot be sent.
            self.transport.close()
            return
        self._refuse(400, "MALFORMED_REQUEST", msg)

    def _refuse(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        response = error_response(status, code, message, {**(headers or {}), "Connection": "close"})
        phrase = {400: b"Bad Request", 429: b"Too Many Requests"}[status]
        lines = [b"HTTP/1.1 %d %s" % (status, phrase)]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self._limits.slow_client_s, self.transport.close)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedProtocol(BoundedConnection, AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A bounded connection over httptools' parser or h11's, whichever is installed."""


class RequestBodyMiddleware:
    """Closes the connection after a response that is sent before the request's body is complete."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = scope.get(CYCLE)
        if scope["type"] != "http" or cycle is None:
            await self.app(scope, receive, send)
            return

        async def send_bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                if cycle.more_body:
                    headers = message.get("headers", ())
                    kept = [header for header in headers if header[0].lower() != b"connection"]
                    message["headers"] = [*kept, (b"connection", b"close")]
                    cycle.transport.is_receiving = True
                if is_http_1_0:
                    framing.begin(message)
            elif is_http_1_0 and message["type"] == "http.response.body":
                framing.go_on(message)
            await send(message)

        is_http_1_0 = scope["http_version"] == "1.0"
        framing = _UntilClosed(cycle)
        try:
            await self.app(scope, receive, send_bound)
        except Exception:
            framing.cut()
            raise


class _UntilClosed:
    """A response of unknown length over HTTP/1.0, which has no chunks: it ends with the connection."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._is_open = False

    def begin(self, message: Message) -> None:
        names = {name.lower() for name, _ in message.get("headers", ())}
        self._is_open = not names & {b"content-length", b"transfer-encoding"}
        if self._is_open:
            # httptools' cycle sends chunks without a length; h11 handles HTTP/1.0 itself.
            self._cycle.chunked_encoding = False

    def go_on(self, message: Message) -> None:
        if self._is_open:
            has_more = bool(message.get("more_body", False))
            self._cycle.expected_content_length = len(message.get("body", b"")) + has_more
            self._is_open = has_more

    def cut(self) -> None:
        """Aborts a failed response, so that the client detects it."""
        if self._is_open:
            connection = self._cycle.transport.get_extra_info("socket")
            if connection is not None:
                # Resets the connection: an ordinary close would look like a complete response.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._cycle.transport.abort()
