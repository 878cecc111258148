"""The rows of the state database as JSON lines, and back into an empty one, of SQLite or PostgreSQL.

What is new in the catalog is dumped without a word here; what is left out is named.
"""

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import JSON, Connection, DateTime, MetaData, Table, delete, func, select, text
from sqlalchemy.orm import Session

from lakeshare_server.catalog.models import Base
from lakeshare_server.catalog.models.base import UtcDateTime

LEFT_OUT = frozenset(
    {
        # Events prove each other in a chain of their own, which is exported by `lakeshare audit export`.
        "audit_log",
        "audit_chain",
        "audit_journals",
        "usage_days",
        # What is under way: nobody comes back for it to another database.
        "async_queries",
        "set_locks",
        "allowances",
    }
)
GENERATION = "catalog_state"
AT_ONCE = 1000


def kept_tables() -> list[Table]:
    """The tables whose rows are kept, those first that others refer to."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]


def lines_of(session: Session, table: Table) -> Iterator[bytes]:
    """Each row of a table as a line of JSON, in the order of its key; times are ISO 8601 in UTC."""
    rows = session.execute(
        select(table).order_by(*table.primary_key), execution_options={"yield_per": AT_ONCE}
    )
    for row in rows.mappings():
        told = {name: _told(value) for name, value in row.items()}
        yield json.dumps(told, separators=(",", ":")).encode() + b"\n"


def tables_of(connection: Connection, names: Sequence[str]) -> list[Table]:
    """The tables of a database as they are there, whatever its revision; in the order of `names`.

    Raises:
        KeyError: the database has no such table.
    """
    metadata = MetaData()
    metadata.reflect(connection)
    found = [metadata.tables[name] for name in names]
    for table in found:
        for column in table.columns:
            if isinstance(column.type, DateTime):
                column.type = UtcDateTime()
            elif isinstance(column.type, JSON):
                column.type = JSON(none_as_null=True)
    return found


def occupied(connection: Connection, tables: Sequence[Table]) -> list[str]:
    """The names of tables that have rows, but for the count of generations, which has one from the beginning."""
    counted = (table for table in tables if table.name != GENERATION)
    return [table.name for table in counted if connection.execute(select(table).limit(1)).first() is not None]


def fill(connection: Connection, table: Table, lines: Iterator[bytes]) -> int:
    """Insert rows as `lines_of` told them; returns how many."""
    if table.name == GENERATION:
        connection.execute(delete(table))
    times = {column.name for column in table.columns if isinstance(column.type, UtcDateTime)}
    rows, count = (_row(line, times) for line in lines), 0
    while some := list(islice(rows, AT_ONCE)):
        if table.name == GENERATION:
            # Whoever has cached answers of the lost database must not take them for this one's.
            some = [{**row, "generation": row["generation"] + 1} for row in some]
        connection.execute(table.insert(), some)
        count += len(some)
    _go_on_behind(connection, table)
    return count


def _go_on_behind(connection: Connection, table: Table) -> None:
    """Let the next key be a new one: PostgreSQL's sequences do not notice keys that are given."""
    if connection.dialect.name != "postgresql" or "key" not in table.columns:
        return
    owned = text("SELECT pg_get_serial_sequence(:table, 'key')")
    sequence = connection.execute(owned, {"table": table.name}).scalar()
    highest = connection.execute(select(func.max(table.c.key))).scalar()
    if sequence is not None and highest is not None:
        connection.execute(
            text("SELECT setval(:sequence, :highest)"), {"sequence": sequence, "highest": highest}
        )


def _told(value: object) -> object:
    return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value


def _row(line: bytes, times: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return {
        name: dt.datetime.fromisoformat(value) if name in times and value is not None else value
        for name, value in row.items()
    }
