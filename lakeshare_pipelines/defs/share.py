"""Shares: the asset `share_catalog`, usage checks, and external tables in Snowflake."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.contracts.model import SnowflakeEntry
from lakeshare_pipelines.defs.wap import LakeResource, table_key
from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share import shares
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_pipelines.share.snowflake import TableName, sync_table
from lakeshare_server.errors import LakeshareError, Unavailable


def share_catalog(contracts: Sequence[SetContract]) -> dg.AssetsDefinition:
    """Returns the asset that applies the contracts' shares to the catalog."""
    shared = sorted({entry.table for contract in contracts for entry in contract.shares})
    published = dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
    # The last day of a retired table ends without a publication.
    daily = published | dg.AutomationCondition.cron_tick_passed("5 0 * * *")
    is_daily = any(contract.retirements for contract in contracts)

    @dg.asset(
        name="share_catalog",
        description="The tables of each share and their names, applied from the contracts.",
        deps=[table_key(table) for table in shared],
        group_name="share",
        kinds={"deltasharing"},
        automation_condition=daily if is_daily else published,
    )
    def catalog(lakeshare: LakeResource) -> dg.MaterializeResult[None]:
        difference = apply_declared_shares(lakeshare.catalog(), contracts)
        return dg.MaterializeResult(
            metadata={
                "lakeshare/added": list(difference.added),
                "lakeshare/removed": list(difference.removed),
                "lakeshare/changed": list(difference.changed),
                "lakeshare/directory_access_ended": list(difference.closed),
                "lakeshare/unchanged": len(difference.unchanged),
            }
        )

    return catalog


def automation_sensor() -> dg.AutomationConditionSensorDefinition:
    """Returns the sensor for the conditions of `share_catalog` and of Snowflake's tables; running by default."""
    return dg.AutomationConditionSensorDefinition(
        "share_automation",
        target=dg.AssetSelection.groups("share"),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


CATALOG = dg.AssetKey("share_catalog")


def usage_checks() -> dg.Definitions:
    """Returns the two checks of usage, with their job and schedule."""

    @dg.asset_check(
        asset=CATALOG, description="Every active recipient was served within LAKESHARE_SILENT_DAYS."
    )
    def silent_recipients(lakeshare: LakeResource) -> dg.AssetCheckResult:
        days = lakeshare.settings().silent_days
        silent = shares.find_silent_recipients(lakeshare.catalog(), days, datetime.now(UTC))
        last = {
            usage.recipient: f"{usage.last_seen:%Y-%m-%d}" if usage.last_seen else "never" for usage in silent
        }
        return dg.AssetCheckResult(
            passed=not silent,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{len(silent)} recipients were not served for {days} days",
            metadata={"lakeshare/last_seen": dg.JsonMetadataValue(last)},
        )

    @dg.asset_check(
        asset=CATALOG,
        description="No recipient exceeded LAKESHARE_USAGE_SPIKE times its usual usage yesterday.",
    )
    def usage_spikes(lakeshare: LakeResource) -> dg.AssetCheckResult:
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        spikes = shares.find_usage_spikes(lakeshare.catalog(), lakeshare.settings().usage_spike, yesterday)
        sentences = [
            f"{spike.recipient}: {spike.value} {spike.measure}, usually {spike.usual:g}" for spike in spikes
        ]
        return dg.AssetCheckResult(
            passed=not spikes,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(sentences) or "no recipient exceeded its usual usage",
            metadata={"lakeshare/spikes": sentences, "lakeshare/day": yesterday.isoformat()},
        )

    job = dg.define_asset_job(
        "usage_checks", selection=dg.AssetSelection.checks(silent_recipients, usage_spikes)
    )
    status = dg.DefaultScheduleStatus.RUNNING
    every_morning = dg.ScheduleDefinition(
        name="usage_every_morning", job=job, cron_schedule="0 6 * * *", default_status=status
    )
    return dg.Definitions(
        asset_checks=[silent_recipients, usage_spikes], jobs=[job], schedules=[every_morning]
    )


RETRIES, RETRY_AFTER_S = 3, 60


def snowflake_tables(contracts: Sequence[SetContract], settings: LakeSettings) -> list[dg.AssetsDefinition]:
    """Returns the Snowflake assets of all contracts; none if no account is set."""
    if settings.snowflake_account is None:
        return []
    return [_table(contract, entry) for contract in contracts for entry in contract.snowflake]


def _table(contract: SetContract, entry: SnowflakeEntry) -> dg.AssetsDefinition:
    @dg.asset(
        key=["snowflake", entry.database, entry.schema, entry.name],
        description=f"External table of Snowflake that shows the newest publication of {entry.table}.",
        deps=[table_key(entry.table)],
        group_name="share",
        kinds={"snowflake"},
        owners=list(contract.owners),
        retry_policy=dg.RetryPolicy(max_retries=RETRIES, delay=RETRY_AFTER_S),
        # After each publication. Most days of a daily set have no publication, so missing ones are not awaited.
        automation_condition=dg.AutomationCondition.eager().without(
            ~dg.AutomationCondition.any_deps_missing()
        ),
    )
    def table(lakeshare: LakeResource) -> dg.MaterializeResult[None]:
        try:
            target = TableName(entry.name, entry.schema, entry.database)
            synced = sync_table(lakeshare.catalog(), entry.table, target, lakeshare.settings())
        except LakeshareError as refusal:
            passing = isinstance(refusal, Unavailable) or (
                isinstance(refusal, SnowflakeError) and refusal.passing
            )
            raise dg.Failure(str(refusal), allow_retries=passing) from refusal
        publication = synced.publication
        return dg.MaterializeResult(
            metadata={
                "dagster/table_name": synced.table,
                "dagster/row_count": publication.rows,
                "dagster/uri": synced.opened,
                "lakeshare/publication": publication.version,
                "lakeshare/published_by": publication.run_id,
                "snowflake/query_ids": dg.MetadataValue.json(list(synced.query_ids)),
            }
        )

    return table
