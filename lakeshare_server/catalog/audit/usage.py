"""Usage: what recipients asked for, by day, table and version; counted from events, and kept when those are pruned."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

from sqlalchemy import ColumnElement, Select, String, case, func, insert, select
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AuditRow, UsageRow

# Calls that give files away, by whichever door; versions and metadata are asked for far more often.
QUERIES = (
    "query_table",
    "get_query",
    "table_changes",
    "table_credentials",
    "load_table",
    "load_credentials",
    "plan_scan",
    "fetch_scan_tasks",
    "sign_request",
)
# Reads of a file follow from a query that was counted; their object is a path.
NOT_COUNTED = ("read_file",)
REFUSED = 400
DIMENSIONS = ("day", "recipient", "table", "version")
COUNTS = ("requests", "queries", "files", "size_bytes", "refused")
COLUMNS = ("day", "recipient", "object_name", "version", *COUNTS)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a recipient asked of a version of a table on a day (UTC); what no single table was asked for has none.

    `files` and `size_bytes` are those whose URLs were signed.
    """

    day: date
    recipient: str
    table: str | None
    version: int | None
    requests: int
    queries: int
    files: int
    size_bytes: int
    refused: int


def usage(
    catalog: Catalog, since: date, until: date, recipient: str | None = None, table: str | None = None
) -> list[Usage]:
    """Usage from one day to another, both included: of one recipient, and of one table (share.schema.table), if named.

    Raises:
        Unavailable: the database does not answer.
    """
    with catalog.reading() as session:
        begin = datetime.combine(since, time.min, UTC)
        end = datetime.combine(until, time.max, UTC)
        live = _counted(session, AuditRow.at.between(begin, end))
        kept = select(UsageRow).where(UsageRow.day.between(since.isoformat(), until.isoformat()))
        found = [_usage(row._mapping) for row in session.execute(live)]
        found += [_usage({name: getattr(row, name) for name in COLUMNS}) for row in session.scalars(kept)]
    wanted = (
        one for one in found if recipient in (None, one.recipient) and (table is None or one.table == table)
    )
    # A day can be in both: a part of its events was pruned.
    return _merged(wanted)


def grouped(found: Iterable[Usage], by: Sequence[str]) -> list[dict[str, Any]]:
    """Counts by some of `DIMENSIONS`, the most queries first; `versions` counts the distinct ones of all tables."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    versions: dict[tuple[Any, ...], set[tuple[str | None, int]]] = {}
    for one in found:
        key = tuple(getattr(one, name) for name in by)
        group = groups.setdefault(key, {**dict(zip(by, key, strict=True)), **dict.fromkeys(COUNTS, 0)})
        for name in COUNTS:
            group[name] += getattr(one, name)
        seen = versions.setdefault(key, set())
        if one.version is not None and one.queries:
            seen.add((one.table, one.version))
    for key, group in groups.items():
        group["versions"] = len(versions[key])
    return sorted(groups.values(), key=lambda group: (-group["queries"], -group["requests"]))


def last_seen(catalog: Catalog) -> dict[str, datetime]:
    """When each recipient was last answered, by name; of events that were pruned the day is known."""
    look = select(AuditRow.recipient, func.max(AuditRow.at)).where(
        *_by_recipients(), AuditRow.status < REFUSED
    )
    with catalog.reading() as session:
        kept = select(UsageRow.recipient, func.max(UsageRow.day)).where(UsageRow.requests > 0)
        days = session.execute(kept.group_by(UsageRow.recipient))
        seen = {name: datetime.fromisoformat(day).replace(tzinfo=UTC) for name, day in days}
        seen |= {name: at for name, at in session.execute(look.group_by(AuditRow.recipient)) if name}
        return seen


def keep_usage(session: Session, gone: ColumnElement[bool]) -> None:
    """Keep the usage that events tell which are about to be pruned."""
    rows = [dict(row._mapping) for row in session.execute(_counted(session, gone))]
    if rows:
        session.execute(insert(UsageRow), rows)


def _counted(session: Session, where: ColumnElement[bool]) -> Select[Any]:
    is_request = AuditRow.kind == "request"
    is_answered = is_request & (AuditRow.status < REFUSED)
    day = _day(session)
    counts = {
        "requests": func.sum(case((is_answered, 1), else_=0)),
        "queries": func.sum(case((is_answered & AuditRow.action.in_(QUERIES), 1), else_=0)),
        "files": func.sum(func.coalesce(AuditRow.files, 0)),
        "size_bytes": func.sum(func.coalesce(AuditRow.size_bytes, 0)),
        "refused": func.sum(case((is_request & (AuditRow.status >= REFUSED), 1), else_=0)),
    }
    by = (day, AuditRow.recipient, AuditRow.object_name, AuditRow.version)
    columns = [column.label(name) for name, column in counts.items()]
    look = select(day.label("day"), *by[1:], *columns).where(
        where, *_by_recipients(), AuditRow.action.not_in(NOT_COUNTED)
    )
    return look.group_by(*by)


def _by_recipients() -> tuple[ColumnElement[bool], ...]:
    """Requests of recipients themselves, and not of administrators who look as one."""
    return AuditRow.recipient.is_not(None), AuditRow.principal.is_(None)


def _day(session: Session) -> ColumnElement[str]:
    if session.get_bind().dialect.name == "postgresql":
        return func.to_char(func.timezone("UTC", AuditRow.at), "YYYY-MM-DD", type_=String)
    return func.substr(AuditRow.at, 1, 10, type_=String)


def _usage(values: Any) -> Usage:
    counts = {name: int(values[name]) for name in COUNTS}
    return Usage(
        day=date.fromisoformat(values["day"]),
        recipient=values["recipient"],
        table=values["object_name"],
        version=values["version"],
        **counts,
    )


def _merged(found: Iterable[Usage]) -> list[Usage]:
    merged: dict[tuple[Any, ...], Usage] = {}
    for one in found:
        key = (one.day, one.recipient, one.table, one.version)
        if key in merged:
            before = merged[key]
            counts = {name: getattr(before, name) + getattr(one, name) for name in COUNTS}
            one = Usage(day=one.day, recipient=one.recipient, table=one.table, version=one.version, **counts)
        merged[key] = one
    return sorted(
        merged.values(), key=lambda one: (one.day, one.recipient, one.table or "", one.version or 0)
    )
