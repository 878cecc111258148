"""`lakeshare backup sweep|lock|orphans`: how long points stay, and what nobody needs."""

from typing import Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app

Name = Annotated[
    str | None, typer.Argument(metavar="[BACKUP]", help="A declared backup; the only one by default.")
]


@backup_app.command("sweep")
def sweep(
    name: Name = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go; remove nothing.")] = False,
) -> None:
    """Remove points that retention keeps no longer, and the copies that only they held.

    The newest verified point always stays; so does what is locked, being restored, or built on by a day being made.
    """
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.retention.sweep import sweep_points
    from lakeshare_pipelines.settings import LakeSettings

    backup = backup_named(LakeSettings(), name)
    swept = sweep_points(
        backup,
        Points(backup),
        datetime.now(UTC),
        dry_run=dry_run,
        say=lambda line: typer.echo(f"  {line}", err=True),
    )
    word = "would go" if dry_run else "are gone"
    typer.echo(
        f"{backup.name}: {len(swept.days)} points {word}, with {swept.objects:,} copies, {swept.size_bytes:,} bytes"
    )
    for day in swept.days:
        typer.echo(f"  {day}")
    for sentence in swept.spared:
        typer.echo(f"  {sentence}")


@backup_app.command("lock")
def lock(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str, typer.Argument(help="The point's day.")],
    until: Annotated[
        str | None, typer.Option(help="YYYY-MM-DD; by default until its retention class ends.")
    ] = None,
) -> None:
    """Lock a point's copies (Object Lock), or lock them longer; a lock is never shortened."""
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.retention.classes import lock_ends
    from lakeshare_pipelines.backup.retention.locks import lock_point
    from lakeshare_pipelines.backup.workspace import end_of
    from lakeshare_pipelines.settings import LakeSettings

    points = Points(backup_named(LakeSettings(), name))
    point = points.get(day)
    try:
        ends = lock_ends(point.made_at, point.retention_class, points.backup.retention)
        ends = ends if until is None else end_of(until)
    except ValueError as error:
        raise typer.BadParameter(f"{until!r} is no day; give YYYY-MM-DD", param_hint="--until") from error
    if ends <= datetime.now(UTC):
        typer.echo(f"{name} {day}: its class ended on {ends:%Y-%m-%d}; give --until to lock it longer")
        raise typer.Exit(1)
    locked = lock_point(points, point, ends, say=lambda line: typer.echo(f"  {line}", err=True))
    typer.echo(
        f"{name} {day}: locked until {ends:%Y-%m-%d}; {locked.extended:,} copies now, "
        f"{locked.sufficient:,} were locked as long"
    )


@backup_app.command("orphans")
def orphans(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str | None, typer.Argument(help="The point's day; the newest by default.")] = None,
) -> None:
    """Tell which files of the source no retained version of their table names, and what they cost. Removes nothing."""
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.retention.orphans import find_orphans
    from lakeshare_pipelines.settings import LakeSettings

    backup = backup_named(LakeSettings(), name)
    points = Points(backup)
    days = points.days()
    if day is None and not days:
        typer.echo(f"{name} has no point yet: `lakeshare backup run {name}` makes one")
        raise typer.Exit(1)
    report = find_orphans(backup, points, day or days[-1], say=lambda line: typer.echo(f"  {line}", err=True))
    objects = sum(table.objects for table in report.tables)
    size_bytes = sum(table.size_bytes for table in report.tables)
    typer.echo(
        f"{name} {report.day}: {objects:,} orphans of {len(report.tables)} tables, {size_bytes:,} bytes"
    )
    for table in report.tables:
        typer.echo(
            f"  {table.root:40} {table.objects:>8,} files {table.size_bytes:>16,} bytes "
            f"{table.usd_a_month:>10,.2f} USD a month"
        )
        for key in table.examples:
            typer.echo(f"      {key}")
    for sentence in report.unknown:
        typer.echo(f"  {sentence}")
