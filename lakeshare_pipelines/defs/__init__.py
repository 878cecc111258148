"""The Dagster layer: assets, checks, jobs, sensors and schedules, without logic of their own.

No file may postpone annotations (`from __future__ import annotations`): Dagster reads them at run time.
"""
