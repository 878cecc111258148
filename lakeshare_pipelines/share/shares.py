"""The shares that contracts declare, the sharing DDL for users of Spark, and alerts on their usage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.contracts.document import find_line
from lakeshare_pipelines.contracts.model import ShareEntry
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.wap.evolution import require_allowed_changes
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    Ledger,
    RetiredTable,
    ShareDiff,
    SharedTable,
    apply_shares,
    diff_shares,
    open_catalog,
    states,
)
from lakeshare_server.catalog.audit import read_last_seen, read_usage
from lakeshare_server.catalog.audit.maintenance import HISTORY_DAYS, MIN_DAYS, SPIKE_MEASURES
from lakeshare_server.catalog.sharing import operating_system_user
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import ServerSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Column of the frame for statements whose result is a sentence, and for scripts without statements.
RESULT_TEXT = "message"

ACTIVE_STATES = ("activated", "rotating")


def apply_declared_shares(
    catalog: Catalog, contracts: Sequence[SetContract], today: date | None = None
) -> ShareDiff:
    """Make the catalog's declared shares equal to those of the contracts, and keep retired tables until their date.

    `today` is by default the day in UTC.

    Raises:
        ContractError: two contracts share different tables under one name, or one breaks what is published.
    """
    return apply_shares(catalog, *_list_declared(catalog, contracts), today)


def diff_declared_shares(catalog: Catalog, contracts: Sequence[SetContract]) -> ShareDiff:
    """What `apply_declared_shares` would change today; raises as it does."""
    return diff_shares(catalog, *_list_declared(catalog, contracts))


def _list_declared(
    catalog: Catalog, contracts: Sequence[SetContract]
) -> tuple[list[DeclaredShare], list[RetiredTable]]:
    ledger = Ledger(catalog)
    for contract in contracts:
        require_allowed_changes(ledger, contract)
    retired = [
        RetiredTable(each.table, each.date, each.successor)
        for contract in contracts
        for each in contract.retirements
    ]
    return declared_shares(contracts), retired


def declared_shares(contracts: Sequence[SetContract]) -> list[DeclaredShare]:
    """The shares of the contracts; raises `ContractError` when two share different tables under the same name."""
    tables: dict[str, dict[tuple[str, str], SharedTable]] = {}
    for contract in contracts:
        for entry in contract.shares:
            share = tables.setdefault(entry.share, {})
            key = (entry.schema.lower(), entry.name.lower())
            if key in share and share[key].table != entry.table:
                path = f"{entry.share}.{entry.schema}.{entry.name}"
                problem = f"{path} stands for {share[key].table} and {entry.table}"
                hint = "Give one of them another name."
                line = find_line(contract, "customProperties", "shares")
                raise ContractError(contract.path, "shares", problem, hint, line=line)
            share[key] = _make_shared_table(contract, entry)
    return [
        DeclaredShare(name=name, tables=tuple(share[key] for key in sorted(share)))
        for name, share in sorted(tables.items())
    ]


def _make_shared_table(contract: SetContract, entry: ShareEntry) -> SharedTable:
    shared = SharedTable(schema=entry.schema, name=entry.name, table=entry.table)
    view = contract.table(entry.table).view
    if view is None:
        return shared
    rule = None if view.per_recipient is None else view.per_recipient.rule
    return replace(shared, kind="VIEW", rule=rule)


def sql(
    statements: str, spark: "SparkSession | None" = None, *, single_transaction: bool = False
) -> "DataFrame":
    """Execute the statements in the catalog that the settings name; see `lakeshare_pipelines.sql`."""
    from pyspark.sql import SparkSession
    from pyspark.sql import types as T

    from lakeshare_server.sql.session import SqlSession
    from lakeshare_server.sql.statements import Provider, Result

    spark = spark or SparkSession.getActiveSession()
    if spark is None:
        raise BadRequest("spark", None, "Give a SparkSession, or make one the active one.")
    settings = ServerSettings()
    catalog = open_catalog(settings.catalog_url)
    try:
        session = SqlSession(Provider(catalog, settings), operating_system_user())
        executed = list(session.run(statements, single_transaction=single_transaction))
    finally:
        catalog.close()
    result = executed[-1].result if executed else Result()
    if not result.columns:
        rows = [(result.message,)] if result.message else []
        return spark.createDataFrame(rows, T.StructType([T.StructField(RESULT_TEXT, T.StringType())]))
    types = {str: T.StringType, int: T.LongType, bool: T.BooleanType, datetime: T.TimestampType}
    fields = [T.StructField(name, types[kind]()) for name, kind in result.columns.items()]
    return spark.createDataFrame(list(result.rows), T.StructType(fields))


@dataclass(frozen=True)
class SilentRecipient:
    """A recipient without successful requests for a while, or since it was added."""

    recipient: str
    last_seen: datetime | None


@dataclass(frozen=True)
class UsageSpike:
    """A recipient's day with many times its usual use; `measure` is `queries` or `size_bytes`."""

    recipient: str
    day: date
    measure: str
    value: int
    usual: float


def find_silent_recipients(catalog: Catalog, days: int, now: datetime) -> list[SilentRecipient]:
    """Recipients with a valid token, added more than `days` ago, without a successful request in that time."""
    since = now - timedelta(days=days)
    with catalog.reading() as session:
        recipients = states.list_recipients(session)
    active = [row.name for row in recipients if row.state in ACTIVE_STATES and row.created_at < since]
    last_seen = read_last_seen(catalog)
    seen = [SilentRecipient(name, last_seen.get(name)) for name in active]
    return [recipient for recipient in seen if recipient.last_seen is None or recipient.last_seen < since]


def find_usage_spikes(catalog: Catalog, factor: float, day: date) -> list[UsageSpike]:
    """Recipients whose use on a day was more than `factor` times the usual."""
    usage: dict[str, dict[date, dict[str, int]]] = {}
    for row in read_usage(catalog, day - timedelta(days=HISTORY_DAYS), day):
        days = usage.setdefault(row.recipient, {})
        values = days.setdefault(row.day, dict.fromkeys(SPIKE_MEASURES, 0))
        for measure in SPIKE_MEASURES:
            values[measure] += getattr(row, measure)
    spikes = []
    for recipient, days in sorted(usage.items()):
        for measure in SPIKE_MEASURES:
            usual = [value for when, values in days.items() if when < day and (value := values[measure])]
            value = days.get(day, {}).get(measure, 0)
            if len(usual) >= MIN_DAYS and value > factor * median(usual):
                spikes.append(UsageSpike(recipient, day, measure, value, median(usual)))
    return spikes
