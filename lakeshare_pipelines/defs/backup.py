"""Backups as daily assets: listing, plan, copies, tables, point; a sensor that starts due days; maintenance jobs.

The steps are in `lakeshare_pipelines.backup.run`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import BaseModel

from lakeshare_pipelines.backup import run
from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import GOOD_STATUSES, TableProof, Verification
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.wap import LakeResource, send_alert, table_key
from lakeshare_server.errors import LakeshareError

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

PROGRESS_S = 15.0
SENSOR_S = 300
RESTART_S = 3600.0  # After a day's first failed run; twice as long after each further one
MAX_ATTEMPTS = 8  # Longer waits than then are over the days that are made at all
OWNER_TAG = "lakeshare/backup_owner"
SHOWN = 100  # Most tables that metadata lists by name
STEP_CHECKS = {
    "plan": {"no_warnings": "No table is vacuumed before it is copied, and none points outside the source."},
    "copies": {"all_copied": "No copy failed at the first attempt (L0)."},
    "tables": {
        "accounted_for": "Every planned object is reported (L0).",
        "tables_are_whole": "Each table is complete at its newest version before the day's end (L4).",
        "tables_open": "An independent reader opened every table and counted its rows.",
    },
}
"""Checks that the steps themselves evaluate, with their descriptions."""


def backup_key(backup: Backup, step: str) -> dg.AssetKey:
    return dg.AssetKey(["backup", backup.name, step])


def backup_definitions(
    backup: Backup, contracts: Sequence[SetContract], *, is_declared: bool
) -> dg.Definitions:
    """Returns the assets of one backup, the job that makes a day's point, and the sensor that starts it.

    The sensor runs by default if the backup is declared.
    """
    job = dg.define_asset_job(
        f"backup_{backup.name}",
        # Drills are checks of the point too, and have their own job.
        selection=dg.AssetSelection.groups(f"backup_{backup.name}").without_checks()
        | dg.AssetSelection.checks(
            *(
                dg.AssetCheckKey(backup_key(backup, step), name)
                for step, checks in STEP_CHECKS.items()
                for name in checks
            )
        ),
        description=f"Make the backup point of a day of {backup.source}.",
    )
    return dg.Definitions(
        assets=_make_assets(backup, contracts),
        jobs=[job],
        sensors=[_sensor(backup, job, is_declared=is_declared)],
    )


def _make_assets(backup: Backup, contracts: Sequence[SetContract]) -> list[dg.AssetsDefinition]:
    listed = f"The objects of {backup.source}, listed by {backup.listing.kind}."
    planned = "The objects of the day's point, which of them to copy, and the cost."
    verified = "The tables of the copies, each verified to open at a version."
    written = f"The backup point of the day in {backup.target}, with a dump of the catalog."
    kind = "s3" if backup.source.kind == "s3" else "file"
    return [
        _make_step(backup, "listing", listed, _list, kinds={kind}),
        _make_step(backup, "plan", planned, _plan, "listing"),
        _make_step(
            backup, "copies", f"The day's copies, made by the engine `{backup.engine}`.", _copy, "plan"
        ),
        _make_step(backup, "tables", verified, _verify, "copies", {"deltalake", "iceberg"}),
        _make_step(backup, "point", written, partial(_finish, contracts), "tables"),
    ]


def _make_step(
    backup: Backup,
    name: str,
    description: str,
    execute: Callable[[dg.AssetExecutionContext, run.BackupRun], dg.MaterializeResult[None]],
    after: str | None = None,
    kinds: set[str] | None = None,
) -> dg.AssetsDefinition:
    """Returns the asset of a step, which runs after another one."""

    @dg.asset(
        key=backup_key(backup, name),
        description=description,
        deps=[backup_key(backup, after)] if after else None,
        partitions_def=dg.DailyPartitionsDefinition(start_date=backup.first_day.isoformat()),
        group_name=f"backup_{backup.name}",
        kinds=kinds,
        check_specs=[
            dg.AssetCheckSpec(check, asset=backup_key(backup, name), description=text)
            for check, text in STEP_CHECKS.get(name, {}).items()
        ],
    )
    def step(
        context: dg.AssetExecutionContext, lakeshare: LakeResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        owner = _get_owner(context.run)
        settings, day = lakeshare.settings(), context.partition_key
        backup_run = run.BackupRun(settings, backup, day, owner, lambda: lakeshare.lake().spark)
        with fail_without_retry():
            result = execute(context, backup_run)
        yield result

    return step


def _list(context: dg.AssetExecutionContext, backup_run: run.BackupRun) -> dg.MaterializeResult[None]:
    found = run.ensure_listing(backup_run, datetime.now(UTC))
    if found is None:
        backup = backup_run.backup
        raise dg.Failure(
            f"{backup.listing.location} has no report for {context.partition_key} yet. The sensor "
            f"backup_{backup.name}_days starts the day when there is one.",
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


def _plan(context: dg.AssetExecutionContext, backup_run: run.BackupRun) -> dg.MaterializeResult[None]:
    found = run.ensure_plan(backup_run)
    sums = _select(found.estimate, "objects", "size_bytes", "held_objects", "requests", "usd", "minutes")
    return dg.MaterializeResult(
        metadata={
            "lakeshare/tables": len(found.tables),
            **sums,
            "lakeshare/previous": found.previous or "none",
            "lakeshare/lanes": dg.MetadataValue.json(found.estimate.by_lane),
            "lakeshare/left_out": dg.MetadataValue.json(found.left_out),
        },
        check_results=[
            dg.AssetCheckResult(
                check_name="no_warnings",
                passed=not found.warnings,
                severity=dg.AssetCheckSeverity.WARN,
                description=" ".join(found.warnings) or "there are no warnings",
            )
        ],
    )


def _copy(context: dg.AssetExecutionContext, backup_run: run.BackupRun) -> dg.MaterializeResult[None]:
    log_progress = run.report_every(PROGRESS_S, lambda line, _: context.log.info(line))
    found = run.ensure_copies(backup_run, log_progress)
    return dg.MaterializeResult(
        metadata={
            **_select(found, "succeeded", "failed", "size_bytes", "seconds"),
            "lakeshare/reports": list(found.reports),
            "lakeshare/capabilities": dg.MetadataValue.json(found.capabilities),
        },
        check_results=[
            dg.AssetCheckResult(
                check_name="all_copied",
                passed=found.failed == 0,
                # The next step repairs or reports what tables need.
                severity=dg.AssetCheckSeverity.WARN,
                description=f"{found.failed} of {found.succeeded + found.failed} copies failed",
            )
        ],
    )


def _verify(context: dg.AssetExecutionContext, backup_run: run.BackupRun) -> dg.MaterializeResult[None]:
    found = run.ensure_verification(backup_run)
    shown = [_make_proof_metadata(table) for table in found.tables[:SHOWN]]
    metadata = _select(found, "status", "objects", "size_bytes")
    return dg.MaterializeResult(
        metadata={**metadata, "lakeshare/tables": dg.MetadataValue.json(shown)},
        check_results=_make_check_results(found),
    )


def _finish(
    contracts: Sequence[SetContract], context: dg.AssetExecutionContext, backup_run: run.BackupRun
) -> dg.MaterializeResult[None]:
    backup, written = backup_run.backup, run.finish_point(backup_run, datetime.now(UTC))
    for proof in written.verification.tables:
        table = _find_published_table(proof.table.root.removeprefix(backup.source.prefix), contracts)
        if table is not None:
            metadata = {f"lakeshare/backup/{backup.name}": written.day, **_make_proof_metadata(proof)}
            context.log_event(dg.AssetObservation(asset_key=table_key(table), metadata=metadata))
    locked_until = written.locked_until.isoformat() if written.locked_until else "not locked"
    return dg.MaterializeResult(
        metadata={
            **_select(written, "status", "target", "retention_class"),
            "lakeshare/as_of": written.as_of.isoformat(),
            "lakeshare/locked_until": locked_until,
            "lakeshare/next": f"lakeshare backup show {backup.name} {written.day}",
        }
    )


def _sensor(backup: Backup, job: "UnresolvedAssetJobDefinition", *, is_declared: bool) -> dg.SensorDefinition:
    @dg.sensor(
        name=f"backup_{backup.name}_days",
        job=job,
        description="Starts the days whose report has arrived, or whose wait for a report is over. A day whose run "
        "failed is continued by another one, after an hour and then after twice as long each time.",
        minimum_interval_seconds=SENSOR_S,
        default_status=dg.DefaultSensorStatus.RUNNING if is_declared else dg.DefaultSensorStatus.STOPPED,
    )
    def days_due(context: dg.SensorEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        due = run.list_due_days(backup, datetime.now(UTC))
        requests = [_request_run(context.instance, backup, job.name, day) for day in due]
        waiting = f"after a failed run, {', '.join(due)} waits to be continued"
        skipped = dg.SkipReason(waiting if due else f"no day of {backup.name} is due")
        return list(filter(None, requests)) or skipped

    return days_due


def _request_run(instance: dg.DagsterInstance, backup: Backup, job: str, day: str) -> dg.RunRequest | None:
    """A day's first run; after a failed one, once its wait is over, the next one."""
    key = f"{backup.name}:{day}"
    filters = dg.RunsFilter(job_name=job, tags={"dagster/partition": day})
    records = instance.get_run_records(filters, limit=MAX_ATTEMPTS)  # newest first
    if not records or records[0].dagster_run.status is not dg.DagsterRunStatus.FAILURE:
        return dg.RunRequest(run_key=key, partition_key=day)
    if time.time() - (records[0].end_time or 0.0) < RESTART_S * 2 ** (len(records) - 1):
        return None
    # It continues under the claim of the run that failed first, and of no other.
    owner = Points(backup).read_owner(day)
    claimed = owner in [_get_owner(record.dagster_run) for record in records]
    tags = {OWNER_TAG: owner} if owner and claimed else None
    return dg.RunRequest(run_key=f"{key}:{records[0].dagster_run.run_id}", partition_key=day, tags=tags)


