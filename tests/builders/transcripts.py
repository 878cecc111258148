"""Requests and responses as text that is the same in every run: what is random or of this moment has a placeholder."""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

# Other headers are of the connection, or the same in every response.
LEFT_OUT = frozenset({"date", "content-length", "connection", "keep-alive"})
MESSAGES = ("message", "error_description")
UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
SEALED = re.compile(r"(?<![\w-])(?![0-9a-f]{64}(?![\w-]))[A-Za-z0-9_-]{43,}(?![\w-])")
MILLISECONDS = re.compile(r"(?<![\w.])1[0-9]{12}(?!\w)")
MOMENT = re.compile(r"\b20\d\d-\d\d-\d\d(?:[T ]| at )\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00| UTC)?")
REQUEST_ID = re.compile(r"\b[0-9a-f]{32}\b")
SIGNATURE = re.compile(r"(?<=X-Amz-Signature=)[0-9a-f]{64}")


@dataclass
class Normaliser:
    """Replaces what differs from run to run; equal values get equal placeholders."""

    places: dict[str, str]
    began_s: float = field(default_factory=lambda: time.time() - 60)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)

    def know(self, path: Path, name: str) -> None:
        """Name the ids of the file at a path: digests of it, absolute or below any folder."""
        spellings = [
            path.as_uri(),
            str(path),
            *("/".join(path.parts[at:]) for at in range(1, len(path.parts))),
        ]
        for digest in (hashlib.md5, hashlib.sha256):
            for spelling in spellings:
                self.places[digest(spelling.encode()).hexdigest()] = f"<{digest().name} of {name}>"

    def __call__(self, text: str) -> str:
        for value in sorted(self.places, key=len, reverse=True):
            text = text.replace(value, self.places[value])
        text = SIGNATURE.sub("<signature>", text)
        text = UUID.sub(lambda found: self._numbered("uuid", found[0]), text)
        text = SEALED.sub(lambda found: self._numbered("sealed", found[0]), text)
        text = MILLISECONDS.sub(self._milliseconds, text)
        return MOMENT.sub(self._moment, text)

    def _numbered(self, kind: str, value: str) -> str:
        # Ids that a test has written into a table are the same in every run.
        if len(set(value)) <= 3:
            return value
        known = self.seen.setdefault(kind, {})
        return known.setdefault(value, f"<{kind} {len(known) + 1}>")

    def _milliseconds(self, found: re.Match[str]) -> str:
        # Later than any table of a test was written: a time of this run, or one that follows from it.
        return "<ms>" if int(found[0]) / 1000 > self.began_s else found[0]

    def _moment(self, found: re.Match[str]) -> str:
        return "<time>" if found[0][:4] >= time.strftime("%Y", time.gmtime(self.began_s)) else found[0]


@dataclass
class Transcript:
    """Writes down what a client sends and gets."""

    client: httpx.Client
    normalise: Normaliser
    lines: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def title(self, text: str) -> None:
        """Begin a part."""
        self.lines += ["", f"## {text}"]

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        client: httpx.Client | None = None,
        shows_body: bool = True,
    ) -> httpx.Response:
        """Send a request; a body that is no bytes is sent as JSON."""
        given = {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        response = (client or self.client).request(method, path, headers=dict(headers or {}), **given)
        request = f"{method} {self.normalise(path)}"
        self.lines += ["", request]
        self.lines += [
            f"> {name}: {self.normalise(value)}" for name, value in sorted((headers or {}).items())
        ]
        if body is not None:
            self.lines.append(
                f"> {self.normalise(body.decode() if isinstance(body, bytes) else json.dumps(body))}"
            )
        self.lines.append(str(response.status_code))
        for name, value in sorted(response.headers.items()):
            if name not in LEFT_OUT:
                # Methods are in any order.
                value = ", ".join(sorted(value.split(", "))) if name == "allow" else value
                told = REQUEST_ID.sub("<request id>", self.normalise(value))
                self.lines.append(f"< {name}: {told}")
        if shows_body and response.content:
            self.lines += self._body(response, request)
        return response

    def _body(self, response: httpx.Response, request: str) -> list[str]:
        if "json" not in response.headers.get("content-type", ""):
            return [self.normalise(response.text)]
        lines = response.text.splitlines()
        values = [json.loads(line) for line in lines]
        for line, value in zip(lines, values, strict=True):
            assert json.dumps(value, separators=(",", ":"), ensure_ascii=False) == line, (
                "JSON is sent compact"
            )
        indent = None if "ndjson" in response.headers["content-type"] else 2
        return [
            self.normalise(
                json.dumps(self._without_messages(one, request), indent=indent, ensure_ascii=False)
            )
            for one in values
        ]

    def _without_messages(self, value: Any, request: str) -> Any:
        """Messages have a file of their own: their wording may improve."""
        if isinstance(value, list):
            return [self._without_messages(one, request) for one in value]
        if not isinstance(value, dict):
            return value
        for name in MESSAGES:
            if isinstance(value.get(name), str):
                told = REQUEST_ID.sub("<request id>", self.normalise(value[name]))
                self.messages.append(f"{request}\n  {told}")
        return {
            name: "<message>"
            if name in MESSAGES and isinstance(one, str)
            else self._without_messages(one, request)
            for name, one in value.items()
        }

    def text(self) -> str:
        """All of it, without the messages of errors."""
        return "\n".join(self.lines).strip()
