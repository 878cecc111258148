"""Ways to break an answer: where, and what is changed there."""

import json
import re
from collections.abc import Callable
from typing import Any

from tests.fakes.model_requests import Reply, Request

Change = Callable[[Reply], None]
Defect = Callable[[Request, Reply], None]
When = Callable[[Request], bool]
Json = dict[str, Any]
# What a file is changed by: what stands under the line's key, and where the size stands.
InFile = Callable[[Json, Json], object]
# A defect of a case, by the name of that case.
Named = tuple[str, Defect]

TABLE = "/shares/[^/]+/schemas/[^/]+/tables/[^/]+"
SCHEMA_TABLES = "/shares/[^/]+/schemas/[^/]+/tables"
LISTING = f"(/shares|/shares/[^/]+/schemas|/shares/[^/]+/all-tables|{SCHEMA_TABLES})"
VERSION, METADATA, QUERY, CHANGES = (
    f"{TABLE}/{call}" for call in ("version", "metadata", "query", "changes")
)
POLL = f"{TABLE}/queries/[^/]+"
READS = f"({METADATA}|{QUERY}|{CHANGES}|{POLL})"
DATA = "/data/.*"
CAPABILITIES = "delta-sharing-capabilities"


def at(path: str, *changes: Change, method: str = "GET|POST|HEAD", when: When | None = None) -> Defect:
    """Change the answers to requests for a path, a regular expression."""

    def defect(request: Request, reply: Reply) -> None:
        is_there = re.fullmatch(path, request.path) is not None and request.method in method.split("|")
        if is_there and (when is None or when(request)):
            for change in changes:
                change(reply)

    return defect


def asked(*names: str) -> When:
    """Requests that give one of these fields or parameters."""

    def when(request: Request) -> bool:
        return any(name in request.params or name in body(request) for name in names)

    return when


# A window of versions; a page but the first; an answer given again with fresh URLs.
in_window = asked("startingVersion")
later_page = asked("pageToken")
refreshing = asked("refreshToken")


def given(name: str, value: object) -> When:
    """Requests that give a field this very value."""
    return lambda request: body(request).get(name) == value


def announced(text: str) -> When:
    """Requests of clients that announce this, in any case."""
    return lambda request: text in request.headers.get(CAPABILITIES, "").lower()


is_async = announced("asyncquery=true")


def plainly(request: Request) -> bool:
    """Requests that ask for nothing in particular."""
    return not request.params and not body(request)


def body(request: Request) -> Json:
    """The object in a request's body, empty if there is none."""
    try:
        found = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def answer(status: int = 200, content: bytes = b"") -> Change:
    """Answer this instead."""

    def change(reply: Reply) -> None:
        reply.status, reply.body = status, content

    return change


def header(name: str, value: str | None) -> Change:
    """Set a header of good answers, or take it away."""

    def change(reply: Reply) -> None:
        if reply.status < 300:
            reply.headers.pop(name, None)
            if value is not None:
                reply.headers[name] = value

    return change


def content(edit: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of good answers."""

    def change(reply: Reply) -> None:
        if reply.status < 300:
            reply.body = edit(reply.body)

    return change


def anything(edit: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of all answers, refusals too."""

    def change(reply: Reply) -> None:
        reply.body = edit(reply.body)

    return change


def sentence(text: str) -> Change:
    """Say this in all refusals."""

    def change(reply: Reply) -> None:
        if reply.status >= 400:
            reply.body = json.dumps({"errorCode": "X", "message": text}).encode()

    return change


def page(edit: Callable[[Json], object]) -> Change:
    """Change the object of a good answer."""

    def change(reply: Reply) -> None:
        if reply.status == 200:
            found = json.loads(reply.body)
            edit(found)
            reply.body = json.dumps(found).encode()

    return change


def items(edit: Callable[[Json], object]) -> Change:
    """Change each item of a listing."""
    return page(lambda found: [edit(item) for item in found["items"]])


def lines(edit: Callable[[list[Json]], list[Json]]) -> Change:
    """Change the lines of a good answer."""

    def change(reply: Reply) -> None:
        if reply.status == 200 and reply.body:
            found = edit([json.loads(line) for line in reply.body.splitlines()])
            reply.body = b"".join(json.dumps(line).encode() + b"\n" for line in found)

    return change


def each(kind: str, edit: Callable[[Json], object]) -> Change:
    """Change what stands under the lines of a kind."""

    def edited(found: list[Json]) -> list[Json]:
        for line in found:
            if kind in line:
                edit(line[kind])
        return found

    return lines(edited)


def metadata(edit: Callable[[Json], object]) -> Change:
    """Change Delta's metaData, in either format."""
    return each("metaData", lambda outer: edit(outer.get("deltaMetadata", outer)))


def in_schema(old: str, new: str) -> Callable[[Json], None]:
    """Replace a text in the schema."""
    return lambda found: found.update(schemaString=found["schemaString"].replace(old, new))


def protocol(edit: Callable[[Json], object]) -> Change:
    """Change Delta's protocol in delta format."""
    return each("protocol", lambda outer: edit(outer["deltaProtocol"]) if "deltaProtocol" in outer else None)


def files(edit: InFile, only: str = "add|remove|cdc|cdf|file") -> Change:
    """Change files: what stands under the line's key, and where the size stands."""

    def edited(found: list[Json]) -> list[Json]:
        for line in found:
            [(kind, outer)] = line.items()
            single = outer.get("deltaSingleAction")
            if single is not None:
                [(kind, inner)] = single.items()
            else:
                inner = outer
            if kind in only.split("|") and kind not in ("protocol", "metaData", "endStreamAction"):
                edit(outer, inner)
        return found

    return lines(edited)


def stats(edit: Callable[[Json], object]) -> InFile:
    """Change a file's statistics."""

    def edited(_: Json, inner: Json) -> None:
        if "stats" in inner:
            found = json.loads(inner["stats"])
            edit(found)
            inner["stats"] = json.dumps(found)

    return edited


def vector(edit: Callable[[Json], object], kinds: str = "pui") -> InFile:
    """Change a file's deletion vector if it is stored in one of these ways: at a path or URL, or inline."""

    def edited(_: Json, inner: Json) -> None:
        if "deletionVector" in inner and inner["deletionVector"]["storageType"] in kinds:
            edit(inner["deletionVector"])

    return edited


def is_file(line: Json) -> bool:
    return bool({"file", "add", "remove", "cdf"} & set(line))


def without_files(count: int = 1) -> Change:
    """Leave out the first files."""

    def edited(found: list[Json]) -> list[Json]:
        lost = [line for line in found if is_file(line)][:count]
        return [line for line in found if line not in lost]

    return lines(edited)


def without(kind: str) -> Callable[[list[Json]], list[Json]]:
    """Leave out the lines of a kind behind the head."""
    return lambda found: [*found[:2], *(line for line in found[2:] if kind not in line)]


def with_end(found: list[Json]) -> list[Json]:
    """Add an end that says nothing."""
    return [*found, {"endStreamAction": {}}]


def twice(found: list[Json]) -> list[Json]:
    """Send all files two times."""
    return [*found[:2], *(line for line in found[2:] if is_file(line)), *found[2:]]


def put(**values: Any) -> Callable[[Json], None]:
    """Set fields of an object."""
    return lambda found: found.update(values)


def drop(*names: str) -> Callable[[Json], None]:
    """Take fields away from an object."""

    def edit(found: Json) -> None:
        for name in names:
            found.pop(name, None)

    return edit
