"""Reading the audit log: the newest events, those that match, and new ones as they come."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, func, select

from lakeshare_server.catalog.audit.events import NAMES, AuditEvent, Kind, instant
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditRow

BATCH = 2000
REFUSED = 400


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


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which events are wanted; None asks for any. `object_name` stands for all that is in it, too: a share's tables."""

    recipient: str | None = None
    principal: str | None = None
    action: str | None = None
    object_name: str | None = None
    request_id: str | None = None
    ip: str | None = None
    kind: Kind | None = None
    since: datetime | None = None
    until: datetime | None = None
    refused: bool = False

    def conditions(self) -> list[ColumnElement[bool]]:
        """The same for the database."""
        names = ("recipient", "principal", "action", "request_id", "ip", "kind")
        asked = [(getattr(AuditRow, name), getattr(self, name)) for name in names]
        found = [column == value for column, value in asked if value is not None]
        if self.object_name is not None:
            inside = AuditRow.object_name.startswith(f"{self.object_name}.", autoescape=True)
            found.append((AuditRow.object_name == self.object_name) | inside)
        if self.since is not None:
            found.append(AuditRow.at >= self.since)
        if self.until is not None:
            found.append(AuditRow.at < self.until)
        if self.refused:
            found.append(AuditRow.status >= REFUSED)
        return found


def search(catalog: Catalog, wanted: Search, limit: int) -> list[ChainedEvent]:
    """The newest events that match, oldest first.

    Raises:
        Unavailable: the database does not answer.
    """
    look = select(AuditRow).where(*wanted.conditions()).order_by(AuditRow.key.desc()).limit(limit)
    with catalog.reading() as session:
        return [_chained(row) for row in session.scalars(look)][::-1]


def events_after(
    catalog: Catalog, number: int, wanted: Search | None = None, batch: int = BATCH
) -> Iterator[ChainedEvent]:
    """All events behind a number that match, in the order of the chain; nobody waits while they are taken.

    Raises:
        Unavailable: the database does not answer.
    """
    conditions = [] if wanted is None else wanted.conditions()
    while True:
        look = select(AuditRow).where(AuditRow.key > number, *conditions).order_by(AuditRow.key).limit(batch)
        with catalog.reading() as session:
            events = [_chained(row) for row in session.scalars(look)]
        yield from events
        if len(events) < batch:
            return
        number = events[-1].number


def newest_number(catalog: Catalog) -> int:
    """The number of the newest event, 0 when there is none."""
    with catalog.reading() as session:
        return session.scalar(select(func.max(AuditRow.key))) or 0


def _chained(row: AuditRow) -> ChainedEvent:
    return ChainedEvent(row.key, AuditEvent(**values_of(row)), row.previous_hash, row.hash)


def newest_requests(catalog: Catalog, limit: int) -> list[AuditEvent]:
    """The newest events of requests that are in the database, newest first; not the changes of administrators."""
    requests = select(AuditRow).where(AuditRow.kind != "change")
    with catalog.reading() as session:
        rows = session.scalars(requests.order_by(AuditRow.key.desc()).limit(limit))
        return [AuditEvent(**values_of(row)) for row in rows]
