"""Requests as clients send them, and answers as the cases judge them. What breaks on the way is a broken promise."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import httpx

from lakeshare_conformance.case import NAME, TEXT, ExpectationFailed, expect, expect_fields, format_value


class ConformanceError(Exception):
    """A run of the suite that cannot begin; the text names what is wrong and the remedy."""


class BadOption(ConformanceError):
    """An option of the command has a value that cannot be used."""

    def __init__(self, option: str, value: object, hint: str) -> None:
        super().__init__(f"{option}: {value!r} cannot be used. {hint}")


class Unreachable(ConformanceError):
    """The server under test gives no response."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")


@dataclass(frozen=True)
class Profile:
    """What the suite needs of a profile; `fields` are as they stand in the file."""

    endpoint: str
    bearer_token: str
    fields: dict[str, Any]


def read_profile(path: Path, option: str = "PROFILE") -> Profile:
    """Read a profile with a bearer token; `option` names it in errors.

    Raises:
        BadOption: the file cannot be read, or is not such a profile.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadOption(option, str(path), f"Give a profile file ({type(error).__name__}).") from error
    if not isinstance(fields, dict):
        raise BadOption(option, str(path), "A profile is a JSON object.")
    for name in ("endpoint", "bearerToken"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            raise BadOption(
                option,
                str(path),
                f"The suite needs a profile with endpoint and bearerToken; {name} is missing.",
            )
    return Profile(fields["endpoint"].rstrip("/"), fields["bearerToken"], fields)


CAPABILITIES = "delta-sharing-capabilities"
VERSION = "delta-table-version"
TIMEOUT_S, CONNECT_TIMEOUT_S = 60, 10
TOO_MANY_REQUESTS = 429
PAUSES_S, LONGEST_PAUSE_S = (0.5, 1, 2, 4, 8, 16), 60
MAX_PARAMETER_SHOWN = 40
MAX_HEADER_SHOWN = 40
PROFILE_CREDENTIAL = "the profile's token"


@dataclass(frozen=True)
class Response:
    """What came back, and what was asked."""

    request: str
    status: int
    headers: httpx.Headers
    body: bytes

    def expect_status(self, *statuses: int) -> Self:
        """The answer itself, if its status is one of these.

        Raises:
            Broken: it is another.
        """
        wanted = " or ".join(str(status) for status in statuses)
        if self.status not in statuses:
            raise ExpectationFailed(self.request, f"status {wanted}", self.summary)
        return self

    @property
    def summary(self) -> str:
        """Status and beginning of the body."""
        return f"{self.status} {self.body[:300].decode('utf-8', 'replace')}".strip()

    def object(self) -> dict[str, Any]:
        """The JSON object of a 200.

        Raises:
            Broken: it is something else.
        """
        self.expect_status(200)
        return self.json_object()

    def refusal(self, *statuses: int) -> str:
        """The message of an error as the protocol shapes it; any 4xx if no status is named.

        Raises:
            Broken: it is no such error.
        """
        if statuses:
            self.expect_status(*statuses)
        expect(400 <= self.status < 500, self.request, "a refusal by 4xx", self.summary)
        error = self.json_object()
        expect_fields(f"{self.request}, body of the {self.status}", error, {"errorCode": NAME}, {})
        expect(
            "message" in error and TEXT.holds(error["message"]), self.request, "a message that is text", error
        )
        return str(error["message"])

    def header(self, name: str) -> str:
        """A header that must be there.

        Raises:
            Broken: it is missing.
        """
        value: str | None = self.headers.get(name)
        if value is None:
            raise ExpectationFailed(self.request, f"the header {name}", "none")
        return value

    @property
    def version(self) -> int:
        """The table's version in the header.

        Raises:
            Broken: it is missing, or no whole number.
        """
        value = self.header(VERSION)
        expect(value.isascii() and value.isdigit(), self.request, f"a whole number in {VERSION}", value)
        return int(value)

    @property
    def capabilities(self) -> dict[str, str]:
        """The capabilities the answer uses, in lower case."""
        pairs = (part.partition("=") for part in self.headers.get(CAPABILITIES, "").lower().split(";"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    def json_object(self) -> dict[str, Any]:
        """The JSON object of the body, whatever the status.

        Raises:
            Broken: it is something else.
        """
        kind = self.headers.get("content-type", "none")
        expect(
            kind.partition(";")[0].strip() == "application/json",
            self.request,
            "content type application/json",
            kind,
        )
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ExpectationFailed(self.request, "a JSON object", self.summary)
        return value


class Client:
    """Sends requests below a profile's endpoint, and fetches files by their URLs."""

    def __init__(self, profile: Profile, timeout_s: float = TIMEOUT_S) -> None:
        self._profile = profile
        self._http = httpx.Client(timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)))
        self._unreachable: dict[str, str] = {}

    @property
    def token(self) -> str:
        return self._profile.bearer_token

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._http.close()

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, object] | bytes | None = None,
        authorization: str | None = PROFILE_CREDENTIAL,
    ) -> Response:
        """Send a request; `path` is taken as it is, below the endpoint."""
        query = "?" + urlencode(params, quote_via=quote) if params else ""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {**({"Content-Type": "application/json; charset=utf-8"} if body is not None else {})}
        if authorization is not None:
            is_ours = authorization == PROFILE_CREDENTIAL
            sent["Authorization"] = f"Bearer {self._profile.bearer_token}" if is_ours else authorization
        sent.update(headers or {})
        request = _describe_request(method, path, params, headers, content)
        return self._send(request, method, self._profile.endpoint + path + query, sent, content)

    def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Response:
        """Fetch a file as clients do: without the token, following redirects."""
        extra = "".join(f" [{name}: {value}]" for name, value in (headers or {}).items())
        return self._send(
            format_value(f"{method} {url}") + extra, method, url, headers or {}, body, follows=True
        )

    def _send(
        self,
        request: str,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes | None,
        *,
        follows: bool = False,
    ) -> Response:
        host = urlsplit(url).netloc
        if host in self._unreachable:
            raise ExpectationFailed(request, "an answer", f"none ({self._unreachable[host]})")
        # A file's bytes are judged as they are stored, so nothing may be packed on the way.
        headers = {"Accept-Encoding": "identity", **headers}
        try:
            response = self._request(method, url, headers, content, follows)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            sentence = f"{type(error).__name__}: {error}"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                # Hundreds of files may be there: nobody wants to wait for each in vain.
                self._unreachable[host] = sentence
            raise ExpectationFailed(request, "an answer", f"none ({sentence})") from error
        return Response(request, response.status_code, response.headers, response.content)

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], content: bytes | None, follows: bool
    ) -> httpx.Response:
        send = partial(
            self._http.request, method, url, headers=headers, content=content, follow_redirects=follows
        )
        try:
            response = send()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # The server may have closed the connection after an earlier answer: not this one's fault.
            response = send()
        for pause_s in PAUSES_S:
            if response.status_code != TOO_MANY_REQUESTS:
                break
            retry_after = response.headers.get("retry-after", "")
            time.sleep(min(int(retry_after), LONGEST_PAUSE_S) if retry_after.isdigit() else pause_s)
            response = send()
        return response


def _describe_request(
    method: str,
    path: str,
    params: Mapping[str, object] | None,
    headers: Mapping[str, str] | None,
    content: bytes | None,
) -> str:
    cut = {name: str(value)[:MAX_PARAMETER_SHOWN] for name, value in (params or {}).items()}
    query = "?" + "&".join(f"{name}={value}" for name, value in cut.items()) if cut else ""
    text = "" if content is None else " " + content.decode("utf-8", "replace")
    extra = "".join(f" [{name}: {value[:MAX_HEADER_SHOWN]}]" for name, value in (headers or {}).items())
    return format_value(f"{method} {path}{query}{text}") + format_value(extra)
