"""A red audit tells Slack what failed, where it is kept and where to look; a Slack that is down changes nothing."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import dagster as dg
import pytest

from lakeshare_pipelines.defs.alerts import tell_red
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdict, Verdicts

STAGED = Staged("flights", "run-1", ("2013-01-04",), "wap-flights-2013-01-04-run1", "b", "h", (), {}, "c")
RED = Verdicts(
    STAGED.ref,
    "h",
    (
        Verdict(
            "flights.departures",
            "not_null__carrier",
            "error",
            False,
            "d",
            {"reason": "92 of 915 rows failed"},
        ),
        Verdict("flights.departures", "structure", "error", True, "d"),
    ),
    "c",
)


class SlackStandIn(ThreadingHTTPServer):
    """`chat.postMessage` as Slack answers it; keeps what it was sent."""

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


@pytest.fixture
def slack() -> Iterator[SlackStandIn]:
    with SlackStandIn() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def tell(**settings: str) -> None:
    tell_red(dg.build_op_context(), LakeSettings(_env_file=None, **settings), STAGED, RED)


def test_the_message_names_set_partition_rules_counts_place_and_run(slack):
    tell(
        slack_token="xoxb-1",
        slack_channel="#data",
        slack_base_url=f"http://127.0.0.1:{slack.server_port}/api",
    )

    (message,) = slack.messages
    assert message["path"] == "/api/chat.postMessage"
    assert message["auth"] == "Bearer xoxb-1"
    assert message["channel"] == "#data"
    for part in ("flights 2013-01-04", "not_null__carrier: 92 of 915 rows failed", STAGED.ref, "/runs/"):
        assert part in message["text"]
    assert "structure" not in message["text"]


def test_without_a_token_nothing_is_sent(slack):
    tell(slack_base_url=f"http://127.0.0.1:{slack.server_port}/api")
    assert slack.messages == []


def test_a_slack_that_is_down_is_logged_and_changes_nothing(slack, capfd):
    port = slack.server_port
    slack.server_close()
    tell(slack_token="xoxb-1", slack_base_url=f"http://127.0.0.1:{port}/api")
    assert "Slack did not take the message" in capfd.readouterr().err
