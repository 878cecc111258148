"""The commands `lakeshare inventory …` and `lakeshare backup …`; each imports what it needs when it runs."""

import datetime as dt
import json
import re
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_pipelines.errors import DamagedRecord
from lakeshare_server.settings import make_private

if TYPE_CHECKING:
    from lakeshare_pipelines.backup.config import Backup
    from lakeshare_pipelines.backup.copy.engine import Progress
    from lakeshare_pipelines.backup.inventory.configuration import ReportFormat
    from lakeshare_pipelines.backup.inventory.reports import ReportStatus
    from lakeshare_pipelines.backup.model import ListingRecord, PlanRecord, Point
    from lakeshare_pipelines.backup.points import Points, Workspace
    from lakeshare_pipelines.settings import LakeSettings

inventory_app = typer.Typer(
    help="Listings of the objects in a store: request the store's reports, or make one.", no_args_is_help=True
)
backup_app = typer.Typer(
    help="Backups: plan, make, show and verify backup points, and apply their retention.",
    no_args_is_help=True,
)


POINT_NAME = re.compile(r"\d{4}-\d\d-\d\d(T\d{6}Z)?", re.ASCII)


def _check_day(day: str | None) -> str | None:
    from lakeshare_pipelines.backup.points import get_point_time

    # Other spellings of a day would name other points, which do not sort by time.
    try:
        is_name = day is None or bool(POINT_NAME.fullmatch(day) and get_point_time(day))
    except ValueError:
        is_name = False
    if not is_name:
        raise typer.BadParameter(f"{day!r} is no day; give YYYY-MM-DD")
    return day


Name = Annotated[
    str | None, typer.Argument(metavar="[BACKUP]", help="A declared backup; the only one by default.")
]
RequiredName = Annotated[str, typer.Argument(metavar="BACKUP", help="A declared backup.")]
Day = Annotated[str, typer.Argument(help="The point's day, like 2026-11-20.", callback=_check_day)]
NewestDay = Annotated[str | None, typer.Argument(help="The point's day; the newest by default.")]
DayToMake = Annotated[
    str | None, typer.Option(help="YYYY-MM-DD; the current time by default.", callback=_check_day)
]
PROGRESS_S = 2.0
MAX_NAMED = 20


def load_backup(name: str | None) -> "tuple[LakeSettings, Backup]":
    """Returns the settings and a declared backup; the only declared one if `name` is None."""
    from lakeshare_pipelines.backup.config import find_backup
    from lakeshare_pipelines.settings import LakeSettings

    settings = LakeSettings()
    return settings, find_backup(settings, name)


def print_message(sentence: str) -> None:
    typer.echo(f"  {sentence}", err=True)


def _find_points(name: str | None) -> "Points":
    from lakeshare_pipelines.backup.points import Points

    return Points(load_backup(name)[1])


def _require_day(points: "Points", day: str | None) -> str:
    """Returns `day`, by default the newest with a point; exits with 1 if there is none."""
    days = points.days()
    if day is None and not days:
        name = points.backup.name
        typer.echo(f"{name} has no point yet: `lakeshare backup run {name}` makes one")
        raise typer.Exit(1)
    return day or days[-1]


@backup_app.command("run")
def run(name: Name = None, day: DayToMake = None) -> None:
    """Make a backup point: list, plan, copy, verify. With --day, continue an interrupted run."""
    from lakeshare_pipelines.backup.points import wait_for_point_name
    from lakeshare_pipelines.backup.run import BackupRun, make_point
    from lakeshare_pipelines.wap.staged import open_lake

    settings, backup = load_backup(name)
    day = day or wait_for_point_name()
    now = dt.datetime.now(dt.UTC)
    typer.echo(f"{backup.name} {day}: {backup.source} to {backup.target_of(day)}")
    # An interrupted run is continued where its steps are, and nowhere else meanwhile.
    owner = f"a run by hand on {socket.gethostname()}, with the state folder {settings.state_dir},"
    with open_lake(settings) as lake:
        backup_run = BackupRun(settings, backup, day, owner, lambda: lake.spark)
        point = make_point(backup_run, now, lambda line: typer.echo(f"  {line}"), show_progress())
    _show_point(point)
    raise typer.Exit(0 if point.status.startswith("verified") else 1)


@backup_app.command("list")
def list_points(name: Name = None) -> None:
    """List the points of a backup, oldest first: day, status, class and size. Damaged records are listed as damaged."""
    points = _find_points(name)
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
        backup = points.backup.name
        typer.echo(f"{backup} has no point yet: `lakeshare backup run {backup}` makes one")


