"""Backups as daily assets: listing, plan, copies, tables, point; a sensor that starts days as they fall due.

What a step does is in lakeshare_pipelines.backup.run; here are names, checks, metadata and progress.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg

from lakeshare_pipelines.backup import run
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.copy.engine import Progress
from lakeshare_pipelines.backup.model import GOOD_STATUSES, TableProof, Verification
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.resources import LakeResource, run_url, send_alert
from lakeshare_pipelines.defs.wap import table_key
from lakeshare_server.errors import LakeshareError

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

PROGRESS_S = 15.0
SENSOR_S = 300
SHOWN = 100
"""Tables that metadata lists by name."""
CHECK_DESCRIPTIONS = {
    "accounted_for": "Every planned object is reported (L0).",
    "tables_are_whole": "Everything each table needs is there, at its newest version before the day's end (L4).",
    "tables_open": "An independent reader opened every table and counted its rows.",
}


def backup_key(backup: Backup, step: str) -> dg.AssetKey:
    """The asset of a step of a backup: `backup/<name>/<step>`."""
    return dg.AssetKey(["backup", backup.name, step])


def backup_definitions(
    backup: Backup, contracts: Sequence[SetContract], *, is_declared: bool
) -> dg.Definitions:
    """The assets of one backup, the job that makes a day's point, and the sensor that starts it.

    The sensor is on from the start where somebody declared the backup.
    """
    days = dg.DailyPartitionsDefinition(start_date=backup.first_day.isoformat())
    job = dg.define_asset_job(
        f"backup_{backup.name}",
        # Drills are checks of the point as well, with a job of their own.
        selection=dg.AssetSelection.groups(f"backup_{backup.name}").without_checks()
        | dg.AssetSelection.checks(*_checks(backup)),
        description=f"Make the backup point of a day of {backup.source}.",
    )
    return dg.Definitions(
        assets=[
            _listing(backup, days),
            _plan(backup, days),
            _copies(backup, days),
            _tables(backup, days),
            _point(backup, days, contracts),
        ],
        jobs=[job],
        sensors=[_sensor(backup, job, is_declared=is_declared)],
    )


def _checks(backup: Backup) -> list[dg.AssetCheckKey]:
    """The checks that the steps themselves evaluate."""
    of_step = {"plan": ["no_warnings"], "copies": ["all_copied"], "tables": list(CHECK_DESCRIPTIONS)}
    return [
        dg.AssetCheckKey(backup_key(backup, step), name) for step, names in of_step.items() for name in names
    ]


def _listing(backup: Backup, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    @dg.asset(
        key=backup_key(backup, "listing"),
        description=f"What {backup.source} held, told by {backup.listing.kind}.",
        partitions_def=days,
        group_name=f"backup_{backup.name}",
        kinds={"s3" if backup.source.kind == "s3" else "file"},
    )
    def listing(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
        with fail_without_retry():
            found = run.ensure_listing(_make_backup_run(context, lake, backup), datetime.now(UTC))
        if found is None:
            raise dg.Failure(
                f"{backup.listing.location} has no report for {context.partition_key} yet. The sensor "
                f"backup_{backup.name}_days starts the day again when there is one.",
                allow_retries=False,
            )
        return dg.MaterializeResult(
            metadata={
                "lakeshare/objects": found.rows,
                "lakeshare/size_bytes": found.size_bytes,
                "lakeshare/report": found.location,
                "lakeshare/scan_started_at": found.scan_started_at.isoformat(),
                "lakeshare/late": found.is_late,
            }
        )

    return listing


def _plan(backup: Backup, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    @dg.asset(
        key=backup_key(backup, "plan"),
        description="What the day's point will hold, what of it is to be copied, and what that costs.",
        deps=[backup_key(backup, "listing")],
        partitions_def=days,
        group_name=f"backup_{backup.name}",
        check_specs=[
            dg.AssetCheckSpec(
                "no_warnings",
                asset=backup_key(backup, "plan"),
                description="No table is vacuumed sooner than it is copied, and none points outside the source.",
            )
        ],
    )
    def plan(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        with fail_without_retry():
            found = run.ensure_plan(_make_backup_run(context, lake, backup))
        estimate = found.estimate
        yield dg.MaterializeResult(
            metadata={
                "lakeshare/tables": len(found.tables),
                "lakeshare/objects": estimate.objects,
                "lakeshare/size_bytes": estimate.size_bytes,
                "lakeshare/held_objects": estimate.held_objects,
                "lakeshare/requests": estimate.requests,
                "lakeshare/usd": estimate.usd,
                "lakeshare/minutes": estimate.minutes,
                "lakeshare/previous": found.previous or "none",
                "lakeshare/lanes": dg.MetadataValue.json(estimate.by_lane),
                "lakeshare/left_out": dg.MetadataValue.json(found.left_out),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name="no_warnings",
                    passed=not found.warnings,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=" ".join(found.warnings) or "nothing to warn of",
                )
            ],
        )

    return plan


def _copies(backup: Backup, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    key = backup_key(backup, "copies")

    @dg.asset(
        key=key,
        description=f"The day's copies, made by the engine `{backup.engine}`.",
        deps=[backup_key(backup, "plan")],
        partitions_def=days,
        group_name=f"backup_{backup.name}",
        check_specs=[
            dg.AssetCheckSpec("all_copied", asset=key, description="No copy failed at first try (L0).")
        ],
    )
    def copies(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        with fail_without_retry():
            found = run.ensure_copies(_make_backup_run(context, lake, backup), _log_progress(context))
        yield dg.MaterializeResult(
            metadata={
                "lakeshare/succeeded": found.succeeded,
                "lakeshare/failed": found.failed,
                "lakeshare/size_bytes": found.size_bytes,
                "lakeshare/seconds": found.seconds,
                "lakeshare/reports": list(found.reports),
                "lakeshare/capabilities": dg.MetadataValue.json(found.capabilities),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name="all_copied",
                    passed=found.failed == 0,
                    # What tables need is healed or told of by the next step.
                    severity=dg.AssetCheckSeverity.WARN,
                    description=f"{found.failed} of {found.succeeded + found.failed} copies failed",
                )
            ],
        )

    return copies


def _tables(backup: Backup, days: dg.PartitionsDefinition) -> dg.AssetsDefinition:
    key = backup_key(backup, "tables")

    @dg.asset(
        key=key,
        description="The tables that the copies are, each proved to open at a version.",
        deps=[backup_key(backup, "copies")],
        partitions_def=days,
        group_name=f"backup_{backup.name}",
        kinds={"deltalake", "iceberg"},
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text) for name, text in CHECK_DESCRIPTIONS.items()
        ],
    )
    def tables(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        with fail_without_retry():
            found = run.ensure_verification(_make_backup_run(context, lake, backup))
        yield dg.MaterializeResult(
            metadata={
                "lakeshare/status": found.status,
                "lakeshare/objects": found.objects,
                "lakeshare/size_bytes": found.size_bytes,
                "lakeshare/tables": dg.MetadataValue.json(
                    [_make_proof_metadata(table) for table in found.tables[:SHOWN]]
                ),
            },
            check_results=_make_check_results(found),
        )

    return tables


def _point(
    backup: Backup, days: dg.PartitionsDefinition, contracts: Sequence[SetContract]
) -> dg.AssetsDefinition:
    @dg.asset(
        key=backup_key(backup, "point"),
        description=f"The backup point of the day in {backup.target}, with the catalog of that moment.",
        deps=[backup_key(backup, "tables")],
        partitions_def=days,
        group_name=f"backup_{backup.name}",
    )
    def point(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
        with fail_without_retry():
            written = run.finish_point(_make_backup_run(context, lake, backup), datetime.now(UTC))
        # Beside each table stands the point that protects it.
        for proof in written.verification.tables:
            table = _find_published_table(proof, contracts)
            if table is not None:
                context.log_event(
                    dg.AssetObservation(
                        asset_key=table_key(table),
                        metadata={
                            f"lakeshare/backup/{backup.name}": written.day,
                            **_make_proof_metadata(proof),
                        },
                    )
                )
        return dg.MaterializeResult(
            metadata={
                "lakeshare/status": written.status,
                "lakeshare/as_of": written.as_of.isoformat(),
                "lakeshare/target": written.target,
                "lakeshare/retention_class": written.retention_class,
                "lakeshare/locked_until": written.locked_until.isoformat()
                if written.locked_until
                else "not locked",
                "lakeshare/next": f"lakeshare backup show {backup.name} {written.day}",
            }
        )

    return point


def _sensor(backup: Backup, job: "UnresolvedAssetJobDefinition", *, is_declared: bool) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"backup_{backup.name}_days",
        job=job,
        description="Starts the days whose report has come, or has been waited for long enough.",
        minimum_interval_seconds=SENSOR_S,
        default_status=(dg.DefaultSensorStatus.RUNNING if is_declared else dg.DefaultSensorStatus.STOPPED),
    )
    def days_due(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        from lakeshare_pipelines.backup.run import list_due_days

        due = list_due_days(backup, datetime.now(UTC))
        for day in due:
            yield dg.RunRequest(run_key=f"{backup.name}:{day}", partition_key=day)
        if not due:
            yield dg.SkipReason(f"no day of {backup.name} is due")

    return days_due


def _make_backup_run(context: dg.AssetExecutionContext, lake: LakeResource, backup: Backup) -> run.BackupRun:
    # A run that goes on after a failure has another id and the same root.
    owner = context.run.root_run_id or context.run.run_id
    return run.BackupRun(lake.settings(), backup, context.partition_key, owner, lambda: lake.lake().spark)


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Our own errors end a step at once: trying again would give the same answer."""
    try:
        yield
    except LakeshareError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _log_progress(context: dg.AssetExecutionContext) -> Callable[[Progress], None]:
    """Tells of a long copy every quarter of a minute."""
    reported_at = time.monotonic()

    def report_progress(progress: Progress) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= PROGRESS_S:
            reported_at = time.monotonic()
            context.log.info(run.format_progress(progress))

    return report_progress


