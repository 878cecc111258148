"""The audit log: one event for every decision, in a chain that shows whether any was removed, changed or moved.

Whoever writes to the catalog appends in the same transaction; servers go through a journal (`AuditLog`).
"""

from lakeshare_server.catalog.audit.chain import append_events
from lakeshare_server.catalog.audit.events import AuditEvent, Kind
from lakeshare_server.catalog.audit.log import AuditLog, adopt
from lakeshare_server.catalog.audit.pruning import Pruned, prune
from lakeshare_server.catalog.audit.reading import (
    ChainedEvent,
    Search,
    events_after,
    newest_number,
    newest_requests,
    search,
)
from lakeshare_server.catalog.audit.usage import Usage, grouped, last_seen, usage
from lakeshare_server.catalog.audit.verifying import Finding, Verification, receipt_of, verify

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
