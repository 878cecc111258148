"""Requests that a client keeps in flight while a test measures other requests, and services that never answer."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PATIENCE_S = 60


@contextmanager
def silent_service() -> Iterator[str]:
    """The URL of a socket that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        # The kernel completes connections up to the backlog; nothing reads them.
        listening.listen(4096)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@dataclass
class Held:
    """What came of the requests so far: answers by status, the longest wait, and the Retry-After of the 503s."""

    in_flight: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0
    retry_after: set[str] = field(default_factory=set)
    bodies: set[str] = field(default_factory=set)


@contextmanager
def held_requests(base_url: str, requests: list[tuple[str, str]], token: str, count: int) -> Iterator[Held]:
    """Keep `count` requests in flight, taking method and path from `requests` in turn, until the end of the block.

    A client that is answered 503 sends its request again after the time of Retry-After, as the protocol wants it.
    """
    held, loop = Held(), asyncio.new_event_loop()
    clients = loop.create_task(_hold(held, base_url, requests, token, count))
    thread = threading.Thread(target=_run, args=(loop, clients))
    thread.start()
    try:
        yield held
    finally:
        loop.call_soon_threadsafe(clients.cancel)
        thread.join()
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, clients: "asyncio.Task[None]") -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(clients)


async def _hold(held: Held, base_url: str, requests: list[tuple[str, str]], token: str, count: int) -> None:
    url = urlsplit(base_url)
    clients = [
        _client(held, url.hostname or "", url.port or 0, url.path, *requests[number % len(requests)], token)
        for number in range(count)
    ]
    await asyncio.gather(*clients)


async def _client(held: Held, host: str, port: int, prefix: str, method: str, path: str, token: str) -> None:
    body = b"{}" if method == "POST" else b""
    head = (
        f"{method} {prefix}{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    while True:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(host, port)
        held.in_flight += 1
        try:
            writer.write(head.encode() + body)
            answer = (await reader.read()).decode("utf-8", "replace")
        finally:
            held.in_flight -= 1
            writer.close()
        said, _, text = answer.partition("\r\n\r\n")
        status, *fields = said.split("\r\n")
        held.statuses[int(status.split(" ")[1])] += 1
        held.longest_s = max(held.longest_s, time.monotonic() - began)
        headers = dict(field.lower().split(": ", 1) for field in fields)
        held.bodies.add(text)
        wait = headers.get("retry-after")
        if wait is not None:
            held.retry_after.add(wait)
        await asyncio.sleep(float(wait or 1))