def _make_check_results(found: Verification) -> list[dg.AssetCheckResult]:
    broken = [one for one in found.tables if one.status not in GOOD_STATUSES]
    behind = [one for one in found.tables if one.status == "verified_with_fallback"]
    closed = [one for one in found.tables if one.opened_by is None]
    return [
        dg.AssetCheckResult(
            check_name="accounted_for",
            passed=found.accounted_for and not found.failed_objects,
            description=" ".join(found.reasons) or f"{found.objects} objects are accounted for",
        ),
        dg.AssetCheckResult(
            check_name="tables_are_whole",
            passed=not broken,
            description=_format_proofs(broken)
            or _format_proofs(behind)
            or f"{len(found.tables)} tables are whole",
            metadata={"lakeshare/fallbacks": [one.table.root for one in behind[:SHOWN]]},
        ),
        dg.AssetCheckResult(
            check_name="tables_open",
            passed=not closed,
            description=_format_proofs(closed) or f"{len(found.tables)} tables opened",
        ),
    ]


def _format_proofs(proofs: Sequence[TableProof]) -> str:
    return "; ".join(f"{proof.table.root}: {' '.join(proof.reasons)}" for proof in proofs[:SHOWN])


def _make_proof_metadata(proof: TableProof) -> dict[str, str | int]:
    shown: dict[str, str | int] = {
        "table": proof.table.root,
        "status": proof.status,
        "level": proof.level,
        "files": proof.files,
        "size_bytes": proof.size_bytes,
    }
    if proof.version is not None:
        shown["version"] = proof.version
    if proof.rows is not None:
        shown["rows"] = proof.rows
    return shown


