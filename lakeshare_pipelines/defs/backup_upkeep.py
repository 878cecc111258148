"""What keeps backups good once they are made: drills, scrubs and sweeps, each on its schedule."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.defs.alerts import run_url, tell
from lakeshare_pipelines.defs.backup import backup_key, refusals
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_server.errors import LakeshareError

SHOWN = 20
"""Damaged copies that an alert names."""
MAKING_TAKES = timedelta(hours=12)
EVERY_MORNING, EVERY_NIGHT, BEFORE_IT = "0 5 * * *", "30 4 * * *", "30 1 * * *"


class SweepConfig(dg.Config):
    """What a sweep does."""

    dry_run: bool = False


class ScrubConfig(dg.Config):
    """What a scrub reads: the share of one day, or everything."""

    everything: bool = False


def backup_upkeep(backup: Backup, *, is_declared: bool) -> dg.Definitions:
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
        from lakeshare_pipelines.backup.drill import run_drill

        settings = lake.settings()
        try:
            ran = run_drill(backup, Points(backup), settings, seed=context.run.run_id)
        except LakeshareError as error:
            tell(
                context,
                settings,
                f"Drill of backup {backup.name}: {error}\n{run_url(settings, context.run.run_id)}",
            )
            return dg.AssetCheckResult(passed=False, description=str(error))
        if not ran.passed:
            where = run_url(settings, context.run.run_id)
            tell(context, settings, f"Drill of backup {backup.name} failed: {' '.join(ran.reasons)}\n{where}")
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
                say=context.log.info,
            )
        except LakeshareError as error:
            where = run_url(settings, context.run.run_id)
            tell(context, settings, f"Scrub of backup {backup.name}: {error}\n{where}")
            return dg.AssetCheckResult(passed=False, description=str(error))
        found = [*ran.damaged, *ran.repaired]
        if found:
            where = run_url(settings, context.run.run_id)
            text = f"Scrub of backup {backup.name} found damaged copies: {' '.join(found[:SHOWN])}"
            degraded = f" Degraded by that: {', '.join(ran.downgraded)}." if ran.downgraded else ""
            tell(context, settings, f"{text}{degraded}\n{where}")
        since = "never" if ran.compared_since is None else ran.compared_since.isoformat()
        return dg.AssetCheckResult(
            passed=ran.passed,
            description=" ".join([*found[:SHOWN], *ran.warnings])
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
        allowed = timedelta(days=backup.listing.lag_days + 1, hours=backup.listing.wait_hours) + MAKING_TAKES
        with refusals():
            newest = Points(backup).latest_good()
        age = None if newest is None else datetime.now(UTC) - newest.as_of
        if age is not None and age <= allowed:
            return dg.AssetCheckResult(passed=True, metadata={"lakeshare/age_s": age.total_seconds()})
        told = "there is none" if newest is None else f"it is of {newest.day}"
        text = f"The newest good point of backup {backup.name} is older than {allowed}: {told}."
        tell(context, lake.settings(), f"{text}\n{run_url(lake.settings(), context.run.run_id)}")
        return dg.AssetCheckResult(passed=False, description=text)

    return recent


def _sweep(backup: Backup) -> dg.JobDefinition:
    @dg.op(
        name=f"sweep_points_{backup.name}",
        description="Remove points that retention keeps no longer, and copies that no kept point needs.",
    )
    def sweep(context: dg.OpExecutionContext, config: SweepConfig) -> None:
        from lakeshare_pipelines.backup.retention.sweep import sweep_points

        with refusals():
            swept = sweep_points(backup, Points(backup), datetime.now(UTC), dry_run=config.dry_run)
        word = "would remove" if config.dry_run else "removed"
        days = ", ".join(swept.days) or "none"
        context.log.info(f"{word} points {days}; {swept.objects} copies, {swept.size_bytes} bytes")

    @dg.job(name=f"sweep_{backup.name}", description="Keep points as long as retention says, and no longer.")
    def sweep_job() -> None:
        sweep()

    return sweep_job
