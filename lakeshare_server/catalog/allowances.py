"""How much of something was taken in a stretch of time, counted for all workers together.

Workers take permits in advance, many at a time: what is counted here is never less than what was used.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import AllowanceRow

KEPT_FOR = timedelta(days=2)


class Allowances:
    """The counts of the catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def take(
        self, subject: str, kind: str, window_began_at: datetime, most: int, wanted: int, owed: int = 0
    ) -> int:
        """Count what is owed, and take as many permits more as are wanted, or as are left of `most`.

        Raises:
            Unavailable: the database does not answer.
        """
        with self.catalog.writing(seen=False) as session:
            row = self._row(session, subject, kind, window_began_at)
            if row.window_began_at < window_began_at:
                row.window_began_at, row.taken = window_began_at, 0
            granted = max(0, min(wanted, most - row.taken - owed))
            row.taken += owed + granted
            return granted

    def _row(self, session: Session, subject: str, kind: str, window_began_at: datetime) -> AllowanceRow:
        own = (AllowanceRow.subject == subject) & (AllowanceRow.kind == kind)
        found = session.scalars(select(AllowanceRow).where(own).with_for_update()).one_or_none()
        if found is not None:
            return found
        session.execute(delete(AllowanceRow).where(AllowanceRow.window_began_at < _long_ago()))
        # Another worker may be about to do the same.
        values = {"subject": subject, "kind": kind, "window_began_at": window_began_at, "taken": 0}
        session.execute(inserting(session, AllowanceRow, values).on_conflict_do_nothing())
        return session.scalars(select(AllowanceRow).where(own).with_for_update()).one()


def inserting(session: Session, model: Any, values: Any) -> Any:
    """An insert that can say what is to be done where a row is there already: each database has its own."""
    make = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    return make(model).values(values)


def _long_ago() -> datetime:
    return datetime.now(UTC) - KEPT_FOR
