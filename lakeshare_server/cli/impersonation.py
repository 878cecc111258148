"""`lakeshare as RECIPIENT …`: what a recipient gets, by the routes that answer its own requests.

eyes.py asks; what_is_told.py reads the lines of answers; command.py prints.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import httpx
import typer

from lakeshare_server.app import create_app
from lakeshare_server.errors import BadRequest, LakeshareError
from lakeshare_server.pages.portal import API as PORTAL_API
from lakeshare_server.protocol.lines import HEADER
from lakeshare_server.routes.context import eyes, seen_as
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.serveability import CLIENTS

T = TypeVar("T")

as_app = typer.Typer(
    help="See as a recipient: its shares, tables, versions, files and rows, by the routes that answer it.",
    no_args_is_help=True,
)

Table = Annotated[
    str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="The table as the recipient calls it.")
]
Version = Annotated[int | None, typer.Option(min=0, help="The version; the latest by default.")]
ClientId = Annotated[
    str,
    typer.Option(
        "--client", help="What it reads with: python-parquet, python-delta, spark, or everything of these."
    ),
]
Lines = Annotated[bool, typer.Option("--lines", help="Print the answer's lines as they are, URLs included.")]
EVERYTHING = "everything"


@as_app.callback()
def see_as(
    context: typer.Context,
    recipient: Annotated[str, typer.Argument(help="Whose eyes: the name of a recipient.")],
) -> None:
    """See as RECIPIENT. The audit log says that it was looked, not that the recipient asked."""
    context.obj = recipient


@as_app.command("shares")
def shares(context: typer.Context) -> None:
    """List the shares it may read now."""
    for share in _looked(context, lambda eyes: eyes.items("shares")):
        typer.echo(f"{share['name']}\t{share.get('comment', '')}".rstrip())


@as_app.command("tables")
def tables(
    context: typer.Context,
    share: Annotated[str | None, typer.Argument(help="Of this share; of all by default.")] = None,
) -> None:
    """List the tables it may read now."""

    async def look(eyes: "Eyes") -> list[str]:
        from urllib.parse import quote

        names = [share] if share is not None else [one["name"] for one in await eyes.items("shares")]
        found = [await eyes.items(f"shares/{quote(name, safe='')}/all-tables") for name in names]
        return [f"{one['share']}.{one['schema']}.{one['name']}" for items in found for one in items]

    for name in _looked(context, look):
        typer.echo(name)


@as_app.command("versions")
def versions(
    context: typer.Context,
    table: Table,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
) -> None:
    """List the versions it may read, when they were published, and what each changed."""
    from lakeshare_server.protocol.requests import iso

    async def look(eyes: "Eyes") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        before = None
        while len(found) < limit:
            page = await eyes.in_portal(f"{path_of(table)}/versions", before=before)
            found += page["versions"]
            before = page["before"]
            if before is None:
                break
        return found[:limit]

    typer.echo("VERSION\tPUBLISHED\tFILES ADDED\tFILES REMOVED\tROWS MORE\tREMARK")
    for one in _looked(context, look):
        told = one["changes"] or {}
        counts = [told.get(name) for name in ("filesAdded", "filesRemoved", "rows")]
        cells = ["" if count is None else str(count) for count in counts]
        line = [str(one["version"]), iso(one["publishedAt"]), *cells, told.get("refusal", "")]
        typer.echo("\t".join(line).rstrip())


@as_app.command("metadata")
def metadata(
    context: typer.Context, table: Table, version: Version = None, client: ClientId = EVERYTHING
) -> None:
    """Print the lines with protocol, schema and properties that it gets."""

    answer = _looked(context, lambda eyes: eyes.get(f"{path_of(table)}/metadata", version=version), client)
    typer.echo(answer.text, nl=False)


@as_app.command("query")
def query(
    context: typer.Context,
    table: Table,
    where: Annotated[
        str | None, typer.Option(help="A predicate in SQL, as a client hints it: predicateHints.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Rows the client wants: limitHint.")] = None,
    version: Version = None,
    client: ClientId = EVERYTHING,
    lines: Lines = False,
) -> None:
    """Ask for the files of a table; tell how many they are, or print the very lines.

    Example: lakeshare as bob query partners.sales.orders --where "day >= '2024-03-01'"
    """

    body = {"predicateHints": where and [where], "limitHint": limit, "version": version}
    answer = _looked(context, lambda eyes: eyes.post(f"{path_of(table)}/query", body), client)
    if lines:
        typer.echo(answer.text, nl=False)
        return
    found = figures(files_of(lines_of(answer)))
    number = answer.headers["Delta-Table-Version"]
    typer.echo(f"version {number}: {found.files} files, {found.size_bytes} bytes, {_rows(found.rows)}")


@as_app.command("changes")
def changes(
    context: typer.Context,
    table: Table,
    start: Annotated[int, typer.Option("--from", min=0, help="The first version.")] = 0,
    end: Annotated[
        int | None, typer.Option("--to", min=0, help="The last version; the latest by default.")
    ] = None,
    client: ClientId = EVERYTHING,
    lines: Lines = False,
) -> None:
    """Ask for the change data feed; tell its files by version, or print the very lines."""

    asked = {"startingVersion": start, "endingVersion": end}
    answer = _looked(context, lambda eyes: eyes.get(f"{path_of(table)}/changes", **asked), client)
    if lines:
        typer.echo(answer.text, nl=False)
        return
    found = list(files_of(lines_of(answer)))
    typer.echo("VERSION\tKIND\tFILES\tBYTES\tROWS")
    for version, kind in dict.fromkeys((one.version, one.kind) for one in found):
        told = figures(one for one in found if (one.version, one.kind) == (version, kind))
        rows = "" if told.rows is None else told.rows
        typer.echo(f"{version}\t{kind}\t{told.files}\t{told.size_bytes}\t{rows}")


@as_app.command("preview")
def preview(
    context: typer.Context,
    table: Table,
    rows: Annotated[int, typer.Option(min=1, max=500, help="How many rows.")] = 10,
    version: Version = None,
) -> None:
    """Print the first rows it reads, as its portal shows them."""

    async def look(eyes: "Eyes") -> dict[str, Any]:
        return await eyes.in_portal(f"{path_of(table)}/preview", limit=rows, version=version)

    found = _looked(context, look)
    typer.echo("\t".join(column["name"] for column in found["columns"]))
    for row in found["rows"]:
        typer.echo("\t".join("" if value is None else " ".join(value.split()) for value in row))


def _looked(context: typer.Context, look: "Callable[[Eyes], Awaitable[T]]", client: str = EVERYTHING) -> T:
    from lakeshare_server.catalog.recipients import BY_HAND
    from lakeshare_server.settings import ServerSettings

    async def seen() -> T:
        async with looking_as(ServerSettings(), context.obj, BY_HAND, client) as eyes:
            return await look(eyes)

    return asyncio.run(seen())


def _rows(count: int | None) -> str:
    return "rows are not told" if count is None else f"{count} rows"


HERE = "http://lakeshare"
"""The client that reads both formats and every feature that some client reads."""


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
