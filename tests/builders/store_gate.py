"""A port in front of a store that a test closes and opens: a store that goes down in the middle, and comes back.

It also counts the requests that pass.
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
        ends = (client, server, self._count()), (server, client, lambda _: None)
        self.sockets |= {client, server}
        threads = [threading.Thread(target=_forward, args=pair, daemon=True) for pair in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.sockets -= {client, server}
        client.close()
        server.close()

    def _count(self) -> Callable[[bytes], None]:
        """Counts the requests of one connection."""
        left = b""

        def count(piece: bytes) -> None:
            nonlocal left
            text, end = left + piece, 0
            for line in REQUEST_LINE.finditer(text):
                self.requests[line[1].decode()] += 1
                end = line.end() - 1
            # The beginning of a line may be in this piece, and its end in the next one.
            left = text[max(end, text.rfind(b"\n"), len(text) - LONGEST_LINE) :]

        return count


def _forward(source: socket.socket, target: socket.socket, note: Callable[[bytes], None]) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            note(piece)
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