def _find_published_table(proof: TableProof, contracts: Sequence[SetContract]) -> str | None:
    """The table of a contract whose files are at a root: the warehouse has a folder for each by its name."""
    names = {table.name for contract in contracts for table in contract.tables}
    parts = proof.table.root.split("/")
    # Iceberg's writers may add an id to the folder's name.
    found = ".".join([*parts[:-1], parts[-1].rsplit("_", 1)[0]])
    return next((name for name in names if name in {".".join(parts), found}), None)


MAX_SHOWN = 20
"""Damaged copies that an alert names."""
MAX_RUN_TIME = timedelta(hours=12)
EVERY_MORNING, EVERY_NIGHT, BEFORE_IT = "0 5 * * *", "30 4 * * *", "30 1 * * *"


class SweepConfig(dg.Config):
    """What a sweep does."""

    dry_run: bool = False


class ScrubConfig(dg.Config):
    """What a scrub reads: the share of one day, or everything."""

    everything: bool = False


def backup_maintenance(backup: Backup, *, is_declared: bool) -> dg.Definitions:
    """Drill and scrub as checks of the points, the sweep as a job; schedules run where the backup is declared."""
    drilled, recent, scrubbed, swept = _drill(backup), _recent(backup), _scrub(backup), _sweep(backup)
    scrub = dg.define_asset_job(
        f"scrub_{backup.name}",
        selection=dg.AssetSelection.checks(scrubbed),
        description="Read copies again and compare them with what was backed up; repair what has rotted.",
    )
    drill = dg.define_asset_job(
        f"drill_{backup.name}",
        selection=dg.AssetSelection.checks(drilled, recent),
        description="Restore a table to scratch and compare it; tell when the newest good point is too old.",
    )
    status = dg.DefaultScheduleStatus.RUNNING if is_declared else dg.DefaultScheduleStatus.STOPPED
    return dg.Definitions(
        asset_checks=[drilled, recent, scrubbed],
        jobs=[drill, scrub, swept],
        schedules=[
            dg.ScheduleDefinition(
                name=f"drill_{backup.name}_every_morning",
                job=drill,
                cron_schedule=EVERY_MORNING,
                default_status=status,
            ),
            dg.ScheduleDefinition(
                name=f"scrub_{backup.name}_every_night",
                job=scrub,
                cron_schedule=BEFORE_IT,
                default_status=status,
            ),
            dg.ScheduleDefinition(
                name=f"sweep_{backup.name}_every_night",
                job=swept,
                cron_schedule=EVERY_NIGHT,
                default_status=status,
            ),
        ],
    )


