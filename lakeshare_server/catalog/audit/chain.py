"""The chain of events: each holds the hash of the one before it, in one order for all processes.

The order is made in the database, by whoever holds the head of the chain in its transaction.
"""

from collections.abc import Sequence

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.events import AuditEvent, Written, chained, written
from lakeshare_server.catalog.models import AuditChainRow, AuditRow

HEAD = "head"
ANCHOR = "anchor"


def append_events(session: Session, events: Sequence[AuditEvent]) -> None:
    """Append events to the log, in this order, within the session's transaction.

    Nobody else appends until that has ended: do it last in a transaction, and end it soon.
    """
    append_written(session, [written(event) for event in events])


def append_written(session: Session, events: Sequence[Written]) -> None:
    """Append events that are written already."""
    if not events:
        return
    head = _locked_head(session)
    previous, number = head.hash, head.number
    rows = []
    for event in events:
        number += 1
        digest = chained(previous, event.text)
        rows.append({"key": number, **event.values, "previous_hash": previous, "hash": digest})
        previous = digest
    session.execute(insert(AuditRow), rows)
    session.execute(
        update(AuditChainRow).where(AuditChainRow.name == HEAD).values(number=number, hash=previous)
    )


def _locked_head(session: Session) -> AuditChainRow:
    # SQLite has one writer at a time anyway; elsewhere the row is what writers wait for.
    look = select(AuditChainRow).where(AuditChainRow.name == HEAD).with_for_update()
    head = session.scalars(look.execution_options(populate_existing=True)).one()
    session.expunge(head)
    newest = session.scalar(select(func.max(AuditRow.key))) or 0
    # A head that somebody has set back must not keep events out: `verify` tells of it.
    head.number = max(head.number, newest)
    return head
