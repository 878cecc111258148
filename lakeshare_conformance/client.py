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
from pydantic.alias_generators import to_camel

from lakeshare_conformance import wire
from lakeshare_conformance.case import DELTA, PARQUET, ExpectationFailed, Located, expect, format_value

# Times for requests: before and after all commits, and one between.
LONG_AGO, NOON, FAR_AHEAD = "1970-01-02T00:00:00Z", "2022-01-01T12:00:00Z", "2999-01-01T00:00:00Z"
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
        access = wire.parse(wire.Access, fields, "the profile", is_secret=True)
    except (OSError, ValueError, ExpectationFailed) as error:
        hint = f"Give a profile file with endpoint and bearerToken ({error})."
        raise BadOption(option, str(path), hint) from error
    return Profile(access.endpoint.rstrip("/"), access.bearer_token, fields)


@dataclass(frozen=True)
class Line(Located):
    """A line of a response: its bytes, its one key, and the object under the key."""

    where: str
    raw: bytes
    kind: str
    value: dict[str, Any]

    def inner(self, key: str, format: str = DELTA) -> dict[str, Any]:
        """The object under a key of delta format; in parquet format the line's own."""
        inner = self.value.get(key) if format == DELTA else self.value
        if not isinstance(inner, dict):
            raise ExpectationFailed(self.where, f"an object {key} under {self.kind}", self.value)
        return inner


