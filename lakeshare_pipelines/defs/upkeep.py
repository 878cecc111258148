"""Upkeep: finish what crashed runs owe, drop staging places nobody came back to."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.share import abandoned_changes
from lakeshare_pipelines.share.repair import repair
from lakeshare_pipelines.wap.branches import drop_abandoned
from lakeshare_server.catalog.audit import prune


@dg.op(
    description="Remove audit events older than LAKESHARE_AUDIT_RETENTION_DAYS; the chain stays verifiable."
)
def prune_audit_log(context: dg.OpExecutionContext, repaired: int, lake: LakeResource) -> None:
    days = lake.settings().audit_retention_days
    if days is None:
        context.log.info("audit events are kept for ever: LAKESHARE_AUDIT_RETENTION_DAYS is not set")
        return
    pruned = prune(lake.catalog(), datetime.now(UTC) - timedelta(days=days), "janitor")
    context.log.info(f"removed {pruned.events} audit events of more than {days} days ago")


def upkeep(contracts: Sequence[SetContract]) -> dg.Definitions:
    """The janitor's job and its nightly schedule."""

    @dg.op(description="Write ledger entries that crashed runs still owe.")
    def repair_ledger(context: dg.OpExecutionContext, lake: LakeResource) -> int:
        repaired = 0
        for contract in contracts:
            repaired += len(repair(lake.lake(), lake.catalog(), contract, lake.settings().lock_wait_s))
        context.log.info(f"{repaired} publications were owed and are written now")
        return repaired

    @dg.op(description="Drop staging places older than LAKESHARE_BRANCH_DAYS.")
    def drop_abandoned_places(context: dg.OpExecutionContext, repaired: int, lake: LakeResource) -> None:
        dropped = drop_abandoned(lake.lake(), contracts)
        refs = ", ".join(place.ref for place in dropped) or "none"
        context.log.info(f"dropped {len(dropped)} staging places: {refs} ({repaired} repaired before)")

    @dg.op(description="Remove change files older than LAKESHARE_BRANCH_DAYS that no publication names.")
    def drop_abandoned_changes(context: dg.OpExecutionContext, repaired: int, lake: LakeResource) -> None:
        for contract in contracts:
            folders = abandoned_changes.drop_abandoned(
                lake.lake(), lake.catalog(), contract, lake.settings().lock_wait_s
            )
            context.log.info(
                f"removed {len(folders)} folders of change files: {', '.join(folders) or 'none'}"
            )

    @dg.job(
        description="Repairs the ledger, then removes abandoned staging places and files, and old events."
    )
    def janitor() -> None:
        repaired = repair_ledger()
        drop_abandoned_places(repaired)
        drop_abandoned_changes(repaired)
        prune_audit_log(repaired)

    nightly = dg.ScheduleDefinition(
        name="janitor_nightly",
        job=janitor,
        cron_schedule="30 3 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return dg.Definitions(jobs=[janitor], schedules=[nightly])
