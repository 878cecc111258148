"""Clients that cost next to nothing: sockets in one process, which reads answers and counts their lines.

Run by the benchmark as `python -m bench.server.load JSON`; prints what it saw as JSON. It imports nothing of ours
and parses nothing but the ends of answers, so that the server is what is measured.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass, field

BUFFER_BYTES = 4 << 20
HEAD_END = b"\r\n\r\n"
FILE = b'{"file":'
LOOKED_AT_BYTES = 1 << 16
LONGEST_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What some clients do: send one request again and again, each waiting for its answer."""

    port: int
    path: str
    token: str = ""
    body: str | None = None
    clients: int = 1
    # Ends after so many answers in all, or after so many seconds, whichever comes first; answers are cut off then.
    answers: int | None = None
    window_s: float | None = None
    # So many answers for each client go before, and are not counted.
    warm: int = 0
    pause_s: float = 0.0
    # Without, responses are only received: clients take less of the processor that servers share with them.
    counts_lines: bool = True

    def request(self) -> bytes:
        """The bytes to send."""
        method = "GET" if self.body is None else "POST"
        body = (self.body or "").encode()
        lines = [
            f"{method} {self.path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            f"Authorization: Bearer {self.token}",
            "Content-Type: application/json; charset=utf-8",
            f"Content-Length: {len(body)}",
        ]
        if self.body is None:
            lines = lines[:3]
        return "\r\n".join(lines).encode() + HEAD_END + body


@dataclass
class Seen:
    """What the clients saw; answers that were cut off count with their lines, but not with their times."""

    elapsed_s: float = 0.0
    lines: int = 0
    bytes: int = 0
    lines_of_one: int = 0
    answers: int = 0
    failures: list[str] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)
    first_file_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


class Body:
    """Where an answer's body is in the framing of HTTP, and how many lines of it were seen."""

    def __init__(self, *, counts_lines: bool = True) -> None:
        self.head, self.lines, self.is_whole, self._counts_lines = b"", 0, False, counts_lines
        self._in_head, self._is_chunked, self._is_last = True, False, False
        self._left, self._size_line = 0, b""

    def take(self, buffer: bytearray, size: int) -> None:
        """Go on with what was received."""
        position = self._skip_head(buffer, size) if self._in_head else 0
        while position < size:
            if self._left:
                end = min(size, position + self._left)
                if self._counts_lines:
                    self.lines += buffer.count(b"\n", position, end)
                self._left -= end - position
                position = end
            else:
                position = self._next_chunk(buffer, position, size)
        if not self._in_head and not self._is_chunked:
            self.is_whole = self._left == 0

    def _skip_head(self, buffer: bytearray, size: int) -> int:
        before = len(self.head)
        self.head += bytes(buffer[:size])
        end = self.head.find(HEAD_END)
        if end < 0:
            return size
        self._in_head, self.head = False, self.head[: end + len(HEAD_END)]
        lower = self.head.lower()
        self._is_chunked = b"\r\ntransfer-encoding: chunked\r\n" in lower
        _, found, rest = lower.partition(b"\r\ncontent-length:")
        self._left = int(rest.split(b"\r\n")[0]) if found else 0
        return len(self.head) - before

    def _next_chunk(self, buffer: bytearray, position: int, size: int) -> int:
        end = buffer.find(b"\n", position, size)
        if end < 0:
            self._size_line += bytes(buffer[position:size])
            return size
        text = (self._size_line + bytes(buffer[position:end])).strip()
        self._size_line = b""
        if text:
            self._left = int(text, 16)
            self._is_last = self._left == 0
        elif self._is_last:
            self.is_whole = True
        return end + 1


class Client:
    """One connection with one answer under way."""

    def __init__(self, ask: Ask, seen: Seen) -> None:
        self.seen, self.request, self._counts_lines = seen, ask.request(), ask.counts_lines
        self.socket = socket.create_connection(("127.0.0.1", ask.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self) -> None:
        """Begin the next answer."""
        self.body = Body(counts_lines=self._counts_lines)
        self.bytes, self.tail = 0, b""
        self.first_byte_s = self.first_file_s = 0.0
        self.began = time.perf_counter()
        self.socket.sendall(self.request)

    def take(self, buffer: bytearray) -> bool:
        """Read what is there; whether the answer has ended."""
        size = self.socket.recv_into(buffer)
        now = time.perf_counter() - self.began
        self.first_byte_s = self.first_byte_s or now
        self.bytes += size
        if not self.first_file_s:
            beginning = self.tail + bytes(buffer[: min(size, LOOKED_AT_BYTES)])
            self.first_file_s = now if FILE in beginning else 0.0
            self.tail = beginning[-len(FILE) :]
        self.body.take(buffer, size)
        if size == 0:
            self.seen.failures.append(f"cut off after {self.bytes} bytes")
        elif self.body.is_whole and not self.body.head.startswith(b"HTTP/1.1 200"):
            self.seen.failures.append(self.body.head.decode("latin-1"))
        return size == 0 or self.body.is_whole

    def note(self, *, is_whole: bool) -> None:
        """Add the answer to what was seen."""
        self.seen.lines += self.body.lines
        self.seen.bytes += self.bytes
        if is_whole:
            self.seen.answers += 1
            self.seen.lines_of_one = self.body.lines
            self.seen.first_byte_s.append(self.first_byte_s)
            self.seen.first_file_s.append(self.first_file_s)
            self.seen.whole_s.append(time.perf_counter() - self.began)


def load(ask: Ask) -> Seen:
    """Let the clients do what was asked."""
    seen = Seen()
    buffer = bytearray(BUFFER_BYTES)
    clients = [Client(ask, seen) for _ in range(ask.clients)]
    if ask.warm:
        _run(clients, ask.warm * ask.clients, LONGEST_S, buffer, 0.0)
        # What was seen so far does not count, but for failures.
        seen = Seen(failures=seen.failures)
        for client in clients:
            client.seen = seen
    began = time.perf_counter()
    _run(clients, ask.answers, ask.window_s or LONGEST_S, buffer, ask.pause_s)
    seen.elapsed_s = time.perf_counter() - began
    for client in clients:
        client.socket.close()
    return seen


def _run(
    clients: list[Client], answers: int | None, window_s: float, buffer: bytearray, pause_s: float
) -> None:
    """Run until so many answers are whole, or the time is over."""
    ends = time.perf_counter() + window_s
    left = answers if answers is not None else 1 << 60
    with selectors.DefaultSelector() as selector:
        under_way: set[Client] = set()
        for client in clients[:left]:
            selector.register(client.socket, selectors.EVENT_READ, client)
            under_way.add(client)
            client.send()
        left -= len(under_way)
        while under_way and not clients[0].seen.failures:
            ready = selector.select(max(0.0, ends - time.perf_counter()))
            for key, _ in ready:
                client = key.data
                if not client.take(buffer):
                    continue
                client.note(is_whole=True)
                if left <= 0 or time.perf_counter() >= ends:
                    under_way.discard(client)
                    selector.unregister(client.socket)
                    continue
                left -= 1
                if pause_s:
                    time.sleep(pause_s)
                client.send()
            if time.perf_counter() >= ends:
                break
        for client in under_way:
            client.note(is_whole=False)


if __name__ == "__main__":
    json.dump(asdict(load(Ask(**json.loads(sys.argv[1])))), sys.stdout)
