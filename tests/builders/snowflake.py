"""A recording of Snowflake's answers, replayed to its real connector on a free port of this machine.

No account was to be had: the answers were written by hand, in the shapes that snowflake-connector-python 5.2 sends,
reads, and logs (login-request, query-request, session?delete=true), with the texts and codes of Snowflake's
documentation. What it shows is what is sent to Snowflake, in which order, and what becomes of its answers; not that
Snowflake would answer so.
"""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.builders.http_server import listening

TOKEN = "session-token"


@dataclass(frozen=True)
class Exchange:
    """A statement that has to come next, word for word, and what is answered; `then` happens before the answer."""

    statement: str
    answer: dict[str, Any]
    then: Callable[[], object] | None = None


@dataclass
class Recording:
    """What was asked of the stand-in, and what was asked that nobody expected."""

    exchanges: list[Exchange]
    login: dict[str, Any]
    url: str = ""
    logins: list[dict[str, Any]] = field(default_factory=list)
    logouts: int = 0
    unexpected: list[str] = field(default_factory=list)

    def replayed_whole(self) -> bool:
        """Whether all was asked that had to be, and nothing else."""
        return not self.exchanges and not self.unexpected and len(self.logins) == self.logouts


def logged_in() -> dict[str, Any]:
    """A login that was accepted."""
    return {
        "data": {
            "token": TOKEN,
            "masterToken": "master-token",
            "validityInSeconds": 3600,
            "masterValidityInSeconds": 14400,
            "displayUserName": "LOADER",
            "serverVersion": "9.34.0",
            "sessionId": 1001,
            "parameters": [{"name": "CLIENT_TELEMETRY_ENABLED", "value": False}],
            "sessionInfo": {
                "databaseName": None,
                "schemaName": None,
                "warehouseName": "LOADING",
                "roleName": "LAKE",
            },
        },
        "code": None,
        "message": None,
        "success": True,
    }


def login_refused() -> dict[str, Any]:
    """A login that was not."""
    return {
        "data": {"authnMethod": "USERNAME_PASSWORD"},
        "code": "390100",
        "message": "Incorrect username or password was specified.",
        "success": False,
    }


def answered(column: str, value: str, query_id: str) -> dict[str, Any]:
    """One row of one column of text."""
    return {
        "data": {
            "parameters": [],
            "rowtype": [
                {
                    "name": column,
                    "type": "text",
                    "nullable": True,
                    "length": 16777216,
                    "byteLength": 16777216,
                    "precision": None,
                    "scale": None,
                }
            ],
            "rowset": [[value]],
            "total": 1,
            "returned": 1,
            "queryId": query_id,
            "queryResultFormat": "json",
            "finalWarehouseName": "LOADING",
            "finalRoleName": "LAKE",
            "numberOfBinds": 0,
            "version": 1,
        },
        "code": None,
        "message": None,
        "success": True,
    }


def refused(code: str, sql_state: str, message: str, query_id: str) -> dict[str, Any]:
    """A statement that failed."""
    return {
        "data": {
            "internalError": False,
            "errorCode": code,
            "age": 0,
            "sqlState": sql_state,
            "queryId": query_id,
            "line": 1,
            "pos": 0,
            "type": "COMPILATION",
        },
        "code": code,
        "message": message,
        "success": False,
    }


@contextmanager
def replayed(exchanges: Sequence[Exchange], login: dict[str, Any] | None = None) -> Iterator[Recording]:
    """The stand-in while the block runs."""
    recording = Recording(list(exchanges), login or logged_in())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(recording))
    recording.url = f"http://127.0.0.1:{server.server_port}"
    with listening(server):
        yield recording


def _handler(recording: Recording) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # Kept open, it would hold the server's end back until the client lets go.
        protocol_version = "HTTP/1.0"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            said = json.dumps(_answer(recording, self, json.loads(body or b"{}"))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            """The test looks at the recording."""

    return Handler


def _answer(recording: Recording, request: BaseHTTPRequestHandler, body: dict[str, Any]) -> dict[str, Any]:
    path, query = urlsplit(request.path).path, parse_qs(urlsplit(request.path).query)
    if path == "/session/v1/login-request":
        recording.logins.append({**body["data"], "query": query})
        return recording.login
    has_session = request.headers["Authorization"] == f'Snowflake Token="{TOKEN}"'
    if path == "/session" and query.get("delete") == ["true"] and has_session:
        recording.logouts += 1
        return {"data": None, "code": None, "message": None, "success": True}
    if path == "/queries/v1/query-request" and has_session:
        return _replay(recording, body["sqlText"])
    recording.unexpected.append(request.path)
    return refused("000000", "XX000", f"nothing is recorded for {request.path}", "")


def _replay(recording: Recording, statement: str) -> dict[str, Any]:
    if not recording.exchanges or recording.exchanges[0].statement != statement:
        recording.unexpected.append(statement)
        return refused("000000", "XX000", f"the recording does not have this next: {statement}", "")
    exchange = recording.exchanges.pop(0)
    if exchange.then is not None:
        exchange.then()
    return exchange.answer
