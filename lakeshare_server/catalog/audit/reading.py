"""Reading the audit log: the newest events, those that match, and new ones as they come."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from lakeshare_server.catalog.audit.events import NAMES, AuditEvent, instant
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditRow


@dataclass(frozen=True)
class ChainedEvent:
    """An event in its place in the chain; events from before there was one have no hashes."""

    number: int
    event: AuditEvent
    previous_hash: str | None
    hash: str | None

    def as_json(self) -> dict[str, Any]:
        """All that is known of it, as the export spells it."""
        said = {name: getattr(self.event, name) for name in NAMES}
        return {
            "number": self.number,
            **said,
            "at": instant(self.event.at),
            "previous_hash": self.previous_hash,
            "hash": self.hash,
        }


def values_of(row: AuditRow) -> dict[str, Any]:
    """The columns of an event."""
    return {name: getattr(row, name) for name in NAMES}


def newest_requests(catalog: Catalog, limit: int) -> list[AuditEvent]:
    """The newest events of requests that are in the database, newest first; not the changes of administrators."""
    requests = select(AuditRow).where(AuditRow.kind != "change")
    with catalog.reading() as session:
        rows = session.scalars(requests.order_by(AuditRow.key.desc()).limit(limit))
        return [AuditEvent(**values_of(row)) for row in rows]
