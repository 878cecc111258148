"""What a recipient asked for, out of the audit log: per object how often, how many files, which versions."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.models import AuditRow

REFUSED = 400


@dataclass(frozen=True)
class Usage:
    """Requests of a recipient for one object, by what they asked of it."""

    object_name: str
    action: str
    requests: int
    refused: int
    files: int
    versions: int
    first_at: datetime
    last_at: datetime


def recipient_usage(session: Session, recipient: str, since: datetime | None = None) -> list[Usage]:
    """The usage of a recipient by object and action, from some moment on."""
    # A streamed answer's end is an event of its own, with its counts.
    is_request = AuditRow.kind == "request"
    refused = func.sum(case((is_request & (AuditRow.status >= REFUSED), 1), else_=0))
    rows = (
        select(
            AuditRow.object_name,
            AuditRow.action,
            func.sum(case((is_request, 1), else_=0)),
            refused,
            func.coalesce(func.sum(AuditRow.files), 0),
            func.count(AuditRow.version.distinct()),
            func.min(AuditRow.at),
            func.max(AuditRow.at),
        )
        # Administrators who look as the recipient are principals of their own.
        .where(
            AuditRow.recipient == recipient,
            AuditRow.principal.is_(None),
            AuditRow.object_name.is_not(None),
        )
        .group_by(AuditRow.object_name, AuditRow.action)
        .order_by(AuditRow.object_name, AuditRow.action)
    )
    if since is not None:
        rows = rows.where(AuditRow.at >= since)
    # PostgreSQL sums to decimals.
    return [
        Usage(name, action, int(count), int(refusals), int(files), versions, first, last)
        for name, action, count, refusals, files, versions, first, last in session.execute(rows)
    ]
