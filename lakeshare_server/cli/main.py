"""The server's commands, by subject: serving, looking, sharing, administering, conformance.

The `lakeshare` command mounts them too.
"""

import sys
from typing import Annotated

import typer

from lakeshare_conformance.command import conformance_app
from lakeshare_server.cli.admin import admin_app, audit_app, print_first_key, usage
from lakeshare_server.cli.console import open_state_catalog
from lakeshare_server.cli.impersonation import as_app
from lakeshare_server.cli.recipients import activate, group_app, recipient_app
from lakeshare_server.cli.shares import apply, diff, export, share_app, sql
from lakeshare_server.cli.tables import snippet, table_app
from lakeshare_server.errors import LakeshareError

commands = typer.Typer(
    help="The lakeshare sharing server.", no_args_is_help=True, pretty_exceptions_enable=False
)


def add_commands(app: typer.Typer) -> None:
    """Mount the server's commands on another application."""
    app.command()(serve)
    app.command()(publications)
    app.command()(explain)
    app.command()(snippet)
    app.command()(usage)
    app.command()(activate)
    app.command()(sql)
    app.command()(apply)
    app.command()(diff)
    app.command()(export)
    app.add_typer(recipient_app, name="recipient")
    app.add_typer(group_app, name="group")
    app.add_typer(share_app, name="share")
    app.add_typer(table_app, name="table")
    app.add_typer(admin_app, name="admin")
    app.add_typer(as_app, name="as")
    app.add_typer(conformance_app, name="conformance")
    app.add_typer(audit_app, name="audit")


def main() -> None:
    """Run a command; our own errors are a sentence and exit code 1, never a stack trace."""
    try:
        commands()
    except LakeshareError as error:
        typer.secho(f"lakeshare: {error}", err=True, fg=typer.colors.RED)
        sys.exit(1)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (LAKESHARE_HOST).")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on, 0 takes a free one (LAKESHARE_PORT).")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that answer side by side; one per core is plenty.")
    ] = 1,
    first_key: Annotated[
        bool, typer.Option(help="Make and print the first key of the admin API, if there never was one.")
    ] = True,
) -> None:
    """Serve the shares over OpenSharing (Delta Sharing) until Ctrl-C; the first time, print the first admin key."""
    from lakeshare_server.app import serve as serve_app
    from lakeshare_server.settings import ServerSettings

    options = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = ServerSettings(**options)  # type: ignore[arg-type]  # checked by pydantic

    def tell(url: str) -> None:
        typer.echo(f"lakeshare serves {url} (Ctrl-C stops it)")
        if first_key:
            print_first_key(settings.catalog_url, settings.state_dir)

    serve_app(settings, tell, workers)


def publications(
    table: Annotated[str, typer.Argument(help="The lake's table, like flights.departures.")],
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
) -> None:
    """List the publications of a table: number, time, rows, files, partition, run."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.errors import BadRequest

    ledger = Ledger(open_state_catalog())
    found = ledger.history(table, limit)
    if not found:
        raise BadRequest("TABLE", table, f"Published are: {', '.join(ledger.tables()) or 'none'}.")
    typer.echo("NUMBER\tPUBLISHED\tROWS\tFILES\tPARTITION\tRUN\t")
    for one in found:
        remarks = [] if one.audited else ["unaudited"]
        remarks += [] if one.rollback_of is None else [f"rollback to {one.rollback_of}"]
        when = one.published_at.strftime("%Y-%m-%d %H:%M:%SZ")
        typer.echo(
            f"{one.version}\t{when}\t{one.rows}\t{one.files}\t{one.partition}\t{one.run_id}\t{', '.join(remarks)}"
        )


def explain(
    table: Annotated[
        str, typer.Argument(metavar="PROFILE#SHARE.SCHEMA.TABLE", help="A table as clients write it.")
    ],
    where: Annotated[
        str | None, typer.Option("--where", help="A predicate in SQL, like \"day >= '2024-03-01'\".")
    ] = None,
    json_predicate: Annotated[
        str | None,
        typer.Option("--json-predicate", help="A predicate as clients send it: jsonPredicateHints."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Rows the client wants: limitHint.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="The version; the latest by default.")] = None,
    files: Annotated[
        bool, typer.Option("--files", help="Tell of each file why it is kept or dropped.")
    ] = False,
) -> None:
    """Tell which files of a table a predicate leaves out for a recipient, and why.

    Example: lakeshare explain bob.share#sales.lake.orders --where "day >= '2024-03-01' AND amount > 100"
    """
    from lakeshare_server.access.table_access import TableViews
    from lakeshare_server.provider.serveability import explain_query, parse_profile_table
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.storage import Stores
    from lakeshare_server.versions import Versions

    table_path = parse_profile_table(table)
    settings, catalog = ServerSettings(), open_state_catalog()
    views = TableViews(catalog, Versions(catalog, settings, Stores(settings)))
    fields = {
        "predicateHints": where and [where],
        "jsonPredicateHints": json_predicate,
        "limitHint": limit,
        "version": version,
    }
    found = explain_query(catalog, views, table_path, fields)
    for line in found.lines():
        typer.echo(line)
    for line in found.file_lines() if files else ():
        typer.echo(line)


add_commands(commands)
