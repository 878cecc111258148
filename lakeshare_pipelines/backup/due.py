"""Which days of a backup are due: their reports have come, or were waited for long enough."""

import datetime as dt

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points

LOOK_BACK_DAYS = 7
"""Older days are not made by themselves: what they held may have been vacuumed since."""


def due_days(backup: Backup, now: dt.datetime) -> list[str]:
    """Days to make now, oldest first.

    Of a backup without any point only the newest due day: the others would copy the same again.

    Raises:
        BackupError: the place of the reports, or the target, cannot be read.
    """
    from lakeshare_pipelines.backup.listing.make import is_listing_ready

    made = Points(backup).days()
    yesterday = now.astimezone(dt.UTC).date() - dt.timedelta(days=1)
    due: list[str] = []
    for ago in range(LOOK_BACK_DAYS):
        day = yesterday - dt.timedelta(days=ago)
        if day < backup.first_day or day.isoformat() in made or (made and day.isoformat() < made[-1][:10]):
            continue
        if is_listing_ready(backup, day.isoformat(), now):
            due.append(day.isoformat())
            if not made:
                break
    return due[::-1]
