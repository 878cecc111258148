"""`lakeshare backup drill`: prove by hand that a table comes back."""

from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.drill import DrillRecord


@backup_app.command("drill")
def drill(
    name: Annotated[
        str | None, typer.Argument(metavar="[BACKUP]", help="A declared backup; the only one by default.")
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="Draws the same table again; by default another one each time.")
    ] = None,
) -> None:
    """Restore a table of the newest good point, drawn by lot, to scratch; open, count and compare it."""
    from uuid import uuid4

    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.drill import run_drill
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = backup_named(settings, name)
    ran = run_drill(
        backup, Points(backup), settings, seed or uuid4().hex, lambda said: typer.echo(f"  {said}")
    )
    _show(ran)
    raise typer.Exit(0 if ran.passed else 1)


def _show(ran: "DrillRecord") -> None:
    outcome = "passed" if ran.passed else "FAILED"
    typer.echo(f"{outcome}: {ran.table} of point {ran.day}, drawn with --seed {ran.seed}")
    rows = "rows not counted" if ran.rows is None else f"{ran.rows:,} rows"
    typer.echo(f"  {rows} in {ran.files:,} files, {ran.compared:,} of {ran.objects:,} objects compared")
    typer.echo(f"  back after {ran.rto_s:.1f} s (RTO); its state was {ran.rpo_s / 3600:.1f} hours old (RPO)")
    for reason in ran.reasons:
        typer.echo(f"  {reason}")
