"""Responses in the protocol's spelling: JSON with its charset, NDJSON with the table's version, errors as objects."""

import asyncio
import io
import json
import re
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, cast

import pyarrow as pa
from fastapi import Response
from starlette.responses import Response as LinesResponseResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from lakeshare_server.access.rate_limit import TrustedProxies, address_network, parse_address
from lakeshare_server.protocol.lines import HEADER

NDJSON = "application/x-ndjson; charset=utf-8"
WEIGHT = re.compile(r"[01](?:\.\d{0,3})?")
Piece = bytes | memoryview

# So long may an answer look for files before the others have their turn.
TURN_S = 0.005
# A signer that has to ask its store, or to compute for long, holds up nobody but those who need the same store.
QUICK = ThreadPoolExecutor(1, "lines")
COMPRESSING = ThreadPoolExecutor(8, "compressed-lines")
SLOW_THREADS = 8
SLOW: dict[str, ThreadPoolExecutor] = {}


class Encoder(Protocol):
    """Compresses a response piece by piece; each piece can be unpacked once it is there."""

    name: str

    def packed(self, piece: Piece) -> bytes:
        """The compressed bytes of a piece."""

    def ended(self) -> bytes:
        """What ends the response."""


class Gzip:
    """Compression with gzip at its quickest level."""

    name = "gzip"

    def __init__(self) -> None:
        self._stream = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS | 16)

    def packed(self, piece: Piece) -> bytes:
        return self._stream.compress(piece) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def ended(self) -> bytes:
        return self._stream.flush()


class Zstd:
    """Compression with Zstandard, by Arrow's library."""

    name = "zstd"

    def __init__(self) -> None:
        self._sink = _Sink()
        self._stream = pa.CompressedOutputStream(pa.PythonFile(self._sink, mode="w"), "zstd")

    def packed(self, piece: Piece) -> bytes:
        self._stream.write(piece)
        self._stream.flush()
        return self._sink.taken()

    def ended(self) -> bytes:
        self._stream.close()
        return self._sink.taken()


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._parts.append(bytes(content))
        return len(content)

    def taken(self) -> bytes:
        """What was written since the last time."""
        app_state, self._parts = self._parts, []
        return b"".join(app_state)


ENCODERS: dict[str, type[Encoder]] = {"zstd": Zstd, "gzip": Gzip}


def choose_encoder(scope: Scope) -> Encoder | None:
    """The best compression that the client takes; None when it takes none, or is on this host.

    On a loopback connection bytes cost nothing, and compressing takes several times as long as making them.
    """
    client = scope.get("client")
    address = parse_address(client[0]) if client else None
    if address is None or address.is_loopback or not scope["app"].state.app_state.settings.compress_lines:
        return None
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"]
    accepted = parse_accept_encoding(",".join(values))
    return next((encoder() for name, encoder in ENCODERS.items() if accepted.get(name, 0) > 0), None)


