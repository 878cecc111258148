"""The model server on a socket, with a place for a defect: a function that changes answers before they are sent."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from lakeshare_conformance.client import Profile
from tests.builders.http_server import listening
from tests.fakes.model_answers import EXPIRED_TOKEN, FOREIGN_TOKEN, TOKEN, Model
from tests.fakes.model_requests import Reply, Request
from tests.fakes.model_tables import the_hidden_tables

PREFIX, DATA = "/delta-sharing", "/data/"
Defect = Callable[[Request, Reply], None]


class ModelServer(ThreadingHTTPServer):
    """Serves the protocol below `PREFIX` and files below `DATA`; `defect` sees every answer before it leaves."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = Model(self.sign)
        self.foreign_model = Model(self.sign, the_hidden_tables(), FOREIGN_TOKEN)
        self.defect: Defect | None = None
        self.files = {
            f"{table.name}/{file.path}": file.content
            for table in self.model.tables
            for file in table.every_file()
        }
        for table in self.model.tables:
            for file in table.every_file():
                if file.vector is not None:
                    self.files[f"{table.name}/{file.path}.{len(file.vector.deleted)}.bin"] = (
                        file.vector.stored
                    )

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def profile(self) -> Profile:
        return self._profile(TOKEN, "2999-01-01T00:00:00.0Z")

    @property
    def foreign(self) -> Profile:
        """The profile of another recipient."""
        return self._profile(FOREIGN_TOKEN, "2999-01-01T00:00:00.0Z")

    @property
    def expired(self) -> Profile:
        return self._profile(EXPIRED_TOKEN, "2000-01-01T00:00:00.0Z")

    def _profile(self, token: str, ends: str) -> Profile:
        endpoint = f"{self.root}{PREFIX}"
        fields = {
            "shareCredentialsVersion": 1,
            "endpoint": endpoint,
            "bearerToken": token,
            "expirationTime": ends,
        }
        return Profile(endpoint, token, fields)

    def sign(self, key: str) -> str:
        ends = int(time.time()) + 3600
        return f"{self.root}{DATA}{quote(key)}?expires={ends}&X-Amz-Signature={_signature(key, str(ends))}"

    def answer(self, request: Request) -> Reply:
        is_foreign = FOREIGN_TOKEN in request.headers.get("authorization", "")
        model = self.foreign_model if is_foreign else self.model
        reply = self._file(request) if request.path.startswith(DATA) else model.answer(request)
        if self.defect is not None:
            self.defect(request, reply)
        return reply

    def _file(self, request: Request) -> Reply:
        key = unquote(request.path[len(DATA) :])
        signed = _signature(key, request.params.get("expires", ""))
        is_read = request.method in ("GET", "HEAD")
        if not is_read or request.params.get("X-Amz-Signature") != signed or key not in self.files:
            return Reply(403, {}, b"denied")
        content = self.files[key]
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        asked = request.headers.get("range")
        if asked is None:
            return Reply(200, headers, content)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(content) - int(last)
        end = min(int(last), len(content) - 1) if first and last else len(content) - 1
        if start >= len(content):
            return Reply(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        return Reply(206, headers, content[start : end + 1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer leaves in one piece: in two, the second waits for the client's acknowledgement.
    wbufsize = -1
    server: ModelServer

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(PREFIX) if parts.path.startswith(PREFIX) else parts.path
        params = dict(parse_qsl(parts.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        reply = self.server.answer(Request(self.command, path, params, headers, body))
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *_: object) -> None:
        """Say nothing."""


@contextmanager
def a_model_server() -> Iterator[ModelServer]:
    """A model server on a free port."""
    server = ModelServer()
    with listening(server):
        yield server


def _signature(key: str, ends: str) -> str:
    return hashlib.sha256(f"secret {key} {ends}".encode()).hexdigest()
