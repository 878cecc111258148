"""A consumer of webhooks in a thread of the test, which verifies, deduplicates, and can fail or fall silent."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lakeshare_server.provider.webhooks import sign_event
from tests.builders.http_server import listening


class AConsumer(ThreadingHTTPServer):
    """Keeps every request; `started` has the events that it would start a run for: each id once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.daemon_threads = True
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}/hook?key=1"
        self.secrets: list[str] = []
        # The statuses of the next requests; 204 for all further ones.
        self.statuses: list[int] = []
        self.is_down = False
        self.held: threading.Event | None = None
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.started: dict[str, dict[str, Any]] = {}

    def numbers(self) -> list[tuple[str, int]]:
        """The table and number of each run that was started."""
        data = [event["data"] for event in self.started.values() if "number" in event["data"]]
        return [(fields["table"], fields["number"]) for fields in data]


class _Hook(BaseHTTPRequestHandler):
    server: AConsumer

    def do_GET(self) -> None:
        self.server.paths.append(f"GET {self.path}")
        self._send(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.paths.append(self.path)
        if self.server.held is not None:
            self.server.held.wait(30)
        if self.server.is_down:
            # No response: the connection is closed.
            self.close_connection = True
            return
        request = {name.lower(): value for name, value in self.headers.items()}
        event_id, timestamp = request["webhook-id"], int(request["webhook-timestamp"])
        signatures = request["webhook-signature"].split()
        request["is_signed_by"] = [
            secret
            for secret in self.server.secrets
            if sign_event(secret, event_id, timestamp, body) in signatures
        ]
        event = json.loads(body)
        assert event["id"] == event_id
        self.server.requests.append({**request, "event": event})
        status = self.server.statuses.pop(0) if self.server.statuses else 204
        if status < 300 and request["is_signed_by"]:
            self.server.started.setdefault(event_id, event)
        self._send(status)

    def _send(self, status: int) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://{self.server.host}/redirected")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Silence: the tests say what was asked."""


@contextmanager
def a_consumer() -> Iterator[AConsumer]:
    """A consumer until the end of the block."""
    consumer = AConsumer()
    with listening(consumer):
        yield consumer
