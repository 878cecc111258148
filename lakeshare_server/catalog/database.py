"""Opening the catalog: engine, transactions, and its schema brought up to date.

Several processes may open the same catalog at once; one of them migrates, the others wait for it.
"""

import logging
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from lakeshare_server.catalog.generation import NEXT_GENERATION, UNSEEN, generation_reader, guard
from lakeshare_server.errors import BadRequest, CatalogConflict, Unavailable
from lakeshare_server.settings import make_private

HEAD = "0008"
BUSY_TIMEOUT_S = 30
WRITES = "lakeshare_writes"
NOTICE_LOSS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Classes of SQLSTATE: a failed connection, and a server that is shut down.
ENDS_CONNECTION = ("08", "57P")
# SQLite gives every reader a snapshot of its own; PostgreSQL does when asked.
LOOKS = {"postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}}
# Any number, as long as no other program takes the same advisory lock in this database.
MIGRATION_LOCK = 7_161_433
USABLE_URL = (
    "Give an SQLAlchemy URL of an installed driver, like sqlite:////folder/file.db or postgresql+psycopg://…."
)

_log = logging.getLogger(__name__)


class Catalog:
    """The database of publications, shares, recipients and requests."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        look = LOOKS.get(engine.dialect.name, {})
        self._reader = guard(engine.execution_options(**look), frozenset())
        self._writer = engine.execution_options(**{WRITES: True})
        self._unseen_writer = guard(engine.execution_options(**{WRITES: True}), UNSEEN)
        self._generation = generation_reader(engine)
        # However the catalog is let go, its connections are closed.
        weakref.finalize(self, engine.dispose)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent look at the catalog.

        Raises:
            Unavailable: the database does not answer.
        """
        with self._reachable(), Session(self._reader) as session, session.begin():
            yield session

    @contextmanager
    def writing(self, *, seen: bool = True) -> Iterator[Session]:
        """One transaction that writes: committed at the end, or not at all.

        Begins the next generation, unless told that no recipient can see what is written. Writers that do
        take turns, on every database: what one has read is still true when it writes.

        Raises:
            Unavailable: the database does not answer, or another writer held it for too long.
            BadRequest: a value is larger than the database can hold.
        """
        writer = self._writer if seen else self._unseen_writer
        with self._reachable(), Session(writer) as session, session.begin():
            if seen:
                session.execute(NEXT_GENERATION)
            yield session

    @property
    def reads_generation_at_once(self) -> bool:
        """Whether `generation` costs microseconds, without a network in between."""
        return self.engine.dialect.name == "sqlite"

    def generation(self) -> int:
        """The number of the newest write that recipients can see; cheap enough for every request.

        Raises:
            Unavailable: the database does not answer.
        """
        try:
            return self._generation.read()
        except (DBAPIError, PoolTimeout, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def revision(self) -> str | None:
        """The migration the database is at, or None when it is empty.

        Raises:
            Unavailable: the database does not answer.
        """
        try:
            with self.engine.connect() as connection:
                return _revision(connection)
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, PoolTimeout) as error:
            raise self._unavailable(error) from error
        except DataError as error:
            hint = "The database cannot hold it; shorten or correct it."
            raise BadRequest("a value for the catalog", str(error.orig).splitlines()[0], hint) from error
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> Unavailable:
        # Whoever asks is told nothing of the database: some do without a token.
        _log.error("the catalog at %s does not answer: %s", *_told(self.engine.url, error))
        return Unavailable("the catalog does not answer", "Try again; the server's log says why.")

    def close(self) -> None:
        """Give the connections back."""
        self._generation.close()
        self.engine.dispose()


def open_catalog(url: str) -> Catalog:
    """Open the catalog at an SQLAlchemy URL, made and migrated when it needs to be.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: a newer lakeshare has migrated the database.
        Unavailable: the database cannot be reached or written.
    """
    engine = _engine_at(url)
    catalog = Catalog(engine)
    try:
        with engine.connect() as connection:
            is_old = _revision(connection) != HEAD
        if is_old:
            _migrate(catalog)
    except DatabaseError as error:
        engine.dispose()
        place, cause = _told(engine.url, error)
        raise Unavailable(
            f"the catalog at {place} cannot be opened: {cause}",
            "Check that the database is there and writable (LAKESHARE_DATABASE_URL, LAKESHARE_STATE_DIR).",
        ) from error
    return catalog


def new_catalog(url: str, revision: str) -> Catalog:
    """An empty catalog at an SQLAlchemy URL, as the migration `revision` leaves it: for rows that were kept then.

    A catalog of that revision that is there already is taken as it is.

    Raises:
        BadRequest: the URL cannot be used.
        CatalogConflict: there is a catalog of another revision, or this lakeshare does not know the revision.
        Unavailable: the database cannot be reached or written.
    """
    engine = _engine_at(url)
    catalog = Catalog(engine)
    try:
        with engine.connect() as connection:
            found = _revision(connection)
        if found is None:
            _migrate(catalog, revision)
    except DatabaseError as error:
        engine.dispose()
        place, cause = _told(engine.url, error)
        raise Unavailable(f"the catalog at {place} cannot be made: {cause}", USABLE_URL) from error
    if found not in {None, revision}:
        engine.dispose()
        raise CatalogConflict(
            f"there is a catalog of revision {found}, not {revision}", "Give the URL of an empty database."
        )
    return catalog


def database_file(url: str) -> Path | None:
    """The file of the catalog at an SQLAlchemy URL, None when it is in no file of ours.

    Raises:
        BadRequest: the URL cannot be used.
    """
    with _usable(url):
        parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database.removeprefix("file:") if "uri" in parsed.query else parsed.database)


