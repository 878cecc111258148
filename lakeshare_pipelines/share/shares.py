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
from lakeshare_server.catalog.audit import Usage, read_last_seen, read_usage
from lakeshare_server.catalog.sharing import states


def apply_declared_shares(catalog: Catalog, contracts: Sequence[SetContract]) -> ShareDiff:
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
            share[key] = _make_shared_table(contract, entry)
    return [
        DeclaredShare(name=name, tables=tuple(of[key] for key in sorted(of)))
        for name, of in sorted(tables.items())
    ]


def _make_shared_table(contract: SetContract, entry: ShareEntry) -> SharedTable:
    view = contract.table(entry.table).view
    if view is None:
        return SharedTable(schema=entry.schema, name=entry.name, table=entry.table)
    rule = None if view.per_recipient is None else view.per_recipient.rule
    return SharedTable(schema=entry.schema, name=entry.name, table=entry.table, kind="VIEW", rule=rule)


ACTIVE_STATES = ("activated", "rotating")
# A usual day is the median of those with queries in so many before; of fewer than some nothing is said.
HISTORY_DAYS = 28
MIN_DAYS = 5


@dataclass(frozen=True)
class SilentRecipient:
    """A recipient that was not answered for a while, if ever."""

    recipient: str
    last_seen: datetime | None


@dataclass(frozen=True)
class UsageSpike:
    """A recipient's day that is many times a usual one; `measure` is `queries` or `size_bytes`."""

    recipient: str
    day: date
    measure: str
    value: int
    usual: float


def find_silent_recipients(catalog: Catalog, days: int, now: datetime) -> list[SilentRecipient]:
    """Recipients with a valid token, added before the last so many days, that were not answered in them."""
    since = now - timedelta(days=days)
    with catalog.reading() as session:
        at_work = [
            one.name
            for one in states.list_recipients(session)
            if one.state in ACTIVE_STATES and one.created_at < since
        ]
    seen = read_last_seen(catalog)
    quiet = [SilentRecipient(name, seen.get(name)) for name in at_work]
    return [one for one in quiet if one.last_seen is None or one.last_seen < since]


def find_usage_spikes(catalog: Catalog, factor: float, day: date) -> list[UsageSpike]:
    """Recipients that asked on a day for more than `factor` times what they usually do."""
    found = read_usage(catalog, day - timedelta(days=HISTORY_DAYS), day)
    spikes = []
    for recipient in sorted({one.recipient for one in found}):
        days = _by_day(one for one in found if one.recipient == recipient)
        for measure in ("queries", "size_bytes"):
            usual = [value for when, values in days.items() if when < day and (value := values[measure])]
            value = days.get(day, {}).get(measure, 0)
            if len(usual) >= MIN_DAYS and value > factor * median(usual):
                spikes.append(UsageSpike(recipient, day, measure, value, median(usual)))
    return spikes


def _by_day(found: Iterable[Usage]) -> dict[date, dict[str, int]]:
    days: dict[date, dict[str, int]] = {}
    for one in found:
        values = days.setdefault(one.day, {"queries": 0, "size_bytes": 0})
        values["queries"] += one.queries
        values["size_bytes"] += one.size_bytes
    return days
