"""An S3 store whose objects are in an archive, as AWS documents RestoreObject: asked for, waited for, then readable.

No server that runs here has archives. Time is told by the test: `turn` lets what was asked for come back.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.builders.http_server import listening

ASKED, BACK = 'ongoing-request="true"', 'ongoing-request="false", expiry-date="Fri, 27 Nov 2026 00:00:00 GMT"'


@dataclass
class Archive:
    """Objects by path (`/bucket/key`, decoded): their storage class, and where their restore is."""

    endpoint: str = ""
    classes: dict[str, str] = field(default_factory=dict)
    tiered: set[str] = field(default_factory=set)
    """Those of Intelligent-Tiering that lie in its archive tier."""
    restores: dict[str, str] = field(default_factory=dict)
    orders: list[tuple[str, str]] = field(default_factory=list)
    """Path and body of each order, in the order they came."""
    denied: set[str] = field(default_factory=set)

    def turn(self) -> None:
        """What was asked for is back."""
        self.restores = dict.fromkeys(self.restores, BACK)
        self.tiered -= self.restores.keys()

    def order(self, path: str, body: str) -> tuple[int, str]:
        """Status and error code of a RestoreObject."""
        if path in self.denied:
            return 403, "AccessDenied"
        if path not in self.classes:
            return 404, "NoSuchKey"
        if path not in self.tiered and self.classes[path] not in {"GLACIER", "DEEP_ARCHIVE"}:
            return 403, "InvalidObjectState"
        if ("<Days>" in body) == (path in self.tiered):
            return 400, "MalformedXML"
        if self.restores.get(path) == ASKED:
            return 409, "RestoreAlreadyInProgress"
        self.orders.append((path, body))
        self.restores[path] = ASKED
        return 202, ""


@contextmanager
def an_archive() -> Iterator[Archive]:
    """A store on a free port; objects are put into its `classes`."""
    archive = Archive()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            path = _path(self.path)
            if path not in archive.classes:
                self._answer(404, {})
                return
            headers = {"ETag": '"e"', "x-amz-storage-class": archive.classes[path]}
            if path in archive.restores:
                headers["x-amz-restore"] = archive.restores[path]
            if path in archive.tiered:
                headers["x-amz-archive-status"] = "DEEP_ARCHIVE_ACCESS"
            self._answer(200, headers)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asks_restore = "restore" in parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            status, code = archive.order(_path(self.path), body) if asks_restore else (400, "InvalidRequest")
            self._answer(
                status, {}, f"<Error><Code>{code}</Code><Message>so</Message></Error>" if code else ""
            )

        def _answer(self, status: int, headers: dict[str, str], body: str = "") -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    archive.endpoint = f"http://127.0.0.1:{server.server_port}"
    with listening(server):
        yield archive


def _path(target: str) -> str:
    return unquote(urlsplit(target).path)


def days_of(body: str) -> int | None:
    """For how many days an order asks."""
    found = re.search(r"<Days>(\d+)</Days>", body)
    return int(found[1]) if found else None
