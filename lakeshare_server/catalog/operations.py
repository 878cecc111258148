"""What is at work over the catalog, for people: processes, locks of sets, async queries, followed tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.ledger import FollowedTable, followed_from_row
from lakeshare_server.catalog.models import (
    AsyncQueryRow,
    AuditJournalRow,
    FollowedTableRow,
    PublicationRow,
    SetLockRow,
)
from lakeshare_server.catalog.overviews import PAGE, Page

QUERY_STATES = ("pending", "running", "done", "failed")


@dataclass(frozen=True)
class HeldLock:
    """A set that a process is publishing."""

    set_name: str
    owner: str
    host: str
    pid: int
    expires_at: datetime


@dataclass(frozen=True)
class Operations:
    """`processes` are servers that have a journal of audit events; `queries` counts async queries by state."""

    processes: int
    locks: Sequence[HeldLock]
    queries: Mapping[str, int]
    oldest_pending: datetime | None


@dataclass(frozen=True)
class FollowedOverview:
    """A followed table; `version` is its newest one in the ledger, None for Delta tables, which have none there."""

    table: FollowedTable
    version: int | None
    published_at: datetime | None


def read_operations(session: Session) -> Operations:
    """What is at work now."""
    now = datetime.now(UTC)
    held = select(SetLockRow).where(SetLockRow.owner.is_not(None), SetLockRow.expires_at > now)
    locks = [
        HeldLock(
            row.set_name, row.owner or "", (row.host or "").partition("/")[0], row.pid or 0, row.expires_at
        )
        for row in session.scalars(held.order_by(SetLockRow.set_name).limit(PAGE))
        if row.expires_at is not None
    ]
    kept = AsyncQueryRow.expires_at > now
    counted = select(AsyncQueryRow.state, func.count()).where(kept).group_by(AsyncQueryRow.state)
    counts = {row[0]: row[1] for row in session.execute(counted)}
    pending = select(func.min(AsyncQueryRow.created_at)).where(kept, AsyncQueryRow.state == "pending")
    return Operations(
        session.scalar(select(func.count()).select_from(AuditJournalRow)) or 0,
        locks,
        {state: counts.pop(state, 0) for state in QUERY_STATES} | counts,
        session.scalar(pending),
    )


def find_followed(session: Session, after: str = "") -> Page[FollowedOverview]:
    """A page of the followed tables by name, with their newest numbers."""
    rows = list(
        session.scalars(
            select(FollowedTableRow)
            .where(FollowedTableRow.table_name > after)
            .order_by(FollowedTableRow.table_name)
            .limit(PAGE + 1)
        )
    )
    shown = rows[:PAGE]
    newest = (
        select(PublicationRow.table.label("name"), func.max(PublicationRow.version).label("version"))
        .where(PublicationRow.table.in_([row.table_name for row in shown]))
        .group_by(PublicationRow.table)
        .subquery()
    )
    found = select(PublicationRow.table, PublicationRow.version, PublicationRow.published_at).join(
        newest, (PublicationRow.table == newest.c.name) & (PublicationRow.version == newest.c.version)
    )
    published = {table: (version, at) for table, version, at in session.execute(found)}
    items = [
        FollowedOverview(followed_from_row(row), *published.get(row.table_name, (None, None)))
        for row in shown
    ]
    return Page(items, shown[-1].table_name if len(rows) > PAGE else None)
