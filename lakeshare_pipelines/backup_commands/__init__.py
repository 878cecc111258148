"""`lakeshare inventory …`, `lakeshare backup …` and `lakeshare restore …`; one module per subject.

Commands import what they need when they run.
"""

from lakeshare_pipelines.backup_commands import (
    batch,
    drills,
    inventory_generate,
    inventory_reports,
    jobs,
    plan,
    points,
    policies,
    restore_catalog,
    restores,
    retention,
    scrubs,
)
from lakeshare_pipelines.backup_commands.apps import backup_app, inventory_app, restore_app

__all__ = [
    "backup_app",
    "batch",
    "drills",
    "inventory_app",
    "inventory_generate",
    "inventory_reports",
    "jobs",
    "plan",
    "points",
    "policies",
    "restore_app",
    "restore_catalog",
    "restores",
    "retention",
    "scrubs",
]
