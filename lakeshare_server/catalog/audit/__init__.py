"""The audit log: one event per decision, in a hash chain that reveals removed, changed and moved events.

Writers of the catalog append in the same transaction; servers go through a journal (`AuditLog`).
"""

from lakeshare_server.catalog.audit.log import AuditEvent as AuditEvent
from lakeshare_server.catalog.audit.log import AuditLog as AuditLog
from lakeshare_server.catalog.audit.log import ChainedEvent as ChainedEvent
from lakeshare_server.catalog.audit.log import EventPage as EventPage
from lakeshare_server.catalog.audit.log import Kind as Kind
from lakeshare_server.catalog.audit.log import Search as Search
from lakeshare_server.catalog.audit.log import append_events as append_events
from lakeshare_server.catalog.audit.log import events_after as events_after
from lakeshare_server.catalog.audit.log import find_events as find_events
from lakeshare_server.catalog.audit.log import get_event as get_event
from lakeshare_server.catalog.audit.log import import_orphans as import_orphans
from lakeshare_server.catalog.audit.log import newest_event_number as newest_event_number
from lakeshare_server.catalog.audit.log import search as search
from lakeshare_server.catalog.audit.maintenance import group_usage as group_usage
from lakeshare_server.catalog.audit.maintenance import parse_receipt as parse_receipt
from lakeshare_server.catalog.audit.maintenance import prune as prune
from lakeshare_server.catalog.audit.maintenance import read_last_seen as read_last_seen
from lakeshare_server.catalog.audit.maintenance import read_usage as read_usage
from lakeshare_server.catalog.audit.maintenance import verify as verify
