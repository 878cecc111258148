"""Backups as daily assets: listing, plan, copies, tables, point; a sensor that starts days as they fall due.

What a step does is in lakeshare_pipelines.backup.making; here are names, checks, metadata and progress.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import dagster as dg

from lakeshare_pipelines.backup import making
from lakeshare_pipelines.backup.copy.engine import Progress
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.records import GOOD, TableProof, Verification
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.defs.wap import table_key
from lakeshare_server.errors import LakeshareError

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

PROGRESS_S = 15.0
SENSOR_S = 300
SHOWN = 100
"""Tables that metadata lists by name."""
PROVED = {
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
    of_step = {"plan": ["no_warnings"], "copies": ["all_copied"], "tables": list(PROVED)}
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
        with refusals():
            found = making.listed(_making(context, lake, backup), datetime.now(UTC))
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
        with refusals():
            found = making.planned(_making(context, lake, backup))
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
        with refusals():
            found = making.copied(_making(context, lake, backup), _logged(context))
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
        check_specs=[dg.AssetCheckSpec(name, asset=key, description=text) for name, text in PROVED.items()],
    )
    def tables(context: dg.AssetExecutionContext, lake: LakeResource) -> Iterator[dg.MaterializeResult[None]]:
        with refusals():
            found = making.verified(_making(context, lake, backup))
        yield dg.MaterializeResult(
            metadata={
                "lakeshare/status": found.status,
                "lakeshare/objects": found.objects,
                "lakeshare/size_bytes": found.size_bytes,
                "lakeshare/tables": dg.MetadataValue.json([_shown(one) for one in found.tables[:SHOWN]]),
            },
            check_results=_judged(found),
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
        with refusals():
            made = making.finished(_making(context, lake, backup), datetime.now(UTC))
        # Beside each table stands the point that protects it.
        for proof in made.verification.tables:
            table = _published_at(proof, contracts)
            if table is not None:
                context.log_event(
                    dg.AssetObservation(
                        asset_key=table_key(table),
                        metadata={f"lakeshare/backup/{backup.name}": made.day, **_shown(proof)},
                    )
                )
        return dg.MaterializeResult(
            metadata={
                "lakeshare/status": made.status,
                "lakeshare/as_of": made.as_of.isoformat(),
                "lakeshare/target": made.target,
                "lakeshare/retention_class": made.retention_class,
                "lakeshare/locked_until": made.locked_until.isoformat()
                if made.locked_until
                else "not locked",
                "lakeshare/next": f"lakeshare backup show {backup.name} {made.day}",
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
        from lakeshare_pipelines.backup.due import due_days

        due = due_days(backup, datetime.now(UTC))
        for day in due:
            yield dg.RunRequest(run_key=f"{backup.name}:{day}", partition_key=day)
        if not due:
            yield dg.SkipReason(f"no day of {backup.name} is due")

    return days_due


def _making(context: dg.AssetExecutionContext, lake: LakeResource, backup: Backup) -> making.Making:
    # A run that goes on after a failure has another id and the same root.
    owner = context.run.root_run_id or context.run.run_id
    return making.Making(lake.settings(), backup, context.partition_key, owner, lambda: lake.lake().spark)


@contextmanager
def refusals() -> Iterator[None]:
    """Our own errors end a step at once: trying again would give the same answer."""
    try:
        yield
    except LakeshareError as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def _logged(context: dg.AssetExecutionContext) -> Callable[[Progress], None]:
    """Tells of a long copy every quarter of a minute."""
    told_at = time.monotonic()

    def tell(progress: Progress) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= PROGRESS_S:
            told_at = time.monotonic()
            context.log.info(making.progress_line(progress))

    return tell


def _judged(found: Verification) -> list[dg.AssetCheckResult]:
    broken = [one for one in found.tables if one.status not in GOOD]
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
            description=_told(broken) or _told(behind) or f"{len(found.tables)} tables are whole",
            metadata={"lakeshare/fallbacks": [one.table.root for one in behind[:SHOWN]]},
        ),
        dg.AssetCheckResult(
            check_name="tables_open",
            passed=not closed,
            description=_told(closed) or f"{len(found.tables)} tables opened",
        ),
    ]


def _told(proofs: Sequence[TableProof]) -> str:
    return "; ".join(f"{one.table.root}: {' '.join(one.reasons)}" for one in proofs[:SHOWN])


def _shown(proof: TableProof) -> dict[str, str | int]:
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


def _published_at(proof: TableProof, contracts: Sequence[SetContract]) -> str | None:
    """The table of a contract whose files are at a root: the warehouse has a folder for each by its name."""
    names = {table.name for contract in contracts for table in contract.tables}
    parts = proof.table.root.split("/")
    # Iceberg's writers may add an id to the folder's name.
    found = ".".join([*parts[:-1], parts[-1].rsplit("_", 1)[0]])
    return next((name for name in names if name in {".".join(parts), found}), None)
