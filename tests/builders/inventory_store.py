"""A stand-in for the part of S3 that keeps inventory configurations, bucket policies and regions, over HTTP.

No emulator at hand keeps configurations of inventories. This one keeps what it is given as it is given, and counts
every request to delete anything, because some emulators take that for the deletion of the bucket.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.builders.http_server import listening

ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{0}</Code><Message>{0}</Message></Error>'
LOCATION = '<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{}</LocationConstraint>'
ABSENT = {"inventory": "NoSuchConfiguration", "policy": "NoSuchBucketPolicy"}


@dataclass
class InventoryStore:
    """What is kept, by bucket and query; `forgetful`: puts are accepted and not kept."""

    kept: dict[tuple[str, str], bytes] = field(default_factory=dict)
    regions: dict[str, str] = field(default_factory=dict)
    refused: str | None = None
    forgetful: bool = False
    puts: list[str] = field(default_factory=list)
    deletions: int = 0
    endpoint: str = ""


@contextmanager
def an_inventory_store() -> Iterator[InventoryStore]:
    """One that runs until the end of the block."""
    store = InventoryStore()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bucket, kind, place = self.asked()
            if store.refused is not None:
                self.answer(403, ERROR.format(store.refused).encode())
            elif kind == "location":
                self.answer(200, LOCATION.format(store.regions.get(bucket, "")).encode())
            elif (bucket, place) in store.kept:
                self.answer(200, store.kept[bucket, place])
            else:
                self.answer(404, ERROR.format(ABSENT[kind]).encode())

        def do_PUT(self) -> None:
            bucket, kind, place = self.asked()
            content = self.rfile.read(int(self.headers["Content-Length"]))
            store.puts.append(kind)
            if not store.forgetful:
                store.kept[bucket, place] = content
            self.answer(200 if kind == "inventory" else 204, b"")

        def do_DELETE(self) -> None:
            store.deletions += 1
            self.answer(204, b"")

        def asked(self) -> tuple[str, str, str]:
            url = urlsplit(self.path)
            query = parse_qs(url.query, keep_blank_values=True)
            kind = next(kind for kind in ("inventory", "policy", "location") if kind in query)
            return url.path.strip("/"), kind, f"{kind} {query.get('id', [''])[0]}"

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    store.endpoint = f"http://127.0.0.1:{server.server_port}"
    with listening(server):
        yield store
