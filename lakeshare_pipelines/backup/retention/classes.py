"""Grandfather, father, son: what class a point gets when it is made, how long that is locked, and which points stay.

Pure: nothing here reads a store.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from lakeshare_pipelines.backup.declared import Retention
from lakeshare_pipelines.backup.records import GOOD, Point, Status

RetentionClass = Literal["daily", "weekly", "monthly", "yearly"]
CLASSES: tuple[RetentionClass, ...] = get_args(RetentionClass)
"""Shortest first; a point of a class serves the shorter ones too."""

DAYS_OF = {"daily": 1, "weekly": 7, "monthly": 31, "yearly": 366}
"""Longest lengths of the periods, so that a lock never ends before its class does."""


@dataclass(frozen=True)
class Kept:
    """A point as retention sees it."""

    day: str
    as_of: dt.datetime
    status: Status
    retention_class: RetentionClass
    is_damaged: bool = False
    """Copies of it rotted after it was made. It keeps its place, for the tables that are whole."""

    @classmethod
    def of(cls, point: Point) -> "Kept":
        """What of a point matters here."""
        status = point.status_when_made or point.status
        return cls(point.day, point.as_of, status, point.retention_class, point.damage is not None)

    @property
    def is_good(self) -> bool:
        """Whether it counts."""
        return self.status in GOOD


def class_of(
    as_of: dt.datetime, status: Status, others: Iterable[Kept], retention: Retention
) -> RetentionClass:
    """The class of a new point: the longest one whose period has no good point of that class yet.

    A point that is not good is `daily`: it stands for nothing.
    """
    if status not in GOOD:
        return "daily"
    good = [one for one in others if one.is_good]
    for name in reversed(CLASSES[1:]):
        period = period_of(name, as_of)
        serving = (one for one in good if _serves(one, name))
        if getattr(retention, name) and all(period_of(name, one.as_of) != period for one in serving):
            return name
    return "daily"


def lock_ends(made_at: dt.datetime, retention_class: RetentionClass, retention: Retention) -> dt.datetime:
    """Until when copies of a point of this class are locked."""
    return made_at + dt.timedelta(days=DAYS_OF[retention_class] * max(1, getattr(retention, retention_class)))


def kept_days(points: Sequence[Kept], retention: Retention) -> set[str]:
    """The days of the points that stay: of each class the newest periods, and always the newest good point.

    Points that are not good take no place of others. They stay as long as days do, and while nothing good is newer.
    """
    good = sorted((one for one in points if one.is_good), key=lambda one: one.as_of, reverse=True)
    # The newest one of all, and the newest one that is whole.
    kept = {one.day for one in (*good[:1], *[one for one in good if not one.is_damaged][:1])}
    for name in CLASSES:
        serving = [one for one in good if _serves(one, name)]
        periods = _first(getattr(retention, name), (period_of(name, one.as_of) for one in serving))
        kept |= {one.day for one in serving if period_of(name, one.as_of) in periods}
    days = _first(retention.daily, (period_of("daily", one.as_of) for one in good))
    oldest = min(days, default=None)
    for one in points:
        if not one.is_good and (oldest is None or period_of("daily", one.as_of) >= oldest):
            kept.add(one.day)
    return kept


def period_of(name: RetentionClass, as_of: dt.datetime) -> tuple[int, ...]:
    """The day, ISO week, month or year a moment belongs to; midnight belongs to the day it ends."""
    date = (as_of.astimezone(dt.UTC) - dt.timedelta(microseconds=1)).date()
    return _PERIODS[name](date)


_PERIODS: dict[RetentionClass, Callable[[dt.date], tuple[int, ...]]] = {
    "daily": lambda date: (date.year, date.month, date.day),
    "weekly": lambda date: date.isocalendar()[:2],
    "monthly": lambda date: (date.year, date.month),
    "yearly": lambda date: (date.year,),
}


def _serves(point: Kept, name: RetentionClass) -> bool:
    return CLASSES.index(point.retention_class) >= CLASSES.index(name)


def _first(count: int, periods: Iterable[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return set(list(dict.fromkeys(periods))[:count])
