"""The audit log: one event for every decision, in a chain that shows whether any was removed, changed or moved.

Whoever writes to the catalog appends in the same transaction; servers go through a journal (`AuditLog`).
"""

from lakeshare_server.catalog.audit.chain import append_events
from lakeshare_server.catalog.audit.events import AuditEvent, Kind
from lakeshare_server.catalog.audit.log import AuditLog, adopt
from lakeshare_server.catalog.audit.reading import ChainedEvent, newest_requests

__all__ = ["AuditEvent", "AuditLog", "ChainedEvent", "Kind", "adopt", "append_events", "newest_requests"]
