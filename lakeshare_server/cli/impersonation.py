"""The commands of `lakeshare as RECIPIENT`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from lakeshare_server.cli.impersonated_requests import Eyes

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
    from lakeshare_server.cli.impersonated_requests import path_of
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
    from lakeshare_server.cli.impersonated_requests import path_of

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
    from lakeshare_server.cli.impersonated_requests import figures, files_of, lines_of, path_of

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
    from lakeshare_server.cli.impersonated_requests import figures, files_of, lines_of, path_of

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
    from lakeshare_server.cli.impersonated_requests import path_of

    async def look(eyes: "Eyes") -> dict[str, Any]:
        return await eyes.in_portal(f"{path_of(table)}/preview", limit=rows, version=version)

    found = _looked(context, look)
    typer.echo("\t".join(column["name"] for column in found["columns"]))
    for row in found["rows"]:
        typer.echo("\t".join("" if value is None else " ".join(value.split()) for value in row))


def _looked(context: typer.Context, look: "Callable[[Eyes], Awaitable[T]]", client: str = EVERYTHING) -> T:
    from lakeshare_server.catalog.recipients import BY_HAND
    from lakeshare_server.cli.impersonated_requests import looking_as
    from lakeshare_server.settings import ServerSettings

    async def seen() -> T:
        async with looking_as(ServerSettings(), context.obj, BY_HAND, client) as eyes:
            return await look(eyes)

    return asyncio.run(seen())


def _rows(count: int | None) -> str:
    return "rows are not told" if count is None else f"{count} rows"
