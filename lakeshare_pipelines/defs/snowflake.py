"""Snowflake: one asset for each table there that follows a table of the lake, by what contracts and settings say."""

from collections.abc import Sequence

import dagster as dg

from lakeshare_pipelines.contracts import SetContract, SnowflakeEntry
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.defs.wap import table_key
from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.snowflake.follow import Followed, follow
from lakeshare_pipelines.share.snowflake.names import TableName
from lakeshare_server.errors import LakeshareError, Unavailable

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
            followed = follow(lake.catalog(), entry.table, target, lake.settings())
        except LakeshareError as refusal:
            passing = isinstance(refusal, Unavailable) or (
                isinstance(refusal, SnowflakeError) and refusal.passing
            )
            raise dg.Failure(str(refusal), allow_retries=passing) from refusal
        return dg.MaterializeResult(metadata=_metadata(followed))

    return table


def _metadata(followed: Followed) -> dict[str, dg.MetadataValue]:
    publication = followed.publication
    return {
        "dagster/table_name": dg.MetadataValue.text(followed.table),
        "dagster/row_count": dg.MetadataValue.int(publication.rows),
        "dagster/uri": dg.MetadataValue.text(followed.opened),
        "lakeshare/publication": dg.MetadataValue.int(publication.version),
        "lakeshare/published_by": dg.MetadataValue.text(publication.run_id),
        "snowflake/query_ids": dg.MetadataValue.json(list(followed.query_ids)),
    }
