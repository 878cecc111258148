"""Nessie's REST API v2 over httpx: requests, pages, and the Iceberg tables in its responses."""

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

ICEBERG_TABLE = "ICEBERG_TABLE"
TIMEOUT_S = 60.0
PAGE_SIZE = 200
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CODES = {401: "UNAUTHENTICATED", 403: "FORBIDDEN"}
Parameters = Mapping[str, str | int]
# Makes the exception for a status (0 if there was no response), an error code and a message.
MakeError = Callable[[int, str, str], Exception]


class NessieApi:
    """Requests to one server with a bearer token, if any; each failure is raised as `make_error` makes it.

    `run` runs each request: `Service.call` gives it a deadline of its own.
    Codes beside Nessie's own: UNREACHABLE (no response), NOT_NESSIE (a response of another form), UNAUTHENTICATED and
    FORBIDDEN (Nessie has no code for them).
    """

    def __init__(
        self,
        uri: str,
        token: str | None,
        make_error: MakeError,
        *,
        timeout_s: float = TIMEOUT_S,
        run: Callable[[Callable[[], dict[str, Any]]], dict[str, Any]] = lambda call: call(),
    ) -> None:
        bypass_proxy(uri)
        self._uri = uri.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._make_error, self._timeout_s, self._run = make_error, timeout_s, run

    def get(self, path: str, parameters: Parameters | None = None) -> dict[str, Any]:
        """Sends a GET request; `path` is percent-encoded."""
        return self._run(lambda: self._request("GET", path, parameters, None))

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._run(lambda: self._request("POST", path, None, body))

    def pages(self, path: str, items: str, parameters: Parameters) -> Iterator[dict[str, Any]]:
        """Yields the `items` of every page, requested as they are consumed."""
        token: dict[str, str] = {}
        while True:
            page = self.get(path, {**parameters, "max-records": PAGE_SIZE, **token})
            is_endless = page.get("hasMore") and page.get("token") in (None, token.get("page-token"))
            if is_endless or not isinstance(page.get(items), list):
                raise self._no_nessie()
            yield from page[items]
            if not page.get("hasMore"):
                return
            token = {"page-token": page["token"]}

    def _request(
        self, method: str, path: str, parameters: Parameters | None, body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        try:
            with httpx.Client(
                verify=_certificates(), timeout=self._timeout_s, headers=self._headers
            ) as client:
                response = client.request(method, self._uri + path, params=dict(parameters or {}), json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._make_error(0, "UNREACHABLE", innermost_cause(error)) from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not response.is_success:
            fields = answer if isinstance(answer, dict) else {}
            code = get_error_code(response.status_code, fields.get("errorCode"))
            message = fields.get("message") or response.reason_phrase
            raise self._make_error(response.status_code, code, message)
        if not isinstance(answer, dict):
            raise self._no_nessie()
        return answer

    def _no_nessie(self) -> Exception:
        # Without the address, which may hold a password.
        return self._make_error(0, "NOT_NESSIE", "the response is not one of Nessie's API")


@dataclass(frozen=True)
class TableContent:
    """The state of an Iceberg table in a commit."""

    id: str
    metadata_location: str
    snapshot_id: int
    schema_id: int
    spec_id: int
    sort_order_id: int

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> Self:
        return cls(*(content[name] for name in CONTENT_FIELDS))


CONTENT_FIELDS = ("id", "metadataLocation", "snapshotId", "schemaId", "specId", "sortOrderId")


def ref_path(ref: str) -> str:
    """Returns `/trees/<ref>` with the ref percent-encoded; `ref` may be `name@hash`."""
    return f"/trees/{quote(ref, safe='@')}"


def innermost_cause(error: BaseException) -> str:
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__


def get_error_code(status: int, code: str | None) -> str:
    """Returns Nessie's error code, or a code for a status without one."""
    return code if code and code != "UNKNOWN" else CODES.get(status, "UNKNOWN")


def bypass_proxy(uri: str) -> None:
    """Excludes a server on this machine from the proxy; all HTTP libraries here read NO_PROXY."""
    host = urlsplit(uri).hostname
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if host in LOOPBACK and listed != "*" and host not in listed.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{listed},{host}" if listed else host


@cache
def _certificates() -> ssl.SSLContext:
    # Loading the certificates takes longer than a request.
    return ssl.create_default_context()