def _get_owner(made_by: dg.DagsterRun) -> str:
    """The run in whose name a run claims its day: the first one, if it continues that."""
    return made_by.tags.get(OWNER_TAG) or made_by.root_run_id or made_by.run_id


@contextmanager
def fail_without_retry() -> Iterator[None]:
    """Turns a LakeshareError into a failure without retries, which would fail in the same way."""
    try:
        yield
    except LakeshareError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _make_check_results(found: Verification) -> list[dg.AssetCheckResult]:
    broken = [proof for proof in found.tables if proof.status not in GOOD_STATUSES]
    fallbacks = [proof for proof in found.tables if proof.status == "verified_with_fallback"]
    unopened = [proof for proof in found.tables if proof.opened_by is None]
    count = len(found.tables)
    return [
        dg.AssetCheckResult(
            check_name="accounted_for",
            passed=found.accounted_for and not found.failed_objects,
            description=" ".join(found.reasons) or f"{found.objects} objects are accounted for",
        ),
        dg.AssetCheckResult(
            check_name="tables_are_whole",
            passed=not broken,
            description=_format_proofs(broken or fallbacks) or f"{count} tables are whole",
            metadata={"lakeshare/fallbacks": [proof.table.root for proof in fallbacks[:SHOWN]]},
        ),
        dg.AssetCheckResult(
            check_name="tables_open",
            passed=not unopened,
            description=_format_proofs(unopened) or f"{count} tables opened",
        ),
    ]


