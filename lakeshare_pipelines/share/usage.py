"""What is odd in the usage of shares: recipients that ask for nothing any more, and those that ask for far more."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median

from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.audit import Usage, last_seen, usage
from lakeshare_server.catalog.sharing import look

# States of recipients that could ask.
AT_WORK = ("activated", "rotating")
# A usual day is the median of those with queries in so many before; of fewer than some nothing is said.
HISTORY_DAYS = 28
LEAST_DAYS = 5


@dataclass(frozen=True)
class Silent:
    """A recipient that was not answered for a while, if ever."""

    recipient: str
    last_seen: datetime | None


@dataclass(frozen=True)
class Spike:
    """A recipient's day that is many times a usual one; `measure` is `queries` or `size_bytes`."""

    recipient: str
    day: date
    measure: str
    value: int
    usual: float


def silent_recipients(catalog: Catalog, days: int, now: datetime) -> list[Silent]:
    """Recipients with a valid token, added before the last so many days, that were not answered in them."""
    since = now - timedelta(days=days)
    with catalog.reading() as session:
        at_work = [
            one.name for one in look.recipients(session) if one.state in AT_WORK and one.created_at < since
        ]
    seen = last_seen(catalog)
    quiet = [Silent(name, seen.get(name)) for name in at_work]
    return [one for one in quiet if one.last_seen is None or one.last_seen < since]


def usage_spikes(catalog: Catalog, factor: float, day: date) -> list[Spike]:
    """Recipients that asked on a day for more than `factor` times what they usually do."""
    found = usage(catalog, day - timedelta(days=HISTORY_DAYS), day)
    spikes = []
    for recipient in sorted({one.recipient for one in found}):
        days = _by_day(one for one in found if one.recipient == recipient)
        for measure in ("queries", "size_bytes"):
            usual = [value for when, values in days.items() if when < day and (value := values[measure])]
            value = days.get(day, {}).get(measure, 0)
            if len(usual) >= LEAST_DAYS and value > factor * median(usual):
                spikes.append(Spike(recipient, day, measure, value, median(usual)))
    return spikes


def _by_day(found: Iterable[Usage]) -> dict[date, dict[str, int]]:
    days: dict[date, dict[str, int]] = {}
    for one in found:
        values = days.setdefault(one.day, {"queries": 0, "size_bytes": 0})
        values["queries"] += one.queries
        values["size_bytes"] += one.size_bytes
    return days