def _drill(backup: Backup) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=backup_key(backup, "point"),
        name="drill",
        description="A table of the newest good point, drawn by lot, is restored to scratch, opened and compared.",
    )
    def drill(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
        from lakeshare_pipelines.backup.run import run_drill

        settings = lake.settings()
        try:
            ran = run_drill(backup, Points(backup), settings, seed=context.run.run_id)
        except LakeshareError as error:
            send_alert(
                context,
                settings,
                f"Drill of backup {backup.name}: {error}\n{run_url(settings, context.run.run_id)}",
            )
            return dg.AssetCheckResult(passed=False, description=str(error))
        if not ran.passed:
            where = run_url(settings, context.run.run_id)
            send_alert(
                context, settings, f"Drill of backup {backup.name} failed: {' '.join(ran.reasons)}\n{where}"
            )
        return dg.AssetCheckResult(
            passed=ran.passed,
            description=" ".join(ran.reasons) or f"{ran.table} of {ran.day} opened with {ran.rows} rows",
            metadata={
                "lakeshare/day": ran.day,
                "lakeshare/table": ran.table,
                "lakeshare/rto_s": ran.rto_s,
                "lakeshare/rpo_s": ran.rpo_s,
                "lakeshare/objects": ran.objects,
                "lakeshare/size_bytes": ran.size_bytes,
            },
        )

    return drill


def _scrub(backup: Backup) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=backup_key(backup, "point"),
        name="scrub",
        description="Copies of all points are read again and compared; what has rotted is copied again, or reported.",
    )
    def scrub(
        context: dg.AssetCheckExecutionContext, config: ScrubConfig, lake: LakeResource
    ) -> dg.AssetCheckResult:
        from lakeshare_pipelines.backup import scrub as scrubs

        settings = lake.settings()
        try:
            ran = scrubs.scrub(
                backup,
                Points(backup),
                settings,
                datetime.now(UTC),
                everything=config.everything,
                report_message=context.log.info,
            )
        except LakeshareError as error:
            where = run_url(settings, context.run.run_id)
            send_alert(context, settings, f"Scrub of backup {backup.name}: {error}\n{where}")
            return dg.AssetCheckResult(passed=False, description=str(error))
        found = [*ran.damaged, *ran.repaired]
        if found:
            where = run_url(settings, context.run.run_id)
            text = f"Scrub of backup {backup.name} found damaged copies: {' '.join(found[:MAX_SHOWN])}"
            degraded = f" Degraded by that: {', '.join(ran.downgraded)}." if ran.downgraded else ""
            send_alert(context, settings, f"{text}{degraded}\n{where}")
        since = "never" if ran.compared_since is None else ran.compared_since.isoformat()
        return dg.AssetCheckResult(
            passed=ran.passed,
            description=" ".join([*found[:MAX_SHOWN], *ran.warnings])
            or f"{ran.read} of {ran.copies} copies were read, and are what was backed up",
            metadata={
                "lakeshare/read": ran.read,
                "lakeshare/read_bytes": ran.read_bytes,
                "lakeshare/size_bytes": ran.size_bytes,
                "lakeshare/compared_since": since,
                "lakeshare/repaired": len(ran.repaired),
                "lakeshare/damaged": len(ran.damaged),
                "lakeshare/degraded": ", ".join(ran.downgraded) or "none",
            },
        )

    return scrub


