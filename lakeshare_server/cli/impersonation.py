"""`lakeshare as RECIPIENT`: requests in the name of a recipient, served by the same routes as its own, in process."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from lakeshare_server.cli.console import ServerRefused, given, parse_shared_path, print_table
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import PORTAL_PATH, ServerSettings

if TYPE_CHECKING:
    import httpx


T = TypeVar("T")

ALL_CAPABILITIES = "everything"
"""The client that reads both formats and every feature that some client reads."""
FILE_KINDS = ("add", "cdf", "cdc", "remove")

as_app = typer.Typer(
    help="Impersonate a recipient: list and read its shares, tables, versions, files and rows.",
    no_args_is_help=True,
)

Table = Annotated[str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="The recipient's name of it.")]
Version = Annotated[int | None, typer.Option(min=0, help="The version; the latest by default.")]
ClientId = Annotated[
    str, typer.Option("--client", help="Client: python-parquet, python-delta, spark, or everything of these.")
]
Lines = Annotated[bool, typer.Option("--lines", help="Print the lines of the response, URLs included.")]


@dataclass(frozen=True)
class ImpersonatingClient:
    """Sends requests as a recipient that uses one of the known clients; paths are below the protocol's root.

    A request that fails raises `ServerRefused`.
    """

    recipient: str
    client: "httpx.AsyncClient"
    headers: Mapping[str, str]

    async def get(self, path: str, **query: Any) -> "httpx.Response":
        return await self._request("GET", path, params=given(**query), headers=self.headers)

    async def post(self, path: str, body: Mapping[str, Any]) -> "httpx.Response":
        return await self._request("POST", path, json=given(**body), headers=self.headers)

    async def in_portal(self, path: str, **query: Any) -> dict[str, Any]:
        """The response of the portal's API."""
        url = str(self.client.base_url.join(f"{PORTAL_PATH}/api/{path}"))
        fields: dict[str, Any] = (await self._request("GET", url, params=given(**query))).json()
        return fields

    async def items(self, path: str) -> list[dict[str, Any]]:
        """All items of a listing, from all of its pages."""
        items: list[dict[str, Any]] = []
        token = None
        while True:
            page = (await self.get(path, pageToken=token)).json()
            items += page.get("items", ())
            token = page.get("nextPageToken")
            if not token:
                return items

    async def _request(self, method: str, path: str, **content: Any) -> "httpx.Response":
        import httpx

        try:
            response = await self.client.request(method, path, **content)
        except httpx.InvalidURL as error:
            raise BadRequest("the path", path, f"{error}: give a name of the listings.") from error
        if not response.is_success:
            raise ServerRefused(response, self.recipient)
        return response


@asynccontextmanager
async def impersonate(
    settings: "ServerSettings", recipient: str, principal: str, client_id: str
) -> AsyncIterator[ImpersonatingClient]:
    """A client of a server with these settings, in this process; its audit rows are written at the end."""
    from lakeshare_server.app import create_app
    from lakeshare_server.protocol.lines import HEADER
    from lakeshare_server.routes.context import impersonating_client, make_impersonation

    headers = {HEADER: capabilities_of(client_id)}
    app = create_app(settings)
    lifespan = app.router.lifespan_context(app)
    await lifespan.__aenter__()
    try:
        impersonation = make_impersonation(app.state.app_state.catalog, recipient, principal)
        # The host has no effect: nothing leaves the process.
        url = "http://lakeshare" + settings.endpoint.rstrip("/")
        async with impersonating_client(app, impersonation, url) as client:
            yield ImpersonatingClient(impersonation.reader.name, client, headers)
    finally:
        # Also after an error: the shutdown writes the last audit rows.
        await lifespan.__aexit__(None, None, None)


def capabilities_of(client_id: str) -> str:
    """The capabilities that a known client announces; raises `BadRequest` for others."""
    from lakeshare_server.tables.serveability import CLIENTS

    known = {client.id: (client.response_format, client.features) for client in CLIENTS}
    all_features = frozenset[str]().union(*(features for _, features in known.values()))
    known[ALL_CAPABILITIES] = ("delta,parquet", all_features)
    if client_id not in known:
        raise BadRequest("--client", client_id, f"Known are: {', '.join(known)}.")
    formats, features = known[client_id]
    return f"responseformat={formats};readerfeatures={','.join(sorted(features))}"


