"""Streaming lines: pieces are made in one thread for all answers, and sent as fast as each client takes them.

Making a piece is work for the processor: several threads at it would only fight for the interpreter, and keep the
event loop, which answers polls meanwhile, from getting its turn.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

NDJSON = "application/x-ndjson; charset=utf-8"
Piece = bytes | memoryview

# So long may an answer look for files before the others have their turn.
TURN_S = 0.005
# A signer that has to ask its store, or to compute for long, holds up nobody but those who need the same store.
QUICK = ThreadPoolExecutor(1, "lines")
SLOW_THREADS = 8
SLOW: dict[str, ThreadPoolExecutor] = {}


class LinesResponse(Response):
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
        super().__init__(None, 200, headers, NDJSON)
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
        watch = loop.create_task(self._watch(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            while not self._has_left:
                piece = await loop.run_in_executor(self._maker, self._next)
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
