"""The server's commands, by subject; the `lakeshare` command mounts them, too."""

import sys
from typing import Annotated

import typer

from lakeshare_conformance.command import conformance_app
from lakeshare_server.cli.admin import admin_app, audit_app, print_first_key, usage
from lakeshare_server.cli.console import open_state_catalog, open_versions
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
    for command in (serve, publications, explain, snippet, usage, activate, sql, apply, diff, export):
        app.command()(command)
    app.add_typer(recipient_app, name="recipient")
    app.add_typer(group_app, name="group")
    app.add_typer(share_app, name="share")
    app.add_typer(table_app, name="table")
    app.add_typer(admin_app, name="admin")
    app.add_typer(as_app, name="as")
    app.add_typer(conformance_app, name="conformance")
    app.add_typer(audit_app, name="audit")


def main() -> None:
    """Run a command; an error of lakeshare prints one sentence and exits with code 1, without a stack trace."""
    try:
        commands()
    except LakeshareError as error:
        typer.secho(f"lakeshare: {error}", err=True, fg=typer.colors.RED)
        sys.exit(1)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (LAKESHARE_HOST).")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0: a free port (LAKESHARE_PORT).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes; one per core is enough.")] = 1,
    first_key: Annotated[
        bool, typer.Option(help="Create and print the first key of the admin API, if there never was a key.")
    ] = True,
) -> None:
    """Serve the shares over OpenSharing (Delta Sharing) until Ctrl-C; the first time, print the first admin key."""
    from lakeshare_server.app import serve as serve_app
    from lakeshare_server.settings import ServerSettings

    options = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = ServerSettings(**options)  # type: ignore[arg-type]  # checked by pydantic

    def announce(url: str) -> None:
        typer.echo(f"lakeshare serves {url} (Ctrl-C stops it)")
        if first_key:
            print_first_key(settings.catalog_url, settings.state_dir)

    serve_app(settings, announce, workers)


def publications(
    table: Annotated[str, typer.Argument(help="The lake's table, like flights.departures.")],
    limit: Annotated[int, typer.Option(min=1, help="Number of publications, newest first.")] = 20,
) -> None:
    """List the publications of a table: number, time, rows, files, partition, run."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.errors import BadRequest

    ledger = Ledger(open_state_catalog())
    history = ledger.history(table, limit)
    if not history:
        raise BadRequest("TABLE", table, f"Published are: {', '.join(ledger.tables()) or 'none'}.")
    typer.echo("NUMBER\tPUBLISHED\tROWS\tFILES\tPARTITION\tRUN\t")
    for row in history:
        remarks = [] if row.audited else ["unaudited"]
        remarks += [] if row.rollback_of is None else [f"rollback to {row.rollback_of}"]
        when = row.published_at.strftime("%Y-%m-%d %H:%M:%SZ")
        typer.echo(
            f"{row.version}\t{when}\t{row.rows}\t{row.files}\t{row.partition}\t{row.run_id}\t{', '.join(remarks)}"
        )


def explain(
    table: Annotated[
        str, typer.Argument(metavar="PROFILE#SHARE.SCHEMA.TABLE", help="A table as in a client.")
    ],
    where: Annotated[
        str | None, typer.Option(help="A predicate in SQL, like \"day >= '2024-03-01'\".")
    ] = None,
    json_predicate: Annotated[
        str | None, typer.Option(help="A predicate in JSON: jsonPredicateHints.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Number of rows: limitHint.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="The version; the latest by default.")] = None,
    files: Annotated[bool, typer.Option("--files", help="List each file with the reason.")] = False,
) -> None:
    """Explain which files of a table a predicate excludes for a recipient, and why.

    Example: lakeshare explain bob.share#sales.lake.orders --where "day >= '2024-03-01' AND amount > 100"
    """
    from lakeshare_server.access.table_access import TableViews
    from lakeshare_server.provider.serveability import explain_query, parse_profile_table

    table_path, catalog = parse_profile_table(table), open_state_catalog()
    fields = {
        "predicateHints": where and [where],
        "jsonPredicateHints": json_predicate,
        "limitHint": limit,
        "version": version,
    }
    explanation = explain_query(catalog, TableViews(catalog, open_versions(catalog)), table_path, fields)
    for line in explanation.lines():
        typer.echo(line)
    for line in explanation.file_lines() if files else ():
        typer.echo(line)


add_commands(commands)
