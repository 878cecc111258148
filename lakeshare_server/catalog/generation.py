"""The catalog's generation: a number that grows with every write that can change what a recipient sees.

Reading it is cheap enough for every request. Who writes what is guarded here too, so that no write can forget it.
"""

import sqlite3
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, TextClause, UpdateBase, event, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from lakeshare_server.catalog.models import (
    AdminKeyRow,
    AllowanceRow,
    AsyncQueryRow,
    AuditChainRow,
    AuditJournalRow,
    AuditRow,
    SetLockRow,
    StateRow,
    TokenUseRow,
    UsageRow,
)

# What recipients never see. A model that is not named here counts as seen.
UNSEEN = frozenset(
    model.__tablename__
    for model in (
        AdminKeyRow,
        AuditRow,
        AuditChainRow,
        AuditJournalRow,
        SetLockRow,
        AsyncQueryRow,
        TokenUseRow,
        AllowanceRow,
        UsageRow,
    )
)
NEXT_GENERATION = update(StateRow).values(generation=StateRow.generation + 1)
CURRENT = "SELECT generation FROM catalog_state"


class GenerationReader(Protocol):
    """Something that reads the generation; safe from any thread."""

    def read(self) -> int:
        """The generation of the newest committed write."""

    def close(self) -> None:
        """Give the connections back."""


def generation_reader(engine: Engine) -> GenerationReader:
    """The cheapest way to read the generation of this database."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        return SqliteGeneration(engine)
    return QueriedGeneration(engine)


def guard(engine: Engine, allowed: frozenset[str]) -> Engine:
    """Make every write through this engine but those to the allowed tables an error."""

    def refuse(_connection: Connection, statement: object, *_: Any) -> None:
        written = getattr(statement.table, "name", None) if isinstance(statement, UpdateBase) else None
        is_unknown = isinstance(statement, TextClause) and allowed
        if is_unknown or (isinstance(statement, UpdateBase) and written not in allowed):
            raise AssertionError(
                f"{written or statement} may change what recipients see: write it in Catalog.writing()"
            )

    event.listen(engine, "before_execute", refuse)
    return engine


class _Eye:
    """One thread's own connection, and the generation it saw last."""

    def __init__(self, engine: Engine) -> None:
        fairy = engine.raw_connection()
        fairy.detach()
        connection: Any = fairy.dbapi_connection  # the driver's own, without a layer's cost
        self.execute: Callable[[str], sqlite3.Cursor] = connection.execute
        self.data_version: int = -1
        self.generation: int = -1
        self.close = weakref.finalize(self, connection.close)


class SqliteGeneration:
    """Asks SQLite whether anything was committed since the last look, and only then for the generation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own = threading.local()
        self._eyes: weakref.WeakSet[_Eye] = weakref.WeakSet()

    def read(self) -> int:
        """The generation of the newest committed write."""
        eye: _Eye | None = getattr(self._own, "eye", None)
        if eye is None or not eye.close.alive:
            eye = self._own.eye = _Eye(self._engine)
            self._eyes.add(eye)
        # It moves for commits of other connections only; this one never writes.
        (data_version,) = eye.execute("PRAGMA data_version").fetchone()
        if data_version != eye.data_version:
            (eye.generation,) = eye.execute(CURRENT).fetchone()
            eye.data_version = data_version
        return eye.generation

    def close(self) -> None:
        """Give the connections back."""
        for eye in list(self._eyes):
            eye.close()


class QueriedGeneration:
    """Asks the database each time, over one connection kept for this."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def read(self) -> int:
        """The generation of the newest committed write."""
        with self._turn:
            try:
                return self._ask()
            except DBAPIError:
                # The database may have dropped an idle connection: a fresh one decides.
                return self._ask()

    def close(self) -> None:
        """Give the connection back."""
        with self._turn:
            self._drop()

    def _ask(self) -> int:
        if self._connection is None:
            self._connection = self._engine.connect()
        try:
            return int(self._connection.exec_driver_sql(CURRENT).scalar_one())
        except SQLAlchemyError:
            # Kept, a connection that was cut would refuse every later read.
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
