"""A Maven repository on loopback that can be told to misbehave, and jars to put into it."""

import hashlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from lakeshare_pipelines.spark.jars import PinnedJar
from tests.builders.http_server import listening

COORDINATE = "org.example:{name}_2.13:1.2.3"


def a_jar(name: str = "small", content: bytes = b"PK" + bytes(200_000)) -> tuple[PinnedJar, bytes]:
    """A pin and the bytes it stands for."""
    digest = hashlib.sha256(content).hexdigest()
    return PinnedJar(name, COORDINATE.format(name=name), len(content), digest), content


@dataclass
class Repository:
    """What it holds by path, how it fails, and what it was asked for."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after_bytes: list[int] = field(default_factory=list)  # one answer each, then whole ones
    stall_after_bytes: int | None = None
    asked: list[str] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def put(self, jar: PinnedJar, content: bytes) -> None:
        """Hold `content` where Maven's layout wants this artifact."""
        group, artifact, version, *_ = jar.coordinate.split(":")
        self.files[f"/{group.replace('.', '/')}/{artifact}/{version}/{jar.filename}"] = content


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Repository]:
    """The repository, listening."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, repository)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    repository = Repository(f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}")
    with listening(server):
        try:
            yield repository
        finally:
            repository.released.set()


def answer(handler: BaseHTTPRequestHandler, repository: Repository) -> None:
    """A whole file, in one go or with a halt in it, a part of it and then nothing, or 404."""
    path = urlsplit(handler.path).path  # a client behind a proxy sends the whole address
    repository.asked.append(handler.path)
    content = repository.files.get(path)
    if content is None:
        handler.send_error(404)
        return
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    before_stall = repository.stall_after_bytes
    if before_stall is not None:
        handler.wfile.write(content[:before_stall])
        handler.wfile.flush()
        repository.stalled.set()
        repository.released.wait()
        with suppress(ConnectionError):  # the client may be gone: one of them is killed while it waits
            handler.wfile.write(content[before_stall:])
    elif repository.cut_after_bytes:
        handler.wfile.write(content[: repository.cut_after_bytes.pop(0)])
    else:
        handler.wfile.write(content)
