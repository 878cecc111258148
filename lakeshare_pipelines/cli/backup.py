"""`lakeshare inventory …`, `lakeshare backup …` and `lakeshare restore …`; one module per subject.

Commands import what they need when they run.
"""

import datetime as dt
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.config import Backup
    from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine
    from lakeshare_pipelines.backup.copy.batch_jobs import BatchJob
    from lakeshare_pipelines.backup.copy.engine import CopyTask, Progress
    from lakeshare_pipelines.backup.inventory.configuration import ReportFormat
    from lakeshare_pipelines.backup.inventory.reports import InventoryStatus, ReportStatus
    from lakeshare_pipelines.backup.model import ListingRecord, PlanRecord, Point, TableProof
    from lakeshare_pipelines.backup.points import Workspace
    from lakeshare_pipelines.backup.run import DrillRecord
    from lakeshare_pipelines.settings import LakeSettings

inventory_app = typer.Typer(
    help="Listings of what a store holds: ask a store for its own reports, or make one.", no_args_is_help=True
)
backup_app = typer.Typer(
    help="Backups: plan, make and look at points, prove that they open, keep them as long as declared.",
    no_args_is_help=True,
)


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

    from lakeshare_pipelines.backup.points import wait_for_point_name
    from lakeshare_pipelines.backup.run import BackupRun, make_point
    from lakeshare_pipelines.wap.staged import open_lake

    settings, backup = _backup(name)
    wanted = day or wait_for_point_name()
    now = datetime.now(UTC)
    typer.echo(f"{backup.name} {wanted}: {backup.source} to {backup.target_of(wanted)}")
    with open_lake(settings) as lake:
        backup_run = BackupRun(settings, backup, wanted, "by hand", lambda: lake.spark)
        point = make_point(backup_run, now, lambda line: typer.echo(f"  {line}"), show_progress())
    _show_point(point)
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
    _show_point(points.get(day or days[-1]))


@backup_app.command("release")
def release(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str, typer.Argument(help="The day that somebody claimed.")],
) -> None:
    """Give up the making of a day's point: stop its copies and let the next run claim it. What is copied stays."""
    from lakeshare_pipelines.backup.run import BackupRun, abandon_point
    from lakeshare_pipelines.wap.staged import open_lake

    settings, backup = _backup(name)
    with open_lake(settings) as lake:
        abandon_point(BackupRun(settings, backup, day, "by hand", lambda: lake.spark))
    typer.echo(f"{backup.name} {day} can be made again")


def show_progress() -> "Callable[[Progress], None]":
    """Shows how far a copy is: one line that changes on a terminal, a line now and then elsewhere."""
    import time

    from lakeshare_pipelines.backup.run import format_progress

    reported_at = time.monotonic()
    is_terminal = sys.stderr.isatty()

    def report_progress(progress: "Progress") -> None:
        nonlocal reported_at
        is_last = progress.objects == progress.objects_of
        if time.monotonic() - reported_at < PROGRESS_S and not is_last:
            return
        reported_at = time.monotonic()
        line = f"  {format_progress(progress)}"
        sys.stderr.write(f"\r\x1b[K{line}" if is_terminal and not is_last else f"{line}\n")
        sys.stderr.flush()

    return report_progress


def _show_point(point: "Point") -> None:
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
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    return settings, find_backup(settings, name)


MAX_NAMED = 20


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

    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.plan import draft_plan, require_within_bounds
    from lakeshare_pipelines.backup.points import Points, Workspace, get_point_time, wait_for_point_name
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = find_backup(settings, name)
    wanted = day or wait_for_point_name()
    try:
        get_point_time(wanted)
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
        drawn = draft_plan(
            backup,
            workspace,
            listing,
            Points(backup),
            wanted,
            report_message=lambda line: typer.echo(f"  {line}", err=True),
        )
    _show_plan(backup, drawn)
    require_within_bounds(backup, wanted, drawn.estimate)


