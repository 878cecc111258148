"""`lakeshare backup scrub`: read copies again, repair what has rotted, downgrade what cannot be repaired."""

from typing import Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app


@backup_app.command("scrub")
def scrub(
    name: Annotated[
        str | None, typer.Argument(metavar="[BACKUP]", help="A declared backup; the only one by default.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Read all copies, whatever that takes.")] = False,
    budget_bytes: Annotated[
        int | None,
        typer.Option("--bytes", min=1, help="Read so many bytes; by default the share of one day."),
    ] = None,
) -> None:
    """Read copies again and compare them with what was backed up, those first that were not read for the longest time.

    Damaged copies are made again from the source, or from another point. Exits with 1 if any cannot be: the points that
    hold them are degraded from then on.
    """
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup import scrub as scrubs
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = backup_named(settings, name)
    record = scrubs.scrub(
        backup,
        Points(backup),
        settings,
        datetime.now(UTC),
        budget_bytes=budget_bytes,
        everything=everything,
        say=lambda line: typer.echo(f"  {line}", err=True),
    )
    typer.echo(
        f"{backup.name}: read {record.read:,} of {record.copies:,} copies, {record.read_bytes:,} of "
        f"{record.size_bytes:,} bytes"
    )
    if record.compared_since is not None:
        typer.echo(f"  every copy was compared since {record.compared_since:%Y-%m-%d %H:%M} UTC")
    if record.archived:
        typer.echo(f"  {record.archived:,} archived copies are not read")
    for sentence in (*record.warnings, *record.repaired):
        typer.echo(f"  {sentence}")
    for sentence in record.damaged:
        typer.echo(f"  DAMAGED: {sentence}")
    if record.downgraded:
        typer.echo(f"  degraded by that: {', '.join(record.downgraded)}")
    raise typer.Exit(0 if record.passed else 1)
