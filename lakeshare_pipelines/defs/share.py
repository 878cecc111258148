"""Shares: `share_catalog` makes the server's catalog what the contracts declare."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from lakeshare_pipelines.contracts import SetContract, SnowflakeEntry
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.defs.wap import table_key
from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share import shares
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_pipelines.share.snowflake import SyncResult, TableName, sync_table
from lakeshare_server.errors import LakeshareError, Unavailable


def share_catalog(contracts: Sequence[SetContract]) -> dg.AssetsDefinition:
    """The catalog asset; recipients see a table once it is declared here and published."""
    shared = sorted({entry.table for contract in contracts for entry in contract.shares})

    @dg.asset(
        name="share_catalog",
        description="Which tables recipients find, under which names: applied from the contracts.",
        deps=[table_key(table) for table in shared],
        group_name="share",
        kinds={"deltasharing"},
        automation_condition=dg.AutomationCondition.eager()
        & dg.AutomationCondition.all_deps_blocking_checks_passed(),
    )
    def catalog(lake: LakeResource) -> dg.MaterializeResult[None]:
        difference = apply_declared_shares(lake.catalog(), contracts)
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
    """Evaluates the conditions of `share_catalog` and of Snowflake's tables; on from the start."""
    return dg.AutomationConditionSensorDefinition(
        "share_automation",
        target=dg.AssetSelection.groups("share"),
        default_status=dg.DefaultSensorStatus.RUNNING,
    )


CATALOG = dg.AssetKey("share_catalog")


def usage_checks() -> dg.Definitions:
    """The two checks, and the job and schedule that evaluate them."""

    @dg.asset_check(
        asset=CATALOG,
        description="Every recipient that could ask was answered within LAKESHARE_SILENT_DAYS.",
    )
    def silent_recipients(lake: LakeResource) -> dg.AssetCheckResult:
        days = lake.settings().silent_days
        silent = shares.find_silent_recipients(lake.catalog(), days, datetime.now(UTC))
        last = {one.recipient: f"{one.last_seen:%Y-%m-%d}" if one.last_seen else "never" for one in silent}
        return dg.AssetCheckResult(
            passed=not silent,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{len(silent)} recipients were not answered for {days} days",
            metadata={"lakeshare/last_seen": dg.JsonMetadataValue(last)},
        )

    @dg.asset_check(
        asset=CATALOG,
        description="No recipient asked yesterday for more than LAKESHARE_USAGE_SPIKE times what it usually does.",
    )
    def usage_spikes(lake: LakeResource) -> dg.AssetCheckResult:
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        spikes = shares.find_usage_spikes(lake.catalog(), lake.settings().usage_spike, yesterday)
        sentences = [f"{one.recipient}: {one.value} {one.measure}, usually {one.usual:g}" for one in spikes]
        return dg.AssetCheckResult(
            passed=not spikes,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(sentences) or "nobody asked for much more than usual",
            metadata={"lakeshare/spikes": sentences, "lakeshare/day": yesterday.isoformat()},
        )

    job = dg.define_asset_job(
        "usage_checks", selection=dg.AssetSelection.checks(silent_recipients, usage_spikes)
    )
    every_morning = dg.ScheduleDefinition(
        name="usage_every_morning",
        job=job,
        cron_schedule="0 6 * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    return dg.Definitions(
        asset_checks=[silent_recipients, usage_spikes], jobs=[job], schedules=[every_morning]
    )


RETRIES, RETRY_AFTER_S = 3, 60


def snowflake_tables(contracts: Sequence[SetContract], settings: LakeSettings) -> list[dg.AssetsDefinition]:
    """The assets of all contracts; none where no account is set."""
    if settings.snowflake_account is None:
        return []
    return [_table(contract, entry) for contract in contracts for entry in contract.snowflake]


def snowflake_key(entry: SnowflakeEntry) -> dg.AssetKey:
    """The asset of a table of Snowflake."""
    return dg.AssetKey(["snowflake", entry.database, entry.schema, entry.name])


def _table(contract: SetContract, entry: SnowflakeEntry) -> dg.AssetsDefinition:
    @dg.asset(
        key=snowflake_key(entry),
        description=f"External table of Snowflake that shows the newest publication of {entry.table}.",
        deps=[table_key(entry.table)],
        group_name="share",
        kinds={"snowflake"},
        owners=list(contract.owners),
        retry_policy=dg.RetryPolicy(max_retries=RETRIES, delay=RETRY_AFTER_S),
        # After each publication, which is audited by then. Of a daily set most days have none: nothing waits for them.
        automation_condition=dg.AutomationCondition.eager().without(
            ~dg.AutomationCondition.any_deps_missing()
        ),
    )
    def table(lake: LakeResource) -> dg.MaterializeResult[None]:
        try:
            target = TableName(entry.name, entry.schema, entry.database)
            followed = sync_table(lake.catalog(), entry.table, target, lake.settings())
        except LakeshareError as refusal:
            passing = isinstance(refusal, Unavailable) or (
                isinstance(refusal, SnowflakeError) and refusal.passing
            )
            raise dg.Failure(str(refusal), allow_retries=passing) from refusal
        return dg.MaterializeResult(metadata=_metadata(followed))

    return table


def _metadata(followed: SyncResult) -> dict[str, dg.MetadataValue]:
    publication = followed.publication
    return {
        "dagster/table_name": dg.MetadataValue.text(followed.table),
        "dagster/row_count": dg.MetadataValue.int(publication.rows),
        "dagster/uri": dg.MetadataValue.text(followed.opened),
        "lakeshare/publication": dg.MetadataValue.int(publication.version),
        "lakeshare/published_by": dg.MetadataValue.text(publication.run_id),
        "snowflake/query_ids": dg.MetadataValue.json(list(followed.query_ids)),
    }
