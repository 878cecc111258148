"""Dagster's entry: every set as its contract says, backups as declared, sensors, schedules, one executor."""

import dagster as dg

from lakeshare_pipelines.backup.config import load_backups
from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.defs.backup import backup_definitions, backup_maintenance
from lakeshare_pipelines.defs.resources import LakeResource, SparkResource, make_landing_store
from lakeshare_pipelines.defs.share import automation_sensor, share_catalog, snowflake_tables, usage_checks
from lakeshare_pipelines.defs.wap import (
    landing_asset,
    landing_sensor,
    maintenance_definitions,
    publish_job,
    wap_set,
)
from lakeshare_pipelines.settings import LakeSettings


@dg.definitions
def defs() -> dg.Definitions:
    """Everything of this code location."""
    settings = LakeSettings()
    contracts = load_contracts(settings.contracts_dir)
    store = make_landing_store(settings)
    return dg.Definitions.merge(
        dg.Definitions(
            assets=[
                *(landing_asset(contract) for contract in contracts),
                *(wap_set(contract) for contract in contracts),
                share_catalog(contracts),
                *snowflake_tables(contracts, settings),
            ],
            jobs=[
                *(publish_job(contract) for contract in contracts),
                dg.define_asset_job("apply_shares", selection=dg.AssetSelection.assets("share_catalog")),
            ],
            sensors=[
                *(landing_sensor(contract, from_s3=bool(store)) for contract in contracts),
                automation_sensor(),
            ],
            resources={"lake": LakeResource(spark=SparkResource()), **store},
            # One run is one Spark driver: docs/adr/0002.
            executor=dg.in_process_executor,
        ),
        maintenance_definitions(contracts),
        usage_checks(),
        *(
            part
            for backup in load_backups(settings)
            for part in (
                backup_definitions(backup, contracts, is_declared=settings.backups_file is not None),
                backup_maintenance(backup, is_declared=settings.backups_file is not None),
            )
        ),
    )
