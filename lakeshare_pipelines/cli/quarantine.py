"""The commands of `lakeshare quarantine`: show rejected rows, export them to be corrected, deliver them again."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lakeshare_pipelines.cli.contract import find_contract, load_settings

quarantine_app = typer.Typer(
    help="Quarantine: the rows that did not parse, by run. They may hold personal data.", no_args_is_help=True
)

SetName = Annotated[str, typer.Argument(metavar="SET", help="A contract's name.")]
Run = Annotated[str, typer.Option("--run", help="Id of the run that rejected the rows.")]


@quarantine_app.command("list")
def list_files(set_name: SetName) -> None:
    """List the files with rejected rows, the newest run first."""
    from lakeshare_pipelines.wap.redelivery import format_quarantined, list_quarantined

    found = list_quarantined(load_settings(), find_contract(set_name).name)
    typer.echo("\n".join(format_quarantined(found)) or f"no rejected rows of {set_name} are in quarantine")


@quarantine_app.command("show")
def show(
    set_name: SetName,
    run: Annotated[str | None, typer.Option(help="Id of the run; all runs by default.")] = None,
    table: Annotated[str | None, typer.Option(help="Table, as SET.TABLE; all tables by default.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many rows.")] = 100,
) -> None:
    """Show the quarantined rows as delivered, with file, line and reason. They may hold personal data."""
    from lakeshare_pipelines.wap.stage import format_rejected_rows
    from lakeshare_pipelines.wap.staged import read_quarantine

    rows = read_quarantine(load_settings(), find_contract(set_name).name, run, table, limit)
    typer.echo("\n".join(format_rejected_rows(rows)) or f"no rejected rows of {set_name} are in quarantine")


@quarantine_app.command("export")
def export(
    set_name: SetName,
    run: Run,
    to: Annotated[Path, typer.Option(help="Folder for the files, made by the command.")],
) -> None:
    """Write the rejected lines of a run, as delivered, to files that can be corrected.

    Beside each file is one with the reasons. The files are readable by their owner only.

    Example: lakeshare quarantine export flights --run 3f2a… --to corrections
    """
    from lakeshare_pipelines.wap.redelivery import export_rejected
    from lakeshare_server.catalog import open_catalog

    settings = load_settings()
    for path in export_rejected(
        settings, open_catalog(settings.catalog_url), find_contract(set_name), run, to
    ):
        typer.echo(path)
    source = shlex.quote(str(to))
    typer.echo(f"correct them, then: lakeshare quarantine redeliver {set_name} --run {run} --from {source}")


@quarantine_app.command("redeliver")
def redeliver(
    set_name: SetName,
    run: Run,
    source: Annotated[Path, typer.Option("--from", help="The folder of `export`, with corrected lines.")],
) -> None:
    """Write the deliveries of a run again in landing, with corrected lines in place of the rejected ones.

    The landing sensor starts the run that audits and publishes them. Lines removed from the files are left out.

    Example: lakeshare quarantine redeliver flights --run 3f2a… --from corrections
    """
    from lakeshare_pipelines.wap import redelivery
    from lakeshare_server.catalog import open_catalog

    settings = load_settings()
    catalog = open_catalog(settings.catalog_url)
    for done in redelivery.redeliver(settings, catalog, find_contract(set_name), run, source):
        typer.echo(
            f"{set_name}/{done.partition}: {done.removed} rejected lines removed, {done.added} corrected lines added"
        )
