"""Requests in the name of a recipient, by the routes that answer its own, and what their responses contain."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from lakeshare_server.app import create_app
from lakeshare_server.errors import BadRequest, LakeshareError
from lakeshare_server.pages.portal import API as PORTAL_API
from lakeshare_server.protocol.lines import HEADER
from lakeshare_server.routes.context import eyes, seen_as
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.serveability import CLIENTS

EVERYTHING = "everything"
"""The client that reads both formats and every feature that some client reads."""
HERE = "http://lakeshare"


class Refused(LakeshareError):
    """The recipient is refused, with these words."""

    def __init__(self, recipient: str, answer: httpx.Response) -> None:
        try:
            said = answer.json()
            text = f"{said['errorCode']}: {said['message']}"
        except (ValueError, KeyError, TypeError):
            text = answer.text
        super().__init__(f"{recipient} gets {answer.status_code} {text}")
        self.status = answer.status_code


@dataclass(frozen=True)
class Eyes:
    """Asks as a recipient that reads with one of the known clients."""

    recipient: str
    client: httpx.AsyncClient
    capabilities: str

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """What a GET below the protocol's root is answered with.

        Raises:
            Refused: it is no success.
        """
        asked = {name: value for name, value in query.items() if value is not None}
        return self._let_in(await self.client.get(path, params=asked, headers={HEADER: self.capabilities}))

    async def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """What a POST is answered with.

        Raises:
            Refused: it is no success.
        """
        asked = {name: value for name, value in body.items() if value is not None}
        return self._let_in(await self.client.post(path, json=asked, headers={HEADER: self.capabilities}))

    async def in_portal(self, path: str, **query: Any) -> dict[str, Any]:
        """What the recipient's portal is told of a path below the protocol's root.

        Raises:
            Refused: it is told no.
        """
        url = self.client.base_url.join(f"{PORTAL_API}/{path}")
        asked = {name: value for name, value in query.items() if value is not None}
        told: dict[str, Any] = self._let_in(await self.client.get(url, params=asked)).json()
        return told

    async def items(self, path: str) -> list[dict[str, Any]]:
        """All items of a listing, from all of its pages."""
        found: list[dict[str, Any]] = []
        token = None
        while True:
            page = (await self.get(path, pageToken=token)).json()
            found += page.get("items", ())
            token = page.get("nextPageToken")
            if not token:
                return found

    def _let_in(self, answer: httpx.Response) -> httpx.Response:
        if not answer.is_success:
            raise Refused(self.recipient, answer)
        return answer


@asynccontextmanager
async def looking_as(
    settings: ServerSettings, recipient: str, by: str, reads_with: str
) -> AsyncIterator[Eyes]:
    """The server of these settings, without a network, seen as a recipient; its audit rows are written at the end.

    Raises:
        BadRequest: no client is called `reads_with`.
        NotFound, Unauthenticated: there is no such recipient, or it is let in nowhere.
    """
    capabilities = capabilities_of(reads_with)
    app = create_app(settings)
    lifespan = app.router.lifespan_context(app)
    await lifespan.__aenter__()
    try:
        seen = seen_as(app.state.parts.catalog, recipient, by)
        # Where the server is to recipients does not matter: nothing leaves the process.
        async with eyes(app, seen, HERE + settings.endpoint.rstrip("/")) as client:
            yield Eyes(seen.reader.name, client, capabilities)
    finally:
        # As a server ends, whatever a request came to: what the log was told last is written now.
        await lifespan.__aexit__(None, None, None)


def capabilities_of(reads_with: str) -> str:
    """The capabilities that a client announces.

    Raises:
        BadRequest: there is no such client.
    """
    known = {client.id: (client.response_format, client.features) for client in CLIENTS}
    known[EVERYTHING] = ("delta,parquet", frozenset().union(*(features for _, features in known.values())))
    if reads_with not in known:
        raise BadRequest("--client", reads_with, f"Known are: {', '.join(known)}.")
    formats, features = known[reads_with]
    return f"responseformat={formats};readerfeatures={','.join(sorted(features))}"


def path_of(table: str) -> str:
    """The path of `share.schema.table` below the protocol's root.

    Raises:
        BadRequest: it is not written so.
    """
    names = table.split(".")
    if len(names) != 3 or not all(names):
        raise BadRequest("TABLE", table, "Give share.schema.table, as the recipient writes it.")
    share, schema, name = (quote(one, safe="") for one in names)
    return f"shares/{share}/schemas/{schema}/tables/{name}"


KINDS = ("add", "cdf", "cdc", "remove")


@dataclass(frozen=True)
class ToldFile:
    """A file that an answer names; rows and version only where the line tells them."""

    kind: str
    size_bytes: int
    rows: int | None
    version: int | None
    url: str
    partition_values: dict[str, str | None]


@dataclass(frozen=True)
class Figures:
    """What files sum up to."""

    files: int
    size_bytes: int
    rows: int | None


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a table's answer."""
    return [json.loads(line) for line in answer.text.splitlines()]


def metadata_of(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first metadata line's content, the same in both formats: schema and partition columns beside the sizes."""
    told = next(line["metaData"] for line in lines if "metaData" in line)
    return {**told.get("deltaMetadata", {}), **told}


def files_of(lines: Iterable[dict[str, Any]]) -> Iterator[ToldFile]:
    """The files, in the order they are told."""
    for line in lines:
        if "file" in line and "deltaSingleAction" in line["file"]:
            told = line["file"]
            for kind, action in told["deltaSingleAction"].items():
                if kind in KINDS:
                    yield _file(kind, action, action["path"], told.get("version"))
        elif "file" in line:
            yield _file("add", line["file"], line["file"]["url"], line["file"].get("version"))
        else:
            for kind in KINDS:
                if kind in line:
                    yield _file(kind, line[kind], line[kind]["url"], line[kind].get("version"))


def figures(files: Iterable[ToldFile]) -> Figures:
    """Number, bytes and rows of files; no rows where one of them does not tell."""
    count, size_bytes = 0, 0
    rows: int | None = 0
    for one in files:
        count, size_bytes = count + 1, size_bytes + one.size_bytes
        rows = None if rows is None or one.rows is None else rows + one.rows
    return Figures(count, size_bytes, rows)


def _file(kind: str, told: dict[str, Any], url: str, version: int | None) -> ToldFile:
    rows = json.loads(told["stats"]).get("numRecords") if told.get("stats") else None
    vector = told.get("deletionVector") or {}
    return ToldFile(
        kind="cdf" if kind == "cdc" else kind,
        size_bytes=int(told.get("size") or 0),
        rows=None if rows is None else rows - int(vector.get("cardinality") or 0),
        version=version,
        url=url,
        partition_values=told.get("partitionValues") or {},
    )
