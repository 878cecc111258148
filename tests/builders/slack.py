"""Slack's `chat.postMessage`, as far as an alert meets it, on a free port of this machine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from tests.builders.http_server import listening


class SlackStandIn(ThreadingHTTPServer):
    """`chat.postMessage` as Slack answers it; keeps what it was sent."""

    @property
    def url(self) -> str:
        """What LAKESHARE_SLACK_BASE_URL has to say."""
        return f"http://127.0.0.1:{self.server_port}/api"

    def __init__(self) -> None:
        self.messages: list[dict[str, str]] = []
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                fields = (
                    json.loads(body) if body.startswith("{") else {k: v[0] for k, v in parse_qs(body).items()}
                )
                stand_in.messages.append({"path": self.path, "auth": self.headers["Authorization"], **fields})
                answer = json.dumps({"ok": True, "channel": "C1", "ts": "1.1"}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """The test looks at the messages, not at an access log."""

        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def slack_stand_in() -> Iterator[SlackStandIn]:
    """Serves while the block runs."""
    server = SlackStandIn()
    with listening(server):
        yield server
