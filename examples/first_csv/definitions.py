"""The Dagster code location: assets, checks, sensors and schedules of the contracts in contracts/."""

from lakeshare_pipelines.definitions import defs

__all__ = ["defs"]
