"""Shares, recipients, groups and grants as files or contracts declare them, and their application to the catalog.

Both are compared with the catalog; the operations of `sharing` then take the steps, in one transaction.
`lakeshare apply` reads files; the asset `share_catalog` has its contracts.
"""

from lakeshare_server.catalog.declared.apply import apply_files as apply_files
from lakeshare_server.catalog.declared.apply import plan_changes as plan_changes
from lakeshare_server.catalog.declared.documents import Document as Document
from lakeshare_server.catalog.declared.files import read_files as read_files
from lakeshare_server.catalog.declared.plan import Configuration as Configuration
from lakeshare_server.catalog.declared.plan import Plan as Plan
from lakeshare_server.catalog.declared.plan import export as export
from lakeshare_server.catalog.declared.plan import format_applied as format_applied
from lakeshare_server.catalog.declared.plan import format_plan as format_plan
from lakeshare_server.catalog.declared.plan import plan_files as plan_files
from lakeshare_server.catalog.declared.plan import plan_json as plan_json