@backup_app.command("show")
def show(name: RequiredName, day: NewestDay = None) -> None:
    """Show a point: each table with its version, verification level and problems."""
    points = _find_points(name)
    _show_point(points.get(_require_day(points, day)))


@backup_app.command("release")
def release(name: RequiredName, day: Day) -> None:
    """Release the claim on a day's point: stop its copies and let another run make it. Finished copies stay."""
    from lakeshare_pipelines.backup.run import BackupRun, abandon_point
    from lakeshare_pipelines.wap.staged import open_lake

    settings, backup = load_backup(name)
    with open_lake(settings) as lake:
        abandon_point(BackupRun(settings, backup, day, "", lambda: lake.spark))
    typer.echo(f"{backup.name} {day} can be made by another run")


def show_progress() -> "Callable[[Progress], None]":
    """Returns a progress reporter: one line that changes on a terminal, a line every two seconds in a log."""
    from lakeshare_pipelines.backup.run import report_every

    is_terminal = sys.stderr.isatty()

    def show(line: str, is_last: bool) -> None:
        sys.stderr.write(f"\r\x1b[K  {line}" if is_terminal and not is_last else f"  {line}\n")
        sys.stderr.flush()

    return report_every(PROGRESS_S, show)


def _show_point(point: "Point") -> None:
    proof = point.verification
    typer.echo(
        f"{point.backup} {point.day}: {point.status}, {proof.objects:,} objects, {proof.size_bytes:,} bytes\n"
        f"  as of {point.as_of:%Y-%m-%d %H:%M:%S} UTC, in {point.target}, made {point.made_at:%Y-%m-%d %H:%M}"
    )
    if point.locked_until is not None:
        typer.echo(f"  locked until {point.locked_until:%Y-%m-%d}")
    for table in proof.tables:
        version = "" if table.version is None else f"version {table.version}"
        rows = "" if table.rows is None else f"{table.rows:,} rows"
        typer.echo(
            f"  {table.table.root:40} {table.table.format:7} {table.status:22} L{table.level} {version:12} "
            f"{table.files:>7,} files {rows}".rstrip()
        )
        for reason in table.reasons:
            typer.echo(f"      {reason}")
    for reason in proof.reasons:
        typer.echo(f"  {reason}")


@backup_app.command("plan")
def plan(name: Name = None, day: DayToMake = None) -> None:
    """Show what a point would copy: objects, bytes, requests, US dollars, minutes. Copies and stores nothing.

    Exit code 1 if the plan exceeds the backup's bounds, or no listing has arrived yet.
    """
    from tempfile import TemporaryDirectory

    from lakeshare_pipelines.backup.plan import make_plan, require_within_bounds
    from lakeshare_pipelines.backup.points import Points, Workspace, wait_for_point_name

    settings, backup = load_backup(name)
    day = day or wait_for_point_name()
    make_private(settings.state_dir)
    with TemporaryDirectory(dir=settings.state_dir, prefix="plan-") as scratch:
        workspace = Workspace(settings.state_dir / scratch / day)
        listing = _get_listing(settings, backup, workspace, day)
        if listing is None:
            typer.echo(f"{backup.name} {day}: no report has arrived yet; see `lakeshare inventory status`")
            raise typer.Exit(1)
        points = Points(backup)
        drawn = make_plan(
            backup, workspace, listing, points, day, report_message=print_message, is_bounded=False
        )
    _show_plan(backup, drawn)
    require_within_bounds(backup, day, drawn.estimate)


def _get_listing(
    settings: "LakeSettings", backup: "Backup", workspace: "Workspace", day: str
) -> "ListingRecord | None":
    """Reuses the listing of the day's run, or makes one; its rows are in `workspace` afterwards."""
    from lakeshare_pipelines.backup.inventory.sources import make_listing
    from lakeshare_pipelines.backup.model import ListingRecord
    from lakeshare_pipelines.backup.points import Workspace

    workspace_of_day = Workspace.of(settings, backup, day)
    known = workspace_of_day.load("listing", ListingRecord)
    if known is not None:
        workspace.clear("listing").symlink_to(workspace_of_day.rows("listing"), target_is_directory=True)
        return known
    print_message(f"listing {backup.source}")
    return make_listing(backup, workspace, day, dt.datetime.now(dt.UTC))


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
    name: RequiredName,
    day: Day,
    confirm: Annotated[bool, typer.Option("--confirm", help="Confirm jobs that wait for it.")] = False,
    priority: Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="New priority of jobs.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel jobs; finished copies stay.")] = False,
) -> None:
    """Show the S3 Batch Operations jobs that copy a point; confirm, reprioritise or cancel unfinished ones.

    Example: lakeshare backup jobs lake 2026-11-20 --confirm
    """
    from lakeshare_pipelines.backup.copy.aws_batch import AwsBatchEngine
    from lakeshare_pipelines.backup.run import BackupRun

    settings, backup = load_backup(name)
    engine, task = AwsBatchEngine(backup), BackupRun(settings, backup, day, owner="").task()
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
        reasons = f" ({'; '.join(job.reasons)})" if job.reasons else ""
        failed = f", {job.failed} failed" if job.failed else ""
        progress = f"{job.succeeded} of {job.objects} objects of {job.bucket}{failed}"
        typer.echo(f"{job.job_id or '(not made)'}  {job.status}{reasons}: {progress}")


