"""What files or contracts want of shares, recipients, groups and grants, and making the catalog hold it.

Both go the same way: wanted and held objects are compared, and the steps between them are taken by the operations of
`sharing`, in one transaction. `lakeshare apply` reads files; the asset `share_catalog` has its contracts.
"""

from lakeshare_server.catalog.declared.apply import apply_files, dry_run, export, plan_changes
from lakeshare_server.catalog.declared.documents import Document
from lakeshare_server.catalog.declared.files import read_files
from lakeshare_server.catalog.declared.plan import Plan, format_applied, format_plan, plan_files, plan_json

__all__ = [
    "Document",
    "Plan",
    "apply_files",
    "dry_run",
    "export",
    "format_applied",
    "format_plan",
    "plan_changes",
    "plan_files",
    "plan_json",
    "read_files",
]
