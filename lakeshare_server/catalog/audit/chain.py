"""The chain of events: each holds the hash of the one before it, in one order for all processes.

The order is made in the database, by whoever holds the head of the chain in its transaction.
"""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update
from sqlalchemy.orm import Session

from lakeshare_server.catalog.audit.events import NAMES, AuditEvent, Written, chained, written
from lakeshare_server.catalog.models import AuditChainRow, AuditRow

HEAD = "head"
ANCHOR = "anchor"
# The action of the event that tells of a pruning.
PRUNED = "prune_audit_log"
COLUMNS = ("key", *NAMES, "previous_hash", "hash")
AT_ONCE = 100
MICROSECONDS = len("2026-03-01 12:00:00.000000")


def append_events(session: Session, events: Sequence[AuditEvent]) -> None:
    """Append events to the log, in this order, within the session's transaction.

    Nobody else appends until that has ended: do it last in a transaction, and end it soon.
    """
    append_written(session, [written(event) for event in events])


def append_written(session: Session, events: Sequence[Written]) -> None:
    """Append events that are written already."""
    if not events:
        return
    head = locked_head(session)
    previous, number = head.hash, head.number
    rows = []
    for event in events:
        number += 1
        digest = chained(previous, event.text)
        rows.append((number, event.values, previous, digest))
        previous = digest
    _insert(session.connection(), rows)
    session.execute(
        update(AuditChainRow).where(AuditChainRow.name == HEAD).values(number=number, hash=previous)
    )


def _insert(connection: Connection, rows: Sequence[tuple[int, dict[str, Any], str, str]]) -> None:
    """Insert events a hundred to a statement, past SQLAlchemy's types, which would cost as much again.

    Texts are made for every database by `written`; only moments and JSON are spelt differently.
    """
    dialect = connection.dialect
    mark = "?" if dialect.paramstyle == "qmark" else "%s"
    zone = "" if dialect.name == "sqlite" else "+00:00"
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE]
        parameters: list[Any] = []
        for number, values, previous, digest in some:
            at, said = values["at"], values["details"]
            spelt = {
                **values,
                "at": at.isoformat(" ", "microseconds")[:MICROSECONDS] + zone,
                "details": None if said is None else json.dumps(said),
            }
            parameters += (number, *spelt.values(), previous, digest)
        marks = ", ".join([f"({', '.join([mark] * len(COLUMNS))})"] * len(some))
        connection.exec_driver_sql(
            f"INSERT INTO {AuditRow.__tablename__} ({', '.join(COLUMNS)}) VALUES {marks}",  # noqa: S608  # our own names
            tuple(parameters),
        )


def locked_head(session: Session) -> AuditChainRow:
    # SQLite has one writer at a time anyway; elsewhere the row is what writers wait for.
    look = select(AuditChainRow).where(AuditChainRow.name == HEAD).with_for_update()
    head = session.scalars(look.execution_options(populate_existing=True)).one()
    session.expunge(head)
    newest = session.scalar(select(func.max(AuditRow.key))) or 0
    # A head that somebody has set back must not keep events out: `verify` tells of it.
    head.number = max(head.number, newest)
    return head