@backup_app.command("drill")
def drill(
    name: Name = None,
    seed: Annotated[str | None, typer.Option(help="Selects the table; a random one by default.")] = None,
) -> None:
    """Restore a random table of the newest good point to scratch; open it, count its rows and compare its files."""
    from uuid import uuid4

    from lakeshare_pipelines.backup.points import Points
    from lakeshare_pipelines.backup.run import run_drill

    settings, backup = load_backup(name)
    ran = run_drill(
        backup, Points(backup), settings, seed or uuid4().hex, lambda sentence: typer.echo(f"  {sentence}")
    )
    outcome = "passed" if ran.passed else "FAILED"
    typer.echo(f"{outcome}: {ran.table} of point {ran.day}, drawn with --seed {ran.seed}")
    rows = "rows not counted" if ran.rows is None else f"{ran.rows:,} rows"
    typer.echo(f"  {rows} in {ran.files:,} files, {ran.compared:,} of {ran.objects:,} objects compared")
    typer.echo(f"  back after {ran.rto_s:.1f} s (RTO); its state was {ran.rpo_s / 3600:.1f} hours old (RPO)")
    for reason in ran.reasons:
        typer.echo(f"  {reason}")
    raise typer.Exit(0 if ran.passed else 1)


@backup_app.command("scrub")
def scrub(
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="Read all copies.")] = False,
    budget_bytes: Annotated[
        int | None, typer.Option("--bytes", min=1, help="By default the share of one day.")
    ] = None,
) -> None:
    """Read copies again, the longest unread first, and compare them with what was backed up.

    Damaged copies are made again from the source or from another point. Exit code 1 if any cannot be repaired: the
    points that hold them become degraded.
    """
    from lakeshare_pipelines.backup import scrub as scrubs
    from lakeshare_pipelines.backup.points import Points

    settings, backup = load_backup(name)
    record = scrubs.scrub(
        backup,
        Points(backup),
        settings,
        dt.datetime.now(dt.UTC),
        budget_bytes=budget_bytes,
        everything=everything,
        report_message=print_message,
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
    """Remove points beyond their retention, and the copies that only those points hold.

    The newest verified point stays, and so do points that are locked, being restored, or the base of a point in
    progress.
    """
    from lakeshare_pipelines.backup.retention import sweep_points

    points = _find_points(name)
    swept = sweep_points(
        points.backup, points, dt.datetime.now(dt.UTC), dry_run=dry_run, report_message=print_message
    )
    typer.echo(
        f"{points.backup.name}: {len(swept.days)} points {'would go' if dry_run else 'are gone'}, with "
        f"{swept.objects:,} copies, {swept.size_bytes:,} bytes"
    )
    for line in (*swept.days, *swept.spared):
        typer.echo(f"  {line}")


@backup_app.command("lock")
def lock(
    name: RequiredName,
    day: Day,
    until: Annotated[
        str | None, typer.Option(callback=_check_day, help="YYYY-MM-DD; by default the end of its class.")
    ] = None,
) -> None:
    """Lock a point's copies with Object Lock, or extend their lock; a lock is never shortened."""
    from lakeshare_pipelines.backup.points import get_point_time
    from lakeshare_pipelines.backup.retention import compute_lock_end, lock_point

    points = _find_points(name)
    point = points.get(day)
    ends = compute_lock_end(point.made_at, point.retention_class, points.backup.retention)
    ends = ends if until is None else get_point_time(until)
    if ends <= dt.datetime.now(dt.UTC):
        typer.echo(f"{name} {day}: its class ended on {ends:%Y-%m-%d}; give --until to lock it longer")
        raise typer.Exit(1)
    locked = lock_point(points, point, ends, report_message=print_message)
    typer.echo(
        f"{name} {day}: locked until {ends:%Y-%m-%d}; {locked.extended:,} copies now, "
        f"{locked.sufficient:,} were locked as long"
    )


@backup_app.command("orphans")
def orphans(name: RequiredName, day: NewestDay = None) -> None:
    """List files of the source that no retained version of their table names, with their cost. Removes nothing."""
    from lakeshare_pipelines.backup.retention import find_orphans

    points = _find_points(name)
    report = find_orphans(points.backup, points, _require_day(points, day), report_message=print_message)
    objects = sum(table.objects for table in report.tables)
    size_bytes = sum(table.size_bytes for table in report.tables)
    line = f"{name} {report.day}: {objects:,} orphans of {len(report.tables)} tables, {size_bytes:,} bytes"
    typer.echo(line)
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
    to: Annotated[Path | None, typer.Option(help="Folder for the JSON files; printed by default.")] = None,
    break_glass: Annotated[
        str | None, typer.Option(help="ARN of the role that can remove protection.")
    ] = None,
    retention_role: Annotated[
        str | None, typer.Option(help="ARN of the role that sweeps; without it no role can remove copies.")
    ] = None,
    organisation: Annotated[
        str | None, typer.Option(help="Id (o-…) of the organisation whose members alone can read the source.")
    ] = None,
    source_key: Annotated[str | None, typer.Option(help="ARN of the KMS key of the source.")] = None,
    target_key: Annotated[str | None, typer.Option(help="ARN of the KMS key of the target.")] = None,
    inventory_key: Annotated[str | None, typer.Option(help="ARN of the KMS key of reports.")] = None,
) -> None:
    """Write the policies of a backup between two accounts: role, runner, buckets, keys, guard-rails."""
    from lakeshare_pipelines.backup import policies as writer

    _, backup = load_backup(name)
    keys = (source_key, target_key, inventory_key)
    parties = writer.Parties(runner, break_glass, retention_role, organisation, *keys)
    files = writer.make_policy_files(backup, parties)
    if to is not None:
        for path in writer.write_policies(backup, files, to):
            typer.echo(str(path))
        return
    typer.echo(writer.format_page(backup, files))
    for file in files:
        typer.echo(f"{file.name}:\n{file.format()}")


