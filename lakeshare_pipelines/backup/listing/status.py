"""What there is of the reports a backup is listed by: the newest ones, and whether they come in time."""

import datetime as dt
from dataclasses import dataclass

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.listing.reports import (
    Late,
    Report,
    arrivals,
    awaited_report,
    deadline,
    earliest_scan,
    read_report,
    report_store,
)
from lakeshare_pipelines.errors import ReportUnusable

SHOWN = 5


@dataclass(frozen=True)
class ReportStatus:
    """One report that has arrived."""

    scan_started_at: dt.datetime
    arrived_at: dt.datetime
    age: dt.timedelta
    """Since its scan began: so old is what it tells."""
    day: str
    """The newest day it may speak for."""
    is_in_time: bool
    report: Report | None
    problem: str | None
    """Why it cannot be used; None when its manifest is whole."""


@dataclass(frozen=True)
class InventoryStatus:
    """The reports of one backup, newest first, and the newest day whose wait is over."""

    reports: tuple[ReportStatus, ...]
    arrived: int
    due_day: str
    late: Late | None
    """Set when no report came for that day; the generator lists it instead."""
    next_day: str
    """The day that is waited for next, or whose report may come already."""
    next_from: dt.datetime
    next_until: dt.datetime


def inventory_status(backup: Backup, now: dt.datetime) -> InventoryStatus:
    """Look at the reports of a backup of kind s3_inventory; of each shown one the manifest is read and checked.

    Raises:
        BackupError: their place cannot be read, or they are of another bucket.
    """
    store, location = report_store(backup), backup.listing.location or ""
    arrived = arrivals(store, location)
    shown = []
    for arrival in reversed(arrived[-SHOWN:]):
        day = _newest_day(backup, arrival.scan_started_at)
        report, problem = None, None
        try:
            report = read_report(store, location, arrival)
        except ReportUnusable as error:
            problem = str(error)
        shown.append(
            ReportStatus(
                arrival.scan_started_at,
                arrival.arrived_at,
                now - arrival.scan_started_at,
                day,
                arrival.arrived_at <= deadline(backup, day),
                report,
                problem,
            )
        )
    due = _newest_day(backup, now - dt.timedelta(hours=backup.listing.wait_hours))
    awaited = awaited_report(backup, due, now) if due >= str(backup.first_day) else None
    following = str(dt.date.fromisoformat(due) + dt.timedelta(days=1))
    return InventoryStatus(
        tuple(shown),
        len(arrived),
        due,
        awaited if isinstance(awaited, Late) else None,
        following,
        earliest_scan(backup, following),
        deadline(backup, following),
    )


def _newest_day(backup: Backup, scan: dt.datetime) -> str:
    """The newest day that a report may speak for whose scan began then."""
    day = scan.astimezone(dt.UTC).date() - dt.timedelta(days=max(1, backup.listing.lag_days))
    return str(day)
