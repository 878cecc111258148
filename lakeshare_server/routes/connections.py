"""Connections as uvicorn speaks HTTP on them, but for clients that never come to the end of their headers.

uvicorn waits for those for ever, and takes headers of any size: each such client would hold a connection and memory.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MOST_HEAD_BYTES = 65_536
# What the application's lifespan tells each connection.
SLOW_CLIENT_S = "slow_client_s"


class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # httptools' or h11's, whichever is there
    """A connection on which the head of each request has its time, and its size."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _is_in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._lacks_head():
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers are larger than {MOST_HEAD_BYTES} bytes.")
        elif self._timer is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    # httptools calls these.
    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def _lacks_head(self) -> bool:
        conn = getattr(self, "conn", None)  # h11's
        return self._is_in_head if conn is None else conn.their_state.__name__ == "IDLE"

    def _wait_for_head(self) -> None:
        self._timer = self.loop.call_later(self.app_state[SLOW_CLIENT_S], self.transport.close)

    def _stop_waiting(self) -> None:
        self._head_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
