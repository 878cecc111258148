"""`lakeshare restore catalog`: ledger, shares and grants of a point, into an empty database."""

from pathlib import Path
from typing import Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import restore_app


@restore_app.command("catalog")
def catalog(
    day: Annotated[
        str | None, typer.Argument(metavar="[DAY]", help="The point; the newest verified one by default.")
    ] = None,
    backup_name: Annotated[
        str | None, typer.Option("--backup", help="Name of a declared backup; the only one by default.")
    ] = None,
    contracts_to: Annotated[
        Path | None,
        typer.Option("--contracts", help="Folder that the contracts go to; those in it stay as they are."),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Show what would come back, and change nothing.")
    ] = False,
) -> None:
    """Bring the catalog of a backup point back into the database of LAKESHARE_DATABASE_URL, which must be empty."""
    from lakeshare_pipelines.backup.catalog.bring_back import restore_catalog
    from lakeshare_pipelines.backup.catalog.manifest import read_manifest
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.restore.chosen import point_of
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    points = Points(backup_named(settings, backup_name))
    # A dump is whole by itself: one that is named comes back even where its point was never finished.
    day = day or point_of(points, None, lambda line: typer.echo(f"  {line}", err=True)).day
    manifest = read_manifest(points, day)
    typer.echo(
        f"point {day}: catalog of {manifest.dumped_at:%Y-%m-%d %H:%M:%S} UTC, revision {manifest.revision}"
    )
    for table in manifest.tables:
        typer.echo(f"  {table.name:20} {table.rows:>9,} rows")
    typer.echo(f"  {'file indexes':20} {len(manifest.indexes):>9,}")
    typer.echo(f"  {'contracts':20} {len(manifest.contracts):>9,}")
    if plan:
        return
    brought = restore_catalog(settings, points, day, contracts_to, typer.echo)
    typer.echo(f"{sum(brought.rows.values()):,} rows and {brought.indexes:,} file indexes are back")
    if brought.missing_indexes:
        typer.echo(
            f"{len(brought.missing_indexes)} file indexes were not there to be backed up: publish those tables again"
        )
    for path in brought.contracts:
        typer.echo(f"contract {path}")
    typer.echo("recipients keep their profiles: their tokens are known by their digests")
