"""`lakeshare backup plan`: what a point would take, before anything is copied."""

from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.backup_commands.apps import backup_app
from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.declared import Backup
    from lakeshare_pipelines.backup.records import ListingRecord, PlanRecord
    from lakeshare_pipelines.backup.workspace import Workspace
    from lakeshare_pipelines.settings import LakeSettings

NAMED = 20


@backup_app.command("plan")
def plan(
    name: Annotated[
        str | None, typer.Argument(metavar="[BACKUP]", help="A declared backup; the only one by default.")
    ] = None,
    day: Annotated[
        str | None, typer.Option(help="The day of the point, as YYYY-MM-DD; this moment by default.")
    ] = None,
) -> None:
    """Show what a point would copy: objects, bytes, requests, US dollars, minutes. Copies nothing, keeps nothing.

    Exit code 1 when it is beyond the backup's bounds, or no listing has come yet.
    """
    from tempfile import TemporaryDirectory

    from lakeshare_pipelines.backup.declared import backup_named
    from lakeshare_pipelines.backup.plan.estimate import require_within_bounds
    from lakeshare_pipelines.backup.plan.make import draw_plan
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.workspace import Workspace, end_of, point_of_this_moment
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = backup_named(settings, name)
    wanted = day or point_of_this_moment()
    try:
        end_of(wanted)
    except ValueError as error:
        raise typer.BadParameter(f"{wanted!r} is no day; give YYYY-MM-DD", param_hint="--day") from error
    make_private(settings.state_dir)
    with TemporaryDirectory(dir=settings.state_dir, prefix="plan-") as scratch:
        workspace = Workspace(settings.state_dir / scratch / wanted)
        listing = _listing(settings, backup, workspace, wanted)
        if listing is None:
            typer.echo(
                f"{backup.name} {wanted}: no report has come yet; `lakeshare inventory status` tells more"
            )
            raise typer.Exit(1)
        drawn = draw_plan(
            backup,
            workspace,
            listing,
            Points(backup),
            wanted,
            say=lambda line: typer.echo(f"  {line}", err=True),
        )
    _show(backup, drawn)
    require_within_bounds(backup, wanted, drawn.estimate)


def _listing(
    settings: "LakeSettings", backup: "Backup", workspace: "Workspace", day: str
) -> "ListingRecord | None":
    """The listing that the day's making has already, or one of now; its rows are in the workspace then."""
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup.listing.make import make_listing
    from lakeshare_pipelines.backup.records import ListingRecord
    from lakeshare_pipelines.backup.workspace import Workspace

    made = Workspace.of(settings, backup, day)
    known = made.load("listing", ListingRecord)
    if known is not None:
        workspace.clear("listing").symlink_to(made.rows("listing"), target_is_directory=True)
        return known
    typer.echo(f"  listing {backup.source}", err=True)
    return make_listing(backup, workspace, day, datetime.now(UTC))


def _show(backup: "Backup", drawn: "PlanRecord") -> None:
    from rich.console import Console
    from rich.table import Table

    from lakeshare_pipelines.backup.plan.estimate import usd_a_month

    estimate = drawn.estimate
    lanes = Table(title=f"{backup.name} {drawn.day}: {backup.source} to {backup.target_of(drawn.day)}")
    lanes.add_column("")
    lanes.add_column("objects", justify="right")
    lanes.add_column("bytes", justify="right")
    lanes.add_row("held already", f"{estimate.held_objects:,}", f"{estimate.held_bytes:,}")
    lanes.add_row("to copy", f"{estimate.objects:,}", f"{estimate.size_bytes:,}")
    for lane, count in estimate.by_lane.items():
        if lane != "held":
            lanes.add_row(f"  {lane}", f"{count:,}", "")
    for reason, count in drawn.left_out.items():
        lanes.add_row(f"left out: {reason}", f"{count:,}", "")
    Console().print(lanes)
    typer.echo(
        f"{estimate.requests:,} requests, {estimate.usd:,.2f} USD, then {usd_a_month(backup, estimate):,.2f} a month, "
        f"about {estimate.minutes:,.1f} minutes; builds on {drawn.previous or 'no earlier point'}"
    )
    for table in drawn.tables[:NAMED]:
        typer.echo(f"  {table.format:8} {table.root or '(the whole store)'}")
    if len(drawn.tables) > NAMED:
        typer.echo(f"  and {len(drawn.tables) - NAMED:,} more tables")
    for warning in drawn.warnings:
        typer.echo(f"  {warning}")
