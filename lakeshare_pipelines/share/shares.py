"""The shares that contracts declare, applied to the server's catalog."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from statistics import median

from lakeshare_pipelines.contracts import SetContract, ShareEntry
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    ShareDiff,
    SharedTable,
    apply_shares,
)
from lakeshare_server.catalog.audit import Usage, last_seen, usage
from lakeshare_server.catalog.sharing import states


def apply(catalog: Catalog, contracts: Sequence[SetContract]) -> ShareDiff:
    """Make the catalog's declared shares what the contracts say; returns the difference.

    Raises:
        ContractError: two contracts share different tables under one name.
    """
    return apply_shares(catalog, declared_shares(contracts))


def declared_shares(contracts: Sequence[SetContract]) -> list[DeclaredShare]:
    """The shares of all contracts together, in order of name."""
    tables: dict[str, dict[tuple[str, str], SharedTable]] = {}
    for contract in contracts:
        for entry in contract.shares:
            share = tables.setdefault(entry.share, {})
            key = (entry.schema.lower(), entry.name.lower())
            if key in share and share[key].table != entry.table:
                raise ContractError(
                    contract.path,
                    "shares",
                    f"{entry.share}.{entry.schema}.{entry.name} stands for {share[key].table} and {entry.table}",
                    "Give one of them another name.",
                )
            share[key] = _shared(contract, entry)
    return [
        DeclaredShare(name=name, tables=tuple(of[key] for key in sorted(of)))
        for name, of in sorted(tables.items())
    ]


def _shared(contract: SetContract, entry: ShareEntry) -> SharedTable:
    view = contract.table(entry.table).view
    if view is None:
        return SharedTable(schema=entry.schema, name=entry.name, table=entry.table)
    rule = None if view.per_recipient is None else view.per_recipient.rule
    return SharedTable(schema=entry.schema, name=entry.name, table=entry.table, kind="VIEW", rule=rule)


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
            one.name for one in states.recipients(session) if one.state in AT_WORK and one.created_at < since
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