def _format_proofs(proofs: Sequence[TableProof]) -> str:
    return "; ".join(f"{proof.table.root}: {' '.join(proof.reasons)}" for proof in proofs[:SHOWN])


def _select(record: BaseModel, *names: str) -> dict[str, Any]:
    """Fields of a record as metadata."""
    return {f"lakeshare/{name}": getattr(record, name) for name in names}


def _make_proof_metadata(proof: TableProof) -> dict[str, str | int]:
    shown = {"status", "level", "files", "size_bytes", "version", "rows"}
    return {"table": proof.table.root, **proof.model_dump(include=shown, exclude_none=True)}


def _find_published_table(root: str, contracts: Sequence[SetContract]) -> str | None:
    """Returns the contract's table whose files are at a root below the warehouse, which has a folder per table."""
    names = {table.name for contract in contracts for table in contract.tables}
    parts = root.split("/")
    # Iceberg writers may add an id to the folder's name.
    without_id = ".".join([*parts[:-1], parts[-1].rsplit("_", 1)[0]])
    return next((name for name in names if name in {".".join(parts), without_id}), None)


MAX_SHOWN = 20  # Most damaged copies that an alert names


class SweepConfig(dg.Config):
    """Configuration of a sweep."""

    dry_run: bool = False


class ScrubConfig(dg.Config):
    """Configuration of a scrub; by default it reads the share of one day."""

    everything: bool = False


def backup_maintenance(backup: Backup, *, is_declared: bool) -> dg.Definitions:
    """Returns drill and scrub as checks of the points, the sweep as a job, and schedules, running if declared."""
    drilled, recent, scrubbed, swept = _drill(backup), _recent(backup), _scrub(backup), _sweep(backup)
    scrub = dg.define_asset_job(
        f"scrub_{backup.name}",
        selection=dg.AssetSelection.checks(scrubbed),
        description="Read copies again, compare them with the backed-up state and repair damaged ones.",
    )
    drill = dg.define_asset_job(
        f"drill_{backup.name}",
        selection=dg.AssetSelection.checks(drilled, recent),
        description="Restore a table to scratch and compare it; alert if the newest good point is too old.",
    )
    status = dg.DefaultScheduleStatus.RUNNING if is_declared else dg.DefaultScheduleStatus.STOPPED
    return dg.Definitions(
        asset_checks=[drilled, recent, scrubbed],
        jobs=[drill, scrub, swept],
        schedules=[
            dg.ScheduleDefinition(
                name=f"{kind}_{backup.name}_{when}", job=job, cron_schedule=cron, default_status=status
            )
            for kind, when, cron, job in (
                ("drill", "every_morning", "0 5 * * *", drill),
                ("scrub", "every_night", "30 1 * * *", scrub),
                ("sweep", "every_night", "30 4 * * *", swept),
            )
        ],
    )