@dataclass(frozen=True)
class Response(Located):
    """A response; `where` describes its request in sentences. All methods raise `ExpectationFailed`.

    Its lines are the same in both response formats: `actions` has the files of either.
    """

    where: str
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
        self.expect(self.status in statuses, f"status {' or '.join(map(str, statuses))}", self.summary)
        return self

    def expect_refusal(self) -> Self:
        """Return the response if its status is 4xx, whatever its body."""
        self.expect(self.is_refusal, "a refusal by 4xx", self.summary)
        return self

    def refusal(self, *statuses: int) -> wire.Error:
        """The error in the protocol's shape, of one of these statuses; of any 4xx without."""
        if statuses:
            self.expect_status(*statuses)
        fields = self.expect_refusal().json_object()
        return wire.parse(wire.Error, fields, f"{self.where}, body of the {self.status}")

    def expect_answer_or_refusal(self, *statuses: int) -> bool:
        """Return whether the status is 200; expect an error of one of these otherwise."""
        if self.status != 200:
            self.refusal(*statuses)
        return self.status == 200

    def object(self) -> dict[str, Any]:
        """The JSON object of a 200."""
        return self.expect_status(200).json_object()

    def json_object(self) -> dict[str, Any]:
        """The JSON object of the body, whatever the status."""
        media_type = self.headers.get("content-type", "none")
        is_json = media_type.partition(";")[0].strip() == "application/json"
        self.expect(is_json, "content type application/json", media_type)
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ExpectationFailed(self.where, "a JSON object", self.summary)
        return value

    def header(self, name: str) -> str:
        """The value of a required header."""
        value: str | None = self.headers.get(name)
        if value is None:
            raise ExpectationFailed(self.where, f"the header {name}", "none")
        return value

    def expect_header(self, name: str, value: str) -> None:
        actual = self.header(name)
        self.expect(actual.strip() == value, f"{name}: {value}", actual)

    def expect_media_type(self, media_type: str) -> None:
        """Expect a content type with charset utf-8."""
        actual = self.header("content-type").lower().replace(" ", "")
        self.expect(actual == f"{media_type};charset=utf-8", f"{media_type}; charset=utf-8", actual)

    @property
    def version(self) -> int:
        """The table's version in the header."""
        value = self.header("delta-table-version")
        self.expect(value.isascii() and value.isdigit(), "a whole number in delta-table-version", value)
        return int(value)

    def expect_version(self, version: int) -> Self:
        self.expect_equal(self.version, version, "version")
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
        self.expect(self.format == format, f"{format} format", self.format)
        return self

    def read(self) -> Self:
        """Return the response if it is a 200 whose lines can be parsed."""
        self.expect_status(200).expect(self.lines, "lines", self.summary)
        return self

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines, JSON objects with one key each."""
        return tuple(_parse_lines(self))

    @property
    def kinds(self) -> list[str]:
        return [line.kind for line in self.lines]

    @property
    def head(self) -> tuple[Line, Line]:
        self.expect_head()
        return self.lines[0], self.lines[1]

    def expect_head(self) -> None:
        is_head = self.kinds[:2] == [PROTOCOL, METADATA]
        self.expect(is_head, "the first lines to be protocol, then metaData", self.kinds[:2])

    @cached_property
    def protocol(self) -> wire.Protocol:
        """The protocol line; in delta format Delta's protocol action."""
        line = self.head[0]
        return wire.parse(wire.Protocol, line.inner("deltaProtocol", self.format), line.where)

    @cached_property
    def metadata(self) -> wire.Metadata:
        """The metaData line; in delta format Delta's metaData action."""
        line = self.head[1]
        fields = line.inner("deltaMetadata", self.format)
        return wire.parse(wire.Metadata, fields, f"{line.where}, metaData")

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

    def is_on(self, property: str) -> bool:
        return self.metadata.configuration.get(property) == "true"

    @property
    def later(self) -> tuple[Line, ...]:
        return self.lines[2:]

    def expect_later(self, *kinds: str) -> None:
        """Expect lines of these kinds only after the head."""
        for line in self.later:
            line.expect(line.kind in kinds, f"one of {sorted(kinds)}", line.kind)

    @cached_property
    def actions(self) -> tuple[wire.Action, ...]:
        """The file actions, in their order."""
        return tuple(filter(None, map(self._parse_action, self.lines)))

    def _parse_action(self, line: Line) -> wire.Action | None:
        """The file of a line; None if it is another line."""
        kind, fields = PARQUET_ACTIONS.get(line.kind, ""), line.value
        if self.format == DELTA and line.kind == "file":
            single = line.inner("deltaSingleAction")
            is_one = len(single) == 1 and set(single) <= {"add", "remove", "cdc"}
            line.expect(is_one, "one of add, remove, cdc under deltaSingleAction", single)
            [(kind, inner)] = single.items()
            line.expect(isinstance(inner, dict), f"an object under {kind}", inner)
            outer = {name: line.value.get(name) for name in wire.OUTER_FIELDS}
            fields = {**inner, **outer}
        elif self.format != PARQUET or not kind:
            return None
        fields = {**fields, "where": line.where, "kind": kind}
        return wire.parse(wire.ACTIONS[self.format], fields, line.where)

    @property
    def has_vectors(self) -> bool:
        return any(action.deletion_vector for action in self.actions)

    def expect_actions(self, *kinds: str) -> None:
        """Expect files of these kinds only."""
        found = sorted({action.kind for action in self.actions} - set(kinds))
        self.expect(not found, f"files of the kinds {sorted(kinds)} only", found)

    def expect_fields(self, *names: str) -> None:
        """Expect each file to have these fields, by their names in the model."""
        for action in self.actions:
            missing = [to_camel(name) for name in names if name not in action.model_fields_set]
            action.expect(not missing, " and ".join(map(to_camel, names)), f"none of {missing}")

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(action.id for action in self.actions)

    def expect_ids(self, ids: frozenset[str], what: str) -> None:
        self.expect(self.ids == ids, what, sorted(self.ids ^ ids))

    def expect_files(
        self, actions: Iterable[wire.Action], what: str, pages: Iterable["Response"] | None = None
    ) -> None:
        """Expect the same files with the same kinds and versions, in any order; `pages` together, if given."""
        in_pages = (action for reply in pages or (self,) for action in reply.actions)
        found, wanted = (
            Counter((action.kind, action.key, action.version) for action in some)
            for some in (in_pages, actions)
        )
        actual = f"{found.total()} files; {(wanted - found).total()} are missing"
        self.expect(wanted == found, f"the {wanted.total()} files of {what}", actual)

    @property
    def end(self) -> wire.EndStreamAction:
        """The last line if it is an endStreamAction, else an empty one."""
        is_ended = bool(self.lines) and self.kinds[-1] == END
        return wire.parse(
            wire.EndStreamAction, self.lines[-1].value if is_ended else {}, f"{self.where}, endStreamAction"
        )

    def expect_end(self, is_expected: bool = True) -> None:
        """Expect one endStreamAction as the last line, or none at all."""
        count, wanted = self.kinds.count(END), "endStreamAction as last line" if is_expected else f"no {END}"
        is_fit = count == 1 and self.kinds[-1] == END if is_expected else count == 0
        self.expect(is_fit, wanted, self.kinds[-3:])