def _recent(backup: Backup) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=backup_key(backup, "point"),
        name="recent",
        description="The newest good point is no older than the reports' lag, their wait, and a day.",
    )
    def recent(context: dg.AssetCheckExecutionContext, lake: LakeResource) -> dg.AssetCheckResult:
        allowed = timedelta(days=backup.listing.lag_days + 1, hours=backup.listing.wait_hours) + MAX_RUN_TIME
        with fail_without_retry():
            newest = Points(backup).latest_good()
        age = None if newest is None else datetime.now(UTC) - newest.as_of
        if age is not None and age <= allowed:
            return dg.AssetCheckResult(passed=True, metadata={"lakeshare/age_s": age.total_seconds()})
        newest_text = "there is none" if newest is None else f"it is of {newest.day}"
        text = f"The newest good point of backup {backup.name} is older than {allowed}: {newest_text}."
        send_alert(context, lake.settings(), f"{text}\n{run_url(lake.settings(), context.run.run_id)}")
        return dg.AssetCheckResult(passed=False, description=text)

    return recent


def _sweep(backup: Backup) -> dg.JobDefinition:
    @dg.op(
        name=f"sweep_points_{backup.name}",
        description="Remove points that retention keeps no longer, and copies that no kept point needs.",
    )
    def sweep(context: dg.OpExecutionContext, config: SweepConfig) -> None:
        from lakeshare_pipelines.backup.retention import sweep_points

        with fail_without_retry():
            swept = sweep_points(backup, Points(backup), datetime.now(UTC), dry_run=config.dry_run)
        word = "would remove" if config.dry_run else "removed"
        days = ", ".join(swept.days) or "none"
        context.log.info(f"{word} points {days}; {swept.objects} copies, {swept.size_bytes} bytes")

    @dg.job(name=f"sweep_{backup.name}", description="Keep points as long as retention says, and no longer.")
    def sweep_job() -> None:
        sweep()

    return sweep_job