def _drill(backup: Backup) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=backup_key(backup, "point"),
        name="drill",
        description="A random table of the newest good point is restored to scratch, opened and compared.",
    )
    def drill(context: dg.AssetCheckExecutionContext, lakeshare: LakeResource) -> dg.AssetCheckResult:
        settings, run_id = lakeshare.settings(), context.run.run_id
        try:
            ran = run.run_drill(backup, Points(backup), settings, seed=run_id)
        except LakeshareError as error:
            send_alert(context, settings, f"Drill of backup {backup.name}: {error}", run_id)
            return dg.AssetCheckResult(passed=False, description=str(error))
        if not ran.passed:
            text = f"Drill of backup {backup.name} failed: {' '.join(ran.reasons)}"
            send_alert(context, settings, text, run_id)
        return dg.AssetCheckResult(
            passed=ran.passed,
            description=" ".join(ran.reasons) or f"{ran.table} of {ran.day} opened with {ran.rows} rows",
            metadata=_select(ran, "day", "table", "rto_s", "rpo_s", "objects", "size_bytes"),
        )

    return drill


def _scrub(backup: Backup) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=backup_key(backup, "point"),
        name="scrub",
        description="Copies of all points are read again and compared; damaged ones are copied again, or reported.",
    )
    def scrub(
        context: dg.AssetCheckExecutionContext, config: ScrubConfig, lakeshare: LakeResource
    ) -> dg.AssetCheckResult:
        from lakeshare_pipelines.backup import scrub as scrubs

        settings, run_id = lakeshare.settings(), context.run.run_id
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
            send_alert(context, settings, f"Scrub of backup {backup.name}: {error}", run_id)
            return dg.AssetCheckResult(passed=False, description=str(error))
        found = [*ran.damaged, *ran.repaired]
        if found:
            text = f"Scrub of backup {backup.name} found damaged copies: {' '.join(found[:MAX_SHOWN])}"
            degraded = f" Degraded by that: {', '.join(ran.downgraded)}." if ran.downgraded else ""
            send_alert(context, settings, f"{text}{degraded}", run_id)
        since = "never" if ran.compared_since is None else ran.compared_since.isoformat()
        return dg.AssetCheckResult(
            passed=ran.passed,
            description=" ".join([*found[:MAX_SHOWN], *ran.warnings])
            or f"{ran.read} of {ran.copies} copies were read and are unchanged",
            metadata={
                **_select(ran, "read", "read_bytes", "size_bytes"),
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
        description="The newest good point is no older than the backup's `max_age_hours`.",
    )
    def recent(context: dg.AssetCheckExecutionContext, lakeshare: LakeResource) -> dg.AssetCheckResult:
        allowed = backup.max_age
        with fail_without_retry():
            newest = Points(backup).latest_good()
        age = None if newest is None else datetime.now(UTC) - newest.as_of
        if age is not None and age <= allowed:
            return dg.AssetCheckResult(passed=True, metadata={"lakeshare/age_s": age.total_seconds()})
        found = "there is none" if newest is None else f"it is of {newest.day}"
        text = f"The newest good point of backup {backup.name} is older than {allowed}: {found}."
        send_alert(context, lakeshare.settings(), text, context.run.run_id)
        return dg.AssetCheckResult(passed=False, description=text)

    return recent


def _sweep(backup: Backup) -> dg.JobDefinition:
    @dg.op(
        name=f"sweep_points_{backup.name}",
        description="Remove points beyond their retention, and copies that no kept point needs.",
    )
    def sweep(context: dg.OpExecutionContext, config: SweepConfig) -> None:
        from lakeshare_pipelines.backup.retention import sweep_points

        with fail_without_retry():
            now, log = datetime.now(UTC), context.log.info
            swept = sweep_points(backup, Points(backup), now, dry_run=config.dry_run, report_message=log)
        word = "would remove" if config.dry_run else "removed"
        days = ", ".join(swept.days) or "none"
        context.log.info(f"{word} points {days}; {swept.objects} copies, {swept.size_bytes} bytes")
        for reason in swept.spared:
            context.log.warning(reason)

    @dg.job(name=f"sweep_{backup.name}", description="Remove points beyond their retention.")
    def sweep_job() -> None:
        sweep()

    return sweep_job
