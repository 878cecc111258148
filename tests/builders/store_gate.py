"""A port in front of a store that a test closes and opens: a store that goes down in the middle, and comes back."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class StoreGate:
    """The gate to a port of 127.0.0.1. While it is closed, connections break off and new ones end at once."""

    port: int
    endpoint: str = ""
    is_open: bool = True
    over: bool = False
    sockets: set[socket.socket] = field(default_factory=set)

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
        ends = (client, server), (server, client)
        self.sockets |= {client, server}
        threads = [threading.Thread(target=_forward, args=pair, daemon=True) for pair in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.sockets -= {client, server}
        client.close()
        server.close()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
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
