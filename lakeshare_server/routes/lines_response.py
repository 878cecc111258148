"""Streaming lines: pieces are made in one thread for all answers, and sent as fast as each client takes them.

Making a piece is work for the processor: several threads at it would only fight for the interpreter, and keep the
event loop, which answers polls meanwhile, from getting its turn.
"""

import asyncio
import io
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pyarrow as pa
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lakeshare_server.access.addresses import parsed

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
        parts, self._parts = self._parts, []
        return b"".join(parts)


ENCODERS: dict[str, type[Encoder]] = {"zstd": Zstd, "gzip": Gzip}


def encoder_for(scope: Scope) -> Encoder | None:
    """The best compression that the client takes; None when it takes none, or is on this host.

    On a loopback connection bytes cost nothing, and compressing takes several times as long as making them.
    """
    client = scope.get("client")
    address = parsed(client[0]) if client else None
    if address is None or address.is_loopback or not scope["app"].state.parts.settings.compress_lines:
        return None
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"accept-encoding"]
    accepted = accepted_encodings(",".join(values))
    return next((encoder() for name, encoder in ENCODERS.items() if accepted.get(name, 0) > 0), None)


def accepted_encodings(header: str) -> dict[str, float]:
    """The weights of the encodings in an Accept-Encoding header; one whose weight is no number counts as refused."""
    weights = {}
    for part in header.split(","):
        name, *parameters = (text.strip().lower() for text in part.split(";"))
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        weights[name] = float(weight) if WEIGHT.fullmatch(weight) else 0.0
    return weights


def _packed(pieces: Iterator[Piece], encoder: Encoder) -> Iterator[Piece]:
    for piece in pieces:
        # An empty piece only lets others have their turn.
        yield encoder.packed(piece) if piece else piece
    yield encoder.ended()


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
        encoder = encoder_for(scope)
        first, maker = self._first, self._maker
        if encoder is not None:
            self.headers["Content-Encoding"] = encoder.name
            # Compressing takes the processor for longer than making lines: others do not wait for it.
            first, maker = encoder.packed(first), COMPRESSING if maker is QUICK else maker
            self._pieces = _packed(self._pieces, encoder)
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
