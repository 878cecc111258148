"""A line to a server that takes its time: every byte arrives after a delay, in both directions together.

Run as `python -m tests.builders.slow_line PORT PORT_OF_SERVER DELAY_MS`: in a process of its own, so that it takes no
time from who is measured.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.integration.processes import connect, free_ports, running


@contextmanager
def slow_line(folder: Path, port: int, delay_ms: float) -> Iterator[int]:
    """The port of a line to a port of 127.0.0.1, until the end of the block."""
    own = free_ports(1)[0]
    command = [sys.executable, "-m", "tests.builders.slow_line", str(own), str(port), str(delay_ms)]
    with running(command, folder / f"line-{own}.log", lambda: connect(own)):
        yield own


class End(asyncio.Protocol):
    """One end of a line; what it gets goes to the other end, later."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s, self.other = delay_s, None
        self.transport: Any = None
        self.waiting: list[bytes] = []
        self.is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        for chunk in self.waiting:
            self.transport.write(chunk)
        if self.is_over:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        asyncio.get_running_loop().call_later(self.delay_s, self.other.send, data)

    def connection_lost(self, error: Exception | None) -> None:
        asyncio.get_running_loop().call_later(self.delay_s, self.other.end)

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self.waiting.append(data)
        else:
            self.transport.write(data)

    def end(self) -> None:
        self.is_over = True
        if self.transport is not None:
            self.transport.close()


async def serve(own: int, port: int, delay_ms: float) -> None:
    """Until the process is ended."""
    loop, delay_s = asyncio.get_running_loop(), delay_ms / 2000
    begun: set[asyncio.Task[Any]] = set()

    def accepted() -> End:
        near, far = End(delay_s), End(delay_s)
        near.other, far.other = far, near
        task = loop.create_task(loop.create_connection(lambda: far, "127.0.0.1", port))
        begun.add(task)
        task.add_done_callback(begun.discard)
        return near

    server = await loop.create_server(accepted, "127.0.0.1", own, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