FORMATS: "dict[str, ReportFormat]" = {"csv": "CSV", "orc": "ORC", "parquet": "Parquet"}

Format = Annotated[str, typer.Option("--format", help="csv, orc or parquet; Batch Operations take csv only.")]


def _parse_format(name: str) -> "ReportFormat":
    if name.lower() not in FORMATS:
        raise typer.BadParameter(f"{name!r} is none of csv, orc, parquet", param_hint="--format")
    return FORMATS[name.lower()]


@inventory_app.command("generate")
def generate(
    name: Name = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Destination of the report, laid out as by S3: a path or s3://bucket/prefix/, with the options of "
            "the backup's `listing.store`, else of its source.",
        ),
    ] = "",
    file_format: Format = "parquet",
    versions: Annotated[
        bool,
        typer.Option("--versions", help="List all versions and delete markers, not only current objects."),
    ] = False,
    configuration: Annotated[
        str, typer.Option("--id", help="Id of the configuration in the report.")
    ] = "lakeshare",
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Listing requests at a time.")] = 32,
    with_spark: Annotated[
        bool, typer.Option("--spark", help="List in Spark tasks: for hundreds of millions of objects.")
    ] = False,
) -> None:
    """List all objects of a bucket or folder, in parallel ranges of keys, into a report like S3 Inventory's."""
    from lakeshare_pipelines.backup.inventory.configuration import resolve_address
    from lakeshare_pipelines.backup.inventory.reports import ReportDestination, generate_report
    from lakeshare_pipelines.spark.session import spark_session

    report_format = _parse_format(file_format)
    if not to.startswith(("/", "s3://")):
        raise typer.BadParameter("give an absolute path or s3://bucket/prefix/", param_hint="--to")
    settings, backup = load_backup(name)
    destination = ReportDestination(
        backup.source, resolve_address(backup, to), report_format, versions, configuration
    )
    with ExitStack() as stack:
        spark = (lambda: stack.enter_context(spark_session(settings))) if with_spark else None
        found = generate_report(
            destination,
            in_flight=in_flight,
            spark=spark,
            report_progress=lambda sentence: typer.echo(sentence, err=True),
        )
    seconds = (found.scan_ended_at - found.scan_started_at).total_seconds()
    typer.echo(
        f"{found.location}\n"
        f"{found.rows:,} objects of {found.size_bytes:,} bytes in {found.files} files, {seconds:.1f} s"
    )