def _listing(
    settings: "LakeSettings", backup: "Backup", workspace: "Workspace", day: str
) -> "ListingRecord | None":
    """The listing that the day's making has already, or one of now; its rows are in the workspace then."""
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup.inventory.sources import make_listing
    from lakeshare_pipelines.backup.model import ListingRecord
    from lakeshare_pipelines.backup.points import Workspace

    workspace_of_day = Workspace.of(settings, backup, day)
    known = workspace_of_day.load("listing", ListingRecord)
    if known is not None:
        workspace.clear("listing").symlink_to(workspace_of_day.rows("listing"), target_is_directory=True)
        return known
    typer.echo(f"  listing {backup.source}", err=True)
    return make_listing(backup, workspace, day, datetime.now(UTC))


def _show_plan(backup: "Backup", drawn: "PlanRecord") -> None:
    from rich.console import Console
    from rich.table import Table

    from lakeshare_pipelines.backup.plan import estimate_usd_per_month

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
        f"{estimate.requests:,} requests, {estimate.usd:,.2f} USD, then "
        f"{estimate_usd_per_month(backup, estimate):,.2f} a month, "
        f"about {estimate.minutes:,.1f} minutes; builds on {drawn.previous or 'no earlier point'}"
    )
    for table in drawn.tables[:MAX_NAMED]:
        typer.echo(f"  {table.format:8} {table.root or '(the whole store)'}")
    if len(drawn.tables) > MAX_NAMED:
        typer.echo(f"  and {len(drawn.tables) - MAX_NAMED:,} more tables")
    for warning in drawn.warnings:
        typer.echo(f"  {warning}")


@backup_app.command("jobs")
def jobs(
    name: Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")],
    day: Annotated[str, typer.Argument(metavar="DAY", help="The point's day, like 2026-11-20.")],
    confirm: Annotated[bool, typer.Option("--confirm", help="Let jobs begin that wait for it.")] = False,
    priority: Annotated[
        int | None, typer.Option(min=0, max=2**31 - 1, help="Give unfinished jobs another priority.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End jobs; what is copied stays.")] = False,
) -> None:
    """Show the jobs of S3 Batch Operations that copy a point; confirm, hurry or cancel those that have not ended.

    Example: lakeshare backup jobs lake 2026-11-20 --confirm
    """
    engine, task = _engine_and_task(name, day)
    if priority is not None:
        typer.echo(f"jobs with priority {priority} now: {engine.set_priority(task, priority)}")
    if confirm:
        typer.echo(f"jobs confirmed: {engine.confirm(task)}")
    if cancel:
        engine.cancel(task)
    found = engine.jobs(task)
    if not found:
        typer.echo(f"backup {name} has no jobs for {day}")
    for job in found:
        typer.echo(_format_job(job))


def _format_job(job: "BatchJob") -> str:
    why = f" ({'; '.join(job.reasons)})" if job.reasons else ""
    failed = f", {job.failed} failed" if job.failed else ""
    progress = f"{job.succeeded} of {job.objects} objects of {job.bucket}{failed}"
    return f"{job.job_id or '(not made)'}  {job.status}{why}: {progress}"


def _engine_and_task(name: str, day: str) -> "tuple[AwsBatchEngine, CopyTask]":
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine
    from lakeshare_pipelines.backup.run import BackupRun
    from lakeshare_pipelines.errors import BackupError
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = find_backup(settings, name)
    try:
        return AwsBatchEngine(backup), BackupRun(settings, backup, day, owner="").task()
    except ValueError as error:
        raise BackupError(f"day {day!r}", "it is no day", "Give one like 2026-11-20.") from error


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

    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.run import run_drill
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = find_backup(settings, name)
    ran = run_drill(
        backup, Points(backup), settings, seed or uuid4().hex, lambda sentence: typer.echo(f"  {sentence}")
    )
    _show_drill(ran)
    raise typer.Exit(0 if ran.passed else 1)


