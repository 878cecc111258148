"""The audit log: one event for every decision, in a chain that shows whether any was removed, changed or moved.

Whoever writes to the catalog appends in the same transaction; servers go through a journal (`AuditLog`).
"""

from lakeshare_server.catalog.audit.log import (
    AuditEvent,
    AuditLog,
    ChainedEvent,
    Kind,
    Search,
    adopt,
    append_events,
    events_after,
    newest_number,
    newest_requests,
    search,
)
from lakeshare_server.catalog.audit.maintenance import (
    Finding,
    Pruned,
    Usage,
    Verification,
    grouped,
    last_seen,
    prune,
    receipt_of,
    usage,
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
    "adopt",
    "append_events",
    "events_after",
    "grouped",
    "last_seen",
    "newest_number",
    "newest_requests",
    "prune",
    "receipt_of",
    "search",
    "usage",
    "verify",
]
