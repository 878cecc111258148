"""A proxy in front of a sharing server that puts one fault into its traffic.

Faults are data (`faults.yaml`): which requests they concern, and what is changed in the request or in the response.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import httpx
import yaml

from tests.builders.http_server import listening

FAULTS = Path(__file__).with_name("faults.yaml")
TABLE = "/shares/[^/]+/schemas/[^/]+/tables/[^/]+"
ENDPOINTS = {
    "shares": "/shares",
    "share": "/shares/[^/]+",
    "schemas": "/shares/[^/]+/schemas",
    "tables": "/shares/[^/]+/schemas/[^/]+/tables",
    "all-tables": "/shares/[^/]+/all-tables",
    "listing": "/shares|/shares/[^/]+/schemas|/shares/[^/]+/all-tables|/shares/[^/]+/schemas/[^/]+/tables",
    "table": TABLE,
    **{
        name: f"{TABLE}/{name}"
        for name in ("version", "metadata", "query", "changes", "temporary-table-credentials")
    },
    "reads": f"{TABLE}/(metadata|query|changes)",
    "data": "data",
    "any": ".*",
}
# Of the connection, not of the message.
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host", "keep-alive"}


@dataclass(frozen=True)
class Fault:
    """One change to the requests or responses of some endpoints; `when` narrows the requests."""

    name: str
    endpoint: str
    method: str = "GET|POST|HEAD|PUT|DELETE"
    when: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    response: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Message:
    """A request on its way, and then the response to it."""

    method: str
    path: str
    endpoint: str
    query: str
    headers: dict[str, str]
    body: bytes
    status: int = 0

    @property
    def params(self) -> dict[str, str]:
        return dict(parse_qsl(self.query, keep_blank_values=True))

    @property
    def fields(self) -> dict[str, Any]:
        try:
            found = json.loads(self.body or b"{}")
        except (ValueError, RecursionError):
            found = {}
        return {**self.params, **(found if isinstance(found, dict) else {})}


def read_faults(expired_token: str = "") -> list[Fault]:
    """All faults of `faults.yaml`; `EXPIRED` in a pattern stands for the token that has expired."""
    text = FAULTS.read_text("utf-8").replace("EXPIRED", expired_token)
    return [Fault(**one) for one in yaml.safe_load(text)]


class MutatingProxy(ThreadingHTTPServer):
    """Forwards to a server below `upstream`, a URL without a path; `fault` is put into what it concerns."""

    daemon_threads = True

    def __init__(self, upstream: str, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.prefix = upstream, prefix
        self.fault: Fault | None = None
        self.hits = 0
        self.client = httpx.Client(timeout=60)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def forward(self, sent: Message) -> Message:
        """The upstream's response, URLs in it leading through the proxy, and the fault in it."""
        fields = sent.fields
        fault = self.fault if self.fault is not None and _concerns(self.fault, sent, fields) else None
        if fault is not None:
            self.hits += 1
            _change_request(sent, fault.request)
        url = f"{self.upstream}{sent.path}" + (f"?{sent.query}" if sent.query else "")
        headers = {name: value for name, value in sent.headers.items() if name.lower() not in HOP_BY_HOP}
        came = self.client.request(sent.method, url, headers=headers, content=sent.body or None)
        received = Message(
            sent.method,
            sent.path,
            sent.endpoint,
            sent.query,
            {name: value for name, value in came.headers.items() if name.lower() not in HOP_BY_HOP},
            came.content,
            came.status_code,
        )
        if sent.method == "HEAD" and "content-length" in came.headers:
            received.headers["Content-Length"] = came.headers["content-length"]
        if sent.endpoint != "data":
            received.body = received.body.replace(self.upstream.encode(), self.root.encode())
        if fault is not None:
            _change_response(received, fault.response)
        return received


@contextmanager
def a_mutating_proxy(upstream: str, prefix: str) -> Iterator[MutatingProxy]:
    """A proxy on a free port, stopped at the end."""
    server = MutatingProxy(upstream, prefix)
    with server.client, listening(server):
        yield server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: MutatingProxy

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        prefix = self.server.prefix
        is_call = parts.path.startswith(f"{prefix}/shares")
        endpoint = parts.path.removeprefix(prefix) if is_call else "data"
        message = Message(
            self.command,
            parts.path,
            endpoint,
            parts.query,
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(int(self.headers.get("content-length", 0))),
        )
        answer = self.server.forward(message)
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *_: object) -> None:
        """Writes no access log."""


def _concerns(fault: Fault, sent: Message, fields: Mapping[str, Any]) -> bool:
    when = fault.when
    return (
        any(re.fullmatch(ENDPOINTS[name], sent.endpoint) for name in fault.endpoint.split("|"))
        and sent.method in fault.method.split("|")
        and all(name in fields for name in when.get("has", ()))
        and not any(name in fields for name in when.get("lacks", ()))
        and all(fields.get(name) == value for name, value in when.get("equals", {}).items())
        and all(
            re.search(value, sent.headers.get(name, "")) for name, value in when.get("headers", {}).items()
        )
        and re.search(when.get("path", ""), sent.path) is not None
        and re.search(when.get("body", ""), sent.body.decode("utf-8", "replace")) is not None
    )


