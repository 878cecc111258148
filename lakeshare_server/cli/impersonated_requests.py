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
from lakeshare_server.routes.context import impersonating_client, make_impersonation
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.serveability import CLIENTS

ALL_CAPABILITIES = "everything"
"""The client that reads both formats and every feature that some client reads."""
LOCAL_URL = "http://lakeshare"


class AccessRefused(LakeshareError):
    """The recipient is refused, with these words."""

    def __init__(self, recipient: str, answer: httpx.Response) -> None:
        try:
            body = answer.json()
            text = f"{body['errorCode']}: {body['message']}"
        except (ValueError, KeyError, TypeError):
            text = answer.text
        super().__init__(f"{recipient} gets {answer.status_code} {text}")
        self.status = answer.status_code


@dataclass(frozen=True)
class ImpersonatingClient:
    """Asks as a recipient that reads with one of the known clients."""

    recipient: str
    client: httpx.AsyncClient
    capabilities: str

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """What a GET below the protocol's root is answered with.

        Raises:
            Refused: it is no success.
        """
        parameters = {name: value for name, value in query.items() if value is not None}
        return self._let_in(
            await self.client.get(path, params=parameters, headers={HEADER: self.capabilities})
        )

    async def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """What a POST is answered with.

        Raises:
            Refused: it is no success.
        """
        fields = {name: value for name, value in body.items() if value is not None}
        return self._let_in(await self.client.post(path, json=fields, headers={HEADER: self.capabilities}))

    async def in_portal(self, path: str, **query: Any) -> dict[str, Any]:
        """What the recipient's portal is told of a path below the protocol's root.

        Raises:
            Refused: it is told no.
        """
        url = self.client.base_url.join(f"{PORTAL_API}/{path}")
        parameters = {name: value for name, value in query.items() if value is not None}
        fields: dict[str, Any] = self._let_in(await self.client.get(url, params=parameters)).json()
        return fields

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
            raise AccessRefused(self.recipient, answer)
        return answer


@asynccontextmanager
async def impersonate(
    settings: ServerSettings, recipient: str, principal: str, reads_with: str
) -> AsyncIterator[ImpersonatingClient]:
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
        impersonation = make_impersonation(app.state.app_state.catalog, recipient, principal)
        # Where the server is to recipients does not matter: nothing leaves the process.
        async with impersonating_client(
            app, impersonation, LOCAL_URL + settings.endpoint.rstrip("/")
        ) as client:
            yield ImpersonatingClient(impersonation.reader.name, client, capabilities)
    finally:
        # As a server ends, whatever a request came to: what the log was told last is written now.
        await lifespan.__aexit__(None, None, None)


def capabilities_of(reads_with: str) -> str:
    """The capabilities that a client announces.

    Raises:
        BadRequest: there is no such client.
    """
    known = {client.id: (client.response_format, client.features) for client in CLIENTS}
    known[ALL_CAPABILITIES] = (
        "delta,parquet",
        frozenset().union(*(features for _, features in known.values())),
    )
    if reads_with not in known:
        raise BadRequest("--client", reads_with, f"Known are: {', '.join(known)}.")
    formats, features = known[reads_with]
    return f"responseformat={formats};readerfeatures={','.join(sorted(features))}"


def table_url_path(table: str) -> str:
    """The path of `share.schema.table` below the protocol's root.

    Raises:
        BadRequest: it is not written so.
    """
    names = table.split(".")
    if len(names) != 3 or not all(names):
        raise BadRequest("TABLE", table, "Give share.schema.table, as the recipient writes it.")
    share, schema, name = (quote(name, safe="") for name in names)
    return f"shares/{share}/schemas/{schema}/tables/{name}"


KINDS = ("add", "cdf", "cdc", "remove")


@dataclass(frozen=True)
class ListedFile:
    """A file that an answer names; rows and version only where the line tells them."""

    kind: str
    size_bytes: int
    rows: int | None
    version: int | None
    url: str
    partition_values: dict[str, str | None]


@dataclass(frozen=True)
class FileTotals:
    """What files sum up to."""

    files: int
    size_bytes: int
    rows: int | None


def parse_lines(answer: httpx.Response) -> list[dict[str, Any]]:
    """The lines of a table's answer."""
    return [json.loads(line) for line in answer.text.splitlines()]


def find_metadata(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first metadata line's content, the same in both formats: schema and partition columns beside the sizes."""
    metadata = next(line["metaData"] for line in lines if "metaData" in line)
    return {**metadata.get("deltaMetadata", {}), **metadata}


def list_files(lines: Iterable[dict[str, Any]]) -> Iterator[ListedFile]:
    """The files, in the order they are told."""
    for line in lines:
        if "file" in line and "deltaSingleAction" in line["file"]:
            file = line["file"]
            for kind, action in file["deltaSingleAction"].items():
                if kind in KINDS:
                    yield _file(kind, action, action["path"], file.get("version"))
        elif "file" in line:
            yield _file("add", line["file"], line["file"]["url"], line["file"].get("version"))
        else:
            for kind in KINDS:
                if kind in line:
                    yield _file(kind, line[kind], line[kind]["url"], line[kind].get("version"))


def sum_files(files: Iterable[ListedFile]) -> FileTotals:
    """Number, bytes and rows of files; no rows where one of them does not tell."""
    count, size_bytes = 0, 0
    rows: int | None = 0
    for file in files:
        count, size_bytes = count + 1, size_bytes + file.size_bytes
        rows = None if rows is None or file.rows is None else rows + file.rows
    return FileTotals(count, size_bytes, rows)


def _file(kind: str, action: dict[str, Any], url: str, version: int | None) -> ListedFile:
    rows = json.loads(action["stats"]).get("numRecords") if action.get("stats") else None
    vector = action.get("deletionVector") or {}
    return ListedFile(
        kind="cdf" if kind == "cdc" else kind,
        size_bytes=int(action.get("size") or 0),
        rows=None if rows is None else rows - int(vector.get("cardinality") or 0),
        version=version,
        url=url,
        partition_values=action.get("partitionValues") or {},
    )
