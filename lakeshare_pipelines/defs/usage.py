"""Usage of the shares as checks of `share_catalog`: warnings, which hold nothing up, looked at every morning."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from lakeshare_pipelines.defs.resources import LakeResource
from lakeshare_pipelines.share import usage

CATALOG = dg.AssetKey("share_catalog")


def usage_checks() -> dg.Definitions:
    """The two checks, and the job and schedule that evaluate them."""

    @dg.asset_check(
        asset=CATALOG,
        description="Every recipient that could ask was answered within LAKESHARE_SILENT_DAYS.",
    )
    def silent_recipients(lake: LakeResource) -> dg.AssetCheckResult:
        days = lake.settings().silent_days
        silent = usage.silent_recipients(lake.catalog(), days, datetime.now(UTC))
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
        spikes = usage.usage_spikes(lake.catalog(), lake.settings().usage_spike, yesterday)
        told = [f"{one.recipient}: {one.value} {one.measure}, usually {one.usual:g}" for one in spikes]
        return dg.AssetCheckResult(
            passed=not spikes,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(told) or "nobody asked for much more than usual",
            metadata={"lakeshare/spikes": told, "lakeshare/day": yesterday.isoformat()},
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
