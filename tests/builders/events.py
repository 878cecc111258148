"""Events of the audit log, and hands that tamper with it behind its back."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select, text

from lakeshare_server.catalog import AuditEvent, Catalog, append_events
from lakeshare_server.catalog.audit.log import NAMES
from lakeshare_server.catalog.models import AuditRow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def an_event(number: int = 0, **fields: Any) -> AuditEvent:
    """A query that was answered; its number tells it from others, and is its minute."""
    told = {
        "at": NOON + timedelta(minutes=number),
        "recipient": "bob",
        "action": "query_table",
        "object_name": "sales.lake.orders",
        "version": 1,
        "files": number,
        "request_id": f"r{number}",
        "ip": "::1",
        "user_agent": "ü",
        "elapsed_ms": 2,
        "details": {"n": number, "list": [None, True]},
    }
    return AuditEvent(**{**told, **fields})


def append(catalog: Catalog, events: Sequence[AuditEvent]) -> None:
    """Append events in one transaction."""
    with catalog.writing(seen=False) as session:
        append_events(session, events)


def tamper(catalog: Catalog, *statements: str) -> None:
    """What somebody can do who reaches the database."""
    with catalog.writing() as session:
        for statement in statements:
            session.execute(text(statement))


def newest_requests(catalog: Catalog, limit: int) -> list[AuditEvent]:
    """The newest events of requests in the database, newest first, without the changes of administrators."""
    requests = select(AuditRow).where(AuditRow.kind != "change")
    with catalog.reading() as session:
        rows = session.scalars(requests.order_by(AuditRow.key.desc()).limit(limit))
        return [AuditEvent(**{name: getattr(row, name) for name in NAMES}) for row in rows]
