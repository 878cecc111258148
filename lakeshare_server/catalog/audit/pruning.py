"""Retention: events older than a moment are removed, and the rest of the chain can still be verified.

The last event that goes becomes the anchor: the first that stays follows its hash. An event tells of every pruning.
"""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.chain import ANCHOR, PRUNED, append_events, locked_head
from lakeshare_server.catalog.audit.events import AuditEvent, instant
from lakeshare_server.catalog.audit.usage import keep_usage
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditChainRow, AuditRow
from lakeshare_server.errors import BadRequest

AT_ONCE = 20_000


@dataclass(frozen=True)
class Pruned:
    """How many events went, and up to which number."""

    events: int
    through: int


def prune(catalog: Catalog, before: datetime, by: str) -> Pruned:
    """Remove events from before a moment, in the name of `by`. Their usage stays, by day.

    Raises:
        BadRequest: the moment has no zone, or has not come yet.
        Unavailable: the database does not answer.
    """
    if before.tzinfo is None:
        raise BadRequest("before", before.isoformat(), "Give a time with its zone.")
    if before > datetime.now(UTC):
        raise BadRequest("before", before.isoformat(), "Give a moment that has passed.")
    events, through = 0, 0
    while True:
        # A piece at a time: nobody appends while one is removed.
        with catalog.writing(seen=False) as session:
            pruned = _prune_some(session, before, by)
        if not pruned.events:
            return Pruned(events, through)
        events, through = events + pruned.events, pruned.through


def _prune_some(session: Session, before: datetime, by: str) -> Pruned:
    locked_head(session)
    oldest = session.scalar(select(func.min(AuditRow.key)))
    if oldest is None:
        return Pruned(0, 0)
    # Clocks differ: what has a younger event before it stays with that.
    first_kept = session.scalar(select(func.min(AuditRow.key)).where(AuditRow.at >= before))
    newest = session.scalar(select(func.max(AuditRow.key))) or 0
    through = min(newest if first_kept is None else first_kept - 1, oldest + AT_ONCE - 1)
    if through < oldest:
        return Pruned(0, 0)
    gone = AuditRow.key <= through
    last = session.scalars(select(AuditRow).where(gone).order_by(AuditRow.key.desc()).limit(1)).one()
    through, digest = last.key, last.hash
    keep_usage(session, gone)
    events = session.scalar(select(func.count()).where(gone)) or 0
    session.expunge_all()
    session.execute(delete(AuditRow).where(gone))
    if digest is not None:
        anchor = update(AuditChainRow).where(AuditChainRow.name == ANCHOR)
        session.execute(anchor.values(number=through, hash=digest))
    told = {"through": through, "hash": digest, "events": events, "before": instant(before)}
    append_events(
        session,
        [
            AuditEvent(
                kind="change",
                at=datetime.now(UTC),
                principal=by,
                action=PRUNED,
                request_id=uuid.uuid4().hex,
                details=told,
            )
        ],
    )
    return Pruned(events, through)