def _show_drill(ran: "DrillRecord") -> None:
    outcome = "passed" if ran.passed else "FAILED"
    typer.echo(f"{outcome}: {ran.table} of point {ran.day}, drawn with --seed {ran.seed}")
    rows = "rows not counted" if ran.rows is None else f"{ran.rows:,} rows"
    typer.echo(f"  {rows} in {ran.files:,} files, {ran.compared:,} of {ran.objects:,} objects compared")
    typer.echo(f"  back after {ran.rto_s:.1f} s (RTO); its state was {ran.rpo_s / 3600:.1f} hours old (RPO)")
    for reason in ran.reasons:
        typer.echo(f"  {reason}")


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
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    backup = find_backup(settings, name)
    record = scrubs.scrub(
        backup,
        Points(backup),
        settings,
        datetime.now(UTC),
        budget_bytes=budget_bytes,
        everything=everything,
        report_message=lambda line: typer.echo(f"  {line}", err=True),
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


@backup_app.command("sweep")
def sweep(
    name: Name = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go; remove nothing.")] = False,
) -> None:
    """Remove points that retention keeps no longer, and the copies that only they held.

    The newest verified point always stays; so does what is locked, being restored, or built on by a day being made.
    """
    from datetime import UTC, datetime

    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.retention import sweep_points
    from lakeshare_pipelines.settings import LakeSettings

    backup = find_backup(LakeSettings(), name)
    swept = sweep_points(
        backup,
        Points(backup),
        datetime.now(UTC),
        dry_run=dry_run,
        report_message=lambda line: typer.echo(f"  {line}", err=True),
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

    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.points import Points, get_point_time
    from lakeshare_pipelines.backup.retention import compute_lock_end, lock_point
    from lakeshare_pipelines.settings import LakeSettings

    points = Points(find_backup(LakeSettings(), name))
    point = points.get(day)
    try:
        ends = compute_lock_end(point.made_at, point.retention_class, points.backup.retention)
        ends = ends if until is None else get_point_time(until)
    except ValueError as error:
        raise typer.BadParameter(f"{until!r} is no day; give YYYY-MM-DD", param_hint="--until") from error
    if ends <= datetime.now(UTC):
        typer.echo(f"{name} {day}: its class ended on {ends:%Y-%m-%d}; give --until to lock it longer")
        raise typer.Exit(1)
    locked = lock_point(points, point, ends, report_message=lambda line: typer.echo(f"  {line}", err=True))
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
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.retention import find_orphans
    from lakeshare_pipelines.settings import LakeSettings

    backup = find_backup(LakeSettings(), name)
    points = Points(backup)
    days = points.days()
    if day is None and not days:
        typer.echo(f"{name} has no point yet: `lakeshare backup run {name}` makes one")
        raise typer.Exit(1)
    report = find_orphans(
        backup, points, day or days[-1], report_message=lambda line: typer.echo(f"  {line}", err=True)
    )
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


@backup_app.command("policies")
def policies(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backup.")],
    runner: Annotated[str, typer.Option(help="ARN of the role or user that runs lakeshare.")],
    to: Annotated[
        Path | None, typer.Option(help="Folder for the JSON files; without it they are printed.")
    ] = None,
    break_glass: Annotated[
        str | None, typer.Option(help="ARN of the role that alone may take protection away.")
    ] = None,
    retention_role: Annotated[
        str | None, typer.Option(help="ARN of the role that sweeps; nobody removes copies without it.")
    ] = None,
    organisation: Annotated[
        str | None, typer.Option(help="Id of the organisation (o-…) whose members alone reach the source.")
    ] = None,
    source_key: Annotated[
        str | None, typer.Option(help="ARN of the KMS key of the source's objects.")
    ] = None,
    target_key: Annotated[
        str | None, typer.Option(help="ARN of the KMS key of the target's objects.")
    ] = None,
    inventory_key: Annotated[
        str | None, typer.Option(help="ARN of the KMS key of inventory reports.")
    ] = None,
) -> None:
    """Write the policies of a backup between two accounts: role, runner, buckets, keys, guard-rails."""
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.policies import (
        Parties,
        format_page,
        format_policy,
        make_policy_files,
        write_policies,
    )
    from lakeshare_pipelines.settings import LakeSettings

    backup = find_backup(LakeSettings(), name)
    parties = Parties(
        runner, break_glass, retention_role, organisation, source_key, target_key, inventory_key
    )
    files = make_policy_files(backup, parties)
    if to is not None:
        for path in write_policies(backup, files, to):
            typer.echo(str(path))
        return
    typer.echo(format_page(backup, files))
    for file in files:
        typer.echo(f"{file.name}:\n{format_policy(file)}")


FORMATS: "dict[str, ReportFormat]" = {"csv": "CSV", "orc": "ORC", "parquet": "Parquet"}

InventoryName = Annotated[
    str | None,
    typer.Argument(
        metavar="[BACKUP]", help="Backup whose source is listed; the only declared one by default."
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        help="Where the report goes: a path or s3://bucket/prefix/, reached as the backup's `listing.store` "
        "says, else as its source is. Below it, S3's layout.",
    ),
]


@inventory_app.command("generate")
def generate(
    name: InventoryName = None,
    to: To = "",
    file_format: Annotated[
        str, typer.Option("--format", help="csv (which Batch Operations take), orc or parquet.")
    ] = "parquet",
    versions: Annotated[
        bool,
        typer.Option("--versions", help="All versions and delete markers, not the current objects only."),
    ] = False,
    configuration: Annotated[
        str, typer.Option("--id", help="Id of the configuration that the report is said to be of.")
    ] = "lakeshare",
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Listing requests at a time.")] = 32,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="Let Spark's tasks list: for hundreds of millions of objects.")
    ] = False,
) -> None:
    """List all objects of a bucket or folder, many ranges of keys at a time, into a report like S3 Inventory's."""
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.inventory.configuration import resolve_address
    from lakeshare_pipelines.backup.inventory.generate import ReportDestination, generate_report
    from lakeshare_pipelines.settings import LakeSettings
    from lakeshare_pipelines.spark.session import spark_session

    if file_format.lower() not in FORMATS:
        raise typer.BadParameter(f"{file_format!r} is none of csv, orc, parquet", param_hint="--format")
    if not to.startswith(("/", "s3://")):
        raise typer.BadParameter("give an absolute path or s3://bucket/prefix/", param_hint="--to")
    settings = LakeSettings()
    backup = find_backup(settings, name)
    place = ReportDestination(
        backup.source, resolve_address(backup, to), FORMATS[file_format.lower()], versions, configuration
    )
    with ExitStack() as stack:
        spark = (lambda: stack.enter_context(spark_session(settings))) if with_spark else None
        found = generate_report(place, in_flight=in_flight, spark=spark, report_progress=_print_message)
    seconds = (found.scan_ended_at - found.scan_started_at).total_seconds()
    typer.echo(f"{found.location}")
    typer.echo(
        f"{found.rows:,} objects of {found.size_bytes:,} bytes in {found.files} files, {seconds:.1f} s"
    )


def _print_message(sentence: str) -> None:
    typer.echo(sentence, err=True)


BackupName = Annotated[
    str | None, typer.Argument(metavar="[BACKUP]", help="Name of a declared backup; the only one by default.")
]


@inventory_app.command("configure")
def configure(
    name: BackupName = None,
    file_format: Annotated[
        str, typer.Option("--format", help="csv, orc or parquet; Batch Operations take csv only.")
    ] = "parquet",
    weekly: Annotated[bool, typer.Option("--weekly", help="A report a week instead of one a day.")] = False,
    kms_key: Annotated[
        str | None, typer.Option("--kms-key", help="ARN of the key that reports are encrypted with.")
    ] = None,
    with_lock: Annotated[
        bool, typer.Option("--with-lock", help="Ask for the columns of Object Lock as well.")
    ] = False,
    policy: Annotated[
        bool, typer.Option("--policy/--no-policy", help="Let the destination's bucket policy allow it too.")
    ] = True,
    show: Annotated[bool, typer.Option("--show", help="Print both documents and change nothing.")] = False,
) -> None:
    """Ask S3 for the inventory that a backup is declared to be listed by, and let its destination take it."""
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.inventory.configuration import (
        InventoryOptions,
        make_configuration,
        make_statement,
        put_configuration,
        put_statement,
    )
    from lakeshare_pipelines.settings import LakeSettings

    if file_format.lower() not in FORMATS:
        raise typer.BadParameter(f"{file_format!r} is none of csv, orc, parquet", param_hint="--format")
    backup = find_backup(LakeSettings(), name)
    wanted = InventoryOptions(
        FORMATS[file_format.lower()], "Weekly" if weekly else "Daily", kms_key, with_lock
    )
    if show:
        documents = {"InventoryConfiguration": make_configuration(backup, wanted)}
        if policy:
            documents["Statement"] = make_statement(backup)
        typer.echo(json.dumps(documents, indent=2))
        return
    if policy:
        put_statement(backup)
        typer.echo(f"the bucket policy of the destination lets {backup.source.bucket} report")
    stored = put_configuration(backup, wanted)
    summary = (
        f"{stored['Schedule']['Frequency'].lower()}, {stored['IncludedObjectVersions'].lower()} versions"
    )
    typer.echo(f"{backup.source} has inventory configuration {stored['Id']}: {file_format}, {summary}")
    typer.echo("the first report may take 48 hours; `lakeshare inventory status` shows it")


@inventory_app.command("status")
def status(name: BackupName = None) -> None:
    """Show the newest reports, how old they are and whether they came in time. Exit code 1 if a day's did not."""
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.backup.inventory.reports import get_inventory_status
    from lakeshare_pipelines.settings import LakeSettings

    backup = find_backup(LakeSettings(), name)
    typer.echo(f"backup {backup.name}, {backup.listing.kind} of {backup.source}")
    if backup.listing.kind == "generator":
        typer.echo("it is listed when a backup is made: no report is waited for")
        return
    typer.echo(f"at {backup.listing.location}")
    if backup.listing.kind == "s3_metadata":
        typer.echo(_tables(backup))
        return
    if backup.listing.kind == "manifest_csv":
        return
    found = get_inventory_status(backup, dt.datetime.now(dt.UTC))
    for line in _format_status(found):
        typer.echo(line)
    raise typer.Exit(1 if found.late is not None else 0)


def _format_status(found: "InventoryStatus") -> list[str]:
    lines = []
    if found.reports:
        lines.append(f"{found.arrived} reports have arrived, the newest are")
        lines.append(
            f"  {'scan began':20} {'age':>7} {'took':>7}  {'format':8} {'files':>6}  newest day   in time"
        )
        lines += [_format_report(report) for report in found.reports]
    else:
        lines.append("no report has arrived; the first may take 48 hours after it was configured")
    if found.late is not None:
        lines.append(f"day {found.due_day}: {found.late.reason}")
    lines.append(
        f"next: day {found.next_day}, by a report whose scan begins at {found.next_from:%Y-%m-%d %H:%M} UTC or later "
        f"and that comes by {found.next_until:%Y-%m-%d %H:%M} UTC"
    )
    return lines


def _format_report(one: "ReportStatus") -> str:
    took = one.arrived_at - one.scan_started_at
    began = f"  {one.scan_started_at:%Y-%m-%d %H:%M} UTC {_format_hours(one.age):>7} {_format_hours(took):>7}"
    if one.report is None:
        return f"{began}  cannot be used: {one.problem}"
    in_time = "yes" if one.is_in_time else "no"
    return f"{began}  {one.report.file_format:8} {len(one.report.files):6}  {one.day}   {in_time}"


def _format_hours(span: dt.timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} d"


def _tables(backup: "Backup") -> str:
    from lakeshare_pipelines.backup.inventory.sources import list_newest_snapshots

    return "\n".join(
        f"{place}: newest snapshot {'none' if taken_at is None else f'{taken_at:%Y-%m-%d %H:%M:%S} UTC'}"
        for place, taken_at in list_newest_snapshots(backup).items()
    )