def _told(url: URL, error: Exception) -> tuple[str, str]:
    """Where the database is and what it said, without the password and the query, which can hold others."""
    cause = str(getattr(error, "orig", None) or error)
    options = (value for values in url.normalized_query.values() for value in values)
    for secret in sorted(filter(None, (url.password, *options)), key=len, reverse=True):
        cause = cause.replace(secret, "…")
    return url.set(query={}).render_as_string(hide_password=True), cause


def _engine_at(url: str) -> Engine:
    with _usable(url):
        return _engine(make_url(url))


@contextmanager
def _usable(url: str) -> Iterator[None]:
    try:
        yield
    except (ArgumentError, ValueError, TypeError, ImportError):
        # Their words, and all of the URL behind its scheme, may hold the password.
        scheme, colon, _ = url.partition(":")
        raise BadRequest("LAKESHARE_DATABASE_URL", f"{scheme}:…" if colon else "…", USABLE_URL) from None


def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "postgresql":
        return _postgresql_engine(url)
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True)
    if url.database:
        _make_for_owner(database_file(str(url)))
    # One connection for each thread of the server's pool, so that none waits for another's.
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, pool_size=20, max_overflow=60)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _make_for_owner(database: Path | None) -> None:
    """Make the file of a new database: SQLite would let everybody read it. Files beside it get the same mode."""
    if database is None or str(database) == ":memory:":
        return
    make_private(database.parent)
    if not database.exists():
        with suppress(OSError):  # where it cannot be made, SQLite says so
            os.close(os.open(database, os.O_WRONLY | os.O_CREAT, 0o600))


def _postgresql_engine(url: URL) -> Engine:
    # A server that is gone without a word is noticed by these; what the URL says itself stands.
    given = {name: value for name, value in NOTICE_LOSS.items() if name not in url.query}
    engine = create_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=20, connect_args=given)
    event.listen(engine, "connect", _prepare_postgresql)
    event.listen(engine, "handle_error", _recognise_cut)
    return engine


def _recognise_cut(context: ExceptionContext) -> None:
    """Have a connection replaced that was cut, though libpq still takes it for a busy one.

    SQLAlchemy recognises a cut by libpq's state only. Its ping then fails to reset `autocommit`, which hides the cause
    ("can't change 'autocommit' now"): whatever a ping fails of, its connection is of no use.
    """
    error = context.original_exception
    state = getattr(error, "sqlstate", None)
    # Without a state it is not the database that refused: the driver lost it.
    is_lost = type(error).__name__ == "OperationalError" and state is None
    if context.is_pre_ping or is_lost or str(state).startswith(ENDS_CONNECTION):
        context.is_disconnect = True


def _prepare_postgresql(connection: Any, _record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
    connection.commit()


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    # The driver opens transactions late and upgrades them, which deadlocks writers: BEGIN is ours.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    _use_wal(connection)


def _use_wal(connection: sqlite3.Connection) -> None:
    # SQLite does not wait for its busy timeout here: of two processes that switch at once one gets "locked".
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(catalog: Catalog, revision: str = HEAD) -> None:
    with catalog.engine.execution_options(**{WRITES: True}).begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        if _revision(connection) != revision:
            _upgrade(connection, revision)


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise CatalogConflict(
            f"the catalog is at revision {_revision(connection) or revision}, this lakeshare knows up to {HEAD}",
            "Use the lakeshare version that migrated it, or a newer one.",
        ) from error
