"""The commands of `lakeshare as RECIPIENT`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from lakeshare_server.cli.impersonated_requests import ImpersonatingClient

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
ALL_CAPABILITIES = "everything"


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
    for share in _run_as_recipient(context, lambda client: client.items("shares")):
        typer.echo(f"{share['name']}\t{share.get('comment', '')}".rstrip())


@as_app.command("tables")
def tables(
    context: typer.Context,
    share: Annotated[str | None, typer.Argument(help="Of this share; of all by default.")] = None,
) -> None:
    """List the tables it may read now."""

    async def look(client: "ImpersonatingClient") -> list[str]:
        from urllib.parse import quote

        names = [share] if share is not None else [one["name"] for one in await client.items("shares")]
        found = [await client.items(f"shares/{quote(name, safe='')}/all-tables") for name in names]
        return [f"{item['share']}.{item['schema']}.{item['name']}" for items in found for item in items]

    for name in _run_as_recipient(context, look):
        typer.echo(name)


@as_app.command("versions")
def versions(
    context: typer.Context,
    table: Table,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
) -> None:
    """List the versions it may read, when they were published, and what each changed."""
    from lakeshare_server.cli.impersonated_requests import table_url_path
    from lakeshare_server.protocol.requests import format_iso

    async def look(client: "ImpersonatingClient") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        before = None
        while len(found) < limit:
            page = await client.in_portal(f"{table_url_path(table)}/versions", before=before)
            found += page["versions"]
            before = page["before"]
            if before is None:
                break
        return found[:limit]

    typer.echo("VERSION\tPUBLISHED\tFILES ADDED\tFILES REMOVED\tROWS MORE\tREMARK")
    for one in _run_as_recipient(context, look):
        changed = one["changes"] or {}
        counts = [changed.get(name) for name in ("filesAdded", "filesRemoved", "rows")]
        cells = ["" if count is None else str(count) for count in counts]
        line = [str(one["version"]), format_iso(one["publishedAt"]), *cells, changed.get("refusal", "")]
        typer.echo("\t".join(line).rstrip())


@as_app.command("metadata")
def metadata(
    context: typer.Context, table: Table, version: Version = None, client: ClientId = ALL_CAPABILITIES
) -> None:
    """Print the lines with protocol, schema and properties that it gets."""
    from lakeshare_server.cli.impersonated_requests import table_url_path

    answer = _run_as_recipient(
        context,
        lambda impersonating: impersonating.get(f"{table_url_path(table)}/metadata", version=version),
        client,
    )
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
    client: ClientId = ALL_CAPABILITIES,
    lines: Lines = False,
) -> None:
    """Ask for the files of a table; tell how many they are, or print the very lines.

    Example: lakeshare as bob query partners.sales.orders --where "day >= '2024-03-01'"
    """
    from lakeshare_server.cli.impersonated_requests import list_files, parse_lines, sum_files, table_url_path

    body = {"predicateHints": where and [where], "limitHint": limit, "version": version}
    answer = _run_as_recipient(
        context, lambda impersonating: impersonating.post(f"{table_url_path(table)}/query", body), client
    )
    if lines:
        typer.echo(answer.text, nl=False)
        return
    found = sum_files(list_files(parse_lines(answer)))
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
    client: ClientId = ALL_CAPABILITIES,
    lines: Lines = False,
) -> None:
    """Ask for the change data feed; tell its files by version, or print the very lines."""
    from lakeshare_server.cli.impersonated_requests import list_files, parse_lines, sum_files, table_url_path

    parameters = {"startingVersion": start, "endingVersion": end}
    answer = _run_as_recipient(
        context,
        lambda impersonating: impersonating.get(f"{table_url_path(table)}/changes", **parameters),
        client,
    )
    if lines:
        typer.echo(answer.text, nl=False)
        return
    found = list(list_files(parse_lines(answer)))
    typer.echo("VERSION\tKIND\tFILES\tBYTES\tROWS")
    for version, kind in dict.fromkeys((one.version, one.kind) for one in found):
        totals = sum_files(one for one in found if (one.version, one.kind) == (version, kind))
        rows = "" if totals.rows is None else totals.rows
        typer.echo(f"{version}\t{kind}\t{totals.files}\t{totals.size_bytes}\t{rows}")


@as_app.command("preview")
def preview(
    context: typer.Context,
    table: Table,
    rows: Annotated[int, typer.Option(min=1, max=500, help="How many rows.")] = 10,
    version: Version = None,
) -> None:
    """Print the first rows it reads, as its portal shows them."""
    from lakeshare_server.cli.impersonated_requests import table_url_path

    async def look(client: "ImpersonatingClient") -> dict[str, Any]:
        return await client.in_portal(f"{table_url_path(table)}/preview", limit=rows, version=version)

    found = _run_as_recipient(context, look)
    typer.echo("\t".join(column["name"] for column in found["columns"]))
    for row in found["rows"]:
        typer.echo("\t".join("" if value is None else " ".join(value.split()) for value in row))


def _run_as_recipient(
    context: typer.Context,
    request: "Callable[[ImpersonatingClient], Awaitable[T]]",
    client: str = ALL_CAPABILITIES,
) -> T:
    from lakeshare_server.catalog.recipients import LOCAL_OPERATOR
    from lakeshare_server.cli.impersonated_requests import impersonate
    from lakeshare_server.settings import ServerSettings

    async def seen() -> T:
        async with impersonate(ServerSettings(), context.obj, LOCAL_OPERATOR, client) as impersonating:
            return await request(impersonating)

    return asyncio.run(seen())


def _rows(count: int | None) -> str:
    return "rows are not told" if count is None else f"{count} rows"
