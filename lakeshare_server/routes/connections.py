"""Connections as uvicorn speaks HTTP on them, with bounds that uvicorn does not have.

The head of a request has a time and a size; a request that is answered before its body has arrived ends its connection;
the connections of an address are limited. uvicorn waits for heads and for bodies of refused requests without end.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from lakeshare_server.access.addresses import Proxies, neighbourhood
from lakeshare_server.routes.responses import error_response

MOST_HEAD_BYTES = 65_536
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

    def __init__(self, slow_client_s: float, per_address: int, proxies: Proxies) -> None:
        self.slow_client_s, self.per_address = slow_client_s, per_address
        self._proxies = proxies
        self._open: Counter[str] = Counter()

    def enter(self, peer: str | None) -> bool:
        """Count a connection; False, and nothing counted, when its address has as many as it may."""
        if peer is None or self._proxies.names(peer):
            return True
        origin = neighbourhood(peer)
        if self._open[origin] >= self.per_address:
            return False
        self._open[origin] += 1
        return True

    def leave(self, peer: str | None) -> None:
        """Count a connection no more that was counted."""
        if peer is None or self._proxies.names(peer):
            return
        origin = neighbourhood(peer)
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
        if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers are larger than {MOST_HEAD_BYTES} bytes.")
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


class BodiesBound:
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
