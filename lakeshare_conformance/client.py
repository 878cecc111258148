"""HTTP requests as clients send them, and responses with the expectations that the cases share.

A transport failure is a failed expectation of the request.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

import httpx

from lakeshare_conformance import wire
from lakeshare_conformance.case import DELTA, PARQUET, ExpectationFailed, expect, format_value

CAPABILITIES = "delta-sharing-capabilities"
TIMEOUT_S, CONNECT_TIMEOUT_S = 60, 10
TOO_MANY_REQUESTS = 429
PAUSES_S, MAX_PAUSE_S = (0.5, 1, 2, 4, 8, 16), 60
MAX_SHOWN = 40
PROFILE_CREDENTIAL = "the profile's token"
PROTOCOL, METADATA, END = "protocol", "metaData", "endStreamAction"
PARQUET_ACTIONS = {"file": "add", "add": "add", "remove": "remove", "cdf": "cdc"}


class ConformanceError(Exception):
    """A run of the suite cannot begin; the text names the cause and the remedy."""


class BadOption(ConformanceError):
    """An option of the command has a value that cannot be used."""

    def __init__(self, option: str, value: object, hint: str) -> None:
        super().__init__(f"{option}: {value!r} cannot be used. {hint}")


class Unreachable(ConformanceError):
    """The server under test does not respond."""


@dataclass(frozen=True)
class Profile:
    """A profile file: endpoint, token, and all fields of the file."""

    endpoint: str
    bearer_token: str
    fields: dict[str, Any]


def read_profile(path: Path, option: str = "PROFILE") -> Profile:
    """Read a profile with a bearer token; raises BadOption, which names it by `option`, if it is none."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadOption(option, str(path), f"Give a profile file ({type(error).__name__}).") from error
    if not isinstance(fields, dict):
        raise BadOption(option, str(path), "A profile is a JSON object.")
    for name in ("endpoint", "bearerToken"):
        if not isinstance(fields.get(name), str) or not fields[name]:
            hint = f"The suite needs a profile with endpoint and bearerToken; {name} is missing."
            raise BadOption(option, str(path), hint)
    return Profile(fields["endpoint"].rstrip("/"), fields["bearerToken"], fields)


@dataclass(frozen=True)
class Response:
    """A response; `request` describes its request in sentences. All methods raise `ExpectationFailed`."""

    request: str
    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def summary(self) -> str:
        """Status and beginning of the body."""
        return f"{self.status} {self.body[:300].decode('utf-8', 'replace')}".strip()

    @property
    def is_refusal(self) -> bool:
        return 400 <= self.status < 500

    def expect_status(self, *statuses: int) -> Self:
        """Return the response if its status is one of these."""
        wanted = f"status {' or '.join(map(str, statuses))}"
        expect(self.status in statuses, self.request, wanted, self.summary)
        return self

    def expect_refusal(self) -> Self:
        """Return the response if its status is 4xx, whatever its body."""
        expect(self.is_refusal, self.request, "a refusal by 4xx", self.summary)
        return self

    def refusal(self, *statuses: int) -> wire.Error:
        """The error in the protocol's shape, of one of these statuses; of any 4xx without."""
        if statuses:
            self.expect_status(*statuses)
        where = f"{self.request}, body of the {self.status}"
        return wire.parse(wire.Error, self.expect_refusal().json_object(), where)

    def object(self) -> dict[str, Any]:
        """The JSON object of a 200."""
        return self.expect_status(200).json_object()

    def json_object(self) -> dict[str, Any]:
        """The JSON object of the body, whatever the status."""
        media_type = self.headers.get("content-type", "none")
        is_json = media_type.partition(";")[0].strip() == "application/json"
        expect(is_json, self.request, "content type application/json", media_type)
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ExpectationFailed(self.request, "a JSON object", self.summary)
        return value

    def header(self, name: str) -> str:
        """The value of a required header."""
        value: str | None = self.headers.get(name)
        if value is None:
            raise ExpectationFailed(self.request, f"the header {name}", "none")
        return value

    def expect_header(self, name: str, value: str) -> None:
        actual = self.header(name)
        expect(actual.strip() == value, self.request, f"{name}: {value}", actual)

    def expect_media_type(self, media_type: str) -> None:
        """Expect a content type with charset utf-8."""
        actual = self.header("content-type").lower().replace(" ", "")
        wanted = f"{media_type}; charset=utf-8"
        expect(actual == wanted.replace(" ", ""), self.request, wanted, actual)

    @property
    def version(self) -> int:
        """The table's version in the header."""
        value = self.header("delta-table-version")
        is_version = value.isascii() and value.isdigit()
        expect(is_version, self.request, "a whole number in delta-table-version", value)
        return int(value)

    def expect_version(self, version: int) -> Self:
        expect(self.version == version, self.request, f"version {version}", self.version)
        return self

    @property
    def capabilities(self) -> dict[str, str]:
        """The capabilities in the header, in lower case."""
        pairs = (part.partition("=") for part in self.headers.get(CAPABILITIES, "").lower().split(";"))
        return {key.strip(): value.strip() for key, _, value in pairs}

    @property
    def format(self) -> str:
        """The response format in the header; parquet without."""
        return self.capabilities.get("responseformat") or PARQUET

    def expect_format(self, format: str) -> Self:
        expect(self.format == format, self.request, f"{format} format", self.format)
        return self


