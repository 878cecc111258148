"""A socket that answers HTTP requests of any store as a test says: with errors, half an answer, or not at all."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

HANG_S = 60


@dataclass
class AnsweringStore:
    """`answer` gets a request and gives what is written back; None is silence, b"" a broken line."""

    answer: Callable[[str], bytes | None]
    endpoint: str = ""
    closes: bool = False
    requests: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while request := _request_on(connection):
                self.requests.append(request)
                said = self.answer(request)
                if said is None:
                    self.over.wait(HANG_S)
                if not said:
                    return
                connection.sendall(said)
                if self.closes:
                    return


def said(status: str, body: str = "", *headers: str) -> bytes:
    """A whole answer."""
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", *headers]
    return "\r\n".join([*head, "", body]).encode()


def said_of_object(body: bytes, request: str, cut_after: int | None = None) -> bytes:
    """The object, or the range of it that is asked for; `cut_after` breaks the line after so many bytes."""
    start, end, status = 0, len(body), "200 OK"
    for line in request.splitlines():
        if line.lower().startswith("range: bytes="):
            first, last = line.partition("=")[2].split("-")
            start, end, status = int(first), min(int(last or end) + 1, len(body)), "206 Partial Content"
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {end - start}",
        f"Content-Range: bytes {start}-{end - 1}/{len(body)}",
        'ETag: "one"',
        "Last-Modified: Tue, 01 Jan 2030 00:00:00 GMT",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body[start:end][:cut_after]


@contextmanager
def answering_store(answer: Callable[[str], bytes | None], closes: bool = False) -> Iterator[AnsweringStore]:
    """The store on a free port of 127.0.0.1 until the end of the block; `closes` hangs up after each answer."""
    store = AnsweringStore(answer, closes=closes)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        store.endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        threading.Thread(target=_accept, args=(listening, store), daemon=True).start()
        try:
            yield store
        finally:
            store.over.set()
            # Ends the thread's accept(), which else goes on and, interrupted, takes the next socket of that number.
            listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, store: AnsweringStore) -> None:
    while not store.over.is_set():
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=store.serve, args=(connection,), daemon=True).start()


def _request_on(connection: socket.socket) -> str:
    """The next request, with its body; nothing when the line is broken."""
    got = b""
    while True:
        head, end, body = got.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if end and len(body) >= int(length[1] if length else 0):
            return got.decode("latin-1")
        try:
            piece = connection.recv(65536)
        except OSError:
            return ""
        if not piece:
            return ""
        got += piece