def table_url_path(table: str) -> str:
    """The path of `share.schema.table` below the protocol's root."""
    share, schema, name = (
        quote(part, safe="", errors="replace") for part in parse_shared_path("TABLE", table)
    )
    return f"shares/{share}/schemas/{schema}/tables/{name}"


@dataclass(frozen=True)
class FileTotals:
    """Number, bytes and rows of files; rows are None when a file has no row count."""

    files: int = 0
    size_bytes: int = 0
    rows: int | None = 0

    def add(self, action: Mapping[str, Any]) -> "FileTotals":
        """The totals with one more file."""
        rows = json.loads(action["stats"]).get("numRecords") if action.get("stats") else None
        deleted = int((action.get("deletionVector") or {}).get("cardinality") or 0)
        total = None if rows is None or self.rows is None else self.rows + rows - deleted
        return FileTotals(self.files + 1, self.size_bytes + int(action.get("size") or 0), total)


def sum_files(response: "httpx.Response") -> dict[tuple[int | None, str], FileTotals]:
    """Totals of the files of a response, by version and kind, in the order of the response."""
    totals: dict[tuple[int | None, str], FileTotals] = {}
    for version, kind, action in _list_files(json.loads(line) for line in response.content.splitlines()):
        key = version, "cdf" if kind == "cdc" else kind
        totals[key] = totals.get(key, FileTotals()).add(action)
    return totals


def _list_files(lines: Iterable[dict[str, Any]]) -> Iterator[tuple[int | None, str, dict[str, Any]]]:
    for line in lines:
        file = line.get("file")
        if file is None:
            for kind in FILE_KINDS:
                if kind in line:
                    yield line[kind].get("version"), kind, line[kind]
        elif "deltaSingleAction" in file:
            for kind, action in file["deltaSingleAction"].items():
                if kind in FILE_KINDS:
                    yield file.get("version"), kind, action
        else:
            yield file.get("version"), "add", file


@as_app.callback()
def see_as(
    context: typer.Context, recipient: Annotated[str, typer.Argument(help="Recipient to impersonate.")]
) -> None:
    """Impersonate RECIPIENT. The audit log records the requests as impersonated, not as the recipient's."""
    context.obj = recipient


@as_app.command("shares")
def shares(context: typer.Context) -> None:
    """List the shares that the recipient may read now."""
    listed = _run_as_recipient(context, lambda client: client.items("shares"))
    print_table((share["name"], share.get("comment")) for share in listed)


@as_app.command("tables")
def tables(
    context: typer.Context,
    share: Annotated[str | None, typer.Argument(help="Of this share; of all by default.")] = None,
) -> None:
    """List the tables that the recipient may read now."""

    async def list_tables(client: ImpersonatingClient) -> list[str]:
        names = [share] if share is not None else [item["name"] for item in await client.items("shares")]
        listings = [
            await client.items(f"shares/{quote(name, safe='', errors='replace')}/all-tables")
            for name in names
        ]
        return [f"{item['share']}.{item['schema']}.{item['name']}" for items in listings for item in items]

    for name in _run_as_recipient(context, list_tables):
        typer.echo(name)


@as_app.command("versions")
def versions(
    context: typer.Context,
    table: Table,
    limit: Annotated[int, typer.Option(min=1, help="Number of versions, newest first.")] = 20,
) -> None:
    """List the versions that the recipient may read, when they were published, and what each changed."""
    from lakeshare_server.protocol.requests import format_iso

    async def list_versions(client: ImpersonatingClient) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = []
        before = None
        while len(listed) < limit:
            page = await client.in_portal(f"{table_url_path(table)}/versions", before=before)
            listed += page["versions"]
            before = page["before"]
            if before is None:
                break
        return listed[:limit]

    rows = []
    for version in _run_as_recipient(context, list_versions):
        changes = version["changes"] or {}
        counts = [changes.get(name) for name in ("filesAdded", "filesRemoved", "rows")]
        published = format_iso(version["publishedAt"])
        rows.append([version["version"], published, *counts, changes.get("refusal")])
    print_table(rows, ["VERSION", "PUBLISHED", "FILES ADDED", "FILES REMOVED", "ROWS MORE", "REMARK"])


