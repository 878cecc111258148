"""The server's commands: serve, explain, snippet, SQL, recipients, shares, tables, administrators, conformance.

The `lakeshare` command mounts them too.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.admin_commands import admin_app, tell_first_key
from lakeshare_server.conformance.command import conformance_app
from lakeshare_server.errors import LakeshareError
from lakeshare_server.snippets.command import snippet
from lakeshare_server.sql.command import sql
from lakeshare_server.table_commands import table_app

if TYPE_CHECKING:
    from lakeshare_server.catalog import Catalog

commands = typer.Typer(
    help="The lakeshare sharing server.", no_args_is_help=True, pretty_exceptions_enable=False
)
recipient_app = typer.Typer(
    help="Recipients: who may read which shares, and with which token.", no_args_is_help=True
)
share_app = typer.Typer(help="Shares: what can be granted.", no_args_is_help=True)

Days = Annotated[
    int | None, typer.Option("--days", min=1, help="The token ends after this many days; never by default.")
]
ProfilePath = Annotated[
    Path | None, typer.Option("--profile", help="Where the profile goes; NAME.share by default.")
]
Url = Annotated[str | None, typer.Option("--url", help="The server's root as the recipient reaches it.")]


def add_commands(app: typer.Typer) -> None:
    """Mount the server's commands on another application."""
    app.command()(serve)
    app.command()(publications)
    app.command()(explain)
    app.command()(snippet)
    app.command()(sql)
    app.add_typer(recipient_app, name="recipient")
    app.add_typer(share_app, name="share")
    app.add_typer(table_app, name="table")
    app.add_typer(admin_app, name="admin")
    app.add_typer(conformance_app, name="conformance")


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

    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = ServerSettings(**given)  # type: ignore[arg-type]  # checked by pydantic

    def tell(url: str) -> None:
        typer.echo(f"lakeshare serves {url} (Ctrl-C stops it)")
        if first_key:
            tell_first_key(settings.catalog_url)

    serve_app(settings, tell, workers)


@recipient_app.command("add")
def add_recipient(
    name: str,
    share: Annotated[
        list[str], typer.Option("--share", help="A share the recipient may read; repeat for more.")
    ],
    days: Days = None,
    comment: Annotated[str | None, typer.Option(help="Whatever helps to know who this is.")] = None,
    profile: ProfilePath = None,
    url: Url = None,
) -> None:
    """Add a recipient and write the profile its client needs. The token is nowhere else."""
    from lakeshare_server.catalog import Recipients

    recipient, token = Recipients(_catalog()).add(name, share, _ends(days), comment)
    _write(profile or Path(f"{name}.share"), url, token, recipient.expires_at)
    typer.echo(f"{recipient.name} may read {', '.join(recipient.shares)}")


@recipient_app.command("list")
def list_recipients() -> None:
    """List recipients with their shares and the end of their token."""
    from lakeshare_server.catalog import Recipients

    for recipient in Recipients(_catalog()).list():
        state = "revoked" if recipient.revoked_at else f"until {_day(recipient.expires_at)}"
        typer.echo(
            f"{recipient.name}\t{', '.join(recipient.shares) or '-'}\t{state}\t{recipient.comment or ''}"
        )


@recipient_app.command("rotate")
def rotate_recipient(name: str, days: Days = None, profile: ProfilePath = None, url: Url = None) -> None:
    """Give a recipient a new token and profile; the old token stops working at once."""
    from lakeshare_server.catalog import Recipients

    recipient, token = Recipients(_catalog()).rotate(name, _ends(days))
    _write(profile or Path(f"{recipient.name}.share"), url, token, recipient.expires_at)


@recipient_app.command("revoke")
def revoke_recipient(name: str) -> None:
    """End all access of a recipient at once."""
    from lakeshare_server.catalog import Recipients

    typer.echo(f"{Recipients(_catalog()).revoke(name).name} may read nothing any more")


def publications(
    table: Annotated[str, typer.Argument(help="The lake's table, like flights.departures.")],
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
) -> None:
    """List the publications of a table: number, time, rows, files, partition, run."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.errors import BadRequest

    ledger = Ledger(_catalog())
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
    from lakeshare_server.access.explain import asked_table, explained
    from lakeshare_server.access.view import Views
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.stores import Stores
    from lakeshare_server.versions import Versions

    asked = asked_table(table)
    settings, catalog = ServerSettings(), _catalog()
    views = Views(catalog, Versions(catalog, settings, Stores(settings)))
    fields = {
        "predicateHints": where and [where],
        "jsonPredicateHints": json_predicate,
        "limitHint": limit,
        "version": version,
    }
    found = explained(catalog, views, asked, fields)
    for line in found.lines():
        typer.echo(line)
    for line in found.file_lines() if files else ():
        typer.echo(line)


@share_app.command("list")
def list_shares() -> None:
    """List what is shared under which name, and which publication recipients read."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.catalog.listings import all_shared_tables

    catalog = _catalog()
    ledger = Ledger(catalog)
    for entry in all_shared_tables(catalog):
        latest = ledger.latest(entry.lake_table)
        number = "not published yet" if latest is None else f"publication {latest.version}"
        typer.echo(f"{entry.path}\t{entry.lake_table}\t{number}")


def _catalog() -> "Catalog":
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.settings import StateSettings

    return open_catalog(StateSettings().catalog_url)


def _ends(days: int | None) -> datetime | None:
    return None if days is None else datetime.now(UTC) + timedelta(days=days)


def _day(moment: datetime | None) -> str:
    return "further notice" if moment is None else moment.strftime("%Y-%m-%d %H:%MZ")


def _write(path: Path, url: str | None, token: str, expires_at: datetime | None) -> None:
    from lakeshare_server.access.profile import write_profile
    from lakeshare_server.settings import ServerSettings

    settings = ServerSettings()
    if url is not None:
        settings = settings.model_copy(update={"public_url": url})
    write_profile(path, settings.base_url(), token, expires_at, settings.iceberg_url())
    typer.echo(f"profile: {path}")


add_commands(commands)
