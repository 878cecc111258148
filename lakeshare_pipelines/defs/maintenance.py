"""Maintenance in Dagster: an asset for each table that is maintained, its schedule, and the nightly janitor."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.defs.wap import LakeResource, retry_on_outage, table_key
from lakeshare_pipelines.maintenance.compaction import TableFigures
from lakeshare_pipelines.maintenance.run import MaintenanceResult, maintain
from lakeshare_pipelines.share.changes import restore_changes
from lakeshare_pipelines.share.publication import drop_abandoned, for_each_set, repair
from lakeshare_pipelines.wap import stage
from lakeshare_server.catalog import Ledger
from lakeshare_server.catalog.audit import prune
from lakeshare_server.errors import LakeshareError

PREFIX = "maintenance"


def maintenance_definitions(contract: SetContract) -> dg.Definitions:
    """Returns the assets of a set's maintained tables, their job `maintain_<set>` and its schedule."""
    specs = [
        dg.AssetSpec(
            maintenance_key(table),
            deps=[table_key(table.name)],
            description=f"The maintenance of {table.name}: its files before and after.",
            group_name=PREFIX,
            kinds={"spark", table.format},
            owners=list(contract.owners),
            skippable=True,
        )
        for table in contract.tables
    ]

    job = dg.define_asset_job(
        f"maintain_{contract.name}",
        selection=dg.AssetSelection.assets(*(spec.key for spec in specs)),
        description=f"Maintain the tables of {contract.name}.",
        executor_def=dg.in_process_executor,
    )
    schedule = dg.ScheduleDefinition(
        name=f"maintain_{contract.name}",
        job=job,
        cron_schedule=contract.maintenance_schedule,
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return dg.Definitions(assets=[_maintain_tables(contract, specs)], jobs=[job], schedules=[schedule])


def _maintain_tables(contract: SetContract, specs: Sequence[dg.AssetSpec]) -> dg.AssetsDefinition:
    @dg.multi_asset(
        name=f"{contract.name}_maintenance",
        specs=specs,
        can_subset=True,
        pool=f"lakeshare_{contract.name}_maintenance",
        description="Expire publications, compact files, remove files that nothing uses; no row changes.",
    )
    def maintain_tables(
        context: dg.AssetExecutionContext, lakeshare: LakeResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        failed: dict[str, LakeshareError] = {}
        for table in contract.tables:
            if maintenance_key(table) not in context.selected_asset_keys:
                continue
            if Ledger(lakeshare.catalog()).latest(table.name) is None:
                context.log.info(f"{table.name} has no publication yet")
                continue
            try:
                with retry_on_outage():
                    result = maintain(lakeshare.lake(), lakeshare.catalog(), contract, table)
            except LakeshareError as error:
                # The other tables are maintained all the same.
                failed[table.name] = error
                continue
            if result.files_stay:
                context.log.warning(result.files_stay)
            yield dg.MaterializeResult(
                asset_key=maintenance_key(table), metadata=maintenance_metadata(result)
            )
        if failed:
            raise dg.Failure("; ".join(map(str, failed.values())), allow_retries=False)

    return maintain_tables


def maintenance_key(table: Table) -> dg.AssetKey:
    return dg.AssetKey([PREFIX, *table_key(table.name).path])


def maintenance_metadata(result: MaintenanceResult) -> Mapping[str, Any]:
    """Returns the figures before and after, the number that was published, and what was removed."""
    shown: dict[str, Any] = {
        **_format_figures("before", result.before),
        **_format_figures("after", result.after),
        "lakeshare/oldest_readable": result.oldest_readable,
        "lakeshare/removed_files": len(result.removed.files),
        "lakeshare/removed_bytes": result.removed.size_bytes,
    }
    if result.publication is not None:
        shown["lakeshare/publication"] = result.publication.version
    if result.files_stay:
        shown["lakeshare/files_stay"] = result.files_stay
    return shown


def _format_figures(when: str, figures: TableFigures) -> Mapping[str, int]:
    names = ("files", "size_bytes", "small_files", "manifests", "history")
    return {f"{when}/{name}": getattr(figures, name) for name in names}


@dg.op(
    description="Remove audit events older than LAKESHARE_AUDIT_RETENTION_DAYS; the chain stays verifiable."
)
def prune_audit_log(context: dg.OpExecutionContext, lakeshare: LakeResource) -> None:
    days = lakeshare.settings().audit_retention_days
    if days is None:
        context.log.info("audit events are kept: LAKESHARE_AUDIT_RETENTION_DAYS is not set")
        return
    pruned = prune(lakeshare.catalog(), datetime.now(UTC) - timedelta(days=days), "janitor")
    context.log.info(f"removed {pruned.events} audit events of more than {days} days ago")


def janitor_definitions(contracts: Sequence[SetContract]) -> dg.Definitions:
    """Returns the janitor's job and its nightly schedule; a set that fails does not keep it from the others."""

    @dg.op(
        description="Complete publications that crashed runs left unfinished, and record lost changes again."
    )
    def repair_ledger(context: dg.OpExecutionContext, lakeshare: LakeResource) -> dict[str, str]:
        def repair_set(contract: SetContract) -> None:
            repaired = repair(lakeshare.lake(), lakeshare.catalog(), contract)
            context.log.info(f"{contract.name}: completed {len(repaired)} unfinished publications")
            for row in restore_changes(lakeshare.lake(), lakeshare.catalog(), contract):
                context.log.info(f"recorded the changes of {row.table} in publication {row.version} again")

        # The steps that need it report the failed sets.
        return for_each_set(contracts, repair_set)

    drop_abandoned_places = _make_drop_op(
        "drop_abandoned_places",
        "Drop staging locations older than LAKESHARE_BRANCH_DAYS.",
        contracts,
        lambda lakeshare, contract: stage.drop_abandoned(lakeshare.lake(), contract),
    )
    drop_abandoned_changes = _make_drop_op(
        "drop_abandoned_changes",
        "Remove change files older than LAKESHARE_BRANCH_DAYS that no publication names.",
        contracts,
        lambda lakeshare, contract: drop_abandoned(lakeshare.lake(), lakeshare.catalog(), contract),
    )

    @dg.job(
        description="Repairs the ledger, then removes abandoned staging locations and files, and old events."
    )
    def janitor() -> None:
        failed = repair_ledger()
        drop_abandoned_places(failed)
        drop_abandoned_changes(failed)
        prune_audit_log()

    status = dg.DefaultScheduleStatus.RUNNING
    nightly = dg.ScheduleDefinition(
        name="janitor_nightly", job=janitor, cron_schedule="30 3 * * *", default_status=status
    )
    return dg.Definitions(jobs=[janitor], schedules=[nightly])


def _make_drop_op(
    name: str,
    description: str,
    contracts: Sequence[SetContract],
    drop: Callable[[LakeResource, SetContract], list[str]],
) -> dg.OpDefinition:
    @dg.op(name=name, description=description)
    def drop_op(context: dg.OpExecutionContext, failed: dict[str, str], lakeshare: LakeResource) -> None:
        def drop_of_set(contract: SetContract) -> None:
            dropped = drop(lakeshare, contract)
            context.log.info(f"{contract.name}: removed {len(dropped)}: {', '.join(dropped) or 'none'}")

        others = [contract for contract in contracts if contract.name not in failed]
        if reasons := failed | for_each_set(others, drop_of_set):
            raise dg.Failure("; ".join(reasons.values()), allow_retries=False)

    return drop_op
