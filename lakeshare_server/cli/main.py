"""The server's commands, by subject; the `lakeshare` command mounts them, too."""

import logging
import os
import socket
import sys
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshare_conformance.command import conformance_app
from lakeshare_server.cli.admin import admin_app, audit_app, print_first_key, usage
from lakeshare_server.cli.console import AsJson, open_provider, open_state_catalog, print_json, print_table
from lakeshare_server.cli.database import db_app
from lakeshare_server.cli.evidence import evidence_app
from lakeshare_server.cli.impersonation import as_app
from lakeshare_server.cli.recipients import activate, group_app, recipient_app
from lakeshare_server.cli.shares import apply, diff, export, share_app, sql
from lakeshare_server.cli.tables import snippet, table_app
from lakeshare_server.cli.verify import verify
from lakeshare_server.cli.webhooks import webhook_app
from lakeshare_server.errors import BadRequest, LakeshareError
from lakeshare_server.lazy import gc_disabled
from lakeshare_server.settings import ServerSettings, read_log_format
from lakeshare_server.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from lakeshare_server.catalog import Publication

_log = logging.getLogger(__name__)
HELP = "The lakeshare sharing server."
commands = typer.Typer(
    help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, suggest_commands=False
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"lakeshare {version('lakeshare')}")
        raise typer.Exit


def _take_options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Has no work of its own: the option ends the command."""


def add_commands(app: typer.Typer) -> None:
    """Mount the server's commands, and `--version`, on another application."""
    app.callback(help=app.info.help, no_args_is_help=True)(_take_options)
    for command in (serve, publications, explain, snippet, usage, activate, sql, apply, diff, export, verify):
        app.command()(command)
    groups = {"recipient": recipient_app, "group": group_app, "share": share_app, "table": table_app}
    groups["webhook"] = webhook_app
    groups |= {"admin": admin_app, "as": as_app, "conformance": conformance_app, "audit": audit_app}
    groups |= {"evidence": evidence_app, "db": db_app}
    for name, group in groups.items():
        app.add_typer(group, name=name)


def main() -> None:
    """Run a command; an error of lakeshare prints one sentence and exits with code 1, without a stack trace."""
    configure_logs(read_log_format)
    try:
        commands()
    except LakeshareError as error:
        typer.secho(f"lakeshare: {error.for_provider()}", err=True, fg=typer.colors.RED)
        sys.exit(1)


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (LAKESHARE_HOST).")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0: a free one (LAKESHARE_PORT).")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes; one per core is enough.")] = 1,
    first_key: Annotated[
        bool, typer.Option(help="Create and print the first key of the admin API, if there never was a key.")
    ] = True,
) -> None:
    """Serve the shares over OpenSharing (Delta Sharing) until Ctrl-C; the first time, print the first admin key."""
    options = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    # Before the imports: what is wrong with the settings is known at once.
    settings = ServerSettings(**options)  # type: ignore[arg-type]  # checked by pydantic
    with gc_disabled():
        from lakeshare_server.app import serve as serve_app

    def announce(url: str) -> None:
        typer.echo(f"lakeshare serves {url} (Ctrl-C stops it)")
        if first_key:
            print_first_key(settings)
        notify_service_manager("READY=1")

    serve_app(settings, announce, workers)


def notify_service_manager(state: str) -> None:
    """Reports a state to systemd, if it runs this process as a service of `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # An abstract address is written with `@` in place of its zero byte.
            sender.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
    except OSError as error:
        _log.warning("NOTIFY_SOCKET: %s is not sent to %s: %s", state, address, error)


def publications(
    table: Annotated[str, typer.Argument(help="The lake's table, like flights.departures.")],
    limit: Annotated[int, typer.Option(min=1, help="Number of publications, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the publications of a table: number, time, rows, files, partition, run."""
    from lakeshare_server.catalog import Ledger

    ledger = Ledger(open_state_catalog())
    history = ledger.history(table, limit)
    if not history:
        raise BadRequest("TABLE", table, f"Published are: {', '.join(ledger.tables()) or 'none'}.")
    oldest = ledger.oldest_readable(table)
    if as_json:
        print_json([_publication_json(row, oldest) for row in history])
        return
    header = "NUMBER", "PUBLISHED", "ROWS", "FILES", "PARTITION", "RUN", ""
    print_table((_publication_cells(row, oldest) for row in history), header)


def _publication_cells(row: "Publication", oldest: int) -> list[object]:
    remarks = [] if row.audited else ["unaudited"]
    remarks += [] if row.rollback_of is None else [f"rollback to {row.rollback_of}"]
    remarks += [] if row.maintenance_of is None else [f"maintenance of {row.maintenance_of}"]
    remarks += ["expired"] if row.version < oldest else []
    when = row.published_at.strftime("%Y-%m-%d %H:%M:%SZ")
    return [row.version, when, row.rows, row.files, row.partition, row.run_id, ", ".join(remarks)]


def _publication_json(row: "Publication", oldest: int) -> dict[str, Any]:
    names = ("rows", "files", "partition", "run_id", "audited", "rollback_of", "maintenance_of")
    fields = {name: getattr(row, name) for name in names}
    return {
        "number": row.version,
        "published_at": row.published_at,
        **fields,
        "expired": row.version < oldest,
    }


def explain(
    table: Annotated[
        str, typer.Argument(metavar="PROFILE#SHARE.SCHEMA.TABLE", help="Table, as in a client.")
    ],
    where: Annotated[str | None, typer.Option(help="SQL predicate, like \"day >= '2024-03-01'\".")] = None,
    json_predicate: Annotated[str | None, typer.Option(help="JSON predicate: jsonPredicateHints.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="Number of rows: limitHint.")] = None,
    version: Annotated[int | None, typer.Option(min=0, help="The version; the latest by default.")] = None,
    files: Annotated[bool, typer.Option("--files", help="List each file with the reason.")] = False,
) -> None:
    """Explain which files of a table a predicate excludes for a recipient, and why.

    Example: lakeshare explain bob.share#sales.lake.orders --where "day >= '2024-03-01' AND amount > 100"
    """
    from lakeshare_server.access.table_access import TableViews
    from lakeshare_server.provider.serveability import explain_query, parse_profile_table

    (profile, names), provider = parse_profile_table(table), open_provider()
    predicates = {"predicateHints": where and [where], "jsonPredicateHints": json_predicate}
    fields = {**predicates, "limitHint": limit, "version": version}
    views = TableViews(provider.catalog, provider.versions)
    explanation = explain_query(provider.catalog, views, profile, names, fields)
    for line in chain(explanation.lines(), explanation.file_lines() if files else ()):
        typer.echo(line)


add_commands(commands)