@as_app.command("metadata")
def metadata(
    context: typer.Context, table: Table, version: Version = None, client: ClientId = ALL_CAPABILITIES
) -> None:
    """Print the lines with protocol, schema and properties that the recipient gets."""
    path = f"{table_url_path(table)}/metadata"
    response = _run_as_recipient(context, lambda reader: reader.get(path, version=version), client)
    typer.echo(response.text, nl=False)


@as_app.command("query")
def query(
    context: typer.Context,
    table: Table,
    where: Annotated[str | None, typer.Option(help="A predicate in SQL: predicateHints.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Number of rows: limitHint.")] = None,
    version: Version = None,
    client: ClientId = ALL_CAPABILITIES,
    lines: Lines = False,
) -> None:
    """Query a table; print the totals of its files, or the lines of the response.

    Example: lakeshare as bob query partners.sales.orders --where "day >= '2024-03-01'"
    """
    path = f"{table_url_path(table)}/query"
    body = {"predicateHints": where and [where], "limitHint": limit, "version": version}
    response = _run_as_recipient(context, lambda reader: reader.post(path, body), client)
    if lines:
        typer.echo(response.text, nl=False)
        return
    totals = list(sum_files(response).values())
    rows = [total.rows for total in totals if total.rows is not None]
    count = f"{sum(rows)} rows" if len(rows) == len(totals) else "row count unknown"
    files, size_bytes = sum(total.files for total in totals), sum(total.size_bytes for total in totals)
    version_read = response.headers["Delta-Table-Version"]
    typer.echo(f"version {version_read}: {files} files, {size_bytes} bytes, {count}")


@as_app.command("changes")
def changes(
    context: typer.Context,
    table: Table,
    start: Annotated[int, typer.Option("--from", min=0, help="The first version.")] = 0,
    end: Annotated[
        int | None, typer.Option("--to", min=0, help="Last version; the latest by default.")
    ] = None,
    client: ClientId = ALL_CAPABILITIES,
    lines: Lines = False,
) -> None:
    """Query the change data feed; print its files by version, or the lines of the response."""
    path = f"{table_url_path(table)}/changes"
    parameters = {"startingVersion": start, "endingVersion": end}
    response = _run_as_recipient(context, lambda reader: reader.get(path, **parameters), client)
    if lines:
        typer.echo(response.text, nl=False)
        return
    rows = (
        (version, kind, totals.files, totals.size_bytes, totals.rows)
        for (version, kind), totals in sum_files(response).items()
    )
    print_table(rows, ["VERSION", "KIND", "FILES", "BYTES", "ROWS"])


@as_app.command("preview")
def preview(
    context: typer.Context,
    table: Table,
    rows: Annotated[int, typer.Option(min=1, max=500, help="Number of rows.")] = 10,
    version: Version = None,
) -> None:
    """Print the first rows that the recipient reads, as in its portal."""
    path = f"{table_url_path(table)}/preview"
    page = _run_as_recipient(context, lambda client: client.in_portal(path, limit=rows, version=version))
    shown = ([None if value is None else " ".join(value.split()) for value in row] for row in page["rows"])
    print_table(shown, [column["name"] for column in page["columns"]])


def _run_as_recipient(
    context: typer.Context,
    request: Callable[[ImpersonatingClient], Awaitable[T]],
    client: str = ALL_CAPABILITIES,
) -> T:
    from lakeshare_server.catalog.sharing import LOCAL_OPERATOR

    async def run() -> T:
        async with impersonate(ServerSettings(), context.obj, LOCAL_OPERATOR, client) as impersonating:
            return await request(impersonating)

    return asyncio.run(run())