def parse_accept_encoding(header: str) -> dict[str, float]:
    """The weights of the encodings in an Accept-Encoding header; one whose weight is no number counts as refused."""
    weights = {}
    for part in header.split(","):
        name, *parameters = (text.strip().lower() for text in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[name] = float(weight) if WEIGHT.fullmatch(weight) else 0.0
    return weights


def _compress(pieces: Iterator[Piece], encoder: Encoder) -> Iterator[Piece]:
    for piece in pieces:
        # An empty piece only lets others have their turn.
        yield encoder.packed(piece) if piece else piece
    yield encoder.ended()


class LinesResponse(LinesResponseResponse):
    """NDJSON of any length: first what is there already, then pieces as they are made.

    An answer whose pieces raise is cut off, one whose client has left is ended. An empty piece is not sent: it says
    that making the next one goes on, and that the others may have their turn in between.
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
        # The length is not known before the end.
        del self.headers["content-length"]
        self._first, self._pieces, self._maker = first, pieces, _maker(slow_store)
        self._has_left = False

    def pieces(self) -> Iterator[Piece]:
        """All that would be sent, for whoever reads it in this process instead of sending it."""
        yield self._first
        yield from self._pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        encoder = choose_encoder(scope)
        first, maker = self._first, self._maker
        if encoder is not None:
            self.headers["Content-Encoding"] = encoder.name
            # Compressing takes the processor for longer than making lines: others do not wait for it.
            first, maker = encoder.packed(first), COMPRESSING if maker is QUICK else maker
            self._pieces = _compress(self._pieces, encoder)
        watch = loop.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            while not self._has_left:
                piece = await loop.run_in_executor(maker, self._next)
                if piece is None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
                if piece:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            watch.cancel()

    def _next(self) -> Piece | None:
        ends = time.monotonic() + TURN_S
        for piece in self._pieces:
            if piece or time.monotonic() >= ends:
                return piece
        return None

    async def _watch(self, receive: Receive) -> None:
        """Sending says nothing of a client that has left: without this its answer would be made to the end."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._has_left = True


def _maker(slow_store: str | None) -> ThreadPoolExecutor:
    """Where pieces are made; called on the event loop only."""
    if slow_store is None:
        return QUICK
    if slow_store not in SLOW:
        SLOW[slow_store] = ThreadPoolExecutor(SLOW_THREADS, f"lines of {slow_store}")
    return SLOW[slow_store]


VERSION_HEADER = "Delta-Table-Version"


def json_response(
    content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON object."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    # Text of recipients may hold half a surrogate pair, which has no UTF-8.
    body = text.encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json; charset=utf-8")


def error_response(
    status: int, code: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as the protocol says it."""
    return json_response({"errorCode": code, "message": message}, status, headers)


def ndjson_response(
    first: bytes,
    pieces: Iterator[Piece] | None,
    version: int,
    capabilities: str,
    extra: Mapping[str, str],
    *,
    slow_store: str | None = None,
) -> Response:
    """Lines of a table; `pieces` are streamed, `slow_store` names a store that making them waits for."""
    headers = {VERSION_HEADER: str(version), HEADER: capabilities, **extra}
    if pieces is None:
        return Response(first, 200, headers, media_type=NDJSON)
    return LinesResponse(first, pieces, headers, slow_store=slow_store)


def iceberg_error(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as Iceberg's REST catalogs say it; `kind` is the name of a Java exception, clients go by it."""
    return json_response({"error": {"message": message, "type": kind, "code": status}}, status, headers)


MAX_HEAD_BYTES = 65_536
# What the application's lifespan gives each connection.
LIMITS = "connection_limits"
# In a request's scope: its cycle, which knows whether the body is whole.
CYCLE = "lakeshare.cycle"
# A client that is still sending may take so long, and so much, until it has read the refusal.
LINGER_S = 2.0
LINGER_BYTES = 16 << 20
# Of what is no request there may be less.
LINGER_HEAD_BYTES = 65_536


class ConnectionLimits:
    """How long clients may take for a head, and how many connections an address may have in this process."""

    def __init__(self, slow_client_s: float, per_address: int, proxies: TrustedProxies) -> None:
        self.slow_client_s, self.per_address = slow_client_s, per_address
        self._proxies = proxies
        self._open: Counter[str] = Counter()

    def enter(self, peer: str | None) -> bool:
        """Count a connection; False, and nothing counted, when its address has as many as it may."""
        if peer is None or self._proxies.names(peer):
            return True
        origin = address_network(peer)
        if self._open[origin] >= self.per_address:
            return False
        self._open[origin] += 1
        return True

    def leave(self, peer: str | None) -> None:
        """Count a connection no more that was counted."""
        if peer is None or self._proxies.names(peer):
            return
        origin = address_network(peer)
        self._open[origin] -= 1
        if self._open[origin] <= 0:
            del self._open[origin]


class LingeringTransport:
    """A transport that, while the client is still sending, closes its own direction first.

    Closing at once with unread bytes resets the connection, and the client may lose the response.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop, linger_s: float) -> None:
        self._transport, self._loop, self._linger_s = transport, loop, linger_s
        self._timer: asyncio.TimerHandle | None = None
        self._left_bytes = LINGER_BYTES
        # Set while a request's body is outstanding.
        self.is_receiving = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def is_lingering(self) -> bool:
        return self._timer is not None

    def is_closing(self) -> bool:
        """Whether no response is to be sent any more."""
        return self.is_lingering or bool(self._transport.is_closing())

    def close(self) -> None:
        """Close, or stop sending and wait for the client to close."""
        if self.is_closing():
            return
        if not (self.is_receiving and self._transport.can_write_eof()):
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._timer = self._loop.call_later(self._linger_s, self._transport.abort)

    def discard(self, data: bytes) -> None:
        """Take what a client goes on to send."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            self._transport.abort()

    def expect_little(self) -> None:
        """Expect a client that sends no requests: it gets its refusal, and is not listened to for long."""
        self.is_receiving = True
        self._left_bytes = LINGER_HEAD_BYTES

    def closed(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()


class BoundedConnection(asyncio.Protocol):
    """What is put over a protocol of uvicorn: bounded waits, and refusals of the parser as errors of the protocol."""

    # Of the protocol below.
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
        if self._has_request():
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
        """What uvicorn calls for a request that it cannot parse."""
        self._stop_waiting()
        self.transport.expect_little()
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            # In the middle of a response there is no place for another.
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

    def _has_request(self) -> bool:
        """Whether a request is under way: its response is not complete, or its body."""
        return self.cycle is not None and (not self.cycle.response_complete or self.cycle.more_body)

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self._limits.slow_client_s, self.transport.close)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class GuardedProtocol(BoundedConnection, AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """The same over httptools' parser or h11's, whichever is installed."""


class RequestBodyMiddleware:
    """Ends the connection of a request that is answered before its body has arrived: nobody waits for the rest."""

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
                    message["headers"] = [*_without(message.get("headers", ()), b"connection"), CLOSE]
                    cycle.transport.is_receiving = True
                if is_old:
                    framing.begin(message)
            elif is_old and message["type"] == "http.response.body":
                framing.go_on(message)
            await send(message)

        is_old = scope["http_version"] == "1.0"
        framing = _UntilClosed(cycle)
        try:
            await self.app(scope, receive, send_bound)
        except Exception:
            framing.cut()
            raise


class _UntilClosed:
    """A response of unknown length to a client of HTTP/1.0, which knows no chunks: it ends with the connection."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._is_open = False

    def begin(self, message: Message) -> None:
        names = {name.lower() for name, _ in message.get("headers", ())}
        self._is_open = not names & {b"content-length", b"transfer-encoding"}
        if self._is_open:
            # httptools' cycle has chunks wherever there is no length; h11 knows such clients by itself.
            self._cycle.chunked_encoding = False

    def go_on(self, message: Message) -> None:
        if self._is_open:
            self._cycle.expected_content_length = len(message.get("body", b"")) + message.get(
                "more_body", False
            )
            self._is_open = bool(message.get("more_body", False))

    def cut(self) -> None:
        """End a response that has failed so that the client does not take it for whole."""
        if self._is_open:
            connection = self._cycle.transport.get_extra_info("socket")
            if connection is not None:
                # Closing resets the connection: its ordinary end would be that of a whole response.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._cycle.transport.abort()


CLOSE = (b"connection", b"close")


def _without(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0].lower() != name]
