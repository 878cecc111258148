"""The Dagster code location: sets as declared by contracts, backups, sensors and schedules; and the CI gate."""

import dagster as dg

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.defs import maintenance, share, table_inputs, wap
from lakeshare_pipelines.defs.backup import backup_definitions, backup_maintenance
from lakeshare_pipelines.errors import UnknownSelection
from lakeshare_pipelines.settings import LakeSettings


@dg.definitions
def defs() -> dg.Definitions:
    settings = LakeSettings()
    contracts = load_contracts(settings.contracts_dir)
    delivered = [contract for contract in contracts if contract.takes_deliveries]
    store = wap.make_landing_store(settings)
    return dg.Definitions.merge(
        dg.Definitions(
            assets=[
                *(wap.landing_asset(contract) for contract in delivered),
                *(wap.wap_set(contract) for contract in contracts),
                share.share_catalog(contracts),
                *share.snowflake_tables(contracts, settings),
            ],
            jobs=[
                *(wap.publish_job(contract) for contract in contracts),
                dg.define_asset_job("apply_shares", selection=dg.AssetSelection.assets("share_catalog")),
            ],
            sensors=[
                *(wap.landing_sensor(contract, from_s3=bool(store)) for contract in delivered),
                *(wap.inputs_sensor(contract) for contract in contracts if contract.inputs),
                share.automation_sensor(),
            ],
            schedules=[wap.source_schedule(contract) for contract in contracts if contract.schedule],
            resources={
                "lakeshare": wap.LakeResource(spark=wap.SparkResource()),
                table_inputs.TABLES: table_inputs.table_manager,
                **store,
            },
            # One run is one Spark driver: docs/adr/0002.
            executor=dg.in_process_executor,
        ),
        maintenance.janitor_definitions(contracts),
        *(maintenance.maintenance_definitions(contract) for contract in contracts),
        share.usage_checks(),
        *(
            part
            for backup in load_backups(settings)
            for part in (
                backup_definitions(backup, contracts, is_declared=settings.backups_file is not None),
                backup_maintenance(backup, is_declared=settings.backups_file is not None),
            )
        ),
    )


def find_failed_checks(selection: str, *, errors_only: bool) -> list[str]:
    """Returns a line for each selected check whose newest evaluation in `DAGSTER_HOME`'s instance failed.

    Dagster itself exits 0 when a non-blocking check fails. A check without an evaluation has not failed: nothing of
    its asset was published.
    """
    repository = defs().get_repository_def()
    try:
        selected = dg.AssetSelection.from_coercible(selection.split(",")).resolve(repository.asset_graph)
    except dg.DagsterError as error:
        raise UnknownSelection(selection, str(error).splitlines()[0]) from error
    if not selected:
        raise UnknownSelection(selection, "selects no asset")
    failed = []
    with dg.DagsterInstance.get() as instance:
        for key in sorted(repository.asset_graph.asset_check_keys, key=str):
            if key.asset_key not in selected:
                continue
            record = instance.get_latest_asset_check_evaluation_record(key)
            evaluation = record.event.asset_check_evaluation if record and record.event else None
            if evaluation is None or evaluation.passed:
                continue
            if not errors_only or evaluation.severity is dg.AssetCheckSeverity.ERROR:
                failed.append(
                    f"{key.asset_key.to_user_string()} {key.name}: {evaluation.severity.value} failed"
                )
    return failed
