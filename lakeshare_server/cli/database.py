"""`lakeshare db`: check, upgrade, export and import the database of the catalog."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.cli.console import AsJson, print_json
from lakeshare_server.errors import CatalogConflict
from lakeshare_server.settings import StateSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakeshare_server.catalog.upgrades import DatabaseState

db_app = typer.Typer(
    help="The database of the catalog: check it, upgrade it, and move it between SQLite and PostgreSQL.",
    no_args_is_help=True,
)


PROGRESS_EVERY_S = 2.0


def _print_progress() -> "Callable[[str], None]":
    """Prints a line of progress at most every two seconds."""
    printed_at = time.monotonic()

    def report(line: str) -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= PROGRESS_EVERY_S:
            printed_at = time.monotonic()
            typer.echo(f"  {line}", err=True)

    return report


@db_app.command("check")
def check(as_json: AsJson = False) -> None:
    """Show the revision of the database, the migrations that are missing, and whether its schema is intact.

    Changes nothing. Exits with 1 if this lakeshare cannot use the database as it is.
    """
    from lakeshare_server.catalog.upgrades import check_catalog

    state = check_catalog(StateSettings().catalog_url)
    if as_json:
        print_json(state.to_json())
    else:
        _print_state(state)
    if not state.is_usable or state.problems:
        raise typer.Exit(1)


def _print_state(state: "DatabaseState") -> None:
    typer.echo(f"database   {state.location}")
    typer.echo(
        f"revision   {state.revision or 'none'}; this lakeshare {state.lakeshare} has {state.expected}"
    )
    typer.echo(f"state      {state.summary}")
    for migration in state.pending:
        typer.echo(f"pending    {migration.revision}  {migration.title}")
    for problem in state.problems:
        typer.secho(f"problem    {problem}", fg=typer.colors.RED)


@db_app.command("upgrade")
def upgrade(
    backups: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the backup of a database on a server; `catalog-backups` of the state folder by default."
        ),
    ] = None,
    no_backup: Annotated[
        bool,
        typer.Option("--no-backup", help="Export no backup: the database on the server has one of its own."),
    ] = False,
) -> None:
    """Back up the database, and migrate it to this lakeshare.

    Servers and pipelines of the last release go on while it runs and afterwards: upgrade the database first, then them.
    An SQLite file is copied beside it; a database on a server is exported, as by `lakeshare db export`.
    """
    from lakeshare_server.catalog.upgrades import upgrade_catalog

    settings = StateSettings()
    folder = None if no_backup else backups or settings.state_dir / "catalog-backups"
    done = upgrade_catalog(settings.catalog_url, folder, _print_progress())
    if done.backup is not None:
        typer.echo(f"backup: {done.backup}")
    if done.before is None:
        typer.echo(f"created the catalog at revision {done.after}")
    elif done.before == done.after:
        typer.echo(f"nothing to do: the catalog is at revision {done.after}")
    else:
        typer.echo(f"upgraded the catalog from revision {done.before} to {done.after}")


@db_app.command("export")
def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A new ZIP file; its owner alone can read it.")
    ],
) -> None:
    """Write all rows of the database into a file, as of one moment: everything but file indexes, keys and tables.

    Servers may go on. To move to another database, stop them first: what they write later is not in the file.
    """
    from lakeshare_server.catalog.database import connect_catalog
    from lakeshare_server.catalog.transfer import export_catalog

    settings = StateSettings()
    catalog = connect_catalog(settings.catalog_url)
    if catalog is None:
        raise CatalogConflict("there is no catalog", "Check LAKESHARE_STATE_DIR and LAKESHARE_DATABASE_URL.")
    manifest = export_catalog(catalog, file, _print_progress())
    catalog.close()
    typer.echo(f"wrote {file}: {manifest.rows:,} rows of revision {manifest.revision}")


@db_app.command("import")
def import_file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of `lakeshare db export`.")],
) -> None:
    """Fill the empty database of LAKESHARE_DATABASE_URL with a file of `lakeshare db export`: all rows or none."""
    from lakeshare_server.catalog.transfer import import_catalog

    manifest = import_catalog(StateSettings().catalog_url, file, _print_progress())
    typer.echo(f"imported {manifest.rows:,} rows of revision {manifest.revision}")
