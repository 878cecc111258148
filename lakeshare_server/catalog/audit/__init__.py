"""The audit log: one event for every decision, in a chain that shows whether any was removed, changed or moved.

Whoever writes to the catalog appends in the same transaction; servers go through a journal (`AuditLog`).
"""

from lakeshare_server.catalog.audit.log import (
    AuditEvent,
    AuditLog,
    ChainedEvent,
    Kind,
    Search,
    append_events,
    events_after,
    import_orphans,
    newest_event_number,
    newest_requests,
    search,
)
from lakeshare_server.catalog.audit.maintenance import (
    Finding,
    Pruned,
    Usage,
    Verification,
    group_usage,
    parse_receipt,
    prune,
    read_last_seen,
    read_usage,
    verify,
)

__all__ = [
    "AuditEvent",
    "AuditLog",
    "ChainedEvent",
    "Finding",
    "Kind",
    "Pruned",
    "Search",
    "Usage",
    "Verification",
    "append_events",
    "events_after",
    "group_usage",
    "import_orphans",
    "newest_event_number",
    "newest_requests",
    "parse_receipt",
    "prune",
    "read_last_seen",
    "read_usage",
    "search",
    "verify",
]