@dataclass(frozen=True)
class Line:
    """A line of a response: its bytes, its one key, and the object under the key."""

    where: str
    raw: bytes
    kind: str
    value: dict[str, Any]


class Reply:
    """The lines of a 200; its file actions in the same terms for both response formats."""

    def __init__(self, response: Response) -> None:
        """Parse the lines; raises ExpectationFailed unless the response is a 200 of JSON objects with one key each."""
        self.response = response.expect_status(200)
        self.where, self.format = response.request, response.format
        self.lines = tuple(_parse_lines(response))
        self.kinds = [line.kind for line in self.lines]

    @property
    def version(self) -> int:
        return self.response.version

    def expect_version(self, version: int) -> None:
        self.response.expect_version(version)

    @property
    def head(self) -> tuple[Line, Line]:
        """The first two lines."""
        self.expect_head()
        return self.lines[0], self.lines[1]

    def expect_head(self) -> None:
        is_head = self.kinds[:2] == [PROTOCOL, METADATA]
        expect(is_head, self.where, "the first lines to be protocol, then metaData", self.kinds[:2])

    @cached_property
    def protocol(self) -> wire.Protocol:
        """The protocol line; in delta format Delta's protocol action."""
        line = self.head[0]
        value = _get_inner(line, "deltaProtocol") if self.format == DELTA else line.value
        return wire.parse(wire.Protocol, value, line.where)

    @cached_property
    def metadata(self) -> wire.Metadata:
        """The metaData line; in delta format Delta's metaData action."""
        line = self.head[1]
        value = _get_inner(line, "deltaMetadata") if self.format == DELTA else line.value
        return wire.parse(wire.Metadata, value, f"{line.where}, metaData")

    @cached_property
    def shared(self) -> wire.SharedMetadata:
        """Version, size and number of files in the metaData line."""
        return wire.parse(wire.SharedMetadata, self.head[1].value, f"{self.head[1].where}, metaData")

    @cached_property
    def columns(self) -> list[wire.Column]:
        where, what = f"{self.where}, schemaString", "JSON of a struct type with fields"
        return wire.parse_json(wire.Struct, self.metadata.schema_string, where, what).fields_

    @property
    def is_mapped(self) -> bool:
        """Whether columns have other names in files than in the table."""
        mode = self.metadata.configuration.get("delta.columnMapping.mode", "none")
        return self.format == DELTA and mode != "none"

    @property
    def is_change_data_feed_on(self) -> bool:
        return self.metadata.configuration.get("delta.enableChangeDataFeed") == "true"

    @property
    def later(self) -> tuple[Line, ...]:
        """The lines after the head."""
        return self.lines[2:]

    def expect_later(self, *kinds: str) -> None:
        """Expect lines of these kinds only after the head."""
        for line in self.later:
            expect(line.kind in kinds, line.where, f"one of {sorted(kinds)}", line.kind)

    @cached_property
    def actions(self) -> tuple[wire.Action, ...]:
        """The file actions, in their order."""
        found = []
        for line in self.lines:
            if self.format == PARQUET and line.kind in PARQUET_ACTIONS:
                kind, inner = PARQUET_ACTIONS[line.kind], line.value
            elif self.format == DELTA and line.kind == "file":
                single = _get_inner(line, "deltaSingleAction")
                is_one = len(single) == 1 and set(single) <= {"add", "remove", "cdc"}
                expect(is_one, line.where, "one of add, remove, cdc under deltaSingleAction", single)
                [(kind, inner)] = single.items()
                expect(isinstance(inner, dict), line.where, f"an object under {kind}", inner)
            else:
                continue
            found.append(wire.parse_action(self.format, kind, line.value, inner, line.where))
        return tuple(found)

    def expect_actions(self, *kinds: str) -> None:
        """Expect files of these kinds only."""
        found = sorted({action.kind for action in self.actions} - set(kinds))
        expect(not found, self.where, f"files of the kinds {sorted(kinds)} only", found)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(action.id for action in self.actions)

    def expect_ids(self, ids: frozenset[str], what: str) -> None:
        expect(self.ids == ids, self.where, what, sorted(self.ids ^ ids))

    def expect_files(
        self, actions: Iterable[wire.Action], what: str, pages: Iterable["Reply"] | None = None
    ) -> None:
        """Expect the same files with the same kinds and versions, in any order; `pages` together, if given."""
        in_pages = (action for reply in pages or (self,) for action in reply.actions)
        found, wanted = (
            Counter((action.kind, action.key, action.version) for action in some)
            for some in (in_pages, actions)
        )
        actual = f"{found.total()} files; {(wanted - found).total()} are missing"
        expect(wanted == found, self.where, f"the {wanted.total()} files of {what}", actual)

    @property
    def end(self) -> wire.EndStreamAction | None:
        """The last line if it is an endStreamAction."""
        if not self.lines or self.kinds[-1] != END:
            return None
        return wire.parse(wire.EndStreamAction, self.lines[-1].value, f"{self.where}, endStreamAction")

    @property
    def next_page_token(self) -> str:
        return self.end.next_page_token if self.end else ""

    @property
    def refresh_token(self) -> str:
        return self.end.refresh_token if self.end else ""

    def expect_end(self, is_expected: bool = True) -> None:
        """Expect one endStreamAction as the last line, or none at all."""
        count, wanted = self.kinds.count(END), "endStreamAction as last line" if is_expected else f"no {END}"
        is_fit = count == 1 and self.kinds[-1] == END if is_expected else count == 0
        expect(is_fit, self.where, wanted, self.kinds[-3:])


