"""Shares: `share_catalog` makes the server's catalog what the contracts declare."""

from collections.abc import Sequence

import dagster as dg

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.defs.wap import table_key
from lakeshare_pipelines.share.shares import apply


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
        difference = apply(lake.catalog(), contracts)
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
