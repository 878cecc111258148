"""The limit: the bytes of an answer of ours, signed and written to a socket, and nothing else.

Run by the benchmark as `python -m bench.server.limit CAPTURE STATE_DIR PUBLIC_URL`: an answer captured from our
server is taken apart at its URLs, and goes with fresh ones to whoever sends anything.
"""

import selectors
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bench.server.urls import bench_signing, location_of
from lakeshare_server.storage.location_columns import texts

URL_BEGIN, URL_END = b'"url":"', b'"'
BATCH_LINES = 1000
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST = b"0\r\n\r\n"
REQUEST_BYTES = 1 << 16


@dataclass(frozen=True)
class Batch:
    """Lines of files, and the paths whose URLs stand between their two parts."""

    paths: pa.StringArray
    before: pa.StringArray
    after: pa.StringArray


@dataclass(frozen=True)
class Lines:
    """An answer taken apart: what stands before the files, and the files."""

    head: bytes
    batches: list[Batch]


def taken_apart(answer: bytes) -> Lines:
    """The lines of an answer without their URLs."""
    lines = answer.splitlines(keepends=True)
    files = [line for line in lines if URL_BEGIN in line]
    head = b"".join(line for line in lines if URL_BEGIN not in line)
    starts = range(0, len(files), BATCH_LINES)
    return Lines(head, [_batch(files[first : first + BATCH_LINES]) for first in starts])


def _batch(lines: list[bytes]) -> Batch:
    paths, before, after = [], [], []
    for line in lines:
        start = line.index(URL_BEGIN) + len(URL_BEGIN)
        end = line.index(URL_END, start)
        paths.append(location_of(line[start:end].decode()))
        before.append(line[:start])
        after.append(line[end:])
    return Batch(pa.array(paths, pa.string()), texts(before), texts(after))


def joined(batch: Batch, urls: pa.StringArray) -> bytes:
    """The lines of a batch."""
    lines = pc.binary_join_element_wise(batch.before, urls, batch.after, "")
    _, ends, characters = lines.buffers()
    return bytes(memoryview(characters)[: memoryview(ends).cast("i")[len(lines)]])


def chunk(piece: bytes) -> bytes:
    """A piece in the framing that all the others are sent in too."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class _Connection:
    """One answer after another, each batch made when the one before it has left."""

    def __init__(self, accepted: socket.socket, pieces: Callable[[], Iterator[bytes]]) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self._pieces = accepted, pieces
        self._answer: Iterator[bytes] = iter(())
        self._unsent = memoryview(b"")

    def begin(self) -> bool:
        """Take a request; whether there was one."""
        try:
            asked = self.socket.recv(REQUEST_BYTES)
        except ConnectionError:
            return False
        self._answer = self._pieces()
        return bool(asked)

    def send(self) -> bool:
        """Send what the socket takes of one piece; whether anything is left to send."""
        if not self._unsent:
            self._unsent = memoryview(next(self._answer, b""))
        if not self._unsent:
            return False
        self._unsent = self._unsent[self.socket.send(self._unsent) :]
        return True


def _serve(listening: socket.socket, pieces: Callable[[], Iterator[bytes]]) -> None:
    """One thread for all connections: threads would take turns at Python's lock, and lose time with it."""
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, event in selector.select():
                if key.data is None:
                    connection = _Connection(listening.accept()[0], pieces)
                    selector.register(connection.socket, selectors.EVENT_READ, connection)
                    continue
                wanted = _wanted(key.data, event)
                if wanted == 0:
                    selector.unregister(key.data.socket)
                    key.data.socket.close()
                elif wanted != key.events:
                    selector.modify(key.data.socket, wanted, key.data)


def _wanted(connection: _Connection, event: int) -> int:
    """What to wait for after an event: 0 when the other side has left."""
    try:
        if event & selectors.EVENT_READ:
            return selectors.EVENT_WRITE if connection.begin() else 0
        return selectors.EVENT_WRITE if connection.send() else selectors.EVENT_READ
    except ConnectionError:
        return 0


def main() -> None:
    """Answer until killed."""
    lines = taken_apart(Path(sys.argv[1]).read_bytes())
    sign = bench_signing(Path(sys.argv[2]), sys.argv[3], lines.batches[0].paths[0].as_py())

    def pieces() -> Iterator[bytes]:
        yield HEAD + chunk(lines.head)
        for batch in lines.batches:
            yield chunk(joined(batch, sign(batch.paths)))
        yield LAST

    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        print(f"ready http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
        _serve(listening, pieces)


if __name__ == "__main__":
    main()