def _parse_lines(response: Response) -> Iterator[Line]:
    for number, raw in enumerate(response.body.rstrip(b"\n").split(b"\n"), 1):
        where = f"{response.where}, line {number}"
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise ExpectationFailed(where, "a JSON object", raw[:200].decode("utf-8", "replace")) from error
        if not isinstance(value, dict) or len(value) != 1:
            raise ExpectationFailed(where, "an object with one key", value)
        [(kind, inner)] = value.items()
        expect(isinstance(inner, dict), where, f"an object under {kind}", inner)
        yield Line(where, raw, kind, inner)


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
        capabilities: str | None = None,
        authorization: str | None = PROFILE_CREDENTIAL,
    ) -> Response:
        """Send a request; `path` is appended to the endpoint as it is, `capabilities` are announced in the header."""
        headers = {**({} if capabilities is None else {CAPABILITIES: capabilities}), **(headers or {})}
        query = "?" + urlencode(params, quote_via=quote) if params else ""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {} if body is None else {"Content-Type": "application/json; charset=utf-8"}
        if authorization is not None:
            is_own = authorization == PROFILE_CREDENTIAL
            sent["Authorization"] = f"Bearer {self.token}" if is_own else authorization
        shown = "&".join(f"{name}={value!s:.{MAX_SHOWN}}" for name, value in (params or {}).items())
        text = "" if content is None else " " + content.decode("utf-8", "replace")
        where = format_value(f"{method} {path}{'?' if shown else ''}{shown}{text}") + _show(headers)
        url = self._profile.endpoint + path + query
        return self._send(where, url, method, headers={**sent, **headers}, content=content)

    def get(self, path: str, **params: object) -> Response:
        return self.ask("GET", path, params=params)

    def fetch(
        self,
        url: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Response:
        """Fetch a file as clients do: without the token, following redirects."""
        where, headers = format_value(f"{method} {url}") + _show(headers), headers or {}
        return self._send(where, url, method, headers=headers, content=body, follow_redirects=True)

    def fetch_whole(self, url: str) -> Response:
        """Fetch a file; fails unless the status is 200."""
        return self.fetch(url).expect_status(200)

    def _send(self, where: str, url: str, method: str, **options: Any) -> Response:
        host = urlsplit(url).netloc
        if host in self._unreachable:
            raise ExpectationFailed(where, "an answer", f"none ({self._unreachable[host]})")
        try:
            response = self._request(url, method, **options)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
            if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                # Further requests to the host fail at once: a run may have hundreds of them.
                self._unreachable[host] = cause
            raise ExpectationFailed(where, "an answer", f"none ({cause})") from error
        return Response(where, response.status_code, response.headers, response.content)

    def _request(self, url: str, method: str, **options: Any) -> httpx.Response:
        try:
            response = self._http.request(method, url, **options)
        except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
            # The server may have closed the connection after an earlier response.
            response = self._http.request(method, url, **options)
        for pause_s in PAUSES_S:
            if response.status_code != TOO_MANY_REQUESTS:
                break
            retry_after = response.headers.get("retry-after", "")
            time.sleep(min(int(retry_after), MAX_PAUSE_S) if retry_after.isdigit() else pause_s)
            response = self._http.request(method, url, **options)
        return response


def _show(headers: Mapping[str, str] | None) -> str:
    shown = (f" [{name}: {value:.{MAX_SHOWN}}]" for name, value in (headers or {}).items())
    return format_value("".join(shown))