@inventory_app.command("configure")
def configure(
    name: Name = None,
    file_format: Format = "parquet",
    weekly: Annotated[bool, typer.Option("--weekly", help="A weekly report instead of a daily one.")] = False,
    kms_key: Annotated[str | None, typer.Option("--kms-key", help="ARN of the key of reports.")] = None,
    with_lock: Annotated[bool, typer.Option("--with-lock", help="Add columns of Object Lock.")] = False,
    policy: Annotated[
        bool, typer.Option("--policy/--no-policy", help="Also permit it in the destination's bucket policy.")
    ] = True,
    show: Annotated[bool, typer.Option("--show", help="Print both documents and change nothing.")] = False,
) -> None:
    """Configure the S3 Inventory that a backup declares, and permit it in the destination's bucket policy."""
    from lakeshare_pipelines.backup.inventory import configuration

    report_format = _parse_format(file_format)
    _, backup = load_backup(name)
    options = configuration.InventoryOptions(
        report_format, "Weekly" if weekly else "Daily", kms_key, with_lock
    )
    if show:
        documents = {"InventoryConfiguration": configuration.make_configuration(backup, options)}
        if policy:
            documents["Statement"] = configuration.make_statement(backup)
        typer.echo(json.dumps(documents, indent=2))
        return
    if policy:
        configuration.put_statement(backup)
        typer.echo(f"the bucket policy of the destination lets {backup.source.bucket} report")
    stored = configuration.put_configuration(backup, options)
    frequency, versions = stored["Schedule"]["Frequency"].lower(), stored["IncludedObjectVersions"].lower()
    summary = f"{file_format}, {frequency}, {versions} versions"
    typer.echo(f"{backup.source} has inventory configuration {stored['Id']}: {summary}")
    typer.echo("the first report may take 48 hours; `lakeshare inventory status` shows it")


@inventory_app.command("status")
def status(name: Name = None) -> None:
    """Show the newest reports, their age and whether they were in time. Exit code 1 if a day's report is late."""
    from lakeshare_pipelines.backup.inventory.reports import get_inventory_status
    from lakeshare_pipelines.backup.inventory.sources import list_newest_snapshots

    _, backup = load_backup(name)
    typer.echo(f"backup {backup.name}, {backup.listing.kind} of {backup.source}")
    if backup.listing.kind == "generator":
        typer.echo("it is listed when a backup is made: no report is expected")
        return
    typer.echo(f"at {backup.listing.location}")
    if backup.listing.kind == "s3_metadata":
        for table, taken_at in list_newest_snapshots(backup).items():
            newest = "none" if taken_at is None else f"{taken_at:%Y-%m-%d %H:%M:%S} UTC"
            typer.echo(f"{table}: newest snapshot {newest}")
    if backup.listing.kind in ("s3_metadata", "manifest_csv"):
        return
    found = get_inventory_status(backup, dt.datetime.now(dt.UTC))
    if found.reports:
        typer.echo(f"{found.arrived} reports have arrived, the newest are")
        line = f"  {'scan began':20} {'age':>7} {'took':>7}  {'format':8} {'files':>6}  newest day   in time"
        typer.echo(line)
        for report in found.reports:
            typer.echo(_format_report(report))
    else:
        typer.echo("no report has arrived; the first may take 48 hours after it was configured")
    if found.late is not None:
        typer.echo(f"day {found.due_day}: {found.late.reason}")
    typer.echo(
        f"next: day {found.next_day}, by a report whose scan begins at {found.next_from:%Y-%m-%d %H:%M} UTC or later "
        f"and that comes by {found.next_until:%Y-%m-%d %H:%M} UTC"
    )
    raise typer.Exit(1 if found.late is not None else 0)


def _format_report(status: "ReportStatus") -> str:
    took = status.arrived_at - status.scan_started_at
    began = f"  {status.scan_started_at:%Y-%m-%d %H:%M} UTC {_format_hours(status.age):>7} {_format_hours(took):>7}"
    if status.report is None:
        return f"{began}  cannot be used: {status.problem}"
    in_time = "yes" if status.is_in_time else "no"
    return f"{began}  {status.report.file_format:8} {len(status.report.files):6}  {status.day}   {in_time}"


def _format_hours(span: dt.timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:.0f} d"