def _change_request(sent: Message, changes: Mapping[str, Any]) -> None:
    for name in changes.get("headers", {}):
        sent.headers.pop(name, None)
    sent.headers.update(
        {name: value for name, value in changes.get("headers", {}).items() if value is not None}
    )
    for old, new in changes.get("path", {}).items():
        sent.path = re.sub(old, new, sent.path)
    if "method" in changes:
        sent.method = changes["method"]
    is_query = sent.method != "POST"
    found: dict[str, Any] = {**sent.params} if is_query else sent.fields
    for name in changes.get("drop", ()):
        found.pop(name, None)
    found.update(changes.get("set", {}))
    for name, step in changes.get("add", {}).items():
        if str(found.get(name, "")).lstrip("-").isdigit():
            found[name] = int(found[name]) + step
    for name, new in changes.get("rename", {}).items():
        if name in found:
            found[new] = found.pop(name)
    if not {"drop", "set", "add", "rename"} & set(changes):
        return
    if is_query:
        sent.query = urlencode(found, quote_via=quote)
    else:
        sent.body = json.dumps(found).encode()


def _change_response(received: Message, changes: Mapping[str, Any]) -> None:
    is_good = received.status < 300
    if not is_good and not changes.get("also_refusals"):
        if "instead_of_refusal" in changes:
            received.status, received.body = changes["instead_of_refusal"], b"{}"
        return
    if "only_status" in changes and received.status != changes["only_status"]:
        return
    for name in changes.get("headers", {}):
        received.headers = {
            key: value for key, value in received.headers.items() if key.lower() != name.lower()
        }
    received.headers.update(
        {name: value for name, value in changes.get("headers", {}).items() if value is not None}
    )
    for old, new in changes.get("replace", {}).items():
        received.body = received.body.replace(old.encode(), new.encode())
    if "status" in changes:
        received.status = changes["status"]
    if "body" in changes:
        received.body = changes["body"].encode()
    if "cut" in changes:
        received.body = received.body[: -changes["cut"]]
    if "flip" in changes and len(received.body) > changes["flip"]:
        place = changes["flip"]
        received.body = (
            received.body[:place] + bytes([received.body[place] ^ 0xFF]) + received.body[place + 1 :]
        )
    if received.body and ("lines" in changes or "items" in changes):
        change = _change_lines if "lines" in changes else _change_items
        received.body = change(received.body, changes.get("lines") or changes["items"])


def _change_items(body: bytes, change: Mapping[str, Any]) -> bytes:
    found = json.loads(body)
    items = _picked(found.get("items") or [], change)
    for item in items:
        _edit(item, change)
    return json.dumps({**found, "items": items, **change.get("page", {})}).encode()


def _change_lines(body: bytes, change: Mapping[str, Any]) -> bytes:
    lines = [json.loads(line) for line in body.splitlines()]
    kinds = re.compile(change["of"])
    chosen = [line for line in lines if kinds.fullmatch(next(iter(line)))]
    kept = _picked(chosen, change)
    for line in kept:
        _edit_line(line, change)
    lost = {id(line) for line in chosen}
    place = next((number for number, line in enumerate(lines) if id(line) in lost), len(lines))
    others = [(number, line) for number, line in enumerate(lines) if id(line) not in lost]
    before = [line for number, line in others if number < place]
    after = [line for number, line in others if number >= place]
    result = [*before, *kept, *after, *change.get("append", ())]
    return b"".join(json.dumps(line).encode() + b"\n" for line in result)


def _picked(found: list[Any], change: Mapping[str, Any]) -> list[Any]:
    """What is left: without the first, the last or all, or with the first or all twice."""
    keep: dict[str, Callable[[list[Any]], list[Any]]] = {
        "first": lambda all_: all_[1:],
        "last": lambda all_: all_[:-1],
        "all": lambda _: [],
    }
    if "drop" in change:
        return keep[change["drop"]](found)
    if change.get("twice"):
        return [*found, *json.loads(json.dumps(found))]
    return found[::-1] if change.get("reverse") else found


def _edit_line(line: dict[str, Any], change: Mapping[str, Any]) -> None:
    [(kind, outer)] = line.items()
    single = outer.get("deltaSingleAction")
    inner = next(iter(single.values())) if single else outer
    inner = outer.get("deltaMetadata") or outer.get("deltaProtocol") or inner
    _edit(outer, change.get("outer", {}))
    _edit(inner, change.get("inner", {}))
    _edit(inner.get("deletionVector", {}), change.get("vector", {}))
    if "stats" in change and isinstance(inner.get("stats"), str):
        stats = json.loads(inner["stats"])
        _edit(stats, change["stats"])
        inner["stats"] = json.dumps(stats)
    if "rename" in change:
        line[change["rename"]] = line.pop(kind)


def _edit(found: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Set, take away, add to or replace within fields, a dotted name leading into objects; `only_if` names a field."""
    if not found:
        return
    for name in change.get("remove", ()):
        _at(found, name)[0].pop(name.rpartition(".")[2], None)
    for name, value in change.get("put", {}).items():
        _at(found, name)[0][name.rpartition(".")[2]] = value
    for name, step in change.get("add", {}).items():
        of, last = _at(found, name)
        if isinstance(of.get(last), int | float) and not isinstance(of.get(last), bool):
            of[last] += step
    for name, (old, new) in change.get("swap", {}).items():
        of, last = _at(found, name)
        if isinstance(of.get(last), str):
            of[last] = of[last].replace(old, new)


def _at(found: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    *path, last = name.split(".")
    for part in path:
        found = found.setdefault(part, {}) if isinstance(found.get(part, {}), dict) else {}
    return found, last
