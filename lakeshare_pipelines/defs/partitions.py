"""Partitions: days for sets that are delivered daily, one dynamic key per delivery for landing."""

import dagster as dg

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.wap.staged import WHOLE


def partitions_of(contract: SetContract) -> dg.DailyPartitionsDefinition | None:
    """The partitions of a set's tables; None when it is replaced as a whole."""
    if contract.partitioning == "none":
        return None
    return dg.DailyPartitionsDefinition(start_date=str(contract.first_partition))


def deliveries_of(contract: SetContract) -> dg.DynamicPartitionsDefinition:
    """One key per delivery that was seen: `<partition>@<digest>`, the first twelve digits of it."""
    return dg.DynamicPartitionsDefinition(name=f"landing_{contract.name}")


def delivery_key(partition: str, digest: str) -> str:
    """The dynamic partition key of a delivery."""
    return f"{partition}@{digest[:12]}"


def partitions_of_run(context: dg.OpExecutionContext) -> tuple[str, ...]:
    """The partitions a run writes: one day, every day of a range, or the whole set."""
    return tuple(context.partition_keys) if context.has_partitions else WHOLE