def _parse_lines(response: Response) -> Iterator[Line]:
    for number, raw in enumerate(response.body.rstrip(b"\n").split(b"\n"), 1):
        where = f"{response.request}, line {number}"
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise ExpectationFailed(where, "a JSON object", raw[:200].decode("utf-8", "replace")) from error
        if not isinstance(value, dict) or len(value) != 1:
            raise ExpectationFailed(where, "an object with one key", value)
        [(kind, inner)] = value.items()
        expect(isinstance(inner, dict), where, f"an object under {kind}", inner)
        yield Line(where, raw, kind, inner)


def _get_inner(line: Line, key: str) -> dict[str, Any]:
    inner = line.value.get(key)
    if not isinstance(inner, dict):
        raise ExpectationFailed(line.where, f"an object {key} under {line.kind}", line.value)
    return inner


class Client:
    """Sends requests below a profile's endpoint, and fetches files by their URLs."""

    def __init__(self, profile: Profile, timeout_s: float = TIMEOUT_S) -> None:
        self._profile = profile
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S))
        # The bytes of a file are compared as they are stored, so they must not be compressed.
        self._http = httpx.Client(timeout=timeout, headers={"Accept-Encoding": "identity"})
        self._unreachable: dict[str, str] = {}

    @property
    def token(self) -> str:
        return self._profile.bearer_token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Send a request; `path` is appended to the endpoint as it is."""
        query = "?" + urlencode(params, quote_via=quote) if params else ""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {} if body is None else {"Content-Type": "application/json; charset=utf-8"}
        if authorization is not None:
            is_own = authorization == PROFILE_CREDENTIAL
            sent["Authorization"] = f"Bearer {self.token}" if is_own else authorization
        shown = "&".join(f"{name}={value!s:.{MAX_SHOWN}}" for name, value in (params or {}).items())
        text = "" if content is None else " " + content.decode("utf-8", "replace")
        request = format_value(f"{method} {path}{'?' if shown else ''}{shown}{text}") + _show(headers)
        url = self._profile.endpoint + path + query
        return self._send(request, url, method, headers={**sent, **(headers or {})}, content=content)

    def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Response:
        """Fetch a file as clients do: without the token, following redirects."""
        request = format_value(f"{method} {url}") + _show(headers)
        headers = headers or {}
        return self._send(request, url, method, headers=headers, content=body, follow_redirects=True)

    def _send(self, request: str, url: str, method: str, **options: Any) -> Response:
        host = urlsplit(url).netloc
        if host in self._unreachable:
            raise ExpectationFailed(request, "an answer", f"none ({self._unreachable[host]})")
        try:
            response = self._request(url, method, **options)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                # Further requests to the host fail at once: a run may have hundreds of them.
                self._unreachable[host] = cause
            raise ExpectationFailed(request, "an answer", f"none ({cause})") from error
        return Response(request, response.status_code, response.headers, response.content)

    def _request(self, url: str, method: str, **options: Any) -> httpx.Response:
        def send() -> httpx.Response:
            return self._http.request(method, url, **options)

        try:
            response = send()
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # The server may have closed the connection after an earlier response.
            response = send()
        for pause_s in PAUSES_S:
            if response.status_code != TOO_MANY_REQUESTS:
                break
            retry_after = response.headers.get("retry-after", "")
            time.sleep(min(int(retry_after), MAX_PAUSE_S) if retry_after.isdigit() else pause_s)
            response = send()
        return response


def _show(headers: Mapping[str, str] | None) -> str:
    shown = (f" [{name}: {value:.{MAX_SHOWN}}]" for name, value in (headers or {}).items())
    return format_value("".join(shown))
