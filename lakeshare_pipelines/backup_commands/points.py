"""`lakeshare backup run|list|show|release`: make a point by hand, and look at those there are."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.copy.engine import Progress
    from lakeshare_pipelines.backup.declared import Backup
    from lakeshare_pipelines.backup.records import Point, TableProof
    from lakeshare_pipelines.settings import LakeSettings

Name = Annotated[
    str | None, typer.Argument(metavar="[BACKUP]", help="A declared backup; the only one by default.")
]
PROGRESS_S = 2.0


@backup_app.command("run")
def run(
    name: Name = None,
    day: Annotated[
        str | None, typer.Option(help="The day to make the point of, as YYYY-MM-DD; this moment by default.")
    ] = None,
) -> None:
    """Make a backup point: list, plan, copy, verify. Broken off, the same command with --day goes on."""
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup.making import Making, make_point
    from lakeshare_pipelines.backup.workspace import point_of_this_moment
    from lakeshare_pipelines.wap.lake import with_spark

    settings, backup = _backup(name)
    wanted = day or point_of_this_moment()
    now = datetime.now(UTC)
    typer.echo(f"{backup.name} {wanted}: {backup.source} to {backup.target_of(wanted)}")
    with with_spark(settings) as lake:
        making = Making(settings, backup, wanted, "by hand", lambda: lake.spark)
        point = make_point(making, now, lambda line: typer.echo(f"  {line}"), shown_progress())
    _show(point)
    raise typer.Exit(0 if point.status.startswith("verified") else 1)


@backup_app.command("list")
def list_points(name: Name = None) -> None:
    """List the points of a backup, oldest first: when, how good, how much. Damaged records are listed as damaged."""
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.errors import DamagedRecord

    _, backup = _backup(name)
    points = Points(backup)
    days = points.days()
    for day in days:
        try:
            point = points.get(day)
        except DamagedRecord as error:
            typer.echo(f"{day:20} damaged: {error.reason}")
            continue
        proof = point.verification
        typer.echo(
            f"{day:20} {point.status:22} {point.retention_class:8} {len(proof.tables):>5} tables "
            f"{proof.objects:>10,} objects {proof.size_bytes:>16,} bytes"
        )
    if not days:
        typer.echo(f"{backup.name} has no point yet: `lakeshare backup run {backup.name}` makes one")


@backup_app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str | None, typer.Argument(help="The point's day; the newest by default.")] = None,
) -> None:
    """Show a point: each table with the version it opens at, what was proved, and what is wrong."""
    from lakeshare_pipelines.backup.points import Points

    _, backup = _backup(name)
    points = Points(backup)
    days = points.days()
    if day is None and not days:
        typer.echo(f"{backup.name} has no point yet")
        raise typer.Exit(1)
    _show(points.get(day or days[-1]))


@backup_app.command("release")
def release(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str, typer.Argument(help="The day that somebody claimed.")],
) -> None:
    """Give up the making of a day's point: stop its copies and let the next run claim it. What is copied stays."""
    from lakeshare_pipelines.backup.making import Making, given_up
    from lakeshare_pipelines.wap.lake import with_spark

    settings, backup = _backup(name)
    with with_spark(settings) as lake:
        given_up(Making(settings, backup, day, "by hand", lambda: lake.spark))
    typer.echo(f"{backup.name} {day} can be made again")


def shown_progress() -> "Callable[[Progress], None]":
    """Shows how far a copy is: one line that changes on a terminal, a line now and then elsewhere."""
    import time

    from lakeshare_pipelines.backup.making import progress_line

    told_at = time.monotonic()
    is_terminal = sys.stderr.isatty()

    def tell(progress: "Progress") -> None:
        nonlocal told_at
        is_last = progress.objects == progress.objects_of
        if time.monotonic() - told_at < PROGRESS_S and not is_last:
            return
        told_at = time.monotonic()
        line = f"  {progress_line(progress)}"
        sys.stderr.write(f"\r\x1b[K{line}" if is_terminal and not is_last else f"{line}\n")
        sys.stderr.flush()

    return tell


def _show(point: "Point") -> None:
    proof = point.verification
    typer.echo(
        f"{point.backup} {point.day}: {point.status}, {proof.objects:,} objects, {proof.size_bytes:,} bytes"
    )
    typer.echo(
        f"  as of {point.as_of:%Y-%m-%d %H:%M:%S} UTC, in {point.target}, made {point.made_at:%Y-%m-%d %H:%M}"
    )
    if point.locked_until is not None:
        typer.echo(f"  locked until {point.locked_until:%Y-%m-%d}")
    for table in proof.tables:
        _show_table(table)
    for reason in proof.reasons:
        typer.echo(f"  {reason}")


def _show_table(proof: "TableProof") -> None:
    version = "" if proof.version is None else f"version {proof.version}"
    rows = "" if proof.rows is None else f"{proof.rows:,} rows"
    typer.echo(
        f"  {proof.table.root:40} {proof.table.format:7} {proof.status:22} L{proof.level} {version:12} "
        f"{proof.files:>7,} files {rows}".rstrip()
    )
    for reason in proof.reasons:
        typer.echo(f"      {reason}")


def _backup(name: str | None) -> "tuple[LakeSettings, Backup]":
    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    return settings, backup_named(settings, name)
