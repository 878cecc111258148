"""Nessie's v2 API over HTTP, for what pynessie cannot say: merges with metadata, dry runs, paged history."""

import os
import ssl
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from lakeshare_pipelines.errors import NessieError

TIMEOUT_S = 60
PAGE_SIZE = 200
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CODES = {401: "UNAUTHENTICATED", 403: "FORBIDDEN"}


class Calls:
    """JSON in, JSON out, errors as NessieError."""

    def __init__(self, uri: str, token: str | None) -> None:
        keep_off_proxies(uri)
        self._uri = uri.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """The answer to a GET of `path`, which is quoted already."""
        return self._ask("GET", path, parameters, None)

    def post(
        self, path: str, body: Mapping[str, Any], parameters: Mapping[str, str | int] | None = None
    ) -> dict[str, Any]:
        """The answer to a POST."""
        return self._ask("POST", path, parameters, body)

    def pages(self, path: str, items: str, parameters: Mapping[str, str | int]) -> Iterator[dict[str, Any]]:
        """The `items` of every page, fetched as they are consumed."""
        token: dict[str, str] = {}
        while True:
            page = self.get(path, {**parameters, "max-records": PAGE_SIZE, **token})
            yield from page[items]
            if not page.get("hasMore"):
                return
            token = {"page-token": page["token"]}

    def _ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        url = self._uri + path
        try:
            with httpx.Client(verify=_certificates(), timeout=TIMEOUT_S, headers=self._headers) as client:
                answer = client.request(method, url, params=dict(parameters or {}), json=body)
        except httpx.HTTPError as error:
            raise unreachable(self._uri, error) from error
        if not answer.is_success:
            raise _refused(answer)
        return _json(answer)


def unreachable(uri: str, error: Exception) -> NessieError:
    """The error for a server that does not answer."""
    return NessieError(
        0,
        "UNREACHABLE",
        f"{uri} does not answer ({_short(error)}). `lakeshare doctor` says whether Nessie runs; the embedded one "
        "is started again by the next run",
    )


def _short(error: Exception) -> str:
    """The innermost cause: the HTTP libraries wrap "connection refused" in a paragraph."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return str(cause) or type(cause).__name__


def code_of(status: int, code: str | None) -> str:
    """Nessie's error code, or a word for the statuses that come without one."""
    return code if code and code != "UNKNOWN" else CODES.get(status, "UNKNOWN")


def keep_off_proxies(uri: str) -> None:
    """Never ask a proxy for a server on this very machine; every HTTP library used here reads NO_PROXY."""
    host = urlsplit(uri).hostname
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if host in LOOPBACK and listed != "*" and host not in listed.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{listed},{host}" if listed else host


def ref_path(ref: str) -> str:
    """`/trees/<ref>` with the ref quoted; `ref` may be `name@hash`."""
    return f"/trees/{quote(ref, safe='@')}"


@cache
def _certificates() -> ssl.SSLContext:
    # The machine's own, with SSL_CERT_FILE; reading them takes longer than a call.
    return ssl.create_default_context()


def _refused(answer: httpx.Response) -> NessieError:
    try:
        said = answer.json()
    except ValueError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    message = said.get("message") or answer.reason_phrase
    return NessieError(answer.status_code, code_of(answer.status_code, said.get("errorCode")), message)


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        said = answer.json()
    except ValueError as error:
        raise not_nessie(str(answer.url)) from error
    if not isinstance(said, dict):
        raise not_nessie(str(answer.url))
    return said


def not_nessie(uri: str) -> NessieError:
    """The error for an answer that Nessie would not give."""
    return NessieError(0, "NOT_NESSIE", f"{uri} answers, but not as Nessie does. Check LAKESHARE_NESSIE_URI")
