"""A port in front of a store that a test closes and opens: a store that goes down in the middle, and comes back.

It counts the requests, and may refuse some with 503, as a store does that has too many.
"""

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

REQUEST_LINE = re.compile(rb"(?:^|\n)(GET|HEAD|PUT|POST|DELETE) /\S* HTTP/1\.1\r\n")
LONGEST_LINE = 8192
SLOW_DOWN_BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
SLOW_DOWN = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(SLOW_DOWN_BODY), SLOW_DOWN_BODY)
)


@dataclass
class StoreGate:
    """The gate to a port of 127.0.0.1. While it is closed, connections break off and new ones end at once."""

    port: int
    endpoint: str = ""
    is_open: bool = True
    over: bool = False
    sockets: set[socket.socket] = field(default_factory=set)
    # By method.
    requests: "Counter[str]" = field(default_factory=Counter)
    # Of so many requests one is refused; 0: none.
    refuses_every: int = 0
    refused: int = 0

    def close(self) -> None:
        self.is_open = False
        for one in list(self.sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        self.is_open = True

    def serve(self, client: socket.socket) -> None:
        if not self.is_open:
            client.close()
            return
        server = socket.create_connection(("127.0.0.1", self.port))
        ends = (client, server, self._count()), (server, client, lambda _: False)
        self.sockets |= {client, server}
        threads = [threading.Thread(target=_forward, args=pair, daemon=True) for pair in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.sockets -= {client, server}
        client.close()
        server.close()

    def _count(self) -> Callable[[bytes], bool]:
        """Counts the requests of one connection, and says of each piece whether its request is to be refused."""
        left = b""

        def count(piece: bytes) -> bool:
            nonlocal left
            text, end = left + piece, 0
            for line in REQUEST_LINE.finditer(text):
                self.requests[line[1].decode()] += 1
                end = line.end() - 1
            # The beginning of a line may be in this piece, and its end in the next one.
            left = text[max(end, text.rfind(b"\n"), len(text) - LONGEST_LINE) :]
            if not self.refuses_every or not REQUEST_LINE.match(piece):
                return False
            is_refused = self.requests.total() % self.refuses_every == 0
            self.refused += is_refused
            return is_refused

        return count


def _forward(source: socket.socket, target: socket.socket, refuses: Callable[[bytes], bool]) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            if refuses(piece):
                source.sendall(SLOW_DOWN)
                source.shutdown(socket.SHUT_WR)
                while source.recv(65536):
                    pass
                break
            target.sendall(piece)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextmanager
def store_gate(port: int) -> Iterator[StoreGate]:
    """The gate on a free port, open, until the end of the block."""
    gate = StoreGate(port)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gate.endpoint = f"http://localhost:{listening.getsockname()[1]}"
        threading.Thread(target=_accept, args=(listening, gate), daemon=True).start()
        try:
            yield gate
        finally:
            gate.over = True
            gate.close()
            # Ends the thread's accept(), which else goes on with the next socket of that number.
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, gate: StoreGate) -> None:
    while not gate.over:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=gate.serve, args=(client,), daemon=True).start()
